# SPDX-License-Identifier: Apache-2.0
"""Networks of the zoo on an OpenCL device: the losses of the native engine."""

from __future__ import annotations

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl import models
from nnl.ext_utils import get_extension_context

STEPS = 20


def gpt2(rng):
    """Each row counts on in steps of 7 from one of 100 tokens."""
    x, t = nn.Variable((4, 32)), nn.Variable((4, 32))
    y = models.gpt2(x, 100, width=64, layers=2, heads=4, longest=32, dropout=0.1)
    loss = F.softmax_cross_entropy(F.reshape(y, (128, 100)), F.reshape(t, (128, 1)))
    rows = (rng.integers(0, 100, (STEPS, 4, 1)) + 7 * np.arange(33)) % 100
    return x, t, F.mean(loss), S.AdamW(1e-3), rows[..., :-1], rows[..., 1:]


def resnet18(rng):
    """The same images of noise in every step."""
    x, t = nn.Variable((4, 3, 64, 64)), nn.Variable((4, 1))
    loss = F.mean(F.softmax_cross_entropy(models.resnet(x, 18, num_classes=10), t))
    images, labels = rng.normal(size=x.shape), rng.integers(0, 10, t.shape)
    return x, t, loss, S.Momentum(1e-3), [images] * STEPS, [labels] * STEPS


def losses(ctx, network):
    nn.clear_parameters()
    nn.seed(1)
    with nn.context_scope(ctx):
        x, t, loss, solver, inputs, labels = network(np.random.default_rng(0))
        solver.set_parameters(nn.get_parameters())
        found = []
        for x.d, t.d in zip(inputs, labels, strict=True):
            loss.forward(clear_no_need_grad=True)
            solver.zero_grad()
            loss.backward(clear_buffer=True)
            solver.update()
            found.append(float(loss.d))
    nn.clear_parameters()
    return found


@pytest.mark.long
@pytest.mark.parametrize(("network", "tolerance"), [(gpt2, 1e-5), (resnet18, 1e-3)])
def test_losses_of_20_steps_are_those_of_the_native_engine(network, tolerance):
    want = losses(get_extension_context("cpu"), network)
    assert want[-1] < want[0]
    got = losses(get_extension_context("opencl"), network)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
