# SPDX-License-Identifier: Apache-2.0
"""Networks as a prototxt with a .caffemodel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.caffe.messages import messages, text_of
from nnl.converters.caffe.weights import WEIGHTS, write_weights
from nnl.converters.networks.lowering import Target, lower
from nnl.converters.networks.model import Network
from nnl.core.graph.node import Node, Value
from nnl.core.parameters.atomic import replacing

HUGE = 3.0e38


def pooled_size(size: int, k: int, s: int, p: int, up: bool) -> int:
    """Number of windows along an axis: Caffe's rounding."""
    whole = (size + 2 * p - k) / s
    n = (math.ceil(whole) if up else math.floor(whole)) + 1
    # the last window begins inside of the image or its left padding
    return n - 1 if p and (n - 1) * s >= size + p else n


class _Refused(Exception):
    """Why Caffe has no such layer."""


# A layer: its type, the field of its message, that message, weights, and inputs besides.
Said = tuple[str, str, dict[str, Any], list[Any]]


def _shape(v: Value | None) -> tuple[int, ...]:
    return () if v is None else tuple(v.current_spec.shape)


def _sizes(name: str, values: Sequence[int], short: str = "") -> dict[str, Any]:
    """One size for every axis, as a message has them."""
    short = short or name
    if len(set(values)) == 1 or name == "dilation" or len(values) != 2:
        return {name: [values[0]] if len(set(values)) == 1 else list(values)}
    return {f"{short}_h": values[0], f"{short}_w": values[1]}


def _convolution(node: Node, weights: list[Any]) -> list[Said]:
    a, w = node.attrs, node.inputs[1]
    back = node.op.name == "deconvolution"
    if a.channel_last or any(getattr(a, "output_padding", None) or ()):
        raise _Refused("its channels are the last axis, or it has output_padding")
    p = {"num_output": _shape(w)[1] * a.group if back else _shape(w)[0], "group": a.group}
    p |= _sizes("kernel_size", _shape(w)[2:], "kernel") | _sizes("pad", a.pad)
    p |= _sizes("stride", a.stride) | _sizes("dilation", a.dilation)
    p |= {"axis": a.base_axis, "bias_term": len(weights) > 1}
    return [("Deconvolution" if back else "Convolution", "convolution_param", p, weights)]


def _affine(node: Node, weights: list[Any]) -> list[Said]:
    shape = _shape(node.inputs[1])
    if len(node.out_specs[0].shape) != node.attrs.base_axis + 1:
        raise _Refused("its result has several axes of features")
    w, *weights = weights
    w = w.reshape(-1, shape[-1]).T
    p = {"num_output": shape[-1], "axis": node.attrs.base_axis, "bias_term": bool(weights)}
    return [("InnerProduct", "inner_product_param", p, [w, *weights])]


def _pad(node: Node, weights: list[Any]) -> list[Said]:
    a, rank = node.attrs, len(_shape(node.inputs[0]))
    width = (0,) * (2 * rank - len(a.pad_width)) + tuple(a.pad_width)
    if a.mode != "constant" or a.constant_value > -1e30 or rank != 4 or any(width[:4]):
        raise _Refused("Caffe has no such layer")
    return []  # a part of the pooling that reads it


def _pooling(node: Node, weights: list[Any]) -> list[Said]:
    a, size, pad = node.attrs, _shape(node.inputs[0])[-2:], node.attrs.pad
    largest, out = node.op.name == "max_pooling", node.out_specs[0].shape[-2:]
    if len(a.kernel) != 2 or a.channel_last or len(_shape(node.inputs[0])) != 4:
        raise _Refused("it is not of two axes with the channels before them")
    before = None if node.inputs[0] is None else node.inputs[0].node
    if before is not None and before.op.name == "pad":
        if not largest or any(pad):
            raise _Refused("its input is padded")
        size, pad = _shape(before.inputs[0])[-2:], before.attrs.pad_width[-4::2]
    axes = list(zip(size, a.kernel, a.stride, pad, strict=True))
    up, down = (tuple(pooled_size(*v, up) for v in axes) for up in (True, False))
    if tuple(out) not in (up, down):
        raise _Refused("its windows end elsewhere than Caffe's")
    if (
        not largest
        and (any(a.pad) or tuple(out) != down)
        and a.including_pad == (tuple(out) != down)
    ):
        raise _Refused("its means count the border in another way")
    p: dict[str, Any] = {"pool": 0 if largest else 1, "round_mode": int(tuple(out) != up)}
    for name, short, values in (
        ("kernel_size", "kernel", a.kernel), ("stride", "stride", a.stride), ("pad", "pad", pad)
    ):  # fmt: skip
        found = _sizes(name, values, short)
        p |= {k: v[0] if isinstance(v, list) else v for k, v in found.items()}
    return [("Pooling", "pooling_param", p, [])]


def _reduction(node: Node, weights: list[Any]) -> list[Said]:
    a, shape = node.attrs, _shape(node.inputs[0])
    axes = tuple(sorted(i % len(shape) for i in a.axes))
    if node.op.name == "mean" and axes == (2, 3) and len(shape) == 4 and a.keep_dims:
        return [("Pooling", "pooling_param", {"pool": 1, "global_pooling": True}, [])]
    if a.keep_dims or axes != tuple(range(axes[0], len(shape))):
        raise _Refused("it keeps its axes, or they are not the last ones")
    how = {"operation": 4 if node.op.name == "mean" else 1, "axis": axes[0]}
    return [("Reduction", "reduction_param", how, [])]


def _pair(node: Node, weights: list[Any]) -> list[Said]:
    how = {"add2": 1, "sub2": 1, "mul2": 0, "maximum2": 2}[node.op.name]
    shapes, y = [_shape(v) for v in node.inputs], node.out_specs[0].shape
    if not weights:
        if shapes[0] != shapes[1]:
            raise _Refused("its inputs have two shapes")
        coeff = {"coeff": [1, -1]} if node.op.name == "sub2" else {}
        return [("Eltwise", "eltwise_param", {"operation": how, **coeff}, [])]
    w = weights[0]
    second = shapes[1] == w.shape and shapes[0] == tuple(y)
    if how == 2 or w.ndim != len(y) or not (second or shapes[1] == tuple(y)):
        raise _Refused("one of its inputs is a constant of another rank")
    if node.op.name == "sub2":
        if not second:
            raise _Refused("its first input is a constant")
        w = -w
    kept = [i for i, n in enumerate(w.shape) if n > 1] or [0]
    first, last = kept[0], kept[-1] + 1
    field = "scale_param" if how == 0 else "bias_param"
    at = {"axis": first, "num_axes": last - first}
    return [("Scale" if how == 0 else "Bias", field, at, [w.reshape(w.shape[first:last])])]


def _normalization(node: Node, weights: list[Any]) -> list[Said]:
    a = node.attrs
    if a.batch_stat or tuple(a.axes) != (1,) or len(weights) != 4 - a.no_bias - a.no_scale:
        raise _Refused("its statistics are those of the batch, computed, or not of axis 1")
    *factors, mean, variance = [w.reshape(-1) for w in weights]
    beta = np.zeros_like(mean) if a.no_bias else factors.pop(0)
    gamma = np.ones_like(mean) if a.no_scale else factors.pop(0)
    stats = [mean, variance, np.ones(1, np.float32)]
    p = {"use_global_stats": True, "eps": a.eps}
    factors = ("Scale", "scale_param", {"bias_term": True}, [gamma, beta])
    return [("BatchNorm", "batch_norm_param", p, stats), factors]


def _reshape(node: Node, weights: list[Any]) -> list[Said]:
    x, y = _shape(node.inputs[0]), node.out_specs[0].shape
    dims = [0 if i == 0 and x[:1] == y[:1] else n for i, n in enumerate(y)]
    return [("Reshape", "reshape_param", {"shape": {"dim": dims}}, [])]


def _slice(node: Node, weights: list[Any]) -> list[Said]:
    a, x, y = node.attrs, _shape(node.inputs[0]), node.out_specs[0].shape
    cut = [i for i, (m, n) in enumerate(zip(x, y, strict=True)) if m != n]
    if len(cut) > 1 or any(s != 1 for s in a.step):
        raise _Refused("it cuts several axes, or has steps")
    if not cut:
        return [("Split", "", {}, [])]
    start = a.start[cut[0]] % x[cut[0]]
    ends = [n for n in (start, start + y[cut[0]]) if 0 < n < x[cut[0]]]
    return [("Slice", "slice_param", {"axis": cut[0], "slice_point": ends}, [])]


def _simple(type: str, field: str = "", **values: Any) -> Callable[[Node, list[Any]], list[Said]]:
    """A layer whose arguments are attributes, named, or numbers."""

    def say(node: Node, weights: list[Any]) -> list[Said]:
        p = {k: getattr(node.attrs, v) if isinstance(v, str) else v for k, v in values.items()}
        return [(type, field, p, weights)]

    return say


def _prelu(node: Node, weights: list[Any]) -> list[Said]:
    return [("PReLU", "prelu_param", {"channel_shared": not weights[0].ndim}, weights)]


SAY: dict[str, Callable[[Node, list[Any]], list[Said]]] = {
    "convolution": _convolution,
    "deconvolution": _convolution,
    "affine": _affine,
    "max_pooling": _pooling,
    "average_pooling": _pooling,
    "mean": _reduction,
    "sum": _reduction,
    "batch_normalization": _normalization,
    "pad": _pad,
    "reshape": _reshape,
    "slice": _slice,
    **dict.fromkeys(("add2", "sub2", "mul2", "maximum2"), _pair),
    "relu": _simple("ReLU"),
    "leaky_relu": _simple("ReLU", "relu_param", negative_slope="alpha"),
    "prelu": _prelu,
    "elu": _simple("ELU", "elu_param", alpha="alpha"),
    "sigmoid": _simple("Sigmoid"),
    "tanh": _simple("TanH"),
    "abs": _simple("AbsVal"),
    "softplus": _simple("BNLL"),
    "exp": _simple("Exp"),
    "log": _simple("Log"),
    "softmax": _simple("Softmax", "softmax_param", axis="axis"),
    "concatenate": _simple("Concat", "concat_param", axis="axis"),
    "transpose": _simple("Permute", "permute_param", order="axes"),
    "identity": _simple("Split"),
    "mul_scalar": _simple("Power", "power_param", scale="val"),
    "add_scalar": _simple("Power", "power_param", shift="val"),
    "pow_scalar": _simple("Power", "power_param", power="val"),
    "maximum_scalar": _simple("Clip", "clip_param", min="val", max=HUGE),
    "minimum_scalar": _simple("Clip", "clip_param", min=-HUGE, max="val"),
}


def _refuses(node: Node, is_constant: Callable[[Value], bool]) -> str | None:
    say = SAY.get(node.op.name)
    if say is None:
        return "Caffe has no such layer"
    inputs = [v for v in node.inputs if v is not None]
    constants = [i for i, v in enumerate(inputs) if is_constant(v)]
    if say in WEIGHTED:
        if constants != list(range(1, len(inputs))):
            return "its weight is computed, wanted a constant"
    elif constants and say is not _pair:
        return "one of its inputs is a constant"
    if say is not _pooling and any(v.node is not None and v.node.op.name == "pad" for v in inputs):
        return "its input is padded"
    try:
        say(node, _weights([inputs[i] for i in constants]))
    except _Refused as error:
        return str(error)
    return None


def _weights(values: Sequence[Value]) -> list[Any]:
    return [np.asarray(v.array.read("host"), np.float32) for v in values]


WEIGHTED = (_convolution, _affine, _normalization, _prelu)
TARGET = Target(
    "CAFFE",
    _refuses,
    {"global_average_pooling": lambda a, x: F.mean(x, (2, 3), keepdims=True)},
)


def write(path: str, network: Network) -> None:
    """Write a network as a .caffemodel, and the prototxt that belongs to it beside it.

    Raises:
        CannotLower: Caffe has no layers for some functions; all are listed.
    """
    lowered = lower(network, TARGET)
    net = messages()["NetParameter"](name=network.name)
    arrays: dict[str, list[Any]] = {}
    names = {v.key: name for name, v in lowered.inputs.items()}
    for name, v in lowered.inputs.items():
        layer = net.layer.add(name=name, type="Input", top=[name])
        layer.input_param.shape.add(dim=_shape(v))
    ends = {v.key: name for name, v in lowered.outputs.items()}
    taken = set(names.values()) | set(ends.values())
    for node in lowered.nodes:
        weights = _weights([v for v in node.inputs if v is not None and v.key not in names])
        bottoms = [names[v.key] for v in node.inputs if v is not None and v.key in names]
        key = (id(node), 0)
        said = SAY[node.op.name](node, weights)
        for i, (type, field, values, blobs) in enumerate(said):
            last = i == len(said) - 1
            top = ends[key] if last and key in ends else _free(type.lower(), taken)
            layer = net.layer.add(name=top, type=type, bottom=bottoms)
            if field:
                getattr(layer, field).SetInParent()
                getattr(layer, field).MergeFrom(type_of(layer, field)(**values))
            tops = [top]
            if type == "Slice":
                n = len(values["slice_point"]) + 1
                place = 1 if n == 3 or node.attrs.start[values["axis"]] else 0
                tops = [top if j == place else _free("unused", taken) for j in range(n)]
                rest = [t for t in tops if t != top]
                net.layer.add(name=_free("silence", taken), type="Silence", bottom=rest)
            layer.top.extend(tops)
            if blobs:
                arrays[top] = blobs
            bottoms = [top]
        names[key] = bottoms[0]
    stem = next(path[: -len(e)] for e in sorted(WEIGHTS, key=len, reverse=True) if path.endswith(e))
    write_weights(path, net, arrays)
    with replacing(f"{stem}.prototxt") as temporary:
        temporary.write_text(text_of(net), encoding="utf-8")


def type_of(layer: Any, field: str) -> Any:
    """The class of a message in a layer."""
    return messages()[layer.DESCRIPTOR.fields_by_name[field].message_type.name]


def _free(name: str, taken: set[str]) -> str:
    found = next(n for i in itertools.count(1) if (n := f"{name}{i}") not in taken)
    taken.add(found)
    return found
