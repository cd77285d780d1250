# SPDX-License-Identifier: Apache-2.0
"""nnl convert: what it writes, and that it fails aloud."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.cli.main import convert_main, main
from nnl.converters.networks.model import OnnxFile
from nnl.converters.nnp.messages import parse
from nnl.utils.load import load
from nnl.utils.save import save
from tests.converters.loop_networks import NETWORKS


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A network with two executors, the second without softmax."""
    return write_network(tmp_path / "m.nnp")


def write_network(path: Path) -> Path:
    x = nn.Variable((4, 1, 8, 8))
    h = F.relu(PF.batch_normalization(PF.convolution(x, 3, (3, 3), name="c1"), name="b1"))
    h = F.max_pooling(F.dropout(h, 0.3), (2, 2))
    y = PF.affine(h, 5, name="f")
    net = {"name": "n", "batch_size": 4, "outputs": {"out": F.softmax(y)}, "names": {"x": x}}
    net["names"]["y"] = y
    executors = [
        {"name": "e", "network": "n", "data": ["x"], "output": ["out"]},
        {"name": "g", "network": "n", "data": ["x"], "output": ["y"]},
    ]
    save(path, {"networks": [net], "executors": executors})
    nn.clear_parameters()
    return path


def run(*args: object) -> int:
    return main(["convert", *map(str, args)])


@pytest.mark.parametrize("option", [None, "--nnp-parameter-h5", "--nnp-parameter-nntxt"])
def test_nnp_to_nnp_keeps_everything(file: Path, tmp_path: Path, option: str | None) -> None:
    out = tmp_path / "out.nnp"
    assert run(file, out, "--verify", *([option] if option else [])) == 0
    want = {k: v.d.copy() for k, v in nn.get_parameters(grad_only=False).items()}
    load(file)
    want = {k: v.d.copy() for k, v in nn.get_parameters(grad_only=False).items()}
    nn.clear_parameters()
    info = load(out)
    assert list(info.executors) == ["e", "g"] and info.networks["n"].batch_size == 4
    got = nn.get_parameters(grad_only=False)
    assert list(got) == list(want)
    for k, v in want.items():
        np.testing.assert_array_equal(got[k].d, v)


@pytest.mark.parametrize("kind", [".h5", ".protobuf"])
def test_states_of_solvers_are_kept(tmp_path: Path, kind: str) -> None:
    x = nn.Variable((2, 3))
    y = F.mean(PF.affine(x, 2))
    solver = S.Adam(0.1)
    solver.set_parameters(nn.get_parameters())
    x.d = 1.0
    y.forward()
    y.backward()
    solver.update()
    want = solver.get_states()["affine/W"].pstate["mean"].d.copy()
    net = {"name": "n", "batch_size": 2, "outputs": {"y": y}, "names": {"x": x}}
    data = {"name": "d", "uri": "", "batch_size": 2, "variables": ["x"]}
    optimizer = {"name": "o", "network": "n", "dataset": "d", "solver": solver}
    contents = {"networks": [net], "datasets": [data], "optimizers": [optimizer]}
    save(tmp_path / "m.nnp", contents, include_solver_state=True, solver_state_format=kind)
    assert run(tmp_path / "m.nnp", tmp_path / "o.nnp") == 0
    nn.clear_parameters()
    back = load(tmp_path / "o.nnp").optimizers["o"].solver.get_states()["affine/W"]
    assert back.t == 1 and want.any()
    np.testing.assert_array_equal(back.pstate["mean"].d, want)


def test_loops_are_unrolled_unless_they_shall_stay(tmp_path: Path) -> None:
    (tmp_path / "m.nntxt").write_text(NETWORKS["repeat in a recurrent part"])
    for option, count in (([], 11), (["--nnp-no-expand-network"], 5)):
        assert run(tmp_path / "m.nntxt", tmp_path / "o.nntxt", "--verify", *option) == 0
        message = parse("NNablaProtoBuf", (tmp_path / "o.nntxt").read_bytes(), True, "t")
        assert len(message.network[0].function) == count


def test_equal_input_gives_equal_bytes(file: Path, tmp_path: Path) -> None:
    for kind in ("--nnp-parameter-h5", "--nnp-parameter-nntxt", None):
        contents = []
        for name in ("a.nnp", "b.nnp"):
            assert run(file, tmp_path / name, *([kind] if kind else [])) == 0
            contents.append((tmp_path / name).read_bytes())
        assert contents[0] == contents[1]


def test_several_files_are_one_network(file: Path, tmp_path: Path) -> None:
    load(file)
    nn.save_parameters(tmp_path / "p.h5")
    assert run(file, tmp_path / "n.nntxt", "--nnp-exclude-parameter") == 0
    assert run(tmp_path / "n.nntxt", tmp_path / "p.h5", tmp_path / "out.nnp", "--verify") == 0
    nn.clear_parameters()
    load(tmp_path / "n.nntxt")
    assert not nn.get_parameters()["c1/conv/W"].d.any()


def test_an_executor_can_be_chosen(file: Path, tmp_path: Path) -> None:
    assert run(file, tmp_path / "o.nnp", "-E", 1, "-b", 2) == 0
    info = load(tmp_path / "o.nnp")
    assert list(info.executors) == ["g"]
    assert list(info.networks["n"].outputs) == ["y"] and info.networks["n"].batch_size == 2


def test_ranges_of_functions_become_networks(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.nnp"
    assert run(file, out, "-E", 0, "--split=-2,3-4,5-", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    names = [Path(r["file"]).name for r in report["outputs"]]
    assert names == ["o_0_2.nnp", "o_3_4.nnp", "o_5_6.nnp"] and not out.exists()
    whole = load(file).executors["e"]
    x = next(iter(whole.dataset_assign)).variable_instance
    x.d = value = np.random.default_rng(0).normal(size=x.shape)
    nn.seed(0)
    y = next(iter(whole.output_assign)).variable_instance
    for part in report["outputs"]:
        info = load(part["file"]).executors["runtime"]
        (given,) = info.dataset_assign
        (end,) = info.output_assign
        given.variable_instance.d = value
        nn.seed(0)
        end.variable_instance.forward()
        value = end.variable_instance.d.copy()
    nn.seed(0)
    y.forward()
    assert value.shape == y.d.shape == (4, 5)


def test_a_list_of_functions_cuts_the_network(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "allowed.txt"
    config.write_text("; what the device can\nConvolution,FLOAT32\nReLU\nAffine ; dense\n")
    assert run(file, tmp_path / "o.nnp", "-c", config) == 0
    names = sorted(p.name for p in tmp_path.glob("o_*"))
    assert names == ["o_0_0.nnp", "o_2_2.nnp", "o_5_5.nnp"]
    assert "does not allow function 1, BatchNormalization" in capsys.readouterr().err
    config.write_text("Nothing\n")
    assert run(file, tmp_path / "o.nnp", "-c", config) == 1


def test_a_part_between_two_variables_becomes_a_network(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The part up to y and the part from y on compute together what the whole computes."""
    first, second = tmp_path / "a.nnp", tmp_path / "b.nnp"
    assert run(file, first, "--outputs", "y", "--verify") == 0
    assert run(file, second, "--inputs", "y", "--verify", "--json") == 0
    text = capsys.readouterr().out
    report = json.loads(text[text.index("{") :])
    assert report["outputs"][0]["inputs"] == {"y": [-1, 5]}
    a, b, whole = (load(f).executors for f in (first, second, file))
    (x,) = (v.variable_instance for v in whole["e"].dataset_assign)
    x.d = np.random.default_rng(0).normal(size=x.shape)
    (a_in,), (a_out,) = a["runtime"].dataset_assign, a["runtime"].output_assign
    (b_in,), (b_out,) = b["runtime"].dataset_assign, b["runtime"].output_assign
    a_in.variable_instance.d = x.d
    for v in (a_out, *whole["e"].output_assign):
        nn.seed(0)
        v.variable_instance.forward()
    b_in.variable_instance.d = a_out.variable_instance.d
    b_out.variable_instance.forward()
    (want,) = (v.variable_instance for v in whole["e"].output_assign)
    np.testing.assert_array_equal(b_out.variable_instance.d, want.d)


def test_the_ir_version_of_onnx_can_be_chosen(file: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    for args, version in ((["--ir_version", 9], 9), ([], 8)):
        assert run(file, tmp_path / "o.onnx", "-d", "opset_18", *args) == 0
        assert onnx.load(tmp_path / "o.onnx").ir_version == version


@pytest.mark.parametrize("batch", [None, 3, -1])
def test_onnx_there_and_back(
    file: Path, tmp_path: Path, batch: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx = pytest.importorskip("onnx")
    size = [] if batch is None else ["-b", batch]
    there, back = tmp_path / "m.onnx", tmp_path / "back.nnp"
    assert run(file, there, "-d", "opset_17", "--verify", *size) == 0
    model = onnx.load(there)
    dim = model.graph.input[0].type.tensor_type.shape.dim[0]
    assert model.opset_import[0].version == 17
    assert (dim.dim_param or dim.dim_value) == {None: 1, 3: 3, -1: "batch"}[batch]
    assert run(there, back, "--verify") == 0
    assert "largest difference: 0" in capsys.readouterr().out


def code_of(message: str) -> int:
    """The exit code: 2 for options that cannot be or are for something else, 3 for no file."""
    if re.search(r"wanted FILE|^-[dS] is |^only one| (is|are) for [A-Z]|belong$", message):
        return 2
    return 3 if re.match(r"there is no file|folder\.nnl?p is a folder", message) else 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["m.nnp"], "wanted FILE... OUTPUT, got only m.nnp"),
        (["m.nnp", "o.xyz"], "o.xyz: cannot write the extension '.xyz', only .nnp"),
        (["m.nnp", "o.h5"], "o.h5: cannot write the extension '.h5'"),
        (["m.nnp", "o"], "o: cannot write the extension ''"),
        (["m.abc", "o.nnp"], "m.abc: cannot read the extension '.abc'"),
        (["none.nnp", "o.nnp"], "there is no file none.nnp"),
        (["m.nnp", "no/o.nnp"], "no/o.nnp: there is no folder no"),
        (["m.nnp", "m.nnp"], "m.nnp is both input and output"),
        (["m.nnp", "o.onnx", "-O", "NNP"], "o.onnx has the extension of ONNX, but NNP was asked"),
        (["m.nnp", "o.onnx", "-d", "opset_99"], "opset is 99, wanted"),
        (["m.nnp", "o.onnx", "-d", "nnb_3"], "-d is 'nnb_3', wanted opset_N or a number"),
        (["m.nnp", "o.nnp", "-d", "3"], "the format NNP has no versions to choose from"),
        (["m.nnp", "o.nnp", "-b", "0"], "the batch size is 0, wanted at least 1"),
        (["m.nnp", "o.nnp", "-E", "7"], "there is no executor 7, the file has 2"),
        (["m.nnp", "o.nnp", "-S", "0-99"], "there is no range '0-99' in 7 functions"),
        (["m.nnp", "o.nnp", "-S", "x"], "-S is 'x', wanted ranges such as 0-4,5-"),
        (["m.nnp", "o.nnp", "-S", "0-", "-c", "f"], "only one of -S and -c"),
        (["m.nnp", "o.onnx", "--nnp-parameter-h5"], "of parameters are for NNP, not ONNX"),
        (["m.nnp", "o.onnx", "-T", "FIXED8"], "--default-variable-type is for NNB, not ONNX"),
        (["m.nnp", "o.onnx", "-s", "s.yaml"], "--settings is for NNB, not ONNX"),
        (["m.nnp", "o.onnx", "--api", "3"], "--api is for NNB, not ONNX"),
        (["m.nnp", "o.tflite", "--quantization"], "--quantization and --dataset FILE belong"),
        (
            ["m.nnp", "o.nnb", "--quantization", "--dataset", "d"],
            "--quantization is for ONNX, NNLP, TFLITE and CSRC, not NNB",
        ),
        (["m.nnp", "o.nnp", "--nnp-version", "1.2"], "writes the functions of NNabla 1.39"),
        (["m.nnp", "o.nnp", "--ir_version", "8"], "--ir_version is for ONNX, not NNP"),
        (["m.nnp", "o.onnx", "--ir_version", "99"], "ir_version is 99, wanted 8"),
        (["m.nnp", "o.nnp", "--inputs", "q"], "the network 'n' has no variable 'q', only"),
        (["m.nnp", "o.nnp", "--inputs", "y", "--outputs", "y,x"], "x is needed too"),
        (["m.nnp", "o.nnp", "--outputs", "c1/conv/W"], "has no variable 'c1/conv/W'"),
        (["w.pt", "o.nnp"], "weights and no network, nnl.converters.weights reads them"),
        ([".", "o.nnp"], ". is a folder without saved_model.pb"),
        (["folder.nnp", "o.nnp"], "folder.nnp is a folder, wanted a file"),
        (["m.nnp", "folder.nnp"], "folder.nnp is a folder, wanted a file"),
        (["m.nnp", "bad.onnx", "o.nnp"], "the files are of several formats: NNP, ONNX"),
    ],
)
def test_failures_are_told_and_write_nothing(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    message: str,
) -> None:
    pytest.importorskip("onnx")
    monkeypatch.chdir(file.parent)
    (file.parent / "folder.nnp").mkdir()

    def files() -> dict[str, bytes]:
        return {p.name: p.read_bytes() if p.is_file() else b"" for p in file.parent.iterdir()}

    before = files()
    assert run(*args) == code_of(message)
    error = capsys.readouterr().err
    assert error.startswith("nnl convert: error: ") and message in error
    assert files() == before


@pytest.mark.parametrize("option", ["-I", "-O"])
def test_only_formats_that_exist_can_be_chosen(
    capsys: pytest.CaptureFixture[str], option: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        run("m.nnp", "o", option, "OTHER")
    assert stop.value.code == 2
    assert "invalid choice: 'OTHER' (choose from" in capsys.readouterr().err


def test_a_broken_input_leaves_the_good_output(file: Path, tmp_path: Path) -> None:
    good = tmp_path / "good.nnp"
    assert run(file, good) == 0
    content = good.read_bytes()
    file.write_bytes(file.read_bytes()[:500])
    assert run(file, good) == 1
    assert good.read_bytes() == content and sorted(os.listdir(tmp_path)) == ["good.nnp", "m.nnp"]


def test_constants_of_onnx_models_stay_constants(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Arrays that are no parameters: here the integers that choose rows, and a scalar."""
    onnx = pytest.importorskip("onnx")
    h = onnx.helper
    tensors = [
        onnx.numpy_helper.from_array(np.array([2, 0, 2]), "rows"),
        onnx.numpy_helper.from_array(np.float32(3), "three"),
        onnx.numpy_helper.from_array(np.array([4, -1]), "shape"),
    ]
    nodes = [
        h.make_node("Reshape", ["x", "shape"], ["r"]),
        h.make_node("Gather", ["r", "rows"], ["g"]),
        h.make_node("Mul", ["g", "three"], ["y"]),
    ]
    value = h.make_tensor_value_info
    ends = [value("x", 1, ["N", 4])], [value("y", 1, None)]
    graph = h.make_graph(nodes, "net", *ends, initializer=tensors)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    assert run(tmp_path / "m.onnx", tmp_path / "m.nnp", "--verify", "-b", 2) == 0
    assert "largest difference: 0" in capsys.readouterr().out
    info = load(tmp_path / "m.nnp").networks["net"]
    assert list(info.inputs) == ["x"] and info.batch_size == 2
    assert run(tmp_path / "m.nnp", tmp_path / "o.onnx", "--verify", "-b", -1) == 0
    assert "largest difference: 0" in capsys.readouterr().out and caplog.text == ""


def test_a_fixed_batch_size_stays_fixed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Divided by the batch size, which is a number in the graph."""
    onnx = pytest.importorskip("onnx")
    h = onnx.helper
    nodes = [
        h.make_node("Shape", ["x"], ["s"], start=0, end=1),
        h.make_node("Cast", ["s"], ["n"], to=1),
        h.make_node("Div", ["x", "n"], ["y"]),
    ]
    value = h.make_tensor_value_info
    graph = h.make_graph(nodes, "net", [value("x", 1, ["N", 3])], [value("y", 1, None)])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    assert run(tmp_path / "m.onnx", tmp_path / "m.nnp", "--verify", "-b", 2) == 0
    assert "the batch size is fixed at 2" in caplog.text
    assert run(tmp_path / "m.nnp", tmp_path / "o.nnp", "-b", 3) == 1
    assert "has the fixed batch size 2, so it cannot be 3" in capsys.readouterr().err
    assert run(tmp_path / "m.nnp", tmp_path / "o.onnx", "-b", -1) == 1
    assert "m.nnp: the batch size is fixed, so -1 cannot" in capsys.readouterr().err


def test_verify_compares_with_the_source_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    write_network(tmp_path / "m.nnp")
    assert run(tmp_path / "m.nnp", tmp_path / "m.onnx") == 0
    read = OnnxFile.content

    def forgetful(self: OnnxFile, batch_size: int | None = None) -> Any:
        content = read(self, batch_size)
        content.promised = [p for p in content.stored if not p.name.endswith("W")]
        return content

    monkeypatch.setattr(OnnxFile, "content", forgetful)
    assert run(tmp_path / "m.onnx", tmp_path / "o.nnp", "--verify") == 1
    assert "differs from its source" in capsys.readouterr().err


def test_verify_gives_indices_where_indices_are_read(tmp_path: Path) -> None:
    x, t = nn.Variable((4, 5)), nn.Variable((4, 1))
    y = PF.affine(PF.embed(F.reshape(x, (4, 5, 1)), 7, 6), 5)
    loss = F.mean(F.softmax_cross_entropy(y, t))
    names = {"x": x, "t": t, "y": y}
    net = {"name": "n", "batch_size": 4, "outputs": {"loss": loss}, "names": names}
    executor = {"name": "e", "network": "n", "data": ["x", "t"], "output": ["loss", "y"]}
    save(tmp_path / "m.nnp", {"networks": [net], "executors": [executor]})
    assert run(tmp_path / "m.nnp", tmp_path / "o.nnp", "--verify") == 0


def test_verify_fails_where_the_result_differs(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.nnp"
    assert run(file, out, "--nnp-exclude-parameter", "--verify") == 1
    assert f"{out} differs from its source" in capsys.readouterr().err


def test_functions_without_a_form_in_the_target_are_listed_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    x = nn.Variable((2, 3, 8, 8))
    y = F.random_flip(F.random_crop(x, (3, 4, 4)))
    net = {"name": "n", "batch_size": 2, "outputs": {"y": y}, "names": {"x": x}}
    save(tmp_path / "m.nnp", {"networks": [net]})
    assert run(tmp_path / "m.nnp", tmp_path / "m.onnx") == 4
    assert "ONNX has no form of these functions: RandomCrop, RandomFlip" in capsys.readouterr().err


def test_functions_of_onnx_models_that_nnp_lacks_are_listed_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx = pytest.importorskip("onnx")
    h = onnx.helper
    nodes = [h.make_node("GatherElements", ["x", "index"], ["y"], axis=1)]
    tensors = [onnx.numpy_helper.from_array(np.array([[1, 0], [0, 1]]), "index")]
    value = h.make_tensor_value_info
    ends = [value("x", 1, [2, 2])], [value("y", 1, None)]
    graph = h.make_graph(nodes, "net", *ends, initializer=tensors)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    assert run(tmp_path / "m.onnx", tmp_path / "m.nnp") == 4
    error = capsys.readouterr().err
    assert "NNP has no form of these functions: take_along\n" in error
    assert not (tmp_path / "m.nnp").exists()


def test_equal_input_gives_equal_bytes_in_every_format(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    for kind in ("nnp", "onnx", "nntxt"):
        for name in "ab":
            assert run(file, tmp_path / f"{name}.{kind}") == 0
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
        nn.clear_parameters()
    assert run(tmp_path / "a.onnx", tmp_path / "c.nnp") == 0
    assert run(tmp_path / "a.onnx", tmp_path / "d.nnp", "--verify") == 0
    assert (tmp_path / "c.nnp").read_bytes() == (tmp_path / "d.nnp").read_bytes()


def test_mutated_files_convert_or_fail_with_a_message(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = file.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(60):
        bad = bytearray(good)
        for _ in range(int(rng.integers(1, 5))):
            bad[int(rng.integers(len(bad)))] = int(rng.integers(256))
        file.write_bytes(bytes(bad))
        code = run(file, tmp_path / "out.nnp")
        error = capsys.readouterr().err
        assert code == 0 or (code == 1 and error.startswith("nnl convert: error: "))
        assert (tmp_path / "out.nnp").exists() == (code == 0)
        (tmp_path / "out.nnp").unlink(missing_ok=True)


def test_both_commands_are_one(file: Path, tmp_path: Path) -> None:
    assert convert_main([str(file), str(tmp_path / "o.nnp")]) == 0
    program = [sys.executable, "-m", "nnl.cli.main", "convert", str(file), "x.xyz"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr and not done.stdout
