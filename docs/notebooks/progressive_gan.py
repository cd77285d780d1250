# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # Progressive GAN: networks that grow
#
# Small images are learnt first; then new layers fade in beside the old ones, with a share that goes
# from 0 to 1 ([Karras et al.](https://arxiv.org/abs/1710.10196)).

# %% tags=["skip-execution"]
# %pip install "nnl[examples]"

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models.generative import progressive_discriminator, progressive_generator
from nnl.monitor import tile_images
from nnl.training.generative import adversarial_losses, gradient_penalty

STEPS, BATCH, NOISE = 1500, 16, 16  # steps: a third at 4 x 4, one fading in, one at 8 x 8
images = (load_digits().images[:, None] / 8 - 1).astype(np.float32)
rng, fade = np.random.default_rng(0), nn.Variable((1,))


def show(images):
    plt.figure(figsize=(4, 4))
    plt.imshow(tile_images(images.clip(-1, 1) / 2 + 0.5), cmap="gray")
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


# %% [markdown]
# `fade` is the share of the newest layers. The discriminator takes images of either size.


# %%
def generate(z, size):
    with nn.parameter_scope("generator"):
        return progressive_generator(z, size, fade, 64, 16, 1)


def judge(x):
    with nn.parameter_scope("discriminator"):
        return progressive_discriminator(x, fade if x.shape[2] > 4 else None, 64, 16)


for size in (4, 8):  # makes the parameters of both
    judge(generate(nn.Variable((BATCH, NOISE)), size))
solvers = [adam(scope, 1e-3, 0.0) for scope in ("discriminator", "generator")]

# %% [markdown]
# The loss of Wasserstein with a penalty: between real and made images the gradient of the score
# should have the length 1. `gradient_penalty` is a gradient, and its own gradient is learnt from.


# %%
@nn.compile
def step(x, z):
    fake = F.unlink(generate(z, x.shape[2]))
    real, made = judge(x), judge(fake)
    loss = adversarial_losses("wasserstein", made, real) + 1e-3 * F.mean(real * real)
    learn(solvers[0], loss + 10.0 * gradient_penalty(judge, x, fake))
    learn(solvers[1], adversarial_losses("wasserstein", judge(generate(z, x.shape[2]))))


for i in range(STEPS):
    share = min(max(3 * i / STEPS - 1, 0), 1)
    x = images[rng.integers(len(images), size=BATCH)]
    coarse = x.reshape(BATCH, 1, 4, 2, 4, 2).mean((3, 5))
    if share:  # real images fade as well
        old = coarse.repeat(2, 2).repeat(2, 3)
        coarse = old + np.float32(share) * (x - old)
    fade.d = share
    z = rng.normal(size=(BATCH, NOISE)).astype(np.float32)
    step(*map(nn.Variable.from_numpy_array, (coarse, z)))

# %%
z = nn.Variable.from_numpy_array(rng.normal(size=(36, NOISE)).astype(np.float32))
fade.d = 1
show(nn.compile(lambda z: generate(z, 8))(z).d)
