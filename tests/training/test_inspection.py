# SPDX-License-Identifier: Apache-2.0
"""Profilers and tracers of a small network whose functions and shapes are known."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.experimental.viewers import SimpleGraph
from nnl.utils.inspection import NanInfTracer, TimeProfiler, pprint
from nnl.utils.profiler import GraphProfiler, GraphProfilerCsvWriter, convert_time_scale

NAMES = ["Convolution", "ReLU", "Affine", "Mean"]


@pytest.fixture
def loss() -> nn.Variable:
    x = nn.Variable((2, 3, 8, 8))
    x.d = np.random.default_rng(0).normal(size=x.shape)
    return F.mean(PF.affine(F.relu(PF.convolution(x, 4, (3, 3), name="c1")), 5))


def profiled(loss: nn.Variable) -> GraphProfiler:
    solver = S.Sgd()
    solver.set_parameters(nn.get_parameters())
    profiler = GraphProfiler(loss, device_id="0", ext_name="cpu", solver=solver, n_run=3)
    profiler.run()
    return profiler


def test_graph_profiler_measures_every_function(loss: nn.Variable) -> None:
    result = profiled(loss).get_result()
    for part in ("forward", "backward"):
        assert [s.function_name for s in result[part]] == NAMES
        assert [s.parameter_scope for s in result[part]] == ["c1/conv", None, "affine", None]
        assert all(float(s.mean_time) > 0 and s.n_run == 3 for s in result[part])
    assert result["forward"][0].inputs_shape == [(2, 3, 8, 8), (4, 3, 3, 3), (4,)]
    assert dict(result["forward"][0].args_info)["stride"] == [1, 1]
    assert float(result["training"]) > 0 and result["n_run_training"] == 3


def test_graph_profiler_measures_functions_with_inputs_left_out() -> None:
    h = PF.convolution(nn.Variable((2, 3, 4, 4)), 4, (3, 3), with_bias=False)
    y = F.mean(PF.batch_normalization(h, no_bias=True))
    result = profiled(y).get_result()
    for part in ("forward", "backward"):
        names = [s.function_name for s in result[part]]
        assert names == ["Convolution", "BatchNormalization", "Mean"]
    assert result["forward"][0].inputs_shape == [(2, 3, 4, 4), (4, 3, 3, 3)]


def test_graph_profiler_leaves_parameters_as_gradients_say(loss: nn.Variable) -> None:
    w = nn.get_parameters()["c1/conv/W"]
    before = w.d.copy()
    GraphProfiler(loss, device_id="0", ext_name="cpu", n_run=2).run()
    np.testing.assert_array_equal(w.d, before)


def test_graph_profiler_writes_a_row_for_every_function(loss: nn.Variable) -> None:
    text = io.StringIO()
    GraphProfilerCsvWriter(profiled(loss), file=text).write()
    rows = list(csv.reader(io.StringIO(text.getvalue())))
    first = next(i for i, r in enumerate(rows) if r[:1] == ["parameter_scope"])
    assert [r[1] for r in rows[first + 1 : first + 5]] == NAMES
    assert all(float(r[4]) > 0 and float(r[5]) > 0 for r in rows[first + 1 : first + 5])
    assert any(r[:1] == ["training(forward + backward + update)"] for r in rows)


def test_graph_profiler_prints_its_results(loss: nn.Variable, capsys) -> None:
    profiled(loss).print_result()
    out = capsys.readouterr().out
    assert "time scale: m" in out and "function_name='Convolution'" in out and "training:" in out


def test_convert_time_scale() -> None:
    assert [convert_time_scale(1.5, u) for u in "mun"] == [1.5e3, 1.5e6, 1.5e9]
    with pytest.raises(ValueError, match="convert_time_scale: format is 's', wanted one of"):
        convert_time_scale(1.5, "s")
    with pytest.raises(ValueError, match="format is 's'"):
        GraphProfiler(nn.Variable(), "0", "cpu", time_scale="s")


def test_time_profiler_counts_by_scope_and_function(loss: nn.Variable, tmp_path: Path) -> None:
    p = TimeProfiler("cpu", "0")
    for _ in range(3):
        with p.scope("forward"):
            loss.forward(function_pre_hook=p.pre_hook, function_post_hook=p.post_hook)
        with p.scope("backward"):
            loss.backward(function_pre_hook=p.pre_hook, function_post_hook=p.post_hook)
        p.calc_elapsed_time(["forward", "backward", "summary"])
    results = p.get_all_results()
    assert list(results["forward"]) == [f"{n}_0" for n in NAMES]
    assert set(results["backward"]) == set(results["forward"])
    assert all(len(times) == 3 for part in results.values() for times in part.values())
    assert sum(map(sum, results["forward"].values())) < sum(results["summary"]["forward"])
    p.to_csv(str(tmp_path / "new"))
    with open(tmp_path / "new" / "profile_detail.csv", newline="") as f:
        rows = list(csv.DictReader(f))
    assert len(rows) == 8 and {r["num"] for r in rows} == {"2"}  # the first iteration is left out


def test_time_profiler_prints_means(loss: nn.Variable, capsys) -> None:
    p = TimeProfiler("cpu", "0")
    with p.scope("forward"):
        loss.forward(function_pre_hook=p.pre_hook, function_post_hook=p.post_hook)
    p.calc_elapsed_time("forward")
    p(ignore_init=False)
    assert "Convolution_0" in capsys.readouterr().out


def test_tracer_names_the_function_that_gave_nan() -> None:
    tracer = NanInfTracer()
    y = F.relu(F.log(nn.Variable.from_numpy_array([-1.0, 1.0])) + 1)
    with pytest.raises(
        ValueError, match=r"forward of Log \(rank 0\): output 0 has a NaN.*sharp_bits#when-a-tr"
    ):
        with tracer.trace():
            y.forward(function_post_hook=tracer.forward_post_hook)
    tracer.check()  # what was found is forgotten


def test_tracer_looks_at_gradients() -> None:
    x = nn.Variable.from_numpy_array([0.0], need_grad=True)
    y = F.sum(x**0.5)
    tracer = NanInfTracer(need_details=False)
    y.forward(function_post_hook=tracer.forward_post_hook)
    y.backward(function_post_hook=tracer.backward_post_hook)
    with pytest.raises(ValueError, match="backward of PowScalar.*gradient of leaf 0 has a"):
        tracer.check()


def test_tracer_names_the_first_function_with_a_bad_gradient() -> None:
    x = nn.Variable.from_numpy_array([1.0], need_grad=True)
    y = F.sum((x - 1) ** 0.5 * 2)
    tracer = NanInfTracer(need_details=False)
    y.forward()
    y.backward(function_post_hook=tracer.backward_post_hook)
    with pytest.raises(ValueError, match="backward of AddScalar.*gradient of output 0 has a"):
        tracer.check()


def test_tracer_looks_only_for_what_is_asked() -> None:
    y = F.exp(nn.Variable.from_numpy_array([1e4]))
    tracer = NanInfTracer(trace_inf=False)
    with tracer.trace():
        y.forward(function_post_hook=tracer.forward_post_hook)
    with pytest.raises(NotImplementedError, match="pass forward_post_hook to forward"):
        tracer.post_hook  # noqa: B018


def test_pprint_prints_functions_and_statistics(loss: nn.Variable, capsys) -> None:
    functions = pprint(loss, forward=True, backward=True, summary=True, printer=True)
    out = capsys.readouterr().out
    assert [f.name for f in functions] == NAMES
    assert "c1/conv/Convolution" in out and "Depth = 4" in out and "Output Grads" in out
    assert pprint(loss) is None


def test_simple_graph_has_a_box_for_every_function(loss: nn.Variable) -> None:
    pytest.importorskip("graphviz")
    source = SimpleGraph(fname_color_map={"ReLU": "gold"}).create_graphviz_digraph(loss).source
    assert all(f"label={n} " in source for n in NAMES)
    assert source.count("->") == 8 + 4  # inputs and outputs
    assert "gold" in source and 'label="c1/conv/W"' in source
    detailed = SimpleGraph(verbose=True).create_graphviz_digraph(loss).source
    assert "(2, 3, 8, 8), need_grad=False" in detailed


def test_simple_graph_says_what_it_draws_with(loss: nn.Variable, monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "graphviz", None)
    with pytest.raises(ImportError, match="pip install graphviz"):
        SimpleGraph().create_graphviz_digraph(loss)
