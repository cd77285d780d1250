# SPDX-License-Identifier: Apache-2.0
"""The message classes of .nnp files, as attributes: nnabla_pb2.NNablaProtoBuf()."""

from __future__ import annotations

from typing import Any

from nnl.converters.nnp.messages import messages


def __getattr__(name: str) -> Any:
    try:
        return messages()[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted(messages())
