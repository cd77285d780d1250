# SPDX-License-Identifier: Apache-2.0
"""The official ONNX backend tests; what they expect comes from the onnx package."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

pytest.importorskip("onnx")

from nnl.converters.onnx import load, report  # noqa: E402
from nnl.converters.onnx.file.errors import OnnxError  # noqa: E402

# Expected failures. Whoever mends one removes it here.
DRAWS = "expects the very numbers that another generator drew"
ROUNDS = "differs in the last digit of bfloat16: nnl computes in float32 and rounds the result"
NOISE = "expects the 2e-7 that numpy's float32 leaves of a 0, and nnl gives the 0"
EXPECTED = {
    **dict.fromkeys(("test_dft_inverse", "test_dft_inverse_opset19"), NOISE),
    **dict.fromkeys(
        (
            "test_bernoulli",
            "test_bernoulli_expanded",
            "test_bernoulli_double",
            "test_bernoulli_double_expanded",
            "test_bernoulli_seed",
            "test_bernoulli_seed_expanded",
        ),
        DRAWS,
    ),
    **dict.fromkeys(
        (
            f"test_attention_{name}_bf16{end}"
            for name in (
                "3d_causal",
                "4d_causal",
                "4d_padded_kv",
                "4d_causal_padded_kv",
                "4d_attn_mask_causal",
            )
            for end in ("", "_expanded")
        ),
        ROUNDS,
    ),
}


@cache
def of_kind(kind: str) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(report.cases(kind))


def failures(kind: str) -> dict[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        return {c.name: r for c in of_kind(kind) if (r := report.run(c)) is not None}


@pytest.mark.parametrize("kept", (True, False), ids=("plans", "interpreter"))
def test_node_cases_pass_but_for_those_that_cannot(monkeypatch, kept):
    if not kept:
        plans = "nnl.converters.onnx.running.plans"
        monkeypatch.setattr(f"{plans}.ModelPlans.run", lambda self, values: None)
    found = failures("node")
    unexpected = {n: r for n, r in found.items() if n not in EXPECTED}
    assert not unexpected
    assert len(of_kind("node")) >= 1800


@pytest.mark.parametrize("kind", ("simple", "pytorch-converted", "pytorch-operator"))
def test_other_cases_pass(kind):
    assert failures(kind) == {}
    assert (
        len(of_kind(kind)) >= {"simple": 23, "pytorch-converted": 82, "pytorch-operator": 35}[kind]
    )


def test_training_operators_pass():
    words = ("adagrad", "adam", "momentum", "gradient")
    chosen = [
        c
        for c in (*of_kind("node"), *of_kind("simple"))
        if any(w in c.name for w in words) and not c.expanded
    ]
    assert len(chosen) == 9
    assert [c.name for c in chosen if report.run(c)] == []


@pytest.mark.long
def test_light_models_with_random_weights_equal_onnxruntime():
    pytest.importorskip("onnxruntime")
    assert failures("real") == {}
    assert len(of_kind("real")) == 9


# What decides the shape of the result, or needs exact integers, has to be known in a static graph.
NEEDS_VALUES = (
    "adagrad adam ai_onnx_ml bitcast maxpool momentum nesterov nonmaxsuppression resize "
    "roialign unique upsample"
).split()


# messages of what a static graph cannot know: how often a loop runs that begins with rows, ...
ABOUT_VALUES = ("needs the number in", "only values of the run say", "wanted an empty one")


@pytest.mark.long
@pytest.mark.parametrize("integers", (False, True))
def test_node_cases_also_pass_as_static_graphs_that_train(integers):
    """Floats are Variables, integers too if asked for; backward runs wherever it can."""
    wrong = {}
    for case in of_kind("node"):
        if not case.common or case.name in EXPECTED:
            continue
        net = load(case.model.SerializeToString())
        for inputs, wanted in case.data:
            try:
                reason = _static(net, inputs, wanted, case, integers)
            except OnnxError as e:
                about_values = any(s in str(e) for s in ABOUT_VALUES)
                listed = any(case.name.startswith(f"test_{w}") for w in NEEDS_VALUES)
                if about_values and (integers or listed):
                    continue
                reason = str(e)
            if reason:
                wrong[case.name] = reason
    assert wrong == {}


def _static(net: Any, inputs: Any, wanted: Any, case: Any, integers: bool) -> str | None:
    def given_as(x: Any) -> Any:
        if not isinstance(x, np.ndarray) or (x.dtype != np.float32 and not integers):
            return x
        return nn.Variable.from_numpy_array(x, need_grad=x.dtype == np.float32)

    given = [given_as(x) for x in inputs]
    outputs = net(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    variables = _variables(outputs)
    with np.errstate(all="ignore"):
        if variables:
            nn.forward_all(variables)
        for y, w in zip(outputs, wanted, strict=True):
            if reason := report.difference(_values(y, w), w, case.rtol, case.atol):
                return reason
        total = None
        for y in variables:
            if y.need_grad:
                total = F.sum(y) if total is None else total + F.sum(y)
        if total is not None:
            total.forward()
            total.backward()
    return None


def _variables(outputs: Any) -> list[nn.Variable]:
    found = []
    for y in outputs:
        if isinstance(y, list):
            found += _variables(y)
        elif isinstance(y, nn.Variable):
            found.append(y)
    return found


def _values(y: Any, wanted: Any) -> Any:
    if isinstance(y, list):
        return [_values(a, b) for a, b in zip(y, wanted, strict=True)]
    return y.d.astype(wanted.dtype) if isinstance(y, nn.Variable) else y
