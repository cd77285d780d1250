# SPDX-License-Identifier: Apache-2.0
"""Matrix products of definitions, with a cuBLAS that computes on host memory, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nnl.ext.cuda.products import Products
from tests.cuda import strict_xp
from tests.cuda.fake_blas import FakeBlas
from tests.cuda.strict_device import DEVICE

Make = Callable[[np.ndarray], np.ndarray]


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(dtype)


@pytest.fixture
def products() -> Products:
    DEVICE.activate()
    library = FakeBlas()
    made = Products(DEVICE, lambda: library)
    made.calls = library.calls  # type: ignore[attr-defined]
    return made


def multiply(products: Products, a: np.ndarray, b: np.ndarray, out: Any = None) -> np.ndarray:
    wrapped = [x if x is None else strict_xp.wrap(x) for x in (a, b, out)]
    y = products.matmul(DEVICE.xp, *wrapped)
    assert out is None or y is wrapped[2]
    return y._a


def turned(x: np.ndarray) -> np.ndarray:
    """The same values, lying column by column."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def part_of_more(x: np.ndarray) -> np.ndarray:
    """The same values within larger rows."""
    wide = np.zeros((*x.shape[:-1], x.shape[-1] + 3), x.dtype)
    wide[..., 1 : 1 + x.shape[-1]] = x
    return wide[..., 1 : 1 + x.shape[-1]]


SHAPES = [
    ((4, 6), (6, 5)),
    ((1, 6), (6, 1)),
    ((3, 4, 6), (6, 5)),
    ((4, 6), (3, 6, 5)),
    ((3, 4, 6), (3, 6, 5)),
    ((2, 1, 4, 6), (3, 6, 5)),
]


@pytest.mark.parametrize("make_b", [np.asarray, turned, part_of_more])
@pytest.mark.parametrize("make_a", [np.asarray, turned, part_of_more])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_cublas_multiplies_as_numpy_does(
    products: Any, shapes: Any, make_a: Make, make_b: Make
) -> None:
    a, b = make_a(numbers(*shapes[0])), make_b(numbers(*shapes[1]))
    np.testing.assert_allclose(multiply(products, a, b), np.matmul(a, b), rtol=1e-5, atol=1e-6)
    assert products.calls


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(4, 6), (6, 5)]),
        ("ij,jk->ki", [(4, 6), (6, 5)]),
        ("ij,jk->", [(4, 6), (6, 5)]),
        ("ij,kl->kjl", [(2, 3), (4, 5)]),
        ("bij,bkj->bik", [(3, 4, 6), (3, 5, 6)]),
        ("nchw,nchw->nhw", [(2, 3, 4, 5), (2, 3, 4, 5)]),
        ("ij,ij->", [(4, 6), (4, 6)]),
        ("i,i->i", [(4,), (4,)]),
        ("i,j->ij", [(4,), (5,)]),
        (",ij->ji", [(), (2, 3)]),
        ("bhqd,bhkd,bhkv->bqhv", [(2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 2)]),
        ("ii->i", [(4, 4)]),
        ("ij->j", [(4, 6)]),
        ("ij,jk->ik", [(4, 0), (0, 5)]),
        ("ij,jk->ik", [(4, 1), (6, 5)]),
        ("...j,jk->...k", [(2, 3, 4), (4, 5)]),
    ],
)
def test_einsum_is_that_of_numpy(products: Any, equation: str, shapes: Any) -> None:
    arrays = [numbers(*s) for s in shapes]
    y = products.einsum(DEVICE.xp, equation, *map(strict_xp.wrap, arrays))
    want = np.einsum(equation, *arrays)
    assert y._a.shape == want.shape
    np.testing.assert_allclose(y._a, want, rtol=1e-5, atol=1e-5)


def test_results_go_to_the_array_that_is_given(products: Any) -> None:
    a, b = numbers(4, 6), numbers(6, 5)
    out = part_of_more(np.full((4, 5), np.nan, np.float32))
    multiply(products, a, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-5, atol=1e-6)
    assert products.calls


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (numbers(4, 6, dtype=np.float64), numbers(6, 5, dtype=np.float64)),
        (numbers(4, 6), numbers(6)),
        (numbers(6), numbers(6)),
        (numbers(4, 6)[::-1], numbers(6, 5)),
        (numbers(4, 12)[:, ::2], numbers(6, 5)),
        (numbers(0, 6), numbers(6, 5)),
        (np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2)),
    ],
    ids=["float64", "vector", "vectors", "upwards", "every second", "empty", "integers"],
)
def test_the_array_module_multiplies_what_cublas_does_not(products: Any, a: Any, b: Any) -> None:
    np.testing.assert_allclose(multiply(products, a, b), np.matmul(a, b), rtol=1e-5, atol=1e-6)
    assert not products.calls


def test_shapes_that_do_not_fit_are_the_array_modules_error(products: Any) -> None:
    with pytest.raises(ValueError, match="matmul"):
        multiply(products, numbers(4, 6), numbers(5, 4))


def test_without_cublas_the_array_module_multiplies(caplog: Any) -> None:
    def missing() -> Any:
        raise OSError("libcublas.so.13: cannot open shared object file")

    DEVICE.activate()
    a, b = numbers(4, 6), numbers(6, 5)
    y = multiply(Products(DEVICE, missing), a, b)
    np.testing.assert_allclose(y, a @ b, rtol=1e-5, atol=1e-6)
    assert "cuBLAS: it is not used" in caplog.text


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_recurrent_layers_are_recorded(name: str) -> None:
    import nnl as nn
    import nnl.functions as F
    import nnl.parametric_functions as PF
    from nnl.graph.execution.session import session_of
    from tests.cuda.strict_device import context

    nn.clear_parameters()
    with nn.context_scope(context()):
        x, h = nn.Variable((5, 3, 4)), F.constant(0, (1, 1, 3, 6))
        x.d = numbers(5, 3, 4)
        more = (F.constant(0, (1, 1, 3, 6)),) if name == "lstm" else ()
        y = getattr(PF, name)(x, h, *more)[0]
        loss = F.mean(y * y)
        for _ in range(3):
            loss.forward(clear_no_need_grad=True)
            loss.backward(clear_buffer=True)
        (plan,) = session_of([loss]).plans.values()
    nn.clear_parameters()
    assert plan.plan.native.reasons == []
