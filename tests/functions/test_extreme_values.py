# SPDX-License-Identifier: Apache-2.0
"""Values at which other frameworks were reported to go wrong; PyTorch in float64 is the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.ext import native

torch = pytest.importorskip("torch")
T = torch.nn.functional
INF = np.inf
CONTEXTS = ["numpy:float", "cpu:float"] if native.library() is not None else ["numpy:float"]
ROW = [[-781.0, -1043.0, 890.0, -1234.0, -1622.0]]
LOGITS, LABELS = [-2, 0.3, 100, 100, -100.0], [0, 1, 1, 0, 1]


def sigmoid_loss(x: Any) -> Any:
    return F.sigmoid_cross_entropy(x, nn.Variable.from_numpy_array(np.array(LABELS, np.int32)))


def normalized(x: Any) -> Any:
    # beta, gamma, and what is written: running mean and variance
    four = [nn.Variable.from_numpy_array(np.full((1, 1), v, np.float32)) for v in (0, 1, 0, 1)]
    return F.batch_normalization(x, *four, batch_stat=True)


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Any]]] = {
    "softmax of -inf": (F.softmax, lambda x: torch.softmax(x, 1), [[[0, -INF], [-INF, 3]]]),
    "log_softmax of -inf": (
        F.log_softmax, lambda x: torch.log_softmax(x, 1), [[[0, -INF], [-INF, 3]]],
    ),
    "log_softmax of large": (F.log_softmax, lambda x: torch.log_softmax(x, 1), [ROW]),
    "layer normalization far from 0": (
        lambda x: F.layer_normalization(x, None, None),
        lambda x: T.layer_norm(x, (4,)), [[[40000, 40001, 40002, 40003]]],
    ),
    "batch normalization of a constant": (
        normalized, lambda x: T.batch_norm(x, None, None, None, None, True), [[[100.0]] * 9],
    ),
    "softplus": (F.softplus, T.softplus, [[20, 50, 100, -50, -100]]),
    "softplus with beta": (
        lambda x: F.softplus(x, beta=5.0), lambda x: T.softplus(x, beta=5.0), [[20, 50, 100, -50]],
    ),
    "log_sigmoid": (F.log_sigmoid, T.logsigmoid, [[20, 50, 100, -50, -100]]),
    "mish": (F.mish, T.mish, [[20, 50, 100, -50, -100]]),
    "sigmoid cross entropy": (
        sigmoid_loss,
        lambda x: T.binary_cross_entropy_with_logits(
            x, torch.tensor(LABELS, dtype=x.dtype), reduction="none"
        ), [LOGITS],
    ),
    "norm of zeros": (F.norm, lambda x: x.norm().reshape(1), [[0, 0]]),
    "powers of 0": (F.pow2, torch.pow, [[0, 0, 3], [2, 0, 0]]),
}  # fmt: skip


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_right(name: str, context: str) -> None:
    ours, theirs, arrays = CASES[name]
    leaves = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]
    want = theirs(*leaves)
    want.backward(torch.ones_like(want))
    for auto in (False, True):
        with nn.context_scope(nn.Context([context])), nn.auto_forward(auto):
            xs = [nn.Variable.from_numpy_array(np.array(a, np.float32), None, True) for a in arrays]
            y = ours(*xs)
            y.forward()
            y.backward()
        np.testing.assert_allclose(y.d.ravel(), want.detach().numpy().ravel(), 1e-5, 1e-5)
        for x, leaf in zip(xs, leaves, strict=True):
            np.testing.assert_allclose(x.g, leaf.grad.numpy(), 1e-5, 1e-5)


@pytest.mark.parametrize("types", ["half", "bfloat16"])
def test_long_sums_in_16_bits_do_not_overflow_or_stand_still(types: str) -> None:
    with nn.context_scope(nn.Context([f"cpu:{types}"])), nn.auto_forward():
        x = nn.Variable.from_numpy_array(np.full((64, 1024), 100, np.float32))
        assert F.mean(x).d == 100
        ones = nn.Variable.from_numpy_array(np.ones(5000, np.float32))
        assert F.sum(ones).d == 5000
        assert F.cumsum(ones, axis=0).d[-1] == pytest.approx(5000, rel=0.01)
