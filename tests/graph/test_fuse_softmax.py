# SPDX-License-Identifier: Apache-2.0
"""Softmax with a scale and a mask in one step."""

import pytest

import nnl.functions as F
from tests.graph.fusion import leaf, passes_are_verified, steps_of  # noqa: F401

pytestmark = pytest.mark.usefixtures("passes_are_verified")


def graph(scale=None, mask=None, axis=2, after=None, mask_grad=False):
    def build():
        x = leaf(2, 9, 17)
        h = x if scale is None else x * scale
        leaves = [x]
        if mask is not None:
            m = leaf(*mask, seed=1, need_grad=mask_grad)
            leaves += [m] * mask_grad
            h = h + m
        h = h if after is None else h * after
        return F.softmax(h, axis=axis), leaves

    return build


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("mask", [None, (1, 9, 17), (2, 1, 17), (2, 9, 1), (2, 9, 17)])
def test_scale_and_mask_join(mask, half):
    steps = steps_of(graph(0.3, mask), half=half)
    assert (steps["softmax_fused"], steps["softmax_fused_backward"]) == (1, 1)
    assert not {"softmax", "softmax_backward", "mul_scalar", "add2"} & steps.keys()
    assert "softmax_fused" in steps_of(graph(0.3, mask), train=False, half=half)


def test_a_mask_alone_and_one_with_a_gradient():
    steps = steps_of(graph(None, (1, 9, 17)))
    assert steps["softmax_fused"] == 1 and steps["softmax_backward"] == 1
    steps = steps_of(graph(0.3, (1, 9, 17), mask_grad=True))
    assert steps["softmax_fused"] == 1 and steps["softmax_backward"] == 1


def test_a_scaled_mask_is_added_before():
    steps = steps_of(graph(None, (1, 9, 17), after=0.5))
    assert steps["softmax_fused"] == 1 and steps["softmax_fused_backward"] == 1


def test_another_axis_and_scores_that_are_read_elsewhere_are_left_alone():
    assert "softmax_fused" not in steps_of(graph(0.3, axis=1))

    def read_twice():
        x = leaf(3, 8)
        h = x * 0.3
        return F.softmax(h) + F.tanh(h), [x]

    assert "softmax_fused" not in steps_of(read_twice)


@pytest.mark.parametrize("scale", [-1.5, 0.0])
def test_a_scale_that_is_not_positive(scale):
    def build():
        x = leaf(3, 6)
        return F.softmax(x * scale, axis=1), [x]

    steps_of(build)
