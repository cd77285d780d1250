# SPDX-License-Identifier: Apache-2.0
"""Kernels of a device in files of programs: C++ runs these there without Python.

They are of the sizes and the kind of device that a program was saved for, so programs with open
sizes have none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from nnl.core.settings.context import SPACES
from nnl.ext.library import HOST, Asked, StoringLibrary, native_spec, request
from nnl.graph.program.program import Program, Step


def kernels_of(programs: Mapping[str, Program]) -> bytes:
    """What the tensor of kernels says, as JSON; nothing where no program is for such a device."""
    found: dict[str, list[Asked | None]] = {}
    library = None
    for name, program in programs.items():
        own = SPACES[program.space].library()
        if own is None or not own.traits.stores or program.dims or library not in (None, own):
            continue
        library = cast(StoringLibrary, own)
        found[name] = [_asked(library, program, step) for step in program.steps]
    if library is None:
        return b""
    data = library.stored_kernels(found)
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def _asked(library: StoringLibrary, program: Program, step: Step) -> Asked | None:
    """By what the kernel of a step is asked for; None: it runs on the host."""
    slots = program.slots
    orders = {slots[i].order for i in (*step.ins, *step.outs) if i}
    if not step.native or orders != {HOST} or (step.view and not step.writes):
        return None
    ins = [native_spec(slots[i].spec) if i else None for i in step.ins]
    outs = [native_spec(slots[o].spec) for o in step.outs]
    asked = request(library, step.op, step.attrs, ins, outs)
    return None if asked is None else (*asked, ins, outs)
