# SPDX-License-Identifier: Apache-2.0
"""Detection with CenterNet: objects as points, with the sizes of their boxes.

A network gives, for each 4 x 4 pixels and each class, whether the centre of an object lies there,
and how large it is; what is highest among its neighbours is an object. Beside: pieces of the
picture that differ from its border's colours. Source: Zhou et al., arXiv:1904.07850. Expected
(average precision of COCO, and at half of the overlap):

    {"AP": 0.5254, "AP50": 0.846, "AP50 of pieces": 0.0045, "seconds": 200}
"""

import numpy as np
from common import answers, fit, main, some
from scenes import KINDS, scenes

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.metrics import coco_average_precision
from nnl.models import unet

SIZE, STRIDE = 48, 4
CELLS = SIZE // STRIDE


def wanted(boxes, kinds):
    """Heat (3, CELLS, CELLS), 1 at centres and less around; offsets and sizes (4, ...); a mask."""
    heat = np.zeros((len(KINDS), CELLS, CELLS), np.float32)
    place, there = np.zeros((4, CELLS, CELLS), np.float32), np.zeros((1, CELLS, CELLS), np.float32)
    y, x = np.mgrid[:CELLS, :CELLS]
    for (left, top, right, bottom), kind in zip(boxes / STRIDE, kinds, strict=True):
        cx, cy = (left + right) / 2, (top + bottom) / 2
        column, row = min(int(cx), CELLS - 1), min(int(cy), CELLS - 1)
        spread = max((right - left + bottom - top) / 12, 0.5)
        near = np.exp(-((x - column) ** 2 + (y - row) ** 2) / (2 * spread**2))
        heat[kind] = np.maximum(heat[kind], near)
        place[:, row, column] = cx - column, cy - row, right - left, bottom - top
        there[:, row, column] = 1
    return heat, place, there


def network(x, test=True):
    """Scores of centres (B, 3, CELLS, CELLS), and places (B, 4, CELLS, CELLS)."""
    with nn.parameter_scope("centernet"):
        h = F.relu(unet(x, num_classes=32, channels=8, depth=3, test=test))
        h = PF.convolution(h, 32, (STRIDE, STRIDE), stride=(STRIDE, STRIDE), name="cells")
        h = F.relu(h)
        # rare at first, as most cells are empty
        y = PF.convolution(h, len(KINDS), (1, 1), name="heat") - 2.2
        return y, PF.convolution(h, 4, (1, 1), name="place")


def loss_of(x, heat, place, there):
    scores, places = network(x, test=False)
    p = F.sigmoid(scores)
    centre = F.greater_equal_scalar(heat, 1.0)
    hit = centre * (1 - p) ** 2 * F.log_sigmoid(scores)
    miss = (1 - centre) * (1 - heat) ** 4 * p**2 * F.log_sigmoid(-scores)
    size = there * F.absolute_error(places, place)
    return (0.2 * F.sum(size) - F.sum(hit + miss)) / F.sum(there)


def found(x, most=10):
    """Boxes, classes and scores of the objects of pictures."""

    def peaks(images):
        scores, places = network(images)
        p = F.sigmoid(scores)
        return p * F.equal(p, F.max_pooling(p, (3, 3), stride=(1, 1), pad=(1, 1))), places

    heat, places = answers(peaks, x)
    for p, place in zip(heat, places, strict=True):
        best = np.argsort(-p, axis=None)[:most]
        kind, row, column = np.unravel_index(best, p.shape)
        dx, dy, w, h = place[:, row, column]
        centre, half = np.stack([column + dx, row + dy], 1), np.stack([w, h], 1) / 2
        boxes = STRIDE * np.concatenate([centre - half, centre + half], 1)
        yield {"boxes": boxes, "classes": kind, "scores": p.flat[best]}


def pieces(image):
    """What differs from the border, in connected pieces, all of them discs."""
    from scipy.ndimage import find_objects, label

    border = np.concatenate(
        [image[:, [0, -1]].reshape(3, -1), image[:, :, [0, -1]].reshape(3, -1)], 1
    )
    away = np.abs(image - np.median(border, 1)[:, None, None]).sum(0) > 0.5
    objects = find_objects(label(away)[0])
    boxes = np.array([[c.start, r.start, c.stop, r.stop] for r, c in objects], float)
    boxes = boxes.reshape(-1, 4)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return {"boxes": boxes, "classes": np.zeros(len(boxes), int), "scores": area / SIZE**2}


def run(steps=1500):
    known, held_out = scenes(2000), scenes(100, held_out=True)
    rows = [(s.image, *wanted(s.boxes, s.kinds)) for s in known]
    batch = some(16, *map(np.stack, zip(*rows, strict=True)))
    fit(loss_of, batch, steps, rate=4e-3, scope="centernet")
    truth = [{"boxes": s.boxes, "classes": s.kinds} for s in held_out]
    ours = coco_average_precision(truth, list(found(np.stack([s.image for s in held_out]))))
    plain = coco_average_precision(truth, [pieces(s.image) for s in held_out])
    return {"AP": ours["AP"], "AP50": ours["AP50"], "AP50 of pieces": plain["AP50"]}


if __name__ == "__main__":
    main(run)
