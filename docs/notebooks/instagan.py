# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # InstaGAN: objects change, the rest stays
#
# CycleGAN of images together with a mask of their object: discs should become squares, and what no
# mask covers should stay ([Mo et al.](https://arxiv.org/abs/1812.10889)). Here is one object in
# each image; `examples/generative/instagan.py` has several.

# %% tags=["skip-execution"]
# %pip install "nnl[examples]"

# %%
import matplotlib.pyplot as plt
import numpy as np
from skimage.data import astronaut, chelsea, coffee

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models.generative import patch_discriminator
from nnl.models.generative.layers import convolution
from nnl.monitor import tile_images
from nnl.training.generative import adversarial_losses

STEPS, BATCH, SIZE = 700, 8, 24


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
photographs = [p().transpose(2, 0, 1)[:, ::8, ::8] / np.float32(127.5) - 1
               for p in (astronaut, chelsea, coffee)]  # fmt: skip
rng = np.random.default_rng(0)


def crops(n, size):
    found = []
    for _ in range(n):
        x = photographs[rng.integers(3)]
        top, left = (rng.integers(s - size + 1) for s in x.shape[1:])
        found.append(x[:, top : top + size, left : left + size])
    return np.stack(found)


def batch(norm):
    """Photographs with an object, and its mask: (BATCH, 4, SIZE, SIZE)."""
    at = np.mgrid[:SIZE, :SIZE] - rng.uniform(8, 16, (BATCH, 2, 1, 1))
    mask = np.linalg.norm(at, ord=norm, axis=1) < rng.uniform(4, 7, (BATCH, 1, 1))
    colour = rng.choice([-0.9, 0.9], (BATCH, 3, 1, 1))
    image = np.where(mask[:, None], colour, 0.7 * crops(BATCH, SIZE))
    return np.concatenate([image, 2 * mask[:, None] - 1], axis=1).astype(np.float32)


# %%
def turn(x, way):
    """What is added to an image and its mask."""
    h = x
    with nn.parameter_scope(f"generator/{way}"):
        for i in range(4):
            h = F.leaky_relu(convolution(h, 20, 5, f"layer{i}"), 0.2)
        return x + convolution(h, 4, 3, "last")


def judge(x, side):
    with nn.parameter_scope(f"judge/{side}"):
        return patch_discriminator(x, 12, 2, "instance")


x = nn.Variable((BATCH, 4, SIZE, SIZE))
for way in ("ab", "ba"):  # makes the parameters
    judge(turn(x, way), way[1])
solvers = {scope: adam(scope, 1e-3) for scope in ("generator", "judge")}

# %% [markdown]
# Beside the losses of CycleGAN: pixels that no object covers, before or after, should stay.


# %%
@nn.compile
def step(a, b):
    made, loss, judged = {"a": turn(b, "ba"), "b": turn(a, "ab")}, 0.0, 0.0
    for x, here, there in ((a, "a", "b"), (b, "b", "a")):
        y = made[there]
        back = F.mean(F.abs(turn(y, there + here) - x))
        behind = (1 - x[:, 3:]) * (1 - y[:, 3:]) * 0.25
        stays = F.mean(behind * F.abs(y[:, :3] - x[:, :3]))
        fooled = adversarial_losses("least_squares", judge(y, there))
        loss += fooled + 10.0 * back + 10.0 * stays
    learn(solvers["generator"], loss)
    for x, side in ((a, "a"), (b, "b")):
        fake = judge(F.unlink(made[side]), side)
        judged += 0.5 * adversarial_losses("least_squares", fake, judge(x, side))
    learn(solvers["judge"], judged)


for _ in range(STEPS):
    step(*map(nn.Variable.from_numpy_array, (batch(2), batch(np.inf))))

# %% [markdown]
# Discs, what is made of them, and the mask of that:

# %%
a = batch(2)[:3]
made = nn.compile(lambda x: turn(x, "ab"))(nn.Variable.from_numpy_array(a)).d
parts = a[:, :3], made[:, :3], made[:, 3:].repeat(3, 1)
show(np.stack(parts, 1).reshape(-1, 3, SIZE, SIZE))
