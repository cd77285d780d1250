# SPDX-License-Identifier: Apache-2.0
"""Steps are put off only where they repeat themselves; the others compute at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.coexec.policy import watch as watching
from nnl.coexec.policy.watch import Counts, Watch
from nnl.core.interpreters.deferring import Deferring
from nnl.core.settings.context import using
from tests.coexec.steps import variable

OFTEN = 4


@pytest.fixture(autouse=True)
def often(plans_at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at once, as in other tests; and whatever is learnt is paid for."""
    monkeypatch.setattr(watching, "OFTEN", OFTEN)
    monkeypatch.setattr(watching, "EARN", 1e9)


def tree(rng: np.random.Generator, depth: int) -> Any:
    """None for a leaf, else the two halves."""
    if not depth or rng.random() < 0.1:
        return None
    return tree(rng, depth - 1), tree(rng, depth - 1)


def trained(wrap: Callable[..., Any], kinds: list[Any]) -> tuple[list[Any], list[int], Any]:
    """Values of steps through trees, how many of these had computed at once, and the step."""
    nn.clear_parameters()
    x, w, u = variable(2, 3), variable(3, 3, seed=1), variable(3, 3, seed=2)
    w.need_grad = u.need_grad = True
    solver = S.Momentum(0.1)
    solver.set_parameters({"w": w, "u": u})

    def node(t: Any) -> nn.Variable:
        if t is None:
            return F.tanh(F.affine(x, w))
        return F.sigmoid(F.affine(node(t[0]) * node(t[1]), u))

    def step(t: Any, k: int) -> nn.Variable:
        loss = F.mean(node(t) * (0.5 + k))  # the number is another one in every step
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        solver.update()
        return loss

    run, found, left = wrap(step), [], []
    with nn.context_scope(nn.Context(["numpy:float"])), nn.auto_forward():
        for k, t in enumerate(kinds):
            found.append(float(run(t, k).d))
            left.append(run.report().left if hasattr(run, "report") else 0)
    return [*found, w.d.tolist(), u.d.tolist()], left, run


def test_trees_that_never_come_again_compute_at_once_and_others_are_learnt_after_them() -> None:
    rng = np.random.default_rng(0)
    trees = [tree(rng, 5) for _ in range(40)]
    kinds = [*trees, *[trees[0]] * 30, *trees[:10]]
    wanted, _, _ = trained(lambda f: f, kinds)
    found, left, run = trained(nn.coexecute, kinds)
    assert found == wanted
    assert left[39] == 40
    assert left[39 + OFTEN + 4] == left[69]  # put off from then on
    assert left[79] > left[69]  # and left where other trees go on
    assert run.report().plans > 0


@pytest.mark.parametrize("comes_again", [True, False])
def test_learning_takes_a_share_of_the_time_and_less_where_nothing_comes_of_it(
    comes_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "EARN", 0.1)
    monkeypatch.setattr(watching, "TRUST", 100 * watching.LEARN)
    spent, took = [0.0], [0.0]
    steps = nn.coexecution()
    watch, rng = steps._paths.watch, np.random.default_rng(0)
    with nn.context_scope(nn.Context(["numpy:float"])), nn.auto_forward():
        for k in range(400 if comes_again else 1500):
            with steps:
                h = variable(4)
                for i in range(20 + (k % 6 if comes_again else 8)):
                    h = F.tanh(h) if i < 20 or comes_again or rng.random() < 0.5 else F.sin(h)
            spent.append(watch._all)
            took.append(took[-1] + watch.counts.work)
            most = 40 * watching.LEARN + 0.1 * took[-1] + watch._saved
            assert spent[-1] <= most
    if comes_again:
        assert watch._saved > watch._all > 0
    else:
        assert 0 < spent[-1] < 0.5 * 0.1 * took[-1]


def test_steps_that_are_known_are_put_off_though_their_calls_seem_to_take_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So it is where gradients of gradients are put off."""
    monkeypatch.setattr(watching, "EARN", 0.13)
    monkeypatch.setattr(watching, "LOST", 3.0)
    for module in ("paths", "blocks"):  # nothing has a plan
        monkeypatch.setattr(f"nnl.coexec.plans.{module}.runs_before_plan", lambda *what: 1 << 60)
    x, steps, left = variable(2, 3), nn.coexecution(), 0
    with nn.context_scope(nn.Context(["numpy:float"])), nn.auto_forward():
        for k in range(400):
            with steps:
                h = x
                for _ in range(10):
                    h = F.tanh(h)
            left = steps.report().left if k == 300 else left
    assert 0 < steps.report().left == left < 300


def test_the_first_steps_record_nothing() -> None:
    steps = nn.coexecution()
    x = variable(4)
    for k in range(OFTEN + 2):
        with nn.auto_forward(), steps:
            y = F.tanh(F.sin(x))
        assert steps._paths.size == (0 if k < OFTEN + 1 else 2)
    assert steps.report().fallbacks == []
    np.testing.assert_allclose(y.d, np.tanh(np.sin(x.d)), 1e-6)


def test_which_results_are_read_is_part_of_what_a_step_calls() -> None:
    """The same functions in the same order, of other ones of three leaves."""
    rng = np.random.default_rng(0)
    w, steps = variable(3, 3), nn.coexecution()
    w.need_grad = True
    with nn.context_scope(nn.Context(["numpy:float"])), nn.auto_forward():
        for _ in range(60):
            with steps:
                hs = [F.affine(variable(2, 3, seed=k), w) for k in range(6)]
                for i, j in rng.permutation(5 * [*range(6)])[:20].reshape(10, 2):
                    hs[i] = F.concatenate(hs[i], hs[j], axis=0)[:2]
                F.sum(hs[0]).backward()
    assert steps.report().left == 60


def test_the_engine_tells_the_same() -> None:
    told: list[Any] = []

    class InPython(Watch):
        """The engine takes no calls of another class."""

        __slots__ = ()

        def __init__(self) -> None:
            super().__init__()
            self.counts = Counts()

    def of(watch: Any) -> Any:
        c = watch.counts
        return c.calls, c.work, c.often, c.rest, c.known, c.came_often()

    x, w = variable(2, 3), variable(3, 3, seed=1)
    w.need_grad = True
    step = Deferring()
    with using(interpreter=step):
        for watch in (Watch(), InPython()):
            for k in range(6):
                watch.begin(sys._getframe(), lambda: None)
                step.watch = watch
                h = F.affine(x, w)
                for _ in range(k % 3):
                    h = F.tanh(F.concatenate(h, h * 2.0, axis=0))[:2]
                F.sum(h).backward()
                step.watch = None
                watch.active = True
                told.append((of(watch), watch.follows(), watch.credit))
                watch.end_step(False)
    assert told[:6] == told[6:]


def test_a_step_inside_of_a_step_is_refused_from_the_first_one_on() -> None:
    outer, inner = nn.coexecution(), nn.coexecution()
    for k in range(3):  # of which the last ones compute at once
        with nn.auto_forward(), outer:
            F.relu(variable(k + 1))
            with pytest.raises(ValueError, match="a step begins inside of a step"):
                inner.__enter__()
    with inner:
        pass
    assert outer.report().left == 3
