# SPDX-License-Identifier: Apache-2.0
"""Attention that keeps keys and values from call to call."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError, check_rank
from nnl.core.ops.op import Cost, Sample, op

CATEGORY = "Layer"

__all__ = ["cached_attention"]


@op(
    "cached_attention", narrow=True, integer=("positions", "counts", "slots"),
    keep=("key_cache", "value_cache"), writes=("key_cache", "value_cache"),
)  # fmt: skip
class cached_attention:
    r"""Write new keys and values into caches, in place, then attend to all that they hold.

    $$K_{s g, p_b + i} \leftarrow k_{b g i}, \quad V_{s g, p_b + i} \leftarrow v_{b g i}$$ with
    s = slots[b] and p = positions, for each i < counts[b]. The result is the causal `attention` of
    query i, at position $p_b + i$, to the keys 0 to $p_b + i$ of its slot. Every row of the batch
    has a position of its own, so texts of different lengths go on side by side, and a row whose
    count is 0 rests. What lies behind the last key is never read: a slot begins a new text with
    position 0.

    Args:
        query: (B, H, T, D).
        key, value: (B, G, T, D) and (B, G, T, E), where G divides H.
        key_cache, value_cache: (S, G, C, D) and (S, G, C, E): S texts of up to C positions. They
            keep their dtype.
        positions: (B,), integers: how many positions each row has filled before.
        counts: (B,), integers up to T: how many of the new positions count; all if left out.
        slots: (B,), different integers below S: where each row has its text; row b in slot b if
            left out.
        mask: Added to the scores (B, H, T, C), of which any axis may be 1 in it.
        window, soft_cap: As of `attention`; 0 for none.
        scale: As of `attention`; 0 for $1 / \sqrt{D}$.
    Returns:
        (B, H, T, E), 0 where counts ends a row earlier. There is no gradient.
    Raises:
        ShapeError: Sizes do not fit, or G does not divide H.
        ValueError: A cache is too small for a row, or counts or slots are out of range.
    Example:
        >>> keys, values = array(np.zeros((1, 1, 4, 2))), array(np.zeros((1, 1, 4, 2)))
        >>> x = array([[[[1, 2]]]])
        >>> F.cached_attention(x, x, x, keys, values, array([0], int)).d
        array([[[[1., 2.]]]], dtype=float32)
        >>> F.cached_attention(x, x, -x, keys, values, array([1], int)).d, values.d[0, 0, :3]
        (array([[[[0., 0.]]]], dtype=float32), array([[ 1.,  2.],
               [-1., -2.],
               [ 0.,  0.]], dtype=float32))
    """

    window: int = 0
    soft_cap: float = 0.0
    scale: float = 0.0
    host = "positions are checked"

    def infer(
        self, query, key, value, key_cache, value_cache, positions,
        counts=None, slots=None, mask=None,
    ):  # fmt: skip
        name = "cached_attention"
        arrays = (
            ("query", query), ("key", key), ("value", value), ("key_cache", key_cache),
            ("value_cache", value_cache),
        )  # fmt: skip
        for argument, x in arrays:
            check_rank(name, argument, x, 4)
        b, h, t, d = query.shape
        g = key.shape[1]
        if not g or h % g:
            raise ShapeError(
                f"{name}: key {key} has {g} heads, wanted a divisor of the {h} heads of query "
                f"{query}"
            )
        if key.shape != (b, g, t, d):
            raise ShapeError(f"{name}: key {key}, wanted the shape {(b, g, t, d)}")
        if value.shape[:3] != key.shape[:3]:
            raise ShapeError(f"{name}: value {value} does not fit key {key}")
        places, _, capacity, _ = key_cache.shape
        for argument, cache, x in (
            ("key_cache", key_cache, key), ("value_cache", value_cache, value),
        ):  # fmt: skip
            if cache.shape != (places, g, capacity, x.shape[3]):
                raise ShapeError(
                    f"{name}: {argument} {cache}, wanted {(places, g, capacity, x.shape[3])}, for "
                    f"key_cache {key_cache} and new ones {x}"
                )
        if slots is None and places != b:
            raise ShapeError(f"{name}: key_cache {key_cache} has {places} slots for {b} rows")
        for argument, x in (("positions", positions), ("counts", counts), ("slots", slots)):
            if x is not None and x.shape != (b,):
                raise ShapeError(f"{name}: {argument} {x}, wanted the shape {(b,)}")
        if mask is not None:
            full = (b, h, t, capacity)
            if len(mask.shape) != 4 or any(
                n not in (1, m) for n, m in zip(mask.shape, full, strict=True)
            ):
                raise ShapeError(f"{name}: mask {mask} does not stretch to {full}")
        for argument, limit in (("window", self.window), ("soft_cap", self.soft_cap)):
            if limit < 0:
                raise ValueError(f"{name}: {argument} is {limit}, wanted at least 0")
        return query.with_shape((b, h, t, value.shape[3]))

    def forward(
        self, xp, query, key, value, key_cache, value_cache, positions, counts, slots, mask
    ):
        b, h, t, d = query.shape
        places, g, capacity, _ = key_cache.shape
        scale = self.scale or (d or 1) ** -0.5
        y = xp.zeros((b, h, t, value.shape[3]), query.dtype)
        rows = [
            (int(positions[i]), t if counts is None else int(counts[i]),
             i if slots is None else int(slots[i]))
            for i in range(b)
        ]  # fmt: skip
        for i, (position, count, slot) in enumerate(rows):
            check_row(i, position, count, slot, t, capacity, places)
        for i, (position, count, slot) in enumerate(rows):
            end = position + count
            key_cache[slot, :, position:end] = key[i, :, :count]
            value_cache[slot, :, position:end] = value[i, :, :count]
            if not count:
                continue
            q = query[i, :, :count].reshape(g, h // g * count, d)
            s = scale * (q @ key_cache[slot, :, :end].astype(q.dtype).swapaxes(1, 2))
            if self.soft_cap:
                s = self.soft_cap * xp.tanh(s / self.soft_cap)
            s = s.reshape(h, count, end)
            if mask is not None:
                own = mask[i % mask.shape[0]]
                own = own[:, :count] if own.shape[1] > 1 else own
                s = s + (own[..., :end] if own.shape[2] > 1 else own)
            at, j = xp.arange(position, end)[:, None], xp.arange(end)
            hidden = j > at
            if self.window:
                hidden = hidden | (at - j >= self.window)
            s = xp.where(hidden, -np.inf, s)
            p = xp.exp(s - s.max(-1, keepdims=True))
            p = (p / p.sum(-1, keepdims=True)).reshape(g, -1, end)
            y[i, :, :count] = (p @ value_cache[slot, :, :end].astype(p.dtype)).reshape(h, count, -1)
        return y

    def vjp(self, gy):
        return (None,) * 9

    def cost(self, query, key, value, key_cache, value_cache, *others):
        b, h, t, d = query.shape
        pairs = b * h * t * key_cache.shape[2]
        moved = b * (key_cache.nbytes + value_cache.nbytes) // (key_cache.shape[0] or 1)
        return Cost(2 * pairs * (d + value.shape[3]), 2 * query.nbytes + moved)

    def samples(rng):
        def arrays(t, places=2):
            shapes = ((2, 4, t, 6), (2, 2, t, 6), (2, 2, t, 5), (places, 2, 7, 6))
            q, k, v, keys = (rng.normal(size=s) for s in shapes)
            return q, k, v, keys, rng.normal(size=(places, 2, 7, 5)), np.array([3, 0])

        no = {"grad": (False,) * 9}
        yield Sample(*arrays(1), None, None, None, **no)
        yield Sample(*arrays(3), None, None, rng.normal(size=(1, 4, 1, 7)), soft_cap=2.0, **no)
        counts, slots = np.array([2, 0]), np.array([2, 0])
        yield Sample(*arrays(3, 3), counts, slots, None, window=2, scale=1.0, **no)


def check_row(row, position, count, slot, new, capacity, places):
    """Raise a ValueError if a row of the batch does not fit the caches."""
    name = f"cached_attention: row {row}"
    if position < 0:
        raise ValueError(f"{name} has the position {position}, wanted at least 0")
    if not 0 <= count <= new:
        raise ValueError(f"{name} has the count {count}, wanted 0 to {new}")
    if position + count > capacity:
        raise ValueError(
            f"{name} would hold {position + count} keys, more than the {capacity} of key_cache"
        )
    if not 0 <= slot < places:
        raise ValueError(f"{name} has the slot {slot}, wanted 0 to {places - 1}")
