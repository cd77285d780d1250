# SPDX-License-Identifier: Apache-2.0
"""nnl on two emulated GPUs at once."""

from __future__ import annotations

import os

import pytest

if "EMULATOR_FOLDER" not in os.environ:
    pytest.skip("not run by tests.cuda.emulator", allow_module_level=True)
from tests.cuda.emulator.test_runtime import alone

SETUP = """
import nnl as nn, nnl.functions as F, nnl.solvers as S
from nnl.ext import get_extension_context
from tests.cuda.training import lenet
contexts = [get_extension_context("cudnn", device_id=d) for d in "01"]
"""
TRAINING = """
def network(ctx, name):
    nn.seed(1)
    with nn.context_scope(ctx), nn.parameter_scope(name):
        x, t = nn.Variable((4, 1, 16, 16)), nn.Variable((4, 1))
        loss = F.mean(F.softmax_cross_entropy(lenet(x), t))
        solver = S.Adam()
        solver.set_parameters(nn.get_parameters())
    return x, t, loss, solver

networks = [network(ctx, f"on{i}") for i, ctx in enumerate(contexts)]
rng = np.random.default_rng(0)
for step in range(5):
    images = rng.normal(size=(4, 1, 16, 16)).astype("f")
    for x, t, loss, solver in networks:
        x.d, t.d = images, step
        loss.forward(clear_no_need_grad=True)
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        solver.update()
a, b = (float(n[2].d) for n in networks)
assert a == b != 0, (a, b)
print("same")
"""
MOVES = """
values = np.arange(6.0, dtype="f")
x = nn.Variable.from_numpy_array(values)
with nn.auto_forward():
    for ctx in contexts * 2:
        with nn.context_scope(ctx):
            x = F.log(F.exp(x))
assert np.allclose(x.d, values, atol=1e-5), x.d
print("same")
"""


@pytest.mark.parametrize("what", [TRAINING, MOVES], ids=["training", "arrays that move"])
def test_two_devices_take_turns(what):
    done = alone(SETUP + what, EMULATOR_DEVICES="2")
    assert done.stdout == "same\n", done.stdout + done.stderr
