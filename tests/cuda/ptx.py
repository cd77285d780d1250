# SPDX-License-Identifier: Apache-2.0
"""Compiles CUDA C by NVRTC to PTX and interprets it on host memory: see emulator/ptx.h."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

import numpy as np

from nnl.ext.cuda.kernels.module import Code, Dims, Function
from tests.cuda import shim
from tests.cuda.emulator.build import FLAGS, native

SOURCES = Path(__file__).with_name("emulator")
FOLDER = Path(tempfile.gettempdir()) / f"nnl-ptx-{os.getuid()}"
OPTIONS = ("-arch=compute_90", "--std=c++17", "-ftz=true")  # CuPy adds the last one
EVERYTHING = np.array([4096, (1 << 47) - 4096], np.uint64)  # a range with all of the host's memory
POINTER, SIZE = ctypes.c_void_p, ctypes.c_size_t


class Fault(AssertionError):
    """What a text has that the interpreter cannot do, or what a launch did wrong."""


def available() -> bool:
    """Whether there is a g++ to build the interpreter, and NVRTC."""
    if shutil.which("g++") is None:
        return False
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError):  # the second where a library of CUDA is missing
        return False
    return True


def built(name: str, sources: Iterable[Path], flags: tuple[str, ...] = FLAGS) -> Path:
    """A shared library of these sources; taken from a folder of temporary files if it is there."""
    sources = sorted(sources)
    files = [*sources, *sorted(SOURCES.glob("*.h"))]
    told = str(flags) + native(flags)
    text = b"".join([*(f.read_bytes() for f in files), told.encode()])
    folder = FOLDER / hashlib.sha1(text).hexdigest()
    path = folder / name
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)

    def compiled(source: Path) -> str:
        target = folder / f"{source.stem}-{os.getpid()}.o"
        _run("g++", *flags, "-c", str(source), "-o", str(target))
        return str(target)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, sources))
    made = folder / f"{os.getpid()}-{name}"
    _run("g++", "-shared", "-o", str(made), *objects)
    os.replace(made, path)
    for o in objects:
        os.unlink(o)
    return path


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]


@cache
def library() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(built("ptx.so", SOURCES.glob("ptx_*.cpp"))))
    lib.emu_problem.restype = ctypes.c_char_p
    lib.emu_parse.restype, lib.emu_parse.argtypes = POINTER, (ctypes.c_char_p, SIZE)
    lib.emu_free.restype, lib.emu_free.argtypes = None, (POINTER,)
    lib.emu_info.argtypes = (POINTER, ctypes.c_char_p, POINTER)
    lib.emu_global.restype = POINTER
    lib.emu_global.argtypes = (POINTER, ctypes.c_char_p, ctypes.POINTER(SIZE))
    lib.emu_run.argtypes = (
        POINTER, ctypes.c_char_p, POINTER, SIZE, ctypes.c_char_p, POINTER, SIZE,
    )  # fmt: skip
    return lib


class Module:
    """One PTX text."""

    def __init__(self, text: bytes) -> None:
        self.handle = library().emu_parse(text, len(text))
        if not self.handle:
            raise Fault(library().emu_problem().decode())

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            library().emu_free(self.handle)

    def info(self, name: str) -> dict[str, int]:
        values = np.zeros(5, np.uint64)
        assert library().emu_info(self.handle, name.encode(), values.ctypes.data) == 0, name
        names = ("parameter_bytes", "static_shared", "local_bytes", "max_threads", "registers")
        return dict(zip(names, values.tolist(), strict=True))

    def run(
        self,
        name: str,
        grid: Dims,
        block: Dims,
        params: bytes,
        ranges: np.ndarray = EVERYTHING,
        shared: int = 0,
    ) -> None:
        """Launch a kernel.

        Args:
            ranges: Starts and bytes of what it may use.
            shared: Bytes of dynamic shared memory.
        """
        dims = np.array([*grid, *block], np.uint32)
        ranges = np.ascontiguousarray(ranges, np.uint64)
        found = library().emu_run(
            self.handle, name.encode(), dims.ctypes.data, shared, params,
            ranges.ctypes.data, ranges.size // 2,
        )  # fmt: skip
        if found:
            raise Fault(library().emu_problem().decode())


def assembly(source: str, options: tuple[str, ...] = OPTIONS) -> bytes:
    """What NVRTC makes of a source; taken from a folder of temporary files if it is there."""
    from cupy_backends.cuda.libs import nvrtc

    key = f"{nvrtc.getVersion()} {options} {source}"
    path = FOLDER / f"{hashlib.sha1(key.encode()).hexdigest()}.ptx"
    if path.exists():
        return path.read_bytes()
    program = nvrtc.createProgram(source, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, options)
        text = nvrtc.getPTX(program)
    except nvrtc.NVRTCError as e:
        raise AssertionError(nvrtc.getProgramLog(program)[:3000]) from e
    finally:
        nvrtc.destroyProgram(program)
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(f".{os.getpid()}")
    made.write_bytes(text)
    os.replace(made, path)
    return text


@cache
def module_of(source: str) -> Module:
    return Module(assembly(source))


def compile_one(code: Code) -> Function:
    module = module_of(code.source())

    def launch(grid: Dims, block: Dims, params: bytes, stream: int) -> None:
        shim.check_geometry(code.name, grid, block, params)
        ranges = EVERYTHING
        if shim.WATCHED:
            ranges = shim.WATCHED[-1].ranges.reshape(-1, 4)[:, :2]
        module.run(code.name, grid, block, params, ranges)

    return launch


FUNCTIONS: dict[Code, Function] = {}


def in_place() -> AbstractContextManager[None]:
    """Let kernels run in the interpreter."""
    return shim.compiling(compile_one, FUNCTIONS)
