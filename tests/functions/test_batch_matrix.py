# SPDX-License-Identifier: Apache-2.0
"""Functions of batches of matrices against PyTorch, and what they refuse."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

V = nn.Variable.from_numpy_array


def matrices():
    x = np.random.default_rng(0).normal(size=(3, 4, 4)) + 2 * np.eye(4)
    x[1, 0] *= -1
    return x


@pytest.mark.parametrize("name", ["batch_det", "batch_logdet", "batch_inv"])
def test_equals_pytorch(name):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    references = {
        "batch_det": torch.linalg.det,
        "batch_logdet": lambda x: torch.linalg.slogdet(x)[1],
        "batch_inv": torch.linalg.inv,
    }
    compare(getattr(F, name), references[name], matrices())


@pytest.mark.parametrize("upper", [False, True])
def test_batch_cholesky_equals_pytorch(upper):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    def symmetric(x, product):
        return (
            product(x) + 0.5 * x + 0.5 * (x.mT if hasattr(x, "mT") else F.transpose(x, (0, 2, 1)))
        )

    compare(
        lambda x: F.batch_cholesky(
            symmetric(x, lambda x: F.batch_matmul(x, x, transpose_b=True)), upper=upper
        ),
        lambda x: torch.linalg.cholesky(symmetric(x, lambda x: x @ x.mT), upper=upper),
        matrices() + 3 * np.eye(4),
        rtol=1e-7,
    )


@pytest.mark.parametrize("name", ["batch_det", "batch_logdet", "batch_inv", "batch_cholesky"])
@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 4), (1, 2, 3, 3)])
def test_only_batches_of_square_matrices_are_taken(name, shape):
    with pytest.raises(ValueError, match=rf"^{name}: x .* must have the shape \(B, n, n\)"):
        getattr(F, name)(V(np.zeros(shape)))


def test_logdet_of_a_singular_matrix_is_minus_infinity():
    with nn.auto_forward():
        assert F.batch_logdet(V(np.zeros((1, 2, 2)))).d.tolist() == [-np.inf]


@pytest.mark.parametrize(
    "name,text",
    [
        ("batch_inv", "batch_inv .*: x has a singular matrix, which has no inverse"),
        ("batch_cholesky", "batch_cholesky .*: x has a matrix that is not positive definite"),
    ],
)
def test_matrices_without_a_result_are_refused(name, text):
    y = getattr(F, name)(V(np.zeros((1, 2, 2))))
    with pytest.raises(ValueError, match=text):
        y.forward()
