# SPDX-License-Identifier: Apache-2.0
"""A function in a .nnp file: its type, its arguments as a message, and its inputs by position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from nnl.converters.nnp.messages import messages
from nnl.core.graph.dispatch import apply, bind
from nnl.core.graph.node import Node, Value
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS, Op
from nnl.core.ops.random import stream
from nnl.core.settings.context import STATE
from nnl.functions.sink import sink

# Arguments whose size is work to be done before anything is computed, and a bound for them: a file
# that claims 10^9 would not end.
_WINDOW = ("kernel", "kernel_shape", "stride", "pad", "dilation", "output_padding")
MAX_WINDOW = 2**18
# Of one axis that a function with a window goes along: pooling visits every position.
MAX_POSITIONS = 2**22
# Attributes that NNabla reads from the data when the graph is built; here they fix a shape.
FROM_DATA = ("count",)
# Types that make arrays, and whose argument `shape` can hold the batch size in its first place.
SHAPED = (
    *("Rand", "Randint", "Randn", "RandBinomial", "RandBeta", "RandGamma"),
    *("Constant", "Broadcast"),
)


@cache
def op_of_type() -> dict[str, Op]:
    """Ops by the type name that .nnp files use."""
    return {op.nnp: op for op in OPS.values() if op.nnp}


@cache
def argument_field() -> dict[str, str]:
    """Name of the field of a Function message with the arguments of a type."""
    group = messages()["Function"].DESCRIPTOR.oneofs_by_name["parameter"]
    return {f.message_type.name.removesuffix("Parameter"): f.name for f in group.fields}


def type_of(node: Node, where: str) -> str:
    """Type name of a node.

    Raises:
        NotImplementedError: .nnp files have no such function; the text starts with `where`.
    """
    op = node.op
    if op.type_name in op_of_type():
        return op.type_name
    name = getattr(node.attrs, "type_name", None) or op.name
    raise NotImplementedError(
        f"{where}: the function {name} has no type in .nnp files: compute it with other functions "
        "of nnl.functions, or leave it out by saving the variable before it"
    )


def visible_outputs(node: Node) -> int:
    """How many of a node's outputs callers see."""
    op = node.op
    return len(node.out_specs) if op.visible == len(op.outputs) else op.visible


def visible_inputs(node: Node) -> list[Value]:
    """The inputs that a file names: no random state, no stored gradients, none left out."""
    inputs = node.inputs[: len(node.inputs) - node.op.takes_rng]
    if node.op.name == "sink_with_gradients":
        inputs = inputs[: len(inputs) // 2]
    return [v for v in inputs if v is not None]


def write_arguments(node: Node, type_name: str, message: Any, changed: dict[str, Any]) -> None:
    """Fill the arguments of a Function message; `changed` replaces values of the node."""
    field = argument_field().get(type_name)
    if field is None:
        return
    arguments = getattr(message, field)
    arguments.SetInParent()
    values = {**node.attrs.as_dict(), **changed}
    if node.op.name == "sink_with_gradients":
        values["one_input_grad"] = False
    for f in arguments.DESCRIPTOR.fields:
        value = values.get(f.name)
        if value is None:
            continue
        if f.message_type is not None:
            part = getattr(arguments, f.name)
            part.SetInParent()
            part.dim.extend(value)
        elif isinstance(value, tuple):
            getattr(arguments, f.name).extend(value)
        else:
            setattr(arguments, f.name, value)


def read_arguments(message: Any, op: Op) -> Mapping[str, Any]:
    """Attributes of op from the arguments of a Function message; what is absent is zero."""
    field = argument_field().get(message.type)
    if field is None:
        return {}
    return _values(op, field, getattr(message, field).SerializeToString())


@lru_cache(maxsize=256)
def _values(op: Op, field: str, data: bytes) -> Mapping[str, Any]:
    """The attributes, found once for the many functions of a network with equal arguments."""
    arguments = getattr(messages()["Function"](), field)
    arguments.ParseFromString(data)
    kinds = dict(zip(op.fields, op.kinds, strict=True))
    out: dict[str, Any] = {}
    for f in arguments.DESCRIPTOR.fields:
        if f.name not in kinds:
            continue
        value = getattr(arguments, f.name)
        if f.message_type is not None:
            there = arguments.HasField(f.name) or not kinds[f.name].endswith(" | None")
            out[f.name] = tuple(value.dim) if there else None
        elif kinds[f.name].startswith("tuple"):
            single = f.type == f.TYPE_FLOAT
            out[f.name] = tuple(_shortest(v) if single else v for v in value)
        else:
            out[f.name] = _shortest(value) if f.type == f.TYPE_FLOAT else value
        given = out[f.name] if f.name in _WINDOW else ()
        sizes = given if isinstance(given, tuple) else (given or 0,)
        if max(map(abs, sizes), default=0) > MAX_WINDOW:
            raise ValueError(
                f"{op.name}: {f.name} is {out[f.name]}, more than {MAX_WINDOW} cannot be meant"
            )
    return out


def _shortest(value: float) -> float:
    """The decimal number that a float32 stands for: 0.9, not 0.8999999761581421."""
    return float(str(np.float32(value)))


def call(
    message: Any, inputs: Sequence[Variable], out_shapes: Sequence[tuple[int, ...]], where: str
) -> tuple[Variable, ...]:
    """Apply the function of a Function message.

    Files do not say which optional inputs are missing: the first assignment of inputs to names
    that the function accepts, and that agrees with the arguments, is taken.

    Args:
        out_shapes: What the file says of the outputs; needed where the data decides a shape.
    Raises:
        ValueError: The type is unknown, or the function accepts no assignment.
    """
    op = op_of_type().get(message.type)
    if op is None:
        raise ValueError(
            f"{where}: nnl has no function of type {message.type!r}"
            if message.type
            else f"{where}: the function has no type"
        )
    try:
        values = read_arguments(message, op)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    sizes = [n for x in inputs for n in x.shape] if "kernel" in op.fields else []
    if max(sizes, default=0) > MAX_POSITIONS:
        raise ValueError(
            f"{where}: {op.name}: an input has the size {max(sizes)}, wanted at most "
            f"{MAX_POSITIONS} along an axis"
        )
    if op.nnp == "Sink" and not values["one_input_grad"] and inputs:
        return (sink(*inputs, one_input_grad=False),)  # the gradients are inputs of its own op
    for wider in _wider(op):
        if len(out_shapes) == wider.visible:
            op = wider
    problem = ""
    for attributes in _with_counts(op, values, out_shapes):
        for slots in _assignments(op, inputs):
            try:
                y = _apply(op, slots, attributes, out_shapes)
            except (TypeError, ValueError, OverflowError) as error:
                problem = problem or str(error)
                continue
            if y is not None:
                return y
    names = ", ".join(op.inputs[: len(op.inputs) - op.takes_rng])
    raise ValueError(f"{where}: {problem or f'{len(inputs)} inputs do not fit {op.name}({names})'}")


@cache
def _wider(op: Op) -> list[Op]:
    """The same function with more outputs."""
    same = [o for o in OPS.values() if o.type_name == op.type_name]
    return [o for o in same if o.visible > op.visible]


def _with_counts(
    op: Op, values: Mapping[str, Any], out_shapes: Sequence[tuple[int, ...]]
) -> Iterator[Mapping[str, Any]]:
    """The attributes; where one is a number of elements in the data, once per possible number."""
    names = [f for f in FROM_DATA if f in op.fields]
    if not names:
        yield values
    for n in dict.fromkeys(out_shapes[0] if names and out_shapes else ()):
        yield {**values, names[0]: n}


def _assignments(op: Op, inputs: Sequence[Variable]) -> Iterator[tuple[Variable | None, ...]]:
    if op.variadic:
        yield tuple(inputs)
        return
    n = len(op.inputs) - op.takes_rng
    required = min(op.required, n)
    if not required <= len(inputs) <= n:
        return
    if len(inputs) in (required, n):
        yield (*inputs, *[None] * (n - len(inputs)))
        return
    for kept in combinations(range(required, n), len(inputs) - required):
        slots: list[Variable | None] = [None] * n
        for i, x in zip((*range(required), *kept), inputs, strict=True):
            slots[i] = x
        yield tuple(slots)


def _apply(
    op: Op,
    slots: tuple[Variable | None, ...],
    values: Mapping[str, Any],
    out_shapes: Sequence[tuple[int, ...]],
) -> tuple[Variable, ...] | None:
    """The outputs; None if the inputs contradict the attributes, or the counts in the shapes."""
    attrs = op.attrs(**values)
    xs: tuple[Any, ...] = slots
    if op.takes_rng:
        xs = (*slots, stream(getattr(attrs, "seed", -1)))
    if op.has_resolve:
        attrs = op._resolve(attrs, xs)
        flags = [f for f in ("no_scale", "no_bias") if f in values]
        if any(getattr(attrs, f) != values[f] for f in flags):
            return None
    if any(f in op.fields for f in FROM_DATA):
        specs = tuple([None if x is None else x.spec for x in xs])
        found = bind(op, attrs, STATE.target, specs).out_specs[0].shape
        if found != out_shapes[0]:
            return None
    y = apply(op, attrs, xs)
    return y if isinstance(y, tuple) else (y,)
