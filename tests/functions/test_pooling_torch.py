# SPDX-License-Identifier: Apache-2.0
"""Pooling against PyTorch, to second order."""

import itertools

import numpy as np
import pytest

import nnl.functions as F
from nnl.functions import pooling_kernels
from tests.functions.against_torch import compare

torch = pytest.importorskip("torch")
T = torch.nn.functional
torch.set_num_threads(1)
MAX = {1: T.max_pool1d, 2: T.max_pool2d, 3: T.max_pool3d}
AVERAGE = {1: T.avg_pool1d, 2: T.avg_pool2d, 3: T.avg_pool3d}

SETTINGS = [  # sizes, kernel, stride, pad; sizes at which ceil_mode agrees with NNabla's border
    ((8,), (2,), (2,), (0,)),
    ((9,), (3,), (2,), (1,)),
    ((4, 6), (2, 2), (2, 2), (0, 0)),
    ((7, 8), (2, 3), (2, 3), (0, 0)),
    ((7, 8), (3, 3), (2, 2), (1, 1)),
    ((6, 6), (3, 2), (1, 1), (1, 0)),
    ((7, 9), (2, 2), (3, 4), (0, 0)),
    ((5, 4, 6), (2, 2, 3), (2, 1, 2), (0, 1, 1)),
]


@pytest.fixture(params=[1 << 8, 1 << 18], ids=["tiles", "whole"])
def tile(request, monkeypatch):
    monkeypatch.setattr(pooling_kernels, "_TILE_BYTES", request.param)


def images(size, last):
    """Few distinct values, so that windows have several maxima."""
    rng = np.random.default_rng(3)
    return rng.integers(0, 4, size=(2, *size, 3) if last else (2, 3, *size)).astype(float)


def channels_first(f, last):
    """f of a tensor whose channels may be last."""
    return (lambda x: f(x.movedim(-1, 1)).movedim(1, -1)) if last else f


@pytest.mark.parametrize("size,kernel,stride,pad", SETTINGS)
@pytest.mark.parametrize("last", [False, True], ids=["channel_first", "channel_last"])
def test_max_pooling(tile, size, kernel, stride, pad, last):
    reference = channels_first(lambda x: MAX[len(size)](x, kernel, stride, pad), last)
    compare(
        lambda x: F.max_pooling(x, kernel, stride, True, pad, last), reference, images(size, last)
    )


@pytest.mark.parametrize("size,kernel,stride,pad", SETTINGS)
@pytest.mark.parametrize("last", [False, True], ids=["channel_first", "channel_last"])
@pytest.mark.parametrize("including_pad", [False, True])
def test_average_pooling(tile, size, kernel, stride, pad, last, including_pad):
    def reference(x):
        return AVERAGE[len(size)](x, kernel, stride, pad, count_include_pad=including_pad)

    compare(
        lambda x: F.average_pooling(x, kernel, stride, True, pad, last, including_pad),
        channels_first(reference, last),
        images(size, last),
    )


@pytest.mark.parametrize("including_pad", [False, True])
@pytest.mark.parametrize("pad", [(0, 0), (1, 1)])
def test_clipped_border_windows(including_pad, pad):
    x = images((8, 9), False)
    at = {"ignore_border": False, "pad": pad}
    compare(
        lambda x: F.average_pooling(x, (3, 2), (2, 2), including_pad=including_pad, **at),
        lambda x: T.avg_pool2d(
            x, (3, 2), (2, 2), pad, ceil_mode=True, count_include_pad=including_pad
        ),
        x,
    )
    compare(
        lambda x: F.max_pooling(x, (3, 2), (2, 2), **at),
        lambda x: T.max_pool2d(x, (3, 2), (2, 2), pad, ceil_mode=True),
        x,
    )


def test_sum_pooling():
    compare(
        lambda x: F.sum_pooling(x, (3, 2), (2, 1), pad=(1, 1)),
        lambda x: T.avg_pool2d(x, (3, 2), (2, 1), (1, 1), divisor_override=1),
        images((7, 8), False),
    )


def test_global_average_pooling():
    compare(F.global_average_pooling, lambda x: T.adaptive_avg_pool2d(x, 1), images((4, 5), False))


@pytest.mark.parametrize("last", [False, True], ids=["channel_first", "channel_last"])
def test_unpooling(last):
    def reference(x):
        return x.repeat_interleave(2, -2).repeat_interleave(3, -1)

    compare(
        lambda x: F.unpooling(x, (2, 3), last),
        channels_first(reference, last),
        images((2, 4), last),
    )


def test_max_pooling_backward_is_the_gradient_of_max_pooling():
    x = images((7, 8), False)

    def reference(dy, x):
        leaf = x.detach().requires_grad_()
        y = T.max_pool2d(leaf, (3, 2), (2, 2), (1, 1))
        return torch.autograd.grad(y, leaf, dy, create_graph=True)[0]

    compare(
        lambda dy, x: F.max_pooling_backward(dy, x, (3, 2), (2, 2), pad=(1, 1)),
        reference,
        np.random.default_rng(0).normal(size=(2, 3, 4, 5)),
        fixed=(x,),
    )


def test_infinite_gradients_stay_where_the_maximum_is():
    x = np.arange(16.0).reshape(1, 4, 4)
    attrs = pooling_kernels.windows((4, 4), (2, 2), (2, 2), (0, 0), True, False)
    gx = attrs.scatter_maximum(np, np.full((1, 2, 2), np.inf), x)
    for i, j in itertools.product(range(4), range(4)):
        assert gx[0, i, j] == (np.inf if i % 2 and j % 2 else 0)
