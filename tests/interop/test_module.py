# SPDX-License-Identifier: Apache-2.0
"""A script with Modules gives the same parameters and results in NNabla and in nnl."""

import numpy as np
import pytest

import nnl as nn
from nnl.parametric_functions.module import Module, Sequential
from tests.interop.here import check_script

pytestmark = pytest.mark.interop

SCRIPT = """
class Dense(nn.Module):
    def __init__(self, n, start):
        self.n, self.start = n, start

    def weights(self, shape):
        return self.start * np.arange(shape[0] * shape[1]).reshape(shape) / 10

    def call(self, x):
        return PF.affine(x, self.n, w_init=self.weights)

class Net(nn.Module):
    def __init__(self):
        self.first = Dense(3, 1)
        self.rest = nn.Sequential(Dense(4, -1), ("last", Dense(2, 2)))
        self.same = self.first
        self.unseen = [Dense(3, 1)]

    def call(self, x):
        h = PF.batch_normalization(self.first(x), batch_stat=self.training)
        with nn.parameter_scope("block"):
            return PF.affine(self.rest(F.relu(h)), 2, w_init=lambda shape: np.ones(shape))

net = Net()
outputs["before"] = list(net.get_parameters()) + ["none"]
x = nn.Variable.from_numpy_array(inputs["x"])
x.need_grad = True
y = net(x)
y.forward()
outputs["y"] = y.d
x.g = 0
net.zero_grad()
y.backward()
outputs["gx"] = x.g
for key, p in net.get_parameters(grad_only=True).items():
    outputs["g " + key] = p.g
for recursive in (True, False):
    for grad_only in (True, False):
        names = list(net.get_parameters(recursive=recursive, grad_only=grad_only))
        outputs[f"names {recursive} {grad_only}"] = names
net.training = False
outputs["training"] = [net.training, net.rest.last.training]
y = net(x)
y.forward()
outputs["y of test"] = y.d
modules = [net, net.first, net.rest]  # those in a Sequential have no parent in NNabla
outputs["paths"] = [m.get_path_name() for m in modules]
outputs["scopes"] = [m.get_scope_name() + "." for m in modules]
outputs["tree"] = [[m.name, str(m.is_root()), str(len(m)), repr(m)] for m in modules]
outputs["registry"] = list(nn.get_parameters(grad_only=False)) + ["none"]
net.set_parameter("@rest/@last/affine/b", nn.Variable.from_numpy_array(np.full(2, 5.0)))
net.set_parameter("@nobody/affine/b", nn.Variable.from_numpy_array(np.full(2, 5.0)))
y = net(x)
y.forward()
outputs["y with another b"] = y.d
"""


def test_modules_equal_nnabla(nnabla, monkeypatch):
    monkeypatch.setattr(nn, "Module", Module, raising=False)
    monkeypatch.setattr(nn, "Sequential", Sequential, raising=False)
    inputs = {"x": np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)}
    check_script(nnabla, SCRIPT, inputs, atol=1e-4)
