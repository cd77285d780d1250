# SPDX-License-Identifier: Apache-2.0
"""Thousands of damaged files: a good result, or one clean error that names the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.converters.damaged_files import KINDS
from tests.native.kernels import require_library

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as on Linux")


def check(kind: str, count: int, seed: int, folder: Path) -> None:
    command = [sys.executable, "-m", "tests.converters.damaged_files", kind, str(count), str(seed)]
    done = subprocess.run([*command, str(folder / kind)], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines, (done.returncode, done.stdout, done.stderr[-2000:])
    assert lines[:-1] == []
    good = int(lines[-1].split()[0])
    assert count * 0.9 > good > 0, lines[-1]  # the damage does not hit, or hits always


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(kind: str, tmp_path: Path) -> None:
    if kind == "onnx":
        pytest.importorskip("onnx")
    if kind.endswith("in C++"):
        require_library()
    check(kind, 120, 0, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_files(kind: str, tmp_path: Path) -> None:
    if kind == "onnx":
        pytest.importorskip("onnx")
    if kind.endswith("in C++"):
        require_library()
    for seed in range(1, 4):
        folder = tmp_path / str(seed)
        folder.mkdir()
        check(kind, 1500, seed, folder)
