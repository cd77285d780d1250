# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # ReenactGAN: a face moves as another does
#
# Faces meet in the space of their edges: edges of one face become those of the other (a cycle,
# without pairs), and a decoder paints the other face from its edges
# ([Wu et al.](https://arxiv.org/abs/1807.11079)). Crops that move about the face of a person and of
# a cat stand for videos.

# %% tags=["skip-execution"]
# %pip install "nnl[examples]"

# %%
import matplotlib.pyplot as plt
import numpy as np
from skimage.data import astronaut, chelsea

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models.generative import patch_discriminator, resnet_generator
from nnl.models.generative.layers import convolution, linear
from nnl.monitor import tile_images
from nnl.training.generative import adversarial_losses

STEPS, BATCH, SIZE, FARTHEST = 1500, 6, 24, 4
rng = np.random.default_rng(0)
photographs = [p().transpose(2, 0, 1)[:, ::8, ::8] / np.float32(127.5) - 1
               for p in (astronaut, chelsea)]  # fmt: skip


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
def faces(which, poses):
    """Crops at poses (N, 2), which are right and down from -1 to 1."""
    x, (top, left) = photographs[which], ((4, 16), (6, 16))[which]
    at = (poses * FARTHEST).round().astype(int) + np.array([left, top])
    return np.stack([x[:, i : i + SIZE, j : j + SIZE] for j, i in at])


def edges(images):
    grey = images.mean(1)
    grey = sum(np.roll(grey, (i, j), (1, 2)) for i in (-1, 0, 1) for j in (-1, 0, 1)) / 9  # not fur
    down, right = np.gradient(grey, axis=(1, 2))
    return (np.tanh(9 * np.hypot(down, right)) * 2 - 1)[:, None].astype(np.float32)


# %% [markdown]
# A regressor says the pose of edges; it should stay when they become those of the other face.


# %%
def transform(edge, way):
    with nn.parameter_scope(f"transform/{way}"):
        return resnet_generator(edge, 1, 8, 1)


def decode(edge):
    with nn.parameter_scope("decode"):
        return resnet_generator(edge, 3, 8, 1)


def judge(edge, side):
    with nn.parameter_scope(f"judge/{side}"):
        return patch_discriminator(edge, 12, 1, "instance")


def pose(edge):
    with nn.parameter_scope("pose"):
        h = F.relu(convolution(edge, 12, 4, "first", 2, 1))
        h = F.relu(convolution(h, 24, 4, "second", 2, 1))
        return linear(F.reshape(h, (h.shape[0], -1)), 2, "last")


edge = nn.Variable((BATCH, 1, SIZE, SIZE))
pose(edge), decode(edge)  # makes the parameters
for way in ("ab", "ba"):
    judge(transform(edge, way), way[1])
solvers = {scope: adam(scope, 1e-3) for scope in ("transform", "decode", "judge", "pose")}


@nn.compile
def step(a, b, face, where_a, where_b):
    wrong = F.mean((pose(a) - where_a) ** 2) + F.mean((pose(b) - where_b) ** 2)
    learn(solvers["pose"], wrong)
    learn(solvers["decode"], F.mean(F.abs(decode(b) - face)))
    made, loss, judged = {"a": transform(b, "ba"), "b": transform(a, "ab")}, 0.0, 0.0
    for x, here, there in ((a, "a", "b"), (b, "b", "a")):
        y = made[there]
        back = F.mean(F.abs(transform(y, there + here) - x))
        moved = F.mean((pose(y) - F.unlink(pose(x))) ** 2)
        fooled = adversarial_losses("least_squares", judge(y, there))
        loss += fooled + 10.0 * back + 10.0 * moved
    learn(solvers["transform"], loss)
    for x, side in ((a, "a"), (b, "b")):
        fake = judge(F.unlink(made[side]), side)
        judged += 0.5 * adversarial_losses("least_squares", fake, judge(x, side))
    learn(solvers["judge"], judged)


for _ in range(STEPS):
    poses = rng.uniform(-1, 1, (2, BATCH, 2)).astype(np.float32)
    a, b = (faces(k, poses[k]) for k in (0, 1))
    step(*map(nn.Variable.from_numpy_array, (edges(a), edges(b), b, *poses)))

# %% [markdown]
# A face, the other one made to move like it, and that one as it looks there:

# %%
poses = rng.uniform(-1, 1, (3, 2))
a, b = (faces(k, poses) for k in (0, 1))
run = nn.compile(lambda x: decode(transform(x, "ab")))
made = run(nn.Variable.from_numpy_array(edges(a))).d
show(np.stack([a, made, b], 1).reshape(-1, 3, SIZE, SIZE))
