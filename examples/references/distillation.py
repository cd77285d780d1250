# SPDX-License-Identifier: Apache-2.0
"""Distillation: a small network learns digits from a large one's scores.

Both see only 100 labels; the small one also sees what the large one says of all digits. Beside: the
small one with labels alone. Source: Hinton et al., arXiv:1503.02531. Expected:

    {"large": 0.8022, "alone": 0.6602, "distilled": 0.7131, "seconds": 17}
"""

import numpy as np
from common import answers, convolutions, cross_entropy, digits, fit, main, moved

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.metrics import accuracy

HEAT = 3.0  # by which scores are divided, so that small ones say more
LABELS = 100


def large(x):
    with nn.parameter_scope("large"):
        return PF.affine(convolutions(x, 24, 96), 10, name="scores")


def small(x, name="small"):
    with nn.parameter_scope(name):
        return PF.affine(F.relu(PF.affine(x, 16, name="hidden")), 10, name="scores")


def run(steps=500):
    x, t, held_out, truth = digits()

    def labelled(rng):
        rows = rng.integers(LABELS, size=64)
        return [moved(x[rows], rng), t[rows]]

    def everything(rng):
        rows = rng.integers(len(x), size=64)
        return [moved(x[rows], rng)]

    def distilled(images):
        wanted = F.softmax(F.unlink(large(images)) * (1 / HEAT))
        said = F.log_softmax(small(images) * (1 / HEAT))
        return -HEAT * HEAT * F.mean(F.sum(wanted * said, axis=1))

    fit(lambda images, c: cross_entropy(large(images), c), labelled, steps, scope="large")
    fit(lambda images, c: cross_entropy(small(images, "alone"), c), labelled, steps, scope="alone")
    fit(distilled, everything, 2 * steps, scope="small")
    networks = {"large": large, "alone": lambda v: small(v, "alone"), "distilled": small}
    return {n: accuracy(truth, np.asarray(answers(f, held_out))) for n, f in networks.items()}


if __name__ == "__main__":
    main(run)
