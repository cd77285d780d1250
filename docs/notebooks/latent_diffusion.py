# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # Latent diffusion: noise is taken out of small maps
#
# An autoencoder makes small maps of images, and a diffusion model learns those maps in place of
# pixels, which is cheaper ([Rombach et al.](https://arxiv.org/abs/2112.10752)). [DDPM](ddpm)
# explains how noise is taken away.

# %% tags=["skip-execution"]
# %pip install "nnl[examples]"

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models.generative import Autoencoder, DiffusionUNet, decode, diffusion_unet, encode
from nnl.monitor import tile_images
from nnl.training.generative import NoiseSchedule

STEPS = 500
BATCH = 32


def show(images):
    plt.figure(figsize=(4, 4))
    plt.imshow(tile_images(images.clip(-1, 1) / 2 + 0.5), cmap="gray")
    plt.axis("off")


def learn(solver, loss):
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    solver.update()


digits = load_digits()
images = (digits.images[:, None] / 8 - 1).astype(np.float32)
rng = np.random.default_rng(0)


def drawn(of):
    return of[rng.integers(len(of), size=BATCH)]


# %% [markdown]
# The encoder gives a mean $\mu$ and a logarithm of a variance for each place; the decoder sees
# $z = \mu + \sigma\epsilon$. The loss is $|\mathrm{decode}(z) - x|$ and a little of the distance of
# these distributions from $N(0, 1)$, so that the maps fill their space evenly.

# %%
coder = Autoencoder((16, 32), 1, latent=2, colors=1, groups=8, attention=False)
with nn.parameter_scope("coder"):
    decode(encode(nn.Variable((1, 1, 8, 8)), coder)[0], coder)  # makes the parameters
    solver = S.Adam(3e-3)
    solver.set_parameters(nn.get_parameters())


@nn.compile
def compress(x):
    with nn.parameter_scope("coder"):
        mean, log_variance = encode(x, coder)
        z = mean + F.exp(0.5 * log_variance) * F.randn(shape=mean.shape)
        error = F.mean(F.abs(decode(z, coder) - x))
    spread = F.mean(mean**2 + F.exp(log_variance) - 1.0 - log_variance)
    learn(solver, error + 1e-3 * spread)
    return error


errors = [float(compress(nn.Variable.from_numpy_array(drawn(images))).d) for _ in range(STEPS)]
print(
    f"{np.mean(errors[:20]):.2f} in the first steps, {np.mean(errors[-20:]):.2f} in the last ones"
)


# %% [markdown]
# The maps of all images, 4 x 4 x 2 numbers for 8 x 8 pixels, are scaled to a spread of 1. Digits,
# and what the decoder makes of their maps:


# %%
@nn.compile
def compressed(x):
    with nn.parameter_scope("coder"):
        return encode(x, coder)[0]


@nn.compile
def restored(z):
    with nn.parameter_scope("coder"):
        return decode(z, coder)


maps = compressed(nn.Variable.from_numpy_array(images)).d.copy()
show(np.concatenate([images[:8], restored(nn.Variable.from_numpy_array(maps[:8])).d]))
scale = maps.std()
maps = maps / scale

# %% [markdown]
# The diffusion model is trained as on images.

# %%
config = DiffusionUNet(
    (48, 48), ("self", "self"), heads=(2, 2), inputs=2, outputs=2, groups=8, blocks=1,
    asymmetric=False,
)  # fmt: skip
schedule = NoiseSchedule("cosine", clip=None)
with nn.parameter_scope("unet"):
    diffusion_unet(nn.Variable((1, 2, 4, 4)), nn.Variable((1,)), config)
    solver = S.Adam(2e-3)
    solver.set_parameters(nn.get_parameters())


def predict(z, t):
    with nn.parameter_scope("unet"):
        return diffusion_unet(z, t, config)


@nn.compile
def denoise(z, t, noise):
    loss = F.mean((predict(z, t) - noise) ** 2)
    learn(solver, loss)
    return loss


losses = []
for _ in range(2 * len(errors)):
    z, t = drawn(maps), rng.integers(schedule.steps, size=BATCH)
    noise = rng.normal(size=z.shape).astype(np.float32)
    arrays = schedule.noisy(z, noise, t), t.astype(np.float32), noise
    losses.append(float(denoise(*map(nn.Variable.from_numpy_array, arrays)).d))
print(
    f"{np.mean(losses[:20]):.2f} in the first steps, {np.mean(losses[-20:]):.2f} in the last ones"
)

# %% [markdown]
# From noise to maps in 30 steps, and from maps to images in one.

# %%
run = nn.compile(predict)


def noise_of(z, t):
    return run(*map(nn.Variable.from_numpy_array, (z, t.astype(np.float32)))).d.copy()


noise = rng.normal(size=(64, *maps.shape[1:])).astype(np.float32)
z = schedule.sample(noise_of, noise, steps=30) * scale
show(restored(nn.Variable.from_numpy_array(z)).d)
