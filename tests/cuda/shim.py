# SPDX-License-Identifier: Apache-2.0
"""Compiles CUDA kernels with g++ and runs them on host memory, for tests without a GPU."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from nnl.ext.cuda.kernels.module import COMPILER, Code, Dims, Function, text_of

HERE = Path(__file__).parent
FOLDER = Path(tempfile.gettempdir()) / f"nnl-shim-{os.getuid()}"
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-fno-strict-aliasing", "-w", "-ffp-contract=off")
PROBLEMS = {
    1: "its structure of parameters has another size",
    2: "its blocks are too large",
    3: "its threads wait for each other at different places",
}
REVERSED = {"threads": False}  # whether threads and blocks run from the last to the first


def available() -> bool:
    return shutil.which("g++") is not None


def build(codes: Iterable[Code]) -> ctypes.CDLL:
    """One library with all these kernels; taken from a folder of temporary files if it is there."""
    codes = list(codes)
    files = list(dict.fromkeys(f for c in codes for f in c.files))
    bodies = list(dict.fromkeys(c.body for c in codes))
    parts = [text_of("device.cuh"), *(text_of(f) for f in files), *bodies]
    text = f'#include "{HERE / "shim.h"}"\n' + "\n".join(parts)
    key = hashlib.sha1((text + (HERE / "shim.h").read_text() + str(FLAGS)).encode()).hexdigest()
    path = FOLDER / f"{key}.so"
    if not path.exists():
        FOLDER.mkdir(exist_ok=True)
        source = FOLDER / f"{key}.{os.getpid()}.cpp"
        source.write_text(text)
        made = source.with_suffix(".so")
        done = subprocess.run(
            ["g++", *FLAGS, str(source), "-o", str(made)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[:4000]
        os.replace(made, path)
        source.unlink()
    return ctypes.CDLL(str(path))


def function_of(lib: ctypes.CDLL, name: str) -> Function:
    run = getattr(lib, name)
    run.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)

    def launch(grid: Dims, block: Dims, params: bytes, stream: int) -> None:
        geometry = np.array([*grid, *block, REVERSED["threads"]], np.uint32)
        problem = run(params, len(params), geometry.ctypes.data)
        assert problem == 0, f"{name}: {PROBLEMS[problem]}"

    return launch


def compile_one(code: Code) -> Function:
    return function_of(build([code]), code.name)


class Recorder:
    """Launches nothing, and remembers the codes: to compile many at a time."""

    def __init__(self) -> None:
        self.codes: dict[Code, None] = {}

    def __enter__(self) -> Recorder:
        self.before = COMPILER.compile, COMPILER.functions
        COMPILER.functions = {}
        COMPILER.compile = self._remember
        return self

    def _remember(self, code: Code) -> Function:
        self.codes[code] = None
        return lambda grid, block, params, stream: None

    def __exit__(self, *error: object) -> None:
        COMPILER.compile, COMPILER.functions = self.before
        new = [c for c in self.codes if c not in COMPILER.functions]
        if new and error[0] is None:
            lib = build(new)
            COMPILER.functions.update({c: function_of(lib, c.name) for c in new})
