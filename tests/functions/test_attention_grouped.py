# SPDX-License-Identifier: Apache-2.0
"""attention and cached_attention: against PyTorch's attention with masks, and their errors."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError
from tests.functions.against_torch import compare

torch = pytest.importorskip("torch")

B, H, G, T, S, D, E = 2, 4, 2, 5, 7, 6, 3


def v(x, dtype=None):
    return nn.Variable.from_numpy_array(np.asarray(x, dtype))


def arrays(*shapes):
    rng = np.random.default_rng(0)
    return [rng.normal(size=s) for s in shapes]


def seen(t, s, causal=False, offset=0, window=None, lengths=None, offsets=None, segments=None):
    """(B, 1, T, S): which keys a query sees, said element by element."""
    found = np.zeros((B, 1, t, s), bool)
    for b in range(B):
        for i in range(t):
            at = i + offset + (0 if offsets is None else offsets[b])
            for j in range(s):
                found[b, 0, i, j] = (
                    (not causal or j <= at)
                    and (window is None or abs(at - j) < window)
                    and (lengths is None or j < lengths[b])
                    and (segments is None or segments[b][i] == segments[b][j])
                )
    return found


CASES = {
    "plain": {},
    "causal": dict(causal=True, causal_offset=S - T),
    "window": dict(causal=True, causal_offset=S - T, window=3),
    "both sides": dict(window=2),
    "lengths": dict(lengths=[7, 2]),
    "offsets": dict(causal=True, offsets=[0, 2], lengths=[6, 7]),
    "cap": dict(soft_cap=1.5, causal=True, scale=0.7),
    "none seen": dict(causal=True, causal_offset=-2, lengths=[7, 0]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("masked", [False, True])
def test_attention_equals_pytorch(name, masked):
    kw = CASES[name]
    hidden = torch.tensor(
        seen(
            T, S, kw.get("causal", False), kw.get("causal_offset", 0), kw.get("window"),
            kw.get("lengths"), kw.get("offsets"),
        )
    )  # fmt: skip
    cap, scale = kw.get("soft_cap"), kw.get("scale", D**-0.5)

    def reference(q, k, x, mask=None):
        k, x = (a.repeat_interleave(H // G, 1) for a in (k, x))
        s = scale * (q @ k.mT)
        s = cap * torch.tanh(s / cap) if cap else s
        s = s if mask is None else s + mask
        # as far as PyTorch goes: no gradient comes from rows that see nothing
        some = hidden.any(-1, keepdim=True)
        p = torch.where(hidden | ~some, s, -torch.inf).softmax(-1)
        return torch.where(some, p @ x, 0.0)

    def ours(*xs):
        given = {n: v(a) if n in ("lengths", "offsets") else a for n, a in kw.items()}
        return F.attention(*xs, **given)

    shapes = [(B, H, T, D), (B, G, S, D), (B, G, S, E)] + [(1, H, T, S)] * masked
    compare(ours, reference, *arrays(*shapes))


def test_attention_equals_pytorchs_own():
    attend = torch.nn.functional.scaled_dot_product_attention
    compare(
        lambda q, k, x: F.attention(q, k, x, causal=True),
        lambda q, k, x: attend(q, k, x, is_causal=True, enable_gqa=True),
        *arrays((B, H, T, D), (B, G, T, D), (B, G, T, E)),
    )


def test_segments_keep_texts_of_one_row_apart():
    segments = np.array([[0, 0, 1, 1, 1], [3, 3, 3, 3, 4]])
    attend = torch.nn.functional.scaled_dot_product_attention
    mask = torch.tensor(seen(T, T, causal=True, segments=segments))
    compare(
        lambda q, k, x: F.attention(q, k, x, segments=v(segments), causal=True),
        lambda q, k, x: attend(q, k, x, mask, enable_gqa=True),
        *arrays((B, H, T, D), (B, G, T, D), (B, G, T, E)),
    )


def float32(*shapes):
    return [v(a, np.float32) for a in arrays(*shapes)]


@pytest.mark.parametrize(
    "shapes,kw,text",
    [
        ([(2, 4, 5, 6), (2, 3, 7, 6), (2, 3, 7, 6)], {}, "key .* has 3 heads, wanted a divisor of "
         r"the 4 heads of query float32\[2, 4, 5, 6\]"),
        ([(2, 4, 5, 6), (2, 2, 7, 5), (2, 2, 7, 6)], {}, "key .* has the width 5, query"),
        ([(2, 4, 5, 6), (2, 2, 7, 6), (2, 2, 8, 6)], {}, "key .* and value .* must have the same"),
        ([(2, 4, 5, 6), (1, 2, 7, 6), (1, 2, 7, 6)], {}, "key .* does not have the samples of"),
        ([(2, 4, 5, 6), (2, 2, 7, 6), (2, 2, 7, 6), (5, 6)], {}, "mask .* does not stretch to"),
        ([(2, 2, 5, 6), (2, 2, 7, 6), (2, 2, 7, 6), (2, 5, 7)], {},
         r"mask float32\[2, 5, 7\] has neither the axes \(B, H, T, S\) nor \(T, S\)"),
        ([(4, 5, 6), (2, 7, 6), (2, 7, 6)], {}, r"query .* has not the four axes \(B, H, T, D\)"),
        ([(2, 4, 5, 6), (2, 2, 7, 6), (2, 2, 7, 6)], {"window": 0}, "window is 0, wanted more"),
        ([(2, 4, 5, 6), (2, 2, 7, 6), (2, 2, 7, 6)], {"lengths": v([1])},
         r"lengths int64\[1\] has another shape than \(2,\)"),
        ([(2, 4, 5, 6), (2, 2, 7, 6), (2, 2, 7, 6)], {"segments": v([[1] * 7] * 2)},
         "segments .* as many as queries, 5"),
    ],
)  # fmt: skip
def test_errors_of_attention(shapes, kw, text):
    with pytest.raises(ValueError, match=f"^attention: {text}"):
        F.attention(*float32(*shapes), **kw)


# ---- with a cache ----


def test_cached_attention_goes_on_like_attention_of_the_whole():
    q, k, x = float32((B, H, T, D), (B, G, T, D), (B, G, T, E))
    with nn.auto_forward():
        want = F.attention(q, k, x, causal=True, window=3, soft_cap=2.0).d
        caches = v(np.full((B, G, 8, D), np.nan), np.float32), v(np.zeros((B, G, 8, E), np.float32))
        got = []
        for first, last in ((0, 3), (3, 4), (4, 5)):
            parts = (v(a.d[:, :, first:last]) for a in (q, k, x))
            got.append(
                F.cached_attention(*parts, *caches, v([first] * B), window=3, soft_cap=2.0).d
            )
        np.testing.assert_allclose(np.concatenate(got, 2), want, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(caches[0].d[:, :, :T], k.d)
        assert np.isnan(caches[0].d[:, :, T:]).all()


def test_rows_of_different_lengths_go_on_in_slots():
    """Row 0 has 3 of 5 new positions, row 1 rests, row 2 goes on at position 2."""
    q, k, x = float32((3, H, T, D), (3, G, T, D), (3, G, T, E))
    before = arrays((4, G, 8, D), (4, G, 8, E))
    with nn.auto_forward():
        for dtype in (np.float32, nn.bfloat16 if hasattr(nn, "bfloat16") else np.float16):
            keys, values = (v(a.astype(dtype)) for a in before)
            old = [a.d.astype(np.float32) for a in (keys, values)]
            y = F.cached_attention(
                q, k, x, keys, values, v([0, 7, 2]), v([3, 0, 5]), v([2, 1, 0])
            ).d
            assert not y[1].any() and not y[0, :, 3:].any()
            for row, slot, first, count in ((0, 2, 0, 3), (2, 0, 2, 5)):
                whole = [
                    np.concatenate([o[slot, :, :first], a.d[row, :, :count]], axis=1)[None]
                    for o, a in zip(old, (k, x), strict=True)
                ]
                want = F.attention(
                    v(q.d[row : row + 1, :, :count]), *map(v, whole), causal=True,
                    causal_offset=first,
                ).d  # fmt: skip
                tolerance = 1e-5 if dtype == np.float32 else 2e-2
                np.testing.assert_allclose(y[row, :, :count], want[0], tolerance, tolerance)
            assert keys.d.dtype == dtype
            np.testing.assert_array_equal(keys.d[1].astype(np.float32), old[0][1])


@pytest.mark.parametrize(
    "rows,text",
    [
        (([0, 7], [2, 2]), "row 1 would hold 9 keys, more than the 8 of key_cache"),
        (([-1, 7], [1, 1]), "row 0 has the position -1, wanted at least 0"),
        (([0, 0], [3, 1]), "row 0 has the count 3, wanted 0 to 2"),
        (([0, 0], [1, 1], [2, 0]), "row 0 has the slot 2, wanted 0 to 1"),
    ],
)
def test_rows_that_caches_cannot_take(rows, text):
    q, k, x, keys, values = float32(
        (2, H, 2, D), (2, G, 2, D), (2, G, 2, E), (2, G, 8, D), (2, G, 8, E)
    )
    old = keys.d.copy()
    with nn.auto_forward(), pytest.raises(ValueError, match=f"cached_attention: {text}"):
        F.cached_attention(q, k, x, keys, values, *map(v, rows))
    np.testing.assert_array_equal(keys.d, old)


@pytest.mark.parametrize(
    "changed,text",
    [
        ({1: (2, 3, 2, D)}, r"key .* has 3 heads, wanted a divisor of the 4 heads of query"),
        ({1: (2, G, 1, D)}, r"key .*, wanted the shape \(2, 2, 2, 6\)"),
        ({2: (2, G, 1, E)}, "value .* does not fit key"),
        ({3: (2, G, 8, 5)}, r"key_cache float32\[2, 2, 8, 5\], wanted \(2, 2, 8, 6\)"),
        ({4: (2, G, 9, E)}, r"value_cache .*, wanted \(2, 2, 8, 3\)"),
        ({3: (3, G, 8, D), 4: (3, G, 8, E)}, "key_cache .* has 3 slots for 2 rows"),
    ],
)
def test_shapes_that_cached_attention_refuses(changed, text):
    shapes = [(2, H, 2, D), (2, G, 2, D), (2, G, 2, E), (2, G, 8, D), (2, G, 8, E)]
    shapes = [changed.get(i, s) for i, s in enumerate(shapes)]
    with pytest.raises(ShapeError, match=f"cached_attention: {text}"):
        F.cached_attention(*float32(*shapes), v([0, 0]))
