# SPDX-License-Identifier: Apache-2.0
"""Sums as outputs of elementwise steps."""

import pytest

import nnl.functions as F
from tests.graph.fusion import leaf, passes_are_verified, steps_of  # noqa: F401

pytestmark = pytest.mark.usefixtures("passes_are_verified")


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 2), None])
@pytest.mark.parametrize("keep", [False, True])
def test_a_sum_of_a_product_is_one_step(axes, keep, half):
    def build():
        a, b = leaf(9, 8, 17), leaf(9, 8, 17, seed=1)
        return F.relu(F.sum(F.tanh(a) * b, axes, keep)), [a, b]

    steps = steps_of(build, train=False, half=half)
    alone = keep and axes == (0,)  # a result with an order in memory of its own
    assert steps["sum"] == alone and steps["fused_elementwise"] == 1


def test_the_gradient_of_a_bias_through_an_activation():
    def build():
        x, w, b, v = leaf(3, 9, 6), leaf(6, 5, seed=1), leaf(5, seed=2), leaf(5, 4, seed=3)
        h = F.affine(x, w, b, base_axis=2)
        return F.affine(h * F.sigmoid(h), v, None, base_axis=2), [x, w, b, v]

    assert "sum" not in steps_of(build)


def test_the_gradient_of_scaled_maps_between_convolutions():
    def build():
        x, w, v = leaf(2, 3, 9, 9), leaf(16, 3, 3, 3, seed=1), leaf(8, 16, 3, 3, seed=2)
        s = leaf(2, 16, 1, 1, seed=3)
        return F.convolution(F.convolution(x, w) * F.sigmoid(s), v), [x, w, v, s]

    steps = steps_of(build)
    assert "sum" not in steps and steps["fused_elementwise"]


def test_what_others_read_is_written_as_well():
    def build():
        a, b = leaf(40, 17), leaf(40, 17, seed=1)
        h = F.tanh(a) * b
        return F.affine(h, leaf(17, 3, seed=2)) * F.relu(F.sum(h, (0, 1), True)), [a, b]

    assert "sum" not in steps_of(build, train=False)


def test_two_sums_over_different_axes_take_one_step_and_one_sum():
    def build():
        a, b = leaf(40, 17), leaf(40, 17, seed=1)
        h = F.tanh(a) * b
        return F.sum(F.relu(F.sum(h, 0))) * F.sum(F.relu(F.sum(h, 1))), [a, b]

    assert steps_of(build, train=False)["sum"] >= 1


def test_short_sums_stay_alone():
    def build():
        a, b = leaf(40, 3), leaf(40, 3, seed=1)
        return F.relu(F.sum(a * b, 1)), [a, b]

    assert steps_of(build, train=False)["sum"] == 1


def test_views_of_what_is_no_longer_in_memory_go():
    """Only the bias has a gradient: a sum of what is seen under another shape."""

    def build():
        x, w, b = leaf(5, 1, 2, 1, 1), leaf(1, 2, seed=1), leaf(2, seed=2)
        x.need_grad = w.need_grad = False
        return F.affine(x, w, b, base_axis=3), [b]

    steps_of(build)
