# SPDX-License-Identifier: Apache-2.0
"""ONNX files both ways: `load` gives a model that runs and trains, `save` writes one.

The Python package `onnx` is imported by the functions that need it, not by `import nnl`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "load": "importer",
    "OnnxModel": "importer",
    "save": "exporter",
    "read": "reader",
    "write": "writer",
    "Model": "model",
    "Graph": "model",
    "Node": "model",
    "Visitor": "model",
    "EmptyVisitor": "model",
    "StrictVisitor": "model",
    "operator_class": "operators",
    "OnnxError": "errors",
    "UnsupportedOperator": "errors",
    "export": "exporter",
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
