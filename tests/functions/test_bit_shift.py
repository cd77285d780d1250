# SPDX-License-Identifier: Apache-2.0
"""bit_shift: arithmetic on powers of two, and what it refuses."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

V = nn.Variable.from_numpy_array


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_is_a_product_with_or_a_quotient_by_a_power_of_two(dtype):
    x, n = np.array([[1, 2, 100], [255, 0, 7]], dtype), np.array([[1, 2, 3], [7, 0, 4]], dtype)
    with nn.auto_forward():
        left = F.bit_shift(V(x), V(n))
        right = F.bit_shift(V(x), V(n), direction="RIGHT")
    power = 2 ** n.astype(np.uint64)
    assert left.d.dtype == right.d.dtype == dtype
    np.testing.assert_array_equal(left.d, (x.astype(np.uint64) * power).astype(dtype))
    np.testing.assert_array_equal(right.d, x // power)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_no_bit_is_left_when_all_are_shifted_out(dtype, direction):
    n = np.array([[np.iinfo(dtype).bits, 255]], dtype)
    with nn.auto_forward():
        y = F.bit_shift(V(np.array([[255, 255]], dtype)), V(n), direction=direction)
    assert y.d.tolist() == [[0, 0]]


def test_the_number_of_bits_may_be_a_float():
    with nn.auto_forward():
        y = F.bit_shift(V(np.array([[3]], np.uint8)), V(np.array([[2.0]])))
    assert y.d.tolist() == [[12]]


@pytest.mark.parametrize(
    "x,shift,direction,error,text",
    [
        (np.ones((1, 1)), [[1]], "LEFT", TypeError, r"x float\d+\[1, 1\] does not hold unsigned"),
        (np.ones((1, 1), np.int32), [[1]], "LEFT", TypeError, "does not hold unsigned integers"),
        (np.ones((1, 1), np.uint8), [[1]], "UP", ValueError, "direction is 'UP', wanted 'LEFT'"),
        (np.ones((1, 1), np.uint8), [1], "LEFT", ValueError, "must have the same rank"),
        (np.ones((1, 1), np.uint8), [[-1]], "LEFT", ValueError, "shift has the value -1"),
    ],
)
def test_errors_name_what_came_and_what_was_wanted(x, shift, direction, error, text):
    with nn.auto_forward(), pytest.raises(error, match=f"^bit_shift: .*{text}"):
        F.bit_shift(V(x), V(np.array(shift)), direction=direction)
