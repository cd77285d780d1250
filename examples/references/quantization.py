# SPDX-License-Identifier: Apache-2.0
"""Quantization: a network for digits whose weights have 2 bits, trained with them.

Weights are rounded to the nearest of a few levels in every step, and gradients pass as if they were
not. Beside: the same network rounded after its training. Source: Jacob et al., arXiv:1712.05877.
Expected:

    {"full": 0.9721, "trained": 0.9638, "rounded afterwards": 0.8886, "seconds": 9}
"""

from common import answers, cross_entropy, digits, fit, main, some

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.metrics import accuracy

LEVELS = 3  # of 2 bits, without one of the two signs of the largest


def rounded(w):
    """Levels between -a and a, where a is twice the mean size; the gradient is that of w."""
    a = F.mean(F.abs(w), axis=tuple(range(w.ndim)), keepdims=True) * 2.0
    near = F.clip_by_value(F.round(w / a * (LEVELS // 2)), -(LEVELS // 2), LEVELS // 2)
    return w + F.unlink(near * a / (LEVELS // 2) - w)


def network(x, change, name):
    with nn.parameter_scope(name):
        h = F.relu(PF.convolution(x, 16, (3, 3), pad=(1, 1), name="first", apply_w=change))
        h = F.relu(PF.convolution(h, 32, (3, 3), stride=(2, 2), name="second", apply_w=change))
        h = F.relu(PF.affine(h, 64, name="features", apply_w=change))
        return PF.affine(h, 10, name="scores", apply_w=change)


def run(steps=400):
    x, t, held_out, truth = digits()

    def reached(change, name):
        return accuracy(truth, answers(lambda v: network(v, change, name), held_out))

    found = {}
    for name, change in (("full", None), ("trained", rounded)):
        fit(
            lambda v, c, change=change, name=name: cross_entropy(network(v, change, name), c),
            some(64, x, t), steps, scope=name,
        )  # fmt: skip
        found[name] = reached(change, name)
    return found | {"rounded afterwards": reached(rounded, "full")}


if __name__ == "__main__":
    main(run)
