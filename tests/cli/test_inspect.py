# SPDX-License-Identifier: Apache-2.0
"""nnl view, dump, function_info, infer, forward, completion."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.cli.completion import SHELLS
from nnl.cli.main import main
from nnl.utils.load import load
from nnl.utils.save import save
from tests.cli.test_convert import write_network


@pytest.fixture(autouse=True)
def no_parameters() -> Iterator[None]:
    nn.clear_parameters()
    yield
    nn.clear_parameters()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_network(tmp_path / "m.nnp")


def output(capsys: pytest.CaptureFixture[str], *args: object, code: int = 0) -> str:
    assert main([str(a) for a in args]) == code
    return capsys.readouterr().out


def test_view_counts_parameters_and_multiply_adds(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = json.loads(output(capsys, "view", file, "--json"))
    layers = {r["function"]: r for r in summary["layers"]}
    assert summary["inputs"] == {"x": [4, 1, 8, 8]} and summary["outputs"] == {"out": [4, 5]}
    assert layers["Convolution"]["parameters"] == 3 * 9 + 3
    assert layers["Convolution"]["shape"] == [[4, 3, 6, 6]]
    # one multiply-add per weight and position, and half of one for the bias
    assert 4 * 36 * 27 <= layers["Convolution"]["multiply_adds"] <= 4 * 36 * (27 + 3)
    assert summary["parameters"] == 30 + 4 * 3 + 27 * 5 + 5
    assert summary["parameter_bytes"] == 4 * summary["parameters"]
    text = output(capsys, "view", file, "-b", 2)
    assert "input   x  (2, 1, 8, 8)" in text and "7 layers, 182 parameters (728 B)" in text


def test_dump_lists_what_is_in_a_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(output(capsys, "dump", file, "-F", "-V", "--json"))
    (net,) = found["networks"]
    assert [f["type"] for f in net["functions"]][:2] == ["Convolution", "BatchNormalization"]
    assert net["functions"][0]["inputs"]["x"] == [-1, 1, 8, 8]
    assert [e["name"] for e in found["executors"]] == ["e", "g"]
    assert found["parameters"]["c1/conv/W"] == [3, 1, 3, 3]
    assert "- e\n    network: n\n" in output(capsys, "dump", file)
    assert output(capsys, "dump", file, "-n", "x") == "x: (-1, 1, 8, 8)\n"
    assert output(capsys, "dump", file, "-v", "--dump-limit", 2) == 'network {\n  name: "n"\n...\n'
    assert main(["dump", str(file), "-n", "z"]) == 1
    assert "there is no variable 'z'" in capsys.readouterr().err
    only = json.loads(output(capsys, "dump", file, "-E", 1, "--json"))
    assert [e["name"] for e in only["executors"]] == ["g"]


def test_function_info_is_sorted_and_splits_by_support(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = output(capsys, "function_info").split()
    assert names == sorted(names) and {"Affine", "ReLU", "Add2"} <= set(names)
    used = ["Affine", "BatchNormalization", "Convolution", "Dropout", "MaxPooling", "ReLU"]
    assert output(capsys, "function_info", file, "-x", "Softmax").split() == used
    assert output(capsys, "function_info", "-q", "Batch*Norm*").split() == ["BatchNormalization"]
    assert main(["function_info", "-q", "Nope"]) == 1
    output(capsys, "function_info", "-o", tmp_path / "f.txt")
    assert (tmp_path / "f.txt").read_text().split() == names
    pytest.importorskip("onnx")
    assert "ReLU" in output(capsys, "function_info", file, "-f", "ONNX").split()
    assert "Relu" in output(capsys, "function_info", file, "-f", "ONNX", "-t").split()
    x = nn.Variable((2, 3, 8, 8))
    net = {"name": "n", "batch_size": 2, "outputs": {"y": F.random_flip(x)}, "names": {"x": x}}
    save(tmp_path / "r.nnp", {"networks": [net]})
    text = output(capsys, "function_info", tmp_path / "r.nnp", "-f", "ONNX", code=1)
    assert "not supported by ONNX:\nRandomFlip" in text


@pytest.mark.parametrize("raw", [False, True])
def test_infer_computes_what_the_network_computes(
    file: Path, tmp_path: Path, raw: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    value = np.random.default_rng(0).normal(size=(4, 1, 8, 8)).astype(np.float32)
    path = tmp_path / ("x.bin" if raw else "x.npy")
    path.write_bytes(value.tobytes()) if raw else np.save(path, value)
    output(capsys, "infer", "-c", file, "-o", tmp_path / "y", path)
    got = np.fromfile(tmp_path / "y_0.bin", "f4") if raw else np.load(tmp_path / "y_0.npy")
    p = load(file).networks["n"].parameters
    w = {k: v.variable_instance for k, v in p.items()}
    x = nn.Variable.from_numpy_array(value)
    with nn.parameter_scope("", nn.get_current_parameter_scope()):
        h = PF.convolution(x, 3, (3, 3), name="c1")
        h = F.relu(PF.batch_normalization(h, batch_stat=False, name="b1"))
        y = F.softmax(PF.affine(F.max_pooling(h, (2, 2)), 5, name="f"))
    y.forward()
    assert len(w) == 8
    np.testing.assert_allclose(got.reshape(4, 5), y.d, rtol=1e-5)
    assert main(["infer", "-c", str(file), str(path), str(path)]) == 1
    assert "has 1 inputs ['x'], got 2 files" in capsys.readouterr().err


def test_forward_goes_through_a_data_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = nn.Variable((2, 3))
    y = PF.affine(x, 2)
    executor = {"name": "e", "network": "n", "data": ["x"], "output": ["y"]}
    net = {"name": "n", "batch_size": 2, "outputs": {"y": y}, "names": {"x": x}}
    save(tmp_path / "m.nnp", {"networks": [net], "executors": [executor]})
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for i, row in enumerate(rows):
        np.save(tmp_path / f"x{i}.npy", row)
    (tmp_path / "d.csv").write_text("x\n" + "".join(f"x{i}.npy\n" for i in range(5)))
    args = ["-c", tmp_path / "m.nnp", "-d", tmp_path / "d.csv", "-o", tmp_path / "out"]
    assert "5 rows" in output(capsys, "forward", *args)
    lines = (tmp_path / "out" / "output_result.csv").read_text().split()
    assert lines[0] == "x,y" and len(lines) == 6
    w = {k: v.d for k, v in nn.get_parameters().items()}
    for i, line in enumerate(lines[1:]):
        got = np.load(tmp_path / "out" / line.split(",")[1])
        np.testing.assert_allclose(got, rows[i] @ w["affine/W"] + w["affine/b"], rtol=1e-4)


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_scripts_are_valid(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = output(capsys, "completion", shell)
    for word in ("convert", "view", "function_info", "verify"):
        assert word in script
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    subprocess.run([shell, "-n"], input=script, text=True, check=True)
    if shell == "bash":
        script += "\nCOMP_WORDS=(nnl convert --ver); COMP_CWORD=2; _nnl; echo ${COMPREPLY[@]}"
        done = subprocess.run(["bash"], input=script, text=True, check=True, capture_output=True)
        assert done.stdout.strip() == "--verify"


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for args in ([], ["convert", "a", "b", "-O", "XYZ"], ["nope"]):
        with pytest.raises(SystemExit) as stop:
            main(args)
        assert stop.value.code == 2
    assert output(capsys, "version").strip() == nn.__version__
