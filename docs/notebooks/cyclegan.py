# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # CycleGAN: two kinds of images, without pairs
#
# One generator makes night of day, another day of night; what goes there and back should be what it
# was ([Zhu et al.](https://arxiv.org/abs/1703.10593)).

# %% tags=["skip-execution"]
# %pip install "nnl[examples]"

# %%
import matplotlib.pyplot as plt
import numpy as np
from skimage.data import astronaut, chelsea, coffee

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models.generative import patch_discriminator, resnet_generator
from nnl.monitor import tile_images
from nnl.training.generative import adversarial_losses

STEPS, BATCH, SIZE = 250, 4, 24


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


def night(images):
    tint = np.array([0.35, 0.45, 0.9], np.float32)[:, None, None]
    return ((images + 1) / 2) ** 1.5 * tint * 2 - 1


# %%
def turn(x, way):
    with nn.parameter_scope(f"generator/{way}"):
        return resnet_generator(x, 3, 6, 1)


def judge(x, side):
    with nn.parameter_scope(f"judge/{side}"):
        return patch_discriminator(x, 12, 2, "instance")


x = nn.Variable((BATCH, 3, SIZE, SIZE))
for way in ("ab", "ba"):  # makes the parameters
    judge(turn(x, way), way[1])
solvers = {scope: adam(scope, 1e-3) for scope in ("generator", "judge")}

# %% [markdown]
# Least squares take the place of cross-entropy. An image that is of the wanted kind should stay.


# %%
@nn.compile
def step(a, b):
    made, loss, judged = {"a": turn(b, "ba"), "b": turn(a, "ab")}, 0.0, 0.0
    for x, here, there in ((a, "a", "b"), (b, "b", "a")):
        back = F.mean(F.abs(turn(made[there], there + here) - x))
        same = F.mean(F.abs(turn(x, there + here) - x))
        loss += adversarial_losses("least_squares", judge(made[here], here)) + 10 * back + 5 * same
    learn(solvers["generator"], loss)
    for x, side in ((a, "a"), (b, "b")):
        fake = judge(F.unlink(made[side]), side)
        judged += 0.5 * adversarial_losses("least_squares", fake, judge(x, side))
    learn(solvers["judge"], judged)


for _ in range(STEPS):
    step(*map(nn.Variable.from_numpy_array, (crops(BATCH, SIZE), night(crops(BATCH, SIZE)))))

# %% [markdown]
# Days, the nights that are made of them, and what they would be by the rule:

# %%
a = crops(3, SIZE)
made = nn.compile(lambda x: turn(x, "ab"))(nn.Variable.from_numpy_array(a)).d
show(np.stack([a, made, night(a)], 1).reshape(-1, 3, SIZE, SIZE))
