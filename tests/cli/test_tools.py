# SPDX-License-Identifier: Apache-2.0
"""The smaller commands: plots, drawings, text files of parameters, optimize, doctor; and errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.monitor as M
import nnl.parametric_functions as PF
from nnl.cli import doctor
from nnl.cli.main import COMMANDS, EXAMPLES, main, parser
from nnl.cli.networks.optimize import Optimized
from nnl.converters.formats import read_model
from nnl.utils.save import save
from tests.cli.test_convert import write_network


def output(capsys: pytest.CaptureFixture[str], *args: object, code: int = 0) -> str:
    capsys.readouterr()
    assert main([str(a) for a in args]) == code
    printed = capsys.readouterr()
    return printed.out if code == 0 else printed.err


# ---- plots and drawings ----


def test_series_and_timers_are_plotted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monitor = M.Monitor(str(tmp_path / "m"))
    series = M.MonitorSeries("loss", monitor, interval=1, verbose=False)
    timer = M.MonitorTimeElapsed("time", monitor, interval=1, verbose=False)
    for i in range(4):
        series.add(i, i * i)
        timer.add(i)
    files = [str(p) for p in sorted((tmp_path / "m").iterdir())]
    drawn: list[Any] = []
    monkeypatch.setattr(pyplot, "savefig", lambda path: drawn.append((path, pyplot.gca())))
    out = tmp_path / "plot.png"
    args = ["-o", out, "-l", "a", "-x", "steps", "-t", "title", "-T", 10, "-L", 1]
    output(capsys, "plot_series", files[0], files[0], *args)
    path, axes = drawn.pop()
    assert path == str(out) and axes.get_xlabel() == "steps" and axes.get_title() == "title"
    assert axes.get_ylim()[1] == 10 and axes.get_xlim()[0] == 1
    assert [line.get_label() for line in axes.get_lines()] == ["a", files[0]]
    assert axes.get_lines()[0].get_ydata().tolist() == [0, 1, 4, 9]
    output(capsys, "plot_timer", files[1], "-e", "-u", "m", "-o", out)
    assert drawn.pop()[1].get_ylabel() == "Total elapsed time [minutes]"
    assert "there is no file none" in output(capsys, "plot_series", "none", "-o", out, code=3)
    (tmp_path / "bad.txt").write_text("a b")
    error = output(capsys, "plot_series", tmp_path / "bad.txt", "-o", out, code=1)
    assert "bad.txt is no file of a monitor" in error
    assert "try: -o plot.png" in output(capsys, "plot_series", files[0], code=1)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """Convolution, batch normalisation, dropout and an affine function in the words of ONNX."""
    rng = np.random.default_rng(0)
    x = nn.Variable((2, 3, 6, 6))
    h = PF.convolution(x, 4, (3, 3), name="conv")
    h = F.dropout(F.relu(PF.batch_normalization(h, batch_stat=False)))
    h = F.reshape(F.global_average_pooling(h), (2, 4))
    with nn.parameter_scope("last"):
        w = nn.parameter.get_parameter_or_create("W", (4, 5))
        b = nn.parameter.get_parameter_or_create("b", (1, 5))
        product = F.batch_matmul(F.reshape(h, (1, 2, 4)), F.reshape(w, (1, 4, 5)))
        y = F.add2(F.reshape(product, (2, 5)), b)
    for v in nn.get_parameters(grad_only=False).values():
        v.d = rng.normal(size=v.shape).astype(np.float32)
    nn.get_parameters(grad_only=False)["bn/var"].d = 1 + rng.random((1, 4, 1, 1), np.float32)
    net = {"name": "net", "batch_size": 2, "outputs": {"y": y}, "names": {"x": x}}
    run = {"name": "run", "network": "net", "data": ["x"], "output": ["y"]}
    contents = {"networks": [net], "executors": [run]}
    save(tmp_path / "net.nnp", contents, variable_batch_size=False)
    return tmp_path / "net.nnp"


def test_networks_are_drawn(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("graphviz")
    out = tmp_path / "out"
    assert output(capsys, "draw_graph", network, "-o", out, "-f", "gv") == f"{out / 'net.gv'}\n"
    text = (out / "net.gv").read_text()
    assert all(name in text for name in ("Convolution", "conv/conv/W", "BatchMatmul"))
    assert "no network 'a'" in output(capsys, "draw_graph", network, "-n", "a", "-o", out, code=1)


def test_networks_are_drawn_without_graphviz(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "graphviz", None)
    output(capsys, "draw_graph", network, "-o", tmp_path, "-f", "svg")
    root = ElementTree.parse(tmp_path / "net.svg").getroot()
    boxes = root.findall("{*}g")
    titles = [b.find("{*}title").text for b in boxes]
    assert {"Convolution", "conv/conv/W", "BatchMatmul"} <= set(titles)
    corners = {(float(r.get("x")), float(r.get("y"))) for b in boxes for r in b.findall("{*}rect")}
    assert len(corners) == len(boxes)  # none lies on another one
    lines = re.findall(r"M\S+ (\S+?)L\S+ ([\d.]+)", root.find("{*}path").get("d"))
    assert len(lines) >= len(boxes) - 1 and all(float(a) < float(b) for a, b in lines)
    error = output(capsys, "draw_graph", network, "-o", tmp_path, code=4)
    assert "needs the package graphviz for png" in error and "try: -f svg" in error


# ---- parameters ----


def test_parameters_go_to_text_and_back(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "text"
    output(capsys, "decode_param", "-p", network, "-o", out)
    lines = (out / "conv~conv~W.txt").read_text().splitlines()
    assert lines[0] == "(4, 3, 3, 3)" and len(lines) == 1 + 4 * 27
    output(capsys, "encode_param", "-i", out, "-p", tmp_path / "p.h5")
    want = {k: v.d.copy() for k, v in nn.get_parameters(grad_only=False).items()}
    nn.clear_parameters()
    nn.load_parameters(tmp_path / "p.h5")
    found = {k: v.d for k, v in nn.get_parameters(grad_only=False).items()}
    assert found.keys() == want.keys() and all((found[k] == want[k]).all() for k in want)
    for content, text in (
        ("__import__('os')\n1", "wanted a shape such as (3, 4)"),
        ("(2,)\n1\nx", "could not convert string to float: 'x'"),
        ("(3,)\n1\n2", "has 2 numbers for the shape (3,)"),
    ):
        (out / "a.txt").write_text(content)
        error = output(capsys, "encode_param", "-i", out, "-p", tmp_path / "p.h5", code=1)
        assert "a.txt" in error and text in error


# ---- optimize ----


def test_optimize_folds_and_joins(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = output(capsys, "optimize", network, tmp_path / "o.nnp", "--json")
    result = json.loads(text)
    assert result["before"]["functions"]["BatchNormalization"] == 1
    assert set(result["after"]["functions"]) == {
        "Convolution", "ReLU", "GlobalAveragePooling", "Reshape", "Affine",
    }  # fmt: skip
    assert result["largest_difference"] < 1e-5
    x = np.random.default_rng(1).normal(size=(2, 3, 6, 6)).astype(np.float32)
    a, b = (read_model([str(p)])[0].network(inference=True) for p in (network, tmp_path / "o.nnp"))
    np.testing.assert_allclose(b.run({"x": x})["y"], a.run({"x": x})["y"], rtol=1e-4, atol=1e-5)
    lines = output(capsys, "optimize", network, tmp_path / "o.nnp").splitlines()
    assert lines[0] == str(tmp_path / "o.nnp") and "largest difference" in lines[-1]


def test_what_differs_is_not_written(
    network: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = Optimized.network

    def wrong(self: Any, batch_size: Any = None, inference: bool = False) -> Any:
        found = right(self, batch_size, inference)
        found.outputs = {n: 1.1 * y for n, y in found.outputs.items()}
        return found

    monkeypatch.setattr(Optimized, "network", wrong)
    error = output(capsys, "optimize", network, tmp_path / "o.nnp", code=1)
    assert "nothing was written" in error and not (tmp_path / "o.nnp").exists()
    assert "no file none.nnp" in output(capsys, "optimize", "none.nnp", tmp_path / "o.nnp", code=3)


def test_nnb_template_takes_one_executor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yaml = pytest.importorskip("yaml")
    file, sizes = write_network(tmp_path / "m.nnp"), []
    for i in (0, 1):
        output(capsys, "nnb_template", "-E", i, file, tmp_path / "t.yaml")
        sizes.append(len(yaml.safe_load((tmp_path / "t.yaml").read_text())["variables"]))
    assert sizes[0] != sizes[1]


# ---- doctor, and what all commands say ----


def test_doctor_looks_at_what_there_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {f["name"]: f for f in json.loads(output(capsys, "doctor", "--json"))}
    assert found["training"]["state"] == found["cpu"]["state"] == "ok"
    assert found["numpy"]["text"] == np.__version__

    def broken() -> str:
        raise ArithmeticError("the loss is 4.0, wanted 3")

    monkeypatch.setattr(doctor, "_train", broken)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "broken   training" in text and "the loss is 4.0, wanted 3" in text
    assert "pip install 'nnl[plot]'" in text


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["trian"], "invalid choice: 'trian'\n  try: train, did you mean that?"),
        (["train", "-c", "a", "-o", "b", "--ouput", "c"], "try: --outdir, did you mean that?"),
        (["train"], "the following arguments are required: -c/--config, -o/--outdir\n  try: nnl"),
    ],
)
def test_wrong_usage_says_what_may_have_been_meant(
    capsys: pytest.CaptureFixture[str], args: list[str], text: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert stop.value.code == 2
    assert text in capsys.readouterr().err


def test_errors_are_json_where_the_results_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "net.nnp").touch()
    path = str(tmp_path / "nett.nnp")
    error = json.loads(output(capsys, "view", path, "--json", code=3))
    assert error["code"] == "not_found" and error["where"] == path
    assert error["hint"] == str(tmp_path / "net.nnp")
    with pytest.raises(SystemExit):
        main(["view", "--json"])
    assert json.loads(capsys.readouterr().err)["code"] == "usage"


def test_every_command_is_in_the_help_and_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)
    assert "130 interrupted" in " ".join(text.split())
    for name in COMMANDS:
        with pytest.raises(SystemExit) as stop:
            main([name, "--help"])
        text = capsys.readouterr().out
        assert stop.value.code == 0 and text.startswith(f"usage: nnl {name}")
        assert f"Example: nnl {name} {EXAMPLES[name]}" in " ".join(text.split())
        assert parser(name).parse_args([name, *EXAMPLES[name].split()]).command == name


def test_help_comes_without_the_framework() -> None:
    code = "import sys; sys.argv = ['nnl', '--help']\nfrom nnl_ext.start import main\ntry: main()\n"
    code += "except SystemExit: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {"numpy", "nnl.core", "nnl.cli.training.train", "nnl.cli.networks.convert"}


def test_an_interrupt_before_the_command_began_is_one_line() -> None:
    code = """
import sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "nnl.cli.training.train":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
sys.argv = ["nnl", "train", "-c", "x.nnp", "-o", "out"]
from nnl_ext.start import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "nnl: error: interrupted\n")


def test_commands_run_where_stdout_is_closed() -> None:
    command = f'"{sys.executable}" -m nnl.cli.main version >&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_told_of_arrays_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a file that may not grow, numpy only says how many bytes it has written."""
    np.save(tmp_path / "x.npy", np.zeros((1, 3), np.float32))
    x = nn.Variable((1, 3))
    net = {"name": "n", "batch_size": 1, "outputs": {"y": F.tile(x, (1, 4000))}, "names": {"x": x}}
    save(tmp_path / "m.nnp", {"networks": [net]})
    command = f'ulimit -f 4; exec "{sys.executable}" -m nnl.cli.main infer -c m.nnp x.npy'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1 and "could not be written whole" in done.stderr
    assert "try: free some space" in done.stderr and not list(tmp_path.glob("output*"))
