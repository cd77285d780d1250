# SPDX-License-Identifier: Apache-2.0
"""Networks and training steps that tests save as programs."""

import numpy as np

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl import models


def check(got, want):
    assert set(got) == set(want)
    for k, w in want.items():
        assert got[k].dtype == w.dtype and got[k].shape == w.shape, k
        assert got[k].tobytes() == w.tobytes(), k


def named(shape):
    x = nn.Variable(shape)
    x.name = "x"
    return x


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def saved_sample(case, path):
    """What the functions of a sample compute, after their program has been saved."""
    xs = case.variables()
    ys = case.run(xs)
    outputs = {f"y{k}": y for k, y in enumerate(ys)}
    inputs = {f"x{k}": x for k, x in enumerate(xs) if x is not None and k not in case.written}
    nn.save_program(path, outputs, inputs)
    values = {k: x.d.copy() for k, x in inputs.items()}
    nn.forward_all(list(ys), clear_buffer=True)
    return values, {k: y.d.copy() for k, y in outputs.items()}


def training_step(network, solver, dtype="float", decay=1e-4):
    """A compiled training step: the mean of the losses that the network gives for its inputs."""

    @nn.compile
    def step(**inputs):
        with nn.context_scope(nn.Context([f"cpu:{dtype}"])):
            loss = F.mean(network(**inputs))
        solver.set_parameters(nn.get_parameters(), reset=False, retain_state=True)
        solver.zero_grad()
        loss.forward(clear_no_need_grad=True)
        loss.backward(clear_buffer=True)
        if decay:
            solver.weight_decay(decay)
        solver.update()
        return {"loss": loss}

    return step


def small(x):
    h = F.relu(PF.batch_normalization(PF.convolution(x, 16, (3, 3), name="c1"), name="b1"))
    h = F.dropout(F.max_pooling(h, (2, 2)), 0.3)
    h = F.relu(PF.convolution(h, 32, (2, 2), name="c2"))
    return PF.affine(h, 5, name="fc")


def images(network, maps, size, batch=2):
    """A classifier of images into 10 classes, and its inputs."""
    x, t = normal(batch, maps, size, size), np.arange(batch).reshape(batch, 1) % 10
    return lambda x, t: F.softmax_cross_entropy(network(x), t), {"x": x, "t": t}


def texts(network, shape=(2, 6)):
    """A language model over 40 tokens, and its inputs."""
    x = np.arange(12).reshape(shape) % 40
    return lambda x, t: F.softmax_cross_entropy(network(x), t, axis=2), {"x": x, "t": x[..., None]}


def adversary():
    def loss(z, x):
        made = models.dcgan_generator(z, channels=4)
        return F.sigmoid_cross_entropy(
            models.dcgan_discriminator(F.concatenate(x, made, axis=0), channels=4), ONES
        )

    ONES = F.constant(1.0, (4, 1))
    return loss, {"z": normal(2, 100), "x": normal(2, 3, 64, 64, seed=1)}


def pixels():
    def loss(x, t):
        return F.softmax_cross_entropy(models.unet(x, channels=8, depth=2), t, axis=1)

    return loss, {"x": normal(2, 1, 32, 32), "t": np.arange(2048).reshape(2, 1, 32, 32) % 2}


STEPS = {
    "small": lambda: images(small, 3, 8, 4),
    "lenet": lambda: images(models.lenet, 1, 28, 4),
    "resnet18": lambda: images(lambda x: models.resnet(x, depth=18, num_classes=10), 3, 64),
}
MORE = {
    "mlp": lambda: images(models.mlp, 1, 28),
    "resnet50": lambda: images(lambda x: models.resnet(x, num_classes=10), 3, 64),
    "resnext50": lambda: images(lambda x: models.resnext(x, num_classes=10), 3, 64),
    "se_resnet50": lambda: images(lambda x: models.se_resnet(x, num_classes=10), 3, 64),
    "mobilenet": lambda: images(lambda x: models.mobilenet_v3(x, num_classes=10), 3, 64),
    "efficientnet": lambda: images(lambda x: models.efficientnet(x, num_classes=10), 3, 64),
    "unet": pixels,
    "dcgan": adversary,
    "gpt2": lambda: texts(lambda x: models.gpt2(x, 40, width=16, layers=2, heads=2, longest=8)),
    "bert": lambda: texts(
        lambda x: models.bert_masked_language_model(
            x, vocabulary=40, width=16, layers=2, heads=2, longest=8
        )
    ),
    "recurrent": lambda: texts(lambda x: models.recurrent_language_model(x, 40, width=8), (6, 2)),
}


def leaves_of(y):
    found = []
    y.visit(lambda f: found.extend(v for v in f.inputs if v.parent is None))
    return found


def image(maps, size):
    return given(normal(2, maps, size, size))


def tokens():
    return given(np.arange(12).reshape(2, 6) % 40)


def given(a):
    x = nn.Variable.from_numpy_array(a)
    x.name = "x"
    return x


NETWORKS = {
    "lenet": lambda: models.lenet(image(1, 28)),
    "resnet": lambda: models.resnet(image(3, 64), depth=18, num_classes=10, test=True),
    "mobilenet": lambda: models.mobilenet_v3(image(3, 64), num_classes=10, test=True),
    "efficientnet": lambda: models.efficientnet(image(3, 64), num_classes=10, test=True),
    "unet": lambda: models.unet(image(1, 32), channels=8, depth=2, test=True),
    "dcgan": lambda: models.dcgan_generator(given(normal(2, 16)), test=True),
    "gpt2": lambda: models.gpt2(tokens(), 40, width=16, layers=2, heads=2, longest=8, test=True),
    "bert": lambda: models.bert(
        tokens(), vocabulary=40, width=16, layers=2, heads=2, longest=8, test=True
    ),
}
