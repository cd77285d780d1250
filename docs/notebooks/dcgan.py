# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # DCGAN: faces from noise
#
# Two networks play against each other. The *generator* makes an image $G(z)$ of noise; the
# *discriminator* gives a score $D(x)$, high for images that it takes for real ones
# ([Radford et al.](https://arxiv.org/abs/1511.06434)).

# %% tags=["skip-execution"]
# %pip install "nnl[examples]"

# %%
import matplotlib.pyplot as plt
import numpy as np
from skimage.data import lfw_subset
from skimage.transform import resize

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models import dcgan_discriminator, dcgan_generator
from nnl.monitor import tile_images
from nnl.training.generative import adversarial_losses

STEPS, BATCH, NOISE = 700, 16, 32


def show(images):
    plt.figure(figsize=(4, 4))
    plt.imshow(tile_images(images.clip(-1, 1) / 2 + 0.5), cmap="gray")
    plt.axis("off")


# %% [markdown]
# The data are 100 faces of 25 x 25 pixels that scikit-image brings along, made larger, in [-1, 1].

# %%
faces = resize(lfw_subset()[:100, None], (100, 1, 64, 64)).astype(np.float32) * 2 - 1
show(faces[:16])


# %% [markdown]
# Parameters live in scopes: one for each network, and a solver for each scope.


# %%
def generate(z):
    with nn.parameter_scope("generator"):
        return dcgan_generator(z, channels=16, colors=1)


def judge(x):
    with nn.parameter_scope("discriminator"):
        return dcgan_discriminator(x, channels=16)


judge(generate(nn.Variable((BATCH, NOISE))))  # makes the parameters
solvers = {}
for name, rate in (("generator", 1e-3), ("discriminator", 3e-4)):
    with nn.parameter_scope(name):
        solvers[name] = S.Adam(rate, beta1=0.5)
        solvers[name].set_parameters(nn.get_parameters())


# %% [markdown]
# The discriminator minimises $\mathrm{softplus}(D(G(z))) + \mathrm{softplus}(-D(x))$, which is
# cross-entropy of "made" and "real". The generator minimises $\mathrm{softplus}(-D(G(z)))$: its
# images should be taken for real ones. `F.unlink` keeps the discriminator's loss from reaching the
# generator; `nn.compile` makes one program of both halves.


# %%
@nn.compile
def step(x, z):
    fake = generate(z)
    judged = adversarial_losses("logistic", judge(F.unlink(fake)), judge(x))
    solvers["discriminator"].zero_grad()
    judged.backward(clear_buffer=True)
    solvers["discriminator"].update()
    fooled = adversarial_losses("logistic", judge(fake))
    solvers["generator"].zero_grad()
    fooled.backward(clear_buffer=True)
    solvers["generator"].update()
    return judged, fooled


rng = np.random.default_rng(0)
losses = []
for _ in range(STEPS):
    x = faces[rng.integers(len(faces), size=BATCH)]
    z = rng.normal(size=(BATCH, NOISE)).astype(np.float32)
    losses.append([float(v.d) for v in step(*map(nn.Variable.from_numpy_array, (x, z)))])

# %% [markdown]
# Neither loss goes down for good: each network learns against a better opponent.

# %%
plt.figure(figsize=(6, 2))
plt.plot(losses, label=["discriminator", "generator"])
plt.legend()
plt.show()

# %%
z = rng.normal(size=(16, NOISE)).astype(np.float32)
show(nn.compile(generate)(nn.Variable.from_numpy_array(z)).d)
