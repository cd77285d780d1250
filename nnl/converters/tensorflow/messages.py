# SPDX-License-Identifier: Apache-2.0
"""The protobuf messages of TensorFlow's files, built at run time from the table `messages.tsv`."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from nnl.converters.nnp.messages import build, rows

SERVING = "serving_default"  # what users of a SavedModel call


class TensorFlowError(ValueError):
    """A file of TensorFlow, or a node in it, that cannot be read."""


@cache
def messages() -> dict[str, Any]:
    """The message classes of the table by name, built once; enums are numbers."""
    text = resources.files(__package__).joinpath("messages.tsv").read_text("utf-8")
    return build(rows(text.partition("\n")[2]))


def parse(name: str, content: bytes, where: str) -> Any:
    """A message from its binary form; what the table does not know is skipped.

    Raises:
        TensorFlowError: The content is not such a message.
    """
    from google.protobuf.message import DecodeError

    message = messages()[name]()
    try:
        message.ParseFromString(content)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TensorFlowError(f"{where}: no {name} message: {error}") from None
    return message
