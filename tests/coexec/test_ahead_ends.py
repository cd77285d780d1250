# SPDX-License-Identifier: Apache-2.0
"""Steps that run ahead: errors, interrupts, other processes and threads, and when they do."""

from __future__ import annotations

import _thread
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.coexec.deferring.speculation import Speculation
from nnl.coexec.deferring.uninterrupted import whole
from nnl.coexec.policy.running_ahead import FIRST, LASTS, ROUND, ROUNDS, Pace
from tests.coexec.schedules import Schedule, ahead, in_thread, native, speculating
from tests.coexec.steps import variable


def test_an_error_comes_where_somebody_waits_and_names_the_call(late: Schedule) -> None:
    table, kept = variable(3, 2), list[Any]()
    index = nn.Variable.from_numpy_array(np.array([1]))
    bad = nn.Variable.from_numpy_array(np.array([7]))

    @ahead
    def step(i: nn.Variable) -> nn.Variable:
        kept[:] = [table * 2]
        return F.embed(i, table)

    def begun(i: nn.Variable) -> Any:
        for _ in range(3):
            step(index)
        y = step(i)
        assert late.ended < late.begun
        return y

    line = step.__wrapped__.__code__.co_firstlineno + 3  # type: ignore[attr-defined]
    message = rf"embed \(test_ahead_ends.py:{line}\): .*holds the index 7"
    y = begun(bad)
    with pytest.raises(ValueError, match=message):
        _ = y.d
    with pytest.raises(ValueError, match="given up: a function that was to run with it"):
        _ = y.d
    np.testing.assert_array_equal(kept[0].d, table.d * 2)
    # the next step gets it at its end, and is done
    begun(bad)
    before = kept[0]
    with pytest.raises(ValueError, match=message):
        step(index)
    assert kept[0] is not before
    np.testing.assert_array_equal(kept[0].d, table.d * 2)
    np.testing.assert_array_equal(step(index).d, table.d[1:2])
    # another thread that reads it gets it first
    y = begun(bad)
    with pytest.raises(ValueError, match=message):
        raise in_thread(lambda: error_of(lambda: y.d))
    with pytest.raises(ValueError, match=message):
        step(index)


def error_of(f: Any) -> Exception:
    try:
        f()
    except Exception as e:
        return e
    raise AssertionError("no error")


@native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_copy_of_the_process_has_all_values_and_an_executor() -> None:
    w = variable(200, 200)
    step = ahead(lambda x: F.tanh(F.affine(x, w)))
    with nn.auto_forward():
        for k in range(6):
            y = step(variable(4, 200, seed=k))
            wanted = np.tanh(variable(4, 200, seed=k).d @ w.d)
        child = os.fork()
        if not child:
            good = np.allclose(y.d, wanted, 1e-4, 1e-4)
            for _ in range(3):
                z = step(variable(4, 200, seed=5))
            os._exit(0 if good and np.allclose(z.d, wanted, 1e-4, 1e-4) else 1)
        assert os.waitpid(child, 0)[1] == 0
        np.testing.assert_allclose(y.d, wanted, 1e-4, 1e-4)


LEAVES = """
import numpy as np, nnl as nn, nnl.functions as F
nn.set_auto_forward(True)
table = nn.Variable.from_numpy_array(np.ones((300, 300), np.float32))

@nn.coexecute
def step(i):
    y = table
    for _ in range(10):
        y = F.tanh(F.affine(y, table))
    return F.embed(i, y)

step = nn.coexecute(step.__wrapped__, ahead=1)
for k in range(40):
    y = step(nn.Variable.from_numpy_array(np.array([999 if k == LAST else 1])))
assert step.report().ahead
"""


@native
@pytest.mark.parametrize("last", [39, -1])
def test_a_program_may_end_while_it_runs_and_an_error_is_told(last: int, tmp_path: Path) -> None:
    script = tmp_path / "leaves.py"
    script.write_text(LEAVES.replace("LAST", str(last)))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert ("embed (leaves.py:11)" in done.stderr) == (last == 39)


@native
@pytest.mark.parametrize(("how", "count_of"), [(ahead, "ahead"), (speculating, "speculated")])
def test_interrupts_lose_no_parameters(how: Callable[..., Any], count_of: str) -> None:
    x, w = variable(32, 32), variable(32, 32)
    count = nn.Variable.from_numpy_array(np.zeros(1, np.float32))
    w.need_grad = count.need_grad = True
    solver = S.Sgd(1.0)
    solver.set_parameters({"w": w, "count": count})
    steps = 0

    @how
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
    least = {"ahead": 0, "speculated": 10}[count_of]
    assert getattr(step.report(), count_of) > least  # type: ignore[attr-defined]


@native
def test_no_place_of_an_interrupt_loses_what_speculation_has_taken() -> None:
    """One at each instruction of the call that moves what was taken."""
    x, w, count = variable(32, 32), variable(32, 32), variable(1)
    w.need_grad = count.need_grad = True
    count.d = 0
    solver = S.Sgd(1.0)
    solver.set_parameters({"w": w, "count": count})

    @speculating
    def step() -> None:
        solver.zero_grad()
        y = F.tanh(F.batch_matmul(x, w)) * 1e-3
        (F.sum(y) - F.sum(count)).backward(clear_buffer=True)
        solver.update()

    left = 0  # instructions until the interrupt

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal left
        if frame.f_code is not Speculation.use.__code__:
            return None
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left == 0:
            raise KeyboardInterrupt
        return trace

    done, place, interrupted = 0, 0, True
    with nn.auto_forward():
        while interrupted or place < 100:
            for _ in range(5):  # it is as expected again
                step()
            done += 5
            assert count.d[0] == done
            left = place = place + 1
            sys.settrace(trace)
            try:
                step()
                interrupted = False
            except KeyboardInterrupt:
                interrupted = True
            finally:
                sys.settrace(None)
            assert count.d[0] in (done, done + 1)
            assert np.isfinite(w.d).all()
            done = int(count.d[0])
    assert place > 50


def test_a_step_that_an_interrupt_has_left_open_is_ended_by_the_next(monkeypatch: Any) -> None:
    steps, x = nn.coexecution(), variable(3)
    module = sys.modules["nnl.coexec.coexecution"]

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    def step(interrupted: bool) -> nn.Variable:
        with steps:
            y = x * 2
            if interrupted:  # before anything is done at the end
                monkeypatch.setattr(module, "whole", interrupt)
        return y

    def generator() -> Any:
        with steps:
            yield

    with nn.auto_forward():
        with pytest.raises(KeyboardInterrupt):
            step(True)
        monkeypatch.setattr(module, "whole", whole)
        np.testing.assert_array_equal(step(False).d, x.d * 2)
        waits = generator()
        next(waits)
        with pytest.raises(ValueError, match="a step begins inside of a step"):
            step(False)
        waits.close()
        np.testing.assert_array_equal(step(False).d, x.d * 2)
    assert steps.report().steps == 4


@native
def test_other_threads_read_all_the_time() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    w, over, found = variable(8, 8), threading.Event(), list[Any]()
    state = nn.NdArray((8, 8))
    state.zero()

    def look() -> None:
        with nn.auto_forward():
            while not over.is_set():
                try:
                    found.append(np.unique(state.data).size == 1)
                except Exception as e:
                    found.append("before the step had computed it" in str(e))

    @ahead
    def step() -> None:
        nonlocal state
        state = state + (F.tanh(F.affine(w, w)) * 0 + 1).data

    threads = [threading.Thread(target=look) for _ in range(2)]
    try:
        with nn.auto_forward():
            for t in threads:
                t.start()
            for _ in range(300):
                step()
    finally:
        over.set()
        for t in threads:
            t.join(60)
        sys.setswitchinterval(interval)
    np.testing.assert_array_equal(state.data, 300)
    assert found and all(found)


# ---- which way is faster ----


@pytest.fixture
def choice(monkeypatch: Any) -> Any:
    """What it decides, step by step: a run takes so long, Python between two, and to start it."""
    busy = [0.0]
    monkeypatch.setattr("nnl.coexec.policy.running_ahead.process_time", lambda: busy[0])
    monkeypatch.setattr("nnl.coexec.policy.running_ahead.CORES", 2)
    return partial(chosen, busy)


def chosen(
    busy: list[float],
    run: float,
    python: float,
    start: float,
    steps: int = LASTS // 2,
    threads: float = 1.0,
    disturbed: Sequence[int] = (),
) -> list[bool]:
    pace, now, out, free = Pace(None), 0.0, [], 0.0
    for i in range(steps):
        way = pace.next(now)
        out.append(way)
        if way:
            now = max(now, free) + start
            free = now + run
        else:
            now = max(now, free) + run
            busy[0] += run * threads
            pace.ran(run)
        now += python + (i in disturbed)
    return out


@pytest.mark.parametrize(
    ("run", "python", "start", "wanted"),
    [(1.0, 1.0, 0.1, True), (0.3, 1.0, 0.1, True), (1.0, 1.0, 0.98, False), (3.0, 0.1, 0.0, False),
     (0.01, 1.0, 0.0, False)],
)  # fmt: skip
def test_the_faster_way_is_found(
    choice: Any, run: float, python: float, start: float, wanted: bool
) -> None:
    ways = choice(run, python, start)
    assert len(set(ways[(ROUND + 1) * ROUNDS + FIRST :])) == 1 and ways[-1] == wanted
    assert sum(ways[: (ROUND + 1) * ROUNDS]) <= (ROUND + 1) * ROUNDS // 2 + 1
    if min(run, python) < 0.2:  # nothing to try
        assert not any(ways)


def test_kernels_that_use_all_cores_run_ahead_only_of_much_python(choice: Any) -> None:
    assert not any(choice(1.0, 0.9, 0.1, threads=1.9)) and choice(1.0, 0.9, 0.1, threads=1.2)[-1]
    assert choice(1.0, 2.5, 0.1, threads=1.9)[-1]


def test_one_round_that_was_disturbed_does_not_decide(choice: Any) -> None:
    first = range(2, ROUND)
    assert choice(1.0, 1.0, 0.98, disturbed=first)[-1] is False
    assert choice(1.0, 1.0, 0.1, disturbed=first)[-1] is True


def test_it_is_measured_again_and_one_may_say(choice: Any) -> None:
    ways = choice(1.0, 1.0, 0.1, LASTS + (ROUND + 1) * ROUNDS * 2)
    assert ways[LASTS] and not all(ways[LASTS:])
    assert all(Pace(1).next(0.0) for _ in range(3)) and not Pace(0).next(0.0)
    with pytest.raises(ValueError, match="coexecution: ahead is 2, wanted 0, 1 or None"):
        nn.coexecution(ahead=2)
