# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # VQ-VAE: images as a few numbers
#
# An autoencoder with a *code book*: between encoder and decoder each place has one of 64 vectors,
# so that an image becomes a few whole numbers
# ([van den Oord et al.](https://arxiv.org/abs/1711.00937)).

# %% tags=["skip-execution"]
# %pip install "nnl[examples]"

# %%
import matplotlib.pyplot as plt
import numpy as np
from skimage.data import astronaut, chelsea, coffee

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models.generative import Autoencoder, decode, encode, quantize_vectors
from nnl.monitor import tile_images

STEPS, BATCH, SIZE = 400, 8, 32


def show(images):
    plt.figure(figsize=(4, 4))
    plt.imshow(tile_images(images.clip(-1, 1) / 2 + 0.5))
    plt.axis("off")


# %% [markdown]
# Crops of three photographs that scikit-image brings along, in [-1, 1].

# %%
photographs = [p().transpose(2, 0, 1)[:, ::4, ::4] / np.float32(127.5) - 1
               for p in (astronaut, chelsea, coffee)]  # fmt: skip
rng = np.random.default_rng(0)


def batch():
    found = []
    for _ in range(BATCH):
        x = photographs[rng.integers(3)]
        top, left = (rng.integers(s - SIZE + 1) for s in x.shape[1:])
        found.append(x[:, top : top + SIZE, left : left + SIZE])
    return nn.Variable.from_numpy_array(np.stack(found))


# %% [markdown]
# `quantize_vectors` takes the nearest vector $e_k$ for each $z$ of the encoder, and gives the
# numbers $k$ and the loss $|\mathrm{sg}(z) - e_k|^2 + \beta |z - \mathrm{sg}(e_k)|^2$, which moves
# vectors and encoder towards each other; sg stops the gradient. That of the decoder goes past the
# choice to the encoder as if nothing were between them.

# %%
config = Autoencoder((24, 48, 48), 1, latent=8, codes=64, groups=8, attention=False)


def code(x):
    z, numbers, loss = quantize_vectors(encode(x, config), config)
    return decode(z, config), numbers, loss


code(nn.Variable((BATCH, 3, SIZE, SIZE)))  # makes the parameters
solver = S.Adam(2e-3)
solver.set_parameters(nn.get_parameters())


@nn.compile
def step(x):
    y, _, loss = code(x)
    error = F.mean(F.abs(y - x))
    solver.zero_grad()
    (error + loss).backward(clear_buffer=True)
    solver.update()
    return error


errors = [float(step(batch()).d) for _ in range(STEPS)]
print(
    f"{np.mean(errors[:20]):.2f} in the first steps, {np.mean(errors[-20:]):.2f} in the last ones"
)

# %% [markdown]
# Crops above what becomes of them when each 4 x 4 pixels are one number:

# %%
x = batch()
y, numbers, _ = nn.compile(code)(x)
print(len(np.unique(numbers.d)), "of 64 vectors in use")
show(np.concatenate([x.d, y.d]))
