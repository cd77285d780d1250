# SPDX-License-Identifier: Apache-2.0
"""Compute a value once that several steps compute from the same inputs."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from nnl.ext.library import Library, is_plain
from nnl.graph.program.program import Program, Step
from nnl.graph.program.sharing import written_by

WITH_PLACES = frozenset(["sort", "top_k_data"])  # ops that give values, places or both
INDICES = frozenset(["with_index", "only_index"])  # the attributes that say so


def merge_common(program: Program, lib: Library) -> None:
    """Let readers of a repeated computation read the first one.

    Two steps are the same if op, attributes and inputs are, and nothing that they read has been
    written in between. A result that somebody may look at keeps its own memory. A value of the
    first part is not computed again in the second: memory would not be saved by it, since the
    steps that made it are the same. Places that a gradient asks for come with the values that are
    chosen or sorted before: to find them again is the same work.
    """
    slots, written = program.slots, program.written()
    own = program.kept | program.views().keys()  # whose memory others have too
    zeros: dict[Any, int] = {}
    same: dict[int, int] = {}  # slot -> the slot that stands for it
    for i, slot in enumerate(slots):
        if slot.zero and i not in own and zeros.setdefault(slot.spec, i) != i:
            same[i] = zeros[slot.spec]
    seen: dict[Any, Step] = {}
    touch: dict[int, list[Any]] = {}  # root -> keys of steps seen that read it, or make it
    steps = []
    for step in program.steps:
        step.ins = tuple([same.get(i, i) for i in step.ins])
        for root in written_by(program, step):
            for key in touch.pop(root, ()):
                seen.pop(key, None)
        if step.writes:
            steps.append(step)
            continue
        # A view is free, and a step of its own keeps roots simple. What is written stands for no
        # other value. Attributes that are objects may be code of the user, which need not give the
        # same twice.
        alone = step.view or not written.isdisjoint(step.outs)
        if alone or not all(is_plain(v) for v in step.attrs.values()):
            steps.append(step)
            continue
        attrs = tuple([(k, type(v), v) for k, v in step.attrs.items()])
        key = step.op, step.native, step.second, attrs, step.ins
        first = seen.setdefault(key, step)
        if first is step:
            keys: list[Any] = [key]
            if step.op in WITH_PLACES:
                keys.append((step.op, step.native, _besides_places(attrs), step.ins))
            for i in (*step.ins, *step.outs):
                touch.setdefault(program.root(i), []).extend(keys)
            values = seen.setdefault(keys[-1], step)
            if values is not step and _gives_places_of(values, step, own):
                found = values.outs[-len(step.outs) :]
                same.update([(i, j) for i, j in zip(step.outs, found, strict=True) if i != j])
                step.outs = found
                continue
        if first is step or not own.isdisjoint(step.outs):
            steps.append(step)
            continue
        same.update(zip(step.outs, first.outs, strict=False))  # the first may give places too
    program.steps = steps


def _besides_places(attrs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([a for a in attrs if a[0] not in INDICES])


def _gives_places_of(values: Step, step: Step, own: Set[int]) -> bool:
    """Whether a step gives what this one does, which is places; it does so from now on."""
    both, places = (any(s.attrs.get(k) for k in INDICES) for s in (values, step))
    if values.attrs.get("only_index") or not places or values.open != step.open:
        return False
    if both:
        return own.isdisjoint(step.outs)
    if not own.isdisjoint(step.outs[:-1]):
        return False
    values.attrs = {**values.attrs, "with_index": True}
    values.outs = (*values.outs, step.outs[-1])
    return True
