# SPDX-License-Identifier: Apache-2.0
"""Parts of feature maps, given by boxes, resampled to one size."""

from __future__ import annotations

import math

import numpy as np

from nnl.core.arguments.convert import Spatial
from nnl.core.arrays.spec import ShapeError, Spec, check_rank
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.layout import check_indices
from nnl.functions.on_device import add_at, on_host

CATEGORY = "Layer"

__all__ = ["roi_align"]


def axis_weights(xp, start, length, bins, ratio, size):
    """How the pixels of one axis are averaged over the bins of a box.

    Sampling and averaging are separable: the result is a product with such weights for rows and
    for columns.

    Args:
        start, length: Of the box, in pixels, 0 being the centre of the first pixel.
        ratio: Samples for each bin, at most one per pixel if not positive.
        size: Number of pixels.
    Returns:
        The pixels that count, sorted, and their weights (bins, pixels).
    """
    if ratio <= 0:
        ratio = math.ceil(length / bins)
    if ratio <= 0:
        return xp.zeros(0, np.int64), xp.zeros((bins, 0))
    n = bins * ratio
    step = length / n
    first, count = 0, n
    if step > 0:  # a box may be much larger than the image: only samples near it are looked at
        first = min(max(math.floor((-1 - start) / step) - 1, 0), n)
        count = min(n - first, math.ceil((size + 1) / step) + 3)
    i = first + xp.arange(count, dtype=np.float64)
    p = start + (i + 0.5) * step
    inside = (p >= -1) & (p <= size)
    which = (i[inside] // ratio).astype(np.int64)
    p = xp.clip(p[inside], 0, size - 1)
    low = xp.floor(p).astype(np.int64)
    part = p - low
    pixels = xp.concatenate((low, xp.minimum(low + 1, size - 1)))
    touched, at = xp.unique(pixels, return_inverse=True)
    m = len(touched)
    place = xp.concatenate((which, which)) * m + at
    values = xp.concatenate((1 - part, part)) / ratio
    weights = add_at(xp, place, values, bins * m)
    return touched, weights.reshape(bins, m)


MOST = {"sampling_ratio": 1024}


class RoiAlign:
    """Attributes of roi_align and of its gradient."""

    output_size: Spatial
    spatial_scale: tuple[float, ...] = (1.0, 1.0)
    sampling_ratio: int = -1
    channel_last: bool = False
    follows_order = True

    def channels_first(self, xp, a):
        return xp.moveaxis(a, -1, 1) if self.channel_last else a

    def output_shape(self, shape, boxes):
        channels = shape[-1] if self.channel_last else shape[1]
        if self.channel_last:
            return (boxes, *self.output_size, channels)
        return (boxes, channels, *self.output_size)

    def check(self, x, boxes):
        name = self.op.name
        check_rank(name, "input", x, 4)
        if 0 in (x.shape[1:3] if self.channel_last else x.shape[2:]):
            raise ShapeError(f"{name}: input {x} has no pixels")
        if boxes.ndim != 2 or boxes.shape[1] != 5:
            raise ShapeError(f"{name}: boxes {boxes} must have the shape (K, 5)")
        if len(self.output_size) != 2 or min(self.output_size) < 1:
            raise ValueError(
                f"{name}: output_size is {self.output_size}, wanted a height and a width >= 1"
            )
        if len(self.spatial_scale) != 2:
            raise ValueError(
                f"{name}: spatial_scale is {self.spatial_scale}, wanted factors for y and x"
            )

    def check_boxes(self, boxes, batch):
        """Raise unless all boxes are finite and name an image."""
        if on_host(boxes) and not np.isfinite(boxes).all():
            row = int((~np.isfinite(boxes)).any(1).argmax())
            raise ValueError(f"{self.op.name}: boxes[{row}] is {boxes[row]}, wanted finite numbers")
        check_indices(self.op.name, "boxes[:, 0]", boxes[:, 0].astype(np.int64), 0, batch)

    def each_box(self, xp, boxes, size):
        """(image, rows, their weights, columns, their weights) of every box."""
        scale_y, scale_x = self.spatial_scale
        for box in boxes:
            x0, y0, x1, y1 = box[1:]
            x0, x1 = x0 * boxes.dtype.type(scale_x), x1 * boxes.dtype.type(scale_x)
            y0, y1 = y0 * boxes.dtype.type(scale_y), y1 * boxes.dtype.type(scale_y)
            if not (math.isfinite(x1 - x0) and math.isfinite(y1 - y0)):
                raise ValueError(f"{self.op.name}: the box {box} times spatial_scale is not finite")
            yield (
                int(box[0]),
                *axis_weights(
                    xp, float(y0) - 0.5, float(y1 - y0), self.output_size[0], self.sampling_ratio,
                    size[0],
                ),
                *axis_weights(
                    xp, float(x0) - 0.5, float(x1 - x0), self.output_size[1], self.sampling_ratio,
                    size[1],
                ),
            )  # fmt: skip

    def cost_of(self, x, y):
        # samples for each bin, were the boxes as large as the image
        per_axis = self.sampling_ratio if self.sampling_ratio > 0 else 2
        return Cost(8 * per_axis**2 * y.size, 4 * per_axis**2 * y.nbytes + x.nbytes)


@op("roi_align", at_most=MOST, nnp="RoiAlign")
class roi_align(RoiAlign):
    r"""Resample the parts of feature maps that lie in boxes to one size, by averages.

    Every box is cut into output_size equal bins. A bin is the mean over a grid of samples, which
    are linearly interpolated between the centres of pixels, at $i + 0.5$ for pixel i:
    $$y_{k,c,u,v} = \frac{1}{|S_{u v}|} \sum_{p \in S_{u v}} \sum_{i, j}
      h(p_y - i - 0.5)\, h(p_x - j - 0.5)\, x_{n_k,c,i,j}, \quad h(t) = \max(0, 1 - |t|)$$
    with the samples $S_{u v}$ of bin (u, v) of box k on image $n_k$. A sample up to half a pixel
    outside of the map has the value at its border, further outside 0.

    Args:
        input: (N, C, H, W), or (N, H, W, C) if channel_last.
        boxes: (K, 5), rows (image, x1, y1, x2, y2). No gradient reaches them.
        output_size: (height, width) of the results, in bins.
        spatial_scale: Factors for y and for x from units of boxes to pixels.
        sampling_ratio: Samples for each bin along either axis, at most 1024. If not positive, as
            many as there are pixels, rounded up; then a box of no or negative size gives 0.
        channel_last: Channels are the last axis.
    Returns:
        (K, C, *output_size), or (K, *output_size, C).
    Raises:
        ShapeError: input is not of rank 4, or boxes not (K, 5).
        ValueError: output_size or spatial_scale does not have two valid values, sampling_ratio is
            too large, a box is not finite or names an image that does not exist.
    Source: He et al., Mask R-CNN, arXiv:1703.06870.
    """

    def infer(self, input, boxes):
        self.check(input, boxes)
        return Spec.of(self.output_shape(input.shape, boxes.shape[0]), input.dtype)

    def forward(self, xp, x, boxes, out=None):
        self.check_boxes(boxes, len(x))
        if out is None:
            out = xp.empty(self.output_shape(x.shape, len(boxes)), x.dtype)
        x, y = self.channels_first(xp, x), self.channels_first(xp, out)
        each = self.each_box(xp, boxes, x.shape[2:])
        for k, (n, rows, row_weights, columns, column_weights) in enumerate(each):
            part = x[n][:, rows[:, None], columns]
            part = part @ column_weights.T.astype(x.dtype)
            y[k] = row_weights.astype(x.dtype) @ part
        return out

    def vjp(self, gy, *, boxes, input_spec):
        at = {f: getattr(self, f) for f in RoiAlign.__annotations__}
        return roi_align_backward(gy, boxes, shape=input_spec.shape, **at), None

    def cost(self, input, boxes):
        return self.cost_of(input, self.infer(input, boxes))

    def samples(rng):
        x, grad = rng.normal(size=(2, 3, 6, 8)), (True, False)
        boxes = np.array(
            [[0, 1, 1, 6.3, 5], [1, 0, 0, 8, 6], [1, -3, -3, 2.2, 2.2], [0, 5, 5, 2, 2]]
        )
        for ratio in (-1, 1, 2):
            yield Sample(x, boxes, output_size=(2, 3), sampling_ratio=ratio, grad=grad)
        yield Sample(x, boxes[:3], output_size=(4, 1), spatial_scale=(0.5, 0.75), grad=grad)
        yield Sample(x, boxes, output_size=(2, 3), channel_last=True, grad=grad)
        yield Sample(x, boxes[:0], output_size=(2, 3), grad=grad)


@op("roi_align_backward", outputs=("gx",), at_most=MOST)
class roi_align_backward(RoiAlign):
    """Gradient of `roi_align` for feature maps of the given shape: the transposed linear map."""

    shape: tuple[int, ...] = ()

    def infer(self, gy, boxes):
        gx = gy.with_shape(self.shape)
        self.check(gx, boxes)
        wanted = self.output_shape(self.shape, boxes.shape[0])
        if gy.shape != wanted:
            raise ShapeError(f"roi_align_backward: gy {gy} must have the shape {wanted}")
        return gx

    def forward(self, xp, gy, boxes, out=None):
        if out is None:
            out = xp.empty(self.shape, gy.dtype)
        out[...] = 0
        gx, gy = self.channels_first(xp, out), self.channels_first(xp, gy)
        each = self.each_box(xp, boxes, gx.shape[2:])
        for k, (n, rows, row_weights, columns, column_weights) in enumerate(each):
            part = row_weights.T.astype(gy.dtype) @ gy[k]
            gx[n][:, rows[:, None], columns] += part @ column_weights.astype(gy.dtype)
        return out

    def vjp(self, ggx, *, boxes):
        at = {f: getattr(self, f) for f in RoiAlign.__annotations__}
        return roi_align(ggx, boxes, **at), None

    def cost(self, gy, boxes):
        return self.cost_of(self.infer(gy, boxes), gy)

    def samples(rng):
        boxes = np.array([[0, 1, 1, 6.3, 5], [1, 0, 0, 8, 6], [1, 2, 1, 5, 3]])
        yield Sample(
            rng.normal(size=(3, 2, 2, 3)), boxes, output_size=(2, 3), shape=(2, 2, 6, 8),
            grad=(True, False),
        )  # fmt: skip
