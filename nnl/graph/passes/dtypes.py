# SPDX-License-Identifier: Apache-2.0
"""Make conversions of element types steps of their own."""

from __future__ import annotations

from typing import Any

from nnl.core.casts import whole
from nnl.core.op import OPS
from nnl.ext.library import Library, kernel_names
from nnl.graph.program import Program, Step


def convert_inputs(program: Program, lib: Library) -> None:
    """Let every step read its inputs in the types that it computes with.

    A label given as float32 becomes an integer, which it must be, float64 from numpy becomes the
    float type of the context: once, however many steps read it. State that a step writes stays as
    it is; such a step converts by itself.
    """
    if "cast" not in kernel_names(lib):
        return
    slots = program.slots
    found: dict[tuple[int, Any], int] = {}
    steps = []
    for step in program.steps:
        assert step.bound is not None
        ins = list(step.ins)
        for p, i in enumerate(step.ins):
            want = step.bound.in_specs[p]
            if not i or want is None or want.dtype == slots[i].spec.dtype or p in step.writes:
                continue
            if step.view or not step.native:
                continue
            key = i, want.dtype
            if key not in found:
                found[key] = program.new_slot(want)
                what = whole(OPS[step.op], p, slots[i].spec)
                attrs = {"dtype": want.dtype.name, "whole": what}
                cast = Step.of("cast", attrs, (i,), (found[key],), step.second)
                cast.node = step.node if what else None
                steps.append(cast)
            ins[p] = found[key]
        step.ins = tuple(ins)
        steps.append(step)
        if step.writes:
            written = {program.root(step.ins[p]) for p in step.writes}
            found = {k: v for k, v in found.items() if program.root(k[0]) not in written}
    program.steps = steps


def computes_as_is(program: Program, step: Step) -> bool:
    """Whether the arrays of a step have the types that it computes with."""
    return step.bound is None or all(
        want is None or want.dtype == program.slots[i].spec.dtype
        for want, i in zip(step.bound.in_specs, step.ins, strict=True)
    )
