# SPDX-License-Identifier: Apache-2.0
"""Binary weights and incremental quantization: what is written, gradients, memory, errors."""

import numpy as np
import pytest

import nnl as nn
from nnl import functions as F
from nnl.core.arrays.spec import ShapeError


def variable(a, need_grad=True):
    return nn.Variable.from_numpy_array(np.array(a, np.float32), need_grad=need_grad)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def zeros(*shape):
    return variable(np.zeros(shape), need_grad=False)


def execute(y, *xs):
    for x in xs:
        x.g = 0
    y.forward()
    y.backward()


@pytest.mark.parametrize("zero", [1.0, -1.0, 0.0])
def test_signs_are_written_and_their_gradient_is_that_of_the_weights(zero):
    x, w, b = variable(normal(4, 3)), variable(normal(3, 2)), variable([1, 2])
    w.d[0, 0] = 0
    wb = zeros(3, 2)
    y = F.binary_connect_affine(x, w, wb, b, quantize_zero_to=zero)
    execute(y, x, w, b)
    signs = np.where(w.d == 0, zero, np.sign(w.d))
    np.testing.assert_array_equal(wb.d, signs)
    np.testing.assert_allclose(y.d, x.d @ signs + b.d, rtol=1e-5)
    np.testing.assert_allclose(w.g, np.tile(x.d.sum(0)[:, None], 2), rtol=1e-5)
    np.testing.assert_allclose(x.g, np.tile(signs.sum(1), (4, 1)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(b.g, [4, 4])


def test_scales_are_the_mean_absolute_weights_of_each_output():
    x, w = variable(normal(2, 3)), variable(normal(3, 2, 2))
    wb, alpha = zeros(3, 2, 2), zeros(4)
    y = F.binary_weight_affine(x, w, wb, alpha)
    execute(y, x, w)
    scales = np.abs(w.d).mean(0)
    np.testing.assert_allclose(alpha.d, scales.ravel(), rtol=1e-6)
    np.testing.assert_array_equal(wb.d, np.sign(w.d))
    used = np.sign(w.d) * scales
    np.testing.assert_allclose(y.d, np.einsum("nk,kij->nij", x.d, used), rtol=1e-5)
    np.testing.assert_allclose(x.g, np.tile(used.sum((1, 2)), (2, 1)), rtol=1e-5)
    # the scales are not differentiated, and do not scale the gradient
    np.testing.assert_allclose(w.g[:, 0, 1], x.d.sum(0), rtol=1e-5)


@pytest.mark.parametrize("scaled", [False, True])
def test_convolution_uses_the_written_weights(scaled):
    x, w, b = variable(normal(2, 4, 5, 5)), variable(normal(6, 2, 3, 3)), variable(normal(6))
    wb, alpha = zeros(6, 2, 3, 3), zeros(6)
    window = {"pad": (1, 0), "stride": (1, 2), "group": 2}
    if scaled:
        y = F.binary_weight_convolution(x, w, wb, alpha, b, **window)
    else:
        y = F.binary_connect_convolution(x, w, wb, b, **window)
    execute(y, x, w, b)
    used = variable(wb.d * (alpha.d[:, None, None, None] if scaled else 1))
    x2, b2 = variable(x.d), variable(b.d)
    want = F.convolution(x2, used, b2, **window)
    execute(want, x2, used, b2)
    for got, expected in ((y.d, want.d), (x.g, x2.g), (w.g, used.g), (b.g, b2.g)):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_weights_are_written_when_the_function_is_executed():
    w, wb = variable(normal(3, 2)), zeros(3, 2)
    y = F.binary_connect_affine(variable(normal(4, 3)), w, wb)
    assert not wb.d.any()
    y.forward()
    w.d = -w.d
    y.forward()
    np.testing.assert_array_equal(wb.d, np.sign(w.d))


def test_gradient_of_the_input_gradient():
    """As in any affine map, the gradient by x is linear in the signs, whose gradient passes on."""
    x, w = variable(normal(4, 3)), variable(normal(3, 2))
    with nn.auto_forward():
        y = F.binary_connect_affine(x, w, zeros(3, 2))
        (gx,) = nn.grad([y], [x])
        (gw,) = nn.grad([F.sum(gx)], [w])
    np.testing.assert_allclose(gw.d, np.full((3, 2), 4), rtol=1e-6)


# ---- inq ----


def inq(weights, fixed=None, **kw):
    w = variable(np.reshape(weights, (-1, 1)))
    i = zeros(*w.shape)
    if fixed is not None:
        i.d = np.reshape(fixed, (-1, 1))
    return F.inq_affine(variable(np.ones((1, w.shape[0]))), w, i, **kw), w, i


def test_levels_are_zero_and_four_powers_with_four_bits():
    weights = [2.9, -1.5, 1.49, 0.76, 0.74, 0.36, -0.2, 0.125, 0.12, 0]
    y, w, _ = inq(weights, np.ones(10))
    y.forward()
    np.testing.assert_array_equal(w.d[:, 0], [2, -2, 1, 1, 0.5, 0.25, -0.25, 0.25, 0, 0])
    np.testing.assert_allclose(y.d, w.d.sum(keepdims=True))


def test_only_fixed_weights_are_replaced():
    y, w, _ = inq([1.4, 0.6, 0.3], [0, 1, 0])
    y.forward()
    np.testing.assert_allclose(w.d[:, 0], [1.4, 0.5, 0.3])


def test_largest_half_is_fixed_then_the_rest():
    y, w, i = inq([1, 5, -6, 2, 3], inq_iterations=(1, 2))
    seen = []
    for _ in range(4):
        y.forward()
        seen.append(i.d[:, 0].tolist())
    assert seen == [[0, 0, 0, 0, 0], [0, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]
    np.testing.assert_array_equal(w.d[:, 0], [1, 4, -8, 2, 4])


def test_fixed_weights_come_back_after_an_update():
    y, w, _ = inq([1, 5, -6, 2], inq_iterations=(0, 9))
    y.forward()
    w.d = w.d * 0.5
    y.forward()
    np.testing.assert_array_equal(w.d[:, 0], [0.5, 4, -8, 1])


def test_all_weights_get_gradients():
    y, w, _ = inq([1, 5, -6, 2], inq_iterations=(0,))
    execute(y, w)
    np.testing.assert_array_equal(w.g, 1)


def test_random_selection_follows_the_seed():
    def selected(seed):
        y, _, i = inq(
            np.arange(200), inq_iterations=(0, 1), selection_algorithm="random", seed=seed
        )
        y.forward()
        return i.d[:, 0]

    assert 60 < selected(3).sum() < 140
    np.testing.assert_array_equal(selected(3), selected(3))
    assert (selected(3) != selected(4)).any()
    nn.seed(5)
    first, second = selected(-1), selected(-1)
    assert (first != second).any()
    nn.seed(5)
    np.testing.assert_array_equal(selected(-1), first)


def test_two_functions_count_their_own_executions():
    ys = [inq([1, 5, -6, 2], inq_iterations=(1,)) for _ in range(2)]
    for _ in range(2):
        ys[0][0].forward()
    ys[1][0].forward()
    assert ys[0][2].d.all() and not ys[1][2].d.any()


def test_inq_convolution_is_a_convolution_with_the_fixed_weights():
    x, w, i = variable(normal(2, 4, 5, 5)), variable(normal(6, 2, 3, 3)), zeros(6, 2, 3, 3)
    y = F.inq_convolution(x, w, i, inq_iterations=(0,), num_bits=5, group=2, stride=(2, 1))
    execute(y, x, w)
    assert i.d.all()
    x2, w2 = variable(x.d), variable(w.d)
    want = F.convolution(x2, w2, group=2, stride=(2, 1))
    execute(want, x2, w2)
    for got, expected in ((y.d, want.d), (x.g, x2.g), (w.g, w2.g)):
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_inq_takes_arrays_and_writes_to_one():
    x, w = (nn.NdArray.from_numpy_array(np.full(s, 3.1, "f")) for s in ((1, 2), (2, 3)))
    i = nn.NdArray.from_numpy_array(np.full((2, 3), 3, "f"))
    out = nn.NdArray((1, 3))
    F.inq_affine(x, w, i, inq_iterations=(0,), outputs=[out])
    np.testing.assert_array_equal(w.data, 4)
    np.testing.assert_allclose(out.data, 24.8, rtol=1e-6)


# ---- errors ----


def test_shapes_of_what_is_written_are_checked():
    x, w, b = variable(normal(4, 3)), variable(normal(3, 2)), variable(normal(2))
    with pytest.raises(ShapeError, match=r"binary_connect_affine: binary_weight float32\[2, 2\]"):
        F.binary_connect_affine(x, w, zeros(2, 2), b)
    with pytest.raises(ShapeError, match="alpha .* has 3 values, weight .* has 2 outputs"):
        F.binary_weight_affine(x, w, zeros(3, 2), zeros(3), b)
    with pytest.raises(ShapeError, match="inq_affine: indicator_fixedweights .* must have the"):
        F.inq_affine(x, w, zeros(2, 2), b)


def test_errors_of_the_inner_function_carry_the_outer_name():
    x, w = variable(normal(4, 3)), variable(normal(2, 2))
    with pytest.raises(ShapeError, match="^binary_connect_affine: x .* has 3 values from axis 1"):
        F.binary_connect_affine(x, w, zeros(2, 2))
    with pytest.raises(ShapeError, match="^inq_convolution: x .* has no spatial axis"):
        F.inq_convolution(x, w, zeros(2, 2))


def test_wrong_attributes_are_named():
    with pytest.raises(ValueError, match="inq_affine: num_bits is 1, wanted at least 2"):
        inq([1, 2], num_bits=1)
    with pytest.raises(ValueError, match="selection_algorithm is 'x', wanted one of largest_abs"):
        inq([1, 2], selection_algorithm="x")
