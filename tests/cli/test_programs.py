# SPDX-License-Identifier: Apache-2.0
"""Programs (.nnlp) on the command line: made of networks, looked at, run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.cli.main import main
from nnl.core.parameters import safetensors
from nnl.utils.save import save
from tests.cli.test_convert import code_of, write_network
from tests.graph.saved import training_step


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_network(tmp_path / "m.nnp")


@pytest.fixture
def programs(file: Path) -> Path:
    """Programs of two batch sizes."""
    path = file.with_suffix(".nnlp")
    assert run("convert", file, path, "-E", 0, "-b", "1,4") == 0
    return path


def run(*args: object) -> int:
    return main([str(a) for a in args])


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_programs_of_an_onnx_file_compute_what_onnx_runtime_does(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    assert run("convert", file, tmp_path / "m.onnx", "-E", 0, "-b", -1) == 0
    assert run("convert", tmp_path / "m.onnx", tmp_path / "o.nnlp", "-b", "1,4", "--verify") == 0
    assert "largest difference" in capsys.readouterr().out
    found = nn.load_program(tmp_path / "o.nnlp")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    for size in (4, 1):
        x = normal(size, 1, 8, 8)
        (want,) = session.run(None, {"x": x})
        got = found.run(f"batch_{size}", x=x)
        assert list(got) == ["out"]
        np.testing.assert_allclose(got["out"], want, rtol=1e-5, atol=1e-6)
    assert [nd.spec.size for nd in found.arrays.values()].count(27 * 5) == 1  # shared


def test_each_executor_becomes_a_program_and_all_share_parameters(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "m.nnlp"
    assert run("convert", file, out, "--verify") == 0
    found = nn.load_program(out)
    assert list(found) == ["e", "g"] and caplog.text == ""
    assert len(found.arrays) == 8 and "rng" not in found.arrays
    assert found.inputs("e")["x"].shape == (1, 1, 8, 8)
    x = normal(1, 1, 8, 8)
    exponentials = np.exp(found.run("g", x=x)["y"])
    want = exponentials / exponentials.sum()
    np.testing.assert_allclose(found.run("e", x=x)["out"], want, rtol=1e-5)
    assert run("convert", file, out, "-b", "2,3") == 0
    names = ["e_batch_2", "e_batch_3", "g_batch_2", "g_batch_3"]
    assert list(nn.load_program(out)) == names
    assert len(nn.load_program(out).arrays) == 8
    assert run("convert", file, out, "-E", 1, "-b", 2) == 0
    assert nn.load_program(out).outputs()["y"].shape == (2, 5)


def test_parts_of_a_network_become_programs(file: Path, tmp_path: Path) -> None:
    assert run("convert", file, tmp_path / "o.nnlp", "-E", 0, "-S", "0-2,3-", "--verify") == 0
    assert run("convert", file, tmp_path / "w.nnlp", "-E", 0) == 0
    first, second, whole = (
        nn.load_program(tmp_path / f"{name}.nnlp") for name in ("o_0_2", "o_3_6", "w")
    )
    x = normal(1, 1, 8, 8)
    (h,) = first.run(x=x).items()
    got = second.run(**dict([h]))["out"]
    np.testing.assert_allclose(got, whole.run(x=x)["out"], rtol=1e-5)


def test_networks_that_draw_random_numbers_are_verified_and_equal_in_bytes(tmp_path: Path) -> None:
    z = nn.Variable((2, 4))
    y = PF.affine(z + F.randn(shape=(2, 4)), 3)
    t = F.tanh(F.random_flip(z))
    net = {"name": "g", "batch_size": 2, "outputs": {"y": y, "t": t}, "names": {"z": z}}
    executors = [{"name": n, "network": "g", "data": ["z"], "output": [n]} for n in "yt"]
    save(tmp_path / "r.nnp", {"networks": [net], "executors": executors})
    nn.clear_parameters()
    assert run("convert", tmp_path / "r.nnp", tmp_path / "a.nnlp", "--verify") == 0
    assert run("convert", tmp_path / "r.nnp", tmp_path / "b.nnlp") == 0
    assert (tmp_path / "a.nnlp").read_bytes() == (tmp_path / "b.nnlp").read_bytes()
    found = nn.load_program(tmp_path / "a.nnlp")
    first, second = (found.run("y", z=normal(1, 4))["y"] for _ in range(2))
    assert not np.allclose(first, second)


def test_verify_sees_a_program_that_is_not_its_source(
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = nn.graph.saving.files.Programs.run

    def run_otherwise(self, *args, **inputs):
        return {k: v + 1 for k, v in wrong(self, *args, **inputs).items()}

    monkeypatch.setattr(nn.graph.saving.files.Programs, "run", run_otherwise)
    assert run("convert", file, tmp_path / "o.nnlp", "--verify") == 1
    assert "differs from its source" in capsys.readouterr().err
    assert not (tmp_path / "o.nnlp").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["m.nnp", "o.nnlp", "-d", "3"], "the format NNLP has no versions to choose from"),
        (["m.nnp", "o.nnlp", "-b", "-1"], "the batch size is -1, wanted at least 1: every program"),
        (["m.nnp", "o.nnlp", "-b", "4,0"], "the batch size is 0, wanted at least 1"),
        (
            ["m.nnp", "o.onnx", "-b", "1,2"],
            "several batch sizes in one file are for NNLP, not ONNX",
        ),
        (["m.nnp", "o.nnlp", "--nnp-parameter-h5"], "of parameters are for NNP, not NNLP"),
        (["m.nnp", "o.nnlp", "--ir_version", "8"], "--ir_version is for ONNX, not NNLP"),
        (["m.nnp", "o.onnx", "-O", "NNLP"], "o.onnx has the extension of ONNX, but NNLP was asked"),
        (["m.nnlp", "o.onnx"], "become no other format: convert what this was made from"),
        (["m.nnlp", "o.nnlp"], "become no other format"),
        (["folder.nnlp", "o.onnx"], "become no other format"),
        (["m.nnp", "folder.nnlp"], "folder.nnlp is a folder, wanted a file"),
        (["m.nnp", "no/o.nnlp"], "no/o.nnlp: there is no folder no"),
        (["none.nnp", "o.nnlp"], "there is no file none.nnp"),
        (
            ["fixed.nnp", "o.nnlp", "-b", "3"],
            "fixed.nnp: the batch size is fixed, so it cannot be 3",
        ),
    ],
)
def test_what_cannot_become_a_program_is_told(
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(programs.parent)
    Path("folder.nnlp").mkdir()
    x = nn.Variable((2, 3))
    y = F.reshape(x, (3, 2))
    net = {"name": "n", "batch_size": 2, "outputs": {"y": y}, "names": {"x": x}}
    save("fixed.nnp", {"networks": [net]}, variable_batch_size=False)
    before = sorted(p.name for p in Path().iterdir())
    capsys.readouterr()
    assert run("convert", *args) == code_of(message)
    error = capsys.readouterr().err
    assert error.startswith("nnl convert: error: ") and message in error
    assert sorted(p.name for p in Path().iterdir()) == before


def test_a_batch_size_that_is_none_is_a_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run("convert", "m.nnp", "o.nnlp", "-b", "1,q")
    assert stop.value.code == 2
    assert (
        "'1,q' is no batch size, wanted one such as 8, or several: 1,8" in capsys.readouterr().err
    )


# ---- looking ----


def test_view_shows_steps_and_totals(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("view", programs) == 0
    text = capsys.readouterr().out
    found = nn.load_program(programs)
    for name in found:
        assert f"program {name}\n{found[name].text()}\n\n" in text
    count = 3 * 9 + 3 + 2 * 3 + 27 * 5 + 5
    assert f"{count + 0} parameters and 6 other numbers" in text
    assert run("view", programs, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    one, four = (data["programs"][f"batch_{n}"] for n in (1, 4))
    assert four["inputs"] == {"x": [4, 1, 8, 8]} and four["outputs"] == {"out": [4, 5]}
    assert one["parameters"] == four["parameters"] == count
    assert data["arrays"]["f/affine/W"] == {"shape": [27, 5], "dtype": "float32", "bytes": 540}
    steps = four["program"]["steps"]
    assert four["steps"] == len(steps)
    # of the products alone: two operations for each of 9 weights, 3 maps, 6x6 places, 4 images
    least = 2 * 4 * (9 * 3 * 36 + 27 * 5)
    assert least <= four["operations"] <= 2 * least
    assert four["operations"] == sum(s["flops"] for s in steps) > one["operations"]
    assert four["bytes"] == sum(s["bytes"] for s in steps)


def test_view_shows_a_training_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = training_step(lambda x: PF.affine(x, 3, name="fc") ** 2, S.Momentum(0.1))
    step(x=nn.Variable((2, 4)))
    step.save(tmp_path / "step.nnlp")
    assert run("view", tmp_path / "step.nnlp") == 0
    text = capsys.readouterr().out
    for phase in ("forward", "backward", "update"):
        assert f"# {phase}" in text
    assert "15 parameters" in text and "return loss=" in text


def test_function_info_lists_the_ops_of_programs(
    programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run("function_info", programs) == 0
    names = capsys.readouterr().out.split()
    assert {"softmax", "max_pooling"} <= set(names) and names == sorted(set(names))
    assert run("function_info", programs, "-f", "ONNX") == 1
    assert "-f and -c are about functions, a program has steps" in capsys.readouterr().err
    assert run("function_info", programs.with_suffix(".nnp"), "-f", "NNLP") == 0
    assert "Softmax" in capsys.readouterr().out


# ---- running ----


def test_infer_runs_the_program_of_a_batch_size(
    programs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(programs.parent)
    x = normal(4, 1, 8, 8)
    np.save("x.npy", x)
    Path("x.bin").write_bytes(x.tobytes())
    want = nn.load_program("m.nnlp").run("batch_4", x=x)["out"]
    assert run("infer", "-c", "m.nnlp", "-b", 4, "x.npy") == 0
    assert run("infer", "-c", "m.nnlp", "-b", 4, "x.bin") == 0
    np.testing.assert_array_equal(np.load("output_0.npy"), want)
    for i, row in enumerate(want):
        np.testing.assert_array_equal(np.fromfile(f"output_{i}.bin", "f4"), row)
    capsys.readouterr()
    for args, message in (
        ([], "m.nnlp has 2 programs among batch_1, batch_4, wanted one: -b chooses"),
        (["-b", 8], "m.nnlp has 0 programs of batch size 8 among batch_1, batch_4, wanted one"),
        (["-b", 1], "x.npy is (4, 1, 8, 8), the input 'x' is (1, 1, 8, 8)"),
        (["-b", 4, "-p", "w.h5"], "m.nnlp has its parameters in it: leave -p out"),
    ):
        assert run("infer", "-c", "m.nnlp", *args, "x.npy") == (2 if "-p" in args else 1)
        assert message in capsys.readouterr().err


def test_forward_runs_a_program_over_a_data_set(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(programs.parent)
    x = normal(6, 1, 8, 8)
    for i, image in enumerate(x):
        np.save(f"{i}.npy", image)
    Path("d.csv").write_text("x\n" + "".join(f"{i}.npy\n" for i in range(6)))
    assert run("forward", "-c", "m.nnlp", "-b", 4, "-d", "d.csv", "-o", "out") == 0
    lines = Path("out/output_result.csv").read_text().splitlines()
    got = np.array([[float(c) for c in line.split(",")[1:]] for line in lines[1:]])
    found = nn.load_program("m.nnlp")
    want = np.concatenate([found.run("batch_1", x=image[None])["out"] for image in x])
    np.testing.assert_allclose(got, want, rtol=1e-5)


# ---- damaged and other files ----


def newer(path: Path) -> None:
    data = np.fromfile(path, np.uint8)
    entries, meta = safetensors.read_header(data, "")
    arrays = {k: data[e.begin : e.end].view(e.dtype).reshape(e.shape) for k, e in entries.items()}
    safetensors.save(path, arrays, {**meta, "version": "99"})


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("command", ["view", "infer", "function_info", "load"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Path.unlink, "there is no file m.nnlp"),
        (folder, "m.nnlp is a folder, wanted a file"),
        (newer, "m.nnlp: has version 99 of the format, this nnl reads 3: a newer nnl is needed"),
        (lambda p: p.write_bytes(b""), "m.nnlp: the file is empty"),
        (
            lambda p: p.write_bytes(p.read_bytes()[:900]),
            "bytes of the file; the file is damaged, or",
        ),
        (lambda p: p.write_bytes(p.read_bytes()[:4]), "m.nnlp: 4 bytes are no safetensors file; "),
        (lambda p: p.write_bytes(p.with_suffix(".nnp").read_bytes()), "m.nnlp: the header claims"),
    ],
)
def test_files_that_are_no_good_programs_are_named(
    programs: Path, monkeypatch, capsys, command, change, message
) -> None:
    monkeypatch.chdir(programs.parent)
    np.save("x.npy", normal(1, 1, 8, 8))
    change(Path("m.nnlp"))
    capsys.readouterr()
    if command == "load":
        with pytest.raises((ValueError, OSError)) as error:
            nn.load_program("m.nnlp")
        known = isinstance(error.value, (FileNotFoundError, IsADirectoryError))
        assert "'m.nnlp'" in str(error.value) if known else message in str(error.value)
        return
    args = {"infer": ["-c", "m.nnlp", "x.npy"]}.get(command, ["m.nnlp"])
    no_file = message.startswith(("there is no file", "m.nnlp is a folder"))
    assert run(command, *args) == (3 if no_file else 1)
    error = capsys.readouterr().err
    assert error.startswith(f"nnl {command}: error: ") and message in error
    assert error.count("error: ") == 1


def test_a_file_of_another_kind_is_told_what_programs_are(file: Path) -> None:
    text = (
        r"m.nnp: it is no program: they are in .nnlp files, which save_program and nnl convert "
        r"write \(the header claims"
    )
    with pytest.raises(ValueError, match=text):
        nn.load_program(file)


def test_costs_that_are_no_numbers_are_damage(
    programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = programs.read_bytes()
    at = data.index(b'"flops":')
    end = data.index(b",", at)
    programs.write_bytes(data[:at] + b'"flops":"' + b"1" * (end - at - 10) + b'"' + data[end:])
    capsys.readouterr()
    assert run("view", programs) == 1
    assert "m.nnlp: damaged: " in capsys.readouterr().err


def test_view_takes_one_file_and_no_batch_size(
    programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run("view", programs, "-b", 4) == 1
    assert "m.nnlp: -b is for networks, a program has its own" in capsys.readouterr().err
    assert run("view", programs, programs) == 1
    assert "programs are viewed one file at a time" in capsys.readouterr().err
