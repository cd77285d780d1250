# SPDX-License-Identifier: Apache-2.0
"""Optimizers: the readable ones against arithmetic, the native ones against them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

import nnl.deep500 as d5  # noqa: E402
from nnl.deep500 import optimizers as O  # noqa: E402
from nnl.deep500 import timing, zoo  # noqa: E402
from nnl.deep500.dataset import DataSet  # noqa: E402
from tests.deep500 import models  # noqa: E402
from tests.deep500.test_contract import in_tensorflow, installed  # noqa: E402
from tests.deep500.trajectories import SETTINGS, batches, check, trained  # noqa: E402


@pytest.mark.parametrize("backend", ["nnl", "nnl:numpy", "torch"])
@pytest.mark.parametrize("rule", list(SETTINGS))
def test_native_trajectories_equal_the_reference(rule, backend):
    check(rule, installed(backend))


@pytest.mark.long
def test_native_trajectories_of_tensorflow_equal_the_reference():
    in_tensorflow("tests.deep500.trajectories", "tensorflow", "tensorflow:compiled")


@pytest.mark.parametrize("backend", ["nnl", "torch"])
def test_native_steps_keep_parameters_and_gradients_in_the_back_end(backend, monkeypatch):
    """And are faster than those of the readable rule, which fetches and feeds all of them."""

    def made(rule):
        net = d5.network(zoo.lenet((3, 32, 32)), installed(backend))
        net.add_loss()
        return O.optimizer(rule, net, lr=1e-4)

    native, readable = made("native:momentum"), made("momentum")
    batch = next(iter(DataSet(zoo.pictures(1), 1)))
    for one in (native, readable):
        one.train(batch)  # what happens once
    pairs = [
        timing.paired(lambda: native.train(batch), lambda: readable.train(batch), bool(i % 2))
        for i in range(30)
    ]
    assert timing.overhead(pairs)["processor_us"] > 0
    for name in ("fetch", "feed", "_read", "_write"):
        monkeypatch.setattr(type(native.network), name, None)
    first, second = (float(native.train(batch)["loss"]) for _ in range(2))
    assert second < first


@pytest.mark.parametrize("rule", [*SETTINGS, "accelegrad"])
def test_the_readable_optimizers_give_the_same_on_every_back_end(rule):
    settings = SETTINGS.get(rule, {})
    a = trained("reference", rule, **settings)
    for backend in ("nnl", installed("torch")):
        rows = O.compare(a, trained(backend, rule, **settings), batches(3))
        assert max(rows[-1][n] for n in a.network.parameters()) < 1e-4
        a = trained("reference", rule, **settings)


def test_rules_are_the_published_formulas():
    grads = [np.array([1.0, -2.0]), np.array([0.5, 1.0])]
    w0 = np.array([1.0, 1.0])

    def run(optimizer):
        w = w0
        for g in grads:
            optimizer.new_input()
            w = optimizer.update_rule(g, w, "w")
        return w

    np.testing.assert_allclose(run(O.GradientDescent(None, 0.1)), w0 - 0.1 * (grads[0] + grads[1]))
    v2 = 0.9 * grads[0] + grads[1]
    np.testing.assert_allclose(run(O.Momentum(None, 0.1)), w0 - 0.1 * (grads[0] + v2))
    s1, s2 = grads[0] ** 2, grads[0] ** 2 + grads[1] ** 2
    wanted = w0 - 0.1 * grads[0] / np.sqrt(s1) - 0.1 * grads[1] / np.sqrt(s2)
    np.testing.assert_allclose(run(O.AdaGrad(None, 0.1)), wanted, rtol=1e-6)
    m2 = (0.9 * 0.1 * grads[0] + 0.1 * grads[1]) / (1 - 0.9**2)
    n2 = (0.999 * 0.001 * grads[0] ** 2 + 0.001 * grads[1] ** 2) / (1 - 0.999**2)
    wanted = w0 - 0.1 * np.sign(grads[0]) - 0.1 * m2 / np.sqrt(n2)
    np.testing.assert_allclose(run(O.Adam(None, 0.1)), wanted, rtol=1e-6)


def test_nesterov_takes_its_gradient_where_momentum_leads():
    """Of f(w) = w^2 / 2, whose gradient is w: two steps by hand."""
    net = Quadratic()
    optimizer = O.Nesterov(net, lr=0.1, momentum=0.5)
    optimizer.train({})  # v = 1, w = 0.9
    optimizer.train({})  # gradient at 0.9 - 0.05 = 0.85; v = 0.5 + 0.85; w = 0.9 - 0.135
    assert net.asked == pytest.approx([1.0, 0.85])
    assert optimizer.look_back("w") == pytest.approx(0.765)


def test_accelegrad_goes_to_the_minimum_of_a_quadratic():
    net = Quadratic()
    optimizer = O.AcceleGrad(net, diameter=4.0, bound=1.0)
    for _ in range(200):
        optimizer.train({})
    assert abs(net.w) < 0.02
    assert net.asked[0] == 1.0 and len(net.asked) == 200


class Quadratic:
    """f(w) = w^2 / 2 behind the part of the contract that optimizers use."""

    loss = "loss"

    def __init__(self):
        self.w, self.asked = np.array([1.0]), []

    def parameters(self):
        return ["w"]

    def gradient(self):
        return [("w", "w@gradient")]

    def fetch(self, names):
        return [self.w.copy() if n == "w" else self.g for n in names]

    def feed(self, name, value):
        self.w = np.asarray(value)

    def inference_and_backprop(self, inputs):
        self.asked.append(float(self.w[0]))
        self.g = self.w.copy()
        return {"loss": self.w[0] ** 2 / 2}


def test_two_optimizers_are_compared_as_in_the_thesis():
    """Linear regression: gradient descent and Adam part, and the norms say by how much."""

    def make(name, **settings):
        net = d5.network(models.linear(), "reference")
        net.add_loss("y", "t", "squared_error")
        return O.optimizer(name, net, **settings)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 16, 3)).astype(np.float32)
    data = [{"x": b, "t": b @ np.ones((3, 2), np.float32)} for b in x]
    rows = O.compare(make("sgd", lr=0.1), make("adam", lr=0.01), data)
    assert [r["step"] for r in rows] == [0, 1, 2, 3, 4]
    assert rows[0]["w"] > 0.05 and rows[-1]["w"] > rows[0]["w"] and rows[-1]["b"] > 0
    same = O.compare(make("sgd", lr=0.1), make("sgd", lr=0.1), data)
    assert max(r["w"] for r in same) == 0


def test_unknown_optimizers_and_settings_are_named():
    net = d5.network(models.lenet(), "reference")
    net.add_loss("scores")
    with pytest.raises(ValueError, match="no optimizer 'adamm', wanted one of sgd, momentum"):
        O.optimizer("adamm", net)
    with pytest.raises(TypeError, match=r"NativeAdam: there are no \['alpha'\], wanted \['lr'"):
        O.optimizer("native:adam", net, alpha=1)
    with pytest.raises(NotImplementedError, match="reference has no optimizer 'adam' of its own"):
        O.optimizer("native:adam", net).train(models.digits(2))
