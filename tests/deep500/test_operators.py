# SPDX-License-Identifier: Apache-2.0
"""Level 0: ONNX's tests on back ends. The oracle is the onnx package; wrong results are results."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")


import nnl.deep500 as d5  # noqa: E402
from nnl.deep500 import gradients, operators, timing  # noqa: E402
from nnl.deep500.cases import cases  # noqa: E402
from nnl.deep500.networks.reference import ReferenceNetwork, ReferenceVisitor  # noqa: E402
from tests.deep500 import counted, models, recurrent  # noqa: E402
from tests.deep500.test_contract import in_tensorflow, installed  # noqa: E402


@cache
def node_tests():
    return list(cases())


def named(*names):
    wanted = {f"test_{n}" for n in names}
    return [c for c in node_tests() if c.name in wanted]


@pytest.mark.long
@pytest.mark.parametrize(
    ("backend", "least", "tests"),
    [
        ("nnl", 170, 1860),
        ("torch", 137, 1590),
        ("openvino", 137, 1350),
        ("onnxruntime", 160, 1550),
        ("reference", 45, 430),
    ],
)
def test_back_ends_run_what_they_ran(backend, least, tests):
    """And what the page of operators says; 137 are 80 % of the operators on float32."""
    all_of, passed, of, good = counted.counted(installed(backend))
    assert (all_of, of) == (1884, 171) and good >= least and passed >= tests


@pytest.mark.long
def test_tensorflow_runs_most_operators():
    told = in_tensorflow("tests.deep500.counted", "tensorflow").split()[-4:]
    all_of, passed, of, good = map(int, told)
    assert (all_of, of) == (1884, 171) and good >= 0.8 * of and passed >= 1600


@pytest.mark.long
def test_recurrent_layers_of_tensorflow_are_those_of_nnl():
    assert in_tensorflow("tests.deep500.recurrent", "tensorflow", "nnl:numpy").split()[-1] == "54"


def test_recurrent_layers_are_those_of_onnx_runtime():
    """Directions, lengths, states, peepholes, activations and clipping; gradients are nnl's."""
    for backend in (installed("torch"), "nnl"):
        assert recurrent.check(backend, installed("onnxruntime")) == 54
    recurrent.check_gradients("torch", "nnl")


def test_operators_made_of_others_pass_on_torch():
    names = (
        *("lstm_with_peepholes", "gru_batchwise", "simple_rnn_batchwise", "scan9_sum"),
        *("dft_axis", "dft_irfft", "stft_with_window", "melweightmatrix", "col2im_pads"),
        *("matmulinteger", "convinteger_with_padding", "qlinearmatmul_2D_uint8_float32"),
        *("qlinearconv", "dynamicquantizelinear", "maxunpool_export_with_output_shape"),
        *("bitcast_float32_to_int32", "shrink_soft", "cast_FLOAT_to_FLOAT8E5M2", "gemm_alpha"),
        *("maxpool_2d_pads", "maxpool_2d_same_lower", "maxpool_2d_uint8", "maxpool_3d_default"),
    )
    found = list(operators.check(named(*names), installed("torch")))
    assert len(found) == len(names)
    assert {r.test: r.reason for r in found if r.status != "pass"} == {}


def test_onnx_runtime_gets_models_of_versions_that_it_does_not_know():
    model = replace(models.linear(), ir_version=14, opsets={"": onnx.defs.onnx_opset_version()})
    x = np.ones((1, 3), np.float32)
    (y,) = d5.network(model, installed("onnxruntime")).inference({"x": x}).values()
    np.testing.assert_allclose(y, x @ model.graph.initializers["w"], rtol=1e-6)


def test_a_method_may_leave_a_node_to_the_body_that_onnx_has(monkeypatch):
    visitor = pytest.importorskip("nnl.deep500.networks.torch_visitor").TorchVisitor
    monkeypatch.setattr(visitor, "visit_Gelu", lambda self, node, x: NotImplemented)
    found = list(operators.check(named("gelu_default_1", "gelu_tanh_2"), "torch"))
    assert [r.status for r in found] == ["pass", "pass"]


def test_a_wrong_result_is_a_result(monkeypatch):
    class Off(ReferenceVisitor):
        def visit_Add(self, node, a, b):
            return a + b + 1, lambda g: (g, g)

        def visit_Relu(self, node, x):
            raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(ReferenceNetwork, "visitor", Off())
    found = list(operators.check(named("add", "relu", "exp", "gru_defaults"), "reference"))
    assert [(r.test, r.status) for r in found] == [
        ("test_add", "wrong"),
        ("test_exp", "pass"),
        ("test_gru_defaults", "missing"),
        ("test_relu", "failed"),
    ]
    assert "60 of 60 numbers differ, by up to 1" in found[0].reason
    assert "ai.onnx.GRU" in found[2].reason
    assert found[3].reason == "ZeroDivisionError: on purpose"


def test_addition_is_exact():
    """The thesis reports errors of up to 4 for it, which its own harness made."""
    for backend in ("reference", "nnl", installed("torch")):
        (r,) = operators.accuracy(named("add"), backend)
        assert r.status == "pass" and r.numbers["max_error"] == 0
        assert 0 < r.numbers["max_ulp"] <= 0.5  # float32 rounds once


def test_errors_are_measured_in_units_of_the_last_place():
    (r,) = operators.accuracy(named("exp"), "reference")
    assert r.numbers["mean_error"] <= r.numbers["max_error"] and 0 < r.numbers["max_ulp"] < 4


def test_times_come_with_their_interval_and_the_first_run_apart():
    (r,) = operators.timing(named("matmul_2d"), "nnl", runs=15)
    n = r.numbers
    assert n["runs"] == 15 and 0 < n["low_s"] <= n["median_s"] <= n["high_s"] and n["first_s"] > 0
    assert n["flops"] == 2 * 3 * 4 * 3 and n["bytes"] == 4 * (3 * 4 + 4 * 3 + 3 * 3)
    assert n["low_us"] <= n["overhead_us"] <= n["high_us"] < 1e6 * n["high_s"]
    assert n["baseline"] == "plain program"


def test_overhead_stands_beside_every_time_with_what_it_is_over():
    (r,) = operators.timing(named("matmul_2d"), "reference", runs=3)
    assert r.numbers["runs"] == 3 and r.numbers["baseline"] == "own call"  # it has no plain program
    assert r.numbers["low_us"] <= r.numbers["overhead_us"] <= r.numbers["high_us"]


def test_the_own_call_does_all_but_the_checks_of_inputs():
    (case,) = named("matmul_2d")
    net = operators.opened(case, "reference")
    call, what = operators.plain(net, case.data[0][0])
    (found,), (wanted,) = call().values(), net.inference(case.data[0][0]).values()
    assert what == "own call" and (found == wanted).all()


def test_overhead_is_the_median_of_paired_differences():
    """The machine gets slower in the middle; every pair differs by 2 us, in one it pauses."""
    pairs = [((s, s), (s + 2e-6, s + 1e-6)) for s in (1e-3, 1e-3, 5e-3, 5e-3, 5e-3)]
    pairs.append(((1e-3, 1e-3), (9.0, 1e-3 + 1e-6)))
    found = timing.overhead(pairs)
    assert found["overhead_us"] == pytest.approx(2) and found["processor_us"] == pytest.approx(1)
    assert found["overhead"] == pytest.approx(2e-6 / 3e-3)


@pytest.mark.parametrize("backend", ["nnl", "torch", "onnxruntime", "openvino"])
def test_plain_programs_give_the_same(backend):
    (case,) = named("basic_conv_with_padding")
    net = operators.opened(case, installed(backend))
    (y,) = net.plain_inference(case.data[0][0])()
    np.testing.assert_allclose(y, case.data[0][1]["y"], rtol=1e-5)


def test_flops_of_a_convolution_are_its_multiply_adds():
    case = next(c for c in node_tests() if c.name == "test_basic_conv_with_padding")
    inputs, outs = case.data[0]
    assert operators.flops(case, inputs, outs) == 2 * 25 * 9


def test_the_interval_of_a_median_needs_no_distribution():
    s = timing.summary(list(range(100)))
    assert (s["median_s"], s["low_s"], s["high_s"]) == (49.5, 40, 59)
    assert timing.summary([3.0]) == {"median_s": 3.0, "low_s": 3.0, "high_s": 3.0, "runs": 1}


@pytest.mark.parametrize("backend", ["reference", "nnl", "torch"])
def test_gradients_are_the_numeric_ones(backend):
    names = (
        "add_bcast",
        "matmul_3d",
        "gemm_all_attributes",
        "basic_conv_with_padding",
        "softmax_axis_1",
    )
    names += (
        "batchnorm_example_training_mode",
        "maxpool_2d_default",
        "averagepool_2d_pads",
        "tanh",
    )
    tests = named(*names)
    found = list(gradients.gradients(tests, installed(backend)))
    assert len(found) == len(names)
    assert {r.test: r.reason for r in found if r.status != "pass"} == {}
    assert max(r.numbers["gradient_error"] for r in found) < 1e-3


def test_where_there_is_no_gradient_the_result_is_undefined():
    found = gradients.gradients(
        named("pow", "sign", "log", "argmax_default_axis_example", "abs"), "nnl"
    )
    reasons = {r.test: (r.status, r.reason) for r in found}
    assert reasons["test_pow"][0] == "pass"
    assert reasons["test_sign"] == ("undefined", "x: no derivative at this point")
    assert reasons["test_argmax_default_axis_example"][0] == "undefined"


def test_a_power_outside_of_its_domain_is_no_nan():
    (case,) = named("pow")
    x, y = case.data[0][0]["x"].copy(), case.data[0][0]["y"]
    x.flat[0] = -2.0
    changed = type(case)(
        case.name, case.kind, case.model,
        [({"x": x, "y": y + 0.5}, case.data[0][1])], case.rtol, case.atol, case.source,
    )  # fmt: skip
    (r,) = gradients.gradients([changed], "nnl")
    assert r.status == "undefined" and "outside of the operator's domain" in r.reason


def test_a_wrong_gradient_is_found(monkeypatch):
    class Off(ReferenceVisitor):
        def visit_Tanh(self, node, x):
            return np.tanh(x), lambda g: (g,)

    monkeypatch.setattr(ReferenceNetwork, "visitor", Off())
    (r,) = gradients.gradients(named("tanh"), "reference")
    assert r.status == "wrong" and "wanted" in r.reason and r.numbers["gradient_error"] > 0.1


def test_tests_are_chosen_by_patterns_and_by_a_predicate():
    found = [c.name for c in cases(["test_add*"], ["*uint*", "*_int*"], lambda n: "b" in n)]
    assert found == ["test_add_bcast"]


def test_the_table_of_operators_counts_what_did_not_run():
    found = list(operators.check(named("add", "relu", "gru_defaults"), "reference"))
    assert operators.coverage(found) == {
        "Add": {"reference": (1, 1)}, "GRU": {"reference": (0, 1)}, "Relu": {"reference": (1, 1)},
    }  # fmt: skip
    page = operators.coverage_page(found, "onnx 1")
    assert "| GRU | 0 of 1 |" in page and "| operators that pass a test | 2 |" in page


def test_networks_pass_too():
    """Level 1 by the same check: ONNX's tests of several nodes."""
    tests = list(cases(kind="simple"))
    found = list(operators.check(tests, "nnl"))
    assert len(found) > 10 and all(r.status == "pass" for r in found), [r.reason for r in found]
