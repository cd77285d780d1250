# SPDX-License-Identifier: Apache-2.0
"""Segmentation with DeepLabV3+: dilated convolutions see far at a quarter of the size.

The pictures and the linear model are those of unet.py. Convolutions at four dilations and the mean
of the picture stand side by side (ASPP); the decoder adds the first, finer features. Source: Chen
et al., arXiv:1802.02611. Expected (mean intersection over union of the four classes):

    {"mean IoU": 0.566, "mean IoU of colours": 0.2741, "seconds": 411}
"""

import numpy as np
from common import answers, fit, main, some
from unet import linear, pictures

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.metrics import segmentation_scores
from nnl.models.convolution import conv_bn, pooled

RATES = (2, 4, 6)


def dilated(h, channels, rate, name, test):
    h = PF.convolution(
        h, channels, (3, 3), pad=(rate, rate), dilation=(rate, rate), with_bias=False, name=name
    )
    return F.relu(PF.batch_normalization(h, batch_stat=not test, name=name))


def larger(h, like):
    return F.interpolate(h, output_size=like.shape[2:], mode="linear", align_corners=False)


def network(x, test=True):
    """Scores (B, 4, H, W)."""
    with nn.parameter_scope("deeplab"):
        fine = conv_bn(conv_bn(x, 16, 3, "stem", test, stride=2), 16, 3, "fine", test)
        h = conv_bn(conv_bn(fine, 32, 3, "down", test, stride=2), 32, 3, "coarse", test)
        h = h + dilated(h, 32, 2, "deep", test)
        sides = [dilated(h, 16, r, f"aspp{r}", test) for r in RATES]
        sides += [conv_bn(h, 16, 1, "aspp1", test)]
        whole = F.relu(PF.convolution(pooled(h), 16, (1, 1), name="whole"))
        sides += [F.broadcast(whole, sides[0].shape)]
        h = conv_bn(F.concatenate(*sides, axis=1), 32, 1, "joined", test)
        h = F.concatenate(larger(h, fine), conv_bn(fine, 12, 1, "skip", test), axis=1)
        h = PF.convolution(conv_bn(h, 32, 3, "decoder", test), 4, (1, 1), name="scores")
        return larger(h, x)


def loss_of(x, t):
    b, h, w = t.shape
    scores = network(x, test=False)
    return F.mean(F.softmax_cross_entropy(scores, F.reshape(t, (b, 1, h, w)), axis=1))


def run(steps=500):
    (x, t), (held_out, truth) = pictures(2000), pictures(100, held_out=True)
    fit(loss_of, some(16, x, t), steps, rate=4e-3, scope="deeplab")
    found = {
        "mean IoU": answers(network, held_out).argmax(1),
        "mean IoU of colours": linear(x[:20], t[:20], held_out),
    }
    return {k: segmentation_scores(truth, np.asarray(v), 4)["mean_iou"] for k, v in found.items()}


if __name__ == "__main__":
    main(run)
