# SPDX-License-Identifier: Apache-2.0
"""Quantized layers: NNabla's parameters, bit for bit, and what an execution leaves in them."""

import inspect

import numpy as np
import pytest

import nnl as nn
from nnl import functions as F
from nnl import parametric_functions as PF
from nnl.core.arrays.spec import ShapeError
from nnl.parametric_functions import initializer
from tests.parametric_functions.quantized_layers import FAMILIES

QUANTIZED = FAMILIES[3:]


@pytest.fixture(autouse=True)
def _seeded():
    nn.seed(313)


def v(*shape, need_grad=False):
    a = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return nn.Variable.from_numpy_array(a, need_grad=need_grad)


def parameter(name):
    return nn.get_parameters(grad_only=False)[name]


# ---- what is left in the parameters ----


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("clear", [False, True])
def test_quantized_values_are_kept_in_parameters(dynamic, clear):
    x = v(2, 3)
    with nn.auto_forward(dynamic):
        y = PF.fixed_point_quantized_affine(
            x, 5, n_w=3, delta_w=0.25, b_init=initializer.ConstantInitializer(0.1)
        )
    if not dynamic:
        y.forward(clear_no_need_grad=clear)
    w, w_q = (parameter(f"fp_quantized_affine/{n}").d for n in ("W", "W_q"))
    np.testing.assert_array_equal(w_q, np.clip(np.round(w / 0.25) * 0.25, -0.75, 0.75))
    b_q = parameter("fp_quantized_affine/b_q").d
    np.testing.assert_array_equal(b_q, np.full(5, 0.125, np.float32))
    np.testing.assert_allclose(y.d, x.d @ w_q + b_q, rtol=1e-5)


def test_kept_values_follow_the_weights():
    y = PF.pruned_affine(v(2, 3), 5, rate_w=0.5)
    y.forward()
    w, w_q = (parameter(f"pruned_affine/{n}") for n in ("W", "W_q"))
    w.d = np.arange(1, 16).reshape(3, 5)
    y.forward()
    np.testing.assert_array_equal(w_q.d, np.where(w.d < 8, 0, w.d))


@pytest.mark.parametrize("name", QUANTIZED)
def test_gradients_reach_the_weights_and_not_what_is_kept(name):
    x = v(2, 3)
    y = getattr(PF, f"{name}_affine")(x, 5)
    y.forward()
    for p in nn.get_parameters(grad_only=False).values():
        p.g = 0
    y.backward()
    scope = next(iter(nn.get_parameters())).split("/")[0]
    np.testing.assert_allclose(
        parameter(f"{scope}/W").g, np.tile(x.d.sum(0)[:, None], 5), rtol=1e-5
    )
    np.testing.assert_array_equal(parameter(f"{scope}/W_q").g, 0)


@pytest.mark.parametrize("name", QUANTIZED)
def test_fixed_parameters_get_no_gradient(name):
    y = getattr(PF, f"{name}_affine")(v(2, 3), 5, fix_parameters=True)
    assert not y.need_grad


@pytest.mark.parametrize("name", QUANTIZED)
def test_without_quantization_it_is_the_plain_layer(name):
    switch = "prune" if name == "pruned" else "quantize"
    off = {f"{switch}_w": False, f"{switch}_b": False}
    image = v(2, 4, 6, 6)
    with nn.auto_forward():
        y = getattr(PF, f"{name}_convolution")(image, 6, (3, 3), pad=(1, 1), **off).d
        nn.seed(313)
        np.testing.assert_array_equal(y, PF.convolution(image, 6, (3, 3), pad=(1, 1)).d)


def test_range_of_the_weights_is_measured():
    y = PF.min_max_quantized_affine(v(2, 3), 5, w_min_max=True, b_min_max=True)
    y.forward()
    w = parameter("min_max_quantized_affine/W").d
    scope = "min_max_quantized_affine/min_max_quantize_{}/min_max_quantize/qr_{}"
    assert parameter(scope.format("w", "min")).d == w.min()
    assert parameter(scope.format("w", "max")).d == w.max()
    assert parameter(scope.format("b", "max")).d == np.float32(0.01)  # eps above the minimum, 0


def test_binary_layers_leave_signs_and_scales():
    x = v(2, 3)
    with nn.auto_forward():
        y = PF.binary_weight_affine(x, 5)
    w, wb, alpha = (parameter(f"bwn_affine/{n}").d for n in ("W", "Wb", "alpha"))
    np.testing.assert_array_equal(wb, np.sign(w))
    np.testing.assert_allclose(alpha, np.abs(w).mean(0), rtol=1e-6)
    np.testing.assert_allclose(y.d, x.d @ (wb * alpha), rtol=1e-5)


@pytest.mark.parametrize("name", ["binary_connect", "binary_weight", "inq"])
def test_binary_convolution_may_have_groups(name):
    y = getattr(PF, f"{name}_convolution")(v(2, 4, 8, 8), 6, (3, 3), group=2)
    assert y.shape == (2, 6, 6, 6)
    assert next(iter(nn.get_parameters().values())).shape == (6, 2, 3, 3)


def test_weights_of_inq_become_powers_of_two():
    y = PF.inq_affine(v(2, 3), 5, inq_iterations=(0, 1))
    y.forward()
    fixed = parameter("inq_affine/I").d
    assert 0 < fixed.sum() < 15
    y.forward()
    assert parameter("inq_affine/I").d.all()
    w = np.abs(parameter("inq_affine/W").d)
    np.testing.assert_array_equal(np.frexp(w[w > 0])[0], 0.5)


# ---- errors ----


def test_level_must_be_a_number_or_a_variable():
    with pytest.raises(TypeError, match="ql_min is ndarray, wanted a number or nnl.Variable"):
        PF.min_max_quantize(v(2, 3), np.zeros((1, 3)))
    assert not nn.get_parameters(grad_only=False)


@pytest.mark.parametrize("name", FAMILIES)
def test_errors_name_the_layer(name):
    layer = getattr(PF, f"{name}_convolution")
    with pytest.raises(ShapeError, match=f"{name}_convolution: 4 input channels .* group 3"):
        layer(v(2, 4, 8, 8), 6, (3, 3), group=3)
    with pytest.raises(ShapeError, match=f"{name}_convolution: inp has the shape"):
        layer(v(2, 4, 8), 6, (3, 3))
    with pytest.raises(ShapeError, match=f"{name}_affine: base_axis 5 is outside"):
        getattr(PF, f"{name}_affine")(v(2, 3), 5, base_axis=5)
    assert not nn.get_parameters(grad_only=False)


def test_signatures_end_with_name():
    for name in FAMILIES:
        for kind in ("affine", "convolution"):
            parameters = list(inspect.signature(getattr(PF, f"{name}_{kind}")).parameters)
            assert parameters[0] == "inp" and parameters[-1] == "name"
    assert F.min_max_quantize is not PF.min_max_quantize
