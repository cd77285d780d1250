# SPDX-License-Identifier: Apache-2.0
"""Level 2: one to four ranks talk, and train to what one process with all the data trains to."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("onnx")

from nnl.deep500.distributed import Communication, mpi_fork  # noqa: E402
from tests.communicators.ranks import ROOT, need_mpi, run  # noqa: E402


def content(folder, n, quick=False):
    code = f"from tests.deep500.distributed_ranks import check\ncheck({quick})"
    out = run(folder, n, code)
    assert all(f"rank {r} of {n} is content" in out for r in range(n))


def test_two_ranks(tmp_path):
    content(tmp_path, 2, quick=True)


@pytest.mark.long
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_all_numbers_of_ranks(n, tmp_path):
    content(tmp_path, n)


def test_a_script_starts_itself_again(tmp_path):
    need_mpi()
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from nnl.deep500.distributed import Communication, mpi_fork\n"
        "if mpi_fork(2) == 'child':\n"
        "    c = Communication()\n"
        "    print('', c.rank, c.size, *sys.argv[1:], '')\n"
        "else:\n"
        "    print('parent')\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), "word"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "parent"
    assert {"0", "1"} <= set(done.stdout.split()) and done.stdout.count("word") == 2


def test_a_failing_rank_is_reported(tmp_path):
    need_mpi()
    script = tmp_path / "script.py"
    script.write_text(
        "from nnl.deep500.distributed import mpi_fork\n"
        "if mpi_fork(1) == 'child':\n"
        "    raise SystemExit(3)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and "mpi_fork: a process has ended with exit code 3" in done.stderr


def test_one_process_has_nobody_to_talk_to():
    c = Communication()
    with pytest.raises(ValueError, match="there is one rank, and nobody to send to"):
        c.send_to_root(1.0)
    with pytest.raises(ValueError, match="mpi_fork: n is 0, wanted a number of processes >= 1"):
        mpi_fork(0)
