# SPDX-License-Identifier: Apache-2.0
"""Scaled dot product attention, and its gradient, without memory for the scores in their kernels.

Sizes: B samples, H heads, L queries and S keys of width D, values of width E. Arrays have the axes
(B, H, positions, width), or three with samples and heads in one. Keys and values may have fewer
heads, G of them: head h of the queries then reads head h G // H.
"""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.core.settings.context import STATE
from nnl.functions.affine import batch_matmul
from nnl.functions.arithmetic import add2, add_scalar, mul2, mul_scalar, sub2
from nnl.functions.layout import transpose, trilu
from nnl.functions.reduction import max_op, reshape, sum_op, sum_to

LOWEST = float(np.finfo(np.float32).min)


class Sight:
    """Which keys a query sees: attributes of all these ops, and what they mean.

    causal: Only the keys up to its own position. causal_offset: Query i stands at the position
    i + causal_offset, and at i + causal_offset + offsets[b] where offsets are given. window: Only
    keys at a distance below it, where it is not 0.
    """

    causal: bool = False
    causal_offset: int = 0
    window: int = 0


class Attention(Sight):
    """Attributes of attention and its gradient, besides those of Sight.

    scale: Factor of the scores. soft_cap: If not 0, scores s become c tanh(s / c). transpose_k: key
    is (B, G, D, S). heads: Number of heads, where samples and heads share one axis and mask tells
    them apart. least: Bytes of scores below which kernels leave it to the parts of the step.
    """

    scale: float
    transpose_k: bool = False
    heads: int = 1
    soft_cap: float = 0.0
    least: int = 0

    def check(self, q, k, v, mask, lengths=None, offsets=None, segments=None):
        """(shape of the scores, as four axes), if the arrays fit."""
        name = self.op.name
        rank = len(q.shape)
        if rank not in (3, 4) or len(k.shape) != rank or len(v.shape) != rank:
            raise ShapeError(f"{name}: query {q}, key {k} and value {v} must have one rank, 3 or 4")
        if self.window < 0:
            raise ValueError(f"{name}: window is {self.window}, wanted at least 0")
        keys, width = k.shape[-2:][::-1] if self.transpose_k else k.shape[-2:]
        if k.shape[:-2] != v.shape[:-2] or keys != v.shape[-2]:
            raise ShapeError(
                f"{name}: key {k} and value {v} must have the same samples, heads and positions"
            )
        if width != q.shape[-1]:
            raise ShapeError(f"{name}: key {k} has the width {width}, query {q} another")
        if k.shape[0] != q.shape[0]:
            raise ShapeError(f"{name}: key {k} does not have the samples of query {q}")
        if rank == 4 and (not k.shape[1] or q.shape[1] % k.shape[1]):
            raise ShapeError(
                f"{name}: key {k} has {k.shape[1]} heads, wanted a divisor of the {q.shape[1]} "
                f"heads of query {q}"
            )
        if rank == 3 and (self.heads < 1 or q.shape[0] % self.heads):
            raise ShapeError(f"{name}: query {q} does not have a multiple of {self.heads} heads")
        full = (*self.lead(q.shape), q.shape[-2], keys)
        if mask is not None:
            own = self.four_axes(mask.shape)
            if len(own) != 4 or any(n not in (1, m) for n, m in zip(own, full, strict=True)):
                raise ShapeError(f"{name}: mask {mask} does not stretch to the scores {full}")
        for argument, x in (("lengths", lengths), ("offsets", offsets)):
            if x is not None and x.shape != full[:1]:
                raise ShapeError(f"{name}: {argument} {x} has another shape than {full[:1]}")
        if segments is not None and not (segments.shape == (full[0], full[2]) == full[::3]):
            raise ShapeError(
                f"{name}: segments {segments} has another shape than {full[::3]}, that of samples "
                f"and keys, of which there must be as many as queries, {full[2]}"
            )
        return full

    def lead(self, shape):
        """(samples, heads) of the shape of q."""
        return shape[:2] if len(shape) == 4 else (shape[0] // self.heads, self.heads)

    def four_axes(self, shape):
        """The shape of a mask with four axes; one of three is (B, L, S)."""
        if len(shape) == 3 and self.heads == 1:
            shape = (shape[0], 1, *shape[1:])
        return (1,) * (4 - len(shape)) + tuple(shape)

    def seen(self, scores, *which):
        """(0 or -inf to add to scores, 1 or 0 for each query that sees a key or not), or Nones.

        Where all queries see a key, the first of `which` alone says so: nothing, or causality.
        """
        batch, _, queries, keys = scores.shape
        if not (self.window or any(x is not None for x in which)):
            if not self.causal:
                return None, None
            if self.causal_offset >= 0:
                hidden = OPS["constant"](val=-np.inf, shape=(1, 1, queries, keys))
                return trilu(hidden, k=1 + self.causal_offset), None
        return attention_seen(
            *which, shape=(batch, queries, keys), causal=self.causal,
            causal_offset=self.causal_offset, window=self.window,
        )  # fmt: skip

    def plain_scores(self, q, k):
        """The products, scaled and capped, as four axes."""
        s = batch_matmul(by_key_head(q, k), k, transpose_b=not self.transpose_k)
        s = mul_scalar(s, self.scale)
        if self.soft_cap:
            s = mul_scalar(OPS["tanh"](mul_scalar(s, 1 / self.soft_cap)), self.soft_cap)
        return reshape(s, (*self.lead(q.shape), q.shape[-2], s.shape[-1]))

    def masked(self, s, mask, hidden):
        """What softmax is taken of."""
        if mask is not None:
            s = add2(s, reshape(mask, self.four_axes(mask.shape)))
        return s if hidden is None else add2(s, hidden)

    def slopes(self, gy, q, v, y, s, lse, glse):
        """(weights, gradient of what softmax is taken of), both (B, H, L, S)."""
        p = OPS["exp"](sub2(s, reshape(lse, (*s.shape[:-1], 1))))
        gp = reshape(batch_matmul(by_key_head(gy, v), v, transpose_b=True), s.shape)
        dot = reshape(last_sum(mul2(gy, y)), (*s.shape[:-1], 1))
        if glse is not None:
            dot = sub2(dot, reshape(glse, dot.shape))
        return p, mul2(p, sub2(gp, dot))

    def attention_cost(self, q, k, v):
        part = 0.5 if self.causal and q.shape[-2] == v.shape[-2] else 1
        pairs = int(part * q.size // (q.shape[-1] or 1) * v.shape[-2])
        return Cost(2 * pairs * (q.shape[-1] + v.shape[-1]), 2 * q.nbytes + k.nbytes + v.nbytes)


def by_key_head(x, k):
    """x (B, H, L, D) with the queries of all heads that share a key's head on one axis."""
    if len(x.shape) == 3 or x.shape[1] == k.shape[1]:
        return x
    b, h, n, d = x.shape
    g = k.shape[1]
    return reshape(x, (b, g, h // g * n, d))


def last_sum(x):
    return sum_op(x, axes=(len(x.shape) - 1,), keep_dims=True)


def as_shape(x, shape):
    return x if x.shape == tuple(shape) else reshape(x, shape)


@op("attention_seen", outputs=("hidden", "any"), integer=("lengths", "offsets", "segments"))
class attention_seen(Sight):
    """Which keys each query sees, as numbers to add to scores: 0, or -inf for those it does not.

    Args:
        lengths: (B,), keys of each sample. offsets: (B,), added to the positions of its queries.
        segments: (B, S), numbers of which query and key must have the same.
        shape: (B, L, S).
    Returns:
        (b, 1, L, S), and (b, 1, L, 1): 1 for a query that sees a key, else 0. b is 1 where all
        samples are alike.
    """

    shape: tuple[int, ...]

    def infer(self, lengths=None, offsets=None, segments=None):
        batch, queries, keys = self.shape
        b = 1 if lengths is None and offsets is None and segments is None else batch
        found = Spec.of((b, 1, queries, keys), STATE.target.float_dtype)
        return found, found.with_shape((b, 1, queries, 1))

    def forward(self, xp, lengths, offsets, segments, dtype=None):
        _, queries, keys = self.shape
        at, j = xp.arange(queries)[None, :, None] + self.causal_offset, xp.arange(keys)
        if offsets is not None:
            at = at + offsets[:, None, None]
        seen = xp.ones((1, queries, keys), bool)
        if self.causal:
            seen = seen & (j <= at)
        if self.window:
            seen = seen & (at - j < self.window) & (j - at < self.window)
        if lengths is not None:
            seen = seen & (j < lengths[:, None, None])
        if segments is not None:
            seen = seen & (segments[:, :, None] == segments[:, None, :])
        hidden = xp.where(seen, 0, -np.inf)[:, None].astype(dtype)
        return hidden, seen.any(-1, keepdims=True)[:, None].astype(dtype)

    def cost(self, lengths=None, offsets=None, segments=None):
        hidden, _ = self.infer(lengths, offsets, segments)
        return Cost(4 * hidden.size, hidden.nbytes)

    def samples(rng):
        yield Sample(None, None, None, shape=(2, 3, 5), causal=True, causal_offset=1, window=2)
        yield Sample(np.array([5, 0]), np.array([-1, 2]), None, shape=(2, 3, 5), causal=True)
        yield Sample(None, None, np.array([[0, 0, 1], [0, 1, 1]]), shape=(2, 3, 3), window=2)


@op(
    "attention", narrow=True, outputs=("y", "lse"), hidden=1, wide=(1,),
    integer=("lengths", "offsets", "segments"),
)  # fmt: skip
class attention(Attention):
    r"""See attention of nnl.functions; lse is the logarithm of each query's sum of exponentials.

    Args:
        query, key, value: (B, H, L, D), (B, G, S, D) and (B, G, S, E).
        mask, lengths, offsets, segments: See there.
    Returns:
        y (B, H, L, E), and lse (B, H, L) for the gradient. A query that sees no key gives 0; one
        whose keys are all hidden by a mask of -inf, and any where there are no keys, gives NaN, as
        softmax does.
    """

    def infer(self, query, key, value, mask=None, lengths=None, offsets=None, segments=None):
        self.check(query, key, value, mask, lengths, offsets, segments)
        y = query.with_shape((*query.shape[:-1], value.shape[-1]))
        return y, y.with_shape(query.shape[:-1])

    def decompose(self, query, key, value, mask=None, lengths=None, offsets=None, segments=None):
        s = self.plain_scores(query, key)
        hidden, any_seen = self.seen(s, lengths, offsets, segments)
        s = self.masked(s, mask, hidden)
        top = OPS["unlink"](max_op(s, axes=(3,), keep_dims=True))
        if any_seen is not None:
            top = OPS["maximum_scalar"](top, LOWEST)  # -inf - -inf were NaN
        e = OPS["exp"](sub2(s, top))
        total = last_sum(e)
        if any_seen is not None:
            total = add2(total, add_scalar(mul_scalar(any_seen, -1.0), 1.0))
        p = as_shape(OPS["div2"](e, total), (*query.shape[:-1], s.shape[-1]))
        lse = add2(OPS["log"](total), top)
        if any_seen is not None:
            lse = mul2(lse, any_seen)
        y = batch_matmul(by_key_head(p, value), value)
        y = as_shape(y, (*query.shape[:-1], value.shape[-1]))
        return y, reshape(lse, query.shape[:-1])

    def vjp(
        self, gy, glse, *, query, key, value, mask, lengths, offsets, segments, y, lse, need
    ):  # fmt: skip
        which = (lengths, offsets, segments)
        gradients = attention_backward(
            gy, query, key, value, y, lse, mask, *which, glse, **self.as_dict()
        )
        gmask = None
        if need[3]:  # as large as the scores, but then the mask often is, too
            s = self.plain_scores(query, key)
            s = self.masked(s, mask, self.seen(s, *which)[0])
            _, gs = self.slopes(gy, query, value, y, s, lse, glse)
            gmask = reshape(sum_to(gs, self.four_axes(mask.shape)), mask.shape)
        return *gradients, gmask, None, None, None

    def cost(self, query, key, value, mask=None, lengths=None, offsets=None, segments=None):
        return self.attention_cost(query, key, value)

    def samples(rng):
        no = (None, None, None)
        q, k = rng.normal(size=(2, 3, 4, 8)), rng.normal(size=(2, 3, 6, 8))
        v = rng.normal(size=(2, 3, 6, 8))
        yield Sample(q, k, v, None, *no, scale=0.5)
        yield Sample(q, k, v, rng.normal(size=(2, 1, 1, 6)), *no, scale=1.0)
        mask = rng.normal(size=(4, 6))
        yield Sample(q, k, v, mask, *no, scale=1.0, causal=True, causal_offset=1)
        q, k, v = (x.reshape(6, *x.shape[2:]) for x in (q, k, v))
        mask, turned = rng.normal(size=(2, 1, 4, 6)), k.swapaxes(1, 2).copy()
        yield Sample(q, turned, v, mask, *no, scale=0.5, heads=3, transpose_k=True)
        yield Sample(q, k, v, rng.normal(size=(6, 4, 6)), *no, scale=0.5)
        # two heads of keys for four of queries
        q, k, v = (rng.normal(size=(2, h, n, 4)) for h, n in ((4, 3), (2, 5), (2, 5)))
        which = (np.array([4, 0]), np.array([1, 2]), None)
        yield Sample(q, k, v, None, *which, scale=0.5, causal=True, soft_cap=2.0)
        mask = rng.normal(size=(2, 4, 3, 1))
        yield Sample(q, k, v, mask, *no, scale=0.5, window=2, causal_offset=1)
        yield Sample(q, k, v, None, *no, scale=0.5, causal=True, causal_offset=-1, window=4)
        segments = np.array([[0, 0, 1], [2, 2, 2]])
        k, v = k[:, :, :3].copy(), v[:, :, :3].copy()
        yield Sample(q, k, v, None, None, None, segments, scale=1.0, causal=True)


@op(
    "attention_backward", narrow=True, outputs=("gq", "gk", "gv"),
    integer=("lengths", "offsets", "segments"),
)  # fmt: skip
class attention_backward(Attention):
    """Gradients of `attention` by query, key and value.

    Args:
        gy: Gradient of y.
        query, key, value, mask, lengths, offsets, segments: Its inputs.
        y, lse: Its results, from which the scores are computed again.
        glse: Gradient of lse, where there is one.
    """

    zeros = ("glse",)

    def infer(
        self, gy, query, key, value, y, lse,
        mask=None, lengths=None, offsets=None, segments=None, glse=None,
    ):  # fmt: skip
        self.check(query, key, value, mask, lengths, offsets, segments)
        if gy.shape != y.shape or y.shape[:-1] != lse.shape:
            raise ShapeError(f"attention_backward: gy {gy}, y {y} and lse {lse} do not fit")
        return query, key, value

    def decompose(
        self, gy, query, key, value, y, lse,
        mask=None, lengths=None, offsets=None, segments=None, glse=None,
    ):  # fmt: skip
        capped = self.plain_scores(query, key)
        hidden, _ = self.seen(capped, lengths, offsets, segments)
        s = self.masked(capped, mask, hidden)
        p, gs = self.slopes(gy, query, value, y, s, lse, glse)
        if self.soft_cap:
            t = mul_scalar(capped, 1 / self.soft_cap)
            gs = mul2(gs, add_scalar(mul_scalar(mul2(t, t), -1.0), 1.0))
        by_head = (*query.shape[:-1], s.shape[-1])
        gs = by_key_head(as_shape(mul_scalar(gs, self.scale), by_head), key)
        p = by_key_head(as_shape(p, by_head), key)
        q, gy = by_key_head(query, key), by_key_head(gy, key)
        gq = as_shape(batch_matmul(gs, key, transpose_b=self.transpose_k), query.shape)
        a, b = (q, gs) if self.transpose_k else (gs, q)
        return gq, batch_matmul(a, b, transpose_a=True), batch_matmul(p, gy, transpose_a=True)

    def cost(self, gy, query, key, value, y, lse, *others):
        forward = self.attention_cost(query, key, value)
        return Cost(5 * forward.flops // 2, 2 * forward.bytes)

    def samples(rng):
        yield from backward_samples(rng)


def backward_samples(rng):
    """Samples of the gradient whose y and lse are those of the other inputs."""
    for sample in attention.attrs_class.samples(rng):
        q, k, v, mask, *which = sample.inputs
        attrs = attention.attrs(**sample.attrs)
        keys = k.swapaxes(-1, -2) if attrs.transpose_k else k
        keys, values = (
            np.repeat(x, q.shape[1] // k.shape[1], axis=1) if k.ndim == 4 else x for x in (keys, v)
        )
        s = q @ keys.swapaxes(-1, -2) * attrs.scale
        if attrs.soft_cap:
            s = np.tanh(s / attrs.soft_cap) * attrs.soft_cap
        s = s.reshape(*attrs.lead(q.shape), *s.shape[-2:])
        if mask is not None:
            s = s + mask.reshape(attrs.four_axes(mask.shape))
        seen = attention_seen.attrs(
            shape=(s.shape[0], *s.shape[2:]), causal=attrs.causal,
            causal_offset=attrs.causal_offset, window=attrs.window,
        )  # fmt: skip
        s = s + seen.forward(np, *which, dtype=s.dtype)[0]
        total = np.exp(s).sum(-1)
        lse = np.log(np.where(total == 0, 1, total))
        p = np.exp(s - lse[..., None]).reshape(*q.shape[:-1], -1)
        y = p @ values
        gy, lse = rng.normal(size=y.shape), lse.reshape(q.shape[:-1])
        inputs = (gy, q, k, v, y, lse, mask, *which, None)
        # y and lse belong to q, k and v: alone they cannot be moved
        yield Sample(*inputs, grad=(False,) * len(inputs), **sample.attrs)


# ---- queries, keys and values as one array (B, T, 3, H, D) ----


class Packed(Attention):
    def own(self, op):
        """The attributes of attention, or its gradient, of the parts."""
        names = ("scale", "soft_cap", "causal", "causal_offset", "window")
        return op.attrs(**{n: getattr(self, n) for n in names})

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
