# SPDX-License-Identifier: Apache-2.0
"""Steps that run before Python has made their calls: when, errors, threads, processes, networks."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.coexec.deferring.speculation import Speculation
from tests.coexec.schedules import Schedule, in_thread, native, plain, speculating, use
from tests.coexec.steps import same, train, variable

# ---- when it begins ----


def begun_at(monkeypatch: Any) -> list[str]:
    """The calls at which runs begin, as they do."""
    found: list[str] = []
    start = Speculation.start

    def noted(self: Speculation) -> bool:
        found.append(self._deferred.at.name)
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
for k in range(40):
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


@native
@pytest.mark.parametrize("types", ["float", "bfloat16"])
def test_weights_in_the_order_that_kernels_like_are_written_back(
    types: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr("nnl.coexec.plans.expectations.MOST_REST", 0)

    def run(wrap: Any) -> tuple[list[Any], Any]:
        nn.clear_parameters()
        nn.seed(1)
        solver, rng, seen = S.Adam(1e-3), np.random.default_rng(0), list[Any]()

        def f(x: nn.Variable, t: nn.Variable, k: int) -> nn.Variable:
            h = PF.convolution(x, 16, (3, 3), pad=(1, 1), name="c1")
            h = F.relu(PF.batch_normalization(h, name="b"))
            h = F.relu(PF.convolution(h, 32, (3, 3), name="c2"))
            y = PF.affine(F.dropout(F.max_pooling(h, (2, 2)), 0.2), 10, name="a")
            if k % 7 == 6:
                seen.append(y * 2)
            loss = F.mean(F.softmax_cross_entropy(y, t))
            if not solver.get_parameters():
                solver.set_parameters(nn.get_parameters())
            solver.zero_grad()
            loss.backward(clear_buffer=True)
            if k % 11 == 10:
                solver.weight_decay(0.01)
            solver.update()
            return loss

        step = wrap(f)
        for k in range(24):
            x, t = rng.normal(size=(8, 3, 10, 10)).astype(np.float32), rng.integers(0, 10, (8, 1))
            seen.append(step(*map(nn.Variable.from_numpy_array, (x, t)), k))
        states = [v for s in solver.get_states().values() for v in s.pstate.values()]
        every = [*seen, *nn.get_parameters(grad_only=False).values(), *states]
        return [np.array(v.d) for v in every], step

    context = nn.ext_utils.get_extension_context("cpu", type_config=types)
    with nn.context_scope(context), nn.auto_forward():
        wanted, _ = run(plain)
        found, step = run(speculating)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    assert step.report().speculated > 6 and step.report().cancelled > 2


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(TypeError, match="coexecution: speculate is 1, wanted True or False"):
        nn.coexecution(speculate=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="speculate=True and ahead=1: one thread runs either"):
        nn.coexecution(ahead=1, speculate=True)


@pytest.mark.parametrize("ways", ["early", "late"])
def test_effects_happen_once(ways: str, monkeypatch: Any) -> None:
    """Those of functions written in Python, which cut steps, and of updates."""
    monkeypatch.setattr("nnl.coexec.plans.expectations.MOST_REST", 0)
    schedule = Schedule(0, ways)
    use(schedule, monkeypatch)
    seen: list[float] = []

    class Noted(nn.function.PythonFunction):  # type: ignore[misc]
        def min_outputs(self) -> int:
            return 1

        def setup_impl(self, inputs: Any, outputs: Any) -> None:
            outputs[0].reset_shape(inputs[0].shape, True)

        def forward_impl(self, inputs: Any, outputs: Any) -> None:
            seen.append(float(inputs[0].d.sum()))
            outputs[0].d = inputs[0].d

        def backward_impl(self, inputs: Any, outputs: Any, down: Any, accum: Any) -> None:
            seen.append(float(outputs[0].g.sum()))
            inputs[0].g = outputs[0].g + (inputs[0].g if accum[0] else 0)

    def train(wrap: Any) -> list[Any]:
        seen.clear()
        x, w = variable(2, 3), variable(2, 3, seed=1)
        w.need_grad = True
        solver = S.Adam(0.1)
        solver.set_parameters({"w": w})

        def step(k: int) -> None:
            h = F.tanh(F.sin(x) * w)
            y = Noted()(F.cos(h) * w) + h
            if k % 5 == 4:
                y = F.exp(y)
            solver.zero_grad()
            F.sum(y * w).backward(clear_buffer=True)
            solver.update()

        wrapped = wrap(step)
        for k in range(20):
            wrapped(k)
        return [*seen, w.d.copy()]

    with nn.context_scope(nn.Context(["numpy:float"])), nn.auto_forward():
        wanted, found = train(same), train(speculating)
    assert len(found) == len(wanted) == 41 and schedule.begun > 12
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
