# SPDX-License-Identifier: Apache-2.0
"""Weights of 16 bits in a network of float32: kernels read them as they are."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

import nnl as nn
import nnl.functions as F
from nnl.ext import native

pytestmark = pytest.mark.skipif(native.library() is None, reason="no native engine")


@pytest.mark.parametrize("dtype", [bfloat16, np.float16])
@pytest.mark.parametrize("rows", [1, 20, 80])
def test_products_and_rows_of_narrow_weights(dtype, rows):
    rng = np.random.default_rng(0)
    table = nn.Variable.from_numpy_array(rng.normal(size=(300, 320)).astype(dtype))
    x = nn.Variable.from_numpy_array(rng.integers(0, 300, (rows,)))

    @nn.compile
    def scores(x):
        return F.batch_matmul(F.embed(x, table), table, transpose_b=True)

    scores(x)
    with nn.profile() as p:
        y = scores(x).d
    assert y.dtype == np.float32 and "cast " not in str(p)
    wide = table.d.astype(np.float64)
    want = wide[x.d.astype(int)] @ wide.T
    np.testing.assert_allclose(y, want, atol=1e-4 * abs(want).max())
