# SPDX-License-Identifier: Apache-2.0
"""What a graph for cuDNN computes, by numpy: the meaning of a specification.

Memory is a flat numpy array of the element type for every operand; strides are taken seriously, so
a specification that would read or write the wrong elements on a GPU does so here too. Sums are
taken in float64, results rounded to the type of their array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from nnl.ext.cuda.cudnn.spec import Array, Copy, Graph, Work, place

__all__ = ["evaluate", "evaluate_work"]

Values = dict[str, Any]


def view(a: Array, memory: np.ndarray) -> np.ndarray:
    """The elements of an operand within its memory."""
    if memory.dtype.name != a.dtype:
        raise TypeError(f"evaluate: array {a.uid} is {a.dtype}, its memory {memory.dtype}")
    memory = memory[a.start // memory.itemsize :]
    if memory.size < a.extent:
        raise ValueError(f"evaluate: array {a.uid} reaches over {a.extent} of {memory.size}")
    return as_strided(memory, a.dim, [s * memory.itemsize for s in a.stride])


def evaluate(graph: Graph, memory: Mapping[int, np.ndarray]) -> None:
    """Compute a graph: read inputs from their memory, and write outputs to theirs."""
    graph.validate()
    arrays, values = graph.by_uid, {}
    for a in graph.arrays:
        if a.value is not None:
            values[a.uid] = np.full(a.dim, a.value, np.float32)
        elif not a.virtual and a.uid not in graph.written:
            values[a.uid] = view(a, memory[a.uid]).astype(np.float32)
    for node in graph.nodes:
        ins = {port: values[uid] for port, uid in node.ins}
        attrs = dict(node.attrs)
        dims = {port: arrays[uid].dim for port, uid in node.outs}
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            made = MEANINGS[node.op](ins, attrs, dims)
        for port, uid in node.outs:
            value = made[port].reshape(arrays[uid].dim).astype(numpy_type(arrays[uid].dtype))
            values[uid] = value.astype(np.float32)
            if not arrays[uid].virtual:
                view(arrays[uid], memory[uid])[...] = value


def evaluate_work(
    work: Work, ins: list[np.ndarray | None], outs: list[np.ndarray], workspace: np.ndarray
) -> None:
    """Run all steps on flat memory, as a kernel does on a device.

    Args:
        workspace: uint8, as large as `work.scratch()` says.
    """
    offsets, _ = work.scratch()

    def memory(a: Array) -> Any:
        kind, i = place(a.uid)
        if kind == "scratch":
            return workspace[offsets[i] : offsets[i] + a.nbytes].view(numpy_type(a.dtype))
        return outs[i] if kind == "out" else ins[i]

    for step in work.steps:
        if isinstance(step, Graph):
            evaluate(step, {a.uid: memory(a) for a in step.operands})
        else:
            copy(step, memory(step.source), memory(step.target))


def numpy_type(name: Any) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    dtype: np.dtype[Any] = np.dtype(name)
    return dtype


def copy(step: Copy, source: np.ndarray, target: np.ndarray) -> None:
    """target = source, zeros where it is larger."""
    step.validate()
    part = tuple(slice(n) for n in step.both)
    to = view(step.target, target)
    value = view(step.source, source)[part].astype(np.float32).astype(to.dtype)
    to[...] = 0
    to[part] = value


def by_element(f: Callable[..., Any]) -> Callable[..., Values]:
    """The meaning of an operation on elements."""

    def meaning(ins: Values, attrs: Values, dims: Values) -> Values:
        return {"out": np.broadcast_to(f(*ins.values(), **attrs), dims["out"])}

    return meaning


def relu(
    x: Any, lower_clip: float = 0.0, upper_clip: float = math.inf, negative_slope: float = 0.0
) -> Any:
    """Clipped; below lower_clip it continues with negative_slope."""
    return np.where(x >= lower_clip, np.minimum(x, upper_clip), lower_clip + negative_slope * x)


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def windows(x: np.ndarray, w_dim: tuple[int, ...], attrs: Values) -> np.ndarray:
    """(N, C, *out, *kernel): the pixels that every position of a kernel sees, zeros outside."""
    pad = list(zip(attrs["pre_padding"], attrs["post_padding"], strict=True))
    x = np.pad(x, [(0, 0), (0, 0), *pad])
    reach = tuple(d * (k - 1) + 1 for d, k in zip(attrs["dilation"], w_dim[2:], strict=True))
    n = len(reach)
    seen = sliding_window_view(x, reach, tuple(range(2, n + 2)))
    steps = tuple(slice(None, None, s) for s in attrs["stride"])
    taps = tuple(slice(None, None, d) for d in attrs["dilation"])
    return seen[(slice(None), slice(None), *steps, *taps)]


def grouped(seen: np.ndarray, groups: int) -> np.ndarray:
    """(N, G, C/G, ...) of (N, C, ...)."""
    return seen.reshape(seen.shape[0], groups, -1, *seen.shape[2:])


def letters(n: int) -> tuple[str, str]:
    return "pqr"[:n], "uvw"[:n]


def conv_fprop(ins: Values, attrs: Values, dims: Values) -> Values:
    x, w = ins["image"].astype(np.float64), ins["weight"].astype(np.float64)
    groups, n = x.shape[1] // w.shape[1], w.ndim - 2
    p, u = letters(n)
    seen = grouped(windows(x, w.shape, attrs), groups)
    w = w.reshape(groups, -1, *w.shape[1:])
    y = np.einsum(f"ngc{p}{u},goc{u}->ngo{p}", seen, w, optimize=True)
    return {"Y": y.reshape(dims["Y"])}


def conv_wgrad(ins: Values, attrs: Values, dims: Values) -> Values:
    x, gy = ins["image"].astype(np.float64), ins["loss"].astype(np.float64)
    dim = dims["DW"]
    groups, n = x.shape[1] // dim[1], len(dim) - 2
    p, u = letters(n)
    seen = grouped(windows(x, dim, attrs), groups)
    gy = grouped(gy, groups)
    return {"DW": np.einsum(f"ngc{p}{u},ngo{p}->goc{u}", seen, gy, optimize=True).reshape(dim)}


def conv_dgrad(ins: Values, attrs: Values, dims: Values) -> Values:
    gy, w = ins["loss"].astype(np.float64), ins["filter"].astype(np.float64)
    dim = dims["DX"]
    groups, n = dim[1] // w.shape[1], w.ndim - 2
    p, u = letters(n)
    pads = list(zip(attrs["pre_padding"], attrs["post_padding"], strict=True))
    size = [s + b + e for s, (b, e) in zip(dim[2:], pads, strict=True)]
    padded = np.zeros((*dim[:2], *size))
    part = np.einsum(
        f"ngo{p},goc{u}->ngc{p}{u}",
        grouped(gy, groups),
        w.reshape(groups, -1, *w.shape[1:]),
        optimize=True,
    )
    part = part.reshape(*dim[:2], *part.shape[3:])
    for tap in np.ndindex(*w.shape[2:]):
        at = tuple(
            slice(d * t, d * t + s * (m - 1) + 1, s)
            for t, d, s, m in zip(
                tap, attrs["dilation"], attrs["stride"], gy.shape[2:], strict=True
            )
        )
        padded[(slice(None), slice(None), *at)] += part[(..., *tap)]
    crop = tuple(slice(b, b + s) for s, (b, _) in zip(dim[2:], pads, strict=True))
    return {"DX": padded[(slice(None), slice(None), *crop)]}


def matmul(ins: Values, attrs: Values, dims: Values) -> Values:
    return {"C": np.matmul(ins["A"].astype(np.float64), ins["B"].astype(np.float64))}


def summed(x: np.ndarray, dim: tuple[int, ...]) -> np.ndarray:
    axes = tuple(i for i, n in enumerate(dim) if n == 1)
    return x.sum(axes, keepdims=True, dtype=np.float64)


def reduction(ins: Values, attrs: Values, dims: Values) -> Values:
    return {"out": summed(ins["input"], dims["out"])}


def genstats(ins: Values, attrs: Values, dims: Values) -> Values:
    x = ins["input"].astype(np.float64)
    return {"SUM": summed(x, dims["SUM"]), "SQ_SUM": summed(x * x, dims["SQ_SUM"])}


def norm(ins: Values, attrs: Values, dims: Values) -> Values:
    """Batch and layer normalization: the axes are those along which mean has size 1.

    cuDNN's running statistics are not used, and so NaN here.
    """
    x = ins["input"].astype(np.float64)
    n = x.size / math.prod(dims["mean"])
    mean = summed(x, dims["mean"]) / n
    variance = summed((x - mean) ** 2, dims["mean"]) / n
    inverse = 1.0 / np.sqrt(variance + ins["epsilon"].reshape(-1)[0])
    y = (x - mean) * inverse * ins["scale"] + ins["bias"]
    unused = {port: np.full(dim, np.nan) for port, dim in dims.items() if port.startswith("next")}
    return {"Y": y, "mean": mean, "inv_var": inverse, **unused}


def norm_inference(ins: Values, attrs: Values, dims: Values) -> Values:
    normal = (ins["input"] - ins["mean"]) * ins["inv_variance"]
    return {"Y": normal * ins["scale"] + ins["bias"]}


def norm_backward(ins: Values, attrs: Values, dims: Values) -> Values:
    gy, x = ins["grad"].astype(np.float64), ins["input"].astype(np.float64)
    mean, inverse, scale = ins["mean"], ins["inv_variance"], ins["scale"]
    n = x.size / mean.size
    normal = (x - mean) * inverse
    g = gy * scale
    gx = g - summed(g, mean.shape) / n - normal * summed(g * normal, mean.shape) / n
    return {
        "DX": gx * inverse,
        "DScale": summed(gy * normal, dims["DScale"]),
        "DBias": summed(gy, dims["DBias"]),
    }


def scores(ins: Values, attrs: Values) -> tuple[np.ndarray, ...]:
    """(q, k, v, scaled and masked scores), heads of k and v repeated."""
    q, k, v = (ins[name].astype(np.float64) for name in "qkv")
    repeat = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, repeat, 1), np.repeat(v, repeat, 1)
    s = attrs["attn_scale"] * (q @ k.swapaxes(-1, -2))
    if "bias" in ins:
        s = s + ins["bias"]
    if attrs["causal"] is not None:
        rows, columns = np.ogrid[: s.shape[-2], : s.shape[-1]]
        s = np.where(columns <= rows + attrs["causal"], s, -np.inf)
    return q, k, v, s


def sdpa(ins: Values, attrs: Values, dims: Values) -> Values:
    _, _, v, s = scores(ins, attrs)
    top = s.max(-1, keepdims=True)
    weights = np.exp(s - top)
    total = weights.sum(-1, keepdims=True)
    return {"O": weights / total @ v, "Stats": top + np.log(total)}


def sdpa_backward(ins: Values, attrs: Values, dims: Values) -> Values:
    q, k, v, s = scores(ins, attrs)
    gy = ins["dO"].astype(np.float64)
    weights = np.exp(s - ins["stats"])
    dots = (gy * ins["o"]).sum(-1, keepdims=True)
    slope = weights * (gy @ v.swapaxes(-1, -2) - dots) * attrs["attn_scale"]
    repeat = q.shape[1] // ins["k"].shape[1]

    def by_head(g: np.ndarray) -> np.ndarray:
        return g.reshape(g.shape[0], -1, repeat, *g.shape[2:]).sum(2)

    return {
        "dQ": slope @ k,
        "dK": by_head(slope.swapaxes(-1, -2) @ q),
        "dV": by_head(weights.swapaxes(-1, -2) @ gy),
    }


MEANINGS: dict[str, Callable[[Values, Values, Values], Values]] = {
    "identity": by_element(lambda x: x),
    "rsqrt": by_element(lambda x: 1.0 / np.sqrt(x)),
    "reciprocal": by_element(lambda x: 1.0 / x),
    "relu": by_element(relu),
    "leaky_relu": by_element(lambda x, negative_slope: np.where(x > 0, x, negative_slope * x)),
    "elu": by_element(lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    "sigmoid": by_element(sigmoid),
    "tanh": by_element(np.tanh),
    "swish": by_element(lambda x: x * sigmoid(x)),
    "gelu_approx_tanh": by_element(gelu),
    "add": by_element(np.add),
    "sub": by_element(np.subtract),
    "mul": by_element(np.multiply),
    "relu_backward": by_element(lambda g, x: np.where(x > 0, g, 0)),
    "conv_fprop": conv_fprop,
    "conv_dgrad": conv_dgrad,
    "conv_wgrad": conv_wgrad,
    "matmul": matmul,
    "reduction": reduction,
    "genstats": genstats,
    "batchnorm": norm,
    "batchnorm_inference": norm_inference,
    "layernorm": norm,
    "batchnorm_backward": norm_backward,
    "layernorm_backward": norm_backward,
    "sdpa": sdpa,
    "sdpa_backward": sdpa_backward,
}
