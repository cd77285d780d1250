# SPDX-License-Identifier: Apache-2.0
"""Matrix products of odd sizes, broadcast batches, mixed element types; affine's fused kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.native.direct import call
from tests.native.kernels import BF16, F16, F32, assert_close

DTYPES = [F32, BF16, F16]
SIZES = [
    (1, 1, 1),
    (5, 3, 7),
    (6, 64, 17),
    (13, 300, 65),
    (1, 777, 130),
    (1, 33, 4111),
    (1, 4099, 3),
    (2, 961, 1),
    (2, 301, 1500),
    (7, 133, 335),
    (129, 1, 63),
    (17, 600, 330),
    (40, 530, 400),
    (70, 90, 110),
]


def random(rng: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return rng.normal(size=shape).astype(dtype)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_products_of_odd_sizes(ta: bool, tb: bool, dtype: np.dtype) -> None:
    rng = np.random.default_rng(0)
    for m, k, n in SIZES:
        for batch_a, batch_b in (((), ()), ((3,), (3,)), ((3,), (1,)), ((2, 1), (1, 3))):
            a = random(rng, (*batch_a, *((k, m) if ta else (m, k))), dtype)
            b = random(rng, (*batch_b, *((n, k) if tb else (k, n))), dtype)
            left = wide(a).swapaxes(-1, -2) if ta else wide(a)
            want = left @ (wide(b).swapaxes(-1, -2) if tb else wide(b))
            attrs = {"transpose_a": ta, "transpose_b": tb}
            got = call("batch_matmul", attrs, [a, b], (want.shape, dtype))
            assert_close(got, want, dtype, f"{a.shape} {b.shape}")


@pytest.mark.parametrize("x_type", DTYPES, ids=str)
@pytest.mark.parametrize("w_type", DTYPES, ids=str)
@pytest.mark.parametrize("y_type", DTYPES, ids=str)
def test_every_array_has_its_own_element_type(x_type: Any, w_type: Any, y_type: Any) -> None:
    rng = np.random.default_rng(1)
    for m, k, n in ((3, 4, 5), (40, 60, 50), (1, 70, 90), (7, 70, 900)):
        x, w = random(rng, (m, k), x_type), random(rng, (k, n), w_type)
        for b_type in DTYPES:
            b, z = random(rng, (n,), b_type), random(rng, (m, n), b_type)
            want = wide(x) @ wide(w) + wide(b)
            got = call("affine", {"base_axis": 1}, [x, w, b], ((m, n), y_type))
            assert_close(got, want, y_type, "affine")
            attrs = {"base_axis": 1, "activation": "relu"}
            got = call("affine_fused", attrs, [x, w, None, z], ((m, n), y_type))
            assert_close(got, np.maximum(wide(x) @ wide(w) + wide(z), 0), y_type, "affine_fused")


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "swish": lambda x: x * sigmoid(x),
    "gelu": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_affine_fused_equals_its_parts(name: str) -> None:
    rng = np.random.default_rng(2)
    for rows, k, out in (((2, 3), 5, (2, 2)), ((9, 11), 40, (37,))):
        x = random(rng, (*rows, k), F32)
        w, b = random(rng, (k, *out), F32), random(rng, out, F32)
        z = random(rng, (*rows, *out), F32)
        flat = wide(x).reshape(-1, k) @ wide(w).reshape(k, -1)
        for bias, addend in ((b, None), (None, z), (b, z), (None, None)):
            want = flat.reshape(z.shape)
            want = want + (0 if bias is None else bias) + (0 if addend is None else addend)
            attrs = {"base_axis": len(rows), "activation": name}
            got = call("affine_fused", attrs, [x, w, bias, addend], (z.shape, F32))
            assert_close(got, ACTIVATIONS[name](want), F32, f"{rows} {name}")


def test_affine_fused_names_an_activation_that_it_does_not_have() -> None:
    x = np.zeros((2, 2), F32)
    with pytest.raises(ValueError, match="activation is 'mish', wanted identity, relu, gelu"):
        call("affine_fused", {"base_axis": 1, "activation": "mish"}, [x, x], ((2, 2), F32))
