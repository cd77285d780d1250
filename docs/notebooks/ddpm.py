# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # DDPM: a U-Net takes noise away
#
# A diffusion model learns to say which noise an image has. Applied again and again, it makes an
# image of noise alone ([Ho et al.](https://arxiv.org/abs/2006.11239)).

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
from nnl.training.generative import NoiseSchedule, guided

STEPS, BATCH = 700, 32


def show(images):
    plt.figure(figsize=(4, 4))
    plt.imshow(tile_images(images.clip(-1, 1) / 2 + 0.5), cmap="gray")
    plt.axis("off")


# %% [markdown]
# The data are the handwritten digits of scikit-learn, 8 x 8 pixels, in [-1, 1]. With more and more
# noise, $x_t = \sqrt{\bar\alpha_t}\,x_0 + \sqrt{1 - \bar\alpha_t}\,\epsilon$, they look like this:

# %%
digits = load_digits()
images = (digits.images[:, None] / 8 - 1).astype(np.float32)
schedule = NoiseSchedule("cosine")
rng = np.random.default_rng(0)


def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)


show(schedule.noisy(images[:1].repeat(16, 0), normal(16, 1, 8, 8), np.arange(16) * 66))

# %% [markdown]
# The network hears the time $t$ and the class. One label in ten is replaced by 10, which stands for
# no class: guidance wants to know images of no class as well.

# %%
NONE = 10
config = DiffusionUNet(
    (32, 64, 64), ("", "self", ""), heads=(1, 2, 2), inputs=1, outputs=1, groups=8, blocks=1,
    classes=NONE + 1, asymmetric=False,
)  # fmt: skip


def predict(x, t, labels):
    return diffusion_unet(x, t, config, labels)


predict(nn.Variable((1, 1, 8, 8)), nn.Variable((1,)), nn.Variable((1,)))  # makes the parameters
solver = S.Adam(2e-3)
solver.set_parameters(nn.get_parameters())


# %% [markdown]
# The loss is the squared error of the noise at random times,
# $|\epsilon_\theta(x_t, t) - \epsilon|^2$.


# %%
@nn.compile
def step(x, t, labels, noise):
    loss = F.mean((predict(x, t, labels) - noise) ** 2)
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    solver.update()
    return loss


losses = []
for _ in range(STEPS):
    rows, t = rng.integers(len(images), size=BATCH), rng.integers(schedule.steps, size=BATCH)
    labels = np.where(rng.random(BATCH) < 0.1, NONE, digits.target[rows])
    noise = normal(BATCH, 1, 8, 8)
    arrays = schedule.noisy(images[rows], noise, t), t.astype(np.float32), labels, noise
    losses.append(float(step(*map(nn.Variable.from_numpy_array, arrays)).d))
print(
    f"{np.mean(losses[:20]):.2f} in the first steps, {np.mean(losses[-20:]):.2f} in the last ones"
)

# %% [markdown]
# `sample` goes from noise to images in 30 steps (DDIM). `guided` makes them follow their classes
# more than the network does: $(1 + w)\,\epsilon(x, c) - w\,\epsilon(x, \varnothing)$. Each row
# has the classes 0 to 9 in turn.

# %%
run = nn.compile(predict)


def noise_of(x, t, labels):
    arrays = x, t.astype(np.float32), labels
    return run(*map(nn.Variable.from_numpy_array, arrays)).d.copy()


classes = np.arange(100) % 10
show(schedule.sample(guided(noise_of, classes, NONE, 1.0), normal(100, 1, 8, 8), steps=30))
