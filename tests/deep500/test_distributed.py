# SPDX-License-Identifier: Apache-2.0
"""Level 2: one to four ranks talk, and train to what one process with all the data trains to."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("onnx")

from nnl.deep500.distributed import (  # noqa: E402
    Communication,
    NativeConsistentNeighbors,
    mpi_fork,
)
from nnl.deep500.optimizers import NativeGradientDescent  # noqa: E402
from tests.communicators.ranks import ROOT, need_mpi, run  # noqa: E402
from tests.deep500.distributed_ranks import built  # noqa: E402
from tests.deep500.models import digits  # noqa: E402
from tests.deep500.test_contract import python_with  # noqa: E402


def content(folder, n, call, **settings):
    code = f"from tests.deep500 import distributed_ranks\ndistributed_ranks.{call}"
    out = run(folder, n, code, **settings)
    assert all(f"rank {r} of {n} is content" in out for r in range(n))


def test_two_ranks(tmp_path):
    content(tmp_path, 2, "check(quick=True)")


@pytest.mark.long
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_all_numbers_of_ranks(n, tmp_path):
    content(tmp_path, n, "check()", seconds=240)


@pytest.mark.long
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_native_schemes_of_tensorflow_equal_the_reference(n, tmp_path):
    python = python_with("TensorFlow", "NNL_TENSORFLOW_PYTHON")
    call = "check_native('tensorflow', 'tensorflow:compiled')"
    content(tmp_path, n, call, python=python, seconds=240)  # importing TensorFlow takes most of it


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


def test_native_schemes_need_gradients_that_can_be_changed():
    base = NativeGradientDescent(built())
    base.parts.change_gradients = None  # as on torch:cuda
    with pytest.raises(
        NotImplementedError,
        match="NativeConsistentNeighbors: nnl does not give its gradients to change",
    ):
        NativeConsistentNeighbors(base).train(digits(4))


def test_one_process_has_nobody_to_talk_to():
    c = Communication()
    with pytest.raises(ValueError, match="there is one rank, and nobody to send to"):
        c.send_to_root(1.0)
    with pytest.raises(ValueError, match="mpi_fork: n is 0, wanted a number of processes >= 1"):
        mpi_fork(0)
