# SPDX-License-Identifier: Apache-2.0
"""Faces: whether a picture shows one, from 150 pictures.

Faces and other cuttings of scikit-image (lfw_subset), mirrored, shifted and with noise in training;
every fourth is held out. Expected:

    {"accuracy": 0.96, "ROC AUC": 0.9792, "seconds": 3}
"""

import numpy as np
from common import answers, convolutions, cross_entropy, fit, main, moved

import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.metrics import accuracy, roc_auc


def network(x):
    return PF.affine(convolutions(F.average_pooling(x, (2, 2)), 12, 48), 2, name="scores")


def run(steps=250):
    from skimage.data import lfw_subset

    x = lfw_subset()[:, None, :24, :24].astype(np.float32)
    x = (x - x.mean((1, 2, 3), keepdims=True)) / (x.std((1, 2, 3), keepdims=True) + 1e-3)
    t = (np.arange(len(x)) < 100).astype(int)
    held_out = np.arange(len(x)) % 4 == 3
    known = x[~held_out], t[~held_out]

    def batch(rng):
        rows = rng.integers(len(known[0]), size=32)
        images = known[0][rows]
        images = np.where(rng.random((32, 1, 1, 1)) < 0.5, images, images[..., ::-1])
        return [moved(images, rng, 2, 0.2), known[1][rows]]

    fit(lambda images, labels: cross_entropy(network(images), labels), batch, steps)
    scores, truth = answers(network, x[held_out]), t[held_out]
    margin = scores[:, 1] - scores[:, 0]
    return {"accuracy": accuracy(truth, scores), "ROC AUC": roc_auc(truth, margin)}


if __name__ == "__main__":
    main(run)
