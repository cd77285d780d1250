# SPDX-License-Identifier: Apache-2.0
"""Semi-supervision with FixMatch: digits from 40 labels and many digits without.

Where the network is sure of a digit, it should say the same of a stronger changed one. Beside: with
the labels alone. Source: Sohn et al., arXiv:2001.07685. Expected:

    {"accuracy": 0.8301, "labels alone": 0.7883, "seconds": 68}
"""

from common import answers, convolutions, cross_entropy, digits, fit, main, moved

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.metrics import accuracy

LABELS, SURE = 40, 0.8


def network(x, name="net"):
    with nn.parameter_scope(name):
        return PF.affine(convolutions(x), 10, name="scores")


def loss_of(x, t, weak, strong):
    said = F.softmax(F.unlink(network(weak)))
    guess = F.max(said, axis=1, only_index=True)
    sure = F.greater_equal_scalar(F.max(said, axis=1), SURE)
    each = F.softmax_cross_entropy(network(strong), F.reshape(guess, (guess.shape[0], 1)))
    return cross_entropy(network(x), t) + F.mean(F.reshape(each, sure.shape) * sure)


def run(steps=1500):
    x, t, held_out, truth = digits()

    def labelled(rng):
        rows = rng.integers(LABELS, size=32)
        return [moved(x[rows], rng), t[rows]]

    def batch(rng):
        others = x[rng.integers(len(x), size=96)]
        return [*labelled(rng), moved(others, rng, 0, 0.05), moved(others, rng, 1, 0.3)]

    fit(loss_of, batch, steps, scope="net")
    fit(lambda v, c: cross_entropy(network(v, "alone"), c), labelled, steps, scope="alone")
    alone = accuracy(truth, answers(lambda v: network(v, "alone"), held_out))
    return {"accuracy": accuracy(truth, answers(network, held_out)), "labels alone": alone}


if __name__ == "__main__":
    main(run)
