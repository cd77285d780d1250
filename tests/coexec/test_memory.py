# SPDX-License-Identifier: Apache-2.0
"""Memory that is shared, held, saved or written by functions, in co-executed steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from tests.coexec.steps import variable

pytestmark = pytest.mark.usefixtures("dynamic")


def test_a_view_of_memory_that_somebody_holds_follows_it() -> None:
    def program() -> Any:
        x = variable(2, 3)
        held = x.d

        def step() -> list[np.ndarray]:
            y = F.reshape(x, (3, 2))
            before = y * 2
            held[0, 0] += 1
            return [y.d.copy(), before.d, (y * 2).d, (F.reshape(x, (3, 2)) * 1).d]

        return step

    eager, step = program(), nn.coexecute(program())
    for _ in range(3):
        for wanted, found in zip(eager(), step(), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_gradients_read_what_is_in_held_memory_then() -> None:
    def program() -> Any:
        x, w, held = variable(3), variable(3), []
        w.need_grad = True

        def step(k: int) -> np.ndarray:
            if k == 4:
                held.append(x.d)
            loss = F.sum(x * w)
            for view in held:  # after its value was taken, before the gradient's
                view += 1
            w.grad.zero()
            loss.backward()
            return w.g.copy()

        return step

    eager, step = program(), nn.coexecute(program())
    for k in range(7):
        np.testing.assert_array_equal(step(k), eager(k))


def test_memory_of_a_result_lives_on_in_another_variable() -> None:
    out = nn.Variable((3,))

    @nn.coexecute
    def step(x: nn.Variable) -> None:
        out.data = F.exp(x).data  # nobody has the result itself any more

    for k in range(4):
        step(variable(3, seed=k))
        np.testing.assert_allclose(out.d, np.exp(variable(3, seed=k).d), 1e-6)


def test_parameters_that_a_step_saves_are_those_after_its_update(tmp_path: Path) -> None:
    w = variable(3)
    w.need_grad = True
    solver = S.Sgd(0.5)
    solver.set_parameters({"w": w})

    @nn.coexecute
    def step(k: int) -> None:
        solver.zero_grad()
        F.sum(w * w).backward()
        solver.update()  # by half of twice the value
        nn.save_parameters(tmp_path / f"{k}.h5", {"w": w})

    for k in range(4):
        w.d = [1.0, 2, k]
        step(k)
        with nn.parameter_scope(f"saved{k}"):
            nn.load_parameters(tmp_path / f"{k}.h5")
            np.testing.assert_array_equal(nn.get_parameters()["w"].d, 0)


@pytest.mark.parametrize("zeroed", [True, False])
def test_a_gradient_that_a_function_writes_is_not_zero_any_more(zeroed: bool) -> None:
    def program() -> Any:
        w = variable(3)
        w.need_grad = True
        w.grad.zero()
        g = nn.Variable((3,))
        g.data = w.grad

        def step() -> Any:
            if zeroed:
                w.grad.zero()
            before = g * 1
            F.assign(g, w * 0.5)
            F.sum(w * w).backward()
            return before.d.copy(), w.g.copy()

        return step

    eager, step = program(), nn.coexecute(program())
    for _ in range(4):
        for wanted, found in zip(eager(), step(), strict=True):
            np.testing.assert_allclose(found, wanted, 1e-6)


def test_results_that_a_plan_computes_once_are_several_arrays() -> None:
    step = nn.coexecute(lambda x: (F.exp(x), F.exp(x), F.constant(2.0, (3,)) * 3, x * 2))
    for k in range(5):
        x = variable(3, seed=k)
        first, second, six, double = step(x)
        first.d[...] = 0  # as programs may do with results
        np.testing.assert_allclose(second.d, np.exp(x.d), 1e-6)
        np.testing.assert_array_equal(six.d, 6)
        six.d[...] = 0
        double.d[...] = 0
        np.testing.assert_array_equal(x.d, variable(3, seed=k).d)
