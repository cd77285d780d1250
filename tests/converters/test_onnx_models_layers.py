# SPDX-License-Identifier: Apache-2.0
"""Single layers and functions of PyTorch, exported both ways, against ONNX Runtime."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from typing import Any

import numpy as np
import pytest

import nnl as nn

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")

from torch import nn as tn  # noqa: E402
from torch.nn import functional as TF  # noqa: E402

from nnl.converters.onnx import load  # noqa: E402


class Call(tn.Module):
    """f(inputs..., modules...)."""

    def __init__(self, f: Any, *modules: Any) -> None:
        super().__init__()
        self.f, self.inner = f, tn.ModuleList(modules)

    def forward(self, *x: Any) -> Any:
        return self.f(*x, *self.inner)


def sizes(*shape: int) -> Any:
    return torch.from_numpy(np.random.default_rng(0).normal(size=shape).astype(np.float32))


def ids(high: int, *shape: int) -> Any:
    return torch.from_numpy(np.random.default_rng(0).integers(0, high, shape))


def activations(x: Any) -> Any:
    y = TF.hardswish(x) + TF.hardsigmoid(x) + TF.mish(x) + TF.softplus(x) + TF.elu(x)
    y = y + TF.celu(x) + TF.selu(x) + TF.gelu(x) + TF.gelu(x, approximate="tanh") + TF.silu(x)
    return y + TF.relu6(x) + TF.logsigmoid(x) + TF.softsign(x) + TF.hardshrink(x) + TF.softshrink(x)


def reductions(x: Any) -> Any:
    y = torch.logsumexp(x, 1) + x.std(1) + x.var(1) + x.norm(dim=1) + x.prod(1) + x.amax(1)
    return y + x.mean(1) + torch.softmax(x, 1).amin(1) + x.abs().sum(1) + x.max(1)[0]


def mathematics(x: Any) -> Any:
    y = torch.sin(x) + torch.atan(x) + torch.erf(x) + torch.exp(-x) + torch.log(x.abs() + 1)
    y = y + torch.sqrt(x.abs()) + torch.rsqrt(x.abs() + 1) + x**3 + torch.round(x) + torch.floor(x)
    y = y + torch.sign(x) + torch.remainder(x, 1.5) + torch.fmod(x, 1.5) + torch.tan(x)
    return y + torch.atan2(x, x + 2) + torch.acos(x.clamp(-0.9, 0.9))


def paddings(x: Any) -> Any:
    width = (1, 2, 0, 1)
    y = TF.pad(x, width, mode="reflect") + TF.pad(x, width, mode="replicate")
    return y + TF.pad(x, width, value=2.0) + TF.pad(x, width, mode="circular")


def resizing(x: Any) -> Any:
    y = TF.interpolate(x, size=(11, 4), mode="bilinear", align_corners=True)
    y = y + TF.interpolate(x, size=(11, 4), mode="nearest")
    return y + TF.interpolate(x, size=(11, 4), mode="bicubic", align_corners=False)


def reshaping(x: Any) -> Any:
    y = x.view(x.shape[0], -1, 2).permute(0, 2, 1).reshape(x.shape[0], -1)
    return y.unsqueeze(1).expand(-1, 3, -1).repeat(1, 1, 2)


def sorting(x: Any) -> Any:
    y = torch.topk(x, 2, dim=1)[0] * torch.sort(x, dim=1)[0][:, :2]
    y = y + torch.gather(x, 1, torch.argsort(x, 1)[:, :2])
    return y + torch.zeros_like(x).scatter(1, torch.argsort(x, 1), x)[:, :2]


def pooling(x: Any) -> Any:
    y = TF.max_pool2d(x, 3, 2, 1, ceil_mode=True)
    return y + TF.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)


IMAGE = sizes(2, 4, 5, 6)
LAYERS: dict[str, tuple[Any, ...]] = {
    "activations": (Call(activations), sizes(2, 3, 4)),
    "reductions": (Call(reductions), sizes(2, 5)),
    "mathematics": (Call(mathematics), sizes(2, 5)),
    "paddings": (Call(paddings), IMAGE),
    "resizing": (Call(resizing), IMAGE),
    "reshaping": (Call(reshaping), sizes(2, 3, 4)),
    "sorting": (Call(sorting), sizes(2, 5)),
    "pooling": (Call(pooling), sizes(2, 3, 8, 10)),
    "pixel shuffle": (Call(lambda x: TF.pixel_shuffle(x, 2)), sizes(2, 8, 5, 7)),
    "attention": (
        Call(lambda x, m: m(x, x, x, need_weights=False)[0],
             tn.MultiheadAttention(8, 2, batch_first=True)),
        sizes(2, 5, 8),
    ),
    "causal attention": (
        Call(lambda x: TF.scaled_dot_product_attention(x, x, x, is_causal=True)), sizes(2, 2, 5, 4)
    ),
    "decoder": (
        Call(lambda x, d: d(x, x), tn.TransformerDecoderLayer(8, 2, 16, batch_first=True)),
        sizes(2, 5, 8),
    ),
    "LSTM states": (Call(lambda x, m: m(x)[1][1], tn.LSTM(4, 6, num_layers=2)), sizes(5, 2, 4)),
    "RNN": (Call(lambda x, m: m(x)[0], tn.RNN(4, 6, nonlinearity="relu")), sizes(5, 2, 4)),
    "embedding": (
        Call(lambda x, e, g: g(e(x))[0], tn.Embedding(10, 4), tn.GRU(4, 5, batch_first=True)),
        ids(10, 2, 6),
    ),
    "einsum": (Call(lambda x: torch.einsum("bij,bkj->bik", x, x)), sizes(2, 3, 4)),
    "running sum": (Call(lambda x: torch.cumsum(x, 1) + x.roll(2, 1) + x.flip([1])), sizes(2, 5)),
    "masks": (
        Call(lambda x: x.masked_fill(x > 0, -1.0) + torch.where(x < 0, x, x * 2) + torch.tril(x)),
        sizes(2, 4, 4),
    ),
    "normalisations": (
        Call(
            lambda x, a, b, c: c(b(a(x))),
            tn.GroupNorm(2, 4),
            tn.InstanceNorm2d(4, affine=True),
            tn.LocalResponseNorm(3),
        ),
        IMAGE,
    ),
    "patches": (Call(lambda x: TF.unfold(x, (2, 2))), IMAGE),
    "convolution 1d": (Call(lambda x, a: a(x), tn.Conv1d(4, 6, 3, 1, 1, 2)), sizes(2, 4, 9)),
    "convolution 3d": (
        Call(
            lambda x, a, b: b(a(x)),
            tn.Conv3d(2, 4, 3, padding=1),
            tn.ConvTranspose3d(4, 2, 2, stride=2),
        ),
        sizes(2, 2, 4, 5, 6),
    ),
    "largest": (Call(lambda x: x.argmax(1) + x.argmin(1)), sizes(2, 5)),
    "one hot": (Call(lambda x: TF.one_hot(x, 7).float()), ids(7, 2, 3)),
    "spectrum": (
        Call(lambda x: torch.stft(
            x, 8, 4, window=torch.hann_window(8), return_complex=False, center=False)),
        sizes(2, 40),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.long
@pytest.mark.parametrize("dynamo", (False, True))
@pytest.mark.parametrize("name", LAYERS)
def test_layer_equals_onnxruntime(name, dynamo, tmp_path):
    module, x = LAYERS[name]
    path = str(tmp_path / "m.onnx")
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        more: dict[str, Any] = {"dynamo": True, "verbose": False} if dynamo else {"dynamo": False}
        if dynamo:
            pytest.importorskip("onnxscript")
        else:
            more["opset_version"] = 17
        torch.onnx.export(module.eval(), (x,), path, **more)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    net = load(path)
    (computed,) = net.run(x.numpy())
    np.testing.assert_allclose(computed, wanted, rtol=1e-5, atol=1e-5)
    recorded = net(nn.Variable.from_numpy_array(x.numpy()))
    recorded.forward()
    np.testing.assert_allclose(recorded.d, wanted, rtol=1e-5, atol=1e-5)
