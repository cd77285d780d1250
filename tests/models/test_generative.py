# SPDX-License-Identifier: Apache-2.0
"""Generators and discriminators: published numbers of parameters, and what PyTorch computes."""

import numpy as np
import pytest

import nnl as nn
from nnl.converters.weights import load_weights
from nnl.core.arrays.spec import ShapeError
from nnl.core.parameters.parameter import without_values
from nnl.models import generative as G

rng = np.random.default_rng(0)


def images(size, batch=1, colors=3):
    return nn.Variable((batch, colors, size, size))


def styles(config):
    with nn.parameter_scope(""):
        w = G.stylegan2_mapping(nn.Variable((1, 512)), config)
        return G.stylegan2_synthesis(w, config)


# As published code prints them: pytorch-CycleGAN-and-pix2pix in millions (54,414,019 and 2,769,601
# of pix2pix); yunjey's StarGAN; RRDBNet of BasicSR; train.py of stylegan2-ada-pytorch for images of
# 1024 x 1024 (28,794,124 with two layers of 262,656 in its mapping; here are eight). The last two:
# table 2 of the paper on progressive growing.
COUNTS = {
    "pix2pix": (lambda: G.pix2pix_generator(images(256)), 54.414),
    "patches": (lambda: G.patch_discriminator(images(256, colors=6)), 2.769),
    "cyclegan": (lambda: G.resnet_generator(images(256)), 11.378),
    "patches of cyclegan": (lambda: G.patch_discriminator(images(256), norm="instance"), 2.765),
    "stargan": (lambda: G.stargan_generator(images(128), nn.Variable((1, 5))), 8.430528),
    "stargan discriminator": (lambda: G.stargan_discriminator(images(128), 5), 44.762048),
    "esrgan": (lambda: G.rrdb_net(images(8)), 16.697987),
    "stylegan2": (lambda: styles(G.StyleGAN2()), 30.370060),
    "stylegan2 discriminator": (
        lambda: G.stylegan2_discriminator(images(1024), G.StyleGAN2()),
        29.012513,
    ),
    "progressive": (lambda: G.progressive_generator(nn.Variable((1, 512)), 1024), 23.1),
    "progressive discriminator": (lambda: G.progressive_discriminator(images(1024)), 23.1),
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_count_is_the_published_one(name):
    build, published = COUNTS[name]
    with without_values():
        build()
    count = sum(v.size for v in nn.get_parameters().values()) / 1e6
    digits = len(str(published).partition(".")[2])
    assert round(count, digits) == published


def draw(*shape):
    return rng.normal(size=shape).astype(np.float32)


def as_torch(scope=""):
    torch = pytest.importorskip("torch")
    found = nn.get_parameters(grad_only=False).items()
    return {k: torch.tensor(v.d) for k, v in found if k.startswith(scope)}


def test_esrgan_gives_what_pytorch_gives_with_weights_of_a_file(tmp_path):
    torch = pytest.importorskip("torch")
    nnf = torch.nn.functional
    x = nn.Variable.from_numpy_array(draw(1, 3, 6, 5))
    with nn.auto_forward():
        G.rrdb_net(x, 8, 2, 4)
        state = {
            k.replace("/", "."): torch.tensor(draw(*v.shape) * 0.2)
            for k, v in nn.get_parameters().items()
        }
        torch.save({"params_ema": state}, tmp_path / "net.pth")
        names = {f"params_ema.{k}": k.replace(".", "/") for k in state}
        load_weights(tmp_path / "net.pth", names, only_known=True)
        y = G.rrdb_net(x, 8, 2, 4)

    def conv(h, name):
        return nnf.conv2d(h, state[f"{name}.weight"], state[f"{name}.bias"], padding=1)

    def dense(h, name):
        parts = [h]
        for i in range(1, 5):
            parts.append(nnf.leaky_relu(conv(torch.cat(parts, 1), f"{name}.conv{i}"), 0.2))
        return h + 0.2 * conv(torch.cat(parts, 1), f"{name}.conv5")

    first = conv(torch.tensor(x.d), "conv_first")
    h = first
    for i in range(2):
        inner = h
        for j in (1, 2, 3):
            inner = dense(inner, f"body.{i}.rdb{j}")
        h = h + 0.2 * inner
    h = first + conv(h, "conv_body")
    for name in ("conv_up1", "conv_up2"):
        h = nnf.leaky_relu(conv(nnf.interpolate(h, scale_factor=2), name), 0.2)
    want = conv(nnf.leaky_relu(conv(h, "conv_hr"), 0.2), "conv_last").numpy()
    np.testing.assert_allclose(y.d, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())


CONFIG = G.StyleGAN2(16, 12, 3, base=128, most=16, clamp=2.0)


def upfirdn(x, up=1, down=1, pad=(0, 0), gain=1.0):
    """Zeros between pixels, padding, the filter, every down-th pixel: as it is defined."""
    import torch

    b, c, h, w = x.shape
    stuffed = torch.zeros(b, c, h * up, w * up)
    stuffed[:, :, ::up, ::up] = x
    stuffed = torch.nn.functional.pad(stuffed, (*pad, *pad))
    taps = torch.tensor([1.0, 3, 3, 1]) / 8
    taps = torch.outer(taps, taps)[None, None].repeat(c, 1, 1, 1) * gain
    return torch.nn.functional.conv2d(stuffed, taps, groups=c)[:, :, ::down, ::down]


def torch_synthesis(p, w):
    """The equations of the paper, with weights of every sample of their own."""
    import torch

    nnf = torch.nn.functional

    def affine(style, name):
        a = p[f"{name}/affine/weight"]
        return style @ a.T / a.shape[1] ** 0.5 + p[f"{name}/affine/bias"]

    def modulated(x, style, name, up=False):
        k = p[f"{name}/weight"][None] * affine(style, name)[:, None, :, None, None]
        k = k / (k.square().sum((2, 3, 4), keepdim=True) + 1e-8).sqrt()
        rows = []
        for image, kernel in zip(x[:, None], k, strict=True):
            if up:
                big = nnf.conv_transpose2d(image, kernel.transpose(0, 1), stride=2)
                rows.append(upfirdn(big, pad=(1, 1), gain=4))
            else:
                rows.append(nnf.conv2d(image, kernel, padding=1))
        h = torch.cat(rows) + p[f"{name}/noise_const"] * p[f"{name}/noise_strength"]
        h = nnf.leaky_relu(h + p[f"{name}/bias"][:, None, None], 0.2) * 2**0.5
        return h.clamp(-2, 2)

    def colors(x, style, name):
        k = p[f"{name}/weight"]
        x = x * affine(style, name)[:, :, None, None] / k.shape[1] ** 0.5
        return nnf.conv2d(x, k, p[f"{name}/bias"]).clamp(-2, 2)

    ws = iter(w.unbind(1))
    x = p["synthesis/b4/const"][None].repeat(len(w), 1, 1, 1)
    x = modulated(x, next(ws), "synthesis/b4/conv1")
    style = image = None
    for size in (4, 8, 16):
        at = f"synthesis/b{size}"
        if size > 4:
            x = modulated(x, style, f"{at}/conv0", up=True)  # of the one before, which made colours
            x = modulated(x, next(ws), f"{at}/conv1")
        style = next(ws)
        made = colors(x, style, f"{at}/torgb")
        image = made if size == 4 else made + upfirdn(image, up=2, pad=(2, 1), gain=4)
    return image


def torch_discriminator(p, x):
    import torch

    nnf = torch.nn.functional

    def act(h, gain=1.0):
        return (nnf.leaky_relu(h, 0.2) * 2**0.5 * gain).clamp(-2 * gain, 2 * gain)

    def conv(h, name, pad, stride=1):
        w = p[f"{name}/weight"]
        w = w / w[0].numel() ** 0.5
        return nnf.conv2d(h, w, p.get(f"{name}/bias"), padding=pad, stride=stride)

    def linear(h, name):
        w = p[f"{name}/weight"]
        return h @ w.T / w.shape[1] ** 0.5 + p[f"{name}/bias"]

    x = act(conv(x, "b16/fromrgb", 0))
    for size in (16, 8):
        side = conv(upfirdn(x, down=2, pad=(1, 1)), f"b{size}/skip", 0) * 0.5**0.5
        x = act(conv(x, f"b{size}/conv0", 1))
        x = act(conv(upfirdn(x, pad=(2, 2)), f"b{size}/conv1", 0, 2), 0.5**0.5)
        x = side + x
    spread = x.reshape(4, -1, *x.shape[1:])
    spread = (spread - spread.mean(0)).square().mean(0).add(1e-8).sqrt().mean((1, 2, 3))
    spread = spread.repeat(4)[:, None, None, None].expand(-1, 1, 4, 4)
    x = act(conv(torch.cat([x, spread], 1), "b4/conv", 1)).flatten(1)
    h = nnf.leaky_relu(linear(x, "b4/fc"), 0.2) * 2**0.5
    return linear(h, "b4/out")


def filled():
    for k, v in nn.get_parameters(grad_only=False).items():
        if not k.endswith("weight") and not k.endswith("const"):
            v.d = draw(*v.shape) * 0.3 + v.d


def test_stylegan2_gives_what_its_equations_give_in_pytorch():
    torch = pytest.importorskip("torch")
    nnf = torch.nn.functional
    z = draw(3, 12)
    with nn.auto_forward():
        w = G.stylegan2_mapping(nn.Variable.from_numpy_array(z), CONFIG)
        G.stylegan2_synthesis(w, CONFIG, "const")
        filled()
        w = G.stylegan2_mapping(nn.Variable.from_numpy_array(z), CONFIG, truncation=0.7)
        mixed = nn.Variable.from_numpy_array(w.d + draw(3, 6, 12))  # another style in each layer
        y = G.stylegan2_synthesis(mixed, CONFIG, "const")
    p = as_torch()
    h = torch.tensor(z)
    h = h / (h.square().mean(1, keepdim=True) + 1e-8).sqrt()
    for i in range(3):
        weight, bias = p[f"mapping/fc{i}/weight"], p[f"mapping/fc{i}/bias"]
        h = nnf.leaky_relu(h @ weight.T * 0.01 / 12**0.5 + bias * 0.01, 0.2) * 2**0.5
    want = p["mapping/w_avg"].lerp(h, 0.7)
    np.testing.assert_allclose(w.d[:, 2], want.numpy(), rtol=1e-3, atol=1e-5)
    want = torch_synthesis(p, torch.tensor(mixed.d)).numpy()
    np.testing.assert_allclose(y.d, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())


def test_stylegan2_discriminator_gives_what_its_equations_give_in_pytorch():
    torch = pytest.importorskip("torch")
    x = draw(8, 3, 16, 16)
    with nn.auto_forward():
        given = nn.Variable.from_numpy_array(x)
        G.stylegan2_discriminator(given, CONFIG)
        filled()
        y = G.stylegan2_discriminator(given, CONFIG)
    want = torch_discriminator(as_torch(), torch.tensor(x)).numpy()
    np.testing.assert_allclose(y.d, want, rtol=1e-3, atol=1e-4)


def test_networks_grow_from_what_they_were():
    """With a share of 0, the new layers change nothing but the size."""
    z, x = (
        nn.Variable.from_numpy_array(draw(2, 8)),
        nn.Variable.from_numpy_array(draw(2, 3, 16, 16)),
    )
    fade = nn.Variable.from_numpy_array(np.zeros(1, np.float32))
    sizes = {"base": 64, "most": 8}
    with nn.auto_forward(), nn.parameter_scope("generator"):
        small = G.progressive_generator(z, 8, **sizes).d
        large = G.progressive_generator(z, 16, fade, **sizes).d
    np.testing.assert_allclose(large, small.repeat(2, 2).repeat(2, 3), rtol=1e-5, atol=1e-6)
    half = nn.Variable.from_numpy_array(x.d.reshape(2, 3, 8, 2, 8, 2).mean((3, 5)))
    with nn.auto_forward(), nn.parameter_scope("discriminator"):
        want = G.progressive_discriminator(half, **sizes).d
        found = G.progressive_discriminator(x, fade, **sizes).d
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: G.pix2pix_generator(images(24), depth=4), ShapeError, "in multiples of 16"),
        (lambda: G.resnet_generator(images(10)), ShapeError, "sizes in multiples of 4"),
        (lambda: G.stargan_discriminator(images(24), 2), ShapeError, "squares of a multiple of 64"),
        (lambda: G.StyleGAN2(12), ValueError, "resolution is 12, wanted a power of 2 from 8"),
        (lambda: G.stylegan2_mapping(nn.Variable((1, 3)), CONFIG), ShapeError, r"wanted \(B, 12\)"),
        (
            lambda: G.stylegan2_synthesis(nn.Variable((1, 3, 12)), CONFIG),
            ShapeError,
            r"wanted \(B, 6, 12\)",
        ),
        (
            lambda: G.stylegan2_synthesis(nn.Variable((1, 6, 12)), CONFIG, "odd"),
            ValueError,
            "noise is 'odd', wanted random",
        ),
        (
            lambda: G.stylegan2_discriminator(images(16, 6), CONFIG),
            ShapeError,
            "B below 5 or a multiple of 4",
        ),
        (lambda: G.progressive_generator(nn.Variable((1, 4)), 6), ValueError, "6 pixels a side"),
        (lambda: G.progressive_discriminator(images(8, 6)), ShapeError, "a batch below 5 or a mul"),
    ],
)
def test_bad_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()
