# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # ESRGAN: four times the size
#
# Dense blocks make a large image of a small one: first near to the true one, then also such that a
# discriminator thinks it more real ([Wang et al.](https://arxiv.org/abs/1809.00219)).

# %% tags=["skip-execution"]
# %pip install "nnl[examples]"

# %%
import matplotlib.pyplot as plt
import numpy as np
from skimage.data import astronaut, chelsea, coffee

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models.generative import patch_discriminator, rrdb_net
from nnl.monitor import tile_images
from nnl.training.generative import adversarial_losses

STEPS, BATCH, SIZE = 1200, 4, 32


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


def smaller(images):
    *lead, h, w = images.shape
    return images.reshape(*lead, h // 4, 4, w // 4, 4).mean((-3, -1))


# %%
def enlarge(x):
    with nn.parameter_scope("generator"):
        return rrdb_net(x, 12, 1, 6)


def judge(x):
    with nn.parameter_scope("discriminator"):
        return patch_discriminator(x, 12, 2, "instance")


judge(enlarge(nn.Variable((BATCH, 3, SIZE // 4, SIZE // 4))))  # makes the parameters
solvers = [adam("generator", 1e-3, 0.9), adam("discriminator", 5e-4, 0.9)]


@nn.compile
def alone(small, large):
    error = F.mean(F.abs(enlarge(small) - large))
    learn(solvers[0], error)
    return error


@nn.compile
def against(small, large):
    made = enlarge(small)
    error = F.mean(F.abs(made - large))
    learn(solvers[0], error + 1e-3 * adversarial_losses("logistic", judge(made)))
    learn(solvers[1], adversarial_losses("logistic", judge(F.unlink(made)), judge(large)))
    return error


errors = []
for i in range(STEPS):
    large = crops(BATCH, SIZE)
    pair = map(nn.Variable.from_numpy_array, (smaller(large), large))
    errors.append(float((alone if i < 3 * STEPS // 4 else against)(*pair).d))
print(
    f"{np.mean(errors[:20]):.2f} in the first steps, {np.mean(errors[-20:]):.2f} in the last ones"
)

# %% [markdown]
# In few pixels, four times larger, and the true ones:

# %%
large = crops(3, SIZE)
small = smaller(large)
made = nn.compile(enlarge)(nn.Variable.from_numpy_array(small)).d
few = small.repeat(4, 2).repeat(4, 3)
show(np.stack([few, made, large], 1).reshape(-1, 3, SIZE, SIZE))
