# SPDX-License-Identifier: Apache-2.0
"""What the importer of ONNX has for operators that TensorFlow has, too: the part of it that does
not need the package onnx."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from nnl.converters.onnx.file.registry import ONNX, Whole

for _family in (
    "arithmetic indexing reduction shape layers.convolution layers.normalization layers.pooling"
).split():
    import_module(f"nnl.converters.onnx.importing.{_family}")  # registers its importers

NEWEST = 10**6  # version of an operator


class Call:
    """A node of ONNX as its importers see it; attributes that are not given are None."""

    since = NEWEST

    def __init__(self, outputs: int = 1, **attributes: Any) -> None:
        self.attributes = attributes
        self.outputs = ["y"] * outputs

    def __getattr__(self, name: str) -> Any:
        return self.attributes.get(name)


def onnx(name: str, *values: Any, outputs: int = 1, **attributes: Any) -> Any:
    """What an operator of ONNX, in its newest version, makes of values."""
    handler = ONNX.find_import(name, NEWEST)
    assert handler is not None, name
    return handler(Whole, Call(outputs, **attributes), *values)
