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
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from nnl.ext.cuda.kernels.module import COMPILER, Code, Dims, Function, text_of

HERE = Path(__file__).parent
FOLDER = Path(tempfile.gettempdir()) / f"nnl-shim-{os.getuid()}"
FLAGS = ("-std=c++17", "-O0", "-fPIC", "-fno-strict-aliasing", "-w", "-ffp-contract=off")
PROBLEMS = {
    1: "its structure of parameters has another size",
    2: "its blocks are too large",
    3: "its threads wait for each other at different places",
}
REVERSED = {"threads": False}  # whether threads and blocks run from the last to the first


def available() -> bool:
    return shutil.which("g++") is not None


def _compile(*arguments: str, target: Path) -> None:
    """Run g++ into a file of another name, which then becomes `target`."""
    made = target.with_name(f"{os.getpid()}-{target.name}")
    done = subprocess.run(
        ["g++", *FLAGS, *arguments, "-o", str(made)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[:4000]
    os.replace(made, target)


@cache
def prelude() -> Path:
    """A header with what all kernels begin with, compiled beforehand."""
    text = (HERE / "shim.h").read_text() + text_of("device.cuh")
    folder = FOLDER / hashlib.sha1((text + str(FLAGS)).encode()).hexdigest()
    header = folder / "prelude.h"
    compiled = folder / "prelude.h.gch"
    if not compiled.exists():
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / f"{os.getpid()}.h"
        source.write_text(text)
        os.replace(source, header)
        _compile("-x", "c++-header", str(header), target=compiled)
    return header


def build(codes: Iterable[Code]) -> ctypes.CDLL:
    """One library with all these kernels; taken from a folder of temporary files if it is there."""
    codes = list(codes)
    files = list(dict.fromkeys(f for c in codes for f in c.files))
    bodies = list(dict.fromkeys(c.body for c in codes))
    text = "\n".join([*(text_of(f) for f in files), *bodies])
    header = prelude()
    path = header.parent / f"{hashlib.sha1(text.encode()).hexdigest()}.so"
    if not path.exists():
        source = path.with_suffix(f".{os.getpid()}.cpp")
        source.write_text(text)
        _compile("-shared", "-include", str(header), str(source), target=path)
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


T = TypeVar("T")
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


def together(run: Callable[[], T]) -> T:
    """What `run` returns, after compiling all that it launches in one go."""
    if COMPILER.functions is not FUNCTIONS:  # a GPU's, which compiles one at a time
        return run()
    codes: dict[Code, None] = {}
    with recording(codes):
        run()
    compile_all(codes)
    return run()


def compile_all(codes: Iterable[Code]) -> None:
    """Compile many kernels in one go, which takes far less time than one by one."""
    new = [c for c in codes if c not in FUNCTIONS]
    if new:
        lib = build(new)
        FUNCTIONS.update({c: function_of(lib, c.name) for c in new})
