# SPDX-License-Identifier: Apache-2.0
"""Imported models against ONNX Runtime, and that they train."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from tests.converters import onnx_models

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("torch")

from nnl.converters.onnx import load  # noqa: E402

os.environ.setdefault("HF_HUB_OFFLINE", "1")
TOLERANCE = 1e-5  # of the largest output; float32 sums in another order


def exported(name: str, makers: Any, folder: Any, dynamo: bool) -> tuple[str, Any]:
    module, x = makers()[name]
    path = str(folder / f"{name}.onnx")
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # the exporter prints its progress
            onnx_models.export(module, x, path, dynamo)
    finally:
        logging.disable(logging.NOTSET)
    return path, x


def check_against_onnxruntime(path: str, x: Any) -> None:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    net = load(path)
    for batch in (2, 3):
        given = np.concatenate([x, x[::-1]])[:batch]
        wanted = session.run(None, {session.get_inputs()[0].name: given})
        computed = net.run(given)
        v = nn.Variable.from_numpy_array(given[::-1].copy())
        recorded = net(v)
        recorded = recorded if isinstance(recorded, tuple) else (recorded,)
        nn.forward_all(list(recorded), clear_buffer=True)
        v.d = given  # a recorded graph runs again, also where its inputs are token ids
        nn.forward_all(list(recorded), clear_buffer=True)
        for w, c, r in zip(wanted, computed, recorded, strict=True):
            scale = max(1.0, np.abs(w).max())
            assert np.std(w) > 1e-3
            np.testing.assert_allclose(c / scale, w / scale, rtol=0, atol=TOLERANCE)
            np.testing.assert_allclose(r.d / scale, w / scale, rtol=0, atol=TOLERANCE)


TORCH = ("conv", "lstm", "gru", "transformer", "small resnet")
TRANSFORMERS = ("bert", "gpt2", "vit", "convnext", "resnet")


@pytest.mark.parametrize("name", TORCH)
def test_torch_export_equals_onnxruntime_at_two_batch_sizes(name, tmp_path):
    check_against_onnxruntime(*exported(name, onnx_models.torch_models, tmp_path, False))


@pytest.mark.long
@pytest.mark.parametrize("name", TORCH)
def test_dynamo_export_equals_onnxruntime_at_two_batch_sizes(name, tmp_path):
    pytest.importorskip("onnxscript")
    check_against_onnxruntime(*exported(name, onnx_models.torch_models, tmp_path, True))


@pytest.mark.long
@pytest.mark.parametrize("dynamo", (False, True))
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_model_equals_onnxruntime_at_two_batch_sizes(name, dynamo, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("onnxscript")
    check_against_onnxruntime(*exported(name, onnx_models.transformers_models, tmp_path, dynamo))


def test_gradients_of_an_imported_network_equal_pytorch(tmp_path):
    import torch

    module, x = onnx_models.torch_models()["transformer"]
    path = str(tmp_path / "m.onnx")
    onnx_models.export(module, x, path, False)
    given = torch.from_numpy(x).requires_grad_()
    (module(given) ** 3).sum().backward()
    v = nn.Variable.from_numpy_array(x, need_grad=True)
    loss = F.sum(load(path)(v) ** 3)
    loss.forward(clear_no_need_grad=True)
    loss.backward(clear_buffer=True)
    scale = np.abs(given.grad.numpy()).max()
    np.testing.assert_allclose(v.g / scale, given.grad.numpy() / scale, rtol=0, atol=1e-4)
    ours = nn.get_parameters()["layers.0.norm1.weight"].g
    theirs = module.layers[0].norm1.weight.grad.numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4 * np.abs(theirs).max())


def test_fine_tuning_an_imported_resnet_on_digits(tmp_path):
    datasets = pytest.importorskip("sklearn.datasets")
    import torch

    images, labels = datasets.load_digits(return_X_y=True)
    images = images.reshape(-1, 1, 8, 8).astype(np.float32) / 16
    module, example = onnx_models.torch_models()["small resnet"]
    with torch.no_grad():
        module.train()(torch.from_numpy(images[:512]))  # running statistics that fit the images
    path = str(tmp_path / "resnet.onnx")
    onnx_models.write(module, example, path, False, fold=False)
    x, t = nn.Variable((64, 1, 8, 8)), nn.Variable((64, 1))
    net = load(path)
    loss = F.mean(F.softmax_cross_entropy(net(x), t))
    solver = S.Adam(alpha=1e-2)
    solver.set_parameters(nn.get_parameters())
    losses = []
    rng = np.random.default_rng(0)
    for _ in range(150):
        chosen = rng.integers(0, 1500, 64)
        x.d, t.d = images[chosen], labels[chosen, None]
        solver.zero_grad()
        loss.forward(clear_no_need_grad=True)
        loss.backward(clear_buffer=True)
        solver.update()
        losses.append(float(loss.d))
    assert np.mean(losses[-10:]) < 0.25 * np.mean(losses[:5])
    names = nn.get_parameters()
    assert not any("running" in name for name in names)
    (scores,) = net.run(images[1500:])
    assert (scores.argmax(1) == labels[1500:]).mean() > 0.8
