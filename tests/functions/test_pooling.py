# SPDX-License-Identifier: Apache-2.0
"""Pooling: what NNabla does at borders and ties, and what the messages say."""

import time

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError
from nnl.functions.pooling import max_pooling_pick, sum_pooling_backward
from nnl.functions.pooling_kernels import Axis

POOLINGS = [F.max_pooling, F.sum_pooling, F.average_pooling]


def array(*shape):
    return nn.NdArray.from_numpy_array(np.arange(1, 1 + np.prod(shape), dtype="f").reshape(shape))


@pytest.mark.parametrize("f", POOLINGS)
@pytest.mark.parametrize(
    "size,kernel,stride,pad,keep,out",  # by NNabla 1.39; keep = not ignore_border
    [
        (7, 2, None, None, False, 3),
        (7, 2, None, None, True, 4),
        (9, 2, 4, None, False, 2),
        (9, 2, 4, None, True, 3),
        (8, 3, 2, 1, True, 5),
        (3, 2, None, 1, True, 2),
        (8, 9, None, None, True, 1),
    ],
)
def test_sizes(f, size, kernel, stride, pad, keep, out):
    stride, pad = (None if v is None else (v, v) for v in (stride, pad))
    y = f(array(2, size, size), (kernel, kernel), stride, not keep, pad)
    assert y.shape == (2, out, out)


@pytest.mark.parametrize(
    "kw,want",  # by NNabla 1.39
    [
        ({"ignore_border": False}, [[3, 4.5], [7.5, 9]]),
        ({"pad": (1, 1)}, [[0.25, 1.25], [2.75, 7]]),
        ({"pad": (1, 1), "including_pad": False}, [[1, 2.5], [5.5, 7]]),
    ],
)
def test_average_counts_pixels_as_nnabla_does(kw, want):
    np.testing.assert_allclose(F.average_pooling(array(3, 3), (2, 2), **kw).data, want)


def test_padding_is_never_the_maximum():
    x = nn.NdArray.from_numpy_array(-np.ones((3, 3), "f"))
    assert (F.max_pooling(x, (2, 2), pad=(1, 1)).data == -1).all()


def test_gradient_goes_to_the_first_maximum():
    x = nn.Variable.from_numpy_array(np.zeros((1, 1, 3, 3), "f"), need_grad=True)
    with nn.auto_forward():
        y = F.max_pooling(x, (2, 2), (1, 1), pad=(1, 1))
        start = nn.NdArray.from_numpy_array(np.arange(16, dtype="f").reshape(y.shape))
        g = nn.grad([y], [x], [start])[0].d
    np.testing.assert_array_equal(g[0, 0], [[10, 8, 10], [17, 10, 11], [25, 14, 15]])  # NNabla 1.39


def test_a_nan_is_the_maximum():
    x = nn.NdArray.from_numpy_array(np.array([[1, np.nan], [3, 4]], "f"))
    assert np.isnan(F.max_pooling(x, (2, 2)).data).all()


def test_global_average_pooling_always_has_two_axes_of_size_1():
    for shape in ((2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 6)):
        assert F.global_average_pooling(array(*shape)).shape == (2, 3, 1, 1)


def test_unpooling_acts_on_the_last_axes():
    assert F.unpooling(array(2, 3, 4), (2, 2)).shape == (2, 6, 8)
    assert F.unpooling(array(2, 3, 4), (5,), channel_last=True).shape == (2, 15, 4)


@pytest.mark.parametrize("f", POOLINGS)
@pytest.mark.parametrize(
    "kw,error,text",
    [
        (
            {"kernel": (9, 2)},
            ShapeError,
            r"kernel \(9, 2\) spans 9 pixels on spatial axis 0, x .* 8",
        ),
        (
            {"kernel": (2, 2), "stride": (1,)},
            ShapeError,
            r"stride \(1,\) has 1 entries, kernel has 2",
        ),
        ({"kernel": (2, 0)}, ValueError, r"kernel \(2, 0\) must be >= 1"),
        ({"kernel": (2, 2), "stride": (0, 1)}, ValueError, r"stride \(0, 1\) must be >= 1"),
        (
            {"kernel": (2, 2), "pad": (2, 0)},
            ValueError,
            r"pad \(2, 0\) must be below kernel \(2, 2",
        ),
        ({"kernel": (2, 2, 2, 2)}, ShapeError, r"x float32\[3, 8, 8\] has rank 3, wanted >= 4"),
    ],
)
def test_pooling_errors(f, kw, error, text):
    with pytest.raises(error, match=rf"{f.__name__}: .*{text}"):
        f(array(3, 8, 8), **kw)


def test_pooling_rejects_an_axis_without_pixels():
    with pytest.raises(ShapeError, match=r"max_pooling: x float32\[3, 0\] has no pixels"):
        F.max_pooling(array(3, 0), (2,), ignore_border=False)


def test_gradients_check_their_shapes():
    with pytest.raises(
        ShapeError, match=r"max_pooling_backward: dy .* must have the shape \(2, 2\)"
    ):
        F.max_pooling_backward(array(3, 2), array(4, 4), (2, 2))
    with pytest.raises(
        ShapeError, match="max_pooling_pick: v .* and x .* must have the same shape"
    ):
        max_pooling_pick(array(3, 2), array(4, 4), kernel=(2, 2))
    with pytest.raises(
        ShapeError, match=r"sum_pooling_backward: gy .* must have the shape \(2, 2\)"
    ):
        sum_pooling_backward(array(3, 2), kernel=(2, 2), shape=(4, 4))


def test_global_average_pooling_errors():
    with pytest.raises(ShapeError, match=r"global_average_pooling: x float32\[2\] has rank 1"):
        F.global_average_pooling(array(2))
    with pytest.raises(
        ShapeError, match=r"global_average_pooling: x float32\[2, 3, 0\] has no pix"
    ):
        F.global_average_pooling(array(2, 3, 0))


def test_unpooling_errors():
    with pytest.raises(ShapeError, match=r"unpooling: x float32\[2\] has rank 1, wanted >= 2"):
        F.unpooling(array(2), (2, 2))
    with pytest.raises(ValueError, match=r"unpooling: kernel \(2, 0\) must be >= 1"):
        F.unpooling(array(2, 2), (2, 0))


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "ignore_border"),
    [(3, 2, 1, True), (3, 2, 1, False), (5, 1, 2, True), (2, 3, 0, False), (7, 4, 3, True)],
)
def test_windows_are_counted_without_visiting_them(kernel, stride, pad, ignore_border):
    size = 11
    axis = Axis(size, kernel, stride, pad, ignore_border, 0)
    for including_pad, (a, b) in enumerate(((0, size), (-pad, size + pad))):
        want = [sum(a <= j * stride + k - pad < b for k in range(kernel)) for j in range(axis.out)]
        assert axis.counts(bool(including_pad)).tolist() == want
    assert axis.full == all(n == kernel for n in axis.counts(False))


def test_shapes_of_huge_windows_cost_nothing():
    """A file can name any size; before memory is asked for, only arithmetic is done."""
    x = nn.Variable((1, 1, 2_000_000_000, 1))
    start = time.perf_counter()
    y = F.max_pooling(x, (1_500_000_000, 1), stride=(1, 1))
    assert y.shape == (1, 1, 500_000_001, 1)
    assert F.average_pooling(x, (2, 1), (2, 1)).shape == (1, 1, 1_000_000_000, 1)
    assert time.perf_counter() - start < 1
    three = nn.Variable.from_numpy_array(np.ones((1, 1, 3)))
    z = F.max_pooling(three, (10**9,), stride=(10**9,), pad=(10**9 - 2,))
    z.forward()
    assert z.d.ravel().tolist() == [1]
