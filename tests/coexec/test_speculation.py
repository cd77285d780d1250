# SPDX-License-Identifier: Apache-2.0
"""Steps that run before Python has made their calls: nothing but the time tells."""

from __future__ import annotations

import _thread
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.coexec.running import Running
from nnl.coexec.speculation import Speculation
from tests.coexec.random_programs import outcome
from tests.coexec.schedules import Schedule, in_thread, native, use
from tests.coexec.steps import same, train, variable

speculating = functools.partial(nn.coexecute, speculate=True)
plain = functools.partial(nn.coexecute, ahead=0)


@pytest.fixture
def eager_to_try(monkeypatch: Any) -> None:
    """What was so once is expected, however often that was wrong."""
    monkeypatch.setattr("nnl.coexec.expectations.TRUST", 1)
    monkeypatch.setattr("nnl.coexec.expectations.MOST_REST", 0)


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
    counted = check(0, 40, ways, "numpy:float", same, monkeypatch)
    assert counted.total("speculated") > 100 and counted.total("cancelled") > 30


@pytest.mark.parametrize("ways", ["early", "late", "early late thread"])
def test_random_programs_are_what_they_are_without_it(
    ways: str, eager_to_try: None, monkeypatch: Any
) -> None:
    counted = check(100, 40, ways, "cpu:float", plain, monkeypatch)
    assert counted.total("speculated") > 100 and counted.total("cancelled") > 30


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
    monkeypatch.setattr("nnl.coexec.expectations.MOST_REST", 0)
    schedule, counted = Schedule(len(name)), Counted()
    use(schedule, monkeypatch)
    with nn.context_scope(nn.Context([context])), nn.auto_forward():
        for at in range(1, Disturbed.LINES + 1):
            wanted = Disturbed(same, DISTURBANCES[name], at).run(13)
            found = Disturbed(counted, DISTURBANCES[name], at).run(13)
            exact = context == "numpy:float"
            if not exact:
                wanted2 = Disturbed(plain, DISTURBANCES[name], at).run(13)
            for i, a in enumerate(found):
                where = f"{name} at {at}, value {i} of {len(found)}"
                if exact:
                    np.testing.assert_array_equal(a, wanted[i], where)
                else:
                    np.testing.assert_array_equal(a, wanted2[i], where)
                    np.testing.assert_allclose(a, wanted[i], 1e-3, 1e-4, err_msg=where)
    assert counted.total("speculated") > 30 and counted.total("cancelled") > 0


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


# ---- when it begins ----


def begun_at(monkeypatch: Any) -> list[str]:
    """The calls at which runs begin, as they do."""
    found: list[str] = []
    start = Speculation.start

    def noted(self: Speculation) -> bool:
        found.append(self._skeleton.at.name)
        return start(self)

    monkeypatch.setattr(Speculation, "start", noted)
    return found


def test_it_begins_when_all_that_changes_is_there(late: Schedule, monkeypatch: Any) -> None:
    found = begun_at(monkeypatch)
    w = variable(2, 3, seed=1)

    @speculating
    def step(x: nn.Variable, late: bool) -> nn.Variable:
        y = F.tanh(x) * w
        z = variable(2, 3, seed=2) if late else w
        return F.exp(F.sin(y) + z)

    for k in range(8):
        step(variable(2, 3, seed=k), False)
    assert found and set(found) == {"tanh"}  # what the step was called with is known
    for k in range(8):
        step(variable(2, 3, seed=k), True)
    assert found[-1] == "add2"


def test_it_waits_for_what_was_written_too_late(late: Schedule, monkeypatch: Any) -> None:
    found = begun_at(monkeypatch)
    x, y = variable(2, 3), variable(2, 3)

    @speculating
    def step(k: int) -> nn.Variable:
        h = F.tanh(x)
        y.d = k
        return F.sin(h * y) + 1

    for k in range(16):
        np.testing.assert_allclose(step(k).d, np.sin(np.tanh(x.d) * k) + 1, 1e-5, 1e-6)
    report = step.report()  # type: ignore[attr-defined]
    assert found[0] == "tanh" and found[-1] == "mul2"
    assert report.cancelled == 1 and report.speculated == len(found) > 4


def test_after_it_was_wrong_it_waits_longer_each_time(late: Schedule) -> None:
    x = variable(2, 3)

    @speculating
    def step(k: int) -> nn.Variable:
        h = F.tanh(F.sin(x))
        return F.exp(h) if k % 4 else F.cos(h)

    for k in range(400):
        step(k)
    report = step.report()  # type: ignore[attr-defined]
    assert 3 < report.cancelled < 20


# ---- errors, threads, processes ----


@pytest.mark.parametrize("context", ["numpy:float", "cpu:float"])
def test_an_error_is_that_of_calls_that_were_put_off(context: str, late: Schedule) -> None:
    table, index, bad = variable(3, 2), np.array([1]), np.array([7])

    def values(wrap: Any) -> Any:
        w, seen = nn.Variable((1, 2), need_grad=True), []
        w.d = 1.0
        solver = S.Momentum(0.5)
        solver.set_parameters({"w": w})

        def step(i: nn.Variable) -> nn.Variable:
            solver.zero_grad()
            F.sum(F.embed(i, table) * w).backward(clear_buffer=True)
            solver.update()
            return F.rand(shape=(2,))

        nn.seed(1)
        wrapped = wrap(step)
        for k in range(9):
            try:
                y = wrapped(nn.Variable.from_numpy_array(bad if k == 6 else index))
                seen.append(y.d.copy())
            except ValueError as e:
                assert "holds the index 7" in str(e) and k == 6
        return [*seen, w.d.copy()]

    with nn.context_scope(nn.Context([context])):
        for a, b in zip(values(plain), values(speculating), strict=True):
            np.testing.assert_array_equal(a, b)
    assert late.begun > 3


def test_another_thread_reads_what_is_not_written_and_is_told_of_the_rest(late: Schedule) -> None:
    x, w, found = variable(2, 3), variable(2, 3, seed=1), list[Any]()
    w.need_grad = True
    solver = S.Sgd(0.5)
    solver.set_parameters({"w": w})
    before = x.d.copy()

    def look(v: nn.Variable) -> Any:
        try:
            return v.d.copy()
        except ValueError as e:
            return str(e)

    @speculating
    def step(k: int) -> None:
        y = F.tanh(x * 2)
        if k == 6:
            assert Speculation.now is not None
            found[:] = [in_thread(functools.partial(look, v)) for v in (x, w)]
        solver.zero_grad()
        F.sum(y * w).backward(clear_buffer=True)
        solver.update()

    for k in range(8):
        step(k)
    np.testing.assert_array_equal(found[0], before)
    assert "before the step had computed it" in found[1]
    np.testing.assert_allclose(w.d, variable(2, 3, seed=1).d - 4 * np.tanh(before * 2), 1e-4)


def test_two_programs_do_not_speculate_at_once(late: Schedule) -> None:
    """There is one thread that runs them; the second one computes as ever."""
    x, over = variable(2, 3), threading.Event()
    inside = threading.Event()

    @speculating
    def first(k: int) -> nn.Variable:
        y = F.tanh(x)
        if k == 7:
            inside.set()
            assert over.wait(60)
        return F.exp(y * 2)

    second = speculating(lambda z: F.exp(F.tanh(z) * 2))

    def other() -> Any:
        assert inside.wait(60)
        z = variable(2, 3)
        found = [second(z).d.copy() for _ in range(7)]
        over.set()
        return found

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(with_auto_forward(other)))
    thread.start()
    for k in range(9):
        y = first(k)
    thread.join(60)
    for a in (*found, y.d):
        np.testing.assert_allclose(a, np.exp(np.tanh(x.d) * 2), 1e-5)
    assert len(found) == 7 and second.report().speculated == 0  # type: ignore[attr-defined]


def with_auto_forward(f: Any) -> Any:
    with nn.auto_forward():
        return f()


LEAVES = """
import os, sys, numpy as np, nnl as nn, nnl.functions as F
nn.set_auto_forward(True)
w = nn.Variable.from_numpy_array(np.full((300, 300), 1e-3, np.float32))

@lambda f: nn.coexecute(f, speculate=True)
def step(x, leaves):
    y = F.affine(x, w)
    if leaves == "exit":
        sys.exit(0)
    child = os.fork() if leaves == "fork" else None
    for _ in range(10):
        y = F.tanh(F.affine(y, w))
    return y, child

x = nn.Variable.from_numpy_array(np.ones((300, 300), np.float32))
for k in range(6):
    y, _ = step(x, "")
assert step.report().speculated
z, child = step(x, sys.argv[1])
good = np.array_equal(z.d, y.d)
if child == 0:
    for k in range(6):
        z, _ = step(x, "")
    os._exit(0 if good and np.array_equal(z.d, y.d) else 1)
sys.exit(0 if good and os.waitpid(child, 0)[1] == 0 else 1)
"""


@native
@pytest.mark.parametrize("how", ["exit", "fork"])
def test_a_program_may_end_or_be_copied_meanwhile(how: str, tmp_path: Path) -> None:
    if how == "fork" and not hasattr(os, "fork"):
        pytest.skip("needs fork")
    script = tmp_path / "leaves.py"
    script.write_text(LEAVES)
    command = [sys.executable, str(script), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@native
def test_interrupts_lose_no_parameters() -> None:
    x, w = variable(32, 32), variable(32, 32)
    count = nn.Variable.from_numpy_array(np.zeros(1, np.float32))
    w.need_grad = count.need_grad = True
    solver = S.Sgd(1.0)
    solver.set_parameters({"w": w, "count": count})
    steps = 0

    @speculating
    def step() -> None:
        nonlocal steps
        y = F.tanh(F.batch_matmul(x, w)) * 1e-3
        solver.zero_grad()
        (F.sum(y) - F.sum(count)).backward(clear_buffer=True)
        solver.update()
        steps += 1

    with nn.auto_forward():
        for _ in range(5):
            step()
        for k in range(20):
            timer = threading.Timer(0.01 + k * 1e-3, _thread.interrupt_main)
            with pytest.raises(KeyboardInterrupt):
                step()
                timer.start()
                while True:
                    step()
            timer.join()
            assert count.d[0] in (steps, steps + 1)
            steps = int(count.d[0])
            assert np.isfinite(w.d).all()
    assert step.report().speculated > 10  # type: ignore[attr-defined]


@native
@pytest.mark.parametrize("context", ["cpu:float", "cpu:bfloat16"])
def test_training_is_what_it_is_in_dynamic_mode(context: str) -> None:
    with nn.context_scope(nn.Context([context])), nn.auto_forward():
        wanted, _ = train(same, 40, dropout=0.3, norm=True)
        put_off, _ = train(plain, 40, dropout=0.3, norm=True)
        found, step = train(speculating, 40, dropout=0.3, norm=True)
    tolerance = 1e-4 if context == "cpu:float" else 0.05
    for a, b, c in zip(found, wanted, put_off, strict=True):
        np.testing.assert_array_equal(a, c)
        np.testing.assert_allclose(a, b, tolerance, tolerance)


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(TypeError, match="coexecution: speculate is 1, wanted True or False"):
        nn.coexecution(speculate=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="speculate=True and ahead=1: one thread runs either"):
        nn.coexecution(ahead=1, speculate=True)
