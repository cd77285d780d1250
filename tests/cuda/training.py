# SPDX-License-Identifier: Apache-2.0
"""Small networks to train in a context, and what came out."""

import numpy as np

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from tests.cuda import strict_xp


class Run:
    """Losses, parameters, how often each step waited for the device, and the plans that were made.

    Attributes:
        waits: Per step, before the loss is read.
    """

    def __init__(self):
        self.losses, self.waits, self.parameters = [], [], {}


def lenet(x):
    h = F.relu(F.max_pooling(PF.convolution(x, 4, (3, 3), name="c1"), (2, 2)))
    h = PF.batch_normalization(PF.convolution(h, 6, (3, 3), name="c2"), name="bn")
    h = F.dropout(PF.affine(F.relu(h), 20, name="a1"), 0.2, seed=3)
    return PF.affine(F.relu(h), 10, name="a2")


def resnet(x):
    def unit(h, n, name):
        with nn.parameter_scope(name):
            y = PF.convolution(h, n, (3, 3), pad=(1, 1), with_bias=False, name="c1")
            y = F.relu(PF.batch_normalization(y, name="b1"))
            y = PF.convolution(y, n, (3, 3), pad=(1, 1), with_bias=False, name="c2")
            return F.relu(PF.batch_normalization(y, name="b2") + h)

    h = PF.convolution(x, 8, (3, 3), pad=(1, 1), with_bias=False, name="stem")
    h = F.max_pooling(F.relu(PF.batch_normalization(h, name="b")), (2, 2))
    h = unit(unit(h, 8, "u1"), 8, "u2")
    return PF.affine(F.global_average_pooling(h), 10, name="fc")


def train(ctx, network, steps=6, solver=None, clear=True, after=None, batch=4):
    """Train on random images; `after` is called with (step, loss) after each step."""
    nn.clear_parameters()
    nn.seed(1)
    run = Run()
    rng = np.random.default_rng(0)
    with nn.context_scope(ctx):
        x, t = nn.Variable((batch, 1, 16, 16)), nn.Variable((batch, 1))
        loss = F.mean(F.softmax_cross_entropy(network(x), t))
        solver = solver or S.Momentum(0.05, 0.9)
        solver.set_parameters(nn.get_parameters())
        for step in range(steps):
            x.d, t.d = rng.normal(size=x.shape), rng.integers(0, 10, t.shape)
            before = strict_xp.counts["synchronisations"]
            loss.forward(clear_no_need_grad=clear)
            solver.zero_grad()
            loss.backward(clear_buffer=clear)
            solver.update()
            run.waits.append(strict_xp.counts["synchronisations"] - before)
            if after is not None:
                after(step, loss)
            run.losses.append(float(loss.d))
        run.parameters = {k: v.d.copy() for k, v in nn.get_parameters(grad_only=False).items()}
    nn.clear_parameters()
    return run


def assert_same(got, want, tolerance):
    np.testing.assert_allclose(got.losses, want.losses, rtol=tolerance)
    assert got.parameters.keys() == want.parameters.keys()
    for name, value in want.parameters.items():
        scale = max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(
            got.parameters[name], value, rtol=0, atol=tolerance * scale, err_msg=name
        )
