# SPDX-License-Identifier: Apache-2.0
"""Element-wise functions: what NNabla does at kinks, for special values and for wrong arguments.

Numbers were observed on NNabla 1.39 unless a test says why they differ.
"""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError

NAN, INF = np.nan, np.inf

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def var(a, dtype=np.float32, need_grad=True):
    return nn.Variable.from_numpy_array(np.array(a, dtype), need_grad=need_grad)


def value(function, *arrays, **attrs):
    with nn.auto_forward():
        return function(*map(var, arrays), **attrs).d


def gradients(function, *arrays, start=None, **attrs):
    """Gradients of all inputs, starting from ones or `start`."""
    xs = [var(a) for a in arrays]
    with nn.auto_forward():
        y = function(*xs, **attrs)
        gys = None if start is None else [var(start)]
        return [g.d.tolist() for g in nn.grad([y], xs, gys)]


@pytest.mark.parametrize(
    "function,attrs,x,want",
    [
        (F.sign, {}, [-2, -0.0, 0, 3, NAN], [-1, 1, 1, 1, 1]),
        (F.sign, {"alpha": 0.5}, [-2, 0, 3, NAN], [-1, 0.5, 1, 0.5]),
        (F.sign, {"alpha": 0}, [-2, 0, 3, NAN], [-1, 0, 1, 0]),
        (F.round, {}, [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], [-3, -2, -1, 1, 2, 3]),
        (F.round, {}, [0.49999997, INF, -INF, NAN], [0, INF, -INF, NAN]),
        (F.relu, {}, [NAN, INF, -INF], [0, INF, 0]),
        (F.leaky_relu, {"alpha": 0}, [INF, -1, NAN], [INF, 0, NAN]),
        (F.leaky_relu, {"alpha": -1}, [-2, 2], [2, 2]),
        (F.elu, {}, [-200, 200, -INF, NAN], [-1, 200, -1, NAN]),
        (F.relu6, {}, [NAN, 7], [NAN, 6]),
        (F.hard_tanh, {}, [NAN, 7], [NAN, 1]),
        (F.hard_sigmoid, {}, [-2.5, 2.5, 0, NAN], [0, 1, 0.5, NAN]),
        (F.maximum_scalar, {"val": 1}, [0, 2, NAN], [1, 2, 1]),
        (F.minimum_scalar, {"val": 1}, [0, 2, NAN], [0, 1, 1]),
        (F.sinc, {}, [0, 2], [1, np.sin(2) / 2]),
        (F.reset_nan, {"val": 3}, [1, NAN, INF], [1, 3, INF]),
        (F.reset_inf, {"val": 3}, [1, INF, -INF, NAN], [1, 3, 3, NAN]),
        (F.isnan, {}, [NAN, INF, 0], [1, 0, 0]),
        (F.isinf, {}, [NAN, INF, -INF, 0], [0, 1, 1, 0]),
        (F.logical_not, {}, [0, -0.0, 0.5, NAN], [1, 1, 0, 0]),
        (F.equal_scalar, {"val": 0.1}, [0.1, 0.3], [1, 0]),
        (F.greater_equal_scalar, {}, [0, 1, 2], [0, 1, 1]),
        (F.logical_and_scalar, {"val": True}, [0, 0.5, NAN], [0, 1, 1]),
        (F.logical_or_scalar, {"val": False}, [0, 0.5, NAN], [0, 1, 1]),
        (F.logical_xor_scalar, {"val": True}, [0, 0.5, NAN], [1, 0, 0]),
        (F.clip_by_value, {"min": 3, "max": 2}, [1, 2, 4], [2, 2, 2]),
        (F.clip_by_value, {"min": 2, "max": 3}, [1, NAN, 4], [2, 2, 3]),
        (F.r_pow_scalar, {"val": 0.0}, [0, 1], [1, 0]),
    ],
)
def test_values_at_kinks_and_of_special_numbers(function, attrs, x, want):
    y = value(function, x, **attrs)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, np.array(want, np.float32), rtol=1e-6)


@pytest.mark.parametrize(
    "function,attrs,x,want",
    [
        (F.abs, {}, [-1, -0.0, 0, 1], [-1, 1, 1, 1]),
        (F.sign, {}, [-2, 0, 3], [1, 1, 1]),
        (F.round, {}, [0.2, 0.5], [1, 1]),
        (F.ceil, {}, [0.2, 1], [1, 1]),
        (F.floor, {}, [0.2, 1], [1, 1]),
        (F.relu, {}, [-1, 0, 1, NAN], [0, 0, 1, 0]),
        (F.leaky_relu, {}, [-1, 0, 1], [np.float32(0.1), np.float32(0.1), 1]),
        (F.elu, {"alpha": 0.5}, [0, 1], [1, 1]),
        (F.selu, {"scale": 2.0, "alpha": 3.0}, [0, 1], [6, 2]),
        (F.relu6, {}, [0, 3, 6], [0, 1, 0]),
        (F.hard_tanh, {}, [-2, -1, 1, 2], [0, 1, 1, 0]),
        (F.hard_sigmoid, {}, [-3, -2.5, 2.5, 3], [0, np.float32(0.2), np.float32(0.2), 0]),
        (F.maximum_scalar, {"val": 1}, [0, 1, 2], [0, 0, 1]),
        (F.minimum_scalar, {"val": 1}, [0, 1, 2], [1, 0, 0]),
        (F.clip_by_value, {"min": 1, "max": 3}, [0, 1, 2, 3, 4], [0, 0, 1, 0, 0]),
        (F.reset_nan, {}, [1, NAN], [1, 0]),
        (F.reset_inf, {}, [1, INF, NAN], [1, 0, 1]),
        (F.log, {}, [-1, 2], [-1, 0.5]),
        (F.sinc, {}, [0.0], [0]),
        (F.r_pow_scalar, {"val": 0.0}, [0, 1], [0, 0]),
        (F.pow_scalar, {"val": 0.0}, [0, 1], [0, 0]),
    ],
)
def test_gradients_at_kinks_and_of_special_numbers(function, attrs, x, want):
    assert gradients(function, x, **attrs)[0] == pytest.approx(want, abs=1e-6)


def test_gradient_of_equal_elements_goes_to_the_second_array():
    for function in (F.maximum2, F.minimum2):
        assert gradients(function, [1, 1], [1, 1]) == [[0, 0], [1, 1]]


def test_maximum_and_minimum_take_the_number_where_the_other_is_nan():
    for function in (F.maximum2, F.minimum2):
        np.testing.assert_array_equal(value(function, [NAN, 1], [1, NAN]), [1, 1])


def test_crelu_has_gradient_minus_one_at_zero():
    assert gradients(F.crelu, [[-1, 0, 1]]) == [[[-1, -1, 1]]]


def test_celu_passes_both_gradients_at_zero():
    assert gradients(F.celu, [[0]], start=[[3, 1]], alpha=0.5) == [[[2]]]


def test_prelu_at_zero_has_the_gradient_of_the_positive_side():
    assert gradients(F.prelu, [[-1, 0, 1]], [0.5]) == [[[0.5, 1, 1]], [-1]]


def test_prelu_slope_of_any_shape_with_one_element_is_shared():
    assert value(F.prelu, [[-1, 2]], 0.5).tolist() == [[-0.5, 2]]


def test_second_derivatives_of_abs_and_sinc_at_zero():
    for function, want in ((F.abs, 0.0), (F.sinc, -1 / 3)):
        x = var([0.0])
        with nn.auto_forward():
            (g,) = nn.grad([function(x)], [x])
            if g.need_grad:
                (g,) = nn.grad([g], [x])
                assert g.d == pytest.approx([want], abs=1e-6)
            else:
                assert want == 0.0


def test_gradient_of_sinc_does_not_cancel_near_zero():
    x = np.array([1e-4, 1e-2, 0.3])
    want = -x / 3 + x**3 / 30 - x**5 / 840
    assert gradients(F.sinc, x)[0] == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize(
    "function", [F.sigmoid, F.log_sigmoid, F.softplus, F.swish, F.mish, F.tanh, F.erf, F.gelu]
)
def test_nothing_overflows_far_from_zero(function):
    x = var([-1000, -100, 100, 1000])
    with np.errstate(over="raise", invalid="raise", divide="raise"), nn.auto_forward():
        y = function(x)
        (g,) = nn.grad([y], [x])
    assert np.isfinite(y.d).all() and np.isfinite(g.d).all()


def test_sigmoid_and_log_sigmoid_keep_relative_precision_on_the_negative_side():
    x = np.array([-80.0, -40.0, -10.0])
    np.testing.assert_allclose(value(F.sigmoid, x), np.exp(x) / (1 + np.exp(x)), rtol=1e-5)
    np.testing.assert_allclose(value(F.softplus, x), np.log1p(np.exp(x)), rtol=1e-5)
    np.testing.assert_allclose(value(F.log_sigmoid, -x), -np.log1p(np.exp(x)), rtol=1e-5)


@pytest.mark.parametrize("name", ["relu", "tanh", "sigmoid", "exp", "relu6", "tan"])
def test_function_keeps_its_output_and_not_its_input(name):
    op = getattr(F, name)
    assert (op.kept_inputs, op.kept_outputs) == ((), (("y", 0),))


@pytest.mark.parametrize("name", ["add2", "sub2", "add_scalar", "mul_scalar", "add_n", "round"])
def test_function_keeps_nothing(name):
    op = getattr(F, name)
    assert op.kept_inputs == op.kept_outputs == ()


@pytest.mark.parametrize(
    "name,want",
    [
        ("equal", [1, 1, 0, 0]),
        ("not_equal", [0, 0, 1, 1]),
        ("greater", [0, 0, 1, 0]),
        ("greater_equal", [1, 1, 1, 0]),
        ("less", [0, 0, 0, 0]),
        ("less_equal", [1, 1, 0, 0]),
        ("logical_and", [0, 1, 0, 1]),
        ("logical_or", [0, 1, 1, 1]),
        ("logical_xor", [0, 0, 1, 0]),
    ],
)
def test_comparisons_give_zero_or_one_in_float(name, want):
    y = value(getattr(F, name), [0, 1, 1, NAN], [0, 1, 0, NAN])
    assert y.dtype == np.float32 and y.tolist() == want


def test_comparisons_and_search_need_no_gradient():
    x = var([1.0, 2.0])
    for y in (F.equal(x, x), F.isnan(x), F.greater_scalar(x), F.searchsorted(x, x), F.unlink(x)):
        assert not y.need_grad


@pytest.mark.parametrize("n", [2, 5000])
def test_unlink_and_reshape_share_memory_and_identity_does_not(n):
    x = var(np.ones(n))
    with nn.auto_forward():
        shared, copied = (F.unlink(x), F.reshape(x, (n, 1))), F.identity(x)
    assert all(np.shares_memory(y.d, x.d) for y in shared)
    assert not np.shares_memory(copied.d, x.d)


@pytest.mark.parametrize("name", ["identity", "unlink"])
def test_integers_stay_integers(name):
    with nn.auto_forward():
        assert getattr(F, name)(var([1, 2], np.int32, False)).d.dtype == np.int32


def test_mod2_of_integers_follows_python_unless_fmod():
    x, w = var([5, -5, 7], np.int32, False), var([3, 3, -4], np.int32, False)
    with nn.auto_forward():
        for fmod, want in ((False, [2, 1, -1]), (True, [2, -2, 3])):
            y = F.mod2(x, w, fmod=fmod).d
            assert y.dtype == np.int32 and y.tolist() == want


def test_mod2_of_floats_has_the_sign_of_the_dividend():
    for fmod in (False, True):
        assert value(F.mod2, [5.5, -5.5, 5.5], [2, 2, -2], fmod=fmod).tolist() == [1.5, -1.5, 1.5]


def test_where_chooses_whole_slices_by_a_condition_of_lower_rank():
    a, b = np.arange(6).reshape(2, 3), -np.ones((2, 3))
    assert value(F.where, [0, 0.5], a, b).tolist() == [[-1, -1, -1], [3, 4, 5]]
    assert gradients(lambda p, q: F.where(var([0, NAN]), p, q), a, b) == [
        [[0, 0, 0], [1, 1, 1]],
        [[1, 1, 1], [0, 0, 0]],
    ]


def test_mul_n_has_exact_gradients_at_zeros():
    # NNabla divides the product by the factor, which gives NaN here
    assert gradients(F.mul_n, [0, 0], [2, 0], [3, 5]) == [[6, 0], [0, 0], [0, 0]]


def test_clip_by_value_gives_array_bounds_their_gradient():
    got = gradients(F.clip_by_value, [1, 2, 3, 4], [2], [3])
    assert got == [[0, 0, 0, 0], [2], [2]]


def test_clip_by_value_takes_an_array_and_a_number():
    with nn.auto_forward():
        y = F.clip_by_value(var([1, 2, 3]), var([2, 0, 0]), 2.5)
    assert y.d.tolist() == [2, 2, 2.5]


def test_clip_by_norm_leaves_short_arrays_exactly_alone():
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    assert value(F.clip_by_norm, x, clip_norm=100.0).tolist() == x.tolist()


def test_clip_by_norm_has_a_finite_gradient_at_zero():
    # NNabla gives NaN: it takes the root before the maximum
    assert gradients(F.clip_by_norm, [[3, 4], [0, 0]], clip_norm=1, axis=1)[0][1] == [1, 1]


def test_clip_by_norm_takes_an_array_of_norms():
    with nn.auto_forward():
        y = F.clip_by_norm(var([[3, 4], [0.3, 0.4]]), var([[1], [1]]), axis=1)
    np.testing.assert_allclose(y.d, [[0.6, 0.8], [0.3, 0.4]], rtol=1e-6)


def test_clip_grad_by_value_clips_the_gradient_and_keeps_nan():
    got = gradients(F.clip_grad_by_value, [1, 2, 3, 4], [0], [1], start=[-1, 0.5, 2, NAN])
    np.testing.assert_array_equal(got[0], [0, 0.5, 1, NAN])
    assert value(F.clip_grad_by_value, [5, -5], [0], [1]).tolist() == [5, -5]


def test_clip_grad_by_norm_sets_the_norm_of_the_gradient():
    assert gradients(F.clip_grad_by_norm, [1, 2], start=[3, 4])[0] == pytest.approx([0.6, 0.8])
    got = gradients(F.clip_grad_by_norm, [1, 2], start=[3, 4], clip_norm=10.0)[0]
    assert got == pytest.approx([6, 8])


def test_clip_grad_by_norm_leaves_a_zero_gradient_zero():
    # NNabla gives NaN
    start = [[3, 4], [0, 0]]
    got = gradients(F.clip_grad_by_norm, [[1, 2], [3, 4]], start=start, axes=(1,))[0]
    np.testing.assert_allclose(got, [[0.6, 0.8], [0, 0]], rtol=1e-6)


X = var(np.zeros((2, 3)))


@pytest.mark.parametrize(
    "call,error,message",
    [
        (lambda: F.add2(X, var([1, 2, 3])), ShapeError, r"add2: x0 .*\[2, 3\].*same rank"),
        (lambda: F.pow2(X, var([[1, 2]])), ShapeError, "pow2: x0 .* do not broadcast"),
        (lambda: F.greater(X, var(1)), ShapeError, "greater: x0 .* must have the same rank"),
        (lambda: F.add_n(), ValueError, "add_n: got no array, wanted at least one"),
        (lambda: F.mul_n(X, X, var([[1]])), ShapeError, r"mul_n: x\[0\] .* and x\[2\] .* same sh"),
        (lambda: F.logical_and_scalar(X), TypeError, "needs the argument 'val'"),
        (
            lambda: F.where(X, X, var([[1]])),
            ShapeError,
            "where: x_true .* and x_false .* must have the same shape",
        ),
        (
            lambda: F.where(var([[1], [1]]), X, X),
            ShapeError,
            "where: the shape of x_true .* must begin with that of condition",
        ),
        (
            lambda: F.searchsorted(X, var([1])),
            ShapeError,
            "searchsorted: sorted_sequence .* and values .* same sizes but for the last axis",
        ),
        (
            lambda: F.prelu(X, var([1, 2])),
            ShapeError,
            r"prelu: x1 .*\[2\] has neither one element nor the shape \(3,\) of axis 1 of x0",
        ),
        (
            lambda: F.prelu(X, var([1]), base_axis=2),
            ShapeError,
            r"prelu: axis 2 is outside \[-2, 2\) for x0",
        ),
        (lambda: F.crelu(X, axis=2), ShapeError, r"crelu: axis 2 is outside \[-2, 2\) for x"),
        (lambda: F.celu(var(1.0)), ShapeError, r"celu: axis 1 is outside \[-0, 0\) for x"),
        (lambda: F.softplus(X, beta=0), ValueError, "softplus: beta is 0.0, wanted a number oth"),
        (lambda: F.clip_by_value(X, NAN, 1), ValueError, "clip_by_value: min is nan, wanted"),
        (lambda: F.clip_by_value(X, 0, NAN), ValueError, "clip_by_value: max is nan, wanted"),
        (
            lambda: F.clip_by_value(X, None, 1),
            TypeError,
            "clip_by_value: min is NoneType, wanted a number, nnl.Variable or nnl.NdArray",
        ),
        (
            lambda: F.clip_by_norm(X, 0),
            ValueError,
            "clip_by_norm: clip_norm is 0, wanted a positive number",
        ),
        (
            lambda: F.clip_by_norm(X, None),
            TypeError,
            "clip_by_norm: clip_norm is NoneType, wanted a number, nnl.Variable or nnl.NdArray",
        ),
        (
            lambda: F.clip_grad_by_value(X, X, var([[1, 2]])),
            ShapeError,
            r"clip_grad_by_value: max .*\[1, 2\] does not stretch to the shape of x",
        ),
        (
            lambda: F.clip_grad_by_norm(X, axes=(0, 0)),
            ShapeError,
            r"clip_grad_by_norm: axes \(0, 0\) name an axis of x .* twice",
        ),
        (lambda: F.relu(np.zeros(3)), TypeError, "relu: x is ndarray, wanted nnl.Variable or"),
    ],
)
def test_wrong_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
