# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # StyleGAN2: images from styles
#
# Noise becomes a style, and each layer of the synthesis hears it: its weights are scaled by the
# style ([Karras et al.](https://arxiv.org/abs/1912.04958)).

# %% tags=["skip-execution"]
# %pip install "nnl[examples]"

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models.generative import (
    StyleGAN2,
    stylegan2_discriminator,
    stylegan2_mapping,
    stylegan2_synthesis,
)
from nnl.monitor import tile_images
from nnl.training.generative import adversarial_losses, r1_penalty

STEPS, BATCH, R1_EVERY = 1200, 16, 8
images = (load_digits().images[:, None] / 8 - 1).astype(np.float32)
config, rng = StyleGAN2(8, 16, 2, base=128, most=16, colors=1), np.random.default_rng(0)


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


# %%
def styles(z):
    with nn.parameter_scope("generator"):
        return stylegan2_mapping(z, config)


def synthesize(w, noise="random"):
    with nn.parameter_scope("generator"):
        return stylegan2_synthesis(w, config, noise)


def judge(x):
    with nn.parameter_scope("discriminator"):
        return stylegan2_discriminator(x, config)


judge(synthesize(styles(nn.Variable((BATCH, config.latent)))))  # makes the parameters
solvers = [adam(scope, 2e-3, 0.0) for scope in ("discriminator", "generator")]

# %% [markdown]
# Now and then the discriminator pays for steep scores of real images: R1,
# $\frac{\gamma}{2}\,|\nabla_x D(x)|^2$.


# %%
@nn.compile
def step(x, z):
    fake = synthesize(styles(z))
    learn(solvers[0], adversarial_losses("logistic", judge(F.unlink(fake)), judge(x)))
    learn(solvers[1], adversarial_losses("logistic", judge(synthesize(styles(z)))))


@nn.compile
def penalise(x):
    x.need_grad = True
    learn(solvers[0], r1_penalty(judge(x), x) * (0.5 * R1_EVERY))


for i in range(STEPS):
    x = nn.Variable.from_numpy_array(images[rng.integers(len(images), size=BATCH)])
    z = rng.normal(size=(BATCH, config.latent)).astype(np.float32)
    step(x, nn.Variable.from_numpy_array(z))
    if i % R1_EVERY == 0:
        penalise(x)

# %% [markdown]
# Styles may be mixed: coarse layers take that of the row, fine ones that of the column.

# %%
z = nn.Variable.from_numpy_array(rng.normal(size=(6, config.latent)).astype(np.float32))
w = nn.compile(styles)(z).d
row, column = np.divmod(np.arange(36), 6)
coarse = np.arange(config.styles)[:, None] < config.styles // 2
w = nn.Variable.from_numpy_array(np.where(coarse, w[row], w[column]))
show(nn.compile(lambda w: synthesize(w, "const"))(w).d)
