# SPDX-License-Identifier: Apache-2.0
"""Max pooling that remembers its maxima."""

import numpy as np
import pytest

import nnl.functions as F
from tests.graph.fusion import leaf, passes_are_verified, steps_of  # noqa: F401

pytestmark = pytest.mark.usefixtures("passes_are_verified")
FUSED = {"max_pooling_arg", "max_pooling_arg_backward"}


def pooled(shape=(2, 3, 9, 8), kernel=(3, 3), **more):
    def build():
        x = leaf(*shape)
        return F.max_pooling(F.tanh(x), kernel, **more), [x]

    return build


@pytest.mark.parametrize(
    "more", [{}, {"stride": (2, 2), "pad": (1, 1)}, {"ignore_border": False, "stride": (2, 3)}]
)
def test_the_gradient_reads_places(more):
    steps = steps_of(pooled(**more))
    assert steps.keys() >= FUSED
    assert not {"max_pooling", "max_pooling_backward"} & steps.keys()


def test_bfloat16():
    def build():  # few values, which bfloat16 holds: the same maxima, ties included
        x = leaf(2, 3, 9, 8)
        x.d = np.round(x.d * 2)
        return F.max_pooling(F.relu(x), (2, 2)), [x]

    assert steps_of(build, half=True).keys() >= FUSED


@pytest.mark.parametrize("shape, kernel", [((2, 9), (2,)), ((2, 4, 5, 6), (2, 2, 3))])
def test_one_and_three_axes(shape, kernel):
    assert steps_of(pooled(shape, kernel)).keys() >= FUSED


def test_between_convolutions():
    def build():
        x, w, v = leaf(2, 3, 9, 9), leaf(16, 3, 3, 3, seed=1), leaf(8, 16, 3, 3, seed=2)
        h = F.max_pooling(F.convolution(x, w), (2, 2), stride=(1, 1))
        return F.convolution(h, v), [x, w, v]

    steps = steps_of(build)
    assert steps.keys() >= FUSED


def test_inference_stays_as_it_is():
    steps = steps_of(pooled(), train=False)
    assert steps["max_pooling"] == 1 and not FUSED & steps.keys()


def test_other_windows_of_the_same_image_are_kept_apart():
    def build():
        x = leaf(2, 3, 9, 8)
        h = F.tanh(x)
        a, b = F.max_pooling(h, (2, 2)), F.max_pooling(h, (3, 3))
        return F.sum(a * 2.0) + F.sum(b), [x]

    steps = steps_of(build)
    assert (steps["max_pooling_arg"], steps["max_pooling_arg_backward"]) == (2, 2)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_neighbours_that_want_another_order_in_memory(before, after):
    """What the forward remembers is of no use to a gradient that runs in another order."""

    def build():
        x, w = leaf(2, 5, 6, 8), leaf(5, 5, 3, 3, seed=1)
        h = F.max_pooling(F.convolution(x, w, pad=(1, 1)) if before else x, (2, 2), stride=(2, 1))
        return F.deconvolution(h, leaf(5, 2, 3, 1, seed=2)) if after else F.tanh(h), [x, w][
            : 1 + before
        ]

    assert steps_of(build).keys() >= FUSED
