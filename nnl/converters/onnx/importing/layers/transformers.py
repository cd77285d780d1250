# SPDX-License-Identifier: Apache-2.0
"""Importers of the operators that ONNX Runtime's optimizer makes of several, in com.microsoft."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.importing.reduction import product
from nnl.converters.onnx.importing.shape import part
from nnl.converters.onnx.values.codes import chosen, columns, real, run
from nnl.converters.onnx.values.values import (
    array,
    known,
    reshape,
    same_rank,
    shape_of,
    tagged,
    transpose,
    var,
    with_rank,
)

microsoft = partial(onnx_import, domain="com.microsoft")


# ---- products and what follows them ----


@microsoft("FusedMatMul", "TransposeMatMul")
def fused_matmul(ctx: Any, node: Any, a: Any, b: Any) -> Any:
    """alpha a' b', of the last two axes."""
    if node.attributes.get("transBatchA") or node.attributes.get("transBatchB"):
        raise OnnxError("transBatchA and transBatchB are not read: turn the axes by a Transpose")
    factors = []
    for name, x in (("transA", a), ("transB", b)):
        n = len(shape_of(x))
        turned = node.attributes.get(name) and n > 1
        factors.append(transpose(x, (*range(n - 2), n - 1, n - 2)) if turned else x)
    y = product(*map(var, factors))
    alpha = node.attributes.get("alpha", 1.0)
    return y if alpha == 1 else F.mul_scalar(y, alpha)


def activated(ctx: Any, y: Any, name: str, *numbers: Any) -> Any:
    """y after ONNX's activation of that name, with alpha and beta, or the bounds of Clip."""
    if not name:
        return y
    if name == "Clip":
        return run(ctx, name, y, *[np.float32(n).reshape(()) for n in numbers])
    given = {k: v for k, v in zip(("alpha", "beta"), numbers, strict=False) if v is not None}
    return run(ctx, name, y, **given)


@microsoft("FusedGemm")
def fused_gemm(ctx: Any, node: Any, a: Any, b: Any, c: Any = None) -> Any:
    """activation(alpha a' b' + beta c)."""
    y = run(ctx, "Gemm", a, b, c, **chosen(node, "alpha", "beta", "transA", "transB"))
    numbers = [node.attributes.get(n) for n in ("activation_alpha", "activation_beta")]
    return activated(ctx, y, node.attributes.get("activation", ""), *numbers)


@microsoft("FusedConv")
def fused_conv(ctx: Any, node: Any, x: Any, w: Any, b: Any = None, z: Any = None) -> Any:
    """activation(convolution + z)."""
    known_ = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    y = run(ctx, "Conv", x, w, b, **chosen(node, *known_))
    y = y if z is None else var(y) + var(z)
    numbers = node.attributes.get("activation_params", ())
    return activated(ctx, y, node.attributes.get("activation", ""), *numbers)


# ---- activations ----


def exact_gelu(x: Any) -> Any:
    """x times the normal distribution of x."""
    return F.mul_scalar(x, 0.5) * F.add_scalar(F.erf(F.mul_scalar(x, math.sqrt(0.5))), 1.0)


@microsoft("Gelu", "BiasGelu")
def gelu(ctx: Any, node: Any, x: Any, bias: Any = None) -> Any:
    """GELU by the error function, of a sum."""
    return exact_gelu(var(x) if bias is None else run(ctx, "Add", var(x), bias))


@microsoft("FastGelu")
def fast_gelu(ctx: Any, node: Any, x: Any, bias: Any = None) -> Any:
    """GELU by a hyperbolic tangent, of a sum."""
    return F.gelu(var(x) if bias is None else run(ctx, "Add", var(x), bias))


@microsoft("QuickGelu")
def quick_gelu(ctx: Any, node: Any, x: Any) -> Any:
    """x sigmoid(alpha x)."""
    x = var(x)
    return x * F.sigmoid(F.mul_scalar(x, node.attributes.get("alpha", 1.702)))


# ---- normalization ----


def normalized(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Layer normalization of the last axis."""
    gamma, beta = (None if v is None else with_rank(var(v), x.ndim) for v in (gamma, beta))
    return F.layer_normalization(x, beta, gamma, batch_axis=tuple(range(x.ndim - 1)), eps=epsilon)


def scaled(x: Any, gamma: Any, epsilon: float) -> Any:
    """x divided by the root of the mean of its squares along the last axis."""
    square = F.mean(x * x, axis=x.ndim - 1, keepdims=True)
    return x * F.pow_scalar(F.add_scalar(square, epsilon), -0.5) * with_rank(var(gamma), x.ndim)


@onnx_import("SimplifiedLayerNormalization")
@microsoft("SimplifiedLayerNormalization")
def simplified_layer_normalization(ctx: Any, node: Any, x: Any, scale: Any) -> Any:
    """Division by the root of the mean square."""
    x = var(x)
    if node.attributes.get("axis", -1) not in (-1, x.ndim - 1):
        raise OnnxError(f"axis is {node.attributes['axis']}, wanted the last one")
    return scaled(x, scale, node.attributes.get("epsilon", 1e-5))


def skipped(x: Any, skip: Any, bias: Any) -> Any:
    x, skip = same_rank(var(x), var(skip))
    return x + skip if bias is None else x + skip + with_rank(var(bias), x.ndim)


@microsoft("SkipLayerNormalization")
def skip_layer_normalization(
    ctx: Any, node: Any, x: Any, skip: Any, gamma: Any, beta: Any = None, bias: Any = None
) -> Any:
    """Layer normalization of a sum; the sum is the last result."""
    total = skipped(x, skip, bias)
    y = normalized(total, gamma, beta, node.attributes.get("epsilon", 1e-12))
    return y, None, None, total


@microsoft("SkipSimplifiedLayerNormalization")
def skip_simplified(ctx: Any, node: Any, x: Any, skip: Any, gamma: Any, bias: Any = None) -> Any:
    """A sum divided by the root of its mean square; the sum is the last result."""
    total = skipped(x, skip, bias)
    return scaled(total, gamma, node.attributes.get("epsilon", 1e-12)), None, None, total


@microsoft("EmbedLayerNormalization")
def embed_layer_normalization(
    ctx: Any, node: Any, ids: Any, segments: Any, words: Any, positions: Any, kinds: Any,
    gamma: Any, beta: Any, mask: Any = None, position_ids: Any = None,
) -> Any:  # fmt: skip
    """Rows of three tables, added up and normalized; how many tokens each sample has; the sum."""
    batch, length = shape_of(ids)
    total = F.embed(var(ids), var(words))
    if position_ids is None:
        at = part(var(positions), 0, 0, length)
        total = total + F.reshape(at, (1, *at.shape))
    else:
        total = total + F.embed(var(position_ids), var(positions))
    if kinds is not None and segments is not None:
        total = total + F.embed(var(segments), var(kinds))
    y = normalized(total, gamma, beta, node.attributes.get("epsilon", 1e-12))
    if mask is None:
        lengths: Any = np.zeros(batch, np.int32)
    elif known(mask):
        lengths = array(mask).sum(1).astype(np.int32)
    else:
        lengths = tagged(F.sum(var(mask), axis=1), np.int32)
    return y, lengths, total


# ---- attention ----


class Heads(NamedTuple):
    """Sizes of an attention: samples, heads, queries, keys."""

    batch: int
    heads: int
    queries: int
    keys: int


def split_heads(x: Any, heads: int) -> Any:
    """(B, S, heads D) as (B, heads, S, D)."""
    batch, length, width = x.shape
    if width % heads:
        raise OnnxError(f"num_heads is {heads}, which does not divide the width {width}")
    return F.transpose(F.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def masked(mask: Any, n: Heads, low: float) -> Any:
    """What is added to scores where a mask says so: lengths of samples, or 0 for keys to leave out.

    Raises:
        OnnxError: It has another shape than those that are read.
    """
    shape = shape_of(mask)
    if shape == (n.batch,):
        places = var(np.arange(n.keys, dtype=np.float32).reshape(1, n.keys))
        lengths = F.reshape(var(mask), (n.batch, 1))
        keep = F.less(*(F.broadcast(v, (n.batch, n.keys)) for v in (places, lengths)))
    elif len(shape) in (2, 3, 4) and shape[-1] == n.keys and shape[0] == n.batch:
        keep = var(mask)
    else:
        raise OnnxError(
            f"has a mask of the shape {shape} for {n.batch} samples and {n.keys} keys, wanted "
            f"{(n.batch,)}, {(n.batch, n.keys)} or {(n.batch, n.queries, n.keys)}"
        )
    sizes = {2: (n.batch, 1, 1, n.keys), 3: (n.batch, 1, n.queries, n.keys)}
    keep = F.reshape(keep, sizes[keep.ndim]) if keep.ndim in sizes else keep
    return F.mul_scalar(1 - keep, low)


def attend(
    node: Any, q: Any, k: Any, v: Any, mask: Any, bias: Any, past: Any = None
) -> tuple[Any, Any, Any]:
    """Attention of heads (B, heads, length, width); the result is (B, queries, heads width).

    Args:
        past: Keys and values of earlier calls, which stand before these.
    Returns:
        The result, and all keys and values.
    """
    if past is not None:
        k, v = (F.concatenate(var(p), x, axis=2) for p, x in zip(past, (k, v), strict=True))
    batch, heads, queries, width = q.shape
    n = Heads(batch, heads, queries, k.shape[2])
    scale = node.attributes.get("scale") or 1 / math.sqrt(width)
    scores = F.mul_scalar(F.batch_matmul(q, k, transpose_b=True), scale)
    low = node.attributes.get("mask_filter_value", -10000.0)
    if bias is not None:
        scores = run_add(scores, var(bias))
    if mask is not None:
        scores = run_add(scores, masked(mask, n, low))
    if node.attributes.get("unidirectional"):
        later = np.triu(np.ones((queries, n.keys), np.float32), 1 + n.keys - queries)
        scores = run_add(scores, var((later * low).reshape(1, 1, queries, n.keys)))
    y = F.batch_matmul(F.softmax(scores, axis=3), v)
    y = F.transpose(y, (0, 2, 1, 3))
    return F.reshape(y, (batch, queries, heads * v.shape[3])), k, v


def run_add(x: Any, y: Any) -> Any:
    """A sum of two Variables, of which the second stretches."""
    return x + F.broadcast(with_rank(y, x.ndim), x.shape)


def packed_attention(node: Any, projected: Any, mask: Any, past: Any, bias: Any) -> Any:
    """Attention of (B, S, q k v): the result, and keys and values in one array."""
    heads, width = node.attributes["num_heads"], projected.shape[2]
    sizes = node.attributes.get("qkv_hidden_sizes") or (width // 3,) * 3
    ends = np.cumsum((0, *sizes))
    q, k, v = (
        split_heads(part(projected, 2, int(a), int(b)), heads)
        for a, b in zip(ends[:-1], ends[1:], strict=True)
    )
    if past is not None:
        past = [reshape(part(var(past), 0, i, i + 1), shape_of(past)[1:]) for i in (0, 1)]
    y, k, v = attend(node, q, k, v, mask, bias, past)
    if len(node.outputs) < 2 or not node.outputs[1]:
        return (y,)
    return y, F.stack(k, v, axis=0)


def check_past(past_length: Any) -> None:
    if past_length is not None:
        raise OnnxError("a buffer shared by past and present keys is not read")


@microsoft("Attention")
def attention(
    ctx: Any, node: Any, x: Any, weights: Any, bias: Any = None, mask: Any = None,
    past: Any = None, attention_bias: Any = None, past_length: Any = None,
) -> Any:  # fmt: skip
    """Attention of x to itself, by one projection to queries, keys and values."""
    check_past(past_length)
    x = var(x)
    projected = F.affine(x, var(weights), None if bias is None else var(bias), base_axis=2)
    return packed_attention(node, projected, mask, past, attention_bias)


@microsoft("QAttention")
def quantized_attention(
    ctx: Any, node: Any, x: Any, weights: Any, bias: Any, x_scale: Any, w_scale: Any,
    mask: Any = None, x_zero: Any = None, w_zero: Any = None, past: Any = None,
) -> Any:  # fmt: skip
    """Attention whose projection is a product of 8 bits."""
    values = real(x, x_scale, x_zero, 2), columns(weights, w_scale, w_zero)
    return packed_attention(node, F.affine(*values, var(bias), base_axis=2), mask, past, None)


@microsoft("MultiHeadAttention")
def multi_head_attention(
    ctx: Any, node: Any, query: Any, key: Any = None, value: Any = None, bias: Any = None,
    mask: Any = None, attention_bias: Any = None, past_key: Any = None, past_value: Any = None,
    *more: Any,
) -> Any:  # fmt: skip
    """Attention of queries, keys and values that are projected already."""
    if any(m is not None for m in more):
        raise OnnxError("a buffer shared by past and present keys is not read")
    heads = node.attributes["num_heads"]
    query = var(query)
    parts: list[Any] = [query, *(None if v is None else var(v) for v in (key, value))]
    if key is None and query.ndim == 5:  # (B, S, heads, 3, D)
        parts = [F.reshape(part(query, 3, i, i + 1), (*query.shape[:3], -1)) for i in range(3)]
    elif key is not None and parts[1].ndim == 5:  # (B, S, heads, 2, D)
        both = parts[1]
        parts[1:] = [F.reshape(part(both, 3, i, i + 1), (*both.shape[:3], -1)) for i in range(2)]
    if any(p is None for p in parts):
        raise OnnxError("needs key and value, or all three packed in one array of 5 axes")
    biases: list[Any] = [None] * 3
    if bias is not None:
        ends = np.cumsum([0] + [p.shape[2] * (p.shape[3] if p.ndim == 4 else 1) for p in parts])
        pairs = zip(ends[:-1], ends[1:], strict=True)
        biases = [part(var(bias), 0, int(a), int(b)) for a, b in pairs]
    found = []
    for i, (p, b) in enumerate(zip(parts, biases, strict=True)):
        if p.ndim == 4 and i and key is not None and shape_of(key) == p.shape:
            found.append(p)  # (B, heads, S, D), without bias
            continue
        p = F.reshape(p, (*p.shape[:2], -1)) if p.ndim == 4 else p
        found.append(split_heads(p if b is None else run_add(p, b), heads))
    past = None if past_key is None else (past_key, past_value)
    y, k, v = attend(node, *found, mask, attention_bias, past)
    return (y, k, v)[: max(1, len(node.outputs))]
