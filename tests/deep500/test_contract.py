# SPDX-License-Identifier: Apache-2.0
"""Every back end keeps every promise of the contract."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")

import nnl.deep500 as d5  # noqa: E402
from nnl.deep500.operation import compiler  # noqa: E402
from tests.deep500 import contract  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PROMISES = 14  # one more with a C++ compiler
HERE = [b for b in ("reference", "nnl:numpy", "nnl", "onnxruntime", "torch", "openvino")]


def installed(backend: str) -> str:
    hint = d5.backends()[backend.partition(":")[0]]
    if hint:
        pytest.skip(f"{backend} is not installed")
    return backend


def in_tensorflow(module: str, *words: str) -> str:
    """What a module says when it runs in the Python that has TensorFlow."""
    return elsewhere("TensorFlow", "NNL_TENSORFLOW_PYTHON", module, *words)


def python_with(what: str, variable: str) -> str:
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{what} is not installed ({variable} names a Python with it)")
    return python


def elsewhere(what: str, variable: str, module: str, *words: str) -> str:
    command = [python_with(what, variable), "-m", module, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def need_compiler() -> None:
    if compiler() is None:
        pytest.skip("there is no C++ compiler (CXX names one)")


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("promise", contract.INFERENCE, ids=lambda p: p.__name__)
def test_inference(backend, promise):
    promise(installed(backend))


@pytest.mark.parametrize("backend", [b for b in HERE if b not in ("onnxruntime", "openvino")])
@pytest.mark.parametrize("promise", contract.TRAINING, ids=lambda p: p.__name__)
def test_training(backend, promise):
    if promise is contract.bodies_in_cpp_train:
        need_compiler()
    promise(installed(backend))


@pytest.mark.long
def test_torch_compiled_keeps_the_contract():
    assert contract.check(installed("torch:compiled")) >= PROMISES


@pytest.mark.long
def test_tensorflow_keeps_the_contract():
    said = in_tensorflow("tests.deep500.contract", "tensorflow", "tensorflow:compiled")
    counts = [int(line.split()[-1]) for line in said.splitlines()]
    assert len(counts) == 2 and min(counts) >= PROMISES


@pytest.mark.long
def test_training_of_onnx_runtime_keeps_the_contract():
    variable = "NNL_ONNXRUNTIME_TRAINING_PYTHON"
    said = elsewhere("onnxruntime-training", variable, "tests.deep500.contract", "onnxruntime")
    assert int(said.split()[-1]) >= PROMISES


def test_inference_only_back_ends_say_so(monkeypatch):
    monkeypatch.setattr(d5.network_class(installed("onnxruntime")), "trains", False)
    net = d5.network(contract.models.linear(), "onnxruntime")
    with pytest.raises(NotImplementedError, match="onnxruntime runs inference only; nnl, torch"):
        net.inference_and_backprop({})
    hint = "pip install onnxruntime-training in the place of onnxruntime"
    with pytest.raises(NotImplementedError, match=f"and it with: {hint}"):
        net.inference_and_backprop({})
    assert d5.backends()["onnxruntime"] == "" and d5.backends(training=True)["onnxruntime"] == hint
    assert d5.backends(training=True)["nnl"] == ""


def test_back_ends_say_how_to_install_them():
    assert list(d5.backends()) == [
        "reference", "nnl", "onnxruntime", "torch", "tensorflow", "openvino",
    ]  # fmt: skip
    code = (
        "import sys, importlib.util as u; found = u.find_spec; "
        "u.find_spec = lambda n, *a: None if n == 'torch' else found(n, *a); "
        "import nnl.deep500 as d; d.network_class('torch')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "the back end torch is not installed: pip install torch" in done.stderr
    with pytest.raises(ValueError, match="no back end 'theano', wanted one of reference, nnl"):
        d5.network("x.onnx", "theano")


def test_importing_the_package_imports_no_back_end():
    code = "import nnl.deep500, sys; print({'onnx', 'torch', 'onnxruntime'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_reference_is_read_in_ten_minutes():
    text = (ROOT / "nnl/deep500/networks/reference.py").read_text(encoding="utf-8")
    assert text.count("\n") <= 600
    assert "import nnl.functions" not in text and "F." not in text  # numpy is written in numpy


def test_a_back_end_for_ten_operators_takes_a_hundred_lines(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(d5, "_BACKENDS", dict(d5._BACKENDS))
    d5.add_backend("small", "tests.deep500.small_backend", "SmallNetwork", "torch")
    for promise in (*contract.INFERENCE, *contract.TRAINING[:-2]):
        promise("small")
    text = (ROOT / "tests/deep500/small_backend.py").read_text(encoding="utf-8")
    assert text.count("\n") <= 100
