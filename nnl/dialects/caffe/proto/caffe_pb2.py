# SPDX-License-Identifier: Apache-2.0
"""The message classes of Caffe's files by name, and the values of their enums."""

from typing import Any

from nnl.converters.caffe.messages import messages
from nnl.core.arguments.suggest import did_you_mean

TRAIN, TEST = 0, 1


def enum_values(message: Any) -> dict[str, int]:
    """The values of the enums of a message's fields, by name."""
    types = [f.enum_type for f in message.DESCRIPTOR.fields if f.enum_type is not None]
    return {v.name: v.number for t in types for v in t.values}


def __getattr__(name: str) -> Any:
    known = messages()
    if name not in known:
        raise AttributeError(f"caffe_pb2 has no {name!r}{did_you_mean(name, known)}")
    found = known[name]
    for value, number in enum_values(found).items():
        if not hasattr(found, value):
            setattr(found, value, number)
    return found
