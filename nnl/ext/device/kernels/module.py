# SPDX-License-Identifier: Apache-2.0
"""Kernels as text for CUDA C and OpenCL C, and their launches.

A kernel is a function of arrays and of one structure of 8-byte words, which `words` packs. The text
is the common part of both languages; cuda.cl and opencl.cl define the words in which they differ,
and `Code.source` writes the entry point. Element types and sizes of inner loops are macros.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nnl.ext.device.registry import Kernel, Operand, Registry

Dims = tuple[int, int, int]
Ins = list[Operand | None]  # of a setup
Outs = list[Operand]

MOST_ELEMENTS = 1 << 31  # positions are 32 bits wide, and signed in places
MOST_LANES = 16  # of a vector in OpenCL C
MOST_PARAMETER_BYTES = 4000  # of the 4096 that kernels take

# Names of element types in common.cl.
TYPES = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "bool": "b8",
    "int8": "i8",
    "uint8": "u8",
    "int16": "i16",
    "uint16": "u16",
    "int32": "i32",
    "uint32": "u32",
    "int64": "i64",
    "uint64": "u64",
    "float64": "f64",
}
FLOATS = frozenset(["float32", "float16", "bfloat16"])

SETUPS = Registry()  # of all that is written in shared kernels
register = SETUPS.register


@dataclass(frozen=True)
class Geometry:
    """What kernels are laid out for.

    Attributes:
        threads: Of a block, at most; a power of two.
        team: Threads that share a short row, at most.
        pack: Bytes that a thread reads or writes at a time.
        wave: Blocks of that many threads that the device holds at a time.
        parameters: Whose update one launch has room for.
        double: Whether there is float64.
    """

    threads: int = 256
    team: int = 32
    pack: int = 16
    wave: int = 132 * 8
    parameters: int = 256
    double: bool = True


CUDA = Geometry()  # of an H200
GEOMETRY: ContextVar[Geometry] = ContextVar("geometry", default=CUDA)
OP: ContextVar[str] = ContextVar("op", default="")  # whose kernel is being set up
geometry = GEOMETRY.get


@contextmanager
def laid_out_for(geometry: Geometry, op: str) -> Iterator[None]:
    """Set up kernels of an op for this geometry inside of the block."""
    tokens = GEOMETRY.set(geometry), OP.set(op)
    try:
        yield
    finally:
        GEOMETRY.reset(tokens[0])
        OP.reset(tokens[1])


@dataclass(frozen=True)
class Code:
    """A kernel.

    Attributes:
        name: Of the kernel.
        call: What it does, in terms of the names of arrays and local memory, and of p.
        arrays: Declarations of its arrays, "const X x"; X may be a macro.
        rest: The type of the structure *p; empty if there is none.
        files: Names of files in this folder that come before.
        macros: What they are written in.
        local: Declarations of arrays in local memory, "f32 shared[8]".
        body: Text after the files.
        row: Declarations of arrays of which there are `capacity` sets; the kernel works on set i.
        index: What i is; nothing is done where that is p->count or more.
    """

    name: str
    call: str
    arrays: tuple[str, ...]
    rest: str = ""
    files: tuple[str, ...] = ()
    macros: tuple[tuple[str, object], ...] = ()
    local: tuple[str, ...] = ()
    body: str = ""
    row: tuple[str, ...] = ()
    capacity: int = 1
    index: str = ""
    threads: int = field(default_factory=lambda: geometry().threads)

    def source(self, language: str) -> str:
        """The whole text in "cuda" or "opencl"."""
        return "\n".join([*self.parts(language), ""])

    def parts(self, language: str) -> list[str]:
        """The same in parts, which other kernels have too."""
        macros = [("THREADS", self.threads), *self.macros]
        return [
            text_of(f"{language}.cl"),
            *(f"#define {k} {v}" for k, v in macros),
            *(text_of(f"{f}.cl") for f in ("common", *self.files)),
            self.body,
            self._cuda() if language == "cuda" else self._opencl(),
        ]

    def _cuda(self) -> str:
        """An entry point whose parameter is one structure."""
        rows = " ".join(f"{pointer('', d)};" for d in self.row)
        fields = " ".join(f"{pointer('', d)};" for d in self.arrays)
        table = f"{self.name}_R row[{self.capacity}];" if self.row else ""
        rest = f"{self.rest} p;" if self.rest else ""
        lines = [f"{pointer('', d)} = s.{name_of(d)};" for d in self.arrays]
        lines += [f"{pointer('', d)} = s.row[i].{name_of(d)};" for d in self.row]
        return "\n".join(
            [
                f"struct {self.name}_R {{ {rows} }};" if self.row else "",
                f"struct {self.name}_S {{ {table} {fields} {rest} }};",
                f'extern "C" __global__ void __launch_bounds__({self.threads})',
                f"{self.name}(const __grid_constant__ {self.name}_S s) {{",
                f"const {self.rest}* p = &s.p;" if self.rest else "",
                *self._start(),
                *lines,
                *(f"__shared__ {d};" for d in self.local),
                f"{self.call};",
                "}",
            ]
        )

    def _opencl(self) -> str:
        """An entry point whose parameters are buffers with places in them, and the structure."""
        arrays = [*self.row, *self.arrays]
        given = [
            f"{pointer('__global ', d).rpartition('* ')[0]}* {name_of(d)}_, u64 {name_of(d)}_at"
            for d in arrays
        ]
        if self.rest:
            given.append(f"const {self.rest} p_")
        lines = []
        for d in arrays:
            kind, name = pointer("__global ", d).rpartition("* ")[0], name_of(d)
            char = "__global const char" if "const" in kind else "__global char"
            lines.append(f"{kind}* {name} = ({kind}*)(({char}*){name}_ + {name}_at);")
        return "\n".join(
            [
                f"__kernel void {self.name}({', '.join(given)}) {{",
                *(f"__local {d};" for d in self.local),
                f"const {self.rest}* p = &p_;" if self.rest else "",
                *self._start(),
                *lines,
                f"{self.call};",
                "}",
            ]
        )

    def _start(self) -> list[str]:
        if not self.row:
            return []
        return [f"const unsigned i = {self.index};", "if (i >= (unsigned)p->count) return;"]


def name_of(declaration: str) -> str:
    """What "const X x" declares."""
    return declaration.rpartition(" ")[2]


def pointer(space: str, declaration: str) -> str:
    """The declaration of a pointer to the elements of an array."""
    kind, _, name = declaration.rpartition(" ")
    return f"{space}{kind}* {name}"


@cache
def text_of(file: str) -> str:
    """A source file of this folder."""
    return Path(__file__).with_name(file).read_text()


class Loop(int):
    """A number of blocks for a loop whose steps are as long as the grid: fewer do too."""


class Stream(Protocol):
    """Where a device's work goes, in its order."""

    def launch(self, launch: Launch, addresses: Sequence[int | None]) -> None:
        """Add a kernel."""


@dataclass(eq=False)
class Launch:
    """A kernel with everything but the addresses.

    Attributes:
        op: Whose kernel it is part of.
        ready: What a stream has made of it, {stream: of its kind}.
    """

    code: Code
    grid: Dims
    block: Dims
    rest: bytes
    ready: dict[Any, Any] = field(default_factory=dict, repr=False)
    op: str = field(default_factory=OP.get)

    def run(self, addresses: Sequence[int | None], stream: Any) -> None:
        stream.launch(self, addresses)


class Launched(Kernel):
    """One launch over inputs and outputs in their order.

    Attributes:
        launches: By whether all arrays start at multiples of 16 bytes.
    """

    launches: dict[bool, Launch]

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: Any
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
    """The name of an operand's element type in kernels."""
    return TYPES[x.dtype.name]


def typed(**operands: Operand) -> tuple[tuple[str, object], ...]:
    """Macros for the element types of operands."""
    return tuple((name, type_of(x)) for name, x in operands.items())


def lanes(*operands: Operand) -> int:
    """Elements that a thread takes at a time: as many of the widest as a pack holds."""
    return max(1, geometry().pack // max(x.dtype.itemsize for x in operands))


def vector(*operands: Operand) -> int:
    """The same for arithmetic, of float32 at least where there is one."""
    four = max(1, geometry().pack // 4)
    small = four > 1 and all(x.dtype.itemsize <= 2 for x in operands)
    return min(2 * four if small else four, MOST_LANES)


def is_real(*operands: Operand | None) -> bool:
    """Whether all that are given are of float32, float16 or bfloat16, and none is too large."""
    return all(x is None or (x.dtype.name in FLOATS and x.size < MOST_ELEMENTS) for x in operands)


def supported(*operands: Operand | None) -> bool:
    """Whether the device has the element types of all that are given."""
    return geometry().double or all(x is None or x.dtype.name != "float64" for x in operands)


def same_size(x: Operand | None, y: Operand | None) -> bool:
    """Whether both are given and their elements take as many bytes."""
    return x is not None and y is not None and x.dtype.itemsize == y.dtype.itemsize


def aligned(addresses: Sequence[int | None]) -> bool:
    """Whether all start at multiples of 16 bytes."""
    return all(not a or a % 16 == 0 for a in addresses)


def line() -> Dims:
    """The block of a kernel without rows."""
    return (geometry().threads, 1, 1)


def blocks_for(threads: int) -> Loop:
    """Blocks for a loop whose steps are as long as the grid."""
    return Loop(max(1, -(-threads // geometry().threads)))
