# SPDX-License-Identifier: Apache-2.0
"""Folders of C, compiled and run: for comparing them with their source."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnl.converters.runtimes.others import Runtime, Values

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror")


def compiled(path: str, name: str, flags: Sequence[str] = ("-O1",)) -> Runtime | None:
    """The example program of a folder; None where there is no C compiler (CC, else cc).

    Args:
        path, name: Where the folder is, and what messages call it.
        flags: For the compiler, beside those that the code promises to do with.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    folder = Path(path).resolve()
    own = tempfile.TemporaryDirectory()  # goes with the function that runs what is in it
    program = Path(own.name, "example")

    def run(values: Values) -> Sequence[Any]:
        if not program.exists():
            sources = sorted(folder.glob("*.c"))
            _run([compiler, *STRICT, *flags, "-o", program, *sources, "-lm"], folder, name)
        inputs = []
        for i, value in enumerate(values.values()):
            inputs.append(os.path.join(own.name, f"in{i}.bin"))
            np.ascontiguousarray(value, "<f4").tofile(inputs[-1])
        header, shapes = (folder / "network.h").read_text(), [np.shape(v) for v in values.values()]
        dims = re.findall(r"^   \w+: axis (\d+) of input (\d+),", header, re.M)
        sizes = [str(shapes[int(i)][int(axis)]) for axis, i in dims]
        printed = _run([program, *sizes, *inputs], folder, name)
        return [np.array(part.split(), np.float32) for part in printed.split("\n\n")]

    return Runtime(os.path.basename(compiler), run)


def _run(command: Sequence[Any], folder: Path, name: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        text = (done.stdout + done.stderr).strip()
        raise ValueError(f"--verify: {os.path.basename(command[0])} fails with {name}: {text}")
    return done.stdout
