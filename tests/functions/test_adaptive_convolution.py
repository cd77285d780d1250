# SPDX-License-Identifier: Apache-2.0
"""adaptive_separable_convolution against PyTorch, and what it refuses."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError

V = nn.Variable.from_numpy_array


@pytest.mark.parametrize(
    "v,u", [((2, 4, 3), (4, 4, 3)), ((2, 5, 6), (4, 4, 5)), ((1, 5, 6), (1, 5, 6))]
)
def test_equals_products_with_unfolded_images(v, u):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 5, 6))

    def reference(x, v, u):
        windows = x.unfold(2, v.shape[1], 1).unfold(3, u.shape[1], 1)
        h, w = windows.shape[2:4]
        v, u = v[:, :, :h, :w], u[:, :, :h, :w]
        return torch.einsum("nchwij,nihw,njhw->nchw", windows, v, u)

    kernels = (rng.normal(size=(2, *v)), rng.normal(size=(2, *u)))
    compare(F.adaptive_separable_convolution, reference, x, *kernels)


@pytest.mark.parametrize(
    "x,v,u,text",
    [
        ((3, 5, 6), (2, 2, 4, 5), (2, 2, 4, 5), r"x float32\[3, 5, 6\] has rank 3, wanted 4"),
        ((2, 3, 5, 6), (1, 2, 4, 5), (2, 2, 4, 5), "vertical_kernel .* another batch size than x"),
        ((2, 3, 5, 6), (2, 6, 4, 5), (2, 2, 4, 5), "must have 1 to 5 and 1 to 6 taps"),
        ((2, 3, 5, 6), (2, 2, 4, 5), (2, 2, 3, 5), "horizontal_kernel .* 4 to 5 rows and 5 to 6"),
    ],
)
def test_errors_name_what_came_and_what_was_wanted(x, v, u, text):
    with pytest.raises(ShapeError, match=f"^adaptive_separable_convolution: .*{text}"):
        F.adaptive_separable_convolution(*(V(np.zeros(s)) for s in (x, v, u)))
