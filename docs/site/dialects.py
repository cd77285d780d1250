# SPDX-License-Identifier: Apache-2.0
"""What dialects know, as tables."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType, SimpleNamespace

import nnl.dialects.theano as theano
from nnl.dialects.caffe import layer_type_list


def names(dialect: str) -> str:
    """A row for the module and each part of it: what scripts may call there."""
    module = import_module(f"nnl.dialects.{dialect}")
    rows: dict[str, list[str]] = {}

    def add(where: str, thing: object) -> None:
        for name, value in sorted(vars(thing).items()):
            whole = f"{where}.{name}" if where else name
            if name.startswith("_") or value is module:
                continue
            part = isinstance(value, SimpleNamespace) or (
                isinstance(value, ModuleType) and value.__name__.startswith(f"{module.__name__}.")
            )
            if part and hasattr(module, whole.partition(".")[0]):
                add(whole, value)
            elif callable(value):
                rows.setdefault(where, []).append(f"`{name}`")

    add("", module)
    table = [f"| {where or dialect} | {', '.join(found)} |" for where, found in rows.items()]
    return "\n".join(["| in | names |", "|---|---|", *table])


def caffe_layers() -> str:
    """The types of Caffe's layers."""
    return ", ".join(f"`{name}`" for name in layer_type_list()) + "."


def theano_names() -> str:
    """The names of Theano's modules, in a row each."""
    helpers = {"own", "take_", "var_", "made", "given", "sizes_of", "conv3d_of_signals"}
    rows = ["| Module | Names |", "|---|---|"]
    for path in ("", "tensor", "tensor.nnet", "tensor.signal.pool", "gradient"):
        at = theano
        for part in path.split("."):
            at = getattr(at, part) if part else at
        found = []
        for name, thing in sorted(vars(at).items()):
            ours = str(getattr(thing, "__module__", "")).startswith("nnl.dialects.theano")
            typed = name[0] in "bwilufd" and hasattr(theano.tensor, f"w{name[1:]}")  # wmatrix
            if name[0] != "_" and callable(thing) and ours and name not in helpers and not typed:
                found.append(f"`{name}`")
        rows.append(f"| `{'.'.join(['theano', path]).strip('.')}` | {', '.join(found)} |")
    return "\n".join(rows)
