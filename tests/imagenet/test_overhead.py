# SPDX-License-Identifier: Apache-2.0
"""benchmarks/imagenet.py --overhead: what it counts, and that it runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_overhead_is_what_steps_of_the_script_take_longer(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import imagenet_overhead

    slow = iter([1.0, 1.0, 3.0, 1.0, 1.0, 2.0, 1.0, 1.0])  # the machine changes its speed

    def side(share):
        def run(n):
            step = share * next(slow)
            return [step * i for i in range(n - 1)] + [step * n]  # and one step is late

        return run

    found = imagenet_overhead.measured(side(1.02), side(1.0), 3)
    assert found["overhead"] == pytest.approx(0.02)
    assert found["quartiles"][1] > 0.5


@pytest.mark.long
def test_it_measures_the_script(tmp_path):
    command = [sys.executable, "imagenet.py", "--overhead", "--networks", "mobilenet_v3_small"]
    command += ["--precisions", "float", "--size", "32", "--batch-size", "2", "--rounds", "2"]
    out = tmp_path / "found.json"
    done = subprocess.run(
        [*command, "--out", str(out)], cwd=BENCHMARKS, capture_output=True, text=True, check=True
    )
    (row,) = json.loads(out.read_text())["rows"].values()
    assert row["script_ms"] > 0 and row["bare_ms"] > 0 and "overhead" in done.stdout
