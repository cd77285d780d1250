# SPDX-License-Identifier: Apache-2.0
"""Kernels made of several others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nnl.ext.device.registry import Kernel


@dataclass(frozen=True)
class At:
    """Where a stage of a Chain finds an array: an input, an output, or scratch memory."""

    kind: str  # "in", "out" or "work"
    index: int  # position, or bytes from the start of the workspace


class Chain(Kernel):
    """Kernels that run one after the other, and hand results on through the workspace."""

    def __init__(self) -> None:
        self.stages: list[tuple[Kernel, list[At | None], list[At]]] = []
        self.own = 0
        self.overwrite: set[tuple[int, int]] = set()

    def scratch(self, nbytes: int) -> At:
        """Memory for a result in between."""
        at = At("work", self.own)
        self.own += -(-nbytes // 256) * 256
        return at

    def add(self, kernel: Kernel, ins: Sequence[At | None], outs: Sequence[At]) -> None:
        self.stages.append((kernel, list(ins), list(outs)))

    def finish(self) -> Chain:
        self.workspace = self.own + max([k.workspace for k, _, _ in self.stages])
        return self

    def may_overwrite(self, out: int, input: int) -> bool:
        return (out, input) in self.overwrite

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: Any
    ) -> None:
        def address(at: At | None) -> int | None:
            if at is None:
                return None
            if at.kind == "work":
                return workspace + at.index
            return ins[at.index] if at.kind == "in" else outs[at.index]

        for kernel, sources, targets in self.stages:
            kernel.run(
                [address(a) for a in sources],
                [address(a) or 0 for a in targets],
                workspace + self.own,
                stream,
            )
