# SPDX-License-Identifier: Apache-2.0
"""Scaled dot product attention, and its gradient, without memory for the scores in their kernels.

Sizes: B samples, H heads, L queries and S keys of width D, values of width E. Arrays have the axes
(B, H, positions, width), or three with samples and heads in one.
"""

from __future__ import annotations

import numpy as np

from nnl.core.op import OPS, Cost, Sample, op
from nnl.core.spec import ShapeError
from nnl.functions.affine import batch_matmul
from nnl.functions.arithmetic import add2, mul2, mul_scalar, sub2
from nnl.functions.layout import transpose, trilu
from nnl.functions.reduction import max_op, reshape, sum_op


class Attention:
    """Attributes of all these ops.

    scale: Factor of the scores. causal: Query i sees the keys up to i + causal_offset only.
    transpose_k: k is (B, H, D, S). heads: Number of heads, where samples and heads share one axis
    and mask tells them apart.
    """

    scale: float
    causal: bool = False
    causal_offset: int = 0
    transpose_k: bool = False
    heads: int = 1

    def check(self, q, k, v, mask):
        """(shape of the scores, as four axes), if the arrays fit."""
        name = self.op.name
        rank = len(q.shape)
        if rank not in (3, 4) or len(k.shape) != rank or len(v.shape) != rank:
            raise ShapeError(f"{name}: q {q}, k {k} and v {v} must have one rank, 3 or 4")
        keys, width = k.shape[-2:][::-1] if self.transpose_k else k.shape[-2:]
        lead = {x.shape[:-2] for x in (q, k, v)}
        if len(lead) > 1 or width != q.shape[-1] or keys != v.shape[-2]:
            raise ShapeError(f"{name}: q {q}, k {k} and v {v} do not fit")
        if rank == 3 and (self.heads < 1 or q.shape[0] % self.heads):
            raise ShapeError(f"{name}: q {q} does not have a multiple of {self.heads} heads")
        full = (*self.lead(q.shape), q.shape[-2], keys)
        if mask is not None:
            own = self.four_axes(mask.shape)
            if len(own) != 4 or np.broadcast_shapes(own, full) != full:
                raise ShapeError(f"{name}: mask {mask} does not stretch to the scores {full}")
        return full

    def lead(self, shape):
        """(samples, heads) of the shape of q."""
        return shape[:2] if len(shape) == 4 else (shape[0] // self.heads, self.heads)

    def four_axes(self, shape):
        """The shape of a mask with four axes; one of three is (B, L, S)."""
        if len(shape) == 3 and self.heads == 1:
            shape = (shape[0], 1, *shape[1:])
        return (1,) * (4 - len(shape)) + tuple(shape)

    def scores(self, q, k, mask):
        """What softmax is taken of, as four axes."""
        s = mul_scalar(batch_matmul(q, k, transpose_b=not self.transpose_k), self.scale)
        s = reshape(s, (*self.lead(q.shape), *s.shape[-2:]))
        if mask is not None:
            s = add2(s, reshape(mask, self.four_axes(mask.shape)))
        if self.causal:
            hidden = OPS["constant"](val=-np.inf, shape=(1, 1, *s.shape[-2:]))
            s = add2(s, trilu(hidden, k=1 + self.causal_offset))
        return s

    def attention_cost(self, q, k, v):
        return Cost(
            2 * q.size * v.shape[-2] + 2 * v.size * q.shape[-2],
            2 * q.nbytes + k.nbytes + v.nbytes,
        )


def last_sum(x):
    return sum_op(x, axes=(len(x.shape) - 1,), keep_dims=True)


def as_shape(x, shape):
    return x if x.shape == tuple(shape) else reshape(x, shape)


@op("attention", narrow=True, outputs=("y", "lse"), hidden=1, wide=(1,))
class attention(Attention):
    r"""$y = P v$ with the weights $P = \mathrm{softmax}(s\, q k^T + \mathit{mask})$.

    Args:
        q, k, v: (B, H, L, D), (B, H, S, D) and (B, H, S, E).
        mask: Added to the scores (B, H, L, S), any of whose axes may be 1 in it. Optional.
    Returns:
        y (B, H, L, E), and the logarithm of each query's sum of exponentials (B, H, L), for the
        gradient. A query that sees no key gives NaN, as softmax does.
    Source: Dao et al., FlashAttention, arXiv:2205.14135.
    """

    def infer(self, q, k, v, mask=None):
        self.check(q, k, v, mask)
        y = q.with_shape((*q.shape[:-1], v.shape[-1]))
        return y, y.with_shape(q.shape[:-1])

    def decompose(self, q, k, v, mask=None):
        s = self.scores(q, k, mask)
        top = OPS["unlink"](max_op(s, axes=(3,), keep_dims=True))
        e = OPS["exp"](sub2(s, top))
        total = last_sum(e)
        p = as_shape(OPS["div2"](e, total), (*q.shape[:-1], s.shape[-1]))
        lse = add2(OPS["log"](total), top)
        return batch_matmul(p, v), reshape(lse, q.shape[:-1])

    def cost(self, q, k, v, mask=None):
        return self.attention_cost(q, k, v)

    def samples(rng):
        q, k = rng.normal(size=(2, 3, 4, 8)), rng.normal(size=(2, 3, 6, 8))
        v = rng.normal(size=(2, 3, 6, 8))
        yield Sample(q, k, v, None, scale=0.5)
        yield Sample(q, k, v, rng.normal(size=(2, 1, 1, 6)), scale=1.0)
        yield Sample(q, k, v, rng.normal(size=(4, 6)), scale=1.0, causal=True, causal_offset=1)
        q, k, v = (x.reshape(6, *x.shape[2:]) for x in (q, k, v))
        mask = rng.normal(size=(2, 1, 4, 6))
        yield Sample(q, k.swapaxes(1, 2).copy(), v, mask, scale=0.5, heads=3, transpose_k=True)
        yield Sample(q, k, v, rng.normal(size=(6, 4, 6)), scale=0.5)


@op("attention_backward", narrow=True, outputs=("gq", "gk", "gv"))
class attention_backward(Attention):
    """Gradients of `attention` by q, k and v; there is none by mask.

    Args:
        gy: Gradient of y.
        q, k, v, mask: Its inputs.
        y, lse: Its results, from which the scores are computed again.
    """

    def infer(self, gy, q, k, v, y, lse, mask=None):
        self.check(q, k, v, mask)
        if gy.shape != y.shape or y.shape[:-1] != lse.shape:
            raise ShapeError(f"attention_backward: gy {gy}, y {y} and lse {lse} do not fit")
        return q, k, v

    def decompose(self, gy, q, k, v, y, lse, mask=None):
        s = self.scores(q, k, mask)
        p = OPS["exp"](sub2(s, reshape(lse, (*s.shape[:-1], 1))))
        p = as_shape(p, (*q.shape[:-1], s.shape[-1]))
        gp = batch_matmul(gy, v, transpose_b=True)
        gs = mul2(p, sub2(gp, last_sum(mul2(gy, y))))
        gs = mul_scalar(gs, self.scale)
        gq = batch_matmul(gs, k, transpose_b=self.transpose_k)
        a, b = (q, gs) if self.transpose_k else (gs, q)
        return gq, batch_matmul(a, b, transpose_a=True), batch_matmul(p, gy, transpose_a=True)

    def cost(self, gy, q, k, v, y, lse, mask=None):
        forward = self.attention_cost(q, k, v)
        return Cost(5 * forward.flops // 2, 2 * forward.bytes)

    def samples(rng):
        yield from backward_samples(rng)


def backward_samples(rng):
    """Samples of the gradient whose y and lse are those of the other inputs."""
    for sample in attention.attrs_class.samples(rng):
        q, k, v, mask = sample.inputs
        attrs = attention.attrs(**sample.attrs)
        s = q @ (k if attrs.transpose_k else k.swapaxes(-1, -2)) * attrs.scale
        s = s.reshape(*attrs.lead(q.shape), *s.shape[-2:])
        if mask is not None:
            s = s + mask.reshape(attrs.four_axes(mask.shape))
        if attrs.causal:
            s = s + np.triu(np.full(s.shape[-2:], -np.inf), 1 + attrs.causal_offset)
        lse = np.log(np.exp(s).sum(-1))
        p = np.exp(s - lse[..., None]).reshape(*q.shape[:-1], -1)
        y = p @ v
        inputs = (rng.normal(size=y.shape), q, k, v, y, lse.reshape(q.shape[:-1]), mask)
        # y and lse belong to q, k and v: alone they cannot be moved
        yield Sample(*inputs, grad=(False,) * 7, **sample.attrs)


# ---- queries, keys and values as one array (B, T, 3, H, D) ----


class Packed(Attention):
    def own(self, op):
        """The attributes of attention, or its gradient, of the parts."""
        return op.attrs(scale=self.scale, causal=self.causal, causal_offset=self.causal_offset)

    def parts(self, x):
        """q, k and v (B, H, T, D)."""
        return OPS["split"](transpose(x, (2, 0, 3, 1, 4)), axis=0)

    def check_packed(self, x):
        if len(x.shape) != 5 or x.shape[2] != 3:
            raise ShapeError(f"{self.op.name}: x {x} is not (B, T, 3, H, D)")
        b, t, _, h, d = x.shape
        return b, t, h, d


@op("attention_packed", narrow=True, outputs=("y", "lse"), hidden=1, wide=(1,))
class attention_packed(Packed):
    """`attention` of x (B, T, 3, H, D) = (q, k, v), with y (B, T, H, D) and lse (B, H, T)."""

    def infer(self, x, mask=None):
        b, t, h, d = self.check_packed(x)
        return x.with_shape((b, t, h, d)), x.with_shape((b, h, t))

    def decompose(self, x, mask=None):
        y, lse = self.own(attention).decompose(*self.parts(x), mask)
        return transpose(y, (0, 2, 1, 3)), lse

    def cost(self, x, mask=None):
        b, t, h, d = self.check_packed(x)
        return Cost(4 * b * h * t * t * d, 2 * x.nbytes)

    def samples(rng):
        x = rng.normal(size=(2, 4, 3, 2, 8))
        yield Sample(x, None, scale=0.5, causal=True)
        yield Sample(x, rng.normal(size=(2, 1, 1, 4)), scale=1.0)


@op("attention_packed_backward", narrow=True, outputs=("gx",))
class attention_packed_backward(Packed):
    """Gradient of `attention_packed` by x, from the gradient of y, its input and its results."""

    def infer(self, gy, x, y, lse, mask=None):
        b, t, h, d = self.check_packed(x)
        if gy.shape != (b, t, h, d) or y.shape != gy.shape or lse.shape != (b, h, t):
            raise ShapeError(f"{self.op.name}: gy {gy}, y {y} and lse {lse} do not fit x {x}")
        return x

    def decompose(self, gy, x, y, lse, mask=None):
        gy, y = (transpose(v, (0, 2, 1, 3)) for v in (gy, y))
        gradients = self.own(attention_backward).decompose(gy, *self.parts(x), y, lse, mask)
        return transpose(OPS["stack"](*gradients, axis=0), (1, 3, 0, 2, 4))

    def cost(self, gy, x, y, lse, mask=None):
        b, t, h, d = self.check_packed(x)
        return Cost(10 * b * h * t * t * d, 4 * x.nbytes)

    def samples(rng):
        for sample in attention_packed.attrs_class.samples(rng):
            x, mask = sample.inputs
            q, k, v = x.transpose(2, 0, 3, 1, 4)
            s = q @ k.swapaxes(-1, -2) * sample.attrs["scale"] + (0 if mask is None else mask)
            if sample.attrs.get("causal"):
                s = s + np.triu(np.full(s.shape[-2:], -np.inf), 1)
            lse = np.log(np.exp(s).sum(-1))
            y = (np.exp(s - lse[..., None]) @ v).swapaxes(1, 2).copy()
            gy = rng.normal(size=y.shape)
            yield Sample(gy, x, y, lse, mask, grad=(False,) * 5, **sample.attrs)
