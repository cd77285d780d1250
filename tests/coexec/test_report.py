# SPDX-License-Identifier: Apache-2.0
"""What co-execution tells of steps: the report, shadow mode, freezing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.coexec.plans.paths import PathPlan
from nnl.coexec.policy.payoff import runs_before_plan
from nnl.core.ops.op import OPS
from nnl.ext_utils import get_extension_context
from tests.coexec.steps import Step, Trainer, train, variable

pytestmark = pytest.mark.usefixtures("dynamic")


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


def test_a_fallback_says_what_was_new_and_where() -> None:
    @nn.coexecute
    def step(k: int) -> nn.Variable:
        x = variable(2, 3)
        if k == 5:
            return F.sum(x, axis=1)
        if k == 6:
            x = F.tanh(x)
        return F.sum(x, axis=0, keepdims=k == 7)

    for k in range(8):
        step(k)
    line = step.__wrapped__.__code__.co_firstlineno
    assert step.report().fallbacks == [
        f"new call of sum at test_report.py:{line + 4}",
        f"new call of tanh at test_report.py:{line + 6}",
        f"attribute keep_dims of sum is True, was False, at test_report.py:{line + 7}",
    ]


def test_a_trace_is_what_was_called() -> None:
    called: list[tuple[str, dict[str, Any], tuple[int, ...]]] = []

    def note(f: Any) -> None:
        called.append((f.node.op.name, f.node.attrs.as_dict(), f.outputs[0].shape))

    def step(x: nn.Variable) -> nn.Variable:
        y = F.sum(x, axis=1, keepdims=True)
        y, z = F.tanh(y) + y, F.transpose(x, (1, 0))
        return F.batch_matmul(z, y)

    co = nn.coexecute(step)
    co(variable(2, 3))
    nn.set_function_post_hook("note", note)
    try:
        step(variable(2, 3))
    finally:
        nn.unset_function_post_hook("note")
    nodes = co.report().graph.body.nodes
    assert [(n.op, n.attrs.as_dict()) for n in nodes] == [c[:2] for c in called]
    line = step.__code__.co_firstlineno
    assert [str(n.location) for n in nodes] == [
        f"test_report.py:{line + i}" for i in (1, 2, 2, 2, 3)
    ]
    total, tanh, add, turned, _ = nodes
    operands = [n.operands for n in nodes]
    assert operands[1:3] == [((total, 0),), ((tanh, 0), (total, 0))]
    assert operands[4] == ((turned, 0), (add, 0))
    assert all(source[0] is None for i in (0, 3) for source in operands[i])


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
    name = "test_report.py"
    assert (
        step.report().explain()
        == f"""2 traces
mul_scalar ({name}:{line + 2}) x2
tanh ({name}:{line + 4}) x1
exp ({name}:{line + 5}) x2, 2 operand variants"""
    )


def rounds(solver: Any, n: int, width: int = 4) -> nn.Variable:
    """A step whose loop goes round n times."""
    h = variable(3, width)
    for k in range(n):
        h = F.tanh(
            PF.affine(h, width, name="h") + PF.affine(variable(3, 2, seed=k), width, name="x")
        )
    loss = F.mean(h**2)
    if not solver.get_parameters():
        solver.set_parameters(nn.get_parameters())
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    solver.update()
    return loss


def test_a_number_of_rounds_that_was_not_seen_is_no_new_trace() -> None:
    found = []
    for wrap in (lambda f: f, nn.coexecute):
        nn.clear_parameters()
        nn.seed(1)
        step, solver = wrap(rounds), S.Adam(0.01)
        with nn.context_scope(get_extension_context("numpy")):
            found.append([float(step(solver, n).d) for n in (2, 3, 2, 7, 4, 3, 5, 2, 7)])
    assert found[0] == found[1]
    report = step.report()
    assert (report.traces, report.fallbacks) == (1, [])


@pytest.mark.parametrize("width,beyond,planned", [(4, 0.3, 0), (512, 0.3, 5), (512, 1e-6, 0)])
def test_many_paths_have_plans_only_where_these_save_something(
    monkeypatch: pytest.MonkeyPatch, width: int, beyond: float, planned: int
) -> None:
    monkeypatch.setattr("nnl.coexec.plans.paths.runs_before_plan", runs_before_plan)
    monkeypatch.setattr("nnl.coexec.plans.blocks.BEYOND", beyond)
    nn.clear_parameters()
    made = []
    init = PathPlan.__init__
    monkeypatch.setattr(
        PathPlan, "__init__", lambda self, *args: (made.append(len(args[0])), init(self, *args))[1]
    )
    step, solver = nn.coexecute(rounds), S.Sgd(0.01)
    for n in range(1, 7):
        for _ in range(12):
            step(solver, n, width)
    assert len(made) == planned


def test_functions_that_do_not_say_what_they_cost_have_plans_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user's own function needs no `cost`."""
    monkeypatch.setattr("nnl.coexec.plans.paths.runs_before_plan", runs_before_plan)
    monkeypatch.delattr(OPS["affine"].attrs_class.__mro__[1], "cost")
    step = nn.coexecute(lambda x: F.affine(x, variable(3, 2, seed=1)))
    found = [step(variable(4, 3)).d.copy() for _ in range(20)]
    assert all(np.array_equal(y, found[0]) for y in found)
    assert step.report().fallbacks == []


def test_freeze_gives_the_step_without_its_python(tmp_path: Any) -> None:
    trainer = Trainer(S.Momentum(0.1))
    calls = []

    def f(x: nn.Variable, t: nn.Variable) -> nn.Variable:
        calls.append(1)
        return trainer.step(x, t)

    step = nn.coexecute(f)
    t = nn.Variable.from_numpy_array(np.zeros((4, 1), np.int64))
    with pytest.raises(ValueError, match="^freeze: no step has run, so no path is known: run some"):
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


def test_a_profile_has_the_times_of_python_and_of_what_ran(tmp_path: Any) -> None:
    @nn.coexecute
    def step(x: nn.Variable) -> nn.Variable:
        y = x * 2
        if float(F.sum(y).d) > 0:  # always
            y = F.exp(y)
        return y

    x = nn.Variable.from_numpy_array(np.ones((2, 3), np.float32))
    path = tmp_path / "trace.json"
    with nn.profile(str(path)) as p:
        for _ in range(4):
            step(x)
        x * 3  # belongs to no step
    step(x)
    assert len(p.spans) == 4 * (1 + 2 + 3)
    last = sorted(p.spans[-6:], key=lambda s: (s.start_ns, -s.time_ns))
    whole, *parts = last
    assert whole.name == "step 4" and whole.facts == {"is new": False}
    assert [s.name for s in parts] == ["Python", "run", "Python", "run", "Python"]
    line = step.__wrapped__.__code__.co_firstlineno
    assert [s.facts for s in parts[1::2]] == [
        {"calls": 2, "asked at": f"test_report.py:{line + 3}"},
        {"calls": 1, "asked at": "the end of the step"},
    ]
    ends = [s.start_ns for s in parts[1:]] + [whole.end_ns]
    assert parts[0].start_ns == whole.start_ns and [s.end_ns for s in parts] == ends
    events = json.loads(path.read_text())["traceEvents"]
    assert len(events) == len(p.spans) + len(p.events)
    inside = [
        (e["name"], e["args"]["layer"])
        for e in events
        for run in parts[1::2]
        if e["cat"] != "coexecution" and run.start_ns / 1e3 - 1 < e["ts"] < run.end_ns / 1e3
    ]
    assert inside[0][0] in ("mul_scalar", "fused_elementwise")
    assert inside[-1] == ("exp", f"(test_report.py:{line + 4})")
    first = [(e.op, e.layer) for e in p.events[:2]]  # call by call
    assert first == [
        ("mul_scalar", f"(test_report.py:{line + 2})"), ("sum", f"(test_report.py:{line + 3})"),
    ]  # fmt: skip
    assert p.events[-1].op == "mul_scalar"


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
    def wrong(self: Any, wanted: Any, values: Any) -> None:
        run(self, wanted, values)
        space, buf = values[1]
        values[1] = space, buf + 1

    run = PathPlan.run
    monkeypatch.setattr(PathPlan, "run", wrong)
    step = nn.coexecute(lambda x: (x * 2, F.tanh(x), F.exp(x)), shadow=1)
    for _ in range(3):
        step(variable(3))
    first = step.report().differences[0]
    assert first.startswith("step 1: tanh (test_report.py:")
    assert "): output 0 differs by " in first and first.endswith(" of its largest value")
    assert str(step.report()).endswith(step.report().differences[-1])


def test_shadow_must_be_a_count() -> None:
    with pytest.raises(ValueError) as e:
        nn.coexecution(shadow=-1)
    assert str(e.value) == "coexecution: shadow is -1, wanted an int >= 0"


def test_only_functions_can_be_coexecuted() -> None:
    with pytest.raises(TypeError, match="^coexecute: f is int, wanted a function$"):
        nn.coexecute(3)  # type: ignore[arg-type]
