# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # DiT: a transformer makes images
#
# The network of a diffusion model need not be a U-Net: here a transformer sees the patches of an
# image as words ([Peebles and Xie](https://arxiv.org/abs/2212.09748)). It is trained as in
# [flow matching](flow_matching).

# %% tags=["skip-execution"]
# %pip install "nnl[examples]"

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models.generative import DiT, dit
from nnl.monitor import tile_images
from nnl.training.generative import integrate

STEPS, BATCH = 700, 32


def show(images):
    plt.figure(figsize=(4, 4))
    plt.imshow(tile_images(images.clip(-1, 1) / 2 + 0.5), cmap="gray")
    plt.axis("off")


# %%
digits = load_digits()
images = (digits.images[:, None] / 8 - 1).astype(np.float32)

# %% [markdown]
# Patches of 2 x 2 pixels become vectors of 96 numbers, which attend to each other in four layers.
# Each layer hears of the time and the class by the scale, shift and gate of its two halves; all
# gates begin at 0, so that a new layer gives its input through.

# %%
config = DiT(width=96, depth=4, heads=4, patch=2, inputs=1, outputs=1, classes=10)


def velocity(x, t, labels):
    return dit(x, t * 1000.0, labels, config)


velocity(nn.Variable((1, 1, 8, 8)), nn.Variable((1,)), nn.Variable((1,)))  # makes the parameters
solver = S.Adam(1e-3)
solver.set_parameters(nn.get_parameters())


# %% [markdown]
# At the time $t$ in [0, 1] an image is $x_t = (1 - t)\,z + t\,x$ and moves by $x - z$. The loss is
# $|v_\theta(x_t, t) - (x - z)|^2$.


# %%
@nn.compile
def step(x, t, labels, target):
    loss = F.mean((velocity(x, t, labels) - target) ** 2)
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    solver.update()
    return loss


rng = np.random.default_rng(0)
losses = []
for _ in range(STEPS):
    rows = rng.integers(len(images), size=BATCH)
    x, z = images[rows], rng.normal(size=(BATCH, 1, 8, 8)).astype(np.float32)
    t = rng.random(BATCH).astype(np.float32)
    share = t[:, None, None, None]
    arrays = (1 - share) * z + share * x, t, digits.target[rows], x - z
    losses.append(float(step(*map(nn.Variable.from_numpy_array, arrays)).d))
print(
    f"{np.mean(losses[:20]):.2f} in the first steps, {np.mean(losses[-20:]):.2f} in the last ones"
)

# %% [markdown]
# `integrate` follows $dx / dt = v(x, t)$ by Heun's method, here in ten steps.

# %%
run = nn.compile(velocity)
classes = np.arange(100) % 10


def follow(x, t):
    return run(*map(nn.Variable.from_numpy_array, (x, t, classes))).d.copy()


show(integrate(follow, rng.normal(size=(100, 1, 8, 8)).astype(np.float32), steps=10))
