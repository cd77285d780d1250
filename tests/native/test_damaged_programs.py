# SPDX-License-Identifier: Apache-2.0
"""Programs that are written well and mean nonsense, run in C++: a good run, or one clean error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.kernels import require_library


@pytest.mark.parametrize("count", [100, pytest.param(5000, marks=pytest.mark.long)])
def test_damaged_programs(count: int, tmp_path: Path) -> None:
    require_library()
    command = [sys.executable, "-m", "tests.native.damaged_programs", str(count), "0"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    *complaints, last = done.stdout.splitlines() or [""]
    assert done.returncode == 0 and complaints == [], (done.stdout, done.stderr[-2000:])
    assert count * 0.9 > int(last.split()[0]) > count * 0.1, last
