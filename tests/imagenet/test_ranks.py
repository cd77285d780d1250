# SPDX-License-Identifier: Apache-2.0
"""train.py in several processes: they agree, and what ends one of them ends none of the work."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.communicators.ranks import need_mpi
from tests.imagenet.test_checkpoint import everything_in

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.long

# train.py knows the small network then
SCRIPT = f"""
import os, sys
sys.path[:0] = [{str(ROOT / "examples" / "imagenet")!r}, {str(ROOT)!r}]
from tests.imagenet.conftest import NETWORKS, Network, tiny
NETWORKS["tiny"] = Network(tiny, 32)
import train
open(sys.argv.pop() + "." + os.environ.get("PMI_RANK", "0"), "w").write(str(os.getpid()))
sys.exit(train.main())
"""


def launched(folder, out, *options):
    """A job of two processes; their ids are written to files in the folder."""
    need_mpi()
    (folder / "script.py").write_text(SCRIPT)
    usual = "--network tiny --engine synthetic --batch-size 4 --no-export --ema 0.9 --sync-bn"
    command = [sys.executable, "-m", "nnl.launch", "-n", "2", str(folder / "script.py")]
    command += [*usual.split(), *options, "--out", str(out), str(folder / "pid")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, text=True, env=environment, **pipes)


def ended(job):
    said, _ = job.communicate(timeout=120)
    return job.returncode, said


def wait_for(path):
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"{path} is not there")


@pytest.mark.parametrize("mode", ["static", "coexecute"])
def test_two_processes_go_on_bit_by_bit(tmp_path, mode):
    few = ("--samples", "64", "--epochs", "2", "--mode", mode)
    assert ended(launched(tmp_path, tmp_path / "whole", *few))[0] == 0
    code, said = ended(launched(tmp_path, tmp_path / "parts", *few, "--steps", "11"))
    assert code == 0 and said.count("stopped at step 11, --resume goes on") == 1
    assert ended(launched(tmp_path, tmp_path / "parts", *few, "--resume"))[0] == 0
    assert everything_in(tmp_path / "whole") == everything_in(tmp_path / "parts")


@pytest.mark.parametrize("whom", ["launcher", "rank"])
def test_what_ends_a_job_leaves_a_checkpoint(tmp_path, whom):
    out = tmp_path / "run"
    path = out / "checkpoint.safetensors"
    many = ("--samples", "64000", "--epochs", "2")
    job = launched(tmp_path, out, *many, "--checkpoint-minutes", "0.01")
    wait_for(path)
    if whom == "launcher":
        job.send_signal(signal.SIGTERM)
        code, said = ended(job)
        assert code == 128 + signal.SIGTERM and "--resume goes on" in said
    else:
        os.kill(int((tmp_path / "pid.1").read_text()), signal.SIGKILL)
        code, said = ended(job)
        assert code and "rank 1 was killed by SIGKILL" in said
    before = everything_in(out)
    job = launched(tmp_path, out, *many, "--resume", "--checkpoint-minutes", "0.01")
    changed = path.stat().st_mtime_ns
    while path.stat().st_mtime_ns == changed and job.poll() is None:
        time.sleep(0.1)
    job.send_signal(signal.SIGTERM)
    assert ended(job)[0] == 128 + signal.SIGTERM
    after = everything_in(out)
    steps = next(k for k in after if k.endswith("/t"))
    assert int.from_bytes(after[steps], "little") > int.from_bytes(before[steps], "little")
