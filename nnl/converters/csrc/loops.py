# SPDX-License-Identifier: Apache-2.0
"""Steps in C: calls of the functions in kernels/, and loops over arrays: element-wise functions,
and all that only moves elements."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeGuard

import numpy as np

from nnl.converters.networks.scale import Scale
from nnl.core.ops.elementwise import ARITY, NAMES, Program

Key = Hashable  # of an array: an edge's key, or a Work


@dataclass(frozen=True)
class Window:
    """How a window of three axes moves: the fields of nnl_window, in their order."""

    size: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad: tuple[int, ...]

    def __str__(self) -> str:
        parts = (getattr(self, f.name) for f in fields(self))
        return f"&(const nnl_window){{{', '.join(f'{{{_list(p)}}}' for p in parts)}}}"


@dataclass(frozen=True)
class Sizes:
    """An array of int."""

    values: tuple[int, ...]

    def __str__(self) -> str:
        return f"(const int[]){{{_list(self.values)}}}"


def _list(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))


@dataclass(frozen=True)
class Read:
    """An array that a call reads."""

    key: Key


@dataclass(frozen=True)
class Written:
    """An array that a call writes."""

    key: Key


@dataclass(eq=False)
class Work:
    """Memory that one call writes and reads; nobody needs it before or after.

    Attributes:
        size: In floats.
        most: At any sizes; `size` says it where left out.
        spare: Whether the call does without, at these sizes.
    """

    size: int
    most: int | None = None
    spare: bool = False


@dataclass(frozen=True)
class Call:
    """A call of a kernel.

    Attributes:
        kernel: Its name, which is also that of its file.
        arguments: In C, but for arrays; None is NULL.
    """

    kernel: str
    arguments: tuple[int | Window | Sizes | Read | Written | Work | None, ...]


# ---- loops ----


Operand = tuple[str, int] | float  # ("x", number of a read), ("t", of an instruction), a constant
Body = tuple[tuple[str, tuple[Operand, ...]], ...]  # instructions; the last one is the result
COPY: Body = (("copy", (("x", 0),)),)


@dataclass(frozen=True)
class Pattern:
    """Where the elements of a space lie in an array: at offset + sum of index times stride."""

    strides: tuple[int, ...]
    offset: int = 0


def dense(shape: Sequence[int]) -> Pattern:
    """In the order of the array itself; axes of size 1 have no stride."""
    return Pattern(tuple(math.prod(shape[i + 1 :]) if n > 1 else 0 for i, n in enumerate(shape)))


def stretched(shape: Sequence[int], rank: int) -> Pattern:
    """With sizes of 1 that stretch, aligned to the last axes."""
    return Pattern((0,) * (rank - len(shape)) + dense(shape).strides)


@dataclass(frozen=True)
class Loop:
    """For every element of a space: read, compute, write one.

    Attributes:
        space: Sizes.
        reads: What `("x", i)` stands for.
        body: Instructions of element-wise programs.
        write: The array and the pattern of the result.
    """

    space: tuple[int, ...]
    reads: tuple[tuple[Key, Pattern], ...]
    body: Body
    write: tuple[Key, Pattern]

    def of_used(self) -> Loop:
        """Without reads that no instruction uses."""
        used = sorted({v[1] for _, vs in self.body for v in vs if _is_read(v)})
        body = tuple(
            (name, tuple(("x", used.index(v[1])) if _is_read(v) else v for v in vs))
            for name, vs in self.body
        )
        return replace(self, reads=tuple(self.reads[i] for i in used), body=body)

    @property
    def is_dense(self) -> bool:
        """Whether it writes all of an array of the shape of the space."""
        return self.write[1] == dense(self.space)

    def joined(self, before: Loop) -> Loop:
        """Both in one: what `before` writes is not stored. It must be read at the same elements."""
        reads = list(before.reads)
        moved: dict[int, Operand] = {}
        for i, read in enumerate(self.reads):
            if read[0] == before.write[0]:
                moved[i] = ("t", len(before.body) - 1)
            else:
                if read not in reads:
                    reads.append(read)
                moved[i] = ("x", reads.index(read))

        def operand(v: Operand) -> Operand:
            if not isinstance(v, tuple):
                return v
            return moved[v[1]] if v[0] == "x" else ("t", v[1] + len(before.body))

        own = tuple((name, tuple(map(operand, vs))) for name, vs in self.body)
        return replace(self, reads=tuple(reads), body=before.body + own)

    @property
    def patterns(self) -> list[Pattern]:
        """Of what is read and written."""
        return [p for _, p in self.reads] + [self.write[1]]

    def begins(self) -> set[int]:
        """Axes that cannot be one loop with the one before."""
        found, before = set(), None
        for axis, n in enumerate(self.space):
            if n == 1:
                continue
            own = [p.strides[axis] for p in self.patterns]
            if before is None or any(s != o * n for s, o in zip(before, own, strict=True)):
                found.add(axis)
            before = own
        return found

    def text(self, name: str, scales: Mapping[Key, Scale], begins: Collection[int]) -> str:
        """The function, which takes what is read and then what is written.

        Args:
            scales: Of arrays of 8 bits. begins: Axes at which a loop begins.
        """
        sizes, strides = _merged(self.space, self.patterns, begins)
        arrays = list(dict.fromkeys(key for key, _ in self.reads))
        types = ["int8_t" if key in scales else "float" for key in (*arrays, self.write[0])]
        parameters = [f"const {t} *restrict x{i}" for i, t in enumerate(types[:-1])]
        parameters.append(f"{types[-1]} *restrict y")
        lines = [f"static void {name}({', '.join(parameters)})", "{"]
        indent = "    "
        for d, n in enumerate(sizes):
            lines.append(f"{indent}for (int i{d} = 0; i{d} < {n}; i{d}++)")
            indent += "    "
        names = [f"x{arrays.index(key)}" for key, _ in self.reads] + ["y"]
        places = [
            f"{array}[{_index(pattern.offset, own)}]"
            for array, pattern, own in zip(names, self.patterns, strides, strict=True)
        ]
        to = scales.get(self.write[0])
        moved = self.body == COPY and scales.get(self.reads[0][0]) == to  # no number changes

        def operand(v: Operand) -> str:
            if not isinstance(v, tuple):
                return number(v)
            if v[0] == "t":
                return f"t{v[1]}"
            own = scales.get(self.reads[v[1]][0])
            if own is None or moved:
                return places[v[1]]
            return f"{number(own.scale)} * (float)({places[v[1]]} - {own.zero})".replace(
                "- -", "+ "
            )

        if sizes:
            lines[-1] += " {"
        for t, (code, vs) in enumerate(self.body):
            value = operand(vs[0])
            if code != "copy":
                value = f"element_{code}({', '.join(map(operand, vs))})"
            if t < len(self.body) - 1:
                lines.append(f"{indent}const float t{t} = {value};")
            elif to is None or moved:
                lines.append(f"{indent}{places[-1]} = {value};")
            else:
                inverse = number(1 / to.scale)
                lines.append(f"{indent}{places[-1]} = nnl_stored({value}, {inverse}, {to.zero});")
        return "\n".join([*lines, *([f"{indent[4:]}}}"] if sizes else []), "}"])

    @property
    def arrays(self) -> list[Key]:
        """What the function is called with."""
        return [*dict.fromkeys(key for key, _ in self.reads), self.write[0]]


def _is_read(v: Operand) -> TypeGuard[tuple[str, int]]:
    return isinstance(v, tuple) and v[0] == "x"


def read(step: Loop | Call) -> list[Key]:
    """Arrays that a step reads, once for each time."""
    if isinstance(step, Loop):
        return [key for key, _ in step.reads]
    return [a.key for a in step.arguments if isinstance(a, Read)]


def written(step: Loop | Call) -> list[Key]:
    """Arrays that a step writes."""
    if isinstance(step, Loop):
        return [step.write[0]]
    keys = [a.key for a in step.arguments if isinstance(a, Written)]
    return keys + [a for a in step.arguments if isinstance(a, Work)]


def instructions(program: Program) -> Body:
    """The body that a program is."""
    inputs = len(program.shapes)

    def operand(v: int) -> Operand:
        if v < 0:
            return program.constants[-1 - v]
        return ("x", v) if v < inputs else ("t", v - inputs)

    code = program.code
    steps = [(NAMES[code[k]], code[k + 1 : k + 4]) for k in range(0, len(code), 4)]
    return tuple((name, tuple(map(operand, vs[: ARITY[name]]))) for name, vs in steps)


def number(value: float) -> str:
    """A float32 as C writes it, exactly."""
    v = np.float32(value)
    if not np.isfinite(v):
        return "NAN" if np.isnan(v) else "INFINITY" if v > 0 else "-INFINITY"
    text = f"{v:.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def _index(offset: int, strides: Sequence[int]) -> str:
    terms = [f"i{d} * {s}" if s != 1 else f"i{d}" for d, s in enumerate(strides) if s]
    return " + ".join(([str(offset)] if offset or not terms else []) + terms)


def _merged(
    space: Sequence[int], patterns: Sequence[Pattern], begins: Collection[int]
) -> tuple[list[int], list[tuple[int, ...]]]:
    """Sizes of as few nested loops as visit the same elements, and the strides of each pattern."""
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in patterns]
    for axis, n in enumerate(space):
        if n == 1:
            continue
        joins = axis not in begins and sizes
        sizes[-1:] = [sizes[-1] * n] if joins else [*sizes[-1:], n]
        for s, p in zip(strides, patterns, strict=True):
            s[-1:] = [p.strides[axis]] if joins else [*s[-1:], p.strides[axis]]
    return sizes, [tuple(s) for s in strides]
