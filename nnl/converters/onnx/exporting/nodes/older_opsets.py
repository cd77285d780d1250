# SPDX-License-Identifier: Apache-2.0
"""Operators in the forms that they had before opset 13, which is what handlers write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nnl.converters.onnx.exporting.nodes.tensor import NodeRecord, Subgraph, Tensor

FORM = 13  # the opset whose forms handlers write at least
_AXES = ("axis", "axes")


class Refused(Exception):
    """Something has no form in ONNX, or not in this opset; the argument is the reason."""


def older(ctx: Any, node: NodeRecord) -> Any:
    """Give a node the form that it has in `ctx.opset`.

    Returns:
        What stands for its one output where other nodes say the same; None where the node has
        been changed.
    Raises:
        Refused: It has none.
    """
    for since, change in _CHANGES.get(node.name, ()):
        if ctx.opset < since:
            instead = change(ctx, node)
            if instead is not None:
                return instead
    _check(node, ctx.opset)
    return None


def _check(node: NodeRecord, opset: int) -> None:
    """
    Raises:
        Refused: The operator of this opset lacks these inputs, attributes or types.
    """
    from onnx import defs

    try:
        schema = defs.get_schema(node.name, opset, "")
    except defs.SchemaError:
        versions = [s.since_version for s in _versions(node.name)]
        raise Refused(f"{node.name} needs opset {min(versions, default=FORM)}") from None
    for name in [n for n in node.options if n not in schema.attributes]:
        if node.options.pop(name) != _default(node.name, name):
            raise Refused(f"opset {opset} has no {node.name} with {name}")
    if len(node.ins) > schema.max_input:
        raise Refused(f"opset {opset} has no {node.name} of {len(node.ins)} inputs")
    if opset < 11:
        _count_axes_from_the_front(node)
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    for k, x in enumerate(node.ins):
        kind = schema.inputs[min(k, len(schema.inputs) - 1)].type_str
        if x is None or x.dtype is None:
            continue
        if _type_name(x.dtype) not in allowed.get(kind, [kind]):
            raise Refused(f"opset {opset} has no {node.name} of {x.dtype.name}")


def _versions(op_type: str) -> list[Any]:
    from onnx import defs

    return [s for s in defs.get_all_schemas_with_history() if (s.name, s.domain) == (op_type, "")]


def _default(op_type: str, name: str) -> Any:
    from nnl.converters.onnx.file.operators import default_of

    found = [s.attributes[name] for s in _versions(op_type) if name in s.attributes]
    return default_of(found[0]) if found else None


def _type_name(dtype: Any) -> str:
    names = {"float32": "float", "float64": "double"}
    return f"tensor({names.get(dtype.name, dtype.name)})"


def _count_axes_from_the_front(node: NodeRecord) -> None:
    for name in _AXES:
        value = node.options.get(name)
        axes = value if isinstance(value, tuple) else () if value is None else (value,)
        if any(a < 0 for a in axes):
            rank = _rank(node.ins[0]) + (node.name == "Unsqueeze") * len(axes)
            axes = tuple([a % rank for a in axes])
            node.options[name] = axes if isinstance(value, tuple) else axes[0]


def _rank(x: Tensor | None) -> int:
    if x is None or x.shape is None:
        raise Refused("an axis is counted from the end of an array of which no rank is known")
    return len(x.shape)


# ---- inputs that were attributes ----


def _values(node: NodeRecord, k: int) -> Any:
    """The input k, which is a constant; None where it is left out."""
    x = node.ins[k] if k < len(node.ins) else None
    if x is not None and x.value is None:
        raise Refused(f"{node.name} wants numbers that are known, and here they are computed")
    return None if x is None else x.value


def _moved(*names: str) -> Callable[[Any, NodeRecord], None]:
    """Inputs from the second on become attributes of these names."""

    def change(ctx: Any, node: NodeRecord) -> None:
        for k, name in enumerate(names):
            found = _values(node, k + 1)
            if found is not None:
                numbers = found.tolist()
                node.options[name] = tuple(numbers) if found.ndim else numbers
        del node.ins[1:]

    return change


def _clip(ctx: Any, node: NodeRecord) -> None:
    _moved("min", "max")(ctx, node)
    for name in ("min", "max"):
        if name in node.options:
            node.options[name] = float(np.asarray(node.options[name]).reshape(()))


def _pad(ctx: Any, node: NodeRecord) -> None:
    if len(node.ins) > 2:
        node.options["value"] = float(_values(node, 2))
        del node.ins[2:]
    _moved("pads")(ctx, node)


def _slice(ctx: Any, node: NodeRecord) -> Tensor | None:
    steps = _values(node, 4)
    if steps is None or (steps == 1).all():
        del node.ins[4:]
        _moved("starts", "ends", "axes")(ctx, node)
        return None
    y = x = node.ins[0]
    starts, ends, axes = [_values(node, k).tolist() for k in (1, 2, 3)]
    for start, end, axis, step in zip(starts, ends, axes, steps.tolist(), strict=True):
        axis %= _rank(x)
        n = x.shape[axis]  # type: ignore[union-attr, index]
        y = ctx.emit("Gather", y, ctx.ints(*range(*slice(start, end, step).indices(n))), axis=axis)
    return y


def _top_k(ctx: Any, node: NodeRecord) -> None:
    node.options["k"] = int(_values(node, 1).reshape(()))
    del node.ins[1:]


# ---- other meanings ----


def _softmax(ctx: Any, node: NodeRecord) -> Tensor | None:
    """Before opset 13 all axes from `axis` on are one."""
    (x,) = node.ins
    rank = _rank(x)
    axis = node.options.get("axis", -1) % rank
    node.options["axis"] = rank - 1
    if axis == rank - 1:
        return None
    axes = [k for k in range(rank) if k != axis] + [axis]
    turned = ctx.transpose(x, axes)
    turned.shape = tuple([x.shape[a] for a in axes])  # type: ignore[union-attr]
    y = ctx.emit(node.name, turned, axis=rank - 1)
    return ctx.emit("Transpose", y, perm=tuple(np.argsort(axes).tolist()))  # type: ignore[no-any-return]


def _or_equal(strict: str) -> Callable[[Any, NodeRecord], Tensor]:
    def change(ctx: Any, node: NodeRecord) -> Tensor:
        more = ctx.emit(strict, *node.ins, dtype=bool)
        return ctx.emit("Or", more, ctx.emit("Equal", *node.ins, dtype=bool))  # type: ignore[no-any-return]

    return change


def _equal(ctx: Any, node: NodeRecord) -> Tensor | None:
    """Of floats: neither less nor greater, and no NaN."""
    x, y = node.ins
    if x is None or x.dtype.kind != "f":
        return None
    if ctx.opset < 9:
        raise Refused(f"opset {ctx.opset} has no Equal of {x.dtype.name}")
    differs = ctx.emit("Or", *[ctx.emit(t, x, y, dtype=bool) for t in ("Less", "Greater")])
    unordered = ctx.emit("IsNaN", ctx.emit("Add", x, y), dtype=bool)  # as inf - inf, which differ
    return ctx.emit("Not", ctx.emit("Or", differs, unordered))  # type: ignore[no-any-return]


def _resize(ctx: Any, node: NodeRecord) -> None:
    """Opsets 11 and 12 want every input; before, it counted positions in another way."""
    if ctx.opset < 11:
        raise Refused(f"opset {ctx.opset} has no Resize of this kind")
    empty = ctx.constant(np.zeros(0, np.float32))
    node.ins[1:3] = [empty if x is None else x for x in node.ins[1:3]]


def _gemm(ctx: Any, node: NodeRecord) -> None:
    if len(node.ins) == 2:
        node.ins.append(ctx.constant(np.zeros(1), node.ins[0].dtype))  # type: ignore[union-attr]


def _extreme(test: str) -> Callable[[Any, NodeRecord], Tensor | None]:
    """Max and Min knew floats only before opset 12, and one shape of all inputs in opset 7."""

    def change(ctx: Any, node: NodeRecord) -> Tensor | None:
        x, y = node.ins
        if x is None or y is None:
            return None
        if x.dtype.kind in "iu" and ctx.opset >= 9:
            better = ctx.emit(test, x, y, dtype=bool)
            return ctx.emit("Where", better, x, y, dtype=x.dtype)  # type: ignore[no-any-return]
        if ctx.opset >= 8 or (x.shape == y.shape and x.shape is not None):
            return None
        bound, z = (x, y) if y.value is None else (y, x)
        if bound.value is None or bound.value.size != 1:
            raise Refused(f"opset {ctx.opset} has no {node.name} of two shapes")
        bounds = (bound, None) if node.name == "Max" else (None, bound)
        return ctx.emit("Clip", z, *bounds)  # type: ignore[no-any-return]

    return change


def _expand(ctx: Any, node: NodeRecord) -> Tensor:
    ones = np.ones(tuple(_values(node, 1)), node.ins[0].dtype)  # type: ignore[union-attr]
    return ctx.emit("Mul", node.ins[0], ctx.constant(ones))  # type: ignore[no-any-return]


def _sign(ctx: Any, node: NodeRecord) -> Tensor:
    x = node.ins[0]
    both = [ctx.from_bool(ctx.emit(t, x, 0, dtype=bool), x.dtype) for t in ("Greater", "Less")]  # type: ignore[union-attr]
    return ctx.emit("Sub", *both)  # type: ignore[no-any-return]


def _reducing(ctx: Any, node: NodeRecord) -> None:
    if len(node.ins) > 1:
        _moved("axes")(ctx, node)


def _subgraphs(ctx: Any, node: NodeRecord) -> None:
    for graph in node.options.values():
        if isinstance(graph, Subgraph) and ctx.opset < 11:
            raise Refused(f"{node.name} needs opset 11")


_CHANGES: dict[str, list[tuple[int, Any]]] = {
    "Clip": [(11, _clip)],
    "Equal": [(11, _equal)],
    "Expand": [(8, _expand)],
    "Gemm": [(11, _gemm)],
    "GreaterOrEqual": [(12, _or_equal("Greater"))],
    "If": [(11, _subgraphs)],
    "LessOrEqual": [(12, _or_equal("Less"))],
    "LogSoftmax": [(13, _softmax)],
    "Loop": [(11, _subgraphs)],
    "Max": [(12, _extreme("Greater"))],
    "Min": [(12, _extreme("Less"))],
    "Pad": [(11, _pad)],
    "ReduceSum": [(13, _reducing)],
    "Resize": [(13, _resize)],
    "Sign": [(9, _sign)],
    "Slice": [(10, _slice)],
    "Softmax": [(13, _softmax)],
    "Split": [(13, _moved("split"))],
    "Squeeze": [(13, _moved("axes"))],
    "TopK": [(10, _top_k)],
    "Unsqueeze": [(13, _moved("axes"))],
}
