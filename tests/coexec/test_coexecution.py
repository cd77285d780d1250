# SPDX-License-Identifier: Apache-2.0
"""nn.coexecute: what define-by-run programs rely on holds in co-executed steps as well."""

from __future__ import annotations

import gc
import logging
import resource
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.core.interpreters.interpreter import EAGER
from nnl.core.ops.python_function import PythonFunction
from nnl.core.settings.context import STATE
from tests.coexec.steps import Trainer, same, train, variable

pytestmark = pytest.mark.usefixtures("dynamic")


@pytest.mark.parametrize("context", ["numpy:float", "cpu:float", "cpu:bfloat16"])
def test_training_is_what_it_is_in_dynamic_mode(context: str) -> None:
    # dropout, running statistics, two batch sizes, training and evaluation in turn
    with nn.context_scope(nn.Context([context])):
        wanted, _ = train(same, 24, dropout=0.3, norm=True)
        found, step = train(nn.coexecute, 24, dropout=0.3, norm=True)
    tolerance = {"numpy:float": 0.0, "cpu:float": 1e-4, "cpu:bfloat16": 0.05}[context]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, tolerance, tolerance)
    assert step.report().traces <= 4  # type: ignore[attr-defined]


def test_shapes_are_there_at_once_and_nothing_is_computed() -> None:
    steps = nn.coexecution()
    x = variable(2, 3)
    with steps:
        y = F.transpose(x * 2, (1, 0))
        assert y.shape == (3, 2) and y.spec.dtype == np.float32 and not y.data.bufs
        assert steps.report().segments == 0
        np.testing.assert_array_equal(y.d, 2 * x.d.T)
    assert steps.report().segments == 1


def test_values_that_are_read_in_the_middle_end_no_step() -> None:
    seen: list[float] = []

    @nn.coexecute
    def step(x: nn.Variable) -> nn.Variable:
        y = x * 3
        seen.append(float(y.d.sum()))
        if seen[-1] > 0:
            y = y + 1
        return F.sum(y)

    for k in range(6):
        x = variable(2, 3, seed=k)
        found = float(step(x).d)
        total = 3 * x.d.sum()
        assert seen[-1] == pytest.approx(total, rel=1e-5)
        assert found == pytest.approx(total + 6 * (total > 0), rel=1e-4, abs=1e-4)
    assert step.report().segments == 12
    line = step.__wrapped__.__code__.co_firstlineno + 3
    assert step.report().reads[f"test_coexecution.py:{line}"][0] == 6
    assert f"cut at test_coexecution.py:{line} 6 times, " in str(step.report())


def test_results_that_are_kept_keep_their_values() -> None:
    step, kept, wanted = nn.coexecute(lambda x: F.exp(x * 0.5)), [], []
    for k in range(8):
        x = variable(3, 3, seed=k)
        y = step(x)
        if k % 3 == 0:
            kept.append(y)
            wanted.append(y.d.copy())
    for a, b in zip(kept, wanted, strict=True):
        np.testing.assert_array_equal(a.d, b)


def test_inputs_written_after_the_call_do_not_change_it() -> None:
    x = variable(2, 2)
    held = x.d

    @nn.coexecute
    def step() -> tuple[nn.Variable, nn.Variable]:
        a = x * 1.5
        held[...] += 1  # through a numpy array that nnl does not see
        b = x * 1.5
        x.d = x.d + 1
        return a, b

    for _ in range(4):
        before = x.d.copy()
        a, b = step()
        np.testing.assert_array_equal(a.d, before * 1.5)
        np.testing.assert_array_equal(b.d, (before + 1) * 1.5)
        np.testing.assert_array_equal(x.d, before + 2)


def test_what_was_done_before_an_exception_is_done() -> None:
    x, state = variable(3), nn.NdArray((3,))
    state.zero()

    @nn.coexecute
    def step(fail: bool) -> None:
        nonlocal state
        state += x.data
        if fail:
            raise KeyError("here")
        state += x.data

    for k in range(6):
        if k % 2:
            with pytest.raises(KeyError, match="here"):
                step(True)
        else:
            step(False)
    np.testing.assert_allclose(state.data, 9 * x.d, 1e-5)
    assert STATE.interpreter is EAGER


def test_a_number_that_changes_is_a_trace_once() -> None:
    for val in (0.2, 0.5):  # a number that an op was called with before is known to it
        F.add_scalar(F.mul_scalar(variable(4), val), val)
    step = nn.coexecute(lambda x, rate: F.sum(x * rate + rate))
    for k in range(12):
        x = variable(4, seed=k)
        assert float(step(x, 0.1 * k).d) == pytest.approx(
            float((x.d * (0.1 * k) + 0.1 * k).sum()), abs=1e-5
        )
    assert step.report().traces == 2


def test_paths_that_never_come_again_are_left() -> None:
    steps = nn.coexecution()
    fixed = variable(2)
    for k in range(40):
        with steps:
            fixed * 2
            y = F.sum(F.relu(variable(k + 1)))
        assert float(y.d) == pytest.approx(float(np.maximum(variable(k + 1).d, 0).sum()), rel=1e-5)
    assert steps._paths.size <= 12


def test_functions_written_in_python_run_once_and_in_order() -> None:
    log: list[str] = []

    class Double(PythonFunction):
        def min_outputs(self) -> int:
            return 1

        def setup_impl(self, inputs: Any, outputs: Any) -> None:
            outputs[0].reset_shape(inputs[0].shape, True)

        def forward_impl(self, inputs: Any, outputs: Any) -> None:
            log.append("forward")
            outputs[0].d = 2 * inputs[0].d

        def backward_impl(self, inputs: Any, outputs: Any, down: Any, accum: Any) -> None:
            log.append("backward")
            inputs[0].g = 2 * outputs[0].g + (inputs[0].g if accum[0] else 0)

    w = variable(3)
    w.need_grad = True
    double = Double()

    @nn.coexecute
    def step() -> None:
        y = double(w * 1.5)
        log.append("called")
        F.sum(y).backward()

    for _ in range(3):
        w.grad.zero()
        log.clear()
        step()
        assert log == ["forward", "called", "backward"]
        np.testing.assert_allclose(w.g, 3.0)


def test_hooks_see_values() -> None:
    seen: list[float] = []

    def hook(f: Any) -> None:
        seen.append(float(f.outputs[0].d.sum()))

    x = variable(4)
    step = nn.coexecute(lambda: F.sum(x * 2))
    step()
    nn.set_function_post_hook("look", hook)
    try:
        step()
    finally:
        nn.unset_function_post_hook("look")
    assert seen == pytest.approx([2 * x.d.sum()] * 2, rel=1e-5)


def test_errors_are_those_of_dynamic_mode() -> None:
    x, index = variable(3, 2), nn.Variable.from_numpy_array(np.array([[7]]))

    def step() -> Any:
        return F.embed(index, x).d

    with pytest.raises(ValueError) as wanted:
        step()
    co = nn.coexecute(step)
    for _ in range(3):
        with pytest.raises(ValueError) as found:
            co()
        assert str(found.value).split(": ")[-1] == str(wanted.value).split(": ")[-1]
        assert str(found.value).startswith("embed (test_coexecution.py:")
    with pytest.raises(nn.core.arrays.spec.ShapeError, match=r"add2: .*\[3, 2\]"), nn.coexecution():
        x + variable(2, 3)


def test_a_step_inside_of_a_step_is_refused() -> None:
    inner = nn.coexecute(lambda: None)
    with pytest.raises(ValueError) as e:
        nn.coexecute(lambda: inner())()
    assert str(e.value) == (
        "coexecution: a step begins inside of a step: wrap only the outer one "
        "(documentation: coexecution#rules)"
    )
    inner()


def test_other_threads_compute_at_once_and_may_not_read_early() -> None:
    x, found = variable(2, 2), []

    def work(y: nn.Variable) -> None:
        try:
            with nn.auto_forward():
                found.append((F.sum(x * 2).d.copy(), y.d))
        except ValueError as e:
            found.append(str(e))

    with nn.coexecution():
        y = x * 3
        thread = threading.Thread(target=work, args=(y,))
        thread.start()
        thread.join()
    assert found[0].endswith(
        "coexecution: an array of a step that another thread co-executes was read or written "
        "before the step had computed it: read it there, or after the step "
        "(documentation: coexecution#rules)"
    )
    np.testing.assert_array_equal(y.d, 3 * x.d)


def test_loss_scaling_looks_at_gradients_in_the_middle(caplog: Any) -> None:
    caplog.set_level(logging.ERROR)
    w = variable(4)
    w.need_grad = True
    solver = S.Sgd(0.1)
    solver.set_parameters({"w": w})
    scales = []

    @nn.coexecute
    def step(scale: float, x: nn.Variable) -> bool:
        solver.zero_grad()
        F.sum(w * x).backward(scale, clear_buffer=True)
        if solver.check_inf_or_nan_grad():
            return False
        solver.scale_grad(1.0 / scale)
        solver.update()
        return True

    before = w.d.copy()
    for k in range(6):
        x = nn.Variable.from_numpy_array(np.full(4, np.inf if k == 3 else 1.0, np.float32))
        scales.append(step(8.0, x))
    assert scales == [True, True, True, False, True, True]
    np.testing.assert_allclose(w.d, before - 0.5, 1e-4)


def test_many_steps_do_not_grow() -> None:
    trainer = Trainer(S.Momentum(0.01), dropout=0.5)
    steps = nn.coexecution()
    x, t = variable(2, 5), nn.Variable.from_numpy_array(np.zeros((2, 1), np.int64))
    for k in range(300):
        with steps:
            trainer.step(x, t)
        if k == 10:
            size = steps._paths.size
    assert steps._paths.size == size


def resident() -> int:
    """Bytes of memory that this process has."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_million_steps_do_not_grow() -> None:
    w = variable(1, 3)
    w.need_grad = True
    solver = S.Sgd(1e-6)
    solver.set_parameters({"w": w})
    xs = [variable(n, 3) for n in (1, 2, 5)]
    kept: list[nn.Variable] = []

    def step(k: int) -> None:
        x = xs[k % 3]
        h = F.dropout(x * w, 0.1) * (1.0 + 1.0 / (k + 1))  # never the same
        if k % 7 == 0:
            h = F.tanh(h)
        loss = F.sum(h)
        if k % 5 == 0:
            kept[:] = [h, loss.unlinked()]
            assert np.isfinite(float(loss.d))
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        solver.update()

    found, steps = [], nn.coexecution()
    for k in range(1_000_000):
        with steps:
            step(k)
        if k in (20_000, 999_999):
            steps.report().traces  # those that wait  # noqa: B018
            gc.collect()
            found.append((steps._paths.size, len(gc.get_objects()), resident()))
    (places, objects, before), (places_after, objects_after, after) = found
    assert places_after == places and objects_after < objects + 1000
    assert after - before < 4 << 20
    assert steps.report().traces < 20


def test_two_threads_need_two_of_them() -> None:
    steps, found = nn.coexecution(), []

    def work() -> None:
        try:
            with steps:
                pass
        except ValueError as e:
            found.append(str(e))

    with steps:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [
        "coexecution: a step of this program is running already: give each thread an "
        "nnl.coexecution of its own (documentation: coexecution#rules)"
    ]
    with steps:
        pass


def test_threads_with_steps_of_their_own_share_parameters() -> None:
    w, found = variable(8, 8), {}

    def work(n: int) -> None:
        step = nn.coexecute(lambda x: F.tanh(F.affine(x, w)))
        with nn.auto_forward():
            found[n] = [step(variable(4, 8, seed=k)).d.copy() for k in range(50)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for ys in found.values():
        for k, y in enumerate(ys):
            np.testing.assert_allclose(y, np.tanh(variable(4, 8, seed=k).d @ w.d), 1e-5, 1e-5)
    assert len(found) == 3


def test_what_an_error_has_kept_from_being_computed_says_so() -> None:
    x, index = variable(3, 2), nn.Variable.from_numpy_array(np.array([[7]]))

    with pytest.raises(ValueError, match="holds the index 7"), nn.coexecution():
        before, y = x * 2, F.embed(index, x)
        z = y + 1
    np.testing.assert_array_equal(before.d, 2 * x.d)
    with pytest.raises(ValueError) as e:
        _ = z.data.data
    assert str(e.value) == (
        "float32[1, 1, 2] was read after it had been given up: a function that was to run with it "
        "has failed"
    )


def test_nothing_of_the_caller_stays() -> None:
    step = nn.coexecute(lambda x: x * 2)

    def caller() -> Any:
        local = variable(4)
        step(variable(2))
        return weakref.ref(local.data)

    assert caller()() is None


def test_old_plans_go_and_come_again(monkeypatch: Any) -> None:
    monkeypatch.setattr("nnl.coexec.plans.paths.MOST_PLANS", 2)
    steps = nn.coexecution()
    for n in (2, 3, 4) * 4:
        with steps:
            y = F.exp(variable(n))
        np.testing.assert_allclose(y.d, np.exp(variable(n).d), 1e-6)
        assert len(steps._paths.planned) <= 2
        plans = [p.plan is not None for p in steps._paths.root.after.values()]
        assert sum(plans) == len(steps._paths.planned)


def test_too_many_places_are_forgotten(monkeypatch: Any) -> None:
    monkeypatch.setattr("nnl.coexec.plans.paths.MOST_PLACES", 10)
    steps = nn.coexecution()
    for n in range(40):
        with steps:
            y = F.exp(F.exp(variable(n % 20 + 1)))
        np.testing.assert_allclose(y.d, np.exp(np.exp(variable(n % 20 + 1).d)), 1e-5)
        assert steps._paths.size <= 12
