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
    level = nn.logger.level
    try:
        exec(text, names)
    finally:
        nn.logger.setLevel(level)  # scripts change it
        nn.clear_parameters()
        nn.set_auto_forward(False)
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


# No bias stands before a normalization: its gradient is rounding noise, and Adam steps on its sign.
GAN = """
def generator(z):
    with nn.parameter_scope("generator"):
        h = F.reshape(PF.affine(z, 8 * 4 * 4, with_bias=False), (z.shape[0], 8, 4, 4))
        h = F.relu(PF.batch_normalization(h, decay_rate=0.5))
        h = F.relu(PF.deconvolution(h, 6, (4, 4), pad=(1, 1), stride=(2, 2), name="up"))
        return F.tanh(PF.convolution(F.unpooling(h, (2, 2)), 1, (3, 3), pad=(1, 1), name="out"))

def discriminator(x):
    norm = lambda w: PF.weight_normalization(w, dim=0)
    with nn.parameter_scope("discriminator"):
        h = F.leaky_relu(PF.convolution(x, 6, (4, 4), (1, 1), (2, 2), apply_w=norm, name="a"), 0.2)
        h = PF.convolution(h, 8, (4, 4), (1, 1), (2, 2), with_bias=False, apply_w=norm, name="b")
        h = F.leaky_relu(PF.instance_normalization(h), 0.2)
        return PF.affine(F.sum(h, axis=(2, 3)), 1)

z, real = nn.Variable((8, 5)), nn.Variable((8, 1, 16, 16))
fake = generator(z)
loss_gen = F.mean(F.softplus(-discriminator(fake))).apply(persistent=True)
p_real = discriminator(real)
p_fake = discriminator(fake.get_unlinked_variable(need_grad=False))
loss_dis = F.mean(F.softplus(-p_real)) + F.mean(F.softplus(p_fake))
solvers = {}
for name in ("generator", "discriminator"):
    solvers[name] = S.Adam(1e-3, beta1=0.5)
    with nn.parameter_scope(name):
        solvers[name].set_parameters(nn.get_parameters())
curve = []
for step in range(20):
    z.d, real.d = inputs["z"][step], inputs["real"][step]
    fake.forward(clear_no_need_grad=True)
    for name, loss in (("discriminator", loss_dis), ("generator", loss_gen)):
        loss.forward(clear_no_need_grad=True)
        solvers[name].zero_grad()
        loss.backward(clear_buffer=True)
        solvers[name].update()
        curve.append(float(loss.d))
x = nn.Variable.from_numpy_array(inputs["real"][0])
x.need_grad = True
(g,) = nn.grad([discriminator(x)], [x])
penalty = F.mean((F.sum(g * g, axis=(1, 2, 3)) - 1.0) ** 2)
penalty.forward()
outputs["curve"], outputs["penalty"] = np.array(curve), penalty.d.copy()
"""


def test_a_gan_with_two_solvers_and_a_gradient_penalty_agrees(nnabla):
    rng = np.random.default_rng(0)
    inputs = {"z": rng.normal(size=(20, 8, 5)), "real": rng.uniform(-1, 1, (20, 8, 1, 16, 16))}
    inputs = {k: v.astype(np.float32) for k, v in inputs.items()}
    want, got = nnabla.exec(GAN, inputs), run_nnl(GAN, inputs)
    np.testing.assert_allclose(got["curve"], want["curve"], rtol=1e-3)
    np.testing.assert_allclose(got["penalty"], want["penalty"], rtol=1e-2)
