# SPDX-License-Identifier: Apache-2.0
"""benchmarks/gpu.py and run.sh start anywhere, and say what a machine lacks."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from nnl.ext import cuda

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
gpu = pytest.importorskip("gpu")


@pytest.mark.skipif(not cuda.missing("cudnn"), reason="this machine lacks nothing")
@pytest.mark.parametrize(
    "command", [[sys.executable, "benchmarks/gpu.py"], ["sh", "tests/cuda/run.sh"]]
)
def test_without_a_gpu_they_say_what_is_missing(tmp_path, command):
    done = subprocess.run(
        [*command, str(tmp_path)] if command[0] == "sh" else command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 2
    assert "this machine lacks NVIDIA's driver (libcuda.so.1)" in done.stdout
    assert ("pip install 'nnl[cuda13]'" in done.stdout) == (find_spec("cupy") is None)


def test_the_best_batch_counts_and_is_compared_with_the_best_of_pytorch(capsys):
    rows = {
        "resnet50-half": {
            "nnl": {
                "128": {"seconds": 0.032, "memory_bytes": 9e9},
                "256": {"seconds": 0.08, "memory_bytes": 2e10},
            },
            "torch": {"128": {"seconds": 0.064, "memory_bytes": 1e10}, "256": {"error": "memory"}},
            "torch-compile": {"128": {"error": "it took more than 420 s"}},
        },
        "lenet-float": {
            "nnl": {"64": {"seconds": 1e-4, "memory_bytes": 1e9}},
            "torch": {"64": {"seconds": 4e-4, "memory_bytes": 1e9}},
        },
    }
    gpu.table({"gpu": "some GPU", "date": "today", "rows": rows})
    text = capsys.readouterr().out
    assert "resnet50-half: 2.00 x PyTorch, goals [3000.0, 4500.0, 7000.0]: 1 met" in text
    assert "4000 images/s  batch 128, 9.0 GB" in text
    assert "torch-compile  -  it took more than 420 s" in text
    assert "lenet-float: 4.00 x PyTorch, goals [0.15]: 1 met" in text


def test_an_engine_that_fails_leaves_its_last_line(monkeypatch, tmp_path):
    (tmp_path / "gpu_worker.py").write_text("raise RuntimeError('out of memory')")
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    found = gpu.measure("nnl", gpu.ROWS["lenet-float"], 64, 60.0)
    assert found == {"error": "RuntimeError: out of memory"}
