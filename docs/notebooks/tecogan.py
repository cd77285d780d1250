# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # TecoGAN: larger videos that do not flicker
#
# A small network says how pixels moved since the last frame; the generator sees a frame, and what
# it made of the last one, moved so ([Chu et al.](https://arxiv.org/abs/1811.09393)). Here without
# its discriminator, which `examples/generative/tecogan.py` has.

# %% tags=["skip-execution"]
# %pip install "nnl[examples]"

# %%
import matplotlib.pyplot as plt
import numpy as np
from skimage.data import astronaut, chelsea, coffee

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models.generative.layers import convolution, doubled
from nnl.monitor import tile_images

STEPS, BATCH, SIZE, FRAMES = 300, 4, 32, 3


def show(images):
    plt.figure(figsize=(4, 4))
    plt.imshow(tile_images(images.clip(-1, 1) / 2 + 0.5))
    plt.axis("off")


# %% [markdown]
# Videos are crops that move over photographs, by up to two pixels with each frame.

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


def videos(n):
    wide, found = SIZE + 4 * FRAMES, []
    for x, (right, down) in zip(crops(n, wide), rng.integers(-2, 3, (n, 2)), strict=True):
        at = [(2 * FRAMES + t * down, 2 * FRAMES + t * right) for t in range(FRAMES)]
        found.append([x[:, i : i + SIZE, j : j + SIZE] for i, j in at])
    return np.array(found)


def smaller(images):
    *lead, h, w = images.shape
    return images.reshape(*lead, h // 4, 4, w // 4, 4).mean((-3, -1))


# %%
def flow(frame, before):
    """From where each pixel of a frame comes in the one before."""
    h = F.concatenate(frame, before, axis=1)
    for i in range(3):
        h = F.leaky_relu(convolution(h, 16, 3, f"flow{i}"), 0.2)
    return 2.0 * F.tanh(convolution(h, 2, 3, "flow"))


def enlarge(frame, before):
    """A frame and the last one that was made, moved; its pixels lie in 16 channels."""
    b, c, h, w = before.shape
    parts = F.reshape(before, (b, c, h // 4, 4, w // 4, 4))
    parts = F.reshape(F.transpose(parts, (0, 1, 3, 5, 2, 4)), (b, 16 * c, h // 4, w // 4))
    y = F.relu(convolution(F.concatenate(frame, parts, axis=1), 24, 3, "first"))
    y = y + convolution(F.relu(convolution(y, 24, 3, "block1")), 24, 3, "block2")
    y = F.relu(convolution(doubled(y), 16, 3, "up1"))
    y = F.relu(convolution(doubled(y), 16, 3, "up2"))
    return doubled(doubled(frame)) + convolution(y, 3, 3, "last")


def video(small):
    """All frames, and how wrong the flows between small ones are."""
    made, moved, zero = [], 0.0, np.zeros((small.shape[0], 3, SIZE, SIZE), np.float32)
    before = nn.Variable.from_numpy_array(zero)
    for i in range(FRAMES):
        if i:
            way = flow(small[:, i], small[:, i - 1])
            moved += F.mean((F.warp_by_flow(small[:, i - 1], way) - small[:, i]) ** 2)
            before = F.warp_by_flow(made[-1], 4.0 * doubled(doubled(way)))
        made.append(enlarge(small[:, i], before))
    return F.stack(*made, axis=1), moved


video(nn.Variable((BATCH, FRAMES, 3, SIZE // 4, SIZE // 4)))  # makes the parameters
solver = S.Adam(1e-3)
solver.set_parameters(nn.get_parameters())


@nn.compile
def step(small, large):
    made, moved = video(small)
    error = F.mean(F.abs(made - large))
    solver.zero_grad()
    (error + moved).backward(clear_buffer=True)
    solver.update()
    return error


errors = []
for _ in range(STEPS):
    large = videos(BATCH)
    errors.append(float(step(*map(nn.Variable.from_numpy_array, (smaller(large), large))).d))
print(
    f"{np.mean(errors[:20]):.2f} in the first steps, {np.mean(errors[-20:]):.2f} in the last ones"
)

# %% [markdown]
# Three frames: in few pixels, four times larger, and the true ones.

# %%
large = videos(1)
small = smaller(large)
made = nn.compile(lambda x: video(x)[0])(nn.Variable.from_numpy_array(small)).d
few = small.repeat(4, 3).repeat(4, 4)
show(np.concatenate([few, made, large]).reshape(-1, 3, SIZE, SIZE))
