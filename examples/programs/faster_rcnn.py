# SPDX-License-Identifier: Apache-2.0
"""Faster R-CNN learns to find coloured rectangles in pictures of several sizes.

    python examples/programs/faster_rcnn.py [--mode coexecute] [--steps 100] [--size paper]

The step reads values to go on. What the first stage says becomes proposals by numpy (decoding,
sorting, non-maximum suppression); the second stage looks at as many as are left. The size of the
picture is a value that is read, too. Source: Ren et al., arXiv:1506.01497.

Expected, with --mode coexecute:

    loss 6.5116 after 10 steps, 7.4525 after 100
"""

import numpy as np
from common import main
from yolov3 import scene

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.models.convolution import conv_bn

# sizes of pictures, channels, classes, learning rate
SIZES = {
    "small": (((64, 64), (64, 96), (96, 64)), 16, 3, 0.003),
    "paper": (((800, 1024), (1024, 800)), 64, 80, 0.0005),
}
STRIDE = 8  # pixels to a cell of the feature map
SHAPES = np.array([(24, 24), (20, 32), (32, 20)]) / 64  # of anchors, as shares of the shorter side
SCALE = np.array([0.1, 0.1, 0.2, 0.2])  # of what is said about boxes
BEFORE, AFTER, OVERLAP = 32, 24, 0.5  # proposals before and after suppression, and its threshold


def anchors_of(height, width):
    """The boxes that the first stage starts from, (cells A, 4) in pixels."""
    y, x = np.mgrid[STRIDE // 2 : height : STRIDE, STRIDE // 2 : width : STRIDE]
    center = np.stack([x, y, x, y], axis=-1)[:, :, None]
    half = SHAPES * min(height, width) / 2
    return (center + np.concatenate([-half, half], axis=1)).reshape(-1, 4)


def overlap(a, b):
    """Intersection over union of all pairs of boxes (N, 4) and (M, 4): (N, M)."""
    low, high = np.maximum(a[:, None, :2], b[:, :2]), np.minimum(a[:, None, 2:], b[:, 2:])
    both = (high - low).clip(0).prod(2)
    return both / ((a[:, 2:] - a[:, :2]).prod(1)[:, None] + (b[:, 2:] - b[:, :2]).prod(1) - both)


def encoded(boxes, start):
    """Boxes as seen from others: moves and logarithms of sizes, both (N, 4)."""
    size, old = boxes[:, 2:] - boxes[:, :2], start[:, 2:] - start[:, :2]
    move = (boxes[:, :2] + boxes[:, 2:] - start[:, :2] - start[:, 2:]) / 2 / old
    return np.concatenate([move, np.log(size / old)], axis=1) / SCALE


def decoded(said, start):
    """The boxes that `encoded` gives `said` for."""
    size, said = start[:, 2:] - start[:, :2], said * SCALE
    center = (start[:, :2] + start[:, 2:]) / 2 + said[:, :2] * size
    half = size * np.exp(said[:, 2:].clip(-2, 2)) / 2
    return np.concatenate([center - half, center + half], axis=1)


def suppressed(boxes, scores):
    """The boxes with the best scores, without tiny ones and those that overlap a better one."""
    order = scores.argsort()[::-1]
    boxes, kept = boxes[order[(boxes[order, 2:] - boxes[order, :2]).min(1) >= 2]][:BEFORE], []
    overlaps = overlap(boxes, boxes)
    for i in range(len(boxes)):
        if (overlaps[i, kept] < OVERLAP).all():
            kept.append(i)
    return boxes[kept[:AFTER]]


def assigned(starts, boxes, least):
    """For each start the box it overlaps most, and whether that is at least so much."""
    overlaps = overlap(starts, boxes)
    return overlaps.argmax(1), overlaps.max(1) >= least


def pictures(rng, sizes, classes):
    """Endless pictures (1, 3, H, W), their height and width, boxes in pixels, classes from 1 on."""
    while True:
        pixels = sizes[rng.integers(len(sizes))]
        image, boxes, kinds = scene(rng, pixels, classes)
        yield image[None], np.array([pixels]), boxes * np.tile(pixels[::-1], 2), kinds + 1


class FasterRCNN(nn.Module):
    def __init__(self, channels, classes):
        self.channels, self.classes = channels, classes

    def features(self, x):
        for i in range(3):
            x = conv_bn(x, self.channels * 2**i, 3, f"conv{i}", not self.training, stride=2)
        return conv_bn(x, self.channels * 4, 3, "conv3", not self.training)

    def first_stage(self, h):
        """For each anchor: a score (N, 1), and what is said about its box (N, 4)."""
        h = F.relu(PF.convolution(h, self.channels * 4, (3, 3), pad=(1, 1), name="rpn"))
        scores = PF.convolution(h, len(SHAPES), (1, 1), name="rpn_scores")
        boxes = PF.convolution(h, len(SHAPES) * 4, (1, 1), name="rpn_boxes")
        scores, boxes = (F.transpose(y, (0, 2, 3, 1)) for y in (scores, boxes))
        return F.reshape(scores, (-1, 1)), F.reshape(boxes, (-1, 4))

    def second_stage(self, h, proposals):
        """For each proposal: scores of the classes, 0 being none, and what is said of its box."""
        h = F.roi_align(h, proposals, (4, 4), (1 / STRIDE, 1 / STRIDE), sampling_ratio=2)
        h = F.relu(PF.affine(h, self.channels * 8, name="head"))
        return PF.affine(h, 1 + self.classes, name="kinds"), PF.affine(h, 4, name="boxes")


class Program:
    unit, items = "images", 1

    def __init__(self, size):
        self.sizes, channels, self.classes, rate = SIZES[size]
        self.net = FasterRCNN(channels, self.classes)
        h = self.net.features(nn.Variable((1, 3, *self.sizes[0])))  # makes the parameters
        self.net.first_stage(h), self.net.second_stage(h, nn.Variable((1, 5)))
        self.solver = S.Adam(rate)
        self.solver.set_parameters(self.net.get_parameters())
        self.kept = []  # how many proposals there were

    def batches(self, rng):
        return pictures(rng, self.sizes, self.classes)

    def step(self, image, meta, boxes, kinds):
        meta = nn.Variable.from_numpy_array(meta)
        height, width = F.max(meta, axis=0).d.astype(int)
        anchors = anchors_of(height, width)

        h = self.net.features(nn.Variable.from_numpy_array(image))
        scores, said = self.net.first_stage(h)
        which, good = assigned(anchors, boxes, 0.5)
        loss = loss_of_boxes(said, encoded(boxes[which], anchors), good)
        loss += F.mean(F.sigmoid_cross_entropy(scores, variable(good[:, None])))

        proposals = decoded(said.d, anchors).clip(0, (width, height, width, height))
        proposals = suppressed(proposals, scores.d[:, 0])
        self.kept.append(len(proposals))
        proposals = np.concatenate([proposals, boxes])  # so that there is something to learn
        which, good = assigned(proposals, boxes, 0.5)
        rows = np.concatenate([np.zeros((len(proposals), 1)), proposals], axis=1)
        scores, said = self.net.second_stage(h, variable(rows))
        kind = np.where(good, kinds[which], 0)[:, None]
        loss += loss_of_boxes(said, encoded(boxes[which], proposals), good)
        loss += F.mean(F.softmax_cross_entropy(scores, variable(kind)))

        self.solver.zero_grad()
        loss.backward()
        self.solver.update()
        return loss


def variable(array):
    return nn.Variable.from_numpy_array(array.astype(np.float32))


def loss_of_boxes(said, wanted, good):
    """The mean over those that are good."""
    share = np.repeat(good[:, None] / max(1, good.sum()), 4, axis=1)
    return F.sum(F.huber_loss(said, variable(wanted)) * variable(share))


if __name__ == "__main__":
    main(Program)
