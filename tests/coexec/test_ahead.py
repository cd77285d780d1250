# SPDX-License-Identifier: Apache-2.0
"""Steps whose end runs while Python is in the next one: nothing but the time tells."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from tests.coexec.random_programs import outcome
from tests.coexec.schedules import Schedule, ahead, in_thread, native, use
from tests.coexec.steps import same, train, variable

# ---- random programs under random schedules ----


def check(first: int, n: int, ways: str, context: str, reference: Any, monkeypatch: Any) -> None:
    schedule = Schedule(first, ways)
    use(schedule, monkeypatch)
    for seed in range(first, first + n):
        wanted = outcome(seed, 9, reference, context)
        found = outcome(seed, 9, ahead, context)
        assert len(found) == len(wanted)
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            np.testing.assert_array_equal(a, b, f"program {seed}, value {i}")
    assert schedule.begun > n  # or this tests nothing


@pytest.mark.parametrize("ways", ["late", "early late thread"])
def test_random_programs_are_equal_bit_by_bit_with_numpy(ways: str, monkeypatch: Any) -> None:
    check(0, 40, ways, "numpy:float", same, monkeypatch)


@pytest.mark.parametrize("ways", ["late", "early late thread"])
def test_random_programs_are_what_they_are_without_it(ways: str, monkeypatch: Any) -> None:
    plain = functools.partial(nn.coexecute, ahead=0)
    check(100, 40, ways, "cpu:float", plain, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("context", ["numpy:float", "cpu:float"])
@pytest.mark.parametrize("first", range(1000, 6000, 500))
def test_many_random_programs_are_equal(first: int, context: str, monkeypatch: Any) -> None:
    reference = same if context == "numpy:float" else functools.partial(nn.coexecute, ahead=0)
    check(first, 500, "early late late thread", context, reference, monkeypatch)


@native
@pytest.mark.parametrize("context", ["cpu:float", "cpu:bfloat16"])
def test_training_is_what_it_is_in_dynamic_mode(context: str) -> None:
    with nn.context_scope(nn.Context([context])), nn.auto_forward():
        wanted, _ = train(same, 24, dropout=0.3, norm=True)
        found, step = train(ahead, 24, dropout=0.3, norm=True)
    tolerance = 1e-4 if context == "cpu:float" else 0.05
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, tolerance, tolerance)
    assert step.report().ahead > 10  # type: ignore[attr-defined]


# ---- who waits ----


class Pending:
    """A step that has ended with its work still to be done; what its result and state are then."""

    def __init__(self, schedule: Schedule) -> None:
        self.x, self.w = variable(2, 3), variable(2, 3, seed=1)
        x, w = self.x.d.copy(), self.w.d.copy()
        self.w.need_grad = True
        solver = S.Sgd(0.5)
        solver.set_parameters({"w": self.w})

        @ahead
        def step() -> nn.Variable:
            y = self.x * self.w
            solver.zero_grad()
            F.sum(y).backward(clear_buffer=True)
            solver.update()
            return y

        for k in range(4):
            self.y = step()
            self.wanted = {"x": x, "y": x * (w - 0.5 * k * x), "w": w - 0.5 * (k + 1) * x}
            if k < 3:
                assert not np.allclose(self.y.d, x * 9)  # it is read, so all is done
        assert schedule.ended < schedule.begun

    def check(self, *names: str) -> None:
        for name in names:
            np.testing.assert_allclose(getattr(self, name).d, self.wanted[name], 1e-5, 1e-5)


def static(v: nn.Variable) -> Any:
    with nn.auto_forward(False):
        y = v.unlinked() * 1
    y.forward()
    return y.d


READS = {
    "d": lambda v: v.d,
    "float": lambda v: [[float(a) for a in row] for row in v.data.data],
    "dlpack": lambda v: np.from_dlpack(v.data),
    "get_data": lambda v: v.data.get_data("r"),
    "function": lambda v: (v * 1).d,
    "step": lambda v: nn.coexecute(lambda: v * 1)().d,
    "static": static,
    "copy_from": lambda v: nn.NdArray(v.shape).copy_from(v.data).data,
    "view": lambda v: v.data.view((6,)).data.reshape(2, 3),
    "thread": lambda v: in_thread(lambda: v.d.copy()),
    "thread's function": lambda v: in_thread(lambda: (v * 1).d),
}


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("name", ["y", "w", "x"])
def test_who_reads_waits(name: str, how: str, late: Schedule) -> None:
    pending = Pending(late)
    found = READS[how](getattr(pending, name))
    np.testing.assert_allclose(found, pending.wanted[name], 1e-5, 1e-5)
    pending.check("x", "y", "w")


def test_files_of_parameters_wait(late: Schedule, tmp_path: Path) -> None:
    pending, path = Pending(late), str(tmp_path / "w.h5")
    nn.save_parameters(path, {"w": pending.w})
    nn.load_parameters(path)
    np.testing.assert_allclose(nn.get_parameters()["w"].d, pending.wanted["w"], 1e-5)


WRITES = {
    "d": lambda v: setattr(v, "d", 9.0),
    "array": lambda v: setattr(v, "d", np.full((2, 3), 9.0, np.float32)),
    "other type": lambda v: setattr(v, "d", np.full((2, 3), 9)),
    "elements": lambda v: v.d.__setitem__(slice(None), 9.0),
    "fill": lambda v: v.data.fill(9),
    "in place": lambda v: v.data.__isub__(v.data - 9.0),
    "copy_from": lambda v: v.data.copy_from(variable(2, 3).data * 0 + 9),
    "share": lambda v: setattr(v, "data", nn.NdArray.from_numpy_array(np.full((2, 3), 9.0))),
    "thread": lambda v: in_thread(lambda: setattr(v, "d", 9.0)),
}


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("name", ["y", "w", "x"])
def test_who_writes_changes_nothing_that_was_called_before(
    name: str, how: str, late: Schedule
) -> None:
    pending = Pending(late)
    WRITES[how](getattr(pending, name))
    pending.check(*{"x", "y", "w"} - {name})
    np.testing.assert_array_equal(getattr(pending, name).d, 9)


def test_a_gradient_that_is_zeroed_before_it_is_there_stays_zero(late: Schedule) -> None:
    pending = Pending(late)
    pending.w.grad.zero()
    assert late.ended < late.begun  # nothing has to wait for that
    pending.check("y", "w")
    np.testing.assert_array_equal(pending.w.g, 0)


# ---- the next step ----


def programs() -> dict[str, Any]:
    """Programs whose steps use what the step before has left: (step, what to read at the end)."""
    x = variable(2, 3)

    def recurrent(wrap: Any) -> Any:
        h = variable(2, 3, seed=2)

        @wrap
        def step(k: int) -> None:
            nonlocal h
            h = F.tanh(h * 0.5 + x)

        return step, lambda: [h.d]

    def accumulates(wrap: Any) -> Any:
        w = variable(2, 3, seed=3)
        w.need_grad = True
        solver = S.Momentum(0.1)
        solver.set_parameters({"w": w})

        @wrap
        def step(k: int) -> None:
            if k % 3 == 0:
                solver.zero_grad()
            F.sum(F.tanh(w * x)).backward(clear_buffer=k % 2 == 0)
            if k % 3 == 2:
                solver.weight_decay(0.1)
                solver.clip_grad_by_norm(0.5)
                solver.update()

        return step, lambda: [w.d, w.g]

    def reads_the_step_before(wrap: Any) -> Any:
        seen: list[Any] = []
        last = x

        @wrap
        def step(k: int) -> None:
            nonlocal last
            y = F.exp(last * 0.1) + x
            if k % 2:
                seen.append(last.d.copy())
            z = F.sum(y * y, axis=1, keepdims=True)
            if k % 5 == 4:
                seen.append(x.d.copy())
            last = y / z

        return step, lambda: [*seen, last.d]

    def writes_arrays(wrap: Any) -> Any:
        state, total = nn.NdArray((2, 3)), nn.NdArray((2, 3))
        state.zero()
        total.zero()

        @wrap
        def step(k: int) -> None:
            nonlocal state, total
            state += x.data * (k % 3)
            total = total * 0.5 + state
            if k % 4 == 3:
                state.zero()
            if k % 5 == 4:
                total.copy_from(state)

        return step, lambda: [state.data, total.data]

    def updates_before_it_reads(wrap: Any) -> Any:
        w = variable(2, 3, seed=3)
        w.need_grad = True
        solver = S.Momentum(0.1)
        solver.set_parameters({"w": w})
        seen: list[Any] = []
        last = F.sum(x)

        @wrap
        def step(k: int) -> None:
            nonlocal last
            loss = F.sum(F.tanh(w * x))
            solver.zero_grad()
            loss.backward(clear_buffer=True)
            solver.update()
            if k % 2:
                seen.append(last.data.get_data("r").copy())
            if k % 3 == 0:
                seen.append(w.data.get_data("r").copy())
            last = loss * 2

        return step, lambda: [*seen, w.d, last.d]

    def draws(wrap: Any) -> Any:
        nn.seed(7)
        seen: list[Any] = []

        @wrap
        def step(k: int) -> None:
            y = F.dropout(x, 0.5) + F.rand(0.0, 1.0, (2, 3))
            seen[2:] = [F.sum(y)]
            seen.append(y)

        return step, lambda: [v.d for v in seen]

    every = (recurrent, accumulates, reads_the_step_before, updates_before_it_reads)
    return {f.__name__: f for f in (*every, writes_arrays, draws)}


@pytest.mark.parametrize("context", ["numpy:float", "cpu:float"])
@pytest.mark.parametrize("name", programs())
def test_the_next_step_uses_what_is_not_there_yet(name: str, context: str, late: Schedule) -> None:
    with nn.context_scope(nn.Context([context])):
        values = []
        for wrap in (same, functools.partial(nn.coexecute, ahead=0), ahead):
            step, read = programs()[name](wrap)
            for k in range(30):
                step(k)
            values.append([np.array(a) for a in read()])
    eager, plain, found = values
    for a, b, c in zip(eager, plain, found, strict=True):
        np.testing.assert_array_equal(c, b)
        np.testing.assert_allclose(c, a, 0 if context == "numpy:float" else 1e-5, 1e-6)
    assert late.begun > 5


def test_it_is_one_step_ahead_and_the_report_says_who_waited(late: Schedule) -> None:
    step = ahead(lambda x: F.sum(F.exp(x)))
    x = variable(3)
    for _ in range(10):
        y = step(x)
    report = step.report()
    assert report.ahead == late.begun == 8 and late.ended == 7  # a new path, and a plan to make
    np.testing.assert_allclose(y.d, np.exp(variable(3).d).sum(), 1e-5)
    line = sys._getframe().f_lineno - 1
    assert report.waits[f"test_ahead.py:{line}"][0] == 1 and late.ended == 8
    assert "  8 segments ran while Python was in the next step" in str(report).split("\n")
    assert f"waited at test_ahead.py:{line} 1 times" in str(report)
