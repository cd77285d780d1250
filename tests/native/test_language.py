# SPDX-License-Identifier: Apache-2.0
"""Kernels of language models, on sizes of several blocks, against their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.core.graph.node import capture
from nnl.core.ops.op import OPS
from nnl.graph.plan.plan import Plan
from tests.native.kernels import (
    BF16,
    F16,
    F32,
    assert_close,
    require_library,
    run_native,
    run_numpy,
)

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


# ---- memory ----


def arena_of(gradients: list[Any]) -> int:
    """Bytes that a plan of them takes besides what it reads and gives."""
    edges = [g.edge for g in gradients]
    return Plan(capture(edges), kept={e.key for e in edges}).arena_bytes


def arena_per_token(length: int) -> float:
    shapes = (1, 4, length, 16), (1, 2, length, 16), (1, 2, length, 16)
    q, k, v = (nn.Variable(s, need_grad=True) for s in shapes)
    y = F.attention(q, k, v, causal=True)
    return arena_of(nn.grad([F.sum(y * y)], [q, k, v])) / length


def test_memory_of_attention_grows_with_the_length_and_not_with_its_square() -> None:
    require_library()
    assert arena_per_token(8192) < 1.2 * arena_per_token(1024)


def test_scores_of_many_classes_are_not_in_memory() -> None:
    require_library()
    n, d, v = 512, 8, 60000
    x, w = nn.Variable((n, d), need_grad=True), nn.Variable((v, d), need_grad=True)
    label = nn.Variable.from_numpy_array(np.zeros(n, np.int64))
    y = F.sum(F.linear_cross_entropy(x, w, label))
    assert arena_of(nn.grad([y], [x, w])) < n * v * 4 / 4


# ---- together ----

V, D, H, G, C = 50, 32, 4, 2, 12


def block(x: Any, positions: Any, attend: Any) -> Any:
    """A layer of a decoder: x (B, T, D)."""
    b, t, _ = x.shape
    frequencies = nn.Variable.from_numpy_array(F.rotary_frequencies(D // H).frequencies)
    h = F.rms_normalization(x, PF.get_parameter_or_create("g", (D,)))
    parts = []
    for name, heads in (("q", H), ("k", G), ("v", G)):
        p = PF.affine(h, heads * D // H, base_axis=2, name=name)
        parts.append(F.transpose(F.reshape(p, (b, t, heads, D // H)), (0, 2, 1, 3)))
    for i in range(2):
        parts[i] = F.rotary_embedding(parts[i], positions, frequencies)
    y = F.reshape(F.transpose(attend(*parts), (0, 2, 1, 3)), (b, t, D))
    x = x + PF.affine(y, D, base_axis=2, name="o")
    up = [PF.affine(x, 2 * D, base_axis=2, name=n) for n in ("gate", "up")]
    return x + PF.affine(F.swiglu(*up), D, base_axis=2, name="down")


def causal(q: Any, k: Any, v: Any) -> Any:
    return F.attention(q, k, v, causal=True, window=5, soft_cap=20.0)


@pytest.fixture
def seeded() -> None:
    nn.seed(1)


@pytest.mark.parametrize("dtype", ["float", "bfloat16"])
def test_a_small_decoder_learns_the_same_in_plans_and_step_by_step(
    dtype: str, seeded: None
) -> None:
    require_library()
    tokens = np.random.default_rng(0).integers(0, V, (2, 8))
    losses: dict[bool, list[float]] = {}
    for at_once in (False, True):
        with (
            nn.context_scope(nn.Context([f"cpu:{dtype}"])),
            nn.parameter_scope("", {}),
            nn.auto_forward(at_once),
        ):
            nn.seed(1)
            solver, found = S.Adam(0.01), losses.setdefault(at_once, [])
            for _ in range(8):
                x = PF.embed(nn.Variable.from_numpy_array(tokens[:, :-1]), V, D)
                positions = nn.Variable.from_numpy_array(np.arange(7))
                table = PF.get_parameter_or_create("embed/W", (V, D))
                label = nn.Variable.from_numpy_array(tokens[:, 1:])
                loss = F.mean(F.linear_cross_entropy(block(x, positions, causal), table, label))
                solver.set_parameters(nn.get_parameters(), reset=False, retain_state=True)
                solver.zero_grad()
                if not at_once:
                    loss.forward(clear_no_need_grad=True)
                loss.backward(clear_buffer=True)
                solver.update()
                found.append(float(loss.d))
    tolerance = 1e-4 if dtype == "float" else 3e-2
    np.testing.assert_allclose(losses[False], losses[True], rtol=tolerance)
    assert losses[True][-1] < 0.8 * losses[True][0]


@pytest.mark.parametrize("dtype", ["float", "bfloat16"])
def test_two_programs_over_one_cache_run_without_python(
    dtype: str, tmp_path: Any, seeded: None
) -> None:
    """A text is read in one program, and goes on token by token in another."""
    lib = require_library()
    with nn.context_scope(nn.Context([f"cpu:{dtype}"])):
        kept = np.float32 if dtype == "float" else BF16
        caches = [nn.Variable.from_numpy_array(np.zeros((2, G, C, D // H), kept)) for _ in range(2)]
        programs = {}
        for name, t in (("prefill", 6), ("step", 1)):
            tokens = nn.Variable.from_numpy_array(np.zeros((2, t), np.int64))
            start = nn.Variable.from_numpy_array(np.zeros(2, np.int64))
            steps = nn.Variable.from_numpy_array(np.arange(t))
            at = F.reshape(start, (2, 1)) + F.reshape(steps, (1, t))

            def attend(q: Any, k: Any, v: Any, start: Any = start) -> Any:
                return F.cached_attention(q, k, v, *caches, start, window=5, soft_cap=20.0)

            y = block(PF.embed(tokens, V, D), at, attend)
            programs[name] = ({"y": y}, {"tokens": tokens, "start": start})
        nn.save_program(tmp_path / "decoder.nnlp", programs=programs)
        tokens = np.random.default_rng(0).integers(0, V, (2, C))
        whole = nn.Variable.from_numpy_array(tokens)
        positions = nn.Variable.from_numpy_array(np.arange(C))
        y = block(PF.embed(whole, V, D), positions, causal)
        y.forward()
    file = lib.ModelFile(str(tmp_path / "decoder.nnlp"))
    prefill, step = (lib.Model(file, name) for name in programs)
    start = np.zeros(2, np.int64)
    made = [prefill.run({"tokens": tokens[:, :6].copy(), "start": start})["y"]]
    for i in range(6, C):
        made.append(step.run({"tokens": tokens[:, i : i + 1].copy(), "start": start + i})["y"])
    got = [np.frombuffer(m, y.d.dtype).reshape(2, -1, D) for m in made]
    assert_close(np.concatenate(got, 1), y.d, np.dtype(kept), "y")
    with pytest.raises(ValueError, match="row 0 would hold 13 keys, more than the 12 of key_cache"):
        step.run({"tokens": tokens[:, :1].copy(), "start": start + C})


def test_sizes_of_a_decoder_may_stay_open(tmp_path: Any, seeded: None) -> None:
    def network(tokens: Any) -> Any:
        return block(PF.embed(tokens, V, D), F.arange(0, tokens.shape[1]), causal)

    lib, path = require_library(), tmp_path / "open.nnlp"
    tokens = nn.Variable.from_numpy_array(np.zeros((2, 6), np.int64))
    nn.save_program(path, network, {"tokens": tokens}, open={"tokens": ("b", "t")})
    model = lib.Model(lib.ModelFile(str(path)), "")
    for shape in ((1, 1), (3, 9), (2, 300)):
        given = np.random.default_rng(0).integers(0, V, shape)
        y = network(nn.Variable.from_numpy_array(given))
        y.forward()
        got = np.frombuffer(model.run({"tokens": given})["y"], np.float32).reshape(y.shape)
        assert_close(got, y.d, F32, f"y {shape}")
