# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # StarGAN: one generator for several attributes
#
# The generator hears which attributes an image should have, here one of four colour casts; the
# discriminator says whether an image is real and which it has
# ([Choi et al.](https://arxiv.org/abs/1711.09020)).

# %% tags=["skip-execution"]
# %pip install "nnl[examples]"

# %%
import matplotlib.pyplot as plt
import numpy as np
from skimage.data import astronaut, chelsea, coffee

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models.generative import stargan_discriminator
from nnl.models.generative.layers import convolution
from nnl.monitor import tile_images
from nnl.training.generative import adversarial_losses, gradient_penalty

STEPS, BATCH, SIZE, EVERY = 1500, 8, 16, 2
CASTS = np.array([[1, 0.4, 0.4], [0.4, 1, 0.4], [0.4, 0.4, 1], [1, 1, 0.2]], np.float32)


def show(images):
    plt.figure(figsize=(4, 4))
    plt.imshow(tile_images(images.clip(-1, 1) / 2 + 0.5))
    plt.axis("off")


def adam(scope, rate, beta1=0.5):
    with nn.parameter_scope(scope):
        solver = S.Adam(rate, beta1=beta1)
        solver.set_parameters(nn.get_parameters())
    return solver


def learn(solver, loss):
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    solver.update()


# %%
photographs = [p().transpose(2, 0, 1)[:, ::4, ::4] / np.float32(127.5) - 1
               for p in (astronaut, chelsea, coffee)]  # fmt: skip
rng = np.random.default_rng(0)


def crops(n, size):
    found = []
    for _ in range(n):
        x = photographs[rng.integers(3)]
        top, left = (rng.integers(s - size + 1) for s in x.shape[1:])
        found.append(x[:, top : top + size, left : left + size])
    return np.stack(found)


def batch():
    """Images with casts, those casts, and others."""
    old, new = rng.integers(4, size=(2, BATCH))
    grey = (crops(BATCH, SIZE).mean(1, keepdims=True) + 1) / 2
    eye = np.eye(4, dtype=np.float32)
    return grey * CASTS[old][:, :, None, None] * 2 - 1, eye[old], eye[new]


# %%
def turn(x, wanted):
    """A small network; `stargan_generator` is that of the paper."""
    b, _, *size = x.shape
    h = F.concatenate(x, F.broadcast(F.reshape(wanted, (b, 4, 1, 1)), (b, 4, *size)), axis=1)
    with nn.parameter_scope("generator"):
        for i in range(3):
            h = F.leaky_relu(convolution(h, 24, 3, f"layer{i}"), 0.2)
        return F.tanh(convolution(h, 3, 3, "last"))


def judge(x):
    with nn.parameter_scope("discriminator"):
        return stargan_discriminator(x, 4, 12, 3)


judge(turn(nn.Variable((BATCH, 3, SIZE, SIZE)), nn.Variable((BATCH, 4))))  # makes the parameters
solvers = [adam("discriminator", 5e-4), adam("generator", 1e-3)]


@nn.compile
def discriminate(x, old, new):
    fake = F.unlink(turn(x, new))
    real, found = judge(x)
    penalty = gradient_penalty(lambda h: F.mean(judge(h)[0], axis=(1, 2, 3)), x, fake)
    named = F.mean(F.sigmoid_cross_entropy(found, old))
    judged = adversarial_losses("wasserstein", judge(fake)[0], real)
    learn(solvers[0], judged + 10.0 * penalty + named)


@nn.compile
def generate(x, old, new):
    fake = turn(x, new)
    scores, found = judge(fake)
    named = F.mean(F.sigmoid_cross_entropy(found, new))
    back = F.mean(F.abs(turn(fake, old) - x))
    learn(solvers[1], adversarial_losses("wasserstein", scores) + named + 10.0 * back)


for i in range(STEPS):
    arrays = [nn.Variable.from_numpy_array(a) for a in batch()]
    discriminate(*arrays)
    if i % EVERY == 0:
        generate(*arrays)

# %% [markdown]
# Images, and each of them in the four casts:

# %%
x, run = batch()[0][:4], nn.compile(turn)
wanted = [np.eye(4, dtype=np.float32)[[k] * 4] for k in range(4)]
made = [run(*map(nn.Variable.from_numpy_array, (x, w))).d.copy() for w in wanted]
show(np.stack([x, *made], 1).reshape(-1, 3, SIZE, SIZE))
