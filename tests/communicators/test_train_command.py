# SPDX-License-Identifier: Apache-2.0
"""`nnl launch -n 2 train` gives what one process gives."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.solvers as S
from nnl.cli.main import main
from tests.cli.training_files import write_training_file
from tests.communicators.ranks import ROOT, finish, need_mpi


def launched(n: int, *words: object) -> tuple[int, str, str]:
    need_mpi()
    command = [sys.executable, "-m", "nnl.launch", "-n", str(n), "train", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return finish(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment))


def alone(*words: object) -> None:
    nn.clear_parameters()
    assert main(["train", *map(str, words)]) == 0


def reported(folder: Path) -> list[float]:
    """All numbers of the monitors."""
    text = (folder / "monitoring_report.yml").read_text()
    return [float(n) for n in re.findall(r": (\d\S*)$", text, re.MULTILINE)]


def test_a_training_file_gives_the_same_in_two_processes(tmp_path: Path) -> None:
    config = write_training_file(tmp_path / "net.nntxt", solver=S.Adam(0.01), update_interval=2)
    alone("-c", config, "-o", tmp_path / "one")
    code, out, err = launched(2, "-c", config, "-o", tmp_path / "two", "--json")
    assert code == 0, err
    assert json.loads(out)["epoch"] == 3 and err.count("2 processes") == 1
    one, two = tmp_path / "one", tmp_path / "two"
    assert len(reported(one)) >= 6
    np.testing.assert_allclose(reported(two), reported(one), rtol=1e-4)
    assert {p.name for p in one.iterdir()} == {p.name for p in two.iterdir()}


def test_two_processes_resume_what_one_has_begun(tmp_path: Path) -> None:
    config = write_training_file(tmp_path / "net.nntxt", solver=S.Momentum(0.1), epochs=4)
    alone("-c", config, "-o", tmp_path / "one")
    alone("-c", config, "-o", tmp_path / "two", "--set", "max_epoch=2")
    code, _, err = launched(2, "-c", config, "-o", tmp_path / "two", "-r")
    assert code == 0, err
    np.testing.assert_allclose(reported(tmp_path / "two"), reported(tmp_path / "one"), rtol=1e-4)


def test_batches_that_the_processes_cannot_share_are_refused(tmp_path: Path) -> None:
    config = write_training_file(tmp_path / "net.nntxt")
    code, _, err = launched(3, "-c", config, "-o", tmp_path / "out")
    assert code == 1 and "the batch size 8 of Main is not divided by 3 processes" in err
    with pytest.raises(SystemExit):
        main(["--mpi", "version"])
