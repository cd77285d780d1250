# SPDX-License-Identifier: Apache-2.0
"""Gradients where a product of others is 0, a matrix singular or a square no number: what they are
in exact arithmetic, or PyTorch's in float64."""

from fractions import Fraction
from math import prod

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.ext import native
from tests.native.kernels import require_library
from tests.native.test_cpp_graph import from_cpp, to_cpp

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, which overflows
CONTEXTS = ["numpy:float", "cpu:float"] if native.library() is not None else ["numpy:float"]
LARGE = [[1e13, 0, 0], [1e13, 1e13, 0], [1e13, 1e13, 1e13]]


@pytest.fixture(params=[f"{c} {m}" for c in CONTEXTS for m in ("static", "dynamic", "compiled")])
def gradients(request):
    """(f, arrays) -> gradients of the sum of f(*arrays), in one of the modes."""
    context, mode = request.param.split()

    def run(f, *arrays):
        xs = [nn.Variable.from_numpy_array(np.array(a, np.float32), need_grad=True) for a in arrays]
        for x in xs:
            x.grad.zero()

        def step():
            y = f(*xs)
            y = y if y.ndim == 0 else F.sum(y)
            y.forward(clear_no_need_grad=True)
            y.backward()

        with nn.context_scope(nn.Context([context])), nn.auto_forward(mode == "dynamic"):
            (nn.compile(step) if mode == "compiled" else step)()
        return [x.g for x in xs]

    return run


def number(fraction):
    return np.float32(float(fraction)) if abs(fraction) < 2**128 else np.inf * (fraction or 1)


def of_products(x):
    """Gradient of the product of all elements, exactly."""
    x = [Fraction(float(np.float32(v))) for v in np.ravel(x)]
    return [number(prod(x[:i] + x[i + 1 :])) for i in range(len(x))]


def of_running_products(x):
    """Gradient of the sum of running products, exactly."""
    x = [Fraction(float(np.float32(v))) for v in x]
    n = range(len(x))
    return [number(sum(prod(x[:i] + x[i + 1 : k + 1]) for k in n if k >= i)) for i in n]


PRODUCTS = [
    LARGE,
    [[1e20, 1e20, 1e20, 0, 2, 0]],
    [[0, 1e20, 2], [1e20, 3, 1e20], [1e20, 0, 0]],
    [[-1e20, 1e20], [0, 1e20], [1, 0]],
    [[2, 3], [4, 0.5]],
]


@pytest.mark.parametrize("x", PRODUCTS)
def test_a_zero_among_the_others_makes_the_gradient_of_a_product_zero(gradients, x):
    (g,) = gradients(F.prod, x)
    np.testing.assert_allclose(g.ravel(), of_products(x), rtol=1e-6)
    (g,) = gradients(lambda x: F.prod(x, axis=1), x)
    np.testing.assert_allclose(g, [of_products(row) for row in x], rtol=1e-6)


RUNNING = [*LARGE, [0, 1e13, 1e13, 1e13, 1e13], [3, 0, 1e20, 1e20, -1e20, 0], [2, -3, 0, 4]]


@pytest.mark.parametrize("x", RUNNING)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_a_zero_absorbs_what_overflows_in_the_gradient_of_running_products(
    gradients, x, reverse, exclusive
):
    (g,) = gradients(lambda x: F.cumprod(x, 0, exclusive=exclusive, reverse=reverse), x)
    x = x[::-1] if reverse else x
    want = [*of_running_products(x[:-1]), 0] if exclusive else of_running_products(x)
    np.testing.assert_allclose(g[::-1] if reverse else g, want, rtol=1e-6)


def test_a_zero_absorbs_what_overflows_in_the_gradient_of_a_product_of_arrays(gradients):
    x = [0, 1e20, 1e20, 0, 3]
    assert [g.item() for g in gradients(F.mul_n, *[[v] for v in x])] == of_products(x)


@pytest.mark.parametrize("x", PRODUCTS)
@pytest.mark.parametrize("at_once", [False, True])
def test_products_have_the_same_gradients_in_cpp(x, at_once):
    call, one = require_library().graph_call, to_cpp(np.ones((), np.float32))
    a = np.array(x, np.float32)
    attrs = {"axes": (0, 1), "keep_dims": False}
    _, (g,) = call("prod", attrs, [to_cpp(a)], [True], [one], at_once)
    np.testing.assert_allclose(from_cpp(g).ravel(), of_products(x), rtol=1e-6)
    attrs = {"axis": 1, "exclusive": False, "reverse": False}
    _, (g,) = call("cumprod", attrs, [to_cpp(a)], [True], [to_cpp(np.ones_like(a))], at_once)
    np.testing.assert_allclose(from_cpp(g), [of_running_products(r) for r in x], rtol=1e-6)
    five = [to_cpp(np.array([v], np.float32)) for v in (0, 1e20, 1e20, 0, 3)]
    _, gs = call("mul_n", {}, five, [True] * 5, [to_cpp(np.ones(1, np.float32))], at_once)
    assert [from_cpp(g).item() for g in gs] == [0] * 5


def test_second_gradients_of_products_are_exact_at_zeros(gradients):
    x = np.array([1e13, 2, 1e13, 0, 1e13, 0], np.float32)
    exact = [Fraction(float(v)) for v in x]
    for i in range(6):
        others = [[v for k, v in enumerate(exact) if k not in (i, j)] for j in range(6)]
        want = [0 if i == j else number(prod(o)) for j, o in enumerate(others)]

        def first(x, i=i):
            return nn.grad([F.prod(x)], [x])[0][i]

        np.testing.assert_allclose(gradients(first, x)[0], want, rtol=1e-6)


MATRICES = [[[1, 2], [2, 4]], [[0, 0], [0, 0]], [[1, 2], [3, 4]]]
LARGER = [
    [[1, 2, 3], [4, 5, 6], [7, 8, 9]],
    [[1, 2, 3], [2, 4, 6], [3, 6, 9]],
    [[0, 1, 0], [1, 0, 0], [0, 0, 2]],
]


@pytest.mark.parametrize("x", [MATRICES, LARGER])
def test_the_gradient_of_a_determinant_are_the_cofactors(gradients, x):
    n = len(x[0])
    want = [
        [
            [(-1) ** (i + j) * np.linalg.det(np.delete(np.delete(m, i, 0), j, 1)) for j in range(n)]
            for i in range(n)
        ]
        for m in x
    ]
    np.testing.assert_allclose(gradients(F.batch_det, x)[0], want, atol=1e-5)


def test_the_second_gradient_of_a_determinant_is_pytorchs(gradients):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(size=(2, 4, 4))
    leaf = torch.tensor(x, requires_grad=True)
    (g,) = torch.autograd.grad(torch.linalg.det(leaf).sum(), leaf, create_graph=True)
    (g**2).sum().backward()
    (found,) = gradients(lambda x: nn.grad([F.batch_det(x)], [x])[0] ** 2, x)
    np.testing.assert_allclose(found, leaf.grad, rtol=2e-4, atol=1e-3)


POINTS = [0, -0.0, 1, -3, 1e-20, -1e-20, 1e20, -1e20, 3e38, 1e-38]


def test_the_gradient_of_an_angle_is_pytorchs_also_at_the_origin(gradients):
    torch = pytest.importorskip("torch")
    y, x = (np.ravel(a) for a in np.meshgrid(POINTS, POINTS))
    leaves = [torch.tensor(np.float32(a), dtype=torch.float64, requires_grad=True) for a in (y, x)]
    torch.atan2(*leaves).sum().backward()
    for g, leaf in zip(gradients(F.atan2, y, x), leaves, strict=True):
        np.testing.assert_allclose(g, leaf.grad, rtol=1e-5, atol=1e-37)
    if native.library() is None:
        return
    one = to_cpp(np.ones(len(x), np.float32))
    given = [to_cpp(np.float32(a)) for a in (y, x)]
    _, found = require_library().graph_call("atan2", {}, given, [True, True], [one], False)
    for g, leaf in zip(found, leaves, strict=True):
        np.testing.assert_allclose(from_cpp(g), leaf.grad, rtol=1e-5, atol=1e-37)


def test_the_slope_of_gelu_is_a_number_wherever_x_is(gradients):
    x = [1e13, 1e20, 3e38, -1e13, -1e20, -3e38, 0]
    assert gradients(F.gelu, x)[0].tolist() == [1, 1, 1, 0, 0, 0, 0.5]
    if native.library() is not None:
        a = to_cpp(np.array(x, np.float32))
        one = to_cpp(np.ones(7, np.float32))
        _, (g,) = require_library().graph_call("gelu", {}, [a], [True], [one], False)
        assert from_cpp(g).tolist() == [1, 1, 1, 0, 0, 0, 0.5]
        zero = to_cpp(np.zeros(1, np.float32))
        one = to_cpp(np.ones(1, np.float32))
        _, (g, _) = require_library().graph_call(
            "pow2", {"inplace": False}, [zero, zero], [True, True], [one], False
        )
        assert from_cpp(g).tolist() == [0]
