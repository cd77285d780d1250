# SPDX-License-Identifier: Apache-2.0
"""Gradients pass through changes of type between floats, as PyTorch's `to` lets them."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.ops.op import OPS
from tests.core.conftest import leaf

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("mode", ["static", "dynamic", "compiled"])
@pytest.mark.parametrize("context", ["numpy:float", "cpu:float", "cpu:half"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_gradients_pass_through_casts_between_floats(mode, context, dtype):
    x, values = leaf([0.5, -2]), torch.tensor([0.5, -2], requires_grad=True)
    torch.tanh(values.to(getattr(torch, dtype)) * 3).to(torch.float32).sum().backward()

    def step():
        y = F.tanh(OPS["cast"](x, dtype=dtype) * 3)
        y = F.sum(OPS["cast"](y, dtype="float32"))
        y.forward(clear_no_need_grad=True)
        y.backward()

    with nn.context_scope(nn.Context([context])), nn.auto_forward(mode == "dynamic"):
        (nn.compile(step) if mode == "compiled" else step)()
    np.testing.assert_allclose(x.g, values.grad, rtol=0.01, atol=1e-3)


def test_second_gradients_pass_through_casts_and_none_through_integers():
    x = leaf([1, 2])
    (g,) = nn.grad([F.sum(OPS["cast"](x**3, dtype="float64"))], [x])
    (gg,) = nn.grad([F.sum(g)], [x])
    gg.forward()
    assert gg.d.tolist() == [6, 12] and gg.d.dtype == np.float32
    y = x * OPS["cast"](x, dtype="int64")
    y.forward()
    y.backward()
    assert x.g.tolist() == [1, 2]
