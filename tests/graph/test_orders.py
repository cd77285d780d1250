# SPDX-License-Identifier: Apache-2.0
"""Which order in memory images have in a plan, and how often they are brought to another."""

import pytest

import nnl.functions as F
from tests.graph.fusion import leaf, passes_are_verified, steps_of  # noqa: F401

pytestmark = pytest.mark.usefixtures("passes_are_verified")


def convolved(shape=(2, 3, 8, 9)):
    """A convolution of data that needs no gradient, so that backward reads the data once."""
    return F.convolution(leaf(*shape, need_grad=False), w := leaf(16, 3, 3, 3, seed=1)), w


def test_data_are_brought_to_channels_last_again_for_backward():
    """Nothing is kept for it meanwhile."""

    def build():
        y, w = convolved()
        return F.sum(y * y), [w]

    assert steps_of(build)["to_layout"] == 2
    assert steps_of(build, train=False)["to_layout"] == 1


def test_a_global_average_and_what_is_scaled_by_it_stay_channels_last():
    def build():
        y, w = convolved()
        gate = F.sigmoid(F.average_pooling(y, y.shape[2:]))
        return F.sum(F.mul2(y, gate)), [w]

    steps = steps_of(build)
    assert steps["average_pooling"] == steps["average_pooling_backward"] == 1
    assert steps["to_layout"] == 2  # data only


@pytest.mark.parametrize("kernel", [5, 7])
@pytest.mark.parametrize("half", [False, True])
def test_depthwise_convolutions_with_large_windows(kernel, half):
    def build():
        x, w = leaf(2, 20, 9, 8), leaf(20, 1, kernel, kernel, seed=1)
        y = F.convolution(x, w, pad=(kernel // 2,) * 2, stride=(2, 1), group=20)
        return F.sum(y * y), [x, w]

    steps = steps_of(build, half=half)
    assert steps["convolution_weight"] == 1


def test_a_network_in_bfloat16_rounds_float32_images():
    def build():
        y, w = convolved((2, 3, 12, 11))
        return F.sum(F.tanh(y)), [w]

    assert steps_of(build, half=True)["convolution_weight"] == 1


def test_a_normalization_that_gives_its_statistics_stays_channels_last():
    def build():
        y, w = convolved()
        beta, gamma, mean, variance = (leaf(1, 16, 1, 1, seed=i) for i in range(2, 6))
        h, m, v = F.batch_normalization(y, beta, gamma, mean, variance, output_stat=True)
        return F.sum(F.tanh(h)) + F.sum(m) + F.sum(v), [w, beta, gamma]

    assert steps_of(build, train=False)["to_layout"] == 1
    assert steps_of(build)["to_layout"] == 2


FOLLOWING = {
    "pad": lambda y: F.pad(y, (1, 0, 2, 1), "constant", 0.5),
    "pad of channels": lambda y: F.pad(y, (0, 0, 0, 3, 1, 1, 0, 0)),
    "reflect": lambda y: F.pad(y, (1, 2, 2, 1), "reflect"),
    "slice": lambda y: y[:, 2:9, ::-2, 1:5],
    "mean": lambda y: F.mul2(y, F.mean(y, axis=(2, 3), keepdims=True)),
    "max of channels": lambda y: F.sub2(y, F.max(y, axis=1, keepdims=True)),
    "sum of rows": lambda y: F.mul2(y, F.sum(y, axis=3, keepdims=True)),
    "min": lambda y: F.mul2(y, F.reshape(F.min(y, axis=(2, 3)), (*y.shape[:2], 1, 1))),
    "resize": lambda y: F.interpolate(y, output_size=(12, 7), mode="nearest"),
}


@pytest.mark.parametrize("function", FOLLOWING.values(), ids=FOLLOWING)
def test_what_follows_the_order_of_its_images(function):
    def build():
        y, w = convolved()
        h = function(y)
        return F.sum(F.convolution(h, leaf(8, h.shape[1], 1, 1, seed=2))), [w]

    assert steps_of(build, train=False)["to_layout"] == 1
    steps_of(build)  # whose gradients are those of numpy
