# SPDX-License-Identifier: Apache-2.0
"""benchmarks/gpu.py and run.sh start anywhere, and say what a machine lacks."""

import subprocess
import sys
import time
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


def test_what_tells_most_is_measured_first():
    rows = [gpu.ROWS["resnet50-bfloat16"], gpu.ROWS["gpt2-bfloat16"]]
    work = [(r.model, b, e) for r, b, e in gpu.in_order(rows, list(gpu.ENGINES))]
    assert len(work) == len(set(work)) == 5 * len(gpu.ENGINES)
    assert work[:5] == [
        ("resnet50", 256, "nnl"),
        ("resnet50", 256, "torch"),
        ("gpt2", 32, "nnl"),
        ("gpt2", 32, "torch"),
        ("resnet50", 256, "nnl-compile"),
    ]
    assert {b for _, b, _ in work[:10]} == {256, 32}


def test_a_measurement_ends_in_time_although_a_compiler_of_its_own_goes_on(monkeypatch, tmp_path):
    (tmp_path / "gpu_worker.py").write_text(
        "import os, time\n"
        "child = os.fork()\n"
        f"child and open({str(tmp_path / 'child')!r}, 'w').write(str(child))\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    start = time.monotonic()
    found = gpu.measure("torch-compile", gpu.ROWS["lenet-float"], 64, 4.0)
    assert found == {"error": "it took more than 4 s"} and time.monotonic() - start < 30
    state = Path(f"/proc/{(tmp_path / 'child').read_text()}/stat")

    def ended():
        return not state.exists() or state.read_text().split()[2] == "Z"

    while not ended() and time.monotonic() - start < 30:  # it takes a moment to be killed
        time.sleep(0.05)
    assert ended()
