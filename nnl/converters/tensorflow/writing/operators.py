# SPDX-License-Identifier: Apache-2.0
"""Operators of TensorFlow Lite as those of TensorFlow, which has them all under other names.

So networks are lowered and laid out once, for both formats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnl.converters.tensorflow.messages import add_node, messages
from nnl.converters.tflite.graph import Op, Tensor
from nnl.converters.tflite.schema import ACTIVATIONS, SAME
from nnl.converters.tflite.tensorflow_names import DIRECT

MOST_BYTES = 2**31 - 2**20  # of a message
PRODUCER = 1087  # version of graphs: TensorFlow 2.10

_OPTIONS = {  # of both, with the same meaning; others are said by inputs
    "CUMSUM": ("exclusive", "reverse"),
    "LEAKY_RELU": ("alpha",),
    "ONE_HOT": ("axis",),
    "STRIDED_SLICE": (
        "begin_mask",
        "end_mask",
        "ellipsis_mask",
        "new_axis_mask",
        "shrink_axis_mask",
    ),
    "UNPACK": ("num", "axis"),
    "BATCH_MATMUL": ("adj_x", "adj_y"),
    "RESIZE_BILINEAR": ("align_corners", "half_pixel_centers"),
    "RESIZE_NEAREST_NEIGHBOR": ("align_corners", "half_pixel_centers"),
    **dict.fromkeys(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"), ("keep_dims",)),
}
Handler = Callable[["Builder", Op, list[str]], str]
_SPECIAL: dict[str, Handler] = {}


def _says(*names: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for name in names:
            _SPECIAL[name] = handler
        return handler

    return register


class Builder:
    """A GraphDef that grows.

    Attributes:
        proto: The message.
        names: Edges of tensors, by their ids.
        variables: Weights by name, which a checkpoint will hold; None makes them constants.
    """

    def __init__(self, reserved: Sequence[Tensor], variables: bool = False) -> None:
        self.variables: dict[str, Any] | None = {} if variables else None
        self.proto = messages()["GraphDef"]()
        self.proto.versions.producer = PRODUCER
        self.names: dict[int, str] = {}
        self.taken: set[str] = set()
        self.bytes = 0
        self.ends = {id(t): self.unique(t.name) for t in reserved}
        self.label = ""

    def unique(self, name: str) -> str:
        """A name that no node has, of the letters that names may have."""
        clean = "".join(c if c.isascii() and (c.isalnum() or c in "_./-") else "_" for c in name)
        clean = clean if clean[:1].isalnum() else f"n{clean}"
        found, n = clean, 0
        while found in self.taken:
            n += 1
            found = f"{clean}_{n}"
        self.taken.add(found)
        return found

    def node(self, op: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node; gives its name."""
        return add_node(self.proto, op, name or self.unique(self.label or op), inputs, **attributes)

    def constant(self, value: Any, dtype: Any = None, name: str = "") -> str:
        """Add a constant.

        Raises:
            ValueError: The message would be larger than messages can be.
        """
        array = np.asarray(value, dtype)
        self.bytes += array.nbytes
        if self.bytes > MOST_BYTES:
            raise ValueError(
                f"TF_PB: the weights have more than {MOST_BYTES} bytes, which a graph can have"
            )
        name = self.unique(name or "constant")
        return self.node("Const", name=name, value=array, dtype=array.dtype)

    def weight(self, value: Any, name: str) -> str:
        """Add a constant, or a variable if it has a name and is a weight."""
        if self.variables is None or not name or value.dtype.kind != "f" or value.ndim == 0:
            return self.constant(value, name=name)
        name = self.unique(name)
        self.variables[name] = value
        kind = {"dtype": value.dtype}
        self.node("VarHandleOp", name=name, shape=value.shape, shared_name=name, **kind)
        return self.node("ReadVariableOp", name, name=self.unique(f"{name}/read"), **kind)

    def edge(self, t: Tensor) -> str:
        """The edge of a tensor; a constant becomes a node where it is read first."""
        if id(t) not in self.names:
            self.names[id(t)] = self.weight(t.value, t.name)
        return self.names[id(t)]

    def weights(self, t: Tensor, axes: Sequence[int], shape: Sequence[int] | None = None) -> str:
        """The edge of a tensor with its axes in another order, in a shape."""
        if t.value is not None:
            value = np.transpose(t.value, axes)
            whole = value if shape is None else value.reshape(shape)
            return self.weight(np.ascontiguousarray(whole), t.name)
        x = self.edge(t)
        if list(axes) != list(range(len(axes))):
            x = self.node("Transpose", x, self.ints(axes), T=t.dtype, Tperm=np.dtype(np.int32))
        return x if shape is None else self.reshaped(x, t, shape)

    def ints(self, values: Sequence[int]) -> str:
        """A constant vector of int32."""
        return self.constant(np.array(values, np.int32))

    def reshaped(self, x: str, t: Tensor, shape: Sequence[int]) -> str:
        """An edge in another shape."""
        return self.node("Reshape", x, self.ints(shape), T=t.dtype, Tshape=np.dtype(np.int32))

    def add(self, op: Op) -> None:
        """Add what an operator of TensorFlow Lite is."""
        y = op.outs[0]
        self.label = y.name or op.name.lower()
        if op.name in _SPECIAL:
            found = _SPECIAL[op.name](self, op, [])
        else:
            theirs, *types = DIRECT[op.name]
            attributes: dict[str, Any] = {
                key: (y if at == "y" else op.ins[int(at)]).dtype  # type: ignore[union-attr]
                for key, _, at in (t.partition("=") for t in types)
            }
            for key in _OPTIONS.get(op.name, ()):
                if key in op.options:
                    attributes[key] = op.options[key]
            found = self.node(theirs, *[self.edge(t) for t in op.ins if t], **attributes)
        found = self.activated(found, op)
        for i, t in enumerate(op.outs):
            self.names[id(t)] = f"{found}:{i}" if i else found

    def activated(self, x: str, op: Op) -> str:
        """With the activation that is part of an operator."""
        kind = ACTIVATIONS[op.options.get("activation") or 0]
        if kind == "NONE":
            return x
        if kind == "RELU_N1_TO_1":
            dtype = op.outs[0].dtype
            low = self.node("Maximum", x, self.constant(-1, dtype), T=dtype)
            return self.node("Minimum", low, self.constant(1, dtype), T=dtype)
        return self.node(
            {"RELU": "Relu", "RELU6": "Relu6", "TANH": "Tanh"}[kind], x, T=op.outs[0].dtype
        )

    def end(self, t: Tensor) -> None:
        """Give a tensor the name that it has outside."""
        self.node("Identity", self.edge(t), name=self.ends[id(t)], T=t.dtype)


# ---- operators with other inputs or attributes ----


def _float(t: Any) -> Tensor:
    assert isinstance(t, Tensor)
    return t


def _biased(b: Builder, x: str, op: Op, at: int, grouped: bool = False) -> str:
    """With the bias that an operator has as its input `at`."""
    bias = op.ins[at] if len(op.ins) > at else None
    if bias is None or (bias.value is not None and not bias.value.any()):
        return x
    if grouped:  # TensorFlow would fuse BiasAdd into a convolution that knows no groups
        return b.node("AddV2", x, b.edge(bias), T=bias.dtype)
    return b.node("BiasAdd", x, b.edge(bias), T=bias.dtype)


def _steps(op: Op, kind: str, axes: str = "hw") -> list[int]:
    return [1, *[int(op.options.get(f"{kind}_{a}", 1)) for a in axes], 1]


def _how(op: Op) -> str:
    return "SAME" if op.options["padding"] == SAME else "VALID"


@_says("CONV_2D", "DEPTHWISE_CONV_2D")
def _convolution(b: Builder, op: Op, _: Any) -> str:
    """Channels on their own have an operator for equal strides without dilation."""
    grouped = False
    x, w = _float(op.ins[0]), _float(op.ins[1])
    strides, dilations = _steps(op, "stride"), _steps(op, "dilation")
    kind = {"strides": strides, "dilations": dilations, "padding": _how(op), "T": x.dtype}
    if op.name == "CONV_2D":
        grouped = w.shape[3] != x.shape[3]
        y = b.node("Conv2D", b.edge(x), b.weights(w, (1, 2, 3, 0)), **kind)
    elif strides[1] == strides[2] and dilations == [1, 1, 1, 1]:
        _, height, width, maps = w.shape
        each = maps // x.shape[-1]
        weights = b.weights(w, (0, 1, 2, 3), (height, width, x.shape[-1], each))
        y = b.node("DepthwiseConv2dNative", b.edge(x), weights, **kind)
    else:
        grouped = True
        y = b.node("Conv2D", b.edge(x), b.weights(w, (1, 2, 0, 3)), **kind)
    return _biased(b, y, op, 2, grouped)


@_says("CONV_3D")
def _convolution_3d(b: Builder, op: Op, _: Any) -> str:
    x, w = _float(op.ins[0]), _float(op.ins[1])
    y = b.node(
        "Conv3D",
        b.edge(x),
        b.edge(w),
        strides=_steps(op, "stride", "dhw"),
        dilations=_steps(op, "dilation", "dhw"),
        padding=_how(op),
        T=x.dtype,
    )
    return _biased(b, y, op, 2)


@_says("TRANSPOSE_CONV")
def _deconvolution(b: Builder, op: Op, _: Any) -> str:
    sizes, w, x = map(_float, op.ins[:3])
    y = b.node(
        "Conv2DBackpropInput",
        b.edge(sizes),
        b.weights(w, (1, 2, 0, 3)),
        b.edge(x),
        strides=_steps(op, "stride"),
        padding=_how(op),
        T=x.dtype,
    )
    return _biased(b, y, op, 3)


@_says("FULLY_CONNECTED")
def _dense(b: Builder, op: Op, _: Any) -> str:
    x, w = _float(op.ins[0]), _float(op.ins[1])
    inner, shape = w.shape[1], op.outs[0].shape
    rows = b.edge(x)
    if shape.count(-1) > 1:  # more than a reshape can leave out
        y = b.node("BatchMatMulV2", rows, b.weights(w, (1, 0)), T=x.dtype)
        return _biased(b, y, op, 2)
    if len(x.shape) != 2:
        rows = b.reshaped(rows, x, (-1, inner))
    if w.value is not None:
        y = b.node("MatMul", rows, b.weights(w, (1, 0)), T=x.dtype)
    else:
        y = b.node("MatMul", rows, b.edge(w), T=x.dtype, transpose_b=True)
    y = _biased(b, y, op, 2)
    return y if len(shape) == 2 else b.reshaped(y, x, shape)


@_says("AVERAGE_POOL_2D", "MAX_POOL_2D")
def _pool(b: Builder, op: Op, _: Any) -> str:
    x = _float(op.ins[0])
    return b.node(
        "MaxPool" if op.name.startswith("MAX") else "AvgPool",
        b.edge(x),
        ksize=_steps(op, "filter"),
        strides=_steps(op, "stride"),
        padding=_how(op),
        T=x.dtype,
    )


@_says("CONCATENATION")
def _concatenate(b: Builder, op: Op, _: Any) -> str:
    xs = [_float(t) for t in op.ins]
    if len(xs) == 1:  # the operator takes two or more
        return b.node("Identity", b.edge(xs[0]), T=xs[0].dtype)
    axis = b.constant(op.options["axis"], np.int32)
    types = {"T": xs[0].dtype, "Tidx": np.dtype(np.int32)}
    return b.node("ConcatV2", *map(b.edge, xs), axis, N=len(xs), **types)


@_says("GATHER")
def _gather(b: Builder, op: Op, _: Any) -> str:
    x, at = map(_float, op.ins)
    return b.node(
        "GatherV2",
        b.edge(x),
        b.edge(at),
        b.constant(op.options.get("axis", 0), np.int32),
        batch_dims=int(op.options.get("batch_dims", 0)),
        Tparams=x.dtype,
        Tindices=at.dtype,
        Taxis=np.dtype(np.int32),
    )


@_says("ARG_MAX", "ARG_MIN")
def _arg(b: Builder, op: Op, _: Any) -> str:
    x, axis = map(_float, op.ins)
    where = b.constant(axis.value.reshape(()))
    types = {"T": x.dtype, "Tidx": axis.dtype, "output_type": op.outs[0].dtype}
    return b.node("ArgMax" if op.name == "ARG_MAX" else "ArgMin", b.edge(x), where, **types)


@_says("MIRROR_PAD")
def _mirror(b: Builder, op: Op, _: Any) -> str:
    x, widths = map(_float, op.ins)
    mode = "SYMMETRIC" if op.options.get("mode") else "REFLECT"
    return b.node(
        "MirrorPad", b.edge(x), b.edge(widths), T=x.dtype, Tpaddings=widths.dtype, mode=mode
    )


@_says("PRELU")
def _prelu(b: Builder, op: Op, _: Any) -> str:
    x, slope = map(_float, op.ins)
    kind = {"T": x.dtype}
    low = b.node("Minimum", b.edge(x), b.constant(0, x.dtype), **kind)
    low = b.node("Mul", low, b.edge(slope), **kind)
    return b.node("AddV2", b.node("Relu", b.edge(x), **kind), low, **kind)


@_says("GELU")
def _gelu(b: Builder, op: Op, _: Any) -> str:
    """x (1 + erf(x / sqrt(2))) / 2, or with tanh(sqrt(2 / pi) (x + 0.044715 x^3))."""
    x = _float(op.ins[0])
    edge, kind = b.edge(x), {"T": x.dtype}

    def times(p: str, q: Any) -> str:
        return b.node("Mul", p, q if isinstance(q, str) else b.constant(q, x.dtype), **kind)

    if op.options["approximate"]:
        cube = times(times(times(edge, edge), edge), 0.044715)
        inner = times(b.node("AddV2", edge, cube, **kind), math.sqrt(2 / math.pi))
        part = b.node("Tanh", inner, **kind)
    else:
        part = b.node("Erf", times(edge, math.sqrt(0.5)), **kind)
    return times(times(edge, 0.5), b.node("AddV2", part, b.constant(1, x.dtype), **kind))


@_says("HARD_SWISH")
def _hard_swish(b: Builder, op: Op, _: Any) -> str:
    """x relu6(x + 3) / 6."""
    x = _float(op.ins[0])
    edge, kind = b.edge(x), {"T": x.dtype}
    part = b.node("Relu6", b.node("AddV2", edge, b.constant(3, x.dtype), **kind), **kind)
    product = b.node("Mul", edge, part, **kind)
    return b.node("Mul", product, b.constant(1 / 6, x.dtype), **kind)


OPERATORS = {*DIRECT, *_SPECIAL}
