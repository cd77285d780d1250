# SPDX-License-Identifier: Apache-2.0
"""Recorded functions as networks in files, run by ONNX Runtime and by the reader of .nnp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.utils.load import load


def images(seed: int) -> nn.Variable:
    return nn.Variable.from_numpy_array(
        np.random.default_rng(seed).normal(size=(2, 3, 6, 6)).astype(np.float32)
    )


def network(x: nn.Variable) -> nn.Variable:
    h = PF.batch_normalization(PF.convolution(x, 4, (3, 3), name="conv"), batch_stat=False)
    return F.softmax(PF.affine(F.relu(h), 5, name="head"))


def in_onnxruntime(path: Path, **values: Any) -> dict[str, Any]:
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
    names = [y.name for y in session.get_outputs()]
    return dict(zip(names, session.run(None, values), strict=True))


def as_nnp(path: Path, **values: Any) -> dict[str, Any]:
    nn.clear_parameters()
    run = load(path).executors["runtime"]
    given = {v.name: v.variable_instance for v in run.dataset_assign}
    assert set(given) == set(values)
    for name, v in given.items():
        v.d = values[name]
    outputs = {v.name: v.variable_instance for v in run.output_assign}
    nn.forward_all(list(outputs.values()))
    return {name: y.d.copy() for name, y in outputs.items()}


RUN = {".onnx": in_onnxruntime, ".nnp": as_nnp}


@pytest.mark.parametrize("extension", RUN)
def test_a_frozen_step_computes_the_same_from_its_file(tmp_path: Path, extension: str) -> None:
    step = nn.coexecute(network)
    with nn.auto_forward():
        for seed in range(3):
            step(images(seed))
        frozen = step.freeze(images(3))
        wanted = network(images(4)).d.copy()
    path = tmp_path / f"net{extension}"
    frozen.save(path)
    (found,) = RUN[extension](path, x=images(4).d).values()
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-6)


@pytest.mark.parametrize("extension", RUN)
def test_files_have_the_inputs_that_are_read_and_arrays_without_names(
    tmp_path: Path, extension: str
) -> None:
    table = nn.Variable.from_numpy_array(np.arange(8, dtype=np.float32).reshape(4, 2))
    PF.affine(nn.Variable((1, 2)), 3, name="of_another_network")

    @nn.compile
    def f(x: nn.Variable, unused: nn.Variable, y: nn.Variable) -> dict[str, Any]:
        return {"y": PF.affine(x, 2, name="fc"), "more": [F.reshape(F.embed(y, table), (1, 2)) * 2]}

    x = nn.Variable.from_numpy_array(np.float32([[1, -2]]))
    f(x, x, nn.Variable.from_numpy_array(np.array([3])))
    path = tmp_path / f"net{extension}"
    f.save(path)
    w, b = (v.d.copy() for k, v in nn.get_parameters().items() if k.startswith("fc/"))
    found = RUN[extension](path, x=x.d, y=np.array([1]))
    assert list(found) == ["y.2", "more0"]
    np.testing.assert_allclose(found["y.2"], x.d @ w + b, 1e-6)
    np.testing.assert_array_equal(found["more0"], [[4, 6]])
    if extension == ".nnp":
        assert set(nn.get_parameters(grad_only=False)) == {
            "fc/affine/W", "fc/affine/b", "constants/0",
        }  # fmt: skip


def train(x: nn.Variable) -> nn.Variable:
    loss = F.mean(PF.affine(x, 2))
    solver = S.Sgd(0.1)
    solver.set_parameters(nn.get_parameters())
    solver.zero_grad()
    loss.backward()
    solver.update()
    return loss


STATE = nn.NdArray((2, 3))


def write(x: nn.Variable) -> nn.Variable:
    STATE.copy_from(x.data)
    return x * 2


@pytest.mark.parametrize(
    ("f", "does"),
    [
        (train, "train computes gradients"),
        (write, r"write writes arrays, at add_scalar \(test_recorded.py:\d+\)"),
        (lambda x: x, "lambda returns nothing that a function computes"),
    ],
)
def test_what_is_no_network_is_told(tmp_path: Path, f: Any, does: str) -> None:
    recorded = nn.compile(f)
    recorded(nn.Variable((2, 3)))
    wanted = f"^save: {does}, which is no network: save it as .nnlp, or record a function of the "
    with pytest.raises(ValueError, match=wanted + "forward pass alone$"):
        recorded.save(tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


def test_a_network_is_one_recording_in_a_format_that_is_known(tmp_path: Path) -> None:
    double = nn.compile(lambda x: x * 2)
    with pytest.raises(ValueError, match="^save: lambda has not been called, so nothing is"):
        double.save(tmp_path / "net.onnx")
    double(nn.Variable((2,)))
    with pytest.raises(ValueError, match="net.txt: cannot write the extension '.txt', only .nnp, "):
        double.save(tmp_path / "net.txt")
    double(nn.Variable((3,)))
    path = tmp_path / "net.onnx"
    with pytest.raises(ValueError) as e:
        double.save(path)
    assert str(e.value) == (
        f"save: {path} takes one network, and lambda was recorded for 2 combinations of arguments: "
        ".nnlp takes all of them"
    )
