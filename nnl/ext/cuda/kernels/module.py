# SPDX-License-Identifier: Apache-2.0
"""Compiling and launching CUDA C: by NVRTC through CuPy, or by whatever tests put in its place.

A kernel takes one structure by value, made of 8-byte words: addresses first, then what `words`
packs. So a launch is a few bytes, the same for a device and for the host.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from nnl.ext.device.registry import Kernel, Operand

Dims = tuple[int, int, int]
Ins = list[Operand | None]  # of a setup
Outs = list[Operand]
# (grid, block, parameters, raw stream handle)
Function = Callable[[Dims, Dims, bytes, int], None]

THREADS = 256  # of a block, at most
WAVE = 132 * 8  # blocks of 256 threads that an H200 holds at a time
MOST_ELEMENTS = 1 << 31  # positions are 32 bits wide, and signed in places
MOST_PARAMETER_BYTES = 4000  # of 4096

# Names of element types in device.cuh.
TYPES = {
    "float32": "float",
    "float16": "f16",
    "bfloat16": "bf16",
    "bool": "bool8",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned",
    "int64": "int64",
    "uint64": "uint64",
    "float64": "double",
}
FLOATS = frozenset(["float32", "float16", "bfloat16"])


@dataclass(frozen=True)
class Code:
    """A kernel in CUDA C.

    Attributes:
        name: Of the function; unique to this text.
        files: Names of files in this folder that come before it.
        body: The rest of the source.
    """

    name: str
    files: tuple[str, ...]
    body: str

    def source(self) -> str:
        """The whole text."""
        return "".join(text_of(f) for f in ("device.cuh", *self.files)) + self.body


@cache
def text_of(file: str) -> str:
    """A source file of this folder."""
    return Path(__file__).with_name(file).read_text()


def compile_nvrtc(code: Code) -> Function:
    """The function on the current CuPy device; CuPy keeps the binary in its cache on disk."""
    from cupy_backends.cuda.api import driver

    raw = nvrtc_module(code.source()).get_function(code.name)

    def launch(grid: Dims, block: Dims, params: bytes, stream: int) -> None:
        memory = ctypes.create_string_buffer(params, len(params))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
        driver.launchKernel(raw.kernel.ptr, *grid, *block, 0, stream, ctypes.addressof(pointers), 0)

    return launch


@cache
def nvrtc_module(source: str) -> Any:
    """The module of a source, which may hold several kernels."""
    import cupy

    return cupy.RawModule(code=source, options=("--std=c++17",))


class Compiler:
    """Functions by their code, each compiled when it is first launched.

    Attributes:
        compile: What makes a function; tests put another in place.
    """

    def __init__(self) -> None:
        self.compile: Callable[[Code], Function] = compile_nvrtc
        self.functions: dict[Code, Function] = {}

    def function(self, code: Code) -> Function:
        found = self.functions.get(code)
        if found is None:
            found = self.functions[code] = self.compile(code)
        return found


COMPILER = Compiler()


@dataclass(frozen=True)
class Launch:
    """A kernel with everything but the addresses."""

    code: Code
    grid: Dims
    block: Dims
    rest: bytes

    def run(self, addresses: Sequence[int | None], stream: int) -> None:
        params = struct.pack(f"={len(addresses)}Q", *[a or 0 for a in addresses]) + self.rest
        COMPILER.function(self.code)(self.grid, self.block, params, stream)


def code_of(files: tuple[str, ...], structure: str, call: str, *parts: object) -> Code:
    """A kernel that does nothing but call a template, with a structure as its parameters.

    Args:
        files: As in Code.
        structure: Its type, like "FillP<float>".
        call: What is called with it, like "fill_all<4>".
        parts: Words that make the name, which is to be another for another text.
    """
    name = "_".join(str(p).replace(" ", "") for p in parts)
    body = f"typedef {structure} {name}_P;\nKERNEL({name}, {name}_P) {{ {call}(p); }}\n"
    return Code(name, files, body)


class Launched(Kernel):
    """One launch over inputs and outputs in their order.

    Attributes:
        launches: By whether all arrays start at multiples of 16 bytes.
    """

    launches: dict[bool, Launch]

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: int
    ) -> None:
        addresses = [*ins, *outs]
        self.launches[aligned(addresses)].run(addresses, stream)

    def launch_always(self, launch: Launch) -> None:
        """Launch this, wherever arrays start."""
        self.launches = {True: launch, False: launch}


def words(*values: Any) -> bytes:
    """Integers as int64, floats as float64, sequences and Divisors word by word."""
    parts = []
    for v in values:
        if isinstance(v, float):
            parts.append(struct.pack("=d", v))
        elif isinstance(v, (int, np.integer)):
            parts.append(struct.pack("=Q", int(v) % (1 << 64)))
        else:
            parts.append(words(*v))
    return b"".join(parts)


def divisor(n: int) -> tuple[int, int]:
    """The words of a Divisor by n >= 1."""
    shift = (n - 1).bit_length()
    factor = ((1 << 32) * ((1 << shift) - n)) // n + 1
    return n | factor << 32, shift


def type_of(x: Operand) -> str:
    """The name of an operand's element type in CUDA C."""
    return TYPES[x.dtype.name]


def is_real(*operands: Operand | None) -> bool:
    """Whether all that are given are of float32, float16 or bfloat16, and none is too large."""
    return all(x is None or (x.dtype.name in FLOATS and x.size < MOST_ELEMENTS) for x in operands)


def same_size(x: Operand | None, y: Operand | None) -> bool:
    """Whether both are given and their elements take as many bytes."""
    return x is not None and y is not None and x.dtype.itemsize == y.dtype.itemsize


def aligned(addresses: Sequence[int | None]) -> bool:
    """Whether all start at multiples of 16 bytes."""
    return all(not a or a % 16 == 0 for a in addresses)


def blocks_for(threads: int) -> int:
    """Blocks of 256 threads for a loop whose steps are as long as the grid."""
    return max(1, min(-(-threads // THREADS), WAVE))
