# SPDX-License-Identifier: Apache-2.0
"""Kernels as data in files of programs, which C++ launches without Python.

The texts of many kernels have long parts in common: each part is stored once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnl.ext.device.kernels.module import Launch
from nnl.ext.device.registry import Kernel

VERSION = 1
SHIFT = 40  # bits of an address that are a place in an array
PLACE = (1 << SHIFT) - 1


class Recorder:
    """A stream that notes what is launched on it."""

    def __init__(self) -> None:
        self.launches: list[tuple[Launch, list[int | None]]] = []

    def launch(self, launch: Launch, addresses: Sequence[int | None]) -> None:
        self.launches.append((launch, list(addresses)))


class Store:
    """The kernels of the programs of one file.

    Args:
        language: Of the texts, "opencl".
    """

    def __init__(self, language: str) -> None:
        self.language = language
        self.pieces: dict[str, int] = {}
        self.kernels: dict[tuple[str, tuple[int, ...]], int] = {}
        self.ops: list[str] = []  # whose each kernel is
        self.programs: dict[str, list[dict[str, Any] | None]] = {}

    def step(self, kernel: Kernel, ins: Sequence[bool], outs: int) -> dict[str, Any]:
        """How a kernel runs.

        Args:
            ins: Whether each input is given. outs: Number of outputs.
        Returns:
            - workspace: bytes of scratch memory.
            - launches: [kernel, blocks, threads of a block, the structure in hexadecimal digits,
              [array, place in bytes] of each array]. Arrays are inputs, then outputs, then scratch
              memory by number; -1 for one that is left out.
        """
        given = [n + 1 << SHIFT if there else None for n, there in enumerate(ins)]
        made = [len(ins) + n + 1 << SHIFT for n in range(outs)]
        recorder = Recorder()
        kernel.run(given, made, len(ins) + outs + 1 << SHIFT, recorder)
        launches = [
            [
                self._number(launch), [int(n) for n in launch.grid], list(launch.block),
                launch.rest.hex(), [[(a >> SHIFT) - 1, a & PLACE] if a else [-1, 0] for a in at],
            ]
            for launch, at in recorder.launches
        ]  # fmt: skip
        return {"workspace": kernel.workspace, "launches": launches}

    def _number(self, launch: Launch) -> int:
        parts = launch.code.parts(self.language)
        pieces = [self.pieces.setdefault(f"{p}\n", len(self.pieces)) for p in parts]
        number = self.kernels.setdefault((launch.code.name, tuple(pieces)), len(self.kernels))
        if number == len(self.ops):
            self.ops.append(launch.op)
        return number

    def data(self) -> dict[str, Any]:
        """All as JSON has it; `programs` has what `step` gives for each step, None on the host."""
        kernels = [
            [name, op, list(pieces)]
            for (name, pieces), op in zip(self.kernels, self.ops, strict=True)
        ]
        return {
            "version": VERSION, "pieces": list(self.pieces), "kernels": kernels,
            "programs": self.programs,
        }  # fmt: skip
