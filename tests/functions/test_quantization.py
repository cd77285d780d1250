# SPDX-License-Identifier: Apache-2.0
"""Quantization, pruning and quantized ranges: values, straight-through gradients, errors."""

import numpy as np
import pytest

import nnl as nn
from nnl import functions as F
from nnl.core.arrays.spec import ShapeError


def variable(a, need_grad=True):
    return nn.Variable.from_numpy_array(np.array(a, np.float32), need_grad=need_grad)


def run(f, x, *others, **kw):
    """(value, gradient by x for a gradient of ones)."""
    x = variable(x)
    x.g = 0
    y = f(x, *others, **kw)
    y.forward()
    y.backward()
    return y.d, x.g


def check(f, x, value, gradient, *others, **kw):
    y, g = run(f, x, *others, **kw)
    np.testing.assert_allclose(y, value, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(g, gradient, rtol=1e-6)


def test_binary_functions_have_gradients_between_minus_one_and_one():
    x = [-2, -1, -0.5, 0, 0.5, 1, 2]
    inner = np.array([0, 0, 1, 1, 1, 0, 0])
    check(F.binary_tanh, x, [-1, -1, -1, -1, 1, 1, 1], inner)
    check(F.binary_sigmoid, x, [0, 0, 0, 0, 1, 1, 1], inner / 2)


def test_fixed_point_rounds_halves_away_from_zero_and_clips():
    x, y = [-9, -0.375, -0.124, 0.125, 0.375, 1.7, 9], [-1.75, -0.5, 0, 0.25, 0.5, 1.75, 1.75]
    check(F.fixed_point_quantize, x, y, [0, 1, 1, 1, 1, 1, 0], n=4, delta=0.25)
    check(F.fixed_point_quantize, x, y, np.ones(7), n=4, delta=0.25, ste_fine_grained=False)


def test_fixed_point_without_sign_starts_at_zero():
    x = [-1, 0, 0.6, 3.7, 4]
    check(F.fixed_point_quantize, x, [0, 0, 0.5, 3.75, 3.75], [0, 1, 1, 1, 0], sign=False, n=4,
          delta=0.25)  # fmt: skip


def test_powers_of_two_are_nearest_in_logarithm():
    x = [-3, -1.42, -1.41, 0, 0.17, 0.18, 0.35, 0.36, 1.4, 1.42, 5]
    y = [-2, -2, -1, 0, 0, 0.25, 0.25, 0.5, 1, 2, 2]
    # n = 4: a bit for the sign, one for 0, two for the exponents 1, 0, -1, -2
    check(F.pow2_quantize, x, y, [0, *[1] * 9, 0], n=4)
    check(F.pow2_quantize, x, y, np.ones(11), n=4, ste_fine_grained=False)


def test_powers_of_two_without_zero_or_sign():
    x = [-3, -1e-9, 0, 1e-9, 0.9]
    check(F.pow2_quantize, x, [-2, -0.25, 0.25, 0.25, 1], [0, 1, 1, 1, 1], n=3, with_zero=False)
    check(F.pow2_quantize, x, [0, 0, 0, 0, 1], [0, 0, 1, 1, 1], n=3, sign=False)
    check(F.pow2_quantize, x, [0.25, 0.25, 0.25, 0.25, 1], [0, 0, 1, 1, 1], n=2, sign=False,
          with_zero=False, m=1)  # fmt: skip


def test_pruning_keeps_values_equal_to_the_threshold():
    x = [1, -1, 2, 2, 0, 1, -2]
    check(F.prune, x, x, np.ones(7), rate=0)
    check(F.prune, x, [0, 0, 2, 2, 0, 0, -2], np.ones(7), rate=0.7)
    check(F.prune, x, np.zeros(7), np.ones(7), rate=1)


@pytest.mark.parametrize(
    "f,n", [(F.fixed_point_quantize, 0), (F.pow2_quantize, 0), (F.min_max_quantize, 4)]
)
def test_without_quantization_x_itself_comes_back(f, n):
    x = variable([[1, 2]])
    assert f(x, *[variable([[1]])] * n, quantize=False) is x


@pytest.mark.parametrize("f", [F.fixed_point_quantize, F.pow2_quantize])
@pytest.mark.parametrize("dynamic", [False, True])
def test_result_is_written_to_a_given_array(f, dynamic):
    out = nn.NdArray.from_numpy_array(np.full(2, 7, np.float32))
    with nn.auto_forward(dynamic):
        y = f(variable([0.5, -1]), outputs=[out])
    if not dynamic:
        np.testing.assert_array_equal(out.data, 7)  # until the function is executed
        y.forward()
    np.testing.assert_array_equal(out.data, [0.5, -1])


# ---- min_max_quantize ----


def ranges(low, high, shape=(1, 1), levels=15):
    given = (low, high, 0, levels)
    return [variable(np.full(shape, v), need_grad=i < 2) for i, v in enumerate(given)]


def test_range_is_moved_so_that_zero_is_a_value():
    r = ranges(-1.125, 2.625)
    x = [[-2, -1.25, -0.1, 0, 0.2, 2.5, 2.6]]
    check(
        F.min_max_quantize, x, [[-1.25, -1.25, 0, 0, 0.25, 2.5, 2.5]], [[0, 1, 1, 1, 1, 1, 0]], *r
    )


def test_ends_of_the_range_learn_from_what_is_clipped():
    x, r = variable([[-2, -3, 0, 0.5, 9], [-4, 1, 1, 9, 9]]), ranges(-1, 2, (2, 1))
    for v in (x, *r):
        v.g = 0
    y = F.min_max_quantize(x, *r)
    y.forward()
    y.backward(np.arange(10, dtype=np.float32).reshape(2, 5))
    np.testing.assert_array_equal(r[0].g, [[0 + 1], [5]])
    np.testing.assert_array_equal(r[1].g, [[4], [8 + 9]])
    np.testing.assert_array_equal(x.g, [[0, 0, 2, 3, 0], [0, 6, 7, 0, 0]])


def test_range_is_that_of_x_or_a_running_average():
    x, r = variable([[-2, 0, 6]]), ranges(-1, 2)
    F.min_max_quantize(x, *r, x_min_max=True, ema=True, decay=0.75).forward()
    np.testing.assert_allclose([r[0].d, r[1].d], [[[-1.25]], [[3]]])
    F.min_max_quantize(x, *r, x_min_max=True).forward()
    np.testing.assert_array_equal([r[0].d, r[1].d], [[[-2]], [[6]]])


@pytest.mark.parametrize("modes", [{"x_min_max": True}, {"ema": True}])
def test_measured_ranges_get_no_gradient(modes):
    r = ranges(-1, 2)
    for v in r:
        v.g = 0
    y = F.min_max_quantize(variable([[-5, 5]]), *r, **modes)
    y.forward()
    y.backward()
    assert r[0].g == 0 and r[1].g == 0


def test_range_is_at_least_eps_wide():
    r = ranges(3, 3)
    F.min_max_quantize(variable([[1, 2]]), *r, eps=0.5).forward()
    assert r[1].d == 3.5


def test_nothing_in_x_leaves_the_range():
    r = ranges(-1, 2)
    F.min_max_quantize(variable(np.zeros((0, 2))), *r, x_min_max=True).forward()
    assert (r[0].d, r[1].d) == (-1, 2)


# ---- quantize_linear ----


def test_integers_by_scale_and_zero_point():
    s, z = variable([0.5], need_grad=False), variable([3], need_grad=False)
    x = [-300, -0.75, 0.25, 0.75, 300]
    check(F.quantize_linear, x, [-128, 1, 4, 5, 127], np.full(5, 2), s, z)
    check(F.quantize_linear, x, [-127, 1, 4, 5, 127], np.full(5, 2), s, z, narrow_range=True)
    check(F.quantize_linear, x, [0, 1, 4, 5, 255], np.full(5, 2), s, z, dtype=np.uint8)
    check(F.quantize_linear, x, [-128, 1, 3, 5, 127], np.full(5, 2), s, z,
          round_mode="HALF_TO_EVEN")  # fmt: skip


def test_dequantization_undoes_quantization():
    s, z = variable([[0.5, 0.25]], need_grad=False), variable([[3, -2]], need_grad=False)
    x = np.array([[1, 2], [-2.5, 0.25]], np.float32)
    q, _ = run(F.quantize_linear, x, s, z)
    np.testing.assert_array_equal(run(F.dequantize_linear, q, s, z)[0], x)


# ---- errors ----


@pytest.mark.parametrize(
    "f,kw,message",
    [
        ("fixed_point_quantize", {"n": 1}, "n is 1, wanted at least 2 bits with sign=True"),
        ("fixed_point_quantize", {"delta": 0}, "delta is 0.0, wanted > 0"),
        ("pow2_quantize", {"n": 2}, "n is 2, wanted at least 3 bits with sign=True and with_zero"),
        ("prune", {"rate": 1.5}, r"rate is 1.5, wanted a value in \[0, 1\]"),
    ],
)
def test_wrong_attributes_are_named(f, kw, message):
    with pytest.raises(ValueError, match=f"{f}: {message}"):
        getattr(F, f)(variable([1.0]), **kw)


def test_wrong_round_mode_and_dtype_are_named():
    x, s, z = variable([1.0]), variable([1.0]), variable([0.0])
    with pytest.raises(ValueError, match="round_mode is 'UP', wanted one of HALF_AWAY"):
        F.quantize_linear(x, s, z, round_mode="UP")
    with pytest.raises(ValueError, match="quantize_linear: dtype is 3, wanted 1 for int8 or 2"):
        F.quantize_linear(x, s, z, dtype=np.int16)


def test_wrong_shapes_are_named():
    x, r = variable(np.zeros((2, 3))), ranges(-1, 2)
    with pytest.raises(ShapeError, match=r"qr_min float32\[1\] must have the shape of x float32"):
        F.min_max_quantize(x, variable([1.0]), *r[1:])
    with pytest.raises(ShapeError, match="ql_max .* must have the shape of qr_min"):
        F.min_max_quantize(x, *r[:3], variable(np.ones((2, 1))))
    for f in (F.quantize_linear, F.dequantize_linear):
        with pytest.raises(ShapeError, match=r"linear: zero_point float32\[2, 2\] must have the"):
            f(x, r[0], variable(np.ones((2, 2))))
