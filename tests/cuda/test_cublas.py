# SPDX-License-Identifier: Apache-2.0
"""Products by cuBLAS, whose place a library takes that computes on host memory."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.core.ops.op import OPS
from nnl.ext.cuda.cublas import SUMS_IN_FLOAT32, WITH_TF32, Blas, Product, make_blas
from nnl.ext.cuda.cudnn.cache import PlanCache
from nnl.ext.cuda.cudnn.lower import NotSupported
from nnl.ext.cuda.cudnn.run import Engine, Plan, WorkKernel
from nnl.ext.cuda.cudnn.spec import Array, Graph, Node
from tests.cuda.fake_blas import FakeBlas
from tests.cuda.fake_cudnn import FakeFrontEnd
from tests.cuda.kernels import execute, poisoned
from tests.cuda.works import works
from tests.native.kernels import BF16, F16, F32, assert_close, run_numpy

pytestmark = pytest.mark.usefixtures("host_compiler")
SHAPES = [  # batch axes of a and of b, m, k, n
    ((), (), 4, 6, 5),
    ((3,), (3,), 4, 6, 5),
    ((2, 3), (2, 3), 4, 6, 5),
    ((2, 1), (1, 3), 4, 6, 5),
    ((1,), (3,), 4, 6, 5),
    ((3,), (3,), 1, 6, 5),
    ((3,), (3,), 4, 1, 5),
    ((3,), (3,), 4, 6, 1),
    ((3,), (3,), 1, 1, 1),
]


def engine(library: FakeBlas, **settings: Any) -> Engine:
    """cuDNN itself has no engine for products of float32."""
    front_end = FakeFrontEnd(lambda g: g.multiplies_float32)
    return Engine(front_end, "fake 9.0", None, blas=Blas(library), **settings)


def numbers(dtype: Any, *shape: int) -> np.ndarray:
    return np.random.default_rng([0, *shape]).normal(size=shape).astype(dtype)


def swapped(pair: tuple[int, int], swap: bool) -> tuple[int, int]:
    return (pair[1], pair[0]) if swap else pair


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_of_matrices_as_they_lie_and_transposed(shape: Any, dtype: Any) -> None:
    batch_a, batch_b, m, k, n = shape
    for ta, tb in itertools.product((False, True), repeat=2):
        a = numbers(dtype, *batch_a, *swapped((m, k), ta))
        b = numbers(dtype, *batch_b, *swapped((k, n), tb))
        attrs = {"transpose_a": ta, "transpose_b": tb}
        op = OPS["batch_matmul"]
        want = run_numpy(op, op.attrs(**attrs), [a.astype(F32), b.astype(F32)])[1][0]
        y = poisoned(want.shape, dtype)
        library = FakeBlas()
        kernel = engine(library).kernel(works("batch_matmul", attrs, [a, b], [y]))
        assert isinstance(kernel, WorkKernel) and isinstance(kernel.steps[-1], Product)
        execute(kernel, [a, b], [y])
        assert_close(y, want, dtype, f"{shape} {attrs}")
        assert {sums for _, sums in library.calls} == {SUMS_IN_FLOAT32}


def test_affine_maps_of_float32_are_products_and_what_follows() -> None:
    x, w, b = numbers(F32, 5, 12), numbers(F32, 12, 6), numbers(F32, 6)
    made = engine(FakeBlas())
    y = poisoned((5, 6), F32)
    attrs = {"base_axis": 1, "activation": "relu"}
    execute(made.kernel(works("affine_fused", attrs, [x, w, b, None], [y])), [x, w, b, None], [y])
    assert_close(y, np.maximum(x @ w + b, 0), F32, "y")


def test_gradients_of_weights_are_float32_from_16_bits() -> None:
    x, gy, gw = numbers(BF16, 5, 12), numbers(BF16, 5, 6), poisoned((12, 6), F32)
    execute(engine(FakeBlas()).kernel(works("affine_weight", {}, [x, gy], [gw])), [x, gy], [gw])
    np.testing.assert_allclose(gw, x.astype(F32).T @ gy.astype(F32), rtol=1e-5, atol=1e-5)


def product(tf32: bool = False, **changes: Any) -> Graph:
    """c = a b of 4 x 6 and 6 x 5, with changes to the strides of a or c."""
    a = Array(1, (2, 4, 6), changes.get("a", (24, 6, 1)), "float32")
    b = Array(2, (2, 6, 5), (30, 5, 1), "float32")
    c = Array(1001, (2, 4, 5), changes.get("c", (20, 5, 1)), "float32")
    return Graph((a, b, c), (Node("matmul", (("A", 1), ("B", 2)), (("C", 1001),)),), tf32)


def test_tf32_is_used_where_it_is_asked_for() -> None:
    for tf32, sums in ((False, SUMS_IN_FLOAT32), (True, WITH_TF32)):
        assert Product(Blas(FakeBlas()), product(tf32)).end == (2, sums, -1)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"a": (48, 12, 2)}, r"a matrix float32\[2, 4, 6\] with the strides \(48, 12, 2\)"),
        ({"c": (20, 1, 4)}, r"cuBLAS: a product of float32\[2, 4, 6\] and float32\[2, 6, 5\]"),
    ],
)
def test_matrices_that_cublas_does_not_take(changes: Any, text: str) -> None:
    with pytest.raises(NotSupported, match=text):
        Product(Blas(FakeBlas()), product(**changes))


def test_batches_of_many_products_are_left_to_others() -> None:
    a, b = numbers(F32, 65, 1, 2, 3), numbers(F32, 1, 2, 3, 2)
    attrs = {"transpose_a": False, "transpose_b": False}
    ways = works("batch_matmul", attrs, [a, b], [np.empty((65, 2, 2, 2), F32)])
    with pytest.raises(NotSupported, match=r"a batch of \[65, 2\] whose axes are not one"):
        Product(Blas(FakeBlas()), ways[0].steps[0])


def test_an_error_of_cublas_is_told_or_leads_to_cudnn() -> None:
    bad = engine(FakeBlas(status=13))
    found = bad.plan(product())
    assert isinstance(found, Product)
    addresses = {uid: 0 for uid in (1, 2, 1001)}
    with pytest.raises(RuntimeError, match="cublasGemmStridedBatchedEx gives the status 13"):
        found.run(addresses, 0, 0)

    def run(plan: Any, runs: int) -> float:
        plan.run(addresses, 0, 0)
        return 1.0

    with pytest.raises(NotSupported, match="no engine"):
        engine(FakeBlas(status=13), time=run).plan(product())


@pytest.mark.parametrize("faster", [Plan, Product])
def test_autotuning_takes_the_faster_library(tmp_path: Path, faster: Any) -> None:
    def time(plan: Any, runs: int) -> float:
        return 1.0 if isinstance(plan, faster) else 2.0

    for _ in range(2):
        made = Engine(FakeFrontEnd(), "fake 9.0", PlanCache(tmp_path), time, True, Blas(FakeBlas()))
        assert isinstance(made.plan(product()), faster)


def test_without_cublas_there_is_a_warning(caplog: Any) -> None:
    def missing() -> None:
        raise OSError("libcublas.so.13: cannot open shared object file")

    assert make_blas(missing) is None
    assert "cuBLAS: it is not used, and float32 products are not recorded: lib" in caplog.text
    assert isinstance(make_blas(FakeBlas), Blas)
