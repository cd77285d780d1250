# SPDX-License-Identifier: Apache-2.0
"""Which values of a program may share memory: what passes ask before they move a step."""

from __future__ import annotations

from collections.abc import Iterable, Set

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.graph.program.program import Program, Step


def find_shared(arrays: Iterable[tuple[int, NdArray]]) -> dict[int, set[int]]:
    """{slot: other slots whose arrays may have memory of its array}, of those that have any.

    Overlap is asked of bounds in memory: strided parts that only interleave count as shared.
    """
    shared: dict[int, set[int]] = {}
    parts: list[tuple[int, NdArray]] = []  # only these can share memory but not all of it
    same: dict[int, list[int]] = {}
    for n, nd in arrays:
        others = {*same.setdefault(id(nd.bufs), [])}
        if nd.record.own is not None:
            own = nd.record.own
            others |= {m for m, x in parts if np.may_share_memory(x.record.own, own)}
            parts.append((n, nd))
        same[id(nd.bufs)].append(n)
        for m in others:
            shared.setdefault(m, set()).add(n)
            shared.setdefault(n, set()).add(m)
    return shared


def sharing(program: Program, roots: Set[int]) -> set[int]:
    """These roots, and those that may have memory of them."""
    return {*roots, *(m for r in roots if r in program.shared for m in program.shared[r])}


def written_by(program: Program, step: Step) -> set[int]:
    """Roots whose memory a step may change, besides the memory of the program's own results."""
    roots = {program.root(step.ins[p]) for p in step.writes}
    if program.shared:
        roots |= {o for o in step.outs if o in program.shared}
    return sharing(program, roots)
