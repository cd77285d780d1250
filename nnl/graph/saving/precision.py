# SPDX-License-Identifier: Apache-2.0
"""A program in float32 as one that computes with bfloat16: for inference, at half the memory.

It is what the type configuration `bfloat16` records: products, convolutions and all that follows
from their results are stored in 16 bits, and computed in float32 inside each step. Inputs and
outputs of the program keep their types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnl.core.arrays.array import NdArray
from nnl.core.graph.dispatch import bind
from nnl.core.ops.op import OPS
from nnl.core.settings.context import half_type, resolve
from nnl.graph.program.program import Program, Source, Step

PRECISIONS = {"float32": None, "bf16": "bfloat16", "bfloat16": "bfloat16"}
_CONTEXT = (("cpu:bfloat16",), "")
_MOVES = frozenset(["reshape", "transpose", "slice", "split", "concatenate", "broadcast", "tile"])


def narrow_type(precision: str, where: str) -> str | None:
    """The type of 16 bits that a precision stores; None for what a file has.

    Args:
        where: The function that was given it, for messages.
    Raises:
        ValueError: There is no such precision.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"{where}: precision is {precision!r}, wanted one of {sorted(PRECISIONS)}")
    return PRECISIONS[precision]


def in_bfloat16(program: Program) -> Program:
    """The same program with products, and what follows from them, in bfloat16.

    Raises:
        NotImplementedError: It trains, or keeps floats from one run for the next.
    """
    if any(s.second for s in program.steps) or any(program.carries.values()) or program.results:
        raise NotImplementedError(
            "precision: a program that trains or keeps values from run to run stays as it is"
        )
    return _Narrowing(program.copy()).run()


def narrow_arrays(arrays: dict[str, NdArray], programs: Mapping[str, Program]) -> None:
    """Give arrays the types that programs read them in."""
    for program in programs.values():
        for slot in program.slots[1:]:
            if slot.stored and arrays[slot.name].spec is not slot.spec:
                values = arrays[slot.name].read("host").astype(slot.spec.dtype)
                arrays[slot.name] = NdArray.from_numpy_array(values)


def weights(program: Program) -> set[int]:
    """Given slots that only products read, as factors or through steps that move elements."""
    readers: dict[int, list[Step]] = {}
    for step in program.steps:
        for i in step.ins:
            readers.setdefault(program.root(i), []).append(step)
    written, ends = program.written(), {program.root(i) for i in program.outputs.values()}

    def fits(i: int, depth: int = 0) -> bool:
        if i in written or i in ends or depth > 8:
            return False
        return all(_multiplies(program, s, i) or moves(s, i, depth) for s in readers.get(i, ()))

    def moves(step: Step, i: int, depth: int) -> bool:
        return step.op in _MOVES and all(
            fits(r, depth + 1) for r in {program.root(o) for o in step.outs} - {i}
        )

    found = set()
    for i, slot in enumerate(program.slots):
        if i and slot.stored and slot.spec.type_name == "float32" and slot.spec.ndim > 1:
            if readers.get(i) and fits(i):
                found.add(i)
    return found


def _multiplies(program: Program, step: Step, i: int) -> bool:
    """Whether a step is a product of which slot i, or a view of it, is a factor."""
    op = OPS.get(step.op)
    if op is None or not op.narrow:
        return False
    names = [op.inputs[p] for p, j in enumerate(step.ins) if program.root(j) == i]
    return all(n in op.inputs[:2] or n.startswith("weight") for n in names)


class _Narrowing:
    def __init__(self, program: Program) -> None:
        self.program, self.target = program, resolve(*_CONTEXT)
        self.casts: dict[tuple[int, Any], int] = {}
        self.steps: list[Step] = []

    def run(self) -> Program:
        program, half = self.program, half_type("bfloat16")
        chosen = weights(program)
        for slot in program.slots:
            if slot.given and slot.root in chosen:
                slot.spec = slot.spec.with_dtype(half)
        program.sources[1:] = [
            Source(s.function, s.name, s.origin, _CONTEXT) for s in program.sources[1:] if s
        ]
        for step in program.steps:
            self._narrow(step)
            self.steps.append(step)
        for name, i in program.outputs.items():
            if program.slots[i].spec.is_half:
                program.outputs[name] = self._cast(i, "float32", 0)
                for ends in (program.kept, program.plain):
                    if i in ends:
                        ends.discard(i)
                        ends.add(program.outputs[name])
        program.steps = self.steps
        return program

    def _narrow(self, step: Step, is_part: bool = False) -> None:
        """Give the outputs of a step, and of the steps it stands for, the types of its context."""
        for part in step.parts:
            self._narrow(part, True)
        program, op = self.program, OPS[step.op]
        if not step.source:
            program.sources.append(Source(step.op, step.op, "", _CONTEXT))
            step.source = len(program.sources) - 1
        specs = tuple([program.slots[i].spec if i else None for i in step.ins])
        bound = bind(op, op.attrs(**step.attrs), self.target, specs)
        if not is_part:
            pairs = enumerate(zip(step.ins, bound.in_specs, strict=True))
            ins = [
                self._cast(i, want.type_name, step.source)
                if i and want is not None and want.dtype != program.slots[i].spec.dtype
                else i
                for _, (i, want) in pairs
            ]
            step.ins = tuple(ins)
        for o, spec in zip(step.outs, bound.out_specs, strict=False):
            if o:
                root = program.slots[program.root(o)].spec
                dtype = root.dtype if step.view else spec.dtype
                program.slots[o].spec = program.slots[o].spec.with_dtype(dtype)
        step.kernel = None

    def _cast(self, i: int, dtype: str, source: int) -> int:
        """The slot with a conversion of another one."""
        program = self.program
        if (i, dtype) not in self.casts:
            made = program.new_slot(program.slots[i].spec.with_dtype(dtype))
            cast = Step.of("cast", {"dtype": dtype}, (i,), (made,))
            if not source:
                program.sources.append(Source("cast", "cast", "", _CONTEXT))
                source = len(program.sources) - 1
            cast.source = source
            self.steps.append(cast)
            self.casts[i, dtype] = made
        return self.casts[i, dtype]
