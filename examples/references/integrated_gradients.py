# SPDX-License-Identifier: Apache-2.0
"""Explanations by integrated gradients: which pixels make a digit what it is.

Pixels are removed in the order of how much they count, and the score of the class falls; faster
than in a random order if the explanation is good. Source: Sundararajan et al., arXiv:1703.01365.
Expected (mean probability of the class while its pixels go; attributions sum to the score's gain):

    {"probability": 0.0234, "probability in a random order": 0.6323}
"""

import numpy as np
from common import answers, convolutions, cross_entropy, digits, fit, main, some

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF

STEPS = 50  # from a black image to the digit


def network(x):
    return PF.affine(convolutions(x), 10, name="scores")


def attributions(x, t):
    """(N, 1, 8, 8): what each pixel adds to the score of its class."""
    total = np.zeros_like(x)
    image = nn.Variable(x.shape, need_grad=True)
    scores = F.sum(network(image) * nn.Variable.from_numpy_array(np.eye(10, dtype="f4")[t]))
    (g,) = nn.grad([scores], [image])
    for share in (np.arange(STEPS) + 0.5) / STEPS:
        image.d = share * x
        g.forward()
        total += g.d
    return total / STEPS * x


def run(steps=400):
    x, t, held_out, truth = digits()
    fit(lambda v, c: cross_entropy(network(v), c), some(64, x, t), steps)
    held_out, truth = held_out[:120], truth[:120]
    rows = np.arange(len(truth))

    def kept(order):
        """The mean probability of the class, as pixels become black one after the other."""
        images, found = held_out.copy().reshape(len(rows), 64), []
        for k in range(0, 40, 4):
            np.put_along_axis(images, order[:, k : k + 4], 0, 1)
            p = answers(lambda v: F.softmax(network(v)), images.reshape(held_out.shape))
            found.append(p[rows, truth].mean())
        return np.mean(found)

    made = attributions(held_out, truth).reshape(len(rows), 64)
    random = np.random.default_rng(0).permuted(np.tile(np.arange(64), (len(rows), 1)), axis=1)
    gain = (answers(network, held_out) - answers(network, 0 * held_out))[rows, truth]
    return {
        "probability": kept(np.argsort(-made, axis=1)),
        "probability in a random order": kept(random),
        "missing share of the gain": np.abs(made.sum(1) - gain).mean() / np.abs(gain).mean(),
    }


if __name__ == "__main__":
    main(run)
