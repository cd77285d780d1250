# SPDX-License-Identifier: Apache-2.0
"""Branches and loops on a device: what numpy computes. The device lies in host memory."""

import numpy as np
import pytest

import nnl as nn
from tests.cuda.strict_device import context
from tests.graph import test_switch, test_while_loop

REFERENCE = nn.Context(["numpy:float"])


def branches():
    net = test_switch.Net()
    ys = net.chosen()
    for k in range(3):
        net.i.d = k
        nn.forward_all(ys)
        yield from [y.d.copy() for y in ys]
        yield from net.gradients(ys)


def loops():
    net = test_while_loop.Net()
    ys = net.loop()
    for n in (1, 3):
        with nn.context_scope(REFERENCE):
            net.trips(n)
        nn.forward_all(ys)
        yield from [y.d.copy() for y in ys]
        yield from net.gradients(ys, True)


@pytest.mark.parametrize("run", [branches, loops])
def test_values_and_gradients_are_those_of_numpy(run, host_compiler):
    found = []
    for one in (REFERENCE, context()):
        nn.clear_parameters()
        with nn.context_scope(one):
            found.append(list(run()))
    nn.clear_parameters()
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
