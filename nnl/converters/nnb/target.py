# SPDX-License-Identifier: Apache-2.0
"""The functions of NNabla's C runtime as a target: what it has, and what to say instead."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np

from nnl.converters.networks.lowering import Target
from nnl.converters.networks.model import Key
from nnl.converters.nnb.rules import RULES, is_plain
from nnl.converters.nnb.table import LEVEL, TRANSPOSED, Variant, check_level, variant
from nnl.converters.nnb.types import FLOAT, Types, outputs
from nnl.converters.nnp.function_messages import (
    argument_field,
    visible_inputs,
    visible_outputs,
    write_arguments,
)
from nnl.converters.nnp.messages import messages
from nnl.core.graph.node import Node, Value

_POOLING = ("MaxPooling", "AveragePooling", "SumPooling")


def target(level: int = LEVEL, signs: Collection[Key] = ()) -> Target:
    """The functions of a runtime of some API level.

    Args:
        signs: Binary weights that are to be stored as signs; the functions of others become such
            without binary weights.
    """
    return Target("NNB", partial(_refuses, check_level(level), signs), RULES)


def _refuses(
    level: int, signs: Collection[Key], node: Node, is_constant: Callable[[Value], bool]
) -> str | None:
    kind = node.op.nnp
    form = variant(kind, level) if kind else None
    if form is None:
        newest = variant(kind) if kind else None
        if newest is not None:
            return f"NNabla's C runtime has it from API level {newest.level} on, not at {level}"
        return "NNabla's C runtime does not have it"
    edges = [v for v in visible_inputs(node)]
    specs = [v.current_spec for v in edges] + list(node.out_specs[: visible_outputs(node)])
    other = next((s for s in specs if s.dtype != np.float32), None)
    if other is not None:
        return f"it has the type {other.dtype} here, wanted float32"
    if not all(map(is_constant, weights(node))):
        return "its weight is computed, wanted a constant"
    if kind.startswith("Binary") and not _are_signs(node, signs):
        return "its weights and signs depend on how it was trained"
    return _reason(kind, node) or _lost(form, node)


def _reason(kind: str | None, node: Node) -> str | None:
    """What the runtime cannot do with arguments, beyond having the function."""
    a, x = node.attrs, node.inputs
    if kind == "BatchNormalization":
        if a.batch_stat or len(a.axes) != 1:
            return "its statistics are those of the batch, or of several axes"
        if len(visible_inputs(node)) != 5 or a.no_scale or a.no_bias:
            return "it has not all of beta, gamma, mean and variance"
    if kind == "BatchMatmul" and x[0] is not None and x[1] is not None:
        batches = [v.current_spec.shape[:-2] for v in (x[0], x[1])]
        if x[0].key == x[1].key or batches[0] != batches[1] or len(batches[0]) != 1:
            return "its inputs are the same variable, or have several axes of batches"
        if a.transpose_a or a.transpose_b:  # other functions that read the input find it changed
            return "the runtime transposes an input in its memory"
    if kind == "MeanSubtraction" and a.update_running_mean:
        return "it updates its mean"
    if kind == "Pad" and a.mode == "repeat":
        return "the runtime has no mode repeat"
    if kind == "Slice" and not is_plain(a, node.inputs[0].current_spec.shape):  # type: ignore[union-attr]
        return "its limits count from the end, or lie outside"
    if kind in _POOLING and (len(a.kernel) not in (2, 3) or a.channel_last):
        return f"its kernel has {len(a.kernel)} axes, or the maps are last"
    if getattr(a, "channel_last", False):
        return "the maps are last"
    if not all(s.size for s in node.out_specs):
        return "its result is empty"
    return None


def _lost(form: Variant, node: Node) -> str | None:
    """An argument that an old form of the function has no place for, and that matters."""
    defaults = node.op.given_defaults
    for name, value in list(arguments(form.function, node).items())[len(form.kinds) :]:
        default = defaults.get(name)
        default = type(value)() if default is None else default
        if name not in _MEANINGLESS and value != (
            list(default) if type(value) is list else default
        ):
            return f"its argument {name} needs a higher API level"
    return None


# The runtime does without these, or they say what a variable's spec says.
_MEANINGLESS = ("inplace", "output_mask")


def weights(node: Node) -> list[Value]:
    """Inputs that files hold with the outputs first."""
    places = TRANSPOSED.get(node.op.nnp or "", ())
    return [v for i in places if (v := node.inputs[i]) is not None]


def _are_signs(node: Node, signs: Collection[Key]) -> bool:
    """Whether the binary weights of a function are to be stored as signs, and can be."""
    w, s = node.inputs[1:3] if len(node.inputs) > 2 else (None, None)
    if w is None or s is None or s.key not in signs:
        return False
    return abs(node.attrs.quantize_zero_to) == 1 or bool(np.all(w.array.read("host")))


def wrong_types(node: Node, types: Types) -> str | None:
    """Why the runtime cannot run a function with the types of its variables; None if it can."""
    kind = node.op.nnp or ""
    ins = [(types.names[v.key], types.of(v, node)) for v in visible_inputs(node)]
    outs = [(types.names[v.key], types.computed[v.key]) for v in outputs(node)]
    listed = ", ".join(f"{name} {kind}" for name, kind in (*ins, *outs))
    y = outs[0][1]
    if kind == "BatchMatmul" and any(t != FLOAT for _, t in (*ins, *outs)):
        return f"the runtime multiplies matrices of floats only, not {listed}"
    if kind == "Identity" and ins[0][1] != y:
        return f"the runtime copies what is stored, so both must have one type, not {listed}"
    if kind.startswith("Binary"):
        return None
    if kind == "Convolution" and len({t.name for _, t in (*ins, *outs)}) > 1:
        return f"the runtime wants one type, not {listed}"
    if kind in _SHIFTING and y.is_fixed and all(t.is_fixed for _, t in ins):
        (x, w), bias = (t.point or 0 for _, t in ins[:2]), ins[2:]
        if x + w < (y.point or 0):
            return f"bits after the point of x and weight must be as many as of y, not {listed}"
        if bias and bias[0][1].point != y.point:
            return f"the bias must have as many bits after the point as y, not {listed}"
    return None


_SHIFTING = ("Affine", "Convolution", "DepthwiseConvolution")  # to the right only


def arguments(function: str, node: Node) -> dict[str, Any]:
    """Arguments of a node by name, in the order of NNabla's message."""
    field = argument_field().get(function)
    if field is None:
        return {}
    message = messages()["Function"]()
    axis = {"axis": node.attrs.axis % max(_rank(node), 1)} if hasattr(node.attrs, "axis") else {}
    changed = {"inplace": False, **axis} if hasattr(node.attrs, "inplace") else axis
    write_arguments(node, function, message, changed)
    arguments = getattr(message, field)
    values = {f.name: getattr(arguments, f.name) for f in arguments.DESCRIPTOR.fields}
    return {k: _plain(v) for k, v in values.items()}


def _plain(value: Any) -> Any:
    """A value of a message: a number, a word, or a list of them."""
    if isinstance(value, (bool, int, float, str)):
        return value
    return list(getattr(value, "dim", value))


def _rank(node: Node) -> int:
    """Of the input that an axis counts in; of a stack, of its result."""
    if node.op.name == "stack":
        return len(node.out_specs[0].shape)
    return max(len(v.current_spec.shape) for v in visible_inputs(node))
