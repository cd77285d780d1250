# SPDX-License-Identifier: Apache-2.0
"""nnl.profile and Plan.summary."""

import importlib
import json

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.ext import native
from nnl.graph.execution.session import session_of

profiling = importlib.import_module("nnl.graph.printing.profile")
needs_library = pytest.mark.skipif(native.library() is None, reason="no native engine")


def graph():
    x = nn.Variable.from_numpy_array(np.ones((64, 64), np.float32))
    return F.mean(F.tanh(PF.affine(x, 32)))


def test_functions_that_run_at_once_are_counted_with_their_cost():
    x = nn.Variable.from_numpy_array(np.ones((2, 3), np.float32))
    with nn.profile() as p, nn.auto_forward():
        F.relu(x)
        F.relu(x)
    assert [e.op for e in p.events] == ["relu", "relu"]
    assert p.events[0].what == "float32[2, 3] -> float32[2, 3]"
    assert p.events[0].bytes == 48 and p.events[0].time_ns > 0


def test_nothing_is_recorded_outside_of_the_block():
    x = nn.Variable.from_numpy_array(np.ones((2, 3), np.float32))
    with nn.profile() as p, nn.auto_forward():
        pass
    with nn.auto_forward():
        F.relu(x)
    assert p.events == []


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_functions_of_every_backend_are_recorded(backend):
    x = nn.Variable.from_numpy_array(np.ones((100, 100), np.float32))
    with nn.context_scope(nn.Context([f"{backend}:float"])), nn.profile() as p, nn.auto_forward():
        F.exp(x)
    assert [e.where for e in p.events][0] in ("native", "numpy")


@needs_library
def test_steps_of_a_plan_are_recorded_with_the_flops_of_their_parts():
    y = graph()
    with nn.profile() as p:
        y.forward(clear_no_need_grad=True)
        y.backward(clear_buffer=True)
    affine = next(e for e in p.events if e.op.startswith("affine"))
    assert affine.flops >= 2 * 64 * 64 * 32
    assert affine.where == "native"
    assert p.events == sorted(p.events, key=lambda e: e.start_ns)


@needs_library
def test_plans_that_are_made_while_profiling_are_those_of_any_other_time():
    import nnl.solvers as S

    y = graph()
    solver = S.Momentum(0.1)
    solver.set_parameters(nn.get_parameters())
    with nn.profile() as p:
        y.forward(clear_no_need_grad=True)
        solver.zero_grad()
        y.backward(clear_buffer=True)
        solver.update()
    assert [e.op for e in p.events][-1] == "multi_update"
    assert {e.where for e in p.events} == {"native"}


def test_the_table_names_ops_calls_and_rates():
    x = nn.Variable.from_numpy_array(np.ones((2, 3), np.float32))
    with nn.profile() as p, nn.auto_forward():
        F.relu(x)
        F.exp(x)
    lines = str(p).splitlines()
    assert lines[0].split()[:3] == ["op", "where", "calls"]
    total = next(i for i, line in enumerate(lines) if line.startswith("total"))
    assert {line.split()[0] for line in lines[1:total]} == {"relu", "exp"}
    assert lines[total].split()[:2] == ["total", "2"]
    assert "... and 1 more" in p.table(top=1)


def test_the_trace_is_in_chromes_format(tmp_path):
    x = nn.Variable.from_numpy_array(np.ones((2, 3), np.float32))
    path = tmp_path / "trace.json"
    with nn.profile(str(path)), nn.auto_forward():
        F.relu(x)
    (event,) = json.loads(path.read_text())["traceEvents"]
    assert event["name"] == "relu" and event["ph"] == "X" and event["dur"] > 0
    assert [f.name for f in tmp_path.iterdir()] == ["trace.json"]


def test_the_summary_of_a_plan_says_where_each_step_runs():
    y = graph()
    y.forward(clear_buffer=True)
    plan = session_of([y]).plans["infer"].plan
    lines = plan.summary().splitlines()
    where = "numpy" if native.library() is None else "native"
    assert any(line.startswith("affine") and where in line for line in lines)
    assert lines[-1].startswith(f"{len(lines) - 2} steps, ")


@pytest.fixture
def one_and_ten_gflops(monkeypatch):
    """The peak of float32 and of 16-bit types; memory is infinitely fast."""
    rates = {4: 1e9, 2: 1e10}
    monkeypatch.setattr(profiling, "peak_flops", lambda target, dtype: rates[dtype.itemsize])
    monkeypatch.setattr(profiling, "peak_bytes", lambda target: float("inf"))


@pytest.mark.parametrize("kind,rate", [("float", 1.0), ("bfloat16", 10.0), ("half", 10.0)])
@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_the_share_of_the_peak_is_that_of_the_type(backend, kind, rate, one_and_ten_gflops):
    with nn.context_scope(nn.Context([f"{backend}:{kind}"])), nn.profile() as p:
        x = nn.Variable.from_numpy_array(np.ones((256, 256), np.float32))
        y = PF.affine(x, 256, with_bias=False, name=f"peak {kind}")
        y.forward()
    (line,) = [line for line in str(p).splitlines() if line.startswith("affine")]
    reached, share = (float(line.split()[k].rstrip("%")) for k in (5, 7))
    assert share == pytest.approx(100 * reached / rate, abs=1 + 0.05 * 100 / rate)


@needs_library
def test_the_summary_of_a_plan_takes_the_peak_of_the_type_of_each_step(one_and_ten_gflops):
    with nn.context_scope(nn.Context(["cpu:bfloat16"])):
        x = nn.Variable.from_numpy_array(np.ones((256, 256), np.float32))
        y = PF.affine(PF.affine(x, 256, name="peak a"), 256, name="peak b")
        with nn.profile():
            y.forward(clear_buffer=True)
        lines = session_of([y]).plans["infer"].plan.summary().splitlines()
    products = [line.split() for line in lines if line.startswith("affine")]
    assert len(products) == 2
    for line in products:
        reached, share = float(line[3]), float(line[5].rstrip("%"))
        assert share == pytest.approx(10 * reached, abs=1.5)


def test_peaks_are_measured_for_every_type():
    target = nn.get_current_context().target
    for dtype in (np.float32, np.float64, np.float16):
        assert profiling.peak_flops(target, np.dtype(dtype)) > 0
    assert profiling.peak_bytes(target) > 0
