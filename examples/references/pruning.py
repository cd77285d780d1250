# SPDX-License-Identifier: Apache-2.0
"""Pruning: nine of ten weights of a network for digits become zero.

Weights are cut by size in three rounds, and what is left learns again. Source: Han et al.,
arXiv:1506.02626. Expected:

    {"dense": 0.9638, "cut": 0.4373, "cut and trained": 0.9582, "weights left": 0.1}
"""

import numpy as np
from common import answers, cross_entropy, digits, fit, main, some

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.metrics import accuracy

LEFT = (0.4, 0.2, 0.1)  # share of the weights after each round


def run(steps=300):
    x, t, held_out, truth = digits()
    masks = {}

    def network(images):
        def cut(w):
            key = w.shape
            return w * masks[key] if key in masks else w

        h = convolutions_of(images, cut)
        return PF.affine(h, 10, name="scores", apply_w=cut)

    def loss_of(images, labels):
        return cross_entropy(network(images), labels)

    fit(loss_of, some(64, x, t), steps)
    found = {"dense": accuracy(truth, answers(network, held_out))}
    for share in LEFT:
        for w in nn.get_parameters().values():
            if w.ndim > 1:
                limit = np.quantile(np.abs(w.d), 1 - share)
                w.d = np.where(np.abs(w.d) > limit, w.d, 0)
                masks[w.shape] = nn.Variable.from_numpy_array((w.d != 0).astype(np.float32))
        cut = accuracy(truth, answers(network, held_out))
        fit(loss_of, some(64, x, t), steps)
    weights = [w.d for w in nn.get_parameters().values() if w.ndim > 1]
    kept = sum(np.count_nonzero(w * masks[w.shape].d) for w in weights)
    share = kept / sum(w.size for w in weights)
    return found | {"cut": cut, "cut and trained": accuracy(truth, answers(network, held_out)),
                    "weights left": share}  # fmt: skip


def convolutions_of(x, cut):
    """That of common.py, with weights that are cut."""
    sizes = {"pad": (1, 1), "apply_w": cut}
    h = F.relu(PF.convolution(x, 16, (3, 3), name="first", **sizes))
    h = F.relu(PF.convolution(h, 32, (3, 3), stride=(2, 2), name="second", **sizes))
    return F.relu(PF.affine(h, 64, name="features", apply_w=cut))


if __name__ == "__main__":
    main(run)
