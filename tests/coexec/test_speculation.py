# SPDX-License-Identifier: Apache-2.0
"""Steps that run before Python has made their calls: nothing but the time tells."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.coexec.deferring.running import Running
from nnl.coexec.deferring.speculation import Speculation
from tests.coexec.random_programs import outcome
from tests.coexec.schedules import Schedule, plain, speculating, use
from tests.coexec.steps import same, variable


@pytest.fixture
def eager_to_try(monkeypatch: Any) -> None:
    """What was so once is expected, however often that was wrong."""
    monkeypatch.setattr("nnl.coexec.plans.expectations.TRUST", 1)
    monkeypatch.setattr("nnl.coexec.plans.expectations.MOST_REST", 0)


class Counted:
    """Wraps steps, and adds up what their reports say."""

    def __init__(self) -> None:
        self.reports: list[Any] = []

    def __call__(self, f: Any) -> Any:
        step = speculating(f)
        self.reports.append(step.report())  # type: ignore[attr-defined]
        return step

    def total(self, name: str) -> int:
        return sum(getattr(r, name) for r in self.reports)


# ---- random programs under random schedules ----


def check(first: int, n: int, ways: str, context: str, reference: Any, monkeypatch: Any) -> Counted:
    schedule, counted = Schedule(first, ways), Counted()
    use(schedule, monkeypatch)
    for seed in range(first, first + n):
        wanted = outcome(seed, 9, reference, context)
        found = outcome(seed, 9, counted, context)
        assert len(found) == len(wanted)
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            np.testing.assert_array_equal(a, b, f"program {seed}, value {i}")
        assert Speculation.now is None and not Running.free.locked()
    return counted


@pytest.mark.parametrize("ways", ["early", "late", "early late thread"])
def test_random_programs_are_equal_bit_by_bit_with_numpy(
    ways: str, eager_to_try: None, monkeypatch: Any
) -> None:
    counted = check(0, 25, ways, "numpy:float", same, monkeypatch)
    assert counted.total("speculated") > 60 and counted.total("cancelled") > 15


@pytest.mark.parametrize("ways", ["early", "late", "early late thread"])
def test_random_programs_are_what_they_are_without_it(
    ways: str, eager_to_try: None, monkeypatch: Any
) -> None:
    counted = check(100, 25, ways, "cpu:float", plain, monkeypatch)
    assert counted.total("speculated") > 60 and counted.total("cancelled") > 15


def test_random_programs_are_what_they_are_without_it_where_bits_are_reproducible(
    eager_to_try: None, monkeypatch: Any
) -> None:
    monkeypatch.setitem(speculating.keywords, "reproducible", True)
    reference = functools.partial(plain, reproducible=True)
    counted = check(200, 20, "early late thread", "cpu:float", reference, monkeypatch)
    assert counted.total("speculated") > 50 and counted.total("cancelled") > 10


@pytest.mark.long
@pytest.mark.parametrize("context", ["numpy:float", "cpu:float"])
@pytest.mark.parametrize("first", range(1000, 6000, 500))
def test_many_random_programs_are_equal(
    first: int, context: str, eager_to_try: None, monkeypatch: Any
) -> None:
    reference = same if context == "numpy:float" else plain
    check(first, 500, "early late thread", context, reference, monkeypatch)


@pytest.mark.parametrize("seed", range(6))
def test_a_step_that_goes_on_behind_what_was_expected_loses_no_update(
    seed: int, eager_to_try: None, monkeypatch: Any
) -> None:
    """Its run was stopped where a new call came, and taken for a whole one."""
    use(Schedule(seed, "late"), monkeypatch)
    x, *weights = (variable(2, 3) for _ in range(3))
    for v in weights:
        v.need_grad, v.d = True, np.full((2, 3), 1000.0)
    w, u = weights
    x.d = 1
    solver = S.Sgd(1.0)
    solver.set_parameters({"w": w, "u": u})
    kept: list[Any] = []

    @speculating
    def step() -> None:
        loss = F.sum(x * w)
        solver.zero_grad()
        loss.backward()
        np.testing.assert_array_equal(w.g, 1)
        solver.update()
        kept[:] = [F.broadcast(F.reshape(loss, (1, 1)), (2, 3))]
        u.data -= 0.1 * u.data

    with nn.auto_forward():
        for _ in range(9):
            step()
    np.testing.assert_array_equal(w.d, 1000 - 9)


# ---- other ways, at every position ----


class Stop(Exception):
    """What a program raises in the middle of a step."""


class Disturbed:
    """Training with dropout, batch normalization and Adam; in some steps one line is another.

    Attributes:
        seen: What it has read.
    """

    LINES = 10

    def __init__(self, wrap: Any, disturb: Callable[[Disturbed], None], at: int) -> None:
        nn.clear_parameters()
        nn.seed(5)
        self.disturb, self.at = disturb, at
        self.solver, self.seen, self.kept = S.Adam(0.05), list[Any](), list[Any]()
        self.step = wrap(self._step)

    def line(self, h: nn.Variable) -> nn.Variable:
        self.lines += 1
        if self.k in (6, 9) and self.lines == self.at:
            self.h = h
            self.disturb(self)
        return h

    def _step(self, x: nn.Variable, t: nn.Variable) -> nn.Variable:
        self.lines, self.p, self.batch_stat, self.other, self.x = 0, 0.3, True, False, x
        h = self.line(PF.affine(x, 6, with_bias=False, name="a"))
        h = self.line(PF.batch_normalization(h, batch_stat=self.batch_stat, name="n"))
        h = self.line(F.relu(h))
        g = self.line(F.dropout(h, self.p))
        y = self.line(PF.affine(h if self.other else g, 3, name="b"))
        loss = self.line(F.mean(F.softmax_cross_entropy(y, t)))
        if not self.solver.get_parameters():
            self.solver.set_parameters(nn.get_parameters())
        self.solver.zero_grad()
        self.line(loss)
        loss.backward(clear_buffer=True)
        self.line(loss)
        self.solver.update()
        self.line(loss)
        self.kept = [*self.kept[-1:], self.line(g * 2)]
        return loss

    def run(self, steps: int) -> list[Any]:
        for self.k in range(steps):
            t = nn.Variable.from_numpy_array(np.arange(6).reshape(6, 1) % 3)
            try:
                self.seen.append(self.step(variable(6, 5, seed=self.k), t).d.copy())
            except (Stop, KeyboardInterrupt) as e:
                self.seen.append(np.array(len(str(e))))
        states = [v for s in self.solver.get_states().values() for v in s.pstate.values()]
        parameters = nn.get_parameters(grad_only=False).values()
        every = [*parameters, *states, *self.kept, F.rand(shape=(2,))]
        return [*self.seen, *[np.array(v.d) for v in every]]

    def w(self) -> nn.Variable:
        return nn.get_parameters()["b/affine/W"]

    def state(self) -> nn.Variable:
        return next(iter(self.solver.get_states()["a/affine/W"].pstate.values()))

    def mean(self) -> nn.Variable:
        return nn.get_parameters(grad_only=False)["n/bn/mean"]


def stop(d: Disturbed) -> None:
    raise Stop("in the middle")


def interrupt(d: Disturbed) -> None:
    raise KeyboardInterrupt


def writes(d: Disturbed) -> None:
    d.w().d = d.w().d * 0.5


def halves(d: Disturbed) -> None:
    d.w().data *= 0.5


def shares(d: Disturbed) -> None:
    d.w().data = nn.NdArray.from_numpy_array(np.full(d.w().shape, 0.25, np.float32))


def static_reads(d: Disturbed) -> None:
    with nn.auto_forward(False):
        y = d.w().unlinked() * 1
    y.forward()
    d.seen.append(y.d.copy())


DISTURBANCES: dict[str, Callable[[Disturbed], Any]] = {
    "stop": stop,
    "interrupt": interrupt,
    "reads result": lambda d: d.seen.append(d.h.d.copy()),
    "reads parameter": lambda d: d.seen.append(d.w().d.copy()),
    "reads state": lambda d: d.seen.append(d.state().d.copy()),
    "reads mean": lambda d: d.seen.append(d.mean().d.copy()),
    "reads gradient": lambda d: d.seen.append(d.w().g.copy()),
    "writes": writes,
    "halves": halves,
    "shares": shares,
    "zeros": lambda d: d.w().data.zero(),
    "fills state": lambda d: d.state().data.fill(0.01),
    "writes mean": lambda d: setattr(d.mean(), "d", 0.5),
    "writes input": lambda d: setattr(d.x, "d", 0.5),
    "zeros input": lambda d: d.x.data.zero(),
    "calls": lambda d: d.kept.append(d.h + 1),
    "calls with parameter": lambda d: d.kept.append(d.w() + 1),
    "calls with state": lambda d: d.kept.append(d.state() * 1),
    "random": lambda d: d.kept.append(F.rand(shape=(2, 2))),
    "seed": lambda d: nn.seed(9),
    "attribute": lambda d: setattr(d, "p", 0.6),
    "batch_stat": lambda d: setattr(d, "batch_stat", False),
    "operand": lambda d: setattr(d, "other", True),
    "decay": lambda d: d.solver.weight_decay(0.1),
    "static": static_reads,
}


@pytest.mark.parametrize("context", ["numpy:float", "cpu:float"])
@pytest.mark.parametrize("name", DISTURBANCES)
def test_another_way_at_every_position(name: str, context: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("nnl.coexec.plans.expectations.MOST_REST", 0)
    schedule, counted = Schedule(len(name)), Counted()
    use(schedule, monkeypatch)
    exact = context == "numpy:float"
    with nn.context_scope(nn.Context([context])), nn.auto_forward():
        # natively every third position: what is put off and taken back is known from numpy
        for at in range(1 if exact else 1 + len(name) % 3, Disturbed.LINES + 1, 1 if exact else 3):
            found = Disturbed(counted, DISTURBANCES[name], at).run(11)
            wanted = Disturbed(same if exact else plain, DISTURBANCES[name], at).run(11)
            for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
                np.testing.assert_array_equal(a, b, f"{name} at {at}, value {i}")
            if not exact and at % 4 == 0:
                eager = Disturbed(same, DISTURBANCES[name], at).run(11)
                for i, (a, b) in enumerate(zip(found, eager, strict=True)):
                    where = f"{name} at {at}, value {i}"
                    np.testing.assert_allclose(a, b, 1e-3, 1e-4, err_msg=where)
    assert counted.total("speculated") > (30 if exact else 10) and counted.total("cancelled") > 0


# ---- what has to be copied ----


def test_without_copies_of_what_is_written_the_results_are_others(
    eager_to_try: None, monkeypatch: Any
) -> None:
    monkeypatch.setattr(Speculation, "_restore", lambda self: None)
    with pytest.raises(AssertionError, match="Arrays are not equal"):
        check(0, 40, "early", "numpy:float", same, monkeypatch)


def test_the_stream_of_random_numbers_is_one_of_them(eager_to_try: None, monkeypatch: Any) -> None:
    restore = Speculation._restore

    def all_but_random(self: Speculation) -> None:
        self._copies = [c for c in self._copies if c[0].spec.dtype != np.uint64]
        restore(self)

    monkeypatch.setattr(Speculation, "_restore", all_but_random)
    with pytest.raises(AssertionError, match="Arrays are not equal"):
        check(0, 40, "early", "numpy:float", same, monkeypatch)


def test_what_is_copied_is_parameters_states_and_the_stream() -> None:
    x, w = variable(4, 8), nn.Variable((8, 8), need_grad=True)
    w.d = 0.1
    solver = S.Momentum(0.1)
    solver.set_parameters({"w": w})

    @speculating
    def step() -> nn.Variable:
        solver.zero_grad()
        loss = F.mean(F.dropout(F.affine(x, w), 0.5))
        loss.backward(clear_buffer=True)
        solver.update()
        return loss

    with nn.auto_forward():
        for _ in range(6):
            step()
    report = step.report()  # type: ignore[attr-defined]
    if report.speculated:  # with the native engine
        each = 2 * 8 * 8 * 4 + 8 + 16  # float32; the solver's count of updates; key and counter
        assert report.checkpointed == report.speculated * each and not report.cancelled
        what = f"  {report.speculated} segments began before Python was there, 0 in vain"
        assert what in str(report)
