# SPDX-License-Identifier: Apache-2.0
"""Programs of float32 that compute with bfloat16: values, types, files, and what is refused."""

from __future__ import annotations

import os

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl import solvers as S
from nnl.cli.main import main
from tests.graph.saved import normal
from tests.models.test_open_sizes import NETWORKS
from tests.native.kernels import require_library

QUICK = ("resnet18", "bert", "gpt2", "causal", "unet_3", "gru", "lstm", "mlp")
# bfloat16 rounds by up to 2^-9; errors of layers add up like those of a random walk
TOLERANCE = 0.04


def values(name, shape):
    rng = np.random.default_rng(len(name))
    if name == "keep":
        return (np.arange(shape[1]) < np.array([[7], [5]])).astype(np.float32)
    return rng.integers(0, 50, shape) if name == "tokens" else normal(*shape, seed=1)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.long) for n in NETWORKS]
)
def test_networks_in_bfloat16(name, tmp_path):
    """Open ones: near float32, at another size too; the same from a file of half the size."""
    net, axes, shapes, ranges = NETWORKS[name]()
    inputs, path = {k: nn.Variable(s) for k, s in shapes.items()}, tmp_path / "f.nnlp"
    nn.save_program(path, net, inputs, open=axes, ranges=ranges)
    wide, narrow = nn.load_program(path), nn.load_program(path, precision="bf16")
    narrow.save(tmp_path / "h.nnlp")
    again = nn.load_program(tmp_path / "h.nnlp")
    model = require_library().Model(str(tmp_path / "h.nnlp"))
    given = {k: values(k, s) for k, s in shapes.items()}
    want, found, saved = (p.run(**given) for p in (wide, narrow, again))
    for k, v in given.items():
        model.resize(k, v.shape)
    spec = {k: s.dtype for k, s in again.inputs().items()}
    theirs = model.run({k: np.ascontiguousarray(v, spec[k]) for k, v in given.items()})
    for k, y in want.items():
        assert found[k].dtype == y.dtype == np.float32 and found[k].shape == y.shape
        most = np.abs(y).max()
        assert np.abs(found[k] - y).max() < TOLERANCE * most
        assert np.abs(found[k] - y).max() > 0  # it is not float32
        other = np.frombuffer(theirs[k], np.float32).reshape(y.shape)
        np.testing.assert_array_equal(saved[k], other)
        assert np.abs(saved[k] - y).max() < TOLERANCE * most
    stored = sum(nd.spec.nbytes for nd in wide.arrays.values())
    assert sum(nd.spec.nbytes for nd in again.arrays.values()) < 0.6 * stored


def test_weights_are_stored_in_bfloat16_and_statistics_are_not(tmp_path):
    x = nn.Variable((2, 16, 8, 8))
    h = F.relu(PF.batch_normalization(PF.convolution(x, 32, (3, 3)), batch_stat=False))
    y = PF.affine(h, 10)
    nn.save_program(tmp_path / "f.nnlp", {"y": y}, {"x": x})
    narrow = nn.load_program(tmp_path / "f.nnlp", precision="bf16")
    types = {k: nd.spec.type_name for k, nd in narrow.arrays.items()}
    assert {k for k, t in types.items() if t == "bfloat16"} == {"conv/W", "affine/W"}
    assert set(types.values()) == {"bfloat16", "float32"}
    narrow.save(tmp_path / "h.nnlp")
    size = os.path.getsize(tmp_path / "h.nnlp"), os.path.getsize(tmp_path / "f.nnlp")
    assert size[0] < 0.6 * size[1]


def test_what_is_read_as_numbers_stays_float32(tmp_path):
    """A matrix that is added, a table that is an output too, and whole numbers."""
    x = nn.Variable((4, 8))
    w = nn.Variable.from_numpy_array(normal(8, 8), need_grad=True)
    nn.parameter.set_parameter("added", w)
    y = F.affine(x, w) + F.broadcast(F.sum(w, axis=0, keepdims=True), (4, 8))
    at = F.gather(w, F.max(y, axis=1, only_index=True), axis=0)
    nn.save_program(tmp_path / "f.nnlp", {"y": y, "at": at}, {"x": x})
    narrow = nn.load_program(tmp_path / "f.nnlp", precision="bf16")
    assert narrow.arrays["added"].spec.type_name == "float32"
    value = normal(4, 8, seed=3)
    found = narrow.run(x=value)
    np.testing.assert_array_equal(found["at"], w.d[found["y"].argmax(1)])


def test_control_flow_keeps_the_types_inside(tmp_path):
    x = nn.Variable((3, 4))
    h = PF.affine(x, 4)
    y = nn.while_loop(lambda z: F.less_scalar(F.sum(z * z), 90.0), lambda z: z * 2.0, h)
    nn.save_program(tmp_path / "f.nnlp", {"y": y}, {"x": x})
    value = normal(3, 4)
    want = nn.load_program(tmp_path / "f.nnlp").run(x=value)["y"]
    found = nn.load_program(tmp_path / "f.nnlp", precision="bf16").run(x=value)["y"]
    np.testing.assert_allclose(found, want, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_backends_agree(backend, tmp_path):
    x = nn.Variable((2, 3, 8, 8))
    y = F.softmax(PF.affine(F.relu(PF.convolution(x, 8, (3, 3))), 5))
    nn.save_program(tmp_path / "f.nnlp", {"y": y}, {"x": x})
    value = normal(2, 3, 8, 8)
    want = nn.load_program(tmp_path / "f.nnlp").run(x=value)["y"]
    with nn.context_scope(nn.Context([f"{backend}:float"])):
        found = nn.load_program(tmp_path / "f.nnlp", precision="bf16").run(x=value)["y"]
    np.testing.assert_allclose(found, want, atol=0.02)


def test_files_written_in_bfloat16(tmp_path):
    """save_program and the command line write what load_program and save do."""
    x = nn.Variable((2, 8))
    y = F.gelu(PF.affine(x, 64))
    nn.save_program(tmp_path / "f.nnlp", {"y": y}, {"x": x})
    nn.load_program(tmp_path / "f.nnlp", precision="bf16").save(tmp_path / "loaded.nnlp")
    nn.save_program(tmp_path / "saved.nnlp", {"y": y}, {"x": x}, precision="bf16")
    source, path = str(tmp_path / "f.onnx"), str(tmp_path / "converted.nnlp")
    save = pytest.importorskip("nnl.converters.onnx").save
    save(source, {"y": y}, {"x": x})
    assert main(["convert", source, path, "--precision", "bf16"]) == 0
    value = normal(2, 8)
    found = [
        nn.load_program(tmp_path / f"{name}.nnlp") for name in ("loaded", "saved", "converted")
    ]
    for p in found:
        assert "bfloat16" in {nd.spec.type_name for nd in p.arrays.values()}
        np.testing.assert_allclose(p.run(x=value)["y"], found[0].run(x=value)["y"], atol=0.02)
    assert main(["convert", source, str(tmp_path / "f.nnp"), "--precision", "bf16"]) == 2


def test_what_is_refused(tmp_path):
    x = nn.Variable((2, 3))
    nn.save_program(tmp_path / "f.nnlp", {"y": PF.affine(x, 2)}, {"x": x})
    with pytest.raises(
        ValueError, match=r"load_program: precision is 'int3', wanted one of \['bf16', 'bfloat16'"
    ):
        nn.load_program(tmp_path / "f.nnlp", precision="int3")
    solver = S.Sgd(0.1)

    @nn.compile
    def step(x):
        loss = F.mean(PF.affine(x, 2) ** 2)
        solver.set_parameters(nn.get_parameters(), reset=False)
        solver.zero_grad()
        loss.backward()
        solver.update()
        return loss

    step(x)
    step.save(str(tmp_path / "train.nnlp"))
    with pytest.raises(NotImplementedError, match="precision: a program that trains or keeps"):
        nn.load_program(tmp_path / "train.nnlp", precision="bf16")
