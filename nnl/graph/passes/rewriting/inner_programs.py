# SPDX-License-Identifier: Apache-2.0
"""Programs inside steps: rewritten like the one around them, and run by the library."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nnl.ext.library import Library
from nnl.graph.program.program import CONSTANT, INPUT, INTERMEDIATE, SPACE, Program, Step


def rewrite_inside(program: Program, lib: Library, rewrite: Callable[[Program, Any], None]) -> None:
    """Put copies that `rewrite` has changed in the place of all programs inside the steps.

    What they hold then stands around them and becomes one of their inputs: a file keeps arrays of
    whole programs only.
    """
    for step in program.steps:
        if not step.programs:
            continue
        copies = {p: p.copy() for p in step.programs}
        for inner in copies.values():
            rewrite(inner, lib)
            rewrite_inside(inner, lib, rewrite)

        def changed(value: Any, copies: dict[Program, Program] = copies) -> Any:
            if isinstance(value, tuple):
                return tuple([changed(v) for v in value])
            return copies[value] if isinstance(value, Program) else value

        step.attrs = {name: changed(value) for name, value in step.attrs.items()}
        for inner in copies.values():
            for i, slot in enumerate(inner.slots):
                if slot.data is not None and any(slot.data.strides):
                    _give(program, step, inner, i)


def _give(program: Program, step: Step, holder: Program, constant: int) -> None:
    """Let a step give all its programs a constant that one of them holds."""
    slot = holder.slots[constant]
    outer = program.new_slot(slot.spec, role=CONSTANT)
    program.slots[outer].data = slot.data
    step.ins += (outer,)
    for inner in step.programs:
        given = inner.new_slot(slot.spec, role=INPUT)
        inner.slots[given].name = f"x{len(inner.inputs) - 1}"
        if inner is holder:
            slot.role, slot.data = INTERMEDIATE, None
            for one in inner.slots:
                if one.root == constant:
                    one.root = given


def give_kernels(program: Program, lib: Library, rewrite: Callable[[Program, Any], None]) -> None:
    """Give steps with programs inside a kernel, where the library can do all of their steps.

    Args:
        rewrite: (program, library) -> None: what programs inside go through.
    """
    if program.space != SPACE:
        return
    rewrite_inside(program, lib, rewrite)
    for step in program.steps:
        if step.programs and step.native:
            with suppress(ValueError, NotImplementedError):  # no kernel, or a user's Python code
                text = json.dumps(_alone(program, step).to_dict(), allow_nan=False)
                step.kernel = lib.control_kernel(text)


def _alone(program: Program, step: Step) -> Program:
    """A program of one step."""
    found, number = Program(), {0: 0}
    for role, slots in ((INPUT, step.ins), (INTERMEDIATE, step.outs)):
        for i in slots:
            if i not in number:
                number[i] = found.new_slot(program.slots[i].spec, role=role)
    own = step.copy()
    own.ins = tuple([number[i] for i in step.ins])
    own.outs = tuple([number[o] for o in step.outs])
    own.source = 0
    found.steps.append(own)
    return found
