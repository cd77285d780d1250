# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # pix2pix: images from images
#
# A generator learns from pairs: here photographs, and their edges from which it should make them. A
# discriminator of patches sees both ([Isola et al.](https://arxiv.org/abs/1611.07004)).

# %% tags=["skip-execution"]
# %pip install "nnl[examples]"

# %%
import matplotlib.pyplot as plt
import numpy as np
from skimage.data import astronaut, chelsea, coffee

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models.generative import patch_discriminator, pix2pix_generator
from nnl.monitor import tile_images
from nnl.training.generative import adversarial_losses

STEPS, BATCH, SIZE = 800, 8, 32


def show(images):
    plt.figure(figsize=(4, 4))
    plt.imshow(tile_images(images.clip(-1, 1) / 2 + 0.5))
    plt.axis("off")


# %% [markdown]
# Crops of three photographs that scikit-image brings along, in [-1, 1], and where their brightness
# changes.

# %%
photographs = [p().transpose(2, 0, 1)[:, ::2, ::2] / np.float32(127.5) - 1
               for p in (astronaut, chelsea, coffee)]  # fmt: skip
rng = np.random.default_rng(0)


def batch():
    found = []
    for _ in range(BATCH):
        x = photographs[rng.integers(3)]
        top, left = (rng.integers(s - SIZE + 1) for s in x.shape[1:])
        found.append(x[:, top : top + SIZE, left : left + SIZE])
    images = np.stack(found)
    down, right = np.gradient(images.mean(1), axis=(1, 2))
    return (np.tanh(6 * np.hypot(down, right)) * 2 - 1)[:, None].astype(np.float32), images


edges, images = batch()
show(np.concatenate([edges.repeat(3, 1), images]))


# %% [markdown]
# The generator is a U-Net: down to one pixel and up again, with shortcuts between equal sizes.


# %%
def generate(edges):
    with nn.parameter_scope("generator"):
        return pix2pix_generator(edges, 3, channels=24, depth=5)


def judge(edges, image):
    with nn.parameter_scope("discriminator"):
        return patch_discriminator(F.concatenate(edges, image, axis=1), channels=16, layers=2)


source = nn.Variable((BATCH, 1, SIZE, SIZE))
judge(source, generate(source))  # makes the parameters
solvers = {}
for name, rate in (("generator", 1e-3), ("discriminator", 5e-4)):
    with nn.parameter_scope(name):
        solvers[name] = S.Adam(rate, beta1=0.5)
        solvers[name].set_parameters(nn.get_parameters())


# %% [markdown]
# The generator's loss is $100\,|G(s) - x|$, which makes it near to the true image but smooth, and
# $\mathrm{softplus}(-D(s, G(s)))$, which wants it to look like a photograph.


# %%
@nn.compile
def step(edges, images):
    made = generate(edges)
    fake, real = judge(edges, F.unlink(made)), judge(edges, images)
    judged = 0.5 * adversarial_losses("logistic", fake, real)
    solvers["discriminator"].zero_grad()
    judged.backward(clear_buffer=True)
    solvers["discriminator"].update()
    error = F.mean(F.abs(made - images))
    fooled = adversarial_losses("logistic", judge(edges, made))
    solvers["generator"].zero_grad()
    (fooled + 100.0 * error).backward(clear_buffer=True)
    solvers["generator"].update()
    return error


errors = [float(step(*map(nn.Variable.from_numpy_array, batch())).d) for _ in range(STEPS)]
print(
    f"{np.mean(errors[:20]):.2f} in the first steps, {np.mean(errors[-20:]):.2f} in the last ones"
)

# %% [markdown]
# Edges, what is made of them, and the photographs:

# %%
edges, images = batch()
made = nn.compile(generate)(nn.Variable.from_numpy_array(edges)).d
show(np.stack([edges.repeat(3, 1), made, images], 1)[:3].reshape(-1, 3, SIZE, SIZE))
