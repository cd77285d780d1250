# SPDX-License-Identifier: Apache-2.0
"""ONNX files both ways: `load` gives a model that runs and trains, `save` writes one.

The Python package `onnx` is imported by the functions that need it, not by `import nnl`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "load": "running.onnx_model",
    "OnnxModel": "running.onnx_model",
    "save": "exporting.exporter",
    "read": "file.reader",
    "write": "file.writer",
    "Model": "file.model",
    "Graph": "file.model",
    "Node": "file.model",
    "Visitor": "file.model",
    "EmptyVisitor": "file.model",
    "StrictVisitor": "file.model",
    "operator_class": "file.operators",
    "OnnxError": "file.errors",
    "UnsupportedOperator": "file.errors",
    "export": "exporting.exporter",
}

__all__ = sorted(_HOME)


def __dir__() -> list[str]:
    return sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(f"{__name__}.{_HOME[name]}")
    except ModuleNotFoundError as e:
        if e.name is None or e.name.partition(".")[0] != "onnx":
            raise
        raise ModuleNotFoundError(
            f"{__name__}.{name} needs the package onnx: pip install 'nnl[onnx]' "
            "(documentation: start/install#from-the-source)",
            name="onnx",
        ) from e
    return getattr(home, name)
