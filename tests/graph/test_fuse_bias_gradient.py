# SPDX-License-Identifier: Apache-2.0
"""Gradients of a convolution by weights and bias in one step, and those of a table used twice."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.graph.execution.session import session_of
from tests.graph.fusion import leaf, passes_are_verified, steps_of  # noqa: F401

pytestmark = pytest.mark.usefixtures("passes_are_verified")


def graph(x_shape, w_shape, bias=True, **more):
    def build():
        x, w, b = leaf(*x_shape), leaf(*w_shape, seed=1), leaf(w_shape[0], seed=2)
        u = leaf(x_shape[-1], x_shape[-1], seed=3)  # makes the data bfloat16
        h = F.affine(x, u, base_axis=len(x_shape) - 1) * 0.1
        y = F.convolution(h, w, b if bias else None, **more)
        return F.tanh(y), [x, w] + [b] * bias

    return build


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    "x, w, more",
    [
        ((2, 4, 9, 8), (16, 4, 3, 3), {}),
        ((2, 4, 9, 8), (16, 4, 3, 3), {"pad": (1, 1), "stride": (2, 2)}),
        ((2, 4, 9, 8), (4, 1, 3, 3), {"group": 4}),
        ((2, 4, 9), (8, 4, 3), {}),
        ((2, 9, 8, 4), (8, 3, 3, 4), {"channel_last": True}),
    ],
)
def test_one_step_for_both_in_bfloat16(x, w, more, half):
    steps = steps_of(graph(x, w, **more), half=half)
    assert steps["convolution_weight_bias"] == half
    assert steps["convolution_weight"] == (not half)
    assert "sum" not in steps or not half


def test_without_bias_there_is_nothing_to_join():
    steps = steps_of(graph((2, 4, 9, 8), (16, 4, 3, 3), bias=False), half=True)
    assert steps["convolution_weight"] == 1 and "convolution_weight_bias" not in steps


def test_a_transposed_convolution_sums_another_array():
    def build():
        x, w, b = leaf(2, 4, 5, 5), leaf(4, 3, 3, 3, seed=1), leaf(3, seed=2)
        return F.tanh(F.deconvolution(F.affine(x, leaf(5, 5), base_axis=3) * 0.1, w, b)), [x, w, b]

    assert "convolution_weight_bias" not in steps_of(build, half=True)


def test_rows_are_added_to_the_gradient_that_is_there():
    index = nn.Variable.from_numpy_array(np.random.default_rng(0).integers(0, 70, (3, 5)))

    def build():
        w = leaf(70, 9)
        h = F.reshape(F.tanh(F.embed(index, w)), (15, 9))
        return F.softmax(F.batch_matmul(h, w, transpose_b=True)), [w]

    steps = steps_of(build)
    assert steps["embed_backward"] == 1 and "add2" not in steps


def test_what_dies_in_a_result_has_no_memory_of_its_own():
    a, b = leaf(1, 300, 40), leaf(1, 40, 300, seed=1)
    y = F.softmax(F.batch_matmul(a, b))
    y.forward(clear_buffer=True)
    x = np.exp(a.d[0].astype(np.float64) @ b.d[0])
    np.testing.assert_allclose(y.d[0], x / x.sum(1, keepdims=True), rtol=1e-4, atol=1e-7)
    plan = session_of([y]).plans["infer"].plan
    assert plan.naive_bytes < y.d.nbytes
