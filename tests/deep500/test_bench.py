# SPDX-License-Identifier: Apache-2.0
"""nnl bench: reports that can be referred to and compared, and the commands that write them."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

from nnl.cli.main import main  # noqa: E402
from nnl.converters.onnx.file.operators import operator_class  # noqa: E402
from nnl.deep500 import bench, level1, report, zoo  # noqa: E402
from nnl.deep500.report import Report  # noqa: E402
from tests.deep500 import costs  # noqa: E402
from tests.deep500.test_contract import in_tensorflow, installed  # noqa: E402


def test_reports_say_what_they_were_made_with(tmp_path):
    made = Report("op", [{"test": "a", "backend": "nnl", "x_s": float("nan")}])
    made.write(tmp_path / "r.json")
    data = json.loads((tmp_path / "r.json").read_text())
    assert data["id"] == made.id and data["rows"][0]["x_s"] is None
    assert {"python", "numpy", "onnx"} <= set(data["versions"])
    assert {"processor", "cores", "threads", "system"} <= set(data["hardware"])
    assert report.load(tmp_path / "r.json") == Report(
        **{**vars(made), "rows": [{"test": "a", "backend": "nnl", "x_s": None}]}
    )


def test_reports_say_what_columns_mean_and_what_can_be_drawn():
    row = {"model": "m", "backend": "nnl", "phase": "step", "median_s": 2.0, "low_s": 1.0}
    told = Report("network", [row, {**row, "high_s": 3.0, "strange": 1}]).whole()
    columns = {c["name"]: c for c in told["columns"]}
    assert list(columns) == [*row, "high_s", "strange"]
    assert [n for n, c in columns.items() if c["key"]] == ["model", "backend", "phase"]
    assert columns["median_s"]["unit"] == "s"
    assert columns["median_s"]["interval"] == ["low_s", "high_s"]
    assert columns["strange"] == {"name": "strange", "text": "strange", "unit": "", "key": False}
    assert told["plots"] == [
        {"form": "bars", "x": "phase", "y": "median_s", "by": ["backend", "model"]}
    ]
    curve = {"backend": "nnl", "scheme": "server", "ranks": 2, "samples": 8, "train_s": 1.0}
    many = Report("distributed", [{**curve, "loss": 1.0, "accuracy": 0.5}]).whole()["plots"]
    assert [(p["x"], p["y"]) for p in many] == [
        ("samples", "accuracy"), ("train_s", "accuracy"), ("samples", "loss"), ("train_s", "loss"),
    ]  # fmt: skip
    assert all(p["by"] == ["backend", "scheme", "ranks"] for p in many)


def test_changed_and_foreign_files_are_no_reports(tmp_path):
    path = tmp_path / "r.json"
    Report("op", [{"test": "a", "median_s": 1.0}]).write(path)
    path.write_text(path.read_text().replace("1.0", "0.5"))
    with pytest.raises(ValueError, match=r"r\.json: its rows are not those that it was written"):
        report.load(path)
    whole = Report("op").whole()
    for data in ('{"rows": []}', "[" * 10**5, "9" * 5000, json.dumps({**whole, "rows": [1]})):
        path.write_text(data)
        with pytest.raises(ValueError, match=r"r\.json: not a report of nnl bench"):
            report.load(path)
    path.write_text(json.dumps({**whole, "format": 7}))
    with pytest.raises(ValueError, match="a report of format 7, wanted 1"):
        report.load(path)


def test_two_reports_are_compared_row_by_row():
    a = Report("op", [{"test": "t", "backend": "nnl", "status": "pass", "median_s": 2.0}])
    b = Report("op", [{"test": "t", "backend": "nnl", "status": "wrong", "median_s": 1.0}])
    status, seconds = report.compare(a, b)
    assert (status["first"], status["second"]) == ("pass", "wrong")
    assert seconds["what"] == "median_s" and seconds["ratio"] == 0.5
    with pytest.raises(ValueError, match="one report is about op, the other network"):
        report.compare(a, Report("network"))


def test_an_interrupted_run_keeps_its_rows(monkeypatch):
    def some(tests, backend):
        yield bench.operators.Result("test_add", "Add", backend, "pass")
        raise KeyboardInterrupt

    monkeypatch.setitem(bench.TESTS, "check", some)
    made = Report("op")
    bench.operators_of(made, ["nnl"], include=["test_add"], progress=False)
    assert made.ended == "interrupted" and len(made.rows) == 1


def test_back_ends_are_chosen_by_name():
    assert bench.chosen("nnl:numpy, reference") == ["nnl:numpy", "reference"]
    assert {"reference", "nnl"} <= set(bench.chosen(None))
    with pytest.raises(ValueError, match="there is no back end 'tf', wanted one of reference"):
        bench.chosen("tf")


def test_bench_op_and_compare(tmp_path, capsys):
    files = [str(tmp_path / f"{n}.json") for n in "ab"]
    rows = str(tmp_path / "a.csv")
    for file in files:
        args = ["bench", "op", "test_add", "test_gru_defaults", "--backends", "reference"]
        assert main([*args, "--json", file, "--csv", rows, "--failures"]) == 0
    out = capsys.readouterr().out
    assert "reference test_gru_defaults: missing: reference has no operators for" in out
    assert [line.split() for line in out.splitlines()[:2]] == [
        ["backend", "tests", "pass", "missing"], ["reference", "2", "1", "1"],
    ]  # fmt: skip
    with open(rows, newline="") as file:
        assert [r["status"] for r in csv.DictReader(file)] == ["pass", "missing"]
    both = str(tmp_path / "both.json")
    assert main(["bench", "compare", *files, "--json", both]) == 0
    assert capsys.readouterr().out == "nothing has changed\n"
    assert set(report.load(both).settings.values()) == {report.load(f).id for f in files}


def test_bench_network(capsys):
    args = ["bench", "network", "lenet", "--backends", "reference,nnl", "--batch-size", "4"]
    assert main([*args, "--runs", "3", "--train"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = lines[0].split()
    assert names[:3] == ["model", "backend", "phase"] and len(lines) == 5
    assert {"status", "overhead_us", "processor_us", "overhead"} <= set(names)
    assert all("  done" in line and "  own call" in line for line in lines[1:3])
    assert all("  done" in line and "  plain program" in line for line in lines[3:])


def test_bench_optimizer_writes_files_and_four_pictures(tmp_path, capsys):
    pytest.importorskip("sklearn")
    args = ["bench", "optimizer", "--backends", "nnl", "--optimizers", "momentum,native:momentum"]
    args += ["--samples", "200", "--epochs", "2", "--lr", "0.05", "-o", str(tmp_path / "out")]
    rows = str(tmp_path / "rows.json")
    assert main([*args, "--json", rows]) == 0
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names[-2:] == ["nnl_momentum.csv", "nnl_native-momentum.csv"] and len(names) == 6
    tables = []
    for name in names[-2:]:
        with open(tmp_path / "out" / name, newline="") as file:
            tables.append([float(r["loss"]) for r in csv.DictReader(file)])
    np.testing.assert_allclose(tables[0], tables[1], rtol=1e-3)
    found = report.load(rows).rows
    assert {(r["optimizer"], r["baseline"]) for r in found} == {
        ("momentum", "plain loop"), ("native:momentum", "plain program"),
    }  # fmt: skip
    assert all(r["overhead_us"] is not None and r["native_s"] > 0 for r in found)
    assert main([*args[:-1], str(tmp_path / "short"), "--target", "0.01"]) == 0
    assert len((tmp_path / "short" / "nnl_momentum.csv").read_text().splitlines()) == 2


def test_bench_optimizer_compares_step_by_step(tmp_path, capsys):
    """As table 5.4: the distance of every parameter after every step, as CSV too."""
    pytest.importorskip("sklearn")
    rows = tmp_path / "rows.csv"
    args = ["bench", "optimizer", "--backends", "reference", "--lr", "0.01", "--batch-size", "4"]
    args += ["--optimizers", "sgd,adam,native:adam", "--csv", str(rows)]
    assert main([*args, "--steps", "3"]) == 0
    with open(rows, newline="") as file:
        table = list(csv.DictReader(file))
    assert table[-1]["status"] == "missing" and "no optimizer 'adam'" in table[-1]["reason"]
    w = [float(r["distance"]) for r in table if r["parameter"] == "affine8/w"]
    assert len(w) == 3 and 0 < w[0] < w[2]
    assert main([*args, "--steps", "9999"]) == 1
    assert "--steps: 3 optimizers and 449 batches, wanted 2 and 9999" in capsys.readouterr().err


def test_bench_overhead_has_the_form_of_table_6_1(capsys):
    args = ["bench", "overhead", "lenet", "--backends", "nnl,reference", "--epochs", "3"]
    assert main([*args, "--steps", "4", "--batch-size", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:5] == ["model", "optimizer", "backend", "epoch", "native_s"]
    assert [line.split()[3] for line in lines[1:5]] == ["0", "1", "2", "all"]
    assert "reference has no plain program" in lines[5]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "network lenet --batch-size 0",
            "argument --batch-size: '0', wanted a whole number from 1",
        ),
        ("network lenet --runs x", "argument --runs: 'x', wanted a whole number from 1 on"),
        ("optimizer --epochs 0", "argument --epochs: '0', wanted a whole number from 1 on"),
        ("optimizer --optimizers ,", "argument --optimizers: ',' names nothing"),
        ("overhead --epochs 1", "argument --epochs: '1', wanted a whole number from 2 on"),
        ("overhead --optimizer foo", "argument --optimizer: invalid choice: 'foo'"),
        ("distributed -n 2,0", "argument -n/--ranks: '0', wanted a whole number from 1 on"),
        ("distributed lenot", "argument model: invalid choice: 'lenot'"),
    ],
)
def test_wrong_options_are_named_before_anything_runs(words, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", *words.split(), "--backends", "nnl"])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("network lenet --backends ,", 1, "',' names no back end, wanted some of reference, nnl"),
        ("op test_add --backends nnl --json no/a.json", 3, "no/a.json: there is no folder"),
        ("op test_add --backends nnl --table no/a.md", 3, "no/a.md: there is no folder"),
        ("optimizer --backends nnl --optimizers foo", 1, "there is no optimizer 'foo', wanted one"),
        ("optimizer --backends nnl --steps 2 --optimizers no:adam", 1, "no optimizer 'no:adam'"),
        (
            "optimizer --backends nnl --data pictures --samples 9",
            1,
            "7 samples to train on are less",
        ),
    ],
)
def test_what_cannot_be_done_is_said_first(words, code, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *words.split()]) == code
    out, err = capsys.readouterr()
    assert not out and err.startswith("nnl bench: error: ") and said in err


def one_operator(path, op_type="GRU", domain=""):
    """A model of one node with two classes of scores, as a file."""
    onnx = pytest.importorskip("onnx")
    f, info = onnx.TensorProto.FLOAT, onnx.helper.make_tensor_value_info
    weights = [("w", [1, 6, 4]), ("r", [1, 6, 2])] if op_type == "GRU" else []
    node = onnx.helper.make_node(
        op_type, ["x", *[n for n, _ in weights]], ["y"], "one", domain=domain,
        **({"hidden_size": 2} if weights else {}),
    )  # fmt: skip
    shape = ["n", 3, 4] if weights else ["n", 2]
    inputs = [info("x", f, shape), *[info(n, f, s) for n, s in weights]]
    y = info("y", f, None if weights else shape)
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.acme", 1)]
    graph = onnx.helper.make_graph([node], "g", inputs, [y])
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets), path)
    return str(path)


@pytest.mark.parametrize("kind", ["network", "optimizer", "overhead"])
def test_operators_that_a_back_end_lacks_are_named_in_its_row(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, rows = one_operator(tmp_path / "acme.onnx", "Frobnicate", "com.acme"), "rows.json"
    args = ["bench", kind, path, "--backends", "nnl,reference", "--json", rows]
    assert main([*args, *(["--data", "pictures"] if kind == "optimizer" else [])]) == 0
    found = report.load(rows).rows
    assert {r["backend"] for r in found} == {"nnl", "reference"}
    assert all("has no operators for: com.acme.Frobnicate (node" in r["reason"] for r in found)
    assert not list(tmp_path.glob("bench/*.png"))


def test_a_back_end_that_raises_leaves_the_others_their_rows(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise ZeroDivisionError("on purpose")

    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nnl.deep500.networks.reference.ReferenceNetwork._backprop", broken)
    args = ["bench", "optimizer", "--backends", "reference,nnl", "--optimizers", "sgd"]
    args += ["--samples", "200", "--epochs", "1", "--json", "rows.json"]
    assert main(args) == 0
    rows = report.load("rows.json").rows
    assert [(r["backend"], r["status"]) for r in rows] == [("reference", "failed"), ("nnl", "done")]
    assert rows[0]["reason"] == "ZeroDivisionError: on purpose"


def test_labels_are_classes_of_the_scores(tmp_path):
    net = level1.network(one_operator(tmp_path / "relu.onnx", "Relu"), "nnl")
    net.add_loss()
    assert set(level1.batch_for(net, 50)["label"]) == {0, 1}


def test_an_interrupted_comparison_of_networks_keeps_its_rows(tmp_path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("nnl.deep500.networks.nnl.NnlNetwork._infer", interrupted)
    path = tmp_path / "rows.json"
    args = ["bench", "network", "lenet", "--backends", "reference,nnl", "--runs", "2"]
    assert main([*args, "--json", str(path)]) == 130
    found = report.load(path)
    assert found.ended == "interrupted"
    assert [(r["backend"], r["status"]) for r in found.rows] == [("reference", "done")]


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("reference:gpu", "reference has no device 'gpu', wanted cpu"),
        ("onnxruntime:gpu", "onnxruntime has no device 'gpu', wanted cpu or cuda"),
        ("torch:cuda:1", "torch has no device 'cuda:1', wanted cpu or compiled or cpu:compiled or"),
        ("nnl:gpu", "ext_name is 'gpu', wanted one of"),
    ],
)
def test_unknown_devices_are_named(backend, said):
    installed(backend.partition(":")[0])
    (row,) = level1.networks(zoo.lenet(), [backend], 2, 1)
    assert row["status"] == "failed" and said in row["reason"]


def test_back_ends_that_do_not_train_are_rows_where_training_is_asked_for(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    backends = f"{installed('onnxruntime')},reference"
    args = ["--backends", backends, "--json", "rows.json"]
    small = ["--samples", "90", "--epochs", "1", "--optimizers", "sgd"]
    assert main(["bench", "optimizer", *args, *small]) == 0
    first, second = report.load("rows.json").rows
    assert (first["backend"], first["status"]) == ("onnxruntime", "missing")
    assert "onnxruntime-training" in first["reason"] and second["status"] == "done"


def test_interrupted_overheads_keep_the_epochs_that_are_over(tmp_path, monkeypatch):
    step, steps = level1.paired, []

    def interrupted(*calls):
        steps.append(1)
        if len(steps) > 5:
            raise KeyboardInterrupt
        return step(*calls)

    monkeypatch.setattr(level1, "paired", interrupted)
    path = tmp_path / "rows.json"
    args = ["bench", "overhead", "lenet", "--backends", "nnl", "--steps", "2", "--json", str(path)]
    assert main(args) == 130
    assert [r["epoch"] for r in report.load(path).rows] == [0, 1]


def test_unknown_schemes_are_named(capsys):
    assert main(["bench", "distributed", "--schemes", "gossip", "--backends", "nnl"]) == 1
    assert "there is no scheme 'gossip', wanted one of decentralized" in capsys.readouterr().err


@pytest.mark.long
def test_bench_distributed(tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("mpi4py")
    rows = tmp_path / "rows.csv"
    args = ["bench", "distributed", "--backends", "nnl", "-n", "1,3", "--epochs", "2"]
    args += ["--samples", "600", "--lr", "0.05", "--csv", str(rows)]
    assert main(args) == 0
    with open(rows, newline="") as file:
        table = list(csv.DictReader(file))
    assert {r["status"] for r in table} == {"done"}
    names = {(r["scheme"], r["ranks"]) for r in table}
    assert len(names) == 10 and ("async-server", "3") in names
    # once for the whole job: a server that answers every gradient at once has no epochs
    told = Counter((r["scheme"], r["ranks"]) for r in table)
    assert told.pop(("async-server", "3")) == 1 and set(told.values()) == {2}
    assert {r["samples"] for r in table if r["epoch"] == "1"} == {"960", "896"}
    assert {r["baseline"] for r in table} == {"plain loop"}
    assert all(float(r["native_s"]) > 0 and r["overhead_us"] for r in table)
    same = [r["loss"] for r in table if r["ranks"] == "3" and r["epoch"] == "1"]
    np.testing.assert_allclose(float(same[0]), float(same[1]), rtol=1e-4)  # server, decentralized


@pytest.mark.parametrize("backend", ["nnl", "torch"])
def test_the_plain_program_trains_the_same(backend):
    """Its losses are those of the optimizer: only then does comparing their times mean anything."""
    nets = [level1.network(zoo.lenet(), installed(backend)) for _ in range(2)]
    for net in nets:
        net.add_loss()
    plain = nets[0].plain_training("momentum", lr=0.05, momentum=0.9)
    native = level1.optimizer("native:momentum", nets[1], lr=0.05)
    batch = level1.batch_for(nets[0], 8)
    losses = [(plain(batch), float(native.train(batch)["loss"])) for _ in range(5)]
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-4)
    assert losses[-1][0] < losses[0][0]


@pytest.mark.parametrize("backend", ["nnl", "torch"])
def test_what_is_written_by_hand_trains_the_same(backend):
    costs.same(installed(backend))


def test_what_is_written_by_hand_trains_the_same_on_tensorflow():
    in_tensorflow("tests.deep500.costs", "--same", "tensorflow:compiled")


def test_a_static_graph_is_run_from_what_no_other_output_reads():
    net = level1.network(zoo.lenet(), "nnl:numpy")
    net.add_loss()
    net.add_output("maxpool3")
    net.add_node(operator_class("Tanh", zoo.OPSET)("gemm8", outputs="beside"))
    net.add_output("beside")
    batch = level1.batch_for(net, 2)
    outs = net.inference(batch)
    _, recorded, ends = net._static(net._bound(batch))
    assert [net.graph.outputs[recorded.index(e)].name for e in ends] == ["loss", "beside"]
    wanted = level1.network(zoo.lenet(), "reference")
    for name in ("maxpool3", "gemm8"):
        wanted.add_output(name)
    exact = wanted.inference({"x": batch["x"]})
    np.testing.assert_allclose(outs["maxpool3"], exact["maxpool3"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outs["beside"], np.tanh(exact["gemm8"]), rtol=1e-4, atol=1e-5)


def quiet():
    if reason := costs.busy():
        pytest.skip(f"no times now: {reason}")


@pytest.mark.long
@pytest.mark.parametrize("backend", ["nnl", "torch"])
def test_the_layer_costs_little(backend):
    quiet()
    costs.check(installed(backend))


@pytest.mark.long
def test_the_layer_costs_little_on_tensorflow():
    quiet()
    in_tensorflow("tests.deep500.costs", "tensorflow:compiled")


def test_networks_of_the_zoo_give_the_same_everywhere():
    backends = ["reference", "nnl", installed("torch")]
    rows = list(level1.networks(zoo.resnet(), backends, 4, 1, True))
    assert [r["status"] for r in rows] == ["done"] * 6
    assert max(r["difference"] for r in rows) < 1e-3


def test_what_cannot_run_is_a_row():
    rows = list(level1.networks(zoo.lenet(), [installed("onnxruntime")], 2, 1, True))
    assert rows[1]["status"] == "failed" and "onnxruntime runs inference only" in rows[1]["reason"]


def test_drawn_pictures_can_be_told_apart_by_what_makes_them():
    data = zoo.pictures(50)
    assert data["x"].shape == (50, 3, 32, 32) and data["x"].dtype == np.float32
    red, blue = data["x"][:, 0].std((1, 2)), data["x"][:, 2].std((1, 2))
    assert ((red > blue) == (data["label"] < 5)).mean() > 0.8


def test_code_on_the_page_runs(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/deep500.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S):
        exec(compile(block, "deep500.md", "exec"), names)
    assert names["job"].ended == "done" and (tmp_path / "run.csv").exists()


@pytest.mark.long
def test_the_figures_of_the_thesis_are_drawn_by_one_command(tmp_path, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("mpi4py")
    args = ["bench", "experiments", "--backends", "nnl", "--epochs", "2", "--samples", "300"]
    assert main([*args, "-o", str(tmp_path)]) == 0
    names = [Path(line).name for line in capsys.readouterr().out.splitlines()]
    assert names == [f"figure_6_{k}.png" for k in range(1, 7)]
    for name in names:
        with open((tmp_path / name).with_suffix(".csv"), newline="") as file:
            assert len({r["line"] for r in csv.DictReader(file)}) >= 2


def test_reports_of_other_environments_are_joined(tmp_path, capsys):
    other, table = str(tmp_path / "other.json"), tmp_path / "table.md"
    assert main(["bench", "op", "test_add", "--backends", "reference", "--json", other]) == 0
    args = ["bench", "op", "test_add", "--backends", "nnl", "--join", other, "--table", str(table)]
    assert main(args) == 0
    assert "| Add | 1 of 1 | 1 of 1 |" in table.read_text()
