# SPDX-License-Identifier: Apache-2.0
"""Segmentation with a U-Net: discs, crosses and triangles of any colour before photographs.

Each pixel is of one of three kinds of objects or of none; the photographs of the held out pictures
are others. Beside: logistic regression from the colours around a pixel. Source: Ronneberger et al.,
arXiv:1505.04597. Expected (mean intersection over union of the four classes):

    {"mean IoU": 0.7707, "mean IoU of colours": 0.2741, "seconds": 126}
"""

import numpy as np
from common import answers, fit, main, some
from scenes import scenes

import nnl as nn
import nnl.functions as F
from nnl.metrics import segmentation_scores
from nnl.models import unet


def pictures(count, held_out=False):
    found = scenes(count, held_out=held_out)
    return np.stack([s.image for s in found]), np.stack([s.classes for s in found])


def network(x, test=True):
    with nn.parameter_scope("unet"):
        return unet(x, num_classes=4, channels=8, depth=3, test=test)


def loss_of(x, t):
    b, h, w = t.shape
    scores = network(x, test=False)
    return F.mean(F.softmax_cross_entropy(scores, F.reshape(t, (b, 1, h, w)), axis=1))


def linear(x, t, held_out):
    """What logistic regression says of pixels, from the 5 x 5 around each."""
    from sklearn.linear_model import LogisticRegression

    def around(images):
        padded = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")
        parts = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), (2, 3))
        return parts.transpose(0, 2, 3, 1, 4, 5).reshape(-1, 75)

    known = LogisticRegression(max_iter=100).fit(around(x), t.ravel())
    return known.predict(around(held_out)).reshape(len(held_out), *held_out.shape[2:])


def run(steps=1500):
    x, t = pictures(2000)
    held_out, truth = pictures(100, held_out=True)
    fit(loss_of, some(16, x, t), steps, rate=4e-3, scope="unet")
    found = {
        "mean IoU": answers(network, held_out).argmax(1),
        "mean IoU of colours": linear(x[:20], t[:20], held_out),
    }
    return {k: segmentation_scores(truth, v, 4)["mean_iou"] for k, v in found.items()}


if __name__ == "__main__":
    main(run)
