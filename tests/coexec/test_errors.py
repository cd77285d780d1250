# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a co-executed step: the errors of dynamic mode, with the line of the call."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.coexec.plans.paths import PathPlan
from nnl.training.inspection import NanInfTracer
from tests.coexec.steps import Trainer, variable

pytestmark = pytest.mark.usefixtures("dynamic")


def numbers(*values: Any) -> nn.Variable:
    return nn.Variable.from_numpy_array(np.array(values))


def embed() -> Any:
    return F.embed(numbers(0, 7), variable(3, 2))


def one_hot() -> Any:
    return F.one_hot(numbers([0], [9]), (4,))


def gather() -> Any:
    return F.gather_nd(variable(3, 2), numbers([5]))


def labels() -> Any:
    return F.softmax_cross_entropy(variable(2, 3), numbers([1], [5]))


def shapes() -> Any:
    return variable(2, 3) + variable(3, 2)


def arguments() -> Any:
    return F.relu(np.ones(3))


def too_large() -> Any:
    return F.broadcast(variable(1, 1), (1 << 40, 1 << 30))


def traps() -> Any:
    with np.errstate(invalid="raise"):
        return F.log(numbers(-1.0)).d  # read where the trap is set


def error(f: Callable[[], Any]) -> tuple[type, str, int]:
    """The type of an error that a function raises, its text, and the last line of it here."""
    try:
        f().d  # noqa: B018
    except Exception as e:
        last = [t.lineno for t in traceback.extract_tb(e.__traceback__) if t.filename == __file__]
        return type(e), str(e), last[-1] or 0
    raise AssertionError("no error")


BAD = (embed, one_hot, gather, labels, shapes, arguments, too_large)


@pytest.mark.parametrize(
    ("f", "context"),
    [*[(f, c) for f in BAD for c in ("numpy:float", "cpu:float")], (traps, "numpy:float")],
)
def test_errors_are_those_of_dynamic_mode_and_name_the_line(f: Any, context: str) -> None:
    with nn.context_scope(nn.Context([context])):
        kind, text, line = error(f)
        step = nn.coexecute(f)
        for _ in range(3):  # new, made into a plan, as a plan
            found, told, at = error(step)
            place = re.search(r" \(test_errors.py:(\d+)\)", told)
            assert found is kind and re.sub(r" \(test_errors.py:\d+\)", "", told) == text
            assert line == (int(place[1]) if place else at)


def test_what_was_computed_before_an_error_is_there() -> None:
    w, state = variable(3, 2), nn.NdArray((2,))
    state.zero()
    kept: list[Any] = []

    @nn.coexecute
    def step(k: int) -> None:
        kept.append(w * k)
        kept.append(F.embed(numbers(k), w))
        kept.append(F.exp(w))

    for k in (1, 2, 7, 2, 7, 7):
        kept.clear()
        if k < 3:
            step(k)
            continue
        with pytest.raises(ValueError, match="holds the index 7"):
            step(k)
        np.testing.assert_array_equal(kept[0].d, w.d * 7)
        for y in kept[1:]:
            with pytest.raises(ValueError, match="given up: a function that was to run with it"):
                y.data.data  # noqa: B018


def test_an_error_leaves_states_as_they_were_when_it_came() -> None:
    def run(wrap: Any) -> list[Any]:
        trainer = Trainer(S.Momentum(0.1), norm=True)
        step = wrap(trainer.step)
        for k in range(9):
            t = numbers(*[[n] for n in (0, 1, 5 if k % 3 == 2 else 2, 0)])
            try:
                step(variable(4, 5, seed=k), t)
            except ValueError as e:
                assert "has the label 5" in str(e)
        return [v.d.copy() for v in nn.get_parameters(grad_only=False).values()]

    for wanted, found in zip(run(lambda f: f), run(nn.coexecute), strict=True):
        np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)


@np.errstate(invalid="ignore")
def test_a_tracer_of_nan_finds_the_same_function() -> None:
    x, told = numbers(0.5, 3.0), []
    step = nn.coexecute(lambda x: F.exp(F.log(x - 1)))
    step(x)
    for f in (step.__wrapped__, step):
        tracer = NanInfTracer()
        nn.set_function_post_hook("nan", tracer.forward_post_hook)
        try:
            f(x)
        finally:
            nn.unset_function_post_hook("nan")
        with pytest.raises(ValueError) as e:
            tracer.check()
        told.append(str(e.value))
    assert told[0] == told[1] and "forward of Log " in told[0]


# ---- memory ----

LITTLE_MEMORY = """
import resource, sys
import nnl as nn, nnl.functions as F
from nnl.coexec.policy import watch
watch.OFTEN = 0  # the first step is put off already
nn.set_auto_forward(True)

def step(rows):
    x = F.broadcast(nn.Variable.from_numpy_array([[1.0]]), (rows, 1 << 20))
    return F.sum(F.exp(x))

run = nn.coexecute(step)
run(2), run(2)
with open("/proc/self/statm") as f:
    used = int(f.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)
for f in (step, run):
    try:
        f(100)
    except MemoryError as e:
        print(e)
    print(f(2).d)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_that_does_not_suffice_is_told_and_the_next_step_runs(tmp_path: Path) -> None:
    script = tmp_path / "step.py"
    script.write_text(LITTLE_MEMORY)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wanted, value, found, again = done.stdout.splitlines()
    assert wanted.startswith("broadcast: not enough memory for the result: Unable to allocate 400.")
    assert found == wanted.replace("broadcast", "broadcast (step.py:9)")
    assert float(value) == pytest.approx(float(again), rel=1e-5)


def test_a_path_without_memory_for_its_plan_runs_call_by_call(monkeypatch: Any) -> None:
    def short(self: Any, given: Any) -> None:
        if refused:
            raise MemoryError
        take(self, given)

    take, refused = PathPlan.take, False
    monkeypatch.setattr(PathPlan, "take", short)
    steps = nn.coexecution()
    for k in range(8):
        refused = 3 <= k < 6
        with steps:
            y, z = F.exp(variable(3, seed=k)), variable(2) * 2
        np.testing.assert_allclose(y.d, np.exp(variable(3, seed=k).d), 1e-6)
        np.testing.assert_array_equal(z.d, variable(2).d * 2)
        assert len(steps._paths.planned) == (0 if k == 0 or 3 <= k <= 5 else 1)


# ---- interrupts ----


def test_an_interrupt_leaves_what_was_called_before_it_done() -> None:
    state = nn.NdArray((2,))
    state.zero()

    @nn.coexecute
    def step(k: int) -> None:
        nonlocal state
        state += variable(2).data
        if k % 3 == 2:
            signal.raise_signal(signal.SIGINT)
        state += variable(2).data

    for k in range(9):
        if k % 3 == 2:
            with pytest.raises(KeyboardInterrupt):
                step(k)
        else:
            step(k)
    np.testing.assert_allclose(state.data, 15 * variable(2).d, 1e-5)


# ---- threads ----


def in_thread(f: Callable[[], Any]) -> Any:
    """What a function returns in another thread, or the error that it raises there."""
    found: list[Any] = []

    def work() -> None:
        try:
            with nn.auto_forward():
                found.append(f())
        except Exception as e:
            found.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


def test_other_threads_see_parameters_and_no_results_before_they_are_computed() -> None:
    w, x = variable(2, 2), variable(2, 2, seed=1)
    w.need_grad = True
    solver = S.Sgd(1.0)
    solver.set_parameters({"w": w})
    early = "coexecution: an array of a step that another thread co-executes was read or written "
    steps = nn.coexecution()
    for _ in range(3):
        before = w.d.copy()
        w.grad.zero()
        with steps:
            y = w * x
            tried = [
                in_thread(lambda: y.d),  # noqa: B023
                in_thread(lambda: F.sum(y * 2)),  # noqa: B023
                in_thread(lambda: setattr(y, "d", 0)),  # noqa: B023
                in_thread(lambda: setattr(x, "d", 0)),
            ]
            np.testing.assert_array_equal(in_thread(lambda: w.d.copy()), before)
            np.testing.assert_array_equal(in_thread(lambda: (w * 2).d), 2 * before)
            F.sum(y).backward()
            solver.update()
            tried += [in_thread(lambda: w.d), in_thread(lambda: w.g)]
        assert all(isinstance(e, ValueError) and str(e).startswith(early) for e in tried)
        np.testing.assert_array_equal(y.d, before * x.d)
        np.testing.assert_allclose(w.d, before - x.d, 1e-6)
        np.testing.assert_array_equal(in_thread(lambda: w.d), w.d)


def test_a_graph_of_another_thread_is_used_in_a_step() -> None:
    x = variable(2, 3)
    x.need_grad = True
    step = nn.coexecute(lambda y: F.sum(F.exp(y)).backward())
    for _ in range(3):
        y = in_thread(lambda: x * 2)
        x.grad.zero()
        step(y)
        np.testing.assert_allclose(x.g, 2 * np.exp(2 * x.d), 1e-5)


def test_updates_before_an_exception_are_done_once() -> None:
    w = variable(3)
    w.need_grad = True
    solver = S.Sgd(0.5)
    solver.set_parameters({"w": w})
    kept: list[nn.Variable] = []

    @nn.coexecute
    def step(error: type[BaseException] | None) -> None:
        solver.zero_grad()
        F.sum(w).backward()
        kept.append(w * 1)
        solver.update()
        if error:
            raise error

    before = w.d.copy()
    for k, error in enumerate([None, KeyError, None, KeyboardInterrupt, KeyError, None]):
        with pytest.raises(error) if error else contextlib.nullcontext():
            step(error)
        # at the end of the step: other threads may read
        np.testing.assert_allclose(in_thread(lambda: kept[-1].d), before - 0.5 * k, 1e-5)
        np.testing.assert_allclose(in_thread(lambda: w.d), before - 0.5 * (k + 1), 1e-5)
