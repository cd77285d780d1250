# SPDX-License-Identifier: Apache-2.0
"""Co-executed steps on a device, where nothing is put off yet, and partly on one."""

import numpy as np

import nnl as nn
import nnl.functions as F
from tests.coexec.steps import same, train
from tests.cuda.strict_device import context

REFERENCE = nn.Context(["numpy:float"])


def test_training_is_what_it_is_in_dynamic_mode(host_compiler):
    with nn.auto_forward():
        with nn.context_scope(REFERENCE):
            wanted, _ = train(same, 8, norm=True)
        with nn.context_scope(context()):
            found, step = train(nn.coexecute, 8, norm=True)
    nn.clear_parameters()
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-5)
    assert step.report().steps == 8


def test_a_step_may_be_on_the_host_and_on_a_device(host_compiler, monkeypatch):
    monkeypatch.setattr("nnl.coexec.policy.watch.OFTEN", 0)  # the first step is put off already

    @nn.coexecute
    def step(x):
        with nn.context_scope(REFERENCE):
            h = F.tanh(x * w)
        with nn.context_scope(context()):
            h = F.exp(h)
        with nn.context_scope(REFERENCE):
            loss = F.sum(h * x)
        w.grad.zero()
        loss.backward()
        return loss

    w = nn.Variable.from_numpy_array(np.float32([0.5, -1]), need_grad=True)
    for k in range(4):
        x = nn.Variable.from_numpy_array(np.float32([k, 1]))
        with nn.auto_forward():
            found = step(x).d
        y = np.tanh(x.d * w.d)
        np.testing.assert_allclose(found, np.sum(np.exp(y) * x.d), 1e-5)
        np.testing.assert_allclose(w.g, np.exp(y) * x.d * x.d * (1 - y * y), 1e-4)
    assert step.report().segments == 3 * step.report().steps  # the gradient goes both ways, too
