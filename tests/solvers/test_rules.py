# SPDX-License-Identifier: Apache-2.0
"""The 18 update rules against their formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.solvers as S
from nnl.core.arrays.spec import Spec
from nnl.core.ops.op import OPS
from nnl.solvers.rule import BLOCK
from tests.solvers.cases import CASES, FUSED, IDS, NAMES, RATE, gradients, trajectory

STEPS = 20


def run(
    name: str,
    kw: dict[str, Any],
    w: np.ndarray,
    grads: np.ndarray,
    rates: list[float] | None = None,
    decay: dict[int, float] | None = None,
) -> tuple[list[np.ndarray], S.SolverState]:
    v = nn.Variable.from_numpy_array(w)
    solver = getattr(S, name)(**kw)
    solver.set_parameters({"w": v})
    weights = []
    for i, g in enumerate(grads):
        if rates is not None:
            solver.set_learning_rate(rates[i])
        v.g = g.astype(w.dtype)
        if decay is not None and i in decay:
            solver.weight_decay(decay[i])
        solver.update()
        weights.append(v.d.copy())
    return weights, solver.get_states()["w"]


def double() -> Any:
    return nn.context_scope(nn.Context(["cpu:double"]))


@pytest.mark.parametrize(("name", "kw"), CASES, ids=IDS)
def test_20_steps_follow_the_formula(name: str, kw: dict[str, Any]) -> None:
    w, grads = np.random.default_rng(0).normal(size=(3, 4)), gradients(STEPS, 3, 4)
    with double():
        weights, state = run(name, kw, w, grads)
    wanted, states = trajectory(name, kw, w, grads)
    np.testing.assert_allclose(weights, wanted, rtol=1e-11, atol=1e-13)
    assert state.t == STEPS and set(state.pstate) == set(states)
    for key, value in states.items():
        np.testing.assert_allclose(state.pstate[key].d, value, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("name", "kw"), CASES, ids=IDS)
def test_float32_stays_within_rounding_of_the_formula(name: str, kw: dict[str, Any]) -> None:
    w, grads = np.random.default_rng(0).normal(size=(3, 4)), gradients(STEPS, 3, 4)
    weights, state = run(name, kw, w.astype(np.float32), grads)
    wanted, _ = trajectory(name, kw, w, grads)
    assert weights[-1].dtype == np.float32
    assert all(v.d.dtype == np.float32 for v in state.pstate.values())
    np.testing.assert_allclose(weights, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_arrays_longer_than_a_block_are_updated_whole(name: str) -> None:
    w = np.random.default_rng(0).normal(size=2 * BLOCK + 3)
    grads = gradients(2, w.size)
    with double():
        weights, _ = run(name, {}, w, grads)
    wanted, _ = trajectory(name, {}, w, grads)
    np.testing.assert_allclose(weights, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_acts_from_the_next_update_on(name: str) -> None:
    w, grads = np.random.default_rng(0).normal(size=5), gradients(6, 5)
    rates = [0.1 / (1 + i) for i in range(6)]
    with double():
        weights, _ = run(name, {RATE.get(name, "lr"): rates[0]}, w, grads, rates)
    wanted, _ = trajectory(name, {}, w, grads, rates)
    np.testing.assert_allclose(weights, wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", [*FUSED, "AdaBelief"])
def test_fused_decay_is_used_once_and_then_reverts(name: str) -> None:
    w, grads = np.random.default_rng(0).normal(size=5), gradients(6, 5)
    kw: dict[str, Any] = {"weight_decouple": True} if name == "AdaBelief" else {}
    decay = {0: 0.1, 3: 0.2}
    with double():
        weights, _ = run(name, kw, w, grads, None, decay)
    wanted, _ = trajectory(name, kw, w, grads, None, decay)
    np.testing.assert_allclose(weights, wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in FUSED])
def test_other_decay_is_added_to_the_gradient(name: str) -> None:
    w, g = np.random.default_rng(0).normal(size=5), gradients(1, 5)[0]
    with double():
        weights, _ = run(name, {}, w, g[None], None, {0: 0.3})
    wanted, _ = trajectory(name, {}, w, (g + 0.3 * w)[None])
    np.testing.assert_allclose(weights, wanted, rtol=1e-11)


def test_wd_of_a_half_halves_a_weight_at_any_initial_rate() -> None:
    for solver in (S.AdamW(alpha=1e-5, wd=0.5), S.SgdW(lr=1e-5, wd=0.5)):
        v = nn.Variable.from_numpy_array(np.ones(3, np.float32))
        v.g = np.zeros(3)  # written, so not lazily zero
        solver.set_parameters({"v": v})
        solver.update()
        np.testing.assert_allclose(v.d, 0.5)


@pytest.mark.parametrize("name", NAMES)
def test_a_zero_gradient_that_was_written_is_finite(name: str) -> None:
    weights, _ = run(name, {}, np.array([1.0, 0.0], np.float32), np.zeros((2, 2)))
    assert np.isfinite(weights).all()


@pytest.mark.parametrize("name", NAMES)
def test_empty_and_scalar_parameters_are_updated(name: str) -> None:
    for shape in ((), (0, 3)):
        weights, state = run(name, {}, np.ones(shape, np.float32), np.ones((2, *shape)))
        assert weights[-1].shape == shape and state.t == 2


def test_rmsprop_graves_stays_finite_when_rounding_makes_the_variance_negative() -> None:
    weights, _ = run("RMSpropGraves", {}, np.ones(2, np.float32), np.full((300, 2), 1e4))
    assert np.isfinite(weights).all()


def test_a_parameter_of_half_precision_keeps_its_dtype() -> None:
    w, grads = np.linspace(-1, 1, 5).astype(np.float16), gradients(3, 5)
    weights, state = run("Adam", {"alpha": 0.1}, w, grads)
    wanted, _ = trajectory("Adam", {"alpha": 0.1}, w.astype(np.float64), grads)
    assert weights[-1].dtype == np.float16 and state.pstate["mean"].d.dtype == np.float32
    np.testing.assert_allclose(weights[-1], wanted[-1], atol=3e-3)


def test_an_array_that_is_not_contiguous_is_updated_in_place() -> None:
    whole = np.ones((BLOCK, 4), np.float32)
    spec = Spec.of((BLOCK, 2))
    w = nn.NdArray.holding(spec, "host", whole[:, 1:3])
    g, t, lr = (nn.NdArray.from_numpy_array(np.array(x)) for x in (np.ones(spec.shape), 0, 0.5))
    OPS["sgd_update"](w, g, t, lr)
    np.testing.assert_array_equal(whole, [[1, 0.5, 0.5, 1]] * BLOCK)


@pytest.mark.parametrize(
    "name",
    sorted(
        n
        for n in OPS
        if OPS[n].__module__.startswith("nnl.solv")
        and OPS[n].__module__.rpartition(".")[2] not in ("scaled", "joined", "split")
    ),
)
def test_every_rule_has_docstring_cost_and_samples(name: str) -> None:
    op = OPS[name]
    assert op.__doc__
    for sample in op.attrs_class.samples(np.random.default_rng(0)):
        arrays = [None if x is None else nn.NdArray.from_numpy_array(x) for x in sample.inputs]
        before = [None if a is None else a.data.copy() for a in arrays]
        attrs = op.attrs(**sample.attrs)
        cost = attrs.cost(*[None if a is None else a.spec for a in arrays])
        assert cost.flops >= 0 and cost.bytes >= 0
        y = op(*arrays, **sample.attrs)
        assert y.shape == arrays[0].shape and np.isfinite(y.data).all()
        for i, (a, old) in enumerate(zip(arrays, before, strict=True)):
            if a is not None and i not in op.written(attrs):
                np.testing.assert_array_equal(a.data, old)


def test_a_state_of_another_shape_is_named() -> None:
    w, m, t, lr = (nn.NdArray(s) for s in ((2, 3), (3, 2), (), ()))
    with pytest.raises(ValueError, match=r"momentum_update: m is float32\[3, 2\], wanted the"):
        OPS["momentum_update"](w, w, m, t, lr)
