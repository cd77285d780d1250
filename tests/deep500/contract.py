# SPDX-License-Identifier: Apache-2.0
"""What every back end promises, one function per promise: check(backend) runs them all.

Run as a program, it checks the back ends that it is given, in a Python that has no pytest.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import nnl.deep500 as d5
from nnl.converters.onnx.file.errors import UnsupportedOperator
from nnl.converters.onnx.file.operators import UnknownNode
from nnl.converters.onnx.file.writer import write
from nnl.deep500.operation import compiler
from nnl.deep500.optimizers import OneStepOptimizer, Optimizer
from tests.deep500 import models

NO_BODIES = ("torch:compiled", "onnxruntime")  # that run no operators of one's own
TOLERANCE = 2e-5  # sums of float32 in another order, for numbers around 1


def raised(kind: Any, call: Any) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def close(x: Any, y: Any) -> None:
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=TOLERANCE)


def reference_of(net: Any) -> Any:
    return d5.network(net.model, "reference")


def inference_gives_the_outputs_by_name(backend: str) -> None:
    net = d5.network(models.lenet(), backend)
    for n in (3, 5, 3):  # the size of a batch may change
        batch = {"x": models.digits(n)["x"]}
        outs = net.inference(batch)
        assert list(outs) == ["scores"] and outs["scores"].dtype == np.float32
        close(outs["scores"], reference_of(net).inference(batch)["scores"])
    net.teardown()


def a_file_is_read_and_the_model_stays_as_it_is(backend: str) -> None:
    model = models.lenet()
    net = d5.network(write(model), backend)
    other = d5.network(model, backend)
    other.add_output("d")
    x = {"x": models.digits(2)["x"]}
    close(net.inference(x)["scores"], other.inference(x)["scores"])
    assert [v.name for v in model.graph.outputs] == ["scores"]


def parameters_can_be_fetched_and_fed(backend: str) -> None:
    net = d5.network(models.linear(), backend)
    assert net.parameters() == ["w", "b"]
    x = np.ones((1, 3), np.float32)
    w = net.fetch(["w"])[0]
    close(net.inference({"x": x})["y"], x @ w)
    net.feed("w", w + 1)
    net.feed("b", np.array([1, 2]))
    close(net.inference({"x": x})["y"], x @ (w + 1) + [1, 2])
    close(net.fetch(["w", "b"])[0], w + 1)
    net.teardown()
    close(net.fetch(["w"])[0], w + 1)  # they outlive the session
    shape = raised(d5.NetworkError, lambda: net.feed("w", x))
    assert "feed: 'w' is (3, 2), got (1, 3)" in shape
    assert "there is no parameter 'v'" in raised(d5.NetworkError, lambda: net.feed("v", x))


def any_value_can_be_an_output(backend: str) -> None:
    net = d5.network(models.lenet(), backend)
    net.add_output("b")
    outs = net.inference({"x": models.digits(2)["x"]})
    assert outs["b"].shape == (2, 6, 8, 8) and outs["b"].min() == 0
    assert "makes no value 'zz'" in raised(d5.NetworkError, lambda: net.add_output("zz"))


def nodes_can_be_added(backend: str) -> None:
    net = d5.network(models.lenet(), backend)
    net.add_node(models.op("Softmax")("scores", outputs="p"))
    net.add_output("p")
    close(net.inference({"x": models.digits(4)["x"]})["p"].sum(1), np.ones(4))


def inputs_are_checked(backend: str) -> None:
    net = d5.network(models.linear(), backend)
    x = np.ones((1, 3), np.float32)
    assert "the input 'x' is missing" in raised(d5.NetworkError, lambda: net.inference({}))
    unknown = raised(d5.NetworkError, lambda: net.inference({"x": x, "z": x}))
    assert "no inputs ['z']" in unknown
    rank = raised(d5.NetworkError, lambda: net.inference({"x": x[0]}))
    assert "the input 'x' has the shape (3,), wanted ('N', 3)" in rank


def missing_operators_are_named_before_anything_runs(backend: str) -> None:
    model = models.lenet()
    model.graph.nodes[5] = UnknownNode("Frobnicate", "my.domain", "e", outputs=("f",))
    model.opsets["my.domain"] = 1

    def run() -> None:
        d5.network(model, backend).inference({"x": models.digits(2)["x"]})

    text = raised(UnsupportedOperator, run)
    assert "Frobnicate" in text and backend.partition(":")[0] in text, text


def gradients_are_those_of_the_reference(backend: str) -> None:
    batch = models.digits(4)
    nets = [d5.network(models.lenet(), b) for b in ("reference", backend)]
    grads = []
    for net in nets:
        net.add_loss("scores")
        outs = net.inference_and_backprop(batch)
        assert set(outs) == {"scores", "loss"} and outs["loss"].shape == ()
        names = net.gradient()
        assert [p for p, _ in names] == net.parameters()
        grads.append([outs["loss"], *net.fetch([g for _, g in names])])
    for a, b in zip(*grads, strict=True):
        close(a, b)
    again = nets[1].inference_and_backprop(batch)  # gradients do not add up
    close(again["loss"], grads[0][0])
    close(nets[1].fetch([nets[1].gradient()[0][1]])[0], grads[0][1])


def a_squared_error_is_differentiated(backend: str) -> None:
    net = d5.network(models.linear(), backend)
    net.add_loss("y", "t", "squared_error")
    x, t = np.eye(3, dtype=np.float32), np.ones((3, 2), np.float32)
    w = net.fetch(["w"])[0]
    outs = net.inference_and_backprop({"x": x, "t": t})
    close(outs["loss"], ((w - 1) ** 2).mean())
    close(net.fetch(["w@gradient"])[0], 2 * (w - 1) / 6)
    close(net.fetch(["b@gradient"])[0], (2 * (w - 1) / 6).sum(0))


def only_a_loss_is_differentiated(backend: str) -> None:
    net = d5.network(models.linear(), backend)
    x = np.ones((1, 3), np.float32)
    text = raised(d5.NetworkError, lambda: net.inference_and_backprop({"x": x}))
    assert "call add_loss() first" in text


def chosen_initializers_train(backend: str) -> None:
    net = d5.network(models.linear(), backend, trainable=["b"])
    assert net.gradient() == [("b", "b@gradient")]
    net.add_loss("y", "t", "squared_error")
    net.inference_and_backprop({"x": np.eye(3), "t": np.ones((3, 2))})
    assert net.fetch(["b@gradient"])[0].shape == (2,)


def optimizers_of_ones_own_train(backend: str) -> None:
    """One that is only train(), and one that is only an update rule: the same gradient descent."""
    losses = []
    for make in (OnlyTrain, OnlyRule):
        net = d5.network(models.lenet(), backend)
        net.add_loss("scores")
        optimizer = make(net)
        losses.append([float(optimizer.train(models.digits(8))["loss"]) for _ in range(4)])
        assert losses[-1][3] < losses[-1][0]
    close(*losses)


def operators_of_ones_own_train(backend: str) -> None:
    net = d5.network(models.linear(), backend)
    cube = Cube("y", outputs="z", factor=2.0)
    if backend in NO_BODIES:  # which say so
        text = raised(UnsupportedOperator, lambda: net.add_node(cube))
        assert text.endswith(" has no operators for: user.Cube (node user.Cube 'z')")
        return
    net.add_node(cube)
    trains_as_a_cube(net, 2)


def bodies_in_cpp_train(backend: str) -> None:
    net = d5.network(models.linear(), backend)
    if backend in NO_BODIES:
        raised(UnsupportedOperator, lambda: net.add_node(CppCube("y", outputs="z")))
        return
    net.add_node(CppCube("y", outputs="z"))
    trains_as_a_cube(net, 1)


def trains_as_a_cube(net: Any, factor: float) -> None:
    net.add_output("z")
    net.add_loss("z", "t", "squared_error")
    x, t = np.eye(3, dtype=np.float32), np.zeros((3, 2), np.float32)
    w = net.fetch(["w"])[0]
    outs = net.inference_and_backprop({"x": x, "t": t})
    close(outs["z"], factor * w**3)
    gradient = 2 * (factor * w**3) * (3 * factor * w**2) / 6
    np.testing.assert_allclose(net.fetch(["w@gradient"])[0], gradient, rtol=1e-3, atol=1e-4)


def the_context_manager_sets_up_and_tears_down(backend: str) -> None:
    with d5.network(models.linear(), backend) as net:
        assert net.inference({"x": np.ones((2, 3))})["y"].shape == (2, 2)


class OnlyTrain(Optimizer):
    def train(self, inputs):
        outs = self.network.inference_and_backprop(inputs)
        for name, gradient in self.network.gradient():
            w, g = self.network.fetch([name, gradient])
            self.network.feed(name, w - 0.1 * g)
        return outs


class OnlyRule(OneStepOptimizer):
    def update_rule(self, grad, old_param, name):
        return old_param - 0.1 * grad


class Cube(d5.Operation):
    """y = factor x^3"""

    factor: float = 1.0

    def forward(self, x):
        return self.factor * x**3

    def backward(self, inputs, outputs, grads):
        return 3 * self.factor * inputs[0] ** 2 * grads[0]


class CppCube(d5.CppOperation):
    source = """
    extern "C" void forward(const Tensor* in, Tensor* out, const double*) {
        for (int64_t i = 0; i < in->size; ++i)
            out->data[i] = std::pow(in->data[i], 3.0f);
    }
    extern "C" void backward(const Tensor* in, const Tensor*, const Tensor* grad_out,
                             Tensor* grad_in, const double*) {
        for (int64_t i = 0; i < in->size; ++i)
            grad_in->data[i] = 3 * in->data[i] * in->data[i] * grad_out->data[i];
    }
    """


INFERENCE = (
    inference_gives_the_outputs_by_name,
    a_file_is_read_and_the_model_stays_as_it_is,
    parameters_can_be_fetched_and_fed,
    any_value_can_be_an_output,
    nodes_can_be_added,
    inputs_are_checked,
    missing_operators_are_named_before_anything_runs,
    the_context_manager_sets_up_and_tears_down,
)
TRAINING = (
    gradients_are_those_of_the_reference,
    a_squared_error_is_differentiated,
    only_a_loss_is_differentiated,
    chosen_initializers_train,
    optimizers_of_ones_own_train,
    operators_of_ones_own_train,
    bodies_in_cpp_train,
)


def check(backend: str) -> int:
    """Check every promise; gives how many there were."""
    trains = d5.network_class(backend).trains
    promises = [*INFERENCE, *(TRAINING if trains else ())]
    if trains and compiler() is None:
        promises.remove(bodies_in_cpp_train)
    for promise in promises:
        promise(backend)
    return len(promises)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name, check(name))
