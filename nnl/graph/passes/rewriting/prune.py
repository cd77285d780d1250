# SPDX-License-Identifier: Apache-2.0
"""Drop steps whose results nobody needs."""

from __future__ import annotations

from nnl.ext.library import Library
from nnl.graph.program.program import Program


def prune(program: Program, lib: Library) -> None:
    """Keep a step if it writes state, or if something kept depends on it.

    The marking runs backwards over the steps, which stand in an order in which they can run: every
    ancestor of what is kept is marked, once, without recursion.

    Source: Dragon, algorithm 1, in the corrected form: a step runs if one of its outputs is wanted.
    """
    wanted = program.kept | program.kept_roots()
    steps = []
    for step in reversed(program.steps):
        if step.writes or any(o in wanted for o in step.outs):
            wanted.update(step.ins)
            wanted.update([program.root(i) for i in step.ins])  # an alias has no step of its own
            steps.append(step)
    program.steps = steps[::-1]
