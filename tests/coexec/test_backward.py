# SPDX-License-Identifier: Apache-2.0
"""Backward passes and what solvers do to gradients, in co-executed steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.graph.execution.eager import backward_now
from tests.coexec.steps import Trainer, same, variable

pytestmark = pytest.mark.usefixtures("dynamic")


def test_changing_gradients_does_not_cut_a_step() -> None:
    def train(wrap: Any) -> tuple[Any, list[Any]]:
        trainer, seen = Trainer(S.Momentum(0.1)), []

        def f(x: nn.Variable, t: nn.Variable) -> None:
            loss = F.mean(F.softmax_cross_entropy(trainer.net(x), t))
            solver = trainer.solver
            if not solver.get_parameters():
                solver.set_parameters(nn.get_parameters())
            solver.zero_grad()
            loss.backward(clear_buffer=True)
            solver.weight_decay(0.1)
            solver.clip_grad_by_norm(0.05)
            solver.update()

        step = wrap(f)
        t = nn.Variable.from_numpy_array(np.zeros((4, 1), np.int64))
        for k in range(6):
            step(variable(4, 5, seed=k), t)
            held = [v.g for v in nn.get_parameters().values()]  # into the next step
            seen += [g.copy() for g in held]
        return step, [*seen, *[v.d.copy() for v in nn.get_parameters().values()]]

    _, wanted = train(same)
    step, found = train(nn.coexecute)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    assert step.report().segments == 6


def test_a_value_read_before_backward_costs_no_rules(monkeypatch: Any) -> None:
    passes = []

    def counted(*args: Any, **kw: Any) -> None:
        passes.append(1)
        backward_now(*args, **kw)

    monkeypatch.setattr("nnl.coexec.deferring.backward.backward_now", counted)

    def train(wrap: Any) -> list[Any]:
        trainer, seen = Trainer(S.Momentum(0.1), norm=True), []
        solver = trainer.solver

        def f(x: nn.Variable, t: nn.Variable) -> None:
            y = trainer.net(x)
            if k % 3 == 2:
                y = F.tanh(y)
            loss = F.mean(F.softmax_cross_entropy(y, t))
            seen.append(float(loss.d))
            if not solver.get_parameters():
                solver.set_parameters(nn.get_parameters())
            solver.zero_grad()
            loss.backward(clear_buffer=True)
            solver.update()

        step = wrap(f)
        t = nn.Variable.from_numpy_array(np.zeros((4, 1), np.int64))
        for k in range(20):
            step(variable(4, 5, seed=k), t)
        return [*seen, *[v.d.copy() for v in nn.get_parameters(grad_only=False).values()]]

    with nn.context_scope(nn.Context(["numpy:float"])):
        found, wanted = train(nn.coexecute), train(same)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(passes) == 2  # one for each way


def test_gradients_of_intermediate_results_may_be_the_start_gradient() -> None:
    steps = nn.coexecution()
    x = variable(3)
    x.need_grad = True
    for k in range(4):
        x.grad.zero()
        with steps:
            h = F.tanh(x)
            y = h + 1
            z = y + h
            y.backward()
            z.backward()
        assert h.g.tolist() == [2, 2, 2] and y.g.tolist() == [1, 1, 1], k
        h.grad.data[...] = 7  # nobody else has it
        np.testing.assert_allclose(x.g, 3 * (1 - np.tanh(x.d) ** 2), 1e-5)


def test_a_gradient_that_was_zeroed_before_the_step_ran_stays_zero() -> None:
    w = variable(3)
    w.need_grad = True
    steps = nn.coexecution()
    for _ in range(3):
        with steps:
            y = w * 2
            F.sum(y * y).backward()
            leaf = y.unlinked(need_grad=True)  # its gradient is the array of y's
            F.sum(leaf * 3).backward()
            leaf.grad.zero()
        np.testing.assert_array_equal(leaf.g, 0)
        np.testing.assert_allclose(w.g, 8 * w.d, 1e-5)
        w.grad.zero()


def test_gradients_of_gradients() -> None:
    x = variable(3)
    x.need_grad = True

    def step() -> nn.Variable:
        (g,) = nn.grad([F.sum(x**3.0)], [x])
        x.grad.zero()
        F.sum(g * g).backward()
        return g

    co = nn.coexecute(step)
    for _ in range(4):
        np.testing.assert_allclose(co().d, 3 * x.d**2, 1e-5)
        np.testing.assert_allclose(x.g, 36 * x.d**3, 1e-4)


@pytest.mark.parametrize("how", ["writes", "zeros", "shares"])
def test_gradients_read_what_is_in_an_array_when_they_are_computed(how: str) -> None:
    """As in dynamic mode, which keeps the array itself for them."""
    x, w = variable(2, 3), variable(2, 3, seed=1)
    w.need_grad = True
    values = x.d.copy()

    @nn.coexecute
    def step(changes: bool) -> nn.Variable:
        x.d = values
        y = F.sum(x * w)
        w.grad.zero()
        if changes and how == "writes":
            x.d = 0.5
        elif changes and how == "zeros":
            x.data.zero()
        elif changes:
            x.data = nn.NdArray.from_numpy_array(np.full((2, 3), 0.25, np.float32))
        y.backward(clear_buffer=True)
        return y

    wanted = {"writes": 0.5, "zeros": 0.0, "shares": 0.25}[how]
    with nn.auto_forward():
        for k in range(12):
            y = step(k in (5, 6, 9))
            np.testing.assert_allclose(y.d, np.sum(values * w.d), 1e-5)
            np.testing.assert_array_equal(w.g, wanted if k in (5, 6, 9) else values)


def test_a_step_may_read_the_gradient_that_another_one_computes() -> None:
    a, b = variable(2, 3), variable(2, 3, seed=1)
    a.need_grad = b.need_grad = True

    @nn.coexecute
    def step(reads: nn.Variable, learns: nn.Variable) -> nn.NdArray:
        read = reads.grad * 2.0
        learns.grad.zero()
        F.sum(learns * learns).backward(clear_buffer=True)
        return read

    with nn.auto_forward():
        for v in (a, b):
            v.grad.fill(0.5)
        found = step(a, b).data.copy()
        np.testing.assert_array_equal(found, 1.0)
        for k in range(8):
            reads, learns = (a, b) if k % 2 else (b, a)
            np.testing.assert_allclose(step(reads, learns).data, 4 * reads.d, 1e-6)
            np.testing.assert_allclose(learns.g, 2 * learns.d, 1e-6)
