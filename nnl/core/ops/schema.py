# SPDX-License-Identifier: Apache-2.0
"""The schema: what every op is, as plain data."""

from __future__ import annotations

from sys import modules
from typing import Any

from nnl.core.ops.arguments import REQUIRED
from nnl.core.ops.elementwise import ARITY, is_elementwise
from nnl.core.ops.op import OPS, Op

VERSION = 1


def follows_order(name: str) -> bool:
    """Whether an op gives the same in whichever order the elements of its images lie."""
    return is_elementwise(name) or getattr(OPS[name].attrs_class, "follows_order", False)


def extends(name: str) -> str | None:
    """The op that an op starts with, if more follows in it."""
    found: str | None = getattr(OPS[name].attrs_class, "extends", None)
    return found


def zeros(op: Op) -> tuple[str, ...]:
    """Names of the inputs that kernels may do without where they are zero."""
    found: tuple[str, ...] = getattr(op.attrs_class, "zeros", ())
    return found


def schema() -> dict[str, Any]:
    """Everything that programs, files and other languages need to know of ops, as plain data.

    Returns:
        A dictionary that JSON can hold:

        - version: of the schema.
        - codes: [name, number of operands] of the instructions of element-wise programs, by number.
        - ops: {name: entry} of all ops, internal ones and those that only plans make too. An entry
          has

          - doc: the first line of the docstring; module: where it is defined; category: what
            palettes list it under.
          - inputs: {name, optional, variadic, dtype}, in their order. dtype is "float" (converted
            to the context's type), "integer" (converted to whole numbers) or "any" (as it is).
          - outputs: {name, hidden, variadic, wide}. Callers do not see a hidden one; a wide one
            stays float32 in contexts that store 16 bits.
          - attributes: {name, type, required, default}.
          - writes: names of the inputs that it changes; "attributes" where these tell.
          - view, random, differentiable, decomposes: whether the output is the memory of the first
            input, whether the last input is a stream of random numbers, whether it has a gradient,
            and whether it is defined by other ops.
          - elementwise: whether it has an element-wise program.
          - follows_order: whether it does not mind in which order the elements of its images lie.
          - extends: the op that it starts with and then appends to, None for most; an addition z
            and an activation are then its inputs and attributes.
          - zeros: names of the inputs that kernels may do without where they are zero.
          - nnp, onnx: its type in .nnp files, and its operator, first opset and names of attributes
            in ONNX, where they are one to one; else None.
    Example:
        >>> entry = nn.schema()["ops"]["softmax"]
        >>> entry["inputs"][0]["name"], entry["nnp"]
        ('x', 'Softmax')
    """
    return {
        "version": VERSION,
        "codes": [[name, arity] for name, arity in ARITY.items()],
        "ops": {name: entry(OPS[name]) for name in sorted(OPS)},
    }


def entry(op: Op) -> dict[str, Any]:
    """The entry of one op."""
    cls = op.attrs_class
    return {
        "doc": (op.__doc__ or "").strip().split("\n")[0],
        "module": op.__module__,
        "category": category(op),
        "inputs": [
            {
                "name": name,
                "optional": i in op.optional,
                "variadic": op.variadic and i == len(op.inputs) - 1,
                "dtype": "any"
                if name in op.keep or name == "rng"
                else "integer"
                if name in op.integer
                else "float",
            }
            for i, name in enumerate(op.inputs)
        ],
        "outputs": [
            {
                "name": name,
                "hidden": i >= op.visible,
                "variadic": op.variadic_out,
                "wide": i in op.wide,
            }
            for i, name in enumerate(op.outputs)
        ],
        "attributes": [
            {"name": name, "type": kind, "required": default is REQUIRED}
            | ({} if default is REQUIRED else {"default": plain(default)})
            for name, kind, default in zip(op.fields, op.kinds, op.defaults, strict=True)
        ],
        "writes": plain(op.writes),
        "view": op.view,
        "random": op.takes_rng,
        "differentiable": op.differentiable,
        "decomposes": hasattr(cls, "decompose"),
        "elementwise": is_elementwise(op.name),
        "follows_order": follows_order(op.name),
        "extends": extends(op.name),
        "zeros": list(zeros(op)),
        "nnp": op.nnp,
        "onnx": None
        if op.onnx is None
        else {"op_type": op.onnx.op_type, "since": op.onnx.since, "attrs": op.onnx.attrs},
    }


def category(op: Op) -> str:
    """What the module of an op says in CATEGORY, or else the package; "" for one of a user."""
    package = op.__module__.rpartition(".")[0]
    # not by getattr, for which a module without it seeks similar names
    known = [getattr(modules.get(name), "__dict__", {}) for name in (op.__module__, package)]
    found: list[str] = [names.get("CATEGORY", "") for names in known]
    return found[0] or found[1]


def plain(value: Any) -> Any:
    """An attribute's value as JSON has it."""
    return list(value) if isinstance(value, tuple) else value
