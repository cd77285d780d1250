# SPDX-License-Identifier: Apache-2.0
"""deformable_convolution against PyTorch's grid_sample, and what it refuses."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError

V = nn.Variable.from_numpy_array


def inputs(stride=(1, 1), pad=(1, 1), dilation=(1, 1), groups=1, group=1, seed=0):
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(2, 4, 6, 5)), rng.normal(size=(6, 4 // group, 3, 2))
    out = tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip((6, 5), pad, dilation, (3, 2), stride, strict=True)
    )
    offset = rng.normal(size=(2, groups * 12, *out)) * 2
    return x, w, offset, rng.normal(size=(2, groups * 6, *out)), rng.normal(size=6)


@pytest.mark.parametrize(
    "at",
    [
        {"pad": (1, 1)},
        {"pad": (2, 0), "stride": (2, 1), "dilation": (1, 2)},
        {"pad": (1, 1), "group": 2, "deformable_group": 2},
        {"pad": (0, 1), "deformable_group": 4},
    ],
)
def test_equals_a_sum_over_taps_of_sampled_images(at):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    groups, group = at.get("deformable_group", 1), at.get("group", 1)
    pad, stride, dilation = (
        at.get(k, (v, v)) for k, v in (("pad", 0), ("stride", 1), ("dilation", 1))
    )
    arrays = inputs(stride, pad, dilation, groups, group)

    def reference(x, w, offset, mask, b):
        n, c, h, width = x.shape
        out = offset.shape[2:]
        offset = offset.reshape(n, groups, 6, 2, *out)
        mask = mask.reshape(n, groups, 6, 1, *out)
        columns = []
        for k in range(6):
            ky, kx = divmod(k, 2)
            rows = torch.arange(out[0])[:, None] * stride[0] - pad[0] + ky * dilation[0]
            cols = torch.arange(out[1])[None] * stride[1] - pad[1] + kx * dilation[1]
            parts = []
            for g in range(groups):
                grid = torch.stack(
                    (
                        (cols + offset[:, g, k, 1]) * 2 / (width - 1) - 1,
                        (rows + offset[:, g, k, 0]) * 2 / (h - 1) - 1,
                    ),
                    -1,
                )
                image = x[:, g * c // groups : (g + 1) * c // groups]
                part = torch.nn.functional.grid_sample(image, grid, align_corners=True)
                parts.append(part * mask[:, g, k])
            columns.append(torch.cat(parts, 1))
        columns = torch.stack(columns, 2).reshape(n, group, c // group * 6, -1)
        weight = w.reshape(1, group, 6 // group, -1)
        return (weight @ columns).reshape(n, 6, *out) + b[:, None, None]

    # PyTorch cannot differentiate the gradient of grid_sample; the derived tests check that
    compare(lambda *a: F.deformable_convolution(*a, **at), reference, *arrays, order=1)


@pytest.mark.parametrize("size,kernel", [((7,), (3,)), ((6, 5), (3, 2)), ((4, 3, 5), (2, 1, 3))])
def test_is_a_convolution_when_nothing_moves(size, kernel):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 4, *size)), rng.normal(size=(6, 2, *kernel))
    at = {"pad": (1,) * len(size), "stride": (2,) * len(size), "group": 2}
    with nn.auto_forward():
        want = F.convolution(V(x), V(w), **at)
        taps = len(size) * np.prod(kernel)
        offset = np.zeros((2, taps, *want.shape[2:]))
        y = F.deformable_convolution(V(x), V(w), V(offset), **at)
    np.testing.assert_allclose(y.d, want.d, rtol=1e-5, atol=1e-5)


def test_channel_last_is_the_same_with_axes_moved():
    x, w, offset, mask, b = inputs()
    with nn.auto_forward():
        y = F.deformable_convolution(*map(V, (x, w, offset, mask, b)), pad=(1, 1))
        last = [np.moveaxis(a, 1, -1) for a in (x, w, offset, mask)]
        z = F.deformable_convolution(*map(V, (*last, b)), pad=(1, 1), channel_last=True)
    np.testing.assert_allclose(np.moveaxis(z.d, -1, 1), y.d, rtol=1e-5, atol=1e-5)


def test_offsets_of_the_size_of_x_are_read_at_multiples_of_the_stride():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(1, 2, 6, 5)), rng.normal(size=(3, 2, 1, 1))
    offset, mask = rng.normal(size=(1, 2, 6, 5)), rng.normal(size=(1, 1, 6, 5))
    with nn.auto_forward():
        large = F.deformable_convolution(V(x), V(w), V(offset), V(mask), stride=(2, 3))
        offset, mask = offset[:, :, ::2, ::3], mask[:, :, ::2, ::3]
        small = F.deformable_convolution(V(x), V(w), V(offset), V(mask), stride=(2, 3))
    np.testing.assert_array_equal(large.d, small.d)


@pytest.mark.parametrize(
    "change,at,text",
    [
        (
            {2: (2, 11, 6, 6)},
            {},
            r"offset float32\[2, 11, 6, 6\] must have the shape \(2, 12, 6, 6\)",
        ),
        ({3: (2, 6, 3, 3)}, {}, r"mask float32\[2, 6, 3, 3\] must have the shape \(2, 6, 6, 6\)"),
        ({4: (5,)}, {}, r"bias float32\[5\] must have the shape \(6,\)"),
        ({}, {"deformable_group": 3}, "has 4 channels, not a multiple of deformable_group 3"),
        ({}, {"deformable_group": 0}, "deformable_group is 0, wanted >= 1"),
        ({}, {"group": 2}, "has 4 channels, .* takes 4 x group 2"),
    ],
)
def test_errors_name_what_came_and_what_was_wanted(change, at, text):
    arrays = [np.zeros(change.get(i, a.shape)) for i, a in enumerate(inputs())]
    with pytest.raises(ValueError, match=f"deformable_convolution: .*{text}"):
        F.deformable_convolution(*map(V, arrays), pad=(1, 1), **at)


def test_offsets_of_the_size_of_x_must_reach_the_last_result():
    # 1 x 1 kernel with padding: the last result lies outside of x
    x, w, offset = np.zeros((1, 1, 4, 4)), np.zeros((1, 1, 1, 1)), np.zeros((1, 2, 4, 4))
    text = r"offset float32\[1, 2, 4, 4\] must have the shape \(1, 2, 6, 6\) for x"
    with pytest.raises(ShapeError, match=text):
        F.deformable_convolution(V(x), V(w), V(offset), pad=(1, 1))
