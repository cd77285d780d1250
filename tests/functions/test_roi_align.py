# SPDX-License-Identifier: Apache-2.0
"""roi_align against samples read by PyTorch's grid_sample, and what it refuses."""

import math

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.ops.op import OPS
from nnl.ext_utils import get_extension_context

V = nn.Variable.from_numpy_array
BOXES = np.array([[0, 1, 1, 6.3, 5], [1, 0.6, 0.7, 7.1, 5.2], [1, 2, 0.5, 2.5, 4], [0, 5, 4, 2, 2]])


@pytest.mark.parametrize("ratio,scale", [(1, (1.0, 1.0)), (3, (1.0, 1.0)), (-1, (0.9, 1.05))])
def test_is_the_mean_of_samples_of_the_image(ratio, scale):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    rng = np.random.default_rng(0)
    bins, x = (2, 3), rng.normal(size=(2, 3, 6, 8))
    boxes = BOXES[: 4 if ratio > 0 else 3]

    def samples(low, high, n):
        r = ratio if ratio > 0 else math.ceil((high - low) / n)
        return low - 0.5 + (torch.arange(n * r, dtype=torch.float64) + 0.5) * (high - low) / (
            n * r
        ), r

    def reference(x):
        results = []
        for n, x0, y0, x1, y1 in boxes:
            rows, ry = samples(y0 * scale[0], y1 * scale[0], bins[0])
            columns, rx = samples(x0 * scale[1], x1 * scale[1], bins[1])
            grid = torch.stack(
                torch.meshgrid(columns * 2 / 7 - 1, rows * 2 / 5 - 1, indexing="xy"), -1
            )
            image = x[int(n)][None]
            y = torch.nn.functional.grid_sample(image, grid[None], "bilinear", "border", True)
            results.append(torch.nn.functional.avg_pool2d(y, (ry, rx))[0])
        return torch.stack(results)

    def f(x):
        return F.roi_align(x, V(boxes), bins, scale, ratio)

    compare(f, reference, x, order=1)


def boxes_anywhere(rng, n, images, height, width):
    """Inside, across the borders, outside, tiny, huge, turned around."""
    start = rng.uniform(-0.5, 1.2, (n, 2)) * (width, height)
    size = rng.choice([-0.3, 0.0, 0.05, 0.5, 1.0, 40.0], (n, 2)) * (width, height)
    size *= rng.uniform(0.5, 1.0, (n, 2))
    return np.concatenate([rng.integers(0, images, (n, 1)), start, start + size], axis=1)


@pytest.mark.parametrize("bins,ratio", [((4, 4), 2), ((1, 7), -1), ((3, 2), 1)])
@pytest.mark.parametrize("channels,channel_last", [(3, False), (80, False), (19, True)])
def test_native_kernels_do_what_the_definition_does(bins, ratio, channels, channel_last):
    rng = np.random.default_rng(channels)
    shape = (2, 13, 9, channels) if channel_last else (2, channels, 13, 9)
    x, boxes = rng.normal(size=shape), boxes_anywhere(rng, 60, 2, 13, 9)
    found = {}
    for name in ("numpy", "cpu"):
        with nn.context_scope(get_extension_context(name)), nn.auto_forward():
            v = V(x)
            v.need_grad = True
            y = F.roi_align(v, V(boxes), bins, (1.0, 0.9), ratio, channel_last)
            y.backward(np.random.default_rng(1).normal(size=y.shape))
            found[name] = y.d, v.g
    for want, got in zip(*found.values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * abs(want).max())


def test_samples_more_than_half_a_pixel_outside_are_0():
    x, boxes = np.ones((1, 1, 4, 4)), np.array([[0, -4, 1, 4, 3]])
    with nn.auto_forward():
        y = F.roi_align(V(x), V(boxes), (1, 8), sampling_ratio=1)
    np.testing.assert_array_equal(y.d.ravel(), [0, 0, 0, 1, 1, 1, 1, 1])


def test_channel_last_is_the_same_with_axes_moved():
    x = np.random.default_rng(0).normal(size=(2, 3, 6, 8))
    with nn.auto_forward():
        y = F.roi_align(V(x), V(BOXES), (2, 3))
        z = F.roi_align(V(np.moveaxis(x, 1, -1)), V(BOXES), (2, 3), channel_last=True)
    np.testing.assert_allclose(np.moveaxis(z.d, -1, 1), y.d, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "x,boxes,at,text",
    [
        ((3, 6, 8), (1, 5), {}, "input .* has rank 3, wanted 4"),
        ((1, 3, 0, 8), (1, 5), {}, "has no pixels"),
        ((1, 3, 6, 8), (1, 4), {}, r"boxes float32\[1, 4\] must have the shape \(K, 5\)"),
        ((1, 3, 6, 8), (1, 5), {"output_size": (2,)}, r"output_size is \(2,\), wanted a height"),
        ((1, 3, 6, 8), (1, 5), {"output_size": (0, 2)}, r"output_size is \(0, 2\), wanted"),
        ((1, 3, 6, 8), (1, 5), {"spatial_scale": (1.0,)}, r"spatial_scale is \(1.0,\), wanted"),
    ],
)
def test_errors_name_what_came_and_what_was_wanted(x, boxes, at, text):
    with pytest.raises(ValueError, match=f"^roi_align: .*{text}"):
        F.roi_align(V(np.zeros(x)), V(np.zeros(boxes)), **{"output_size": (2, 2), **at})


@pytest.mark.parametrize(
    "box,text",
    [
        ([2, 0, 0, 1, 1], r"boxes\[:, 0\] has the value 2, wanted 0 <= value < 2"),
        ([0, 0, np.nan, 1, 1], r"boxes\[0\] is \[.*nan.*\], wanted finite numbers"),
        ([0, 0, -3e38, 1, 3e38], r".*is not finite$"),
    ],
)
def test_values_of_boxes_are_checked(box, text):
    y = F.roi_align(V(np.zeros((2, 1, 3, 3))), V(np.array([box], float)), (1, 1))
    with pytest.raises(ValueError, match=rf"^roi_align \(test_roi_align.py:\d+\): {text}"):
        y.forward()


def test_the_gradient_wants_the_shape_of_the_result():
    gy, boxes = V(np.zeros((1, 3, 2, 2))), V(np.zeros((1, 5)))
    at = {"output_size": (2, 2), "spatial_scale": (1.0, 1.0), "sampling_ratio": 1}
    backward = OPS["roi_align_backward"]
    with pytest.raises(ValueError, match=r"^roi_align_backward: gy .* must have the shape \(1, 4,"):
        backward(gy, boxes, shape=(2, 4, 6, 8), **at)
    with pytest.raises(ValueError, match="^roi_align_backward: input .* has no pixels"):
        backward(gy, boxes, shape=(2, 3, 0, 8), **at)
