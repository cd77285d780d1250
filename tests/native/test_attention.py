# SPDX-License-Identifier: Apache-2.0
"""The attention kernels against the same formula in float64, and their gradient against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.native.direct import call, make
from tests.native.kernels import BF16, F16, F32, TOLERANCE, assert_close


def attend(q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool, offset: int = 0) -> Any:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    repeat = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, repeat, 1), np.repeat(v, repeat, 1)
    scores = scale * (q @ k.swapaxes(-1, -2))
    if mask is not None:
        scores = scores + mask.astype(np.float64)
    if causal:
        seen = np.tri(q.shape[2], k.shape[2], offset, dtype=bool)
        scores = np.where(seen, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        top = scores.max(-1, keepdims=True)
        p = np.exp(scores - top)
        total = p.sum(-1, keepdims=True)
        return (p / total) @ v, (top + np.log(total))[..., 0]


CASES = [
    # batch, heads, key heads, L, S, d, e, mask shape, causal
    (1, 1, 1, 1, 1, 1, 1, None, False),
    (2, 4, 4, 1, 700, 64, 48, (2, 1, 1, 700), False),
    (2, 4, 2, 3, 301, 33, 17, None, True),
    (2, 3, 3, 7, 5, 4, 6, (2, 1, 7, 5), False),
    (2, 2, 1, 50, 70, 16, 24, (1, 2, 1, 70), False),
    (1, 4, 2, 49, 300, 33, 17, (2, 1, 49, 1)[1:], False),
    (2, 2, 2, 100, 100, 64, 64, None, True),
    (1, 2, 2, 130, 600, 20, 20, (130, 600), True),
    (3, 12, 12, 128, 128, 64, 64, (3, 1, 1, 128), False),
]


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_equals_its_formula(case: Any, dtype: np.dtype) -> None:
    b, h, kh, n, s, d, e, mask_shape, causal = case
    rng = np.random.default_rng(1)
    q, k, v = (
        rng.normal(size=x).astype(dtype) for x in ((b, h, n, d), (b, kh, s, d), (b, kh, s, e))
    )
    mask = None if mask_shape is None else rng.normal(size=mask_shape).astype(F32)
    scale = d**-0.5
    want, want_lse = attend(q, k, v, mask, scale, causal)
    attrs = {"scale": scale, "causal": causal}
    y, lse = call("attention", attrs, [q, k, v, mask], ((b, h, n, e), dtype), ((b, h, n), F32))
    assert_close(y, want, dtype, "y")
    assert_close(lse, want_lse, F32, "lse")
    turned = np.ascontiguousarray(k.swapaxes(-1, -2))
    attrs["transpose_k"] = True
    again = call("attention", attrs, [q, turned, v, mask], ((b, h, n, e), dtype))
    assert_close(again, want, dtype, "y from transposed k")


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("case", [c for c in CASES if c[1] == c[2]], ids=str)
def test_attention_backward_equals_pytorch(case: Any, turned: bool, dtype: np.dtype) -> None:
    torch = pytest.importorskip("torch")
    b, h, _, n, s, d, e, mask_shape, causal = case
    rng = np.random.default_rng(2)
    arrays = [
        rng.normal(size=x).astype(dtype)
        for x in ((b, h, n, e), (b, h, n, d), (b, h, s, d), (b, h, s, e))
    ]
    mask = None if mask_shape is None else rng.normal(size=mask_shape).astype(F32)
    scale = d**-0.5
    attrs: dict[str, Any] = {"scale": scale, "causal": causal}
    gy, q, k, v = arrays
    y, lse = call("attention", attrs, [q, k, v, mask], (gy.shape, dtype), ((b, h, n), F32))
    tq, tk, tv = (torch.tensor(x.astype(np.float64), requires_grad=True) for x in (q, k, v))
    scores = scale * (tq @ tk.transpose(-1, -2))
    if mask is not None:
        scores = scores + torch.tensor(mask.astype(np.float64))
    if causal:
        scores = scores.masked_fill(~torch.ones(n, s, dtype=torch.bool).tril(), float("-inf"))
    (scores.softmax(-1) @ tv).backward(torch.tensor(gy.astype(np.float64)))
    given = np.ascontiguousarray(k.swapaxes(-1, -2)) if turned else k
    attrs["transpose_k"] = turned
    gs = call(
        "attention_backward",
        attrs,
        [gy, q, given, v, y, lse, mask],
        *((x.shape, dtype) for x in (q, given, v)),
    )
    for name, g, t in zip("qkv", gs, (tq, tk, tv), strict=True):
        want = t.grad.numpy()
        got = g.swapaxes(-1, -2) if name == "k" and turned else g
        # gradients are small sums of large terms; relative to the largest of them
        scale_of = max(1.0, float(np.abs(want).max()))
        error = np.abs(got.astype(np.float64) - want).max() / scale_of
        assert error <= TOLERANCE[dtype], f"g{name}: {error:.2g}"


def test_later_queries_see_what_came_before_with_an_offset() -> None:
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=(1, 2, n, 8)).astype(F32) for n in (3, 9, 9))
    want, _ = attend(q, k, v, None, 0.3, True, 6)
    attrs = {"scale": 0.3, "causal": True, "causal_offset": 6}
    assert_close(call("attention", attrs, [q, k, v], (q.shape, F32)), want, F32, "y")


def test_a_query_that_sees_no_key_gives_nan_and_others_are_right() -> None:
    rng = np.random.default_rng(4)
    q, k, v = (rng.normal(size=(1, 1, n, 8)).astype(F32) for n in (5, 300, 300))
    mask = np.zeros((5, 300), F32)
    mask[1] = -np.inf
    mask[2, :280] = -np.inf
    want, _ = attend(q, k, v, mask, 1.0, False)
    y = call("attention", {"scale": 1.0}, [q, k, v, mask], (q.shape, F32))
    assert np.isnan(y[0, 0, 1]).all()
    assert_close(y, want, F32, "y")


def test_axes_of_size_zero() -> None:
    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, F32)

    for n, s in ((0, 3), (3, 0)):
        ins = [zeros(2, 2, n, 4), zeros(2, 2, s, 4), zeros(2, 2, s, 4)]
        y = call("attention", {"scale": 1.0}, ins, ((2, 2, n, 4), F32))
        assert y.shape == (2, 2, n, 4) and np.isnan(y).all()


def test_rank_3_is_one_axis_of_samples() -> None:
    rng = np.random.default_rng(5)
    q, k, v = (rng.normal(size=(6, n, 8)).astype(F32) for n in (5, 7, 7))
    mask = rng.normal(size=(6, 1, 7)).astype(F32)
    want, _ = attend(q[:, None], k[:, None], v[:, None], mask[:, None], 0.5, False)
    got = call("attention", {"scale": 0.5}, [q, k, v, mask], (q.shape, F32))
    assert_close(got, want[:, 0], F32, "y")


def test_a_mask_of_three_axes_has_none_of_heads() -> None:
    """Also where there are as many heads as samples."""
    rng = np.random.default_rng(6)
    q, k, v = (rng.normal(size=(2, 2, n, 8)).astype(F32) for n in (5, 7, 7))
    mask = rng.normal(size=(2, 5, 7)).astype(F32)
    want, _ = attend(q, k, v, mask[:, None], 0.5, False)
    assert_close(call("attention", {"scale": 0.5}, [q, k, v, mask], (q.shape, F32)), want, F32, "y")


def test_masks_that_do_not_fit_are_declined() -> None:
    from nnl.core.arrays.spec import Spec

    x = np.zeros((2, 2, 3, 4), F32)
    bad = np.zeros((2, 3), F32)
    assert make("attention", {"scale": 1.0}, [x, x, x, bad], [Spec.of(x.shape, F32)]) is None


SIGHTS = {
    # heads, heads of keys, queries, keys and what is seen
    "grouped": (6, 2, 130, 130, {"causal": True}),
    "window": (4, 1, 100, 700, {"causal": True, "causal_offset": 600, "window": 300}),
    "both sides": (2, 2, 300, 300, {"window": 20}),
    "one token": (8, 2, 1, 600, {"causal": True, "offsets": [599, 31], "soft_cap": 3.0}),
    "one of many": (8, 8, 1, 300, {"causal": True, "offsets": [0, 299], "window": 280}),
    "a few tokens": (8, 1, 3, 520, {"lengths": [520, 257], "soft_cap": 1.5}),
    "lengths": (4, 2, 60, 520, {"lengths": [3, 300], "offsets": [100, 0], "causal": True}),
    "nothing": (2, 1, 70, 70, {"causal": True, "causal_offset": -60, "lengths": [70, 0]}),
    "texts": (2, 1, 300, 300, {"causal": True, "segments": True}),
}


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("name", SIGHTS)
def test_what_queries_see_equals_pytorch(name: str, dtype: np.dtype) -> None:
    torch = pytest.importorskip("torch")
    heads, groups, n, s, kw = SIGHTS[name]
    rng = np.random.default_rng(7)
    b, d, e = 2, 20, 33
    shapes = (b, heads, n, d), (b, groups, s, d), (b, groups, s, e), (b, heads, n, e)
    q, k, v, gy = (rng.normal(size=x).astype(dtype) for x in shapes)
    whole = {x: np.array(kw[x]) if x in kw else None for x in ("lengths", "offsets", "segments")}
    if "segments" in kw:
        whole["segments"] = np.sort(rng.integers(0, 5, (b, s)), axis=1)
    attrs = {x: a for x, a in kw.items() if x not in whole} | {"scale": 0.3}
    at = np.arange(n)[None, :, None] + attrs.get("causal_offset", 0)
    if whole["offsets"] is not None:
        at = at + whole["offsets"][:, None, None]
    j = np.arange(s)
    seen = np.ones((b, n, s), bool)
    if attrs.get("causal"):
        seen &= j <= at
    if attrs.get("window"):
        seen &= abs(at - j) < attrs["window"]
    if whole["lengths"] is not None:
        seen &= j < whole["lengths"][:, None, None]
    if whole["segments"] is not None:
        seen &= whole["segments"][:, :, None] == whole["segments"][:, None, :]
    ts = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in (q, k, v)]
    scores = 0.3 * ts[0] @ ts[1].repeat_interleave(heads // groups, 1).mT
    if cap := attrs.get("soft_cap"):
        scores = cap * torch.tanh(scores / cap)
    hidden, some = torch.tensor(seen)[:, None], torch.tensor(seen.any(-1))[:, None, :, None]
    weights = torch.where(hidden | ~some, scores, -torch.inf).softmax(-1)
    want = torch.where(some, weights @ ts[2].repeat_interleave(heads // groups, 1), 0.0)
    want.backward(torch.tensor(gy.astype(np.float64)))
    given = list(whole.values())
    y, lse = call(
        "attention", attrs, [q, k, v, None, *given], (gy.shape, dtype), (gy.shape[:-1], F32)
    )
    assert_close(y, want.detach().numpy(), dtype, "y")
    gs = call(
        "attention_backward", attrs, [gy, q, k, v, y, lse, None, *given, None],
        *((x.shape, dtype) for x in (q, k, v)),
    )  # fmt: skip
    for letter, g, t in zip("qkv", gs, ts, strict=True):
        scale = max(1.0, float(t.grad.abs().max()))
        error = np.abs(g.astype(np.float64) - t.grad.numpy()).max() / scale
        assert error <= TOLERANCE[dtype], f"g{letter}: {error:.2g}"
