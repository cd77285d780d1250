# SPDX-License-Identifier: Apache-2.0
"""Zeros around what a convolution reads become its own padding, if nothing else sees them."""

import pytest

import nnl.functions as F
from tests.graph.fusion import leaf, passes_are_verified, steps_of  # noqa: F401

pytestmark = pytest.mark.usefixtures("passes_are_verified")


def padded(width, pad=(0, 0), mode="constant", value=0.0, last=False, **more):
    def build():
        shapes = ((2, 9, 8, 4), (6, 3, 3, 4)) if last else ((2, 4, 9, 8), (6, 4, 3, 3))
        x, w = (leaf(*s, seed=i) for i, s in enumerate(shapes))
        h = F.pad(x, width, mode, value)
        y = F.convolution(h, w, pad=pad, channel_last=last, **more)
        return (F.sum(y * y) + F.sum(F.convolution(h, w, channel_last=last))), [x, w]

    return build


@pytest.mark.parametrize(
    ("width", "more"),
    [
        ((1, 1, 2, 2), {}),
        ((2, 2), {"pad": (1, 0), "stride": (2, 2)}),
        ((0, 0, 0, 0, 3, 3, 1, 1), {"dilation": (2, 1)}),
        ((1, 1, 2, 2, 0, 0), {"last": True}),
    ],
)
def test_zeros_of_the_same_number_at_both_ends(width, more):
    assert steps_of(padded(width, **more), train=False)["pad"] == 0
    steps_of(padded(width, **more))


@pytest.mark.parametrize(
    ("width", "more"),
    [
        ((0, 1, 0, 1), {}),
        ((1, 1, 1, 1), {"value": 0.5}),
        ((1, 1, 1, 1), {"mode": "reflect"}),
        ((1, 1, 1, 1), {"last": True}),
        ((1, 1, 0, 0, 0, 0, 0, 0), {}),
    ],
)
def test_other_padding_stays(width, more):
    if more.get("last"):  # of the channels, too

        def build():
            x, w = leaf(2, 9, 8, 2), leaf(6, 3, 3, 4, seed=1)
            return F.sum(F.convolution(F.pad(x, width), w, channel_last=True)), [x, w]
    else:
        build = padded(width, **more)
    assert steps_of(build, train=False)["pad"] == 1


def test_what_is_read_elsewhere_stays():
    def build():
        x, w = leaf(2, 4, 9, 8), leaf(6, 4, 3, 3, seed=1)
        h = F.pad(x, (1, 1, 1, 1))
        return F.sum(F.convolution(h, w)) + F.max(h), [x, w]

    assert steps_of(build, train=False)["pad"] == 1
