# SPDX-License-Identifier: Apache-2.0
"""nnl view, dump, function_info, completion; what all commands say of sizes and memory."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl import models
from nnl.cli.completion import SHELLS
from nnl.cli.main import main
from nnl.core.ops.op import OPS
from nnl.graph.program.costs import PRODUCTS
from nnl.utils.save import save
from tests.cli.test_convert import write_network


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
    # one multiply-add per weight and position; biases and everything else are additions
    assert layers["Convolution"]["multiply_adds"] == 4 * 36 * 27
    assert summary["multiply_adds"] == 4 * 36 * 27 + 4 * 27 * 5
    assert summary["parameters"] == 30 + 2 * 3 + 27 * 5 + 5
    assert summary["fixed_parameters"] == 2 * 3
    assert summary["parameter_bytes"] == 4 * (summary["parameters"] + 6)
    text = output(capsys, "view", file, "-b", 2)
    assert "input   x  (2, 1, 8, 8)" in text
    assert "7 layers, 176 parameters and 6 fixed ones (728 B)" in text
    assert main(["view", str(file), "-b", "0"]) == 2
    assert "-b is 0, wanted at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "build", "multiply_adds", "parameters"),
    [
        ("resnet50", lambda x: models.resnet(x, 50, test=True), 4.09, 25_557_032),
        ("mobilenet_v3", lambda x: models.mobilenet_v3(x, test=True), 0.22, 5_483_032),
        ("efficientnet_b0", lambda x: models.efficientnet(x, test=True), 0.39, 5_288_548),
    ],
)
def test_multiply_adds_and_parameters_are_the_published_ones(
    name: str,
    build: Callable[[nn.Variable], nn.Variable],
    multiply_adds: float,
    parameters: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As torchvision states them for its models, in units of 1e9, for images of 224 x 224."""
    x = nn.Variable((1, 3, 224, 224))
    net = {"name": "n", "batch_size": 1, "outputs": {"y": build(x)}, "names": {"x": x}}
    save(tmp_path / f"{name}.nnp", {"networks": [net]})
    summary = json.loads(output(capsys, "view", tmp_path / f"{name}.nnp", "--json"))
    assert round(summary["multiply_adds"] / 1e9, 2) == multiply_adds
    assert summary["parameters"] == parameters and summary["operations"] > 2e9 * multiply_adds
    assert summary["fixed_parameters"] > 0


def test_view_counts_products_of_every_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = nn.Variable((2, 6, 8, 8))
    layers = {
        "Convolution": (PF.convolution(x, 4, (3, 3), group=2), 2 * 4 * 36 * 3 * 9),
        "Deconvolution": (PF.deconvolution(x, 4, (3, 3)), 2 * 6 * 64 * 4 * 9),
        "DepthwiseConvolution": (PF.depthwise_convolution(x, (3, 3)), 2 * 6 * 36 * 9),
        "Affine": (PF.affine(x, 5), 2 * 384 * 5),
        "BatchMatmul": (F.batch_matmul(x, x, transpose_b=True), 2 * 6 * 8 * 8 * 8),
    }
    for kind, (y, count) in layers.items():
        net = {"name": "n", "batch_size": 2, "outputs": {"y": y}, "names": {"x": x}}
        save(tmp_path / "m.nnp", {"networks": [net]})
        (row,) = json.loads(output(capsys, "view", tmp_path / "m.nnp", "--json"))["layers"]
        assert row["function"] == kind and row["multiply_adds"] == count, kind
    assert PRODUCTS <= set(OPS)


def test_view_lists_the_arrays_of_files_of_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = {"fc.weight": np.ones((3, 4), np.float32), "fc.bias": np.zeros(3, np.float32)}
    np.savez(tmp_path / "w.npz", **arrays)
    for name, a in arrays.items():
        nn.parameter.set_parameter(name, nn.Variable.from_numpy_array(a))
    nn.save_parameters(tmp_path / "w.h5")
    nn.save_parameters(tmp_path / "w.protobuf")
    with zipfile.ZipFile(tmp_path / "w.nnp", "w") as archive:
        archive.write(tmp_path / "w.h5", "parameter.h5")
    files = ["w.npz", "w.h5", "w.protobuf", "w.nnp"]
    if importlib.util.find_spec("safetensors"):
        from safetensors.numpy import save_file

        save_file(arrays, tmp_path / "w.safetensors")
        files.append("w.safetensors")
    if importlib.util.find_spec("torch"):
        import torch

        torch.save({k: torch.from_numpy(a) for k, a in arrays.items()}, tmp_path / "w.pt")
        files.append("w.pt")
    for name in files:
        found = json.loads(output(capsys, "view", tmp_path / name, "--json"))
        weight = {"shape": [3, 4], "dtype": "float32", "bytes": 48}
        assert found["arrays"]["fc.weight"] == weight and found["parameters"] == 15, name
        text = output(capsys, "view", tmp_path / name)
        assert "fc.weight  (3, 4)  float32" in text and "2 arrays, 15 numbers (60 B)" in text
    (tmp_path / "w.npz").write_bytes((tmp_path / "w.npz").read_bytes()[:90])
    assert main(["view", str(tmp_path / "w.npz")]) == 1
    assert "nnl view: error: read_weights" in capsys.readouterr().err


def test_view_reads_onnx(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx")
    assert main(["convert", str(file), str(tmp_path / "m.onnx")]) == 0
    capsys.readouterr()
    there = json.loads(output(capsys, "view", file, "-b", 1, "--json"))
    found = json.loads(output(capsys, "view", tmp_path / "m.onnx", "--json"))
    assert (
        found["multiply_adds"] == there["multiply_adds"] > 0 and found["inputs"] == there["inputs"]
    )


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
    (tmp_path / "allowed.txt").write_text("; ours\nAffine,FLOAT32\nReLU\n")
    text = output(capsys, "function_info", file, "-c", tmp_path / "allowed.txt", code=1)
    assert text.split()[:2] == ["Affine", "ReLU"] and "allowed.txt:\nBatchNorm" in text
    assert main(["function_info", "--api", "3", "-f", "ONNX"]) == 2
    assert "--api needs -f NNB" in capsys.readouterr().err
    old = output(capsys, "function_info", "-f", "NNB", "--api", "1").split()
    operators = output(capsys, "function_info", file, "-f", "NNB", "-t").split()
    assert operators == ["Affine", "Convolution", "MaxPooling", "ReLU", "Softmax"]
    assert "Affine" in old and "LSTM" in old and "Sin" not in old
    # levels and codes as nnabla_cli 1.39 prints them
    assert output(capsys, "function_info", "--api", "-1").split() == ["API_LEVEL:", "44"]
    lines = output(capsys, "function_info", "--api", "10").splitlines()
    assert lines[:4] == ["API_LEVEL: 10", "Abs_Empty", "Add2_B", "AddScalar_f"]
    assert "AddScalar_fB" in output(capsys, "function_info", "--api", "44").split()
    output(capsys, "convert", file, tmp_path / "bare.nnp", "--nnp-exclude-parameter")
    output(capsys, "decode_param", "-p", file, "-o", tmp_path / "texts")
    output(capsys, "encode_param", "-i", tmp_path / "texts", "-p", tmp_path / "w.h5")
    both = output(capsys, "function_info", tmp_path / "bare.nnp", tmp_path / "w.h5").split()
    assert both == output(capsys, "function_info", file).split()
    output(capsys, "function_info", "-o", tmp_path / "f.txt")
    assert (tmp_path / "f.txt").read_text().split() == names
    pytest.importorskip("onnx")
    assert "ReLU" in output(capsys, "function_info", file, "-f", "ONNX").split()
    operators = output(capsys, "function_info", file, "-f", "ONNX", "-t").split()
    assert {"Relu@14", "Conv@11", "MaxPool@12"} <= set(operators) and operators == sorted(operators)
    assert main(["function_info", "-f", "ONNX", "-t"]) == 2
    assert "-t needs -f FORMAT and FILE" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["function_info", "-f", "OTHER"])
    assert "invalid choice: 'OTHER' (choose from" in capsys.readouterr().err
    x = nn.Variable((2, 3, 8, 8))
    net = {"name": "n", "batch_size": 2, "outputs": {"y": F.random_flip(x)}, "names": {"x": x}}
    save(tmp_path / "r.nnp", {"networks": [net]})
    text = output(capsys, "function_info", tmp_path / "r.nnp", "-f", "ONNX", code=1)
    assert "not supported by ONNX:\nRandomFlip" in text
    text = output(capsys, "function_info", tmp_path / "r.nnp", "-f", "NNB", code=1)
    assert text.startswith("\nnot supported by NNB:\nrandom_flip in ")
    assert text.endswith(": NNabla's C runtime does not have it\n")


def test_functions_that_onnx_writes_as_their_parts_are_supported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    from nnl.converters.onnx.exporting.table import export_rows

    listed = output(capsys, "function_info", "-f", "ONNX").split()
    assert listed == sorted({OPS[name].nnp for name, since, _ in export_rows() if since})
    x = nn.Variable((2, 3))
    net = {"name": "n", "batch_size": 2, "outputs": {"y": F.celu(x)}, "names": {"x": x}}
    save(tmp_path / "c.nnp", {"networks": [net]})
    output(capsys, "convert", tmp_path / "c.nnp", tmp_path / "c.onnx", "--verify")


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_scripts_are_valid(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = output(capsys, "completion", shell)
    for word in ("convert", "view", "function_info", "verify"):
        assert word in script
    assert "optimize-pb" not in script  # known, and refused
    assert shell != "fish" or "-o f1\n" in script  # with -s, options have one letter
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    subprocess.run([shell, "-n"], input=script, text=True, check=True)
    if shell == "bash":
        for words, at in (
            ("nnl convert --ver", 2),
            ("nnl -q conve", 2),
            ("nnl-convert --ver", 1),
            ("nnl trials rev", 2),
            ("nnl trials list --stat", 3),
        ):
            script += f"\nCOMP_WORDS=({words}); COMP_CWORD={at}; _nnl; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(["bash"], input=script, text=True, check=True, capture_output=True)
        assert done.stdout.split() == ["--verify", "convert", "--verify", "revert", "--status"]


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for args in ([], ["convert", "a", "b", "-O", "XYZ"], ["nope"]):
        with pytest.raises(SystemExit) as stop:
            main(args)
        assert stop.value.code == 2
    assert output(capsys, "version").strip() == nn.__version__


def test_sizes_that_nothing_holds_are_clean_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx = pytest.importorskip("onnx")
    for size in (2**32, 2**40, 2**62):
        ends = [onnx.helper.make_tensor_value_info(n, 1, [size, 3]) for n in "xy"]
        node = onnx.helper.make_node("Relu", ["x"], ["y"])
        graph = onnx.helper.make_graph([node], "net", ends[:1], ends[1:])
        onnx.save(onnx.helper.make_model(graph), tmp_path / "m.onnx")
        for command in ("view", "dump"):
            assert main([command, str(tmp_path / "m.onnx")]) == 1
            error = capsys.readouterr().err
            assert f"nnl {command}: error: {tmp_path / 'm.onnx'}: " in error
            assert "impossible shape" in error or "takes 48 GiB" in error


def test_a_lack_of_memory_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any) -> Any:
        raise MemoryError("Unable to allocate 9 GiB")

    monkeypatch.setattr("nnl.cli.networks.view.read_model", none)
    assert main(["view", "m.onnx"]) == 5
    want = "nnl view: error: m.onnx: there is not enough memory: Unable to allocate 9 GiB"
    assert want in capsys.readouterr().err
