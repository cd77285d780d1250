# SPDX-License-Identifier: Apache-2.0
"""A training step recorded by nnl.compile against the same step run call by call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from tests.solvers.cases import CASES, IDS


def model(seed: int = 0) -> tuple[list[nn.Variable], nn.Variable]:
    rng = np.random.default_rng(seed)
    weights = [
        nn.Variable.from_numpy_array(rng.normal(size=s).astype(np.float32), need_grad=True)
        for s in ((4, 3), (4, 3))
    ]
    return weights, nn.Variable.from_numpy_array(rng.normal(size=(4, 3)).astype(np.float32))


def train(name: str, kw: dict[str, Any], compiled: bool) -> tuple[list[np.ndarray], dict[str, Any]]:
    (a, b), x = model()
    solver = getattr(S, name)(**kw)
    solver.set_parameters({"a": a, "b": b})

    def step(x: nn.Variable) -> nn.Variable:
        y = F.mul2(F.mul2(a, x), b)
        loss = F.sum(F.mul2(y, y))
        loss.forward()
        solver.zero_grad()
        loss.backward()
        solver.scale_grad(0.5)
        solver.clip_grad_by_norm(1.0)
        solver.weight_decay(0.01)
        solver.update()
        return loss

    run = nn.compile(step) if compiled else step
    rng = np.random.default_rng(1)
    for i in range(6):
        x.d = rng.normal(size=(4, 3))
        solver.set_learning_rate(0.1 / (i + 1))
        run(x)
    return [a.d.copy(), b.d.copy()], solver.get_states()


@pytest.mark.parametrize(("name", "kw"), CASES, ids=IDS)
def test_a_compiled_step_gives_the_weights_and_states_of_the_plain_one(
    name: str, kw: dict[str, Any]
) -> None:
    plain, plain_states = train(name, kw, compiled=False)
    compiled, states = train(name, kw, compiled=True)
    np.testing.assert_allclose(compiled, plain, rtol=1e-5, atol=1e-6)
    for key, state in states.items():
        assert state.t == plain_states[key].t == 6
        for n, v in state.pstate.items():
            np.testing.assert_allclose(v.d, plain_states[key].pstate[n].d, rtol=1e-4, atol=1e-6)


def test_what_cannot_be_recorded_says_so() -> None:
    (a, _), x = model()
    solver = S.Sgd()
    solver.set_parameters({"a": a})

    def check(x: nn.Variable) -> nn.Variable:
        solver.check_inf_grad()
        return F.mul2(a, x)

    def hooked(x: nn.Variable) -> nn.Variable:
        solver.update(update_pre_hook=lambda: None)
        return F.mul2(a, x)

    with pytest.raises(NotImplementedError, match="Sgd.check_inf_grad: gradients have no values"):
        nn.compile(check)(x)
    with pytest.raises(NotImplementedError, match="Sgd.update: hooks cannot run inside a function"):
        nn.compile(hooked)(x)
