# SPDX-License-Identifier: Apache-2.0
"""Detection with DETR: a transformer says a set of objects, and each true one is given to one.

Convolutions make patches of the picture; eight learnt queries look at them and at each other, and
each says a class or none, and a box. In every step the Hungarian algorithm of SciPy gives objects
to queries, outside of the compiled part. Beside: pieces that differ from the picture's border.
Source: Carion et al., arXiv:2005.12872. Expected (average precision of COCO, at half the overlap):

    {"AP": 0.0947, "AP50": 0.2127, "AP50 of pieces": 0.0045, "seconds": 494}
"""

import numpy as np
from centernet import pieces
from common import answers, fit, given, main
from scenes import KINDS, scenes

import nnl as nn
import nnl.functions as F
from nnl.metrics import coco_average_precision
from nnl.models.convolution import conv_bn
from nnl.models.generative.layers import attention, layer_norm, linear
from nnl.parametric_functions import get_parameter_or_create
from nnl.parametric_functions.initializer import NormalInitializer

SIZE, QUERIES, WIDTH, NONE = 48, 8, 64, len(KINDS)
SIDE = SIZE // 8


def layer(h, name, context=None):
    with nn.parameter_scope(name):
        h = h + attention(layer_norm(h, "norm1"), 4, "itself")
        if context is not None:
            h = h + attention(layer_norm(h, "norm2"), 4, "look", context=context)
        up = F.relu(linear(layer_norm(h, "norm3"), 2 * WIDTH, "up"))
        return h + linear(up, WIDTH, "down")


def network(x, test=True):
    """Scores of classes (B, QUERIES, 4), and boxes as centres and sizes in shares."""
    b, h = x.shape[0], x
    for i, channels in enumerate((16, 32, WIDTH)):
        h = conv_bn(h, channels, 3, f"conv{i}a", test, stride=2)
        h = conv_bn(h, channels, 3, f"conv{i}b", test)
    h = F.transpose(F.reshape(h, (b, WIDTH, SIDE * SIDE)), (0, 2, 1))
    h = h + get_parameter_or_create("places", (1, SIDE * SIDE, WIDTH), NormalInitializer(0.5))
    h = layer(layer(h, "encoder0"), "encoder1")
    q = F.tile(
        get_parameter_or_create("queries", (1, QUERIES, WIDTH), NormalInitializer(1.0)), (b, 1, 1)
    )
    q = layer(layer(q, "decoder0", h), "decoder1", h)
    q = layer_norm(q, "out")
    boxes = linear(F.relu(linear(q, WIDTH, "hidden")), 4, "box")
    return linear(q, NONE + 1, "class"), F.sigmoid(boxes)


def corners(b):
    """Left, top, right and bottom of centres and sizes."""
    return F.concatenate(b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2, axis=-1)


def giou(a, b):
    """Generalised intersection over union of centres and sizes (B, Q, 4), (B, Q)."""
    a, b = corners(a), corners(b)
    area = [F.prod(v[..., 2:] - v[..., :2], axis=-1) for v in (a, b)]
    wide = F.maximum2(a[..., 2:], b[..., 2:]) - F.minimum2(a[..., :2], b[..., :2])
    both = F.minimum2(a[..., 2:], b[..., 2:]) - F.maximum2(a[..., :2], b[..., :2])
    both, whole = F.prod(F.relu(both), axis=-1), F.prod(wide, axis=-1)
    either = area[0] + area[1] - both
    return both / (either + 1e-6) - (whole - either) / (whole + 1e-6)


def loss_of(x, kinds, boxes):
    """Of pictures and what each query should say; kind NONE has no box."""
    scores, said = network(x, test=False)
    rare = 1 - 0.8 * F.equal_scalar(kinds, NONE)  # most queries say nothing
    each = F.softmax_cross_entropy(scores, F.reshape(kinds, (*kinds.shape, 1)), axis=2)
    there = 1 - F.equal_scalar(kinds, NONE)
    place = 5 * F.sum(F.absolute_error(said, boxes), axis=2) + 2 * (1 - giou(said, boxes))
    return F.sum(rare * F.reshape(each, kinds.shape)) / F.sum(rare) + F.sum(there * place) / F.sum(
        there
    )


def assigned(scores, said, scenes):
    """What each query should say, by the cheapest assignment."""
    from scipy.optimize import linear_sum_assignment

    p = np.exp(scores - scores.max(2, keepdims=True))
    p /= p.sum(2, keepdims=True)
    kinds = np.full(p.shape[:2], NONE)
    boxes = np.full((*p.shape[:2], 4), 0.5, np.float32)
    for i, s in enumerate(scenes):
        wanted = s.boxes / SIZE
        wanted = (
            np.concatenate([wanted[:, :2] + wanted[:, 2:], 2 * (wanted[:, 2:] - wanted[:, :2])], 1)
            / 2
        )
        far = np.abs(said[i][:, None] - wanted).sum(2)
        rows, columns = linear_sum_assignment(5 * far - p[i][:, s.kinds])
        kinds[i, rows], boxes[i, rows] = s.kinds[columns], wanted[columns]
    return kinds, boxes


def run(steps=2000):
    known, held_out = scenes(2000), scenes(100, held_out=True)
    ask = nn.compile(lambda x: network(x, test=False))

    def batch(rng):
        some = [known[i] for i in rng.integers(len(known), size=16)]
        x = np.stack([s.image for s in some])
        return [x, *assigned(*(y.d for y in ask(given(x))), some)]

    fit(loss_of, batch, steps, rate=1e-3)
    truth = [{"boxes": s.boxes, "classes": s.kinds} for s in held_out]
    scores, boxes = answers(lambda x: (F.softmax(network(x)[0], axis=2), corners(network(x)[1])),
                            np.stack([s.image for s in held_out]))  # fmt: skip
    found = [{"boxes": b * SIZE, "classes": p[:, :NONE].argmax(1), "scores": p[:, :NONE].max(1)}
             for p, b in zip(scores, boxes, strict=True)]  # fmt: skip
    ours = coco_average_precision(truth, found)
    plain = coco_average_precision(truth, [pieces(s.image) for s in held_out])
    return {"AP": ours["AP"], "AP50": ours["AP50"], "AP50 of pieces": plain["AP50"]}


if __name__ == "__main__":
    main(run)
