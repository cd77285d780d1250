# SPDX-License-Identifier: Apache-2.0
"""nnl forward and bench whose pieces run on workers give what one process gives."""

from __future__ import annotations

import csv
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.cli.main import main
from nnl.cli.training import remote
from tests.cli.test_convert import write_network


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A network of 4 samples, and 11 rows."""
    monkeypatch.chdir(tmp_path)
    write_network(tmp_path / "m.nnp")
    rng = np.random.default_rng(0)
    rows = [["x", 'a "b",\nc']]
    for i in range(11):
        np.save(f"x{i}.npy", rng.normal(size=(1, 8, 8)).astype(np.float32))
        rows.append([f"x{i}.npy", str(i)])
    with open("data.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    return ["forward", "-c", "m.nnp", "-d", "data.csv"]


@pytest.fixture(params=["local", "dask", "ray"])
def on(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "local":
        yield "local:2"
    elif request.param == "dask":
        distributed = pytest.importorskip("distributed")
        with distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster:
            yield cluster.scheduler_address.replace("tcp://", "dask://")
    else:
        address = os.environ.get("NNL_TEST_RAY")
        if not address:
            pytest.skip("NNL_TEST_RAY names no server, as ray://127.0.0.1:10001")
        yield address


def test_rows_come_in_their_order(
    files: list[str], on: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*files, "-o", "one"]) == 0
    assert main([*files, "-o", "several", "--on", on]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "several/output_result.csv: 11 rows"
    one, several = (Path(d, "output_result.csv").read_bytes() for d in ("one", "several"))
    assert one == several and one.count(b"\n") == 13
    assert [*os.listdir("several")] == ["output_result.csv"]


def test_caches_are_those_of_one_process(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("many.csv", "w") as file:
        file.writelines(["x,y\n", *[f"x{i % 11}.npy,{i}\n" for i in range(250)]])
    assert main(["conv_dataset", "-S", "many.csv", "one"]) == 0
    assert main(["conv_dataset", "-S", "many.csv", "several", "--on", "local:2"]) == 0
    one, several = ({p.name: p.read_bytes() for p in Path(d).iterdir()} for d in ("one", "several"))
    assert one == several and len(one) == 3 + 4
    assert capsys.readouterr().out.splitlines()[-1].startswith("several: rows 250")
    assert main(["conv_dataset", "one", "other", "--on", "local:2"]) == 2
    assert "conv_dataset: --on, but one is no .csv file" in capsys.readouterr().err
    assert not [p for p in os.listdir() if p.startswith(".pieces")]


class Dies(remote.Workers):
    """The first time, what runs a piece is killed in it."""

    size = 1

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def submit(self, *arguments: Any) -> Any:
        self.calls.append(arguments[0])
        code = -signal.SIGKILL if len(self.calls) == 2 else remote.run(*arguments)
        return Done(code)


class Done:
    def __init__(self, code: int) -> None:
        self.code = code

    def done(self) -> bool:
        return True

    def result(self) -> int:
        return self.code


def test_a_piece_whose_process_dies_is_done_again(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Dies()
    monkeypatch.setitem(remote.KINDS, "local:", (lambda _: workers, r"\d", ""))
    monkeypatch.setattr("nnl.cli.training.run.PER_WORKER", 3)
    assert main([*files, "-o", "one"]) == 0
    assert main([*files, "-o", "several", "--on", "local:1"]) == 0
    ranges = [c[c.index("--rows") + 1] for c in workers.calls]
    assert ranges == ["0:4", "4:8", "8:11", "4:8"]
    assert (
        Path("one/output_result.csv").read_bytes() == Path("several/output_result.csv").read_bytes()
    )


def test_a_piece_that_fails_is_named(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("x9.npy").unlink()
    assert main([*files, "-o", "out", "--on", "local:1"]) == 1
    said = capsys.readouterr().err
    assert "piece 3 of 3: " in said and "x9.npy" in said and "there is no such file" in said
    assert os.listdir("out") == []
    for wrong in ("local:0", "local:two", "dask://here", "slurm:4"):
        assert main([*files, "-o", "out", "--on", wrong]) == 2
        assert f"forward: --on is {wrong!r}, wanted local:N, dask" in capsys.readouterr().err


@pytest.mark.long  # the tests of ONNX are read in four processes
def test_tests_of_operators_come_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    from nnl.deep500.report import load

    monkeypatch.chdir(tmp_path)
    args = ["bench", "op", "test_add", "test_gru_defaults", "--backends", "reference,nnl"]
    assert main([*args, "--json", "one.json"]) == 0
    assert main([*args, "--json", "several.json", "--on", "local:2"]) == 0
    first, second = (load(f) for f in ("one.json", "several.json"))
    assert first.rows == second.rows and len(first.rows) == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == lines[3:]
    assert sorted(os.listdir()) == ["one.json", "several.json"]
