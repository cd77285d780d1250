# SPDX-License-Identifier: Apache-2.0
"""nn.coexecute: what define-by-run programs rely on holds in co-executed steps as well."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.coexec.paths import PathPlan
from nnl.core.context import STATE
from nnl.core.python_function import PythonFunction

Step = Callable[..., Any]


@pytest.fixture(autouse=True)
def dynamic() -> Any:
    with nn.auto_forward():
        yield


def variable(*shape: int, seed: int = 0) -> nn.Variable:
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return nn.Variable.from_numpy_array(x)


class Trainer:
    """A small network in the style of trainer classes, with state of its own."""

    def __init__(self, solver: Any, dropout: float = 0.0, norm: bool = False) -> None:
        nn.clear_parameters()
        nn.seed(5)
        self.solver, self.dropout, self.norm, self.loss = solver, dropout, norm, 0.0
        self.train = True

    def net(self, x: nn.Variable) -> nn.Variable:
        h = PF.affine(x, 8, name="a")
        if self.norm:
            h = PF.batch_normalization(h, batch_stat=self.train, name="n")
        h = F.relu(h)
        if self.dropout and self.train:
            h = F.dropout(h, self.dropout)
        return PF.affine(h, 3, name="b")

    def step(self, x: nn.Variable, t: nn.Variable) -> nn.Variable:
        loss = F.mean(F.softmax_cross_entropy(self.net(x), t))
        if not self.train:
            return loss
        if not self.solver.get_parameters():
            self.solver.set_parameters(nn.get_parameters())
        self.solver.zero_grad()
        loss.backward(clear_buffer=True)
        self.solver.update()
        return loss


def train(wrap: Callable[[Step], Step], steps: int, **kw: Any) -> tuple[list[Any], Any]:
    """What some steps leave: losses and parameters, and the wrapped step."""
    trainer = Trainer(S.Momentum(0.1), **kw)
    step, out = wrap(trainer.step), []
    for k in range(steps):
        trainer.train = k % 4 != 3
        n = 6 if k % 3 else 4
        t = nn.Variable.from_numpy_array(np.arange(n).reshape(n, 1) % 3)
        out.append(float(step(variable(n, 5, seed=k), t).d))
    return [*out, *[v.d.copy() for v in nn.get_parameters(grad_only=False).values()]], step


def same(f: Step) -> Step:
    return f


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


def test_a_static_program_needs_one_trace_and_one_segment_a_step() -> None:
    trainer = Trainer(S.Adam(0.1))
    step = nn.coexecute(trainer.step)
    t = nn.Variable.from_numpy_array(np.zeros((4, 1), np.int64))
    for k in range(10):
        step(variable(4, 5, seed=k), t)
    report = step.report()
    assert (report.steps, report.traces, report.fallbacks) == (10, 1, [])
    first, times = str(report).split("\n")
    assert first == "10 steps in 10 segments, 1 traces, 0 fallbacks"
    assert times == (
        f"  {report.seconds:.3f} s, {report.running / report.seconds:.0%} of it running what was "
        "put off"
    )
    assert 0 < report.running < report.seconds and not report.reads


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
    assert STATE.skeleton is None


def test_a_number_that_changes_is_a_trace_once() -> None:
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


def test_a_fallback_says_what_was_new_and_where() -> None:
    @nn.coexecute
    def step(k: int) -> nn.Variable:
        x = variable(2, 3)
        if k == 5:
            return F.sum(x, axis=1)
        if k == 6:
            x = F.tanh(x)
        return F.sum(x, axis=0)

    for k in range(8):
        step(k)
    first, second = step.report().fallbacks
    line = step.__wrapped__.__code__.co_firstlineno
    name = "test_coexecution.py"
    assert first == f"sum ({name}:{line + 4}): axes is (1,), was (0,)"
    assert second == f"tanh ({name}:{line + 6}) is called, was sum ({name}:{line + 4})"


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
    with pytest.raises(nn.core.spec.ShapeError, match=r"add2: .*\[3, 2\]"), nn.coexecution():
        x + variable(2, 3)


def test_a_step_inside_of_a_step_is_refused() -> None:
    inner = nn.coexecute(lambda: None)
    with pytest.raises(ValueError) as e:
        nn.coexecute(lambda: inner())()
    assert str(e.value) == ("coexecution: a step begins inside of a step: wrap only the outer one")
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
        "before the step had computed it: read it there, or after the step"
    )
    np.testing.assert_array_equal(y.d, 3 * x.d)


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


def test_explain_shows_what_depends_on_the_path() -> None:
    @nn.coexecute
    def step(k: int) -> nn.Variable:
        y = variable(2) * 2
        if k % 2:
            y = F.tanh(y)
        return F.exp(y)

    for k in range(4):
        step(k)
    line = step.__wrapped__.__code__.co_firstlineno
    name = "test_coexecution.py"
    assert (
        step.report().explain()
        == f"""2 traces
mul_scalar ({name}:{line + 2}) x2
switch of 2 cases
  case 1, after mul_scalar ({name}:{line + 2}): nothing
  case 2, after mul_scalar ({name}:{line + 2})
    tanh ({name}:{line + 4}) x1
exp ({name}:{line + 5}) x2, 2 operand variants"""
    )
    assert step.report().dot().count("tanh") == 1


def test_freeze_gives_the_step_without_its_python(tmp_path: Any) -> None:
    trainer = Trainer(S.Momentum(0.1))
    calls = []

    def f(x: nn.Variable, t: nn.Variable) -> nn.Variable:
        calls.append(1)
        return trainer.step(x, t)

    step = nn.coexecute(f)
    t = nn.Variable.from_numpy_array(np.zeros((4, 1), np.int64))
    with pytest.raises(ValueError, match="^freeze: f is not one path in one segment, as far as"):
        step.freeze(variable(4, 5), t)
    losses = [float(step(variable(4, 5), t).d) for _ in range(3)]
    frozen = step.freeze(variable(4, 5), t)
    assert len(calls) == 4
    losses += [float(frozen(variable(4, 5), t).d) for _ in range(3)]
    assert len(calls) == 4 and losses == sorted(losses, reverse=True)
    frozen.save(tmp_path / "step.nnlp")
    assert list(nn.load_program(tmp_path / "step.nnlp")) == ["f"]


def test_freeze_refuses_steps_that_read_values() -> None:
    step = nn.coexecute(lambda x: x * float(F.sum(x).d))
    step(variable(3))
    with pytest.raises(ValueError, match="1 steps in 2 segments, 1 traces, 0 fallbacks"):
        step.freeze(variable(3))


@pytest.mark.parametrize("context", ["numpy:float", "cpu:float"])
def test_shadow_mode_compares_and_changes_nothing(context: str) -> None:
    def shadowed(f: Step) -> Step:
        return nn.coexecute(f, shadow=2)

    with nn.context_scope(nn.Context([context])):
        wanted, _ = train(nn.coexecute, 12, dropout=0.3, norm=True)
        found, step = train(shadowed, 12, dropout=0.3, norm=True)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    assert step.report().differences == []  # type: ignore[attr-defined]


def test_shadow_mode_names_the_first_difference(monkeypatch: Any) -> None:
    def wrong(self: Any, given: Any, wanted: Any) -> Any:
        values = run(self, given, wanted)
        return {n: (space, buf + 1 if n == 1 else buf) for n, (space, buf) in values.items()}

    run = PathPlan.run
    monkeypatch.setattr(PathPlan, "run", wrong)
    step = nn.coexecute(lambda x: (x * 2, F.tanh(x), F.exp(x)), shadow=1)
    for _ in range(3):
        step(variable(3))
    first = step.report().differences[0]
    assert first.startswith("step 1: tanh (test_coexecution.py:")
    assert "): output 0 differs by " in first and first.endswith(" of its largest value")
    assert str(step.report()).endswith(step.report().differences[-1])


def test_shadow_must_be_a_count() -> None:
    with pytest.raises(ValueError) as e:
        nn.coexecution(shadow=-1)
    assert str(e.value) == "coexecution: shadow is -1, wanted an int >= 0"


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
        "nnl.coexecution of its own"
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
