# SPDX-License-Identifier: Apache-2.0
"""affine, batch_matmul, embed, convolutions and interpolation against PyTorch, to second order."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.functions import convolution_kernels as kernels
from nnl.functions.convolution import convolution
from nnl.functions.interpolate import interpolate_op
from tests.functions.against_torch import compare

torch = pytest.importorskip("torch")
T = torch.nn.functional
torch.set_num_threads(1)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture(params=[1 << 9, 1 << 13], ids=["rows", "images"])
def tile(request, monkeypatch):
    """Sizes of a tile at which the work is cut into rows, and into images or not at all."""
    monkeypatch.setattr(kernels, "_TILE_BYTES", request.param)
    kernels.geometry.cache_clear()
    yield
    kernels.geometry.cache_clear()


def test_affine(rng):
    x, w, b = rng.normal(size=(3, 4, 5)), rng.normal(size=(20, 6)), rng.normal(size=6)
    compare(F.affine, lambda x, w, b: T.linear(x.flatten(1), w.T, b), x, w, b)
    w = rng.normal(size=(5, 6))
    for shape in ((5,), (3, 5), (3, 4, 5), (2, 3, 4, 5)):  # of the last axis, as torch.nn.Linear
        x = rng.normal(size=shape)
        compare(lambda *a: F.affine(*a, base_axis=-1), lambda x, w, b: T.linear(x, w.T, b), x, w, b)
    x = nn.Variable((2, 3, 5))
    assert PF.affine(x, 6, base_axis=-1, name="last").shape == (2, 3, 6)
    assert nn.get_parameters()["last/affine/W"].shape == (5, 6)


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_batch_matmul(rng, ta, tb):
    a, b = rng.normal(size=(1, 3, 4, 5)), rng.normal(size=(2, 1, 5, 6))
    a, b = (np.swapaxes(v, -1, -2).copy() if t else v for v, t in ((a, ta), (b, tb)))

    def reference(a, b):
        return torch.matmul(a.mT if ta else a, b.mT if tb else b)

    compare(lambda a, b: F.batch_matmul(a, b, ta, tb), reference, a, b)


def test_embed(rng):
    i = np.array([[0, 3, 3], [1, 0, 3]])
    compare(lambda w, i: F.embed(i, w), lambda w, i: w[i], rng.normal(size=(5, 4)), fixed=(i,))


CONVOLUTIONS = [  # spatial sizes, kernel, channels, maps, group, settings
    ((9,), (3,), 4, 6, 2, {"stride": (2,), "pad": (1,)}),
    ((8, 9), (3, 2), 4, 6, 1, {}),
    ((8, 9), (3, 3), 4, 6, 1, {"pad": (1, 2)}),
    ((8, 9), (3, 3), 4, 6, 2, {"stride": (2, 3), "pad": (2, 1)}),
    ((9, 9), (3, 2), 4, 4, 4, {"dilation": (2, 3), "pad": (1, 0)}),
    ((9, 8), (4, 3), 3, 2, 1, {"stride": (2, 1), "dilation": (2, 1)}),
    ((10, 9), (1, 1), 4, 6, 2, {}),
    ((3, 3), (1, 1), 4, 6, 1, {}),
    ((7, 6), (1, 1), 4, 6, 1, {"stride": (2, 2)}),
    ((4, 5, 4), (2, 3, 2), 2, 4, 2, {"stride": (1, 2, 1), "pad": (0, 1, 1)}),
]


def torch_settings(at):
    return {{"pad": "padding"}.get(k, k): v for k, v in at.items()}


@pytest.mark.parametrize("size,kernel,c,o,g,at", CONVOLUTIONS)
def test_convolution(rng, tile, size, kernel, c, o, g, at):
    f = {1: T.conv1d, 2: T.conv2d, 3: T.conv3d}[len(size)]
    x, w, b = (rng.normal(size=s) for s in ((5, c, *size), (o, c // g, *kernel), (o,)))
    compare(
        lambda *a: F.convolution(*a, group=g, **at),
        lambda *a: f(*a, groups=g, **torch_settings(at)),
        *(x, w, b),
    )


@pytest.mark.parametrize("size,kernel,c,o,g,at", CONVOLUTIONS)
def test_channel_last_convolution(rng, size, kernel, c, o, g, at):
    f = {1: T.conv1d, 2: T.conv2d, 3: T.conv3d}[len(size)]
    x, w = rng.normal(size=(5, *size, c)), rng.normal(size=(o, *kernel, c // g))

    def reference(x, w):
        y = f(x.movedim(-1, 1), w.movedim(-1, 1), groups=g, **torch_settings(at))
        return y.movedim(1, -1)

    compare(lambda *a: F.convolution(*a, None, group=g, channel_last=True, **at), reference, x, w)


@pytest.mark.parametrize(
    "size,kernel,c,o,g,at",
    [
        ((7,), (3,), 4, 6, 2, {"stride": (2,), "pad": (1,), "output_padding": (1,)}),
        ((5, 4), (3, 2), 4, 6, 1, {}),
        ((5, 4), (3, 3), 4, 6, 2, {"pad": (1, 2), "dilation": (2, 2)}),
        ((4, 3), (3, 4), 4, 2, 2, {"stride": (3, 2), "output_padding": (2, 0)}),
        ((5, 4), (1, 1), 4, 6, 2, {}),
        ((2, 3, 2), (2, 3, 2), 2, 4, 2, {"stride": (1, 2, 1), "pad": (0, 1, 1)}),
    ],
)
@pytest.mark.parametrize("last", [False, True], ids=["channel_first", "channel_last"])
def test_deconvolution(rng, tile, size, kernel, c, o, g, at, last):
    f = {1: T.conv_transpose1d, 2: T.conv_transpose2d, 3: T.conv_transpose3d}[len(size)]
    x, w, b = (rng.normal(size=s) for s in ((3, c, *size), (c, o // g, *kernel), (o,)))
    if last:
        x, w = (np.moveaxis(v, 1, -1).copy() for v in (x, w))

    def reference(x, w, b):
        if last:
            x, w = x.movedim(-1, 1), w.movedim(-1, 1)
        y = f(x, w, b, groups=g, **torch_settings(at))
        return y.movedim(1, -1) if last else y

    compare(lambda *a: F.deconvolution(*a, group=g, channel_last=last, **at), reference, x, w, b)


def test_depthwise_convolution(rng):
    x, w, b = (rng.normal(size=s) for s in ((2, 3, 7, 6), (6, 3, 2), (6,)))
    compare(
        lambda *a: F.depthwise_convolution(*a, multiplier=2, pad=(1, 0), stride=(2, 1)),
        lambda x, w, b: T.conv2d(x, w[:, None], b, (2, 1), (1, 0), groups=3),
        *(x, w, b),
    )


def test_depthwise_deconvolution(rng):
    x, w, b = (rng.normal(size=s) for s in ((2, 6, 4, 5), (6, 3, 2), (3,)))
    compare(
        lambda *a: F.depthwise_deconvolution(*a, divisor=2, pad=(1, 0), stride=(2, 1)),
        lambda x, w, b: T.conv_transpose2d(x, w[:, None], b, (2, 1), (1, 0), groups=3),
        *(x, w, b),
    )


@pytest.mark.parametrize("size,out", [((5,), (8,)), ((4, 6), (7, 3)), ((3, 2, 4), (5, 3, 6))])
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("last", [False, True], ids=["channel_first", "channel_last"])
def test_linear_interpolation(rng, size, out, align, last):
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(size)]
    x = rng.normal(size=(2, *size, 3) if last else (2, 3, *size))

    def f(x):
        return F.interpolate(
            x, output_size=out, align_corners=align, half_pixel=not align, channel_last=last
        )

    def reference(x):
        y = T.interpolate(x.movedim(-1, 1) if last else x, out, mode=mode, align_corners=align)
        return y.movedim(1, -1) if last else y

    compare(f, reference, x)


@pytest.mark.parametrize("size,out", [((5,), (8,)), ((4, 6), (7, 3)), ((9, 48), (48, 9))])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_interpolation(rng, size, out, mode):
    exact = mode == "nearest-exact"
    compare(
        lambda x: F.interpolate(x, output_size=out, mode="nearest", half_pixel_for_nn=exact),
        lambda x: T.interpolate(x, out, mode=mode),
        rng.normal(size=(2, 3, *size)),
    )


def test_float16_convolution_adds_up_in_float32(rng):
    x, w = rng.normal(size=(2, 8, 6, 6)).astype(np.float16), rng.normal(size=(4, 8, 3, 3))
    w = w.astype(np.float16)
    attrs = convolution.attrs(pad=(1, 1), stride=(1, 1), dilation=(1, 1))
    y = attrs.forward(np, x, w, np.ones(4, np.float16))
    want = T.conv2d(*(torch.tensor(a.astype(np.float32)) for a in (x, w)), padding=1) + 1
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y, want.numpy().astype(np.float16))


def test_interpolation_in_its_file_form_aligns_corners_by_default():
    assert interpolate_op.attrs(output_size=(2,), mode="linear").align_corners
