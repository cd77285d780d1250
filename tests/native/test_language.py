# SPDX-License-Identifier: Apache-2.0
"""Kernels of language models, on sizes of several blocks, against their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnl.core.op import OPS
from tests.native.kernels import BF16, F16, F32, assert_close, run_native, run_numpy

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def backward_of_loss(n: int, d: int, v: int, cap: float) -> list[Any]:
    x, w, gy = normal(n, d), normal(v, d) / 4, normal(n)
    label = RNG.integers(0, v, n)
    label[::5] = -100
    s = (x @ w.T).astype(np.float64)
    s = cap * np.tanh(s / cap) if cap else s
    lse = np.log(np.exp(s).sum(1)).astype(np.float32)
    return [gy, x, w, label, lse, normal(n) if cap else None]


FREQUENCIES = np.float32(10000.0) ** -np.linspace(0, 1, 20, dtype=np.float32)
INDEX = RNG.integers(0, 5, (150, 2))
CASES: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("rms_normalization", {"axes": (2,), "gamma_offset": 1.0}, [normal(20, 7, 203), normal(203)]),
    ("rms_normalization", {"axes": (1, 2)}, [normal(30, 5, 33), None]),
    ("rms_normalization_backward", {"axes": (2,), "gamma_offset": 1.0},
     [normal(20, 7, 203), normal(20, 7, 203), normal(203)]),
    ("rms_normalization_backward", {"axes": (1, 2), "eps": 1e-2},
     [normal(30, 5, 33), normal(30, 5, 33), normal(1, 5, 33)]),
    ("rotary_embedding", {"axis": 2}, [normal(2, 3, 50, 40), np.arange(7, 57), FREQUENCIES]),
    ("rotary_embedding", {"axis": 1, "interleaved": True, "factor": 1.2, "inverse": True},
     [normal(2, 50, 3, 45), RNG.integers(0, 1 << 21, (2, 50)), FREQUENCIES]),
    ("linear_cross_entropy", {"soft_cap": 3.0},
     [normal(90, 70), normal(700, 70) / 4, RNG.integers(0, 700, 90)]),
    ("linear_cross_entropy", {"ignore_index": 4}, [normal(1, 70), normal(700, 70), np.array([4])]),
    ("linear_cross_entropy", {},
     [normal(8200, 8), normal(1100, 8), RNG.integers(0, 1100, 8200)]),
    ("linear_cross_entropy_backward", {}, backward_of_loss(8200, 8, 1100, 0.0)),
    ("linear_cross_entropy_backward", {"soft_cap": 3.0}, backward_of_loss(90, 70, 700, 3.0)),
    ("expert_product", {}, [normal(150, 40), normal(6, 40, 1111), INDEX]),
    ("expert_product", {"transposed": True}, [normal(150, 2, 40), normal(6, 77, 40), INDEX]),
    ("expert_product", {}, [normal(2, 41), normal(6, 41, 1111), INDEX[:2]]),
    ("expert_product", {"transposed": True}, [normal(2, 41), normal(6, 700, 41), INDEX[:2]]),
    ("expert_weight", {"experts": 6}, [normal(150, 40), normal(150, 2, 77), INDEX]),
    ("expert_weight", {"experts": 6, "transposed": True},
     [normal(150, 2, 40), normal(150, 2, 77), INDEX]),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1]}")
def test_kernels_equal_their_definitions(case: Any, dtype: np.dtype) -> None:
    name, given, inputs = case
    op = OPS[name]
    attrs = op.attrs(**given)
    kept = {op.inputs.index(n) for n in ("frequencies", "lse") if n in op.inputs}
    arrays = [
        x if x is None or x.dtype != np.float32 or i in kept else x.astype(dtype)
        for i, x in enumerate(inputs)
    ]
    specs, want = run_numpy(op, attrs, arrays)
    specs = [s.with_dtype(F32) if i in op.wide else s for i, s in enumerate(specs)]
    got = run_native(op, attrs, arrays, specs)
    assert got is not None, f"{name} declines"
    for g, w in zip(got, want, strict=True):
        assert_close(g, w, dtype, name)


def test_multinomial_draws_what_its_definition_draws() -> None:
    op = OPS["multinomial"]
    weights = np.maximum(normal(9, 300), 0)
    for kw in ({"count": 7}, {"count": 20, "replace": False}):
        attrs = op.attrs(**kw)
        states = [np.array([5, 3], np.uint64) for _ in range(2)]
        specs, want = run_numpy(op, attrs, [weights, states[0]])
        got = run_native(op, attrs, [weights, states[1]], specs)
        assert got is not None
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_array_equal(*states)
