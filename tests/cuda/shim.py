# SPDX-License-Identifier: Apache-2.0
"""Compiles CUDA kernels with g++ and runs them on host memory, for tests without a GPU."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np

from nnl.ext.cuda.kernels.module import COMPILER, Code, Dims, Function, text_of

HERE = Path(__file__).parent
FOLDER = Path(tempfile.gettempdir()) / f"nnl-shim-{os.getuid()}"
FLAGS = ("-std=c++17", "-O0", "-fPIC", "-shared", "-fno-strict-aliasing", "-w", "-ffp-contract=off")
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


FUNCTIONS: dict[Code, Function] = {}


@contextmanager
def compiling(
    compile: Callable[[Code], Function], functions: dict[Code, Function]
) -> Iterator[None]:
    """Let the compiler be another one for a while."""
    before = COMPILER.compile, COMPILER.functions
    COMPILER.compile, COMPILER.functions = compile, functions
    try:
        yield
    finally:
        COMPILER.compile, COMPILER.functions = before


def in_place() -> AbstractContextManager[None]:
    """Let kernels run on the host."""
    return compiling(compile_one, FUNCTIONS)


@contextmanager
def recording(codes: dict[Code, None]) -> Iterator[None]:
    """Launch nothing, and remember what would have been."""

    def remember(code: Code) -> Function:
        codes[code] = None
        return lambda grid, block, params, stream: None

    with compiling(remember, {}):
        yield


def compile_all(codes: Iterable[Code]) -> None:
    """Compile many kernels in one go, which takes far less time than one by one."""
    new = [c for c in codes if c not in FUNCTIONS]
    if new:
        lib = build(new)
        FUNCTIONS.update({c: function_of(lib, c.name) for c in new})
