# SPDX-License-Identifier: Apache-2.0
"""Self-supervision with a masked autoencoder: a transformer fills in three quarters of a digit.

Digits are 16 patches of 2 x 2 pixels; the encoder sees 4 of them, the decoder also where the others
are, and only these count. Beside: the mean of all digits at each place. Source: He et al.,
arXiv:2111.06377. Expected (mean squared error of hidden pixels, of digits it never saw):

    {"error": 0.0548, "error of means": 0.0726, "seconds": 39}
"""

import numpy as np
from common import answers, digits, fit, main, some

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.models.generative.layers import attention, layer_norm, linear

PATCHES, SEEN, WIDTH = 16, 4, 48


def layers(h, n, name):
    for i in range(n):
        with nn.parameter_scope(f"{name}{i}"):
            h = h + attention(layer_norm(h, "norm1"), 4, "attention")
            up = F.gelu(linear(layer_norm(h, "norm2"), 4 * WIDTH, "up"))
            h = h + linear(up, WIDTH, "down")
    return h


def places(order):
    """Vectors of the places of patches, (B, n) -> (B, n, WIDTH)."""
    flat = PF.embed(F.reshape(order, (order.size,)), PATCHES, WIDTH, name="places")
    return F.reshape(flat, (*order.shape, WIDTH))


def filled(patches, order):
    """The hidden patches, of all patches in a random order: the first SEEN are seen."""
    b = patches.shape[0]
    h = linear(patches[:, :SEEN], WIDTH, "patches") + places(order[:, :SEEN])
    h = layers(h, 2, "encoder")
    h = F.concatenate(h, 0.0 * places(order[:, SEEN:]), axis=1) + places(order)
    h = layers(h, 1, "decoder")
    return F.reshape(linear(h[:, SEEN:], 4, "pixels"), (b, PATCHES - SEEN, 4))


def loss_of(patches, order):
    return F.mean((filled(patches, order) - patches[:, SEEN:]) ** 2)


def cut(x, rng):
    """Patches (B, 16, 4) in a random order, and the order."""
    patches = x.reshape(-1, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4).reshape(-1, PATCHES, 4)
    order = rng.permuted(np.tile(np.arange(PATCHES), (len(x), 1)), axis=1)
    return [np.take_along_axis(patches, order[:, :, None], 1), order]


def run(steps=1000):
    x, _, held_out, _ = digits()
    fit(loss_of, lambda rng: cut(some(64, x)(rng)[0], rng), steps)
    patches, order = cut(held_out, np.random.default_rng(2))
    hidden = patches[:, SEEN:]
    mean = cut(x.mean(0, keepdims=True), np.random.default_rng(0))
    mean = mean[0][0][np.argsort(mean[1][0])]
    return {
        "error": ((answers(filled, patches, order) - hidden) ** 2).mean(),
        "error of means": ((mean[order[:, SEEN:]] - hidden) ** 2).mean(),
    }


if __name__ == "__main__":
    main(run)
