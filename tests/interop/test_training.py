# SPDX-License-Identifier: Apache-2.0
"""The same training script under NNabla and nnl: equal initial weights, equal curves."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.initializer as I
import nnl.parametric_functions as PF
import nnl.solvers as S

pytestmark = pytest.mark.interop

LENET = """
def network(x):
    h = PF.convolution(x, 16, (5, 5), name="conv1")
    h = F.relu(F.max_pooling(h, (2, 2)))
    h = PF.convolution(h, 16, (5, 5), name="conv2")
    h = F.relu(F.max_pooling(h, (2, 2)))
    h = F.relu(PF.affine(h, 50, name="affine3"))
    return PF.affine(h, 10, name="affine4")
"""

RESNET = """
def unit(x, maps, stride, name):
    with nn.parameter_scope(name):
        with nn.parameter_scope("a"):
            h = PF.convolution(x, maps, (3, 3), pad=(1, 1), stride=stride, with_bias=False)
            h = F.relu(PF.batch_normalization(h))
        with nn.parameter_scope("b"):
            h = PF.convolution(h, maps, (3, 3), pad=(1, 1), with_bias=False)
            h = PF.batch_normalization(h)
        with nn.parameter_scope("skip"):
            s = PF.convolution(x, maps, (1, 1), stride=stride, with_bias=False)
            s = PF.batch_normalization(s)
    return F.relu(h + s)

def network(x):
    h = F.relu(PF.batch_normalization(PF.convolution(x, 8, (3, 3), pad=(1, 1), name="first")))
    h = unit(h, 8, (1, 1), "one")
    h = unit(h, 16, (2, 2), "two")
    h = F.average_pooling(h, h.shape[2:])
    return PF.affine(h, 10)
"""

TRAINING = """
images, labels = inputs["images"], inputs["labels"]
nn.clear_parameters()
x, t = nn.Variable((16,) + images.shape[1:]), nn.Variable((16, 1))
y = network(x)
loss = F.mean(F.softmax_cross_entropy(y, t))
for k, v in nn.get_parameters(grad_only=False).items():
    outputs["first/" + k] = v.d.copy()
solver = {solver}
solver.set_parameters(nn.get_parameters())
curve = []
for step in range(100):
    at = (16 * step) % len(images)
    x.d, t.d = images[at : at + 16], labels[at : at + 16]
    loss.forward(clear_no_need_grad=True)
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    solver.weight_decay(1e-4)
    solver.update()
    curve.append(float(loss.d))
outputs["curve"] = np.array(curve)
for k, v in nn.get_parameters(grad_only=False).items():
    outputs["last/" + k] = v.d.copy()
"""


def data(size):
    """Class k has a bright bar at row or column k, plus noise: learnable in 100 steps."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, (160, 1))
    images = rng.normal(size=(160, 1, size, size)) * 0.5
    for image, (label,) in zip(images, labels, strict=True):
        image[0, size // 12 + label * size // 12] += 2
    return {"images": images.astype(np.float32), "labels": labels.astype(np.int32)}


def run_nnl(text, inputs):
    names = {"nn": nn, "F": F, "PF": PF, "S": S, "I": I, "np": np, "inputs": inputs, "outputs": {}}
    nn.seed(313)
    nn.clear_parameters()
    try:
        exec(text, names)
    finally:
        nn.clear_parameters()
    return names["outputs"]


@pytest.mark.parametrize(
    "network,size,solver,last",
    [
        (LENET, 28, "S.Sgd(0.05)", 1e-3),
        (LENET, 28, "S.Adam(1e-3)", 2e-2),
        (RESNET, 12, "S.Momentum(0.01)", 2e-2),
    ],
    ids=["lenet-sgd", "lenet-adam", "resnet-momentum"],
)
def test_a_hundred_steps_agree(nnabla, network, size, solver, last):
    inputs = data(size)
    text = network + TRAINING.replace("{solver}", solver)
    want, got = nnabla.exec(text, inputs), run_nnl(text, inputs)
    assert set(want) == set(got)
    for k in want:
        if k.startswith("first/"):
            np.testing.assert_array_equal(got[k], want[k], err_msg=f"initial value of {k}")
    assert want["curve"][-1] < 0.7 * want["curve"][0]
    # rounding differs from the first step on and training amplifies it
    np.testing.assert_allclose(got["curve"][:10], want["curve"][:10], rtol=5e-4)
    np.testing.assert_allclose(got["curve"], want["curve"], rtol=last, atol=last / 10)
