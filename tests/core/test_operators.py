# SPDX-License-Identifier: Apache-2.0
"""Operators of Variable and NdArray. Expected values were tried in NNabla 1.39."""

import operator

import numpy as np
import pytest

import nnl as nn
from tests.core.conftest import leaf

ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow]


def array(values):
    return nn.NdArray.from_numpy_array(np.float32(values))


@pytest.mark.parametrize("f", ARITHMETIC)
def test_arithmetic_agrees_with_numpy(f):
    a, b = np.float32([1, 2]), np.float32([3, 4])
    np.testing.assert_allclose(f(array(a), array(b)).data, f(a, b))
    np.testing.assert_allclose(f(array(a), 2).data, f(a, 2))
    np.testing.assert_allclose(f(2, array(a)).data, f(2, a))
    np.testing.assert_allclose(f(np.float64(2), array(a)).data, f(2, a))
    y, z, r = f(leaf(a), leaf(b)), f(leaf(a), 2), f(2, leaf(a))
    nn.forward_all([y, z, r])
    np.testing.assert_allclose(y.d, f(a, b))
    np.testing.assert_allclose(z.d, f(a, 2))
    np.testing.assert_allclose(r.d, f(2, a))


def test_signs():
    a = array([1, -2])
    np.testing.assert_array_equal((-a).data, [-1, 2])
    np.testing.assert_array_equal((+a).data, [1, -2])


def test_variable_with_ndarray_gives_ndarray():
    for y in (leaf([1, 2]) + array([3, 4]), array([3, 4]) + leaf([1, 2])):
        assert type(y) is nn.NdArray
        np.testing.assert_array_equal(y.data, [4, 6])


@pytest.mark.parametrize(
    ("f", "with_array", "with_number"),
    [
        (operator.iadd, True, True),
        (operator.isub, True, True),
        (operator.imul, False, True),
        (operator.itruediv, False, True),
        (operator.ipow, False, False),
    ],
)
def test_which_in_place_operators_write_in_place(f, with_array, with_number):
    for other, in_place in ((array([3, 4]), with_array), (2.0, with_number)):
        a = array([1, 2])
        memory = a.data
        result = f(a, other)
        assert (result is a) == in_place
        assert (memory.tolist() != [1, 2]) == in_place
        plain = other.data if isinstance(other, nn.NdArray) else other
        np.testing.assert_allclose(result.data, f(np.float32([1, 2]), plain), rtol=1e-6)


def test_in_place_on_an_int_array_gives_the_float_type():
    a = nn.NdArray.from_numpy_array(np.array([1, 2]))
    v = nn.Variable((2,))
    v.data = a
    a += 1
    assert a.data.dtype == a.dtype == np.float32
    np.testing.assert_array_equal(a.data, [2, 3])
    assert v.d.dtype == v.data.dtype == np.int64  # a change of dtype ends sharing


def test_augmented_assignment_of_a_variable_makes_a_new_one():
    x = old = leaf([1, 2])
    x += leaf([1, 1])
    assert x is not old and x.parent.name == "Add2"
    np.testing.assert_array_equal(old.d, [1, 2])


def test_no_broadcasting_between_ranks():
    with pytest.raises(nn.core.arrays.spec.ShapeError, match="add2: x0 .* must have the same rank"):
        nn.NdArray((2, 3)) + nn.NdArray((3,))
    assert (nn.NdArray((2, 3)) + nn.NdArray((1, 3))).shape == (2, 3)


@pytest.mark.parametrize("value", [None, "a", 1j, [1, 2]])
def test_other_operands_are_a_type_error(value):
    for x in (leaf([1, 2]), array([1, 2])):
        for f in ARITHMETIC:
            with pytest.raises(TypeError):
                f(x, value)
            with pytest.raises(TypeError):
                f(value, x)


def test_numpy_operands_are_a_type_error_on_both_sides():
    for x in (leaf([1, 2]), array([1, 2])):
        with pytest.raises(TypeError, match=r"\+ numpy array: wrap the array with"):
            x + np.ones(2)
        with pytest.raises(TypeError):
            np.ones(2) + x
