# SPDX-License-Identifier: Apache-2.0
"""nnl infer and forward."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.cli.main import main
from nnl.utils.load import load
from nnl.utils.save import save
from tests.cli.test_convert import write_network
from tests.cli.test_inspect import output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_network(tmp_path / "m.nnp")


@pytest.mark.parametrize("raw", [False, True])
def test_infer_computes_what_the_network_computes(
    file: Path, tmp_path: Path, raw: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    value = np.random.default_rng(0).normal(size=(4, 1, 8, 8)).astype(np.float32)
    path = tmp_path / ("x.bin" if raw else "x.npy")
    path.write_bytes(value.tobytes()) if raw else np.save(path, value)
    output(capsys, "infer", "-c", file, "-o", tmp_path / "y", path)
    samples = [tmp_path / f"y_{i}.bin" for i in range(4)]
    got = np.load(tmp_path / "y_0.npy") if not raw else [np.fromfile(p, "f4") for p in samples]
    p = load(file).networks["n"].parameters
    w = {k: v.variable_instance for k, v in p.items()}
    x = nn.Variable.from_numpy_array(value)
    with nn.parameter_scope("", nn.get_current_parameter_scope()):
        h = PF.convolution(x, 3, (3, 3), name="c1")
        h = F.relu(PF.batch_normalization(h, batch_stat=False, name="b1"))
        y = F.softmax(PF.affine(F.max_pooling(h, (2, 2)), 5, name="f"))
    y.forward()
    assert len(w) == 8
    np.testing.assert_allclose(got, y.d, rtol=1e-5)
    assert main(["infer", "-c", str(file), str(path), str(path)]) == 2
    assert "has 1 inputs ['x'], got 2 files" in capsys.readouterr().err


def test_infer_takes_as_many_samples_as_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], evaluated: tuple[list[str], Any]
) -> None:
    """Raw files as for NNabla, whose -b is 1: here a file of two may have any number of samples."""
    args, want = evaluated
    network, out = args[1], str(tmp_path / "y")
    rows = np.stack([np.load(tmp_path / f"x{i}.npy") for i in range(5)])
    rows.tofile(tmp_path / "x.bin"), rows[0].tofile(tmp_path / "one.bin")
    output(capsys, "infer", "-c", network, "-o", out, tmp_path / "x.bin")
    for i in range(5):
        numbers = [*want[i], want[i].sum(), *want[i]]
        np.testing.assert_allclose(np.fromfile(f"{out}_{i}.bin", "f4"), numbers, rtol=1e-4)
    for options in ([], ["-b", "1"]):
        output(capsys, "infer", "-c", network, "-o", out, *options, tmp_path / "one.bin")
        np.testing.assert_allclose(np.fromfile(f"{out}_0.bin", "f4")[:4], want[0], rtol=1e-4)
    np.save(tmp_path / "x.npy", rows)
    output(capsys, "infer", "-c", network, "-o", out, tmp_path / "x.npy")
    np.testing.assert_allclose(np.load(f"{out}_0.npy"), want, rtol=1e-4)
    args = ["infer", "-c", network, "-b", "-1", str(tmp_path / "one.bin")]
    assert main(args) == 1 and "has 3 numbers, the input 'x' is (2, 3)" in capsys.readouterr().err
    numbers = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    numbers.tofile(tmp_path / "x_int32.bin")  # the type stands in the name
    output(capsys, "infer", "-c", network, "-o", out, tmp_path / "x_int32.bin")
    w = {k: v.d for k, v in nn.get_parameters().items()}
    expected = numbers[1] @ w["affine/W"] + w["affine/b"]
    np.testing.assert_allclose(np.fromfile(f"{out}_1.bin", "f4")[:4], expected, rtol=1e-4)
    args = ["infer", "-c", network, "-t", "foo", str(tmp_path / "one.bin")]
    assert main(args) == 2 and "-t is 'foo', wanted a type" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "want"), [("", 1.0), ("mean", 1.0), ("std", 1.0), ("last", None)])
def test_an_executor_may_run_the_network_often(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, want: float | None
) -> None:
    """Dropout stays then: of ones, with a half of them left out, come zeros and twos."""
    x = nn.Variable((2, 1))
    net = {"name": "n", "batch_size": 2, "outputs": {"y": F.dropout(x)}, "names": {"x": x}}
    executor = {"name": "e", "network": "n", "data": ["x"], "output": ["y"]}
    executor |= {"num_evaluations": 400, "repeat_evaluation_type": kind}
    save(tmp_path / "m.nnp", {"networks": [net], "executors": [executor]})
    (tmp_path / "d.csv").write_text("x\n1\n1\n1\n")
    args = ["-c", tmp_path / "m.nnp", "-d", tmp_path / "d.csv", "-o", tmp_path, "-b", "-1"]
    output(capsys, "forward", *args)
    text = (tmp_path / "output_result.csv").read_text()
    header, *rows = text.split()
    assert header == ("x,Uncertainty(Std)" if kind == "std" else "x,y")
    for row in rows:
        got = float(row.split(",")[1])
        assert got in (0.0, 2.0) if want is None else abs(got - want) < 0.2


@pytest.fixture
def evaluated(tmp_path: Path) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Options of forward for a vector, a number and a matrix per row; and the numbers."""
    x = nn.Variable((2, 3))
    y = PF.affine(x, 4)
    outputs = {"y": y, "s": F.sum(y, axis=1), "m": F.reshape(y, (2, 2, 2))}
    executor = {"name": "e", "network": "n", "data": ["x"], "output": list(outputs)}
    net = {"name": "n", "batch_size": 2, "outputs": outputs, "names": {"x": x}}
    save(tmp_path / "m.nnp", {"networks": [net], "executors": [executor]})
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for i, row in enumerate(rows):
        np.save(tmp_path / f"x{i}.npy", row)
    lines = [f"x{i}.npy,{i}\n" for i in range(5)]
    (tmp_path / "d.csv").write_text("x,y_label\n" + "".join(lines))
    w = {k: v.d for k, v in nn.get_parameters().items()}
    options = ["-c", tmp_path / "m.nnp", "-d", tmp_path / "d.csv", "-o", tmp_path / "out"]
    return [str(o) for o in options], rows @ w["affine/W"] + w["affine/b"]


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_forward_takes_the_columns_that_the_executor_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in files of Neural Network Console: variables and columns have names of their own."""
    x, z = nn.Variable((2, 3)), nn.Variable((2, 3))
    outputs = {"Out": PF.affine(x + z, 4)}
    net = {"name": "n", "batch_size": 2, "outputs": outputs, "names": {"In": x, "Noise": z}}
    executor = {"name": "e", "network": "n", "data": {"In": "x"}, "output": {"Out": "y'"}}
    executor["generator_variables"] = {"Noise": ("Constant", 2.0)}
    save(tmp_path / "m.nnp", {"networks": [net], "executors": [executor]})
    numbers = np.random.default_rng(0).normal(size=(5, 3)).round(3).astype(np.float32)
    lines = [",".join(map(str, row)) + f",{i}\n" for i, row in enumerate(numbers)]
    (tmp_path / "d.csv").write_text("x__0,x__1,x__2,i\n" + "".join(lines))
    output(capsys, "conv_dataset", "-S", tmp_path / "d.csv", tmp_path / "d.cache")
    w = {k: v.d for k, v in nn.get_parameters().items()}
    want = (numbers + 2) @ w["affine/W"] + w["affine/b"]
    for data in ("d.csv", "d.cache"):
        out = tmp_path / f"{data}.out"
        output(capsys, "forward", "-c", tmp_path / "m.nnp", "-d", tmp_path / data, "-o", out)
        rows = table(out / "output_result.csv")
        order = [int(row["i"]) for row in rows]
        assert sorted(order) == list(range(5)) and (order == sorted(order)) == (data == "d.csv")
        for i, row in zip(order, rows, strict=True):
            got = [float(row[f"y'__{j}"]) for j in range(4)]
            np.testing.assert_allclose(got, want[i], rtol=1e-4, atol=1e-5)


def test_forward_runs_an_executor_that_generates_all_that_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A network that draws pictures: the rows of the data set are only as many as are wanted."""
    z = nn.Variable((2, 3))
    net = {"name": "n", "batch_size": 2, "outputs": {"y": PF.affine(z, 4)}, "names": {"z": z}}
    executor = {"name": "e", "network": "n", "data": {}, "output": ["y"]}
    executor["generator_variables"] = {"z": ("Constant", 2.0)}
    save(tmp_path / "m.nnp", {"networks": [net], "executors": [executor]})
    (tmp_path / "d.csv").write_text("number\n" + "".join(f"{i}\n" for i in range(5)))
    w = {k: v.d for k, v in nn.get_parameters().items()}
    want = np.full(3, 2.0) @ w["affine/W"] + w["affine/b"]
    for options in ([], ["-b", "3"]):
        args = ["-c", tmp_path / "m.nnp", "-d", tmp_path / "d.csv", "-o", tmp_path, *options]
        output(capsys, "forward", *args)
        rows = table(tmp_path / "output_result.csv")
        assert [row["number"] for row in rows] == list("01234")
        for row in rows:
            got = [float(row[f"y__{j}"]) for j in range(4)]
            np.testing.assert_allclose(got, want, rtol=1e-5)


def test_forward_goes_through_a_data_set(
    tmp_path: Path, evaluated: tuple[list[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    args, want = evaluated
    assert "5 rows" in output(capsys, "forward", *args)
    path = tmp_path / "out" / "output_result.csv"
    rows = table(path)
    assert len(rows) == 5 and b"\r" not in path.read_bytes()  # lines end as NNabla's do
    for i, row in enumerate(rows):
        # vectors have the columns that NNabla gives them, and that its data sets have
        assert list(row) == ["x", "y_label", "y__0", "y__1", "y__2", "y__3", "s", "m"]
        assert (row["x"], row["y_label"]) == (f"x{i}.npy", str(i))
        got = [float(row[f"y__{j}"]) for j in range(4)]
        np.testing.assert_allclose(got, want[i], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(float(row["s"]), want[i].sum(), rtol=1e-4, atol=1e-5)
        assert row["s"] == str(np.float32(row["s"]))  # no digits that mean nothing
        np.testing.assert_allclose(np.load(tmp_path / "out" / row["m"]).ravel(), got, rtol=1e-6)


def test_infer_and_forward_print_json(
    tmp_path: Path, evaluated: tuple[list[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    args, _ = evaluated
    found = json.loads(output(capsys, "forward", *args, "--json"))
    assert found["file"] == str(tmp_path / "out" / "output_result.csv") and found["rows"] == 5
    assert found["columns"] == ["y__0", "y__1", "y__2", "y__3", "s", "m"]
    assert found["confusion"] is None
    np.save(tmp_path / "x.npy", np.zeros((2, 3), np.float32))
    options = ["-c", args[1], "-o", tmp_path / "r", tmp_path / "x.npy", "--json"]
    files = json.loads(output(capsys, "infer", *options))["files"]
    assert list(files) == [str(tmp_path / f"r_{i}.npy") for i in range(3)]
    assert files[str(tmp_path / "r_0.npy")] == "y float32 (2, 4)"


def test_forward_counts_what_a_classifier_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    x = nn.Variable((2, 3))
    net = {"name": "n", "batch_size": 2, "outputs": {"y": F.softmax(x)}, "names": {"x": x}}
    executor = {"name": "e", "network": "n", "data": ["x"], "output": {"y": "y'"}}
    save(tmp_path / "m.nnp", {"networks": [net], "executors": [executor]})
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(20, 3)), rng.integers(3, size=20)
    args = ["-c", tmp_path / "m.nnp", "-d", tmp_path / "d.csv", "-o", tmp_path, "--json"]

    def confusion(titles: str, columns: np.ndarray[Any, Any]) -> Any:
        lines = [",".join(map(str, row)) for row in columns.tolist()]
        (tmp_path / "d.csv").write_text("\n".join([titles, *lines]))
        return json.loads(output(capsys, "forward", *args))["confusion"]

    found = confusion("y,x__0,x__1,x__2", np.column_stack([labels, scores]))
    want = metrics.confusion_matrix(labels, scores.argmax(1))
    assert found["label"] == "y" and found["counts"] == want.tolist()
    assert found["accuracy"] == metrics.accuracy_score(labels, scores.argmax(1))
    macro = metrics.f1_score(labels, scores.argmax(1), average="macro")
    assert found["macro"]["f1"] == pytest.approx(macro)
    assert confusion("x__0,x__1,x__2", scores) is None
    assert confusion("z,x__0,x__1,x__2", np.column_stack([labels + 0.5, scores])) is None


def test_forward_puts_arrays_where_result_outdir_says(
    tmp_path: Path, evaluated: tuple[list[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    args, want = evaluated
    output(capsys, "forward", *args, "--result_outdir", "arrays/here", "-f", "r.csv")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["arrays", "r.csv"]
    for i, row in enumerate(table(tmp_path / "out" / "r.csv")):
        assert row["m"] == f"arrays/here/m_{i}.npy"
        value = np.load(tmp_path / "out" / row["m"])
        np.testing.assert_allclose(value.ravel(), want[i], rtol=1e-4, atol=1e-5)


def test_forward_replaces_paths_of_files_that_exist(
    tmp_path: Path, evaluated: tuple[list[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    args, _ = evaluated
    data = tmp_path / "d.csv"
    data.write_text(data.read_text().replace("x", "./x").replace("./x,", "x,"))
    output(capsys, "forward", *args, "--replace_path")
    for i, row in enumerate(table(tmp_path / "out" / "output_result.csv")):
        assert (row["x"], row["y_label"]) == (str(tmp_path / f"x{i}.npy"), str(i))


def test_forward_names_a_data_set_that_is_none(
    tmp_path: Path, evaluated: tuple[list[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    args, _ = evaluated
    args[args.index("-d") + 1] = args[1]
    assert main(["forward", *args]) == 1
    assert "m.nnp is no .csv file: " in capsys.readouterr().err


def test_forward_names_a_column_of_another_shape(
    tmp_path: Path, evaluated: tuple[list[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d.csv").write_text("x__0,x__1\n" + "1,2\n" * 4)
    assert main(["forward", *evaluated[0]]) == 1
    text = "the column 'x' has samples of the shape (2,), the network wants (3,)"
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(("text", "words"), [("", "no header"), ("x\n", "a header and no rows")])
def test_forward_wants_a_header_and_rows(
    tmp_path: Path,
    evaluated: tuple[list[str], Any],
    text: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "d.csv").write_text(text)
    assert main(["forward", *evaluated[0]]) == 1
    assert f"d.csv has {words}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
