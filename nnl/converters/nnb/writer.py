# SPDX-License-Identifier: Apache-2.0
"""Networks as .nnb files."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.lowering import Lowered, Target, lower
from nnl.converters.model import Network
from nnl.converters.nnb.table import (
    CHOICES,
    FUNCTIONS,
    LEVEL,
    TRANSPOSED,
    VERSIONS,
    Variant,
    variant,
)
from nnl.converters.nnp.function_messages import (
    argument_field,
    visible_inputs,
    visible_outputs,
    write_arguments,
)
from nnl.converters.nnp.messages import messages
from nnl.converters.simpler import SIMPLER
from nnl.core.array import NdArray
from nnl.core.atomic import replacing
from nnl.core.graph import Node, Value
from nnl.core.op import OPS
from nnl.core.variable import Variable
from nnl.functions.binary import binarize, binarize_scaled

Key = tuple[int, int]
FLOAT = 0  # the type of a variable
_POOLING = ("MaxPooling", "AveragePooling", "SumPooling")


def save(
    path: str | os.PathLike[str],
    network: Network,
    level: int | None = None,
    version: int | None = None,
) -> None:
    """Write a network for NNabla's C runtime, in float32.

    Args:
        level: API level of the runtime that will read it, None for the newest that is published.
        version: Of the format: 2, which is the default, or 3.
    Raises:
        ValueError: There is no such level or version.
        CannotLower: The runtime lacks functions; all are listed.
    """
    level = LEVEL if level is None else level
    version = VERSIONS[0] if version is None else version
    if version not in VERSIONS:
        raise ValueError(f"NNB has no version {version}, only {VERSIONS[0]} and {VERSIONS[1]}")
    if not 1 <= level <= LEVEL:
        raise ValueError(f"NNB: the API level is {level}, wanted 1 to {LEVEL}")
    content = _Writer(lower(network, target(level)), level, version).content()
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(content)


# ---- what the runtime has ----


def functions() -> set[str]:
    """Types of functions that a file can say, if not with all arguments."""
    said = {*SIMPLER, *_RULES, "dropout", "identity"}
    return {*FUNCTIONS, *[n for name in said if (n := OPS[name].nnp) is not None]}


def target(level: int = LEVEL) -> Target:
    """The functions of a runtime of some API level."""
    return Target("NNB", partial(_refuses, level), _RULES)


def _refuses(level: int, node: Node, is_constant: Callable[[Value], bool]) -> str | None:
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
    if not all(map(is_constant, _weights(kind, node))):
        return "its weight is computed, wanted a constant"
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
    if kind == "Slice" and not _is_plain(a, node.inputs[0].current_spec.shape):  # type: ignore[union-attr]
        return "its limits count from the end, or lie outside"
    if kind and kind.startswith("Binary"):
        return "its weights and signs depend on how it was trained"
    if kind in _POOLING and (len(a.kernel) not in (2, 3) or a.channel_last):
        return f"its kernel has {len(a.kernel)} axes, or the maps are last"
    if getattr(a, "channel_last", False):
        return "the maps are last"
    if not all(s.size for s in node.out_specs):
        return "its result is empty"
    return None


def _lost(form: Variant, node: Node) -> str | None:
    """An argument that an old form of the function has no place for, and that matters."""
    arguments = _arguments(form.function, node)
    defaults = node.op.given_defaults
    for name, value in list(arguments.items())[len(form.kinds) :]:
        if name not in ("inplace", "output_mask", "quantize_zero_to") and bool(value):
            default = defaults.get(name)
            if value != (list(default) if isinstance(default, tuple) else default):
                return f"its argument {name} needs a higher API level"
    return None


def _weights(kind: str | None, node: Node) -> list[Value]:
    return [v for i in TRANSPOSED.get(kind or "", ()) if (v := node.inputs[i]) is not None]


def _complete(a: Any, x: Any, beta: Any, gamma: Any, mean: Any, variance: Any) -> Any:
    """A normalization by known statistics with all its inputs."""
    if a.batch_stat or len(a.axes) != 1:
        return None
    full = [1] * x.ndim
    full[a.axes[0]] = x.shape[a.axes[0]]

    def given(v: Any, number: float, used: bool) -> Any:
        if v is not None and used:
            return v
        return Variable.from_numpy_array(np.full(full, number, np.float32))

    return F.batch_normalization(
        x,
        given(beta, 0, not a.no_bias),
        given(gamma, 1, not a.no_scale),
        given(mean, 0, True),
        given(variance, 1, True),
        a.axes,
        a.decay_rate,
        a.eps,
        False,
    )


def _matmul(a: Any, x: Any, y: Any) -> Any:
    """With one axis of batches, of different variables, not transposed."""
    if x.ndim < 2 or y.ndim < 2:
        return None
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])

    def flat(v: Any, transposed: bool) -> Any:
        whole = F.broadcast(v, (*batch, *v.shape[-2:])) if v.shape[:-2] != batch else v
        whole = F.reshape(whole, (math.prod(batch), *v.shape[-2:]))
        return F.transpose(whole, (0, 2, 1)) if transposed else whole

    z = F.batch_matmul(flat(x, a.transpose_a), flat(y, a.transpose_b))
    return F.reshape(z, (*batch, *z.shape[1:]))


def _binary_connect(inner: Any) -> Any:
    def rule(a: Any, x: Any, weight: Any, signs: Any, bias: Any) -> Any:
        w = binarize(weight, quantize_zero_to=a.quantize_zero_to)
        return inner(a, x, w, bias)

    return rule


def _binary_weight(inner: Any, outputs_last: bool) -> Any:
    def rule(a: Any, x: Any, weight: Any, signs: Any, alpha: Any, bias: Any) -> Any:
        w = binarize_scaled(weight, quantize_zero_to=a.quantize_zero_to, outputs_last=outputs_last)
        return inner(a, x, w, bias)

    return rule


def _is_plain(a: Any, shape: Sequence[int]) -> bool:
    ranges = zip(a.start, a.stop, a.step, shape, strict=False)
    return len(a.start) == len(shape) and all(
        0 <= i < j <= n and step > 0 for i, j, step, n in ranges
    )


def _slice(a: Any, x: Any) -> Any:
    """With limits inside, and steps forward."""
    starts, stops, steps, flipped = [], [], [], []
    for axis, (part, n) in enumerate(zip(a.region(x.shape), x.shape, strict=True)):
        found = range(*part.indices(n))
        if not found:
            return None
        if found.step < 0:
            flipped.append(axis)
            found = found[::-1]
        starts.append(found[0])
        stops.append(found[-1] + 1)
        steps.append(found.step)
    y = F.slice(x, tuple(starts), tuple(stops), tuple(steps))
    return F.flip(y, flipped) if flipped else y


def _pad(a: Any, x: Any) -> Any:
    """The pixels at the border again and again."""
    if a.mode != "repeat":
        return None
    widths = list(zip(a.pad_width[::2], a.pad_width[1::2], strict=True))
    for axis, (before, after) in enumerate(widths, x.ndim - len(widths)):
        start, stop = [0] * x.ndim, list(x.shape)
        stop[axis] = 1
        first = F.slice(x, tuple(start), tuple(stop), (1,) * x.ndim)
        start[axis], stop[axis] = x.shape[axis] - 1, x.shape[axis]
        last = F.slice(x, tuple(start), tuple(stop), (1,) * x.ndim)
        if before or after:
            x = F.concatenate(*[first] * before, x, *[last] * after, axis=axis)
    return x


def _affine_by_matmul(a: Any, x: Any, w: Any, b: Any) -> Any:
    """With a weight that is computed."""
    base = a.base_axis % x.ndim
    rows, inner = math.prod(x.shape[:base]), w.shape[0]
    y = F.batch_matmul(F.reshape(x, (1, rows, inner)), F.reshape(w, (1, inner, w.size // inner)))
    y = F.reshape(y, (*x.shape[:base], *w.shape[1:]))
    return y if b is None else y + F.reshape(b, (1,) * base + b.shape)


def _affine(a: Any, x: Any, w: Any, b: Any) -> Any:
    return F.affine(x, w, b, a.base_axis)


def _convolution(a: Any, x: Any, w: Any, b: Any) -> Any:
    return F.convolution(x, w, b, a.base_axis, a.pad, a.stride, a.dilation, a.group)


_RULES = {
    "batch_normalization": _complete,
    "batch_matmul": _matmul,
    "affine": _affine_by_matmul,
    "slice": _slice,
    "pad": _pad,
    "mean_subtraction": lambda a, x, mean, t: (
        x - F.reshape(mean, (1,) * (x.ndim - mean.ndim) + mean.shape)
    ),
    "binary_connect_affine": _binary_connect(_affine),
    "binary_connect_convolution": _binary_connect(_convolution),
    "binary_weight_affine": _binary_weight(_affine, True),
    "binary_weight_convolution": _binary_weight(_convolution, False),
    "binary_tanh": lambda a, x: F.sign(x, alpha=-1.0),
    "binary_sigmoid": lambda a, x: F.sign(x, alpha=-1.0) * 0.5 + 0.5,
}


# ---- the file ----


class _Writer:
    """Attributes:
    blocks: What lists and records are, each once.
    edges, ids: Variables in the order of their numbers, and these by the key of an edge.
    transposed: Constants that the file holds with the outputs first.
    """

    def __init__(self, lowered: Lowered, level: int, version: int) -> None:
        self.lowered, self.level, self.version = lowered, level, version
        self.blocks: dict[bytes, int] = {}
        self.ids: dict[Key, int] = {}
        self.edges: list[Value] = []
        self.transposed: dict[Key, str] = {}
        self.cleared: dict[Key, Key] = {}  # variable of zeros -> the one that is written over it

    def content(self) -> bytes:
        """The bytes of the file."""
        low = self.lowered
        for v in low.inputs.values():
            self._id(v)
        functions = [record for n in low.nodes for record in self._functions(n)]
        outputs = [self._id(v) for v in low.outputs.values()]
        buffers, of = self._buffers()
        records = [self._variable(v, of) for v in self.edges]
        lists = [
            self._list("I", buffers),
            self._list("I", [self._block(r) for r in records]),
            self._list("I", [self._block(f) for f in functions]),
            self._list("I", [self.ids[v.key] for v in low.inputs.values()]),
            self._list("I", outputs),
        ]
        blocks = list(self.blocks)
        index, at = [], 0
        for block in blocks:
            index.append(at)
            at += len(block)
        head = struct.pack("<2I", self.version, self.level) + b"".join(lists)
        head += struct.pack(f"<2I{len(index)}I", len(blocks), at, *index)
        return head + b"".join(blocks)

    def _id(self, v: Value) -> int:
        if v.key not in self.ids:
            self.ids[v.key] = len(self.edges)
            self.edges.append(v)
        return self.ids[v.key]

    def _block(self, content: bytes) -> int:
        """The number of the block that holds this."""
        content += bytes(-len(content) % 4)
        return self.blocks.setdefault(content, len(self.blocks))

    def _list(self, kind: str, values: Sequence[int]) -> bytes:
        content = struct.pack(f"<{len(values)}{kind}", *values)
        return struct.pack("<Ii", len(values), self._block(content))

    # ---- functions ----

    def _functions(self, node: Node) -> Iterator[bytes]:
        function = node.op.nnp or ""
        for v in _weights(function, node):
            self.transposed[v.key] = function
        ins = visible_inputs(node)
        outs = [
            Value.of(node, i, s, False, node.outs[i])  # type: ignore[index]
            for i, s in enumerate(node.out_specs[: visible_outputs(node)])
        ]
        if function == "BatchMatmul":
            yield self._clearing(outs[0])
        yield self._record(function, ins, outs, _arguments(function, node))

    def _clearing(self, y: Value) -> bytes:
        """A function that writes zeros: the runtime's product adds to what it finds in its memory.

        They are the sum of a column and a row of zeros, which take less memory.
        """
        *rows, columns = y.current_spec.shape
        parts = [(*rows, 1), (*(1 for _ in rows), columns)]
        zeros = Value.leaf(NdArray.from_numpy_array(np.zeros(y.current_spec.shape, np.float32)))
        self.cleared[zeros.key] = y.key
        ins = [Value.leaf(NdArray.from_numpy_array(np.zeros(s, np.float32))) for s in parts]
        return self._record("Add2", ins, [zeros], {"inplace": False})

    def _record(
        self, function: str, ins: Sequence[Value], outs: Sequence[Value], arguments: Any
    ) -> bytes:
        form = variant(function, self.level)
        assert form is not None
        record = struct.pack("<2H", form.number, 0)
        for edges in (ins, outs):
            record += self._list("I", [self._id(v) for v in edges])
        for kind, (name, value) in zip(form.kinds, arguments.items(), strict=False):
            record += self._argument(function, name, kind, value, len(record))
        return record

    def _argument(self, function: str, name: str, kind: str, value: Any, at: int) -> bytes:
        if kind == "B":
            return struct.pack("<B", bool(value))
        padding = bytes(-at % 4)
        if kind == "iI":
            return padding + self._list("i", value)
        if kind == "f":
            return padding + struct.pack("<f", value)
        if isinstance(value, str):
            value = CHOICES[function, name].index(value)
        return padding + struct.pack("<i", value)

    # ---- variables ----

    def _variable(self, v: Value, buffer_of: Mapping[Key, int]) -> bytes:
        number = self.ids[v.key]
        shape = self._list("i", v.current_spec.shape)
        key = self.cleared.get(v.key, v.key)
        place = -1 - buffer_of[key] if key in buffer_of else self._block(self._data(v))
        return struct.pack("<I", number) + shape + struct.pack("<B3xi", FLOAT, place)

    def _data(self, v: Value) -> bytes:
        array = v.array.read("host")
        if v.key in self.transposed:
            array = array.reshape(len(array), -1).T
        return np.ascontiguousarray(array, "<f4").tobytes()

    def _buffers(self) -> tuple[list[int], dict[Key, int]]:
        """Sizes of buffers, and which variable is in which.

        Variables that live at the same time have different buffers. The largest come first, each
        into the first buffer that is free while it lives.
        """
        low = self.lowered
        end = len(low.nodes)
        first = {v.key: 0 for v in low.inputs.values()}
        last = dict(first)
        for t, node in enumerate(low.nodes):
            outs = [(id(node), i) for i in range(visible_outputs(node))]
            for key in (*[v.key for v in visible_inputs(node)], *outs):
                if key in first or key in outs:
                    first.setdefault(key, t)
                    last[key] = t
        for v in low.outputs.values():
            if v.key in first:
                last[v.key] = end
        sizes = {v.key: v.current_spec.size for v in self.edges if v.key in first}
        buffers: list[tuple[int, list[Key]]] = []
        of: dict[Key, int] = {}
        for key in sorted(sizes, key=lambda k: -sizes[k]):
            for n, (_, users) in enumerate(buffers):
                if all(last[key] < first[u] or last[u] < first[key] for u in users):
                    users.append(key)
                    of[key] = n
                    break
            else:
                of[key] = len(buffers)
                buffers.append((sizes[key], [key]))
        unit = 4 if self.version > VERSIONS[0] else 1
        return [size * unit for size, _ in buffers], of


def _arguments(function: str, node: Node) -> dict[str, Any]:
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
