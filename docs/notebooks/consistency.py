# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # Consistency models: one step from noise to an image
#
# A function $f(x, \sigma)$ should give the same image at all noises along a path: two neighbouring
# ones are compared, and the cleaner one is the teacher
# ([Song et al.](https://arxiv.org/abs/2303.01469)).

# %% tags=["skip-execution"]
# %pip install "nnl[examples]"

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models.generative import DiffusionUNet, diffusion_unet
from nnl.monitor import tile_images

STEPS, BATCH, LEAST, MOST, SPREAD = 800, 32, 0.002, 20.0, 0.5
images = (load_digits().images[:, None] / 8 - 1).astype(np.float32)
config = DiffusionUNet(
    (24, 48), ("", "self"), heads=(1, 2), inputs=1, outputs=1, groups=8, blocks=1, asymmetric=False
)
rng = np.random.default_rng(0)


def show(images):
    plt.figure(figsize=(4, 4))
    plt.imshow(tile_images(images.clip(-1, 1) / 2 + 0.5), cmap="gray")
    plt.axis("off")


# %% [markdown]
# $f(x, \sigma) = c_{skip}(\sigma)\,x + c_{out}(\sigma)\,F(c_{in}(\sigma)\,x, \sigma)$ is $x$
# itself where there is no noise.


# %%
def image(x, s):
    wide = F.reshape(s, (x.shape[0], 1, 1, 1))
    scale = F.pow_scalar(wide**2 + SPREAD**2, -0.5)
    made = diffusion_unet(x * scale, F.log(s) * 250.0, config)
    skip = SPREAD**2 / ((wide - LEAST) ** 2 + SPREAD**2)
    return skip * x + SPREAD * (wide - LEAST) * scale * made


image(nn.Variable((1, 1, 8, 8)), nn.Variable.from_numpy_array(np.ones(1, np.float32)))
solver = S.Adam(1e-3)
solver.set_parameters(nn.get_parameters())


@nn.compile
def step(noisy, more, cleaner, less, weight):
    gap = image(noisy, more) - F.unlink(image(cleaner, less))
    loss = F.mean(weight * (F.pow_scalar(F.sum(gap**2, axis=(1, 2, 3)) + 2e-5, 0.5)))
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    S.clip_grad_norm(solver.get_parameters(), 1.0)
    solver.update()


# %% [markdown]
# There are more and more noises, so that neighbours come nearer.

# %%
for i in range(STEPS):
    levels = np.linspace(LEAST ** (1 / 7), MOST ** (1 / 7), 10 * 2 ** (3 * i // STEPS) + 1) ** 7
    at = rng.integers(len(levels) - 1, size=BATCH)
    x, noise = images[rng.integers(len(images), size=BATCH)], rng.normal(size=(BATCH, 1, 8, 8))
    more, less = levels[at + 1], levels[at]
    noisy, cleaner = (x + s[:, None, None, None] * noise for s in (more, less))
    arrays = noisy, more, cleaner, less, (more - less) ** -1
    step(*(nn.Variable.from_numpy_array(a.astype(np.float32)) for a in arrays))

# %%
noise = nn.Variable.from_numpy_array(MOST * rng.normal(size=(36, 1, 8, 8)).astype(np.float32))
level = nn.Variable.from_numpy_array(np.full(36, MOST, np.float32))
show(nn.compile(image)(noise, level).d)
