# SPDX-License-Identifier: Apache-2.0
"""Which values of a program may share memory: what passes ask before they move a step."""

from __future__ import annotations

from collections.abc import Iterable, Set

from numpy.lib.array_utils import byte_bounds

from nnl.core.arrays.array import NdArray
from nnl.graph.program.program import Program, Step


def find_shared(arrays: Iterable[tuple[int, NdArray]]) -> dict[int, set[int]]:
    """{slot: other slots whose arrays may have memory of its array}, of those that have any.

    Overlap is asked of bounds in memory: strided parts that only interleave count as shared.
    """
    shared: dict[int, set[int]] = {}
    same: dict[int, list[int]] = {}
    parts: list[tuple[int, int, int]] = []  # only these can share memory but not all of it

    def note(n: int, others: Iterable[int]) -> None:
        for m in others:
            shared.setdefault(m, set()).add(n)
            shared.setdefault(n, set()).add(m)

    for n, nd in arrays:
        note(n, same.setdefault(id(nd.bufs), []))
        same[id(nd.bufs)].append(n)
        if nd.record.own is not None and nd.record.own.size:
            parts.append((*byte_bounds(nd.record.own), n))
    open_: list[tuple[int, int]] = []  # the end and the slot of those before, by where they begin
    for begin, end, n in sorted(parts):
        open_ = [(e, m) for e, m in open_ if e > begin]
        note(n, [m for _, m in open_])
        open_.append((end, n))
    return shared


def sharing(program: Program, roots: Set[int]) -> set[int]:
    """These roots, and those that may have memory of them."""
    return {*roots, *(m for r in roots if r in program.shared for m in program.shared[r])}


def written_by(program: Program, step: Step) -> set[int]:
    """Roots whose memory a step may change, besides the memory of the program's own results."""
    roots = {program.root(step.ins[p]) for p in step.writes}
    return sharing(program, roots)
