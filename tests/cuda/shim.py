# SPDX-License-Identifier: Apache-2.0
"""Compiles CUDA kernels with g++ and runs them on host memory, for tests without a GPU."""

from __future__ import annotations

import ctypes
import hashlib
import math
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
from nnl.ext.cuda.kernels.update import RULES

HERE = Path(__file__).parent
FOLDER = Path(tempfile.gettempdir()) / f"nnl-shim-{os.getuid()}"
FLAGS = (
    "-std=c++17", "-O0", "-fPIC", "-fno-strict-aliasing", "-w", "-ffp-contract=off",
    "-fno-gnu-unique",  # every library has __shared__ arrays of its own
    "-fsanitize=thread,alignment,bounds,shift,signed-integer-overflow",
)  # fmt: skip
PROBLEMS = {  # by their numbers in shim_checks.h
    1: "its structure of parameters has another size",
    2: "its blocks are too large",
    3: "its threads wait for each other at different places",
    4: "it reads or writes outside of the arrays",
    5: "it reads what nothing has written",
    6: "two threads of a block use the same byte with no barrier in between",
    7: "two blocks use the same byte, and one writes it",
    8: "an address is no multiple of what is read or written there",
    9: "it does what C++ leaves undefined",
}
ORDER = {"threads": 0}  # of blocks and threads: forwards, backwards, or a mixture
MOST_THREADS = 256  # that __launch_bounds__ promises
MOST_BYTES = 4096, 32764  # of parameters: everywhere, and from CUDA 12.1 on


def available() -> bool:
    return shutil.which("g++") is not None


def _compile(*arguments: str, target: Path) -> None:
    """Run g++ into a file of another name, which then becomes `target`."""
    made = target.with_name(f"{os.getpid()}-{target.name}")
    done = subprocess.run(["g++", *arguments, "-o", str(made)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    os.replace(made, target)


@cache
def prelude() -> Path:
    """A header with what all kernels begin with, compiled beforehand."""
    parts = ("shim_checks.h", "shim.h")
    text = "".join((HERE / p).read_text() for p in parts) + text_of("device.cuh")
    folder = FOLDER / hashlib.sha1((text + str(FLAGS)).encode()).hexdigest()
    header = folder / "prelude.h"
    compiled = folder / "prelude.h.gch"
    if not compiled.exists():
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / f"{os.getpid()}.h"
        source.write_text(text)
        os.replace(source, header)
        _compile(*FLAGS, "-x", "c++-header", str(header), target=compiled)
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
        made = source.with_suffix(".o")
        _compile(*FLAGS, "-c", "-include", str(header), str(source), target=made)
        # without the sanitizers' libraries, nor what another library calls by their names
        _compile("-shared", "-Wl,-Bsymbolic", str(made), target=path)
        source.unlink()
        made.unlink()
    return ctypes.CDLL(str(path))


def check_geometry(name: str, grid: Dims, block: Dims, params: bytes) -> None:
    """Fail if a GPU would refuse the launch."""
    assert 0 < grid[0] < 1 << 31 and all(0 < n < 1 << 16 for n in grid[1:]), f"{name}: {grid}"
    assert 0 < math.prod(block) <= MOST_THREADS, f"{name}: {block}"
    few, most = MOST_BYTES
    large = name.startswith(("check_finite_", *RULES))
    assert len(params) <= (most if large else few), f"{name}: {len(params)} bytes of parameters"


class Watched:
    """Arrays of which everything is checked that kernels do with them.

    Args:
        read: What inputs are.
        unwritten: Results and scratch memory: nothing may be read before it is written.
    """

    def __init__(self, read: list[np.ndarray], unwritten: list[np.ndarray]) -> None:
        self.maps: dict[tuple[int, int, int], np.ndarray] = {}
        for fill, arrays in ((1, read), (0, unwritten)):
            for x in arrays:
                if x.nbytes:
                    known = np.full(x.size, fill, np.uint8)
                    self.maps.setdefault((x.ctypes.data, x.nbytes, x.itemsize), known)
        rows = [(*k, m.ctypes.data) for k, m in self.maps.items()]
        self.ranges = np.array(rows, np.uint64).reshape(-1)


WATCHED: list[Watched] = []


def function_of(lib: ctypes.CDLL, name: str) -> Function:
    run, pointer = getattr(lib, name), ctypes.c_void_p
    run.argtypes = (ctypes.c_char_p, ctypes.c_size_t, pointer, pointer, ctypes.c_uint64, pointer)

    def launch(grid: Dims, block: Dims, params: bytes, stream: int) -> None:
        check_geometry(name, grid, block, params)
        geometry = np.array([*grid, *block, ORDER["threads"]], np.uint32)
        report = np.zeros(5, np.uint64)
        ranges = WATCHED[-1].ranges if WATCHED else np.zeros(0, np.uint64)
        problem = run(
            params, len(params), geometry.ctypes.data,
            ranges.ctypes.data, ranges.size // 4, report.ctypes.data,
        )  # fmt: skip
        where = "array {1}, element {2}, block {3}, thread {4}".format(*report.tolist())
        assert problem == 0, f"{name}: {PROBLEMS[problem]} ({where})"

    return launch


@contextmanager
def watching(read: list[np.ndarray], unwritten: list[np.ndarray]) -> Iterator[None]:
    """Check all accesses of what is launched; without it only addresses are."""
    WATCHED.append(Watched(read, unwritten))
    try:
        yield
    finally:
        WATCHED.pop()


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
        return lambda grid, block, params, stream: check_geometry(code.name, grid, block, params)

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
