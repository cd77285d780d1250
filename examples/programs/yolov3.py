# SPDX-License-Identifier: Apache-2.0
"""YOLOv3 learns to find coloured rectangles, at three scales.

    python examples/programs/yolov3.py [--mode coexecute] [--steps 100] [--size paper]

Darknet-53, the way up with what the way down left, and a loss for each scale in which boxes that
overlap an object are no false alarm. Source: Redmon and Farhadi, arXiv:1804.02767.

Expected, with --mode coexecute:

    loss 165.9000 after 10 steps, 23.5672 after 100
"""

import numpy as np
from common import main

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.models.convolution import conv_bn

# batch, height and width, channels of the first layer, classes, learning rate
SIZES = {"small": (2, 64, 4, 3, 0.003), "paper": (8, 416, 32, 20, 0.001)}
BLOCKS = (1, 2, 8, 8, 4)  # of Darknet-53, each stage at half the size of the one before
OBJECTS = 3  # in each picture
# width and height of three boxes per scale, the coarsest first, in shares of the picture
ANCHORS = np.array(
    [[(0.28, 0.22), (0.38, 0.48), (0.9, 0.78)], [(0.07, 0.15), (0.15, 0.11), (0.14, 0.29)],
     [(0.02, 0.03), (0.04, 0.07), (0.08, 0.06)]], np.float32
)  # fmt: skip


def scene(rng, pixels, classes, objects=OBJECTS):
    """A picture (3, H, W), boxes (N, 4) as left, top, right and bottom shares, classes (N,)."""
    image = rng.standard_normal((3, *pixels), np.float32) * 0.1
    low = rng.uniform(0, 0.6, (objects, 2))
    boxes = np.concatenate([low, low + rng.uniform(0.15, 0.4, (objects, 2))], axis=1)
    kinds = rng.integers(0, classes, objects)
    edges = (boxes * np.tile(pixels[::-1], 2)).astype(int)
    for (left, top, right, bottom), kind in zip(edges, kinds, strict=True):
        image[kind % 3, top:bottom, left:right] += 1 + kind // 3
    return image, boxes.astype(np.float32), kinds


def wanted(boxes, kinds, cells, scale, classes):
    """What one scale should say, (A, 5 + classes, cells, cells), of one picture.

    The five are x and y in the cell, logarithms of width and height by the anchor's, and 1; all
    are 0 where there is no object whose best anchor this is.
    """
    anchors = ANCHORS.reshape(-1, 2)
    out = np.zeros((3, 5 + classes, cells, cells), np.float32)
    size = boxes[:, 2:] - boxes[:, :2]
    both = np.minimum(size[:, None], anchors).prod(2)
    best = (both / (size.prod(1)[:, None] + anchors.prod(1) - both)).argmax(1)
    for box, kind, a in zip(boxes, kinds, best - 3 * scale, strict=True):
        if 0 <= a < 3:
            center = (box[:2] + box[2:]) / 2 * cells
            column, row = center.astype(int)
            size = np.log((box[2:] - box[:2]) / ANCHORS[scale, a])
            out[a, :5, row, column] = *(center % 1), *size, 1
            out[a, 5 + kind, row, column] = 1
    return out


def scenes(rng, batch, pixels, classes):
    """Endless batches of pictures, all boxes in them, and what three scales should say."""
    while True:
        drawn = [scene(rng, (pixels, pixels), classes) for _ in range(batch)]
        images, boxes, _ = map(np.stack, zip(*drawn, strict=True))
        scales = [
            np.stack([wanted(*found, pixels // stride, i, classes) for _, *found in drawn])
            for i, stride in enumerate((32, 16, 8))
        ]
        yield images, boxes, *scales


def conv(x, channels, kernel, name, stride=1):
    return conv_bn(x, channels, kernel, name, False, stride, activation=leaky)


def leaky(x):
    return F.leaky_relu(x, 0.1)


def darknet53(x, channels):
    """The maps of the last three stages, 8, 16 and 32 times smaller than x."""
    h, maps = conv(x, channels, 3, "stem"), []
    for stage, blocks in enumerate(BLOCKS, 1):
        width = channels * 2**stage
        h = conv(h, width, 3, f"stage{stage}/down", stride=2)
        for i in range(blocks):
            y = conv(h, width // 2, 1, f"stage{stage}/block{i}/in")
            h = h + conv(y, width, 3, f"stage{stage}/block{i}/out")
        maps.append(h)
    return maps[2:]


def yolo(x, channels, classes):
    """What each scale says, (B, A, 5 + classes, H, W), the coarsest first."""
    h, said = None, []
    for scale, way_down in enumerate(reversed(darknet53(x, channels))):
        width = way_down.shape[1] // 2
        if h is None:
            h = way_down
        else:
            h = F.unpooling(conv(h, width, 1, f"scale{scale}/up"), (2, 2))
            h = F.concatenate(h, way_down, axis=1)
        for i in range(2):
            h = conv(h, width, 1, f"scale{scale}/in{i}")
            h = conv(h, 2 * width, 3, f"scale{scale}/out{i}")
        h = conv(h, width, 1, f"scale{scale}/in2")
        y = conv(h, 2 * width, 3, f"scale{scale}/out2")
        y = PF.convolution(y, 3 * (5 + classes), (1, 1), name=f"scale{scale}/said")
        said.append(F.reshape(y, (y.shape[0], 3, 5 + classes, *y.shape[2:])))
    return said


def boxes_of(xy, wh, anchors):
    """What is said at one scale, (B, A, 2, H, W) each, as boxes (B, A H W, 1, 4)."""
    cells = xy.shape[3]
    grid = nn.Variable.from_numpy_array(np.mgrid[:cells, :cells][None, None, ::-1])
    center = (xy + grid) / cells
    half = F.exp(wh) * nn.Variable.from_numpy_array(anchors[None, :, :, None, None] / 2)
    box = F.transpose(F.concatenate(center - half, center + half, axis=2), (0, 1, 3, 4, 2))
    return F.reshape(box, (box.shape[0], -1, 1, 4))


def overlap(a, b):
    """Intersection over union of boxes (..., 4)."""
    low, high = F.maximum2(a[..., :2], b[..., :2]), F.minimum2(a[..., 2:], b[..., 2:])
    both = F.prod(F.relu(high - low), axis=-1)
    area_a, area_b = (F.prod(x[..., 2:] - x[..., :2], axis=-1) for x in (a, b))
    return both / (area_a + area_b - both)


def loss_of_scale(said, wanted, boxes, anchors):
    """Sum over what is said, mean over pictures."""
    there, alarm = wanted[:, :, 4:5], said[:, :, 4:5]
    xy, wh = F.sigmoid(said[:, :, :2]), said[:, :, 2:4]
    best = F.max(overlap(boxes_of(xy.unlinked(), wh.unlinked(), anchors), boxes), axis=2)
    counts = F.maximum2(F.reshape(F.less_scalar(best, 0.5), there.shape), there)
    place = F.squared_error(xy, wanted[:, :, :2]) + F.squared_error(wh, wanted[:, :, 2:4])
    kind = F.sigmoid_cross_entropy(said[:, :, 5:], wanted[:, :, 5:])
    loss = F.sum(counts * F.sigmoid_cross_entropy(alarm, there))
    return (loss + F.sum(there * place) + F.sum(there * kind)) / said.shape[0]


class Program:
    unit = "images"

    def __init__(self, size):
        self.items, self.pixels, self.channels, self.classes, rate = SIZES[size]
        self.network(nn.Variable((self.items, 3, self.pixels, self.pixels)))  # makes parameters
        self.solver = S.Adam(rate)
        self.solver.set_parameters(nn.get_parameters())

    def batches(self, rng):
        return scenes(rng, self.items, self.pixels, self.classes)

    def network(self, x):
        return yolo(x, self.channels, self.classes)

    def step(self, image, boxes, *wanted):
        said = self.network(nn.Variable.from_numpy_array(image))
        boxes = nn.Variable.from_numpy_array(boxes[:, None])
        losses = []
        for y, t, anchors in zip(said, wanted, ANCHORS, strict=True):
            losses.append(loss_of_scale(y, nn.Variable.from_numpy_array(t), boxes, anchors))
        loss = sum(losses)
        self.solver.zero_grad()
        loss.backward()
        self.solver.update()
        return loss


if __name__ == "__main__":
    main(Program)
