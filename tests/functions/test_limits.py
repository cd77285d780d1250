# SPDX-License-Identifier: Apache-2.0
"""Calls whose work no input bounds: an error instead of hours, or of all memory."""

import time

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.resources import memory_bytes
from nnl.core.arrays.spec import ShapeError

X = nn.NdArray.from_numpy_array(np.ones((1, 2, 3, 3), np.float32))
BOXES = nn.NdArray.from_numpy_array(np.array([[0, 0, 0, 2, 2]], np.float32))
HUGE = 10**9


@pytest.mark.parametrize(
    "name,call",
    [
        ("pad", lambda: F.pad(X, (HUGE,) * 4)),
        ("unpooling", lambda: F.unpooling(X, (HUGE, HUGE))),
        ("roi_align", lambda: F.roi_align(X, BOXES, (HUGE, HUGE))),
        ("tile", lambda: F.tile(X, (HUGE, HUGE))),
        ("broadcast", lambda: F.broadcast(X, (HUGE, 2, 3, 3))),
        ("constant", lambda: F.constant(0, (HUGE, HUGE))),
        ("rand", lambda: F.rand(shape=(HUGE, HUGE))),
        ("convolution", lambda: F.convolution(X, X, pad=(HUGE, HUGE))),
        ("interpolate", lambda: F.interpolate(X, output_size=(HUGE, HUGE))),
        ("one_hot", lambda: F.one_hot(F.constant(0, (1, 1)), (10**18,))),
    ],
)
@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_results_larger_than_half_of_the_memory_are_refused(name, call, backend):
    gib = f"{memory_bytes() / 2**30:.4g}"
    wanted = rf"^{name}.*: the result .* takes .* GiB, wanted at most half of .* {gib} GiB"
    for auto in (False, True):
        with nn.context_scope(nn.Context([f"{backend}:float"])), nn.auto_forward(auto):
            with pytest.raises(ShapeError, match=wanted):
                call()


@pytest.mark.parametrize(
    "call,text",
    [
        (lambda: F.pow2_quantize(X, n=2**31), "pow2_quantize: n is 2147483648, wanted at most 64"),
        (lambda: F.pow2_quantize(X, m=10**9), "pow2_quantize: m is 1000000000, wanted at most 127"),
        (
            lambda: F.fixed_point_quantize(X, n=10**18),
            "fixed_point_quantize: n is 1000000000000000000, wanted at most 64",
        ),
        (
            lambda: F.spectral_norm(X, F.constant(1, (1,)), itr=10**18),
            "spectral_norm: itr is 1000000000000000000, wanted at most 10000",
        ),
        (
            lambda: F.inq_affine(X, X, X, num_bits=10**9),
            "inq_affine: num_bits is 1000000000, wanted at most 64",
        ),
        (
            lambda: F.istft(F.constant(1, (1, 3, 2)), F.constant(1, (1, 3, 2)), 4, 10**9, 4),
            "istft: stride is 1000000000, wanted at most fft_size 4, so that every sample lies "
            "under a window",
        ),
        (
            lambda: F.roi_align(X, BOXES, (2, 2), sampling_ratio=10**9),
            "roi_align: sampling_ratio is 1000000000, wanted at most 1024",
        ),
    ],
)
def test_numbers_that_say_how_much_to_do_have_a_limit(call, text):
    with pytest.raises(ValueError, match=f"^{text}$"):
        call()


def test_the_largest_numbers_still_work():
    for n in (20, 64):
        np.testing.assert_array_equal(F.pow2_quantize(X, n=n).data, X.data)
        np.testing.assert_array_equal(F.fixed_point_quantize(X, n=n).data, X.data)
    small = F.pow2_quantize(X, m=-(10**18))
    np.testing.assert_array_equal(small.data, np.zeros(X.shape))


@pytest.mark.parametrize("length", [1e3, 1e9, 1e30])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_box_much_larger_than_the_image_costs_no_more_than_the_image(length, scale):
    """Every bin is nearly empty; those that see the image do so through few samples."""
    boxes = nn.NdArray.from_numpy_array(
        np.array([[0, 0, 0, length, length], [0, -length, -length, length, length]], np.float32)
    )
    begin = time.perf_counter()
    y = F.roi_align(X, boxes, (2, 2), spatial_scale=(scale, scale)).data
    assert time.perf_counter() - begin < 1
    assert np.abs(y).max() < 1e-4 * (1e3 / length) or length == 1e3
    if (
        length == 1e3
    ):  # 4 of 500 samples, or 250, at 0 to 3, along either axis see the image of ones
        np.testing.assert_allclose(y[0, 0, 0, 0], (4 / (length * scale / 2)) ** 2, rtol=1e-5)


def test_a_box_that_overflows_is_an_error():
    boxes = nn.NdArray.from_numpy_array(np.array([[0, 0, 0, 3e38, 1]], np.float32))
    with pytest.raises(ValueError, match=r"^roi_align: the box .*, 1\] times spatial_scale is not"):
        F.roi_align(X, boxes, (2, 2), spatial_scale=(1e3, 1e3))
