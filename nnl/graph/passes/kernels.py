# SPDX-License-Identifier: Apache-2.0
"""Choose a native kernel for every step, the order in memory it wants, and conversions between."""

from __future__ import annotations

from typing import Any

from nnl.ext.native import is_plain, kernel_names, native_spec
from nnl.graph.program import Program, Step


def choose_kernels(program: Program, lib: Any) -> None:
    """Give steps native kernels as far as there are any."""
    for step in program.steps:
        if step.native and step.op in kernel_names():
            step.kernel = make(program, lib, step)


def make(program: Program, lib: Any, step: Step) -> Any:
    """The native kernel of a step as its slots lie in memory; None if it declines."""
    attrs = {k: v for k, v in step.attrs.items() if is_plain(v)}
    ins = [_spec(program, i) for i in step.ins]
    outs = [_spec(program, o) for o in step.outs]
    return lib.kernel(step.op, attrs, ins, outs)


def _spec(program: Program, slot: int) -> Any:
    s = program.slots[slot]
    return native_spec(s.spec, s.channels_last) if slot else None
