# SPDX-License-Identifier: Apache-2.0
"""Steps in the functions that they are made of.

In every plan those of ops that say so (`in_parts`); on some devices, and in saved programs, those
without a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import Spec
from nnl.core.graph.casts import wide
from nnl.core.graph.node import Value, capture
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.interpreter import STATIC
from nnl.core.ops.op import OPS
from nnl.core.settings.context import resolve, using
from nnl.ext.library import DTYPES, Library, is_plain, knows, native_spec, request
from nnl.graph.lowering.lowering import definition, lower
from nnl.graph.program.program import CONSTANT, SPACE, Program, Step

MOST_PARTS = 32  # launches of a device that are worth more than a copy to the host and back


def take_apart(program: Program, lib: Library) -> None:
    """Let the parts of ops that are better run as such take their place."""
    steps: list[Step] = []
    for step in program.steps:
        op = OPS.get(step.op)
        if op is not None and op.attrs_class.in_parts:
            steps += _in_parts(program, step, op.attrs(**step.attrs).decompose, False)
        elif lib.traits.takes_apart and op is not None and step.ins:
            steps += _with_kernels(program, step, lib)
        else:
            steps.append(step)
    program.steps = steps


def _with_kernels(program: Program, step: Step, lib: Library) -> list[Step]:
    """A step's parts, if it has no kernel and they have; the step itself if not."""
    if not step.native or step.view or step.writes or not all(map(is_plain, step.attrs.values())):
        return [step]
    say = getattr(OPS[step.op].attrs(**step.attrs), "decompose", None)
    if say is None or _has_kernel(program, step, lib):
        return [step]
    parts = _in_parts(program, step, say, False)
    folded: set[int] = set()  # of what depends on no input, and is computed once
    for p in parts:
        if folded.issuperset(p.ins):
            folded |= {*p.outs}
        elif not p.view and not _has_kernel(program, p, lib):
            return [step]
    return parts if len(parts) <= MOST_PARTS else [step]


def decompose_unknown(program: Program, lib: Library) -> None:
    """Give steps that the library has no kernel of what their definitions say as parts."""
    if program.space != SPACE:
        return
    for step in program.steps:
        if step.kernel is None and not step.parts:
            said = _said(program, step, lib)
            if said != [step]:
                step.parts, step.whole = tuple(said), True


def _said(program: Program, step: Step, lib: Library) -> list[Step]:
    op = OPS.get(step.op)
    if op is None or not all(is_plain(v) for v in step.attrs.values()):
        return [step]
    if any(program.slots[o].spec.dtype == np.float64 for o in step.outs):
        return [step]  # for which there are no kernels anyway
    if not step.ins:
        return [step] if knows(lib, step.op) else _constant(program, step)
    attrs = op.attrs(**step.attrs)
    say = getattr(attrs, "portable", None) or getattr(attrs, "decompose", None)
    if say is None or step.view or _has_kernel(program, step, lib):
        return [step]
    found = _in_parts(program, step, say, True)
    return [step] if found == [step] else [s for inner in found for s in _said(program, inner, lib)]


def _in_parts(program: Program, step: Step, say: Callable[..., Any], in_float: bool) -> list[Step]:
    """The steps of what `say` makes of a step's inputs; the step itself if that is not the same.

    Args:
        in_float: Compute in float32 also in contexts of 16 bits.
    """
    inputs = [NdArray.unwritten(program.slots[i].spec) if i else None for i in step.ins]
    xs = [None if nd is None else Variable.of_edge(Value.leaf(nd), nd) for nd in inputs]
    source = program.sources[step.source]
    assert source is not None
    target = resolve(*source.context)
    target = wide(target) if in_float else target
    with using(interpreter=STATIC, target=target, no_grad=True):
        try:
            said = say(*xs)
        except NotImplementedError:
            return [step]
        ys = said if isinstance(said, tuple) else (said,)
        edges = [y.edge for y in ys]
        part, binding = lower(capture(edges), [e.key for e in edges])
    same = {id(nd): i for nd, i in zip(inputs, step.ins, strict=True) if nd is not None}
    number = {0: 0}  # slots of the part -> slots of the program
    for edge, o in zip(edges, step.outs, strict=False):
        i = binding.slot_of.get(edge.key, 0)
        if i not in number and part.slots[i].spec is program.slots[o].spec:
            if not part.slots[i].given and part.root(i) == i:
                number[i] = o
    for i, slot in enumerate(part.slots[1:], start=1):
        if i in number:
            continue
        if not slot.given:
            number[i] = program.new_slot(slot.spec, number.get(slot.root))
        elif id(binding.arrays[i]) in same:
            number[i] = same[id(binding.arrays[i])]
        else:
            number[i] = _hold(program, slot.spec, binding.arrays[i].read("host"))
    for s in part.steps:
        s.ins, s.outs = tuple(number[i] for i in s.ins), tuple(number[o] for o in s.outs)
        s.source, s.second, s.native = step.source, step.second, step.native
    steps = part.steps
    written = {program.root(s.ins[p]) for s in steps for p in s.writes}
    if not {program.root(step.ins[p]) for p in step.writes} <= written:
        return [step]  # a state would stay as it was
    for edge, o in zip(edges, step.outs, strict=False):
        if number.get(binding.slot_of.get(edge.key, 0)) == o:
            continue
        attributes = {"dtype": program.slots[o].spec.type_name}
        if edge.key in binding.slot_of:
            found = number[binding.slot_of[edge.key]]
        else:  # computed by nothing
            found = _hold(program, edge.current_spec, edge.array.read("host"))
        steps.append(Step.of("cast", attributes, (found,), (o,), step.second))
        steps[-1].source = step.source
    return steps


def _has_kernel(program: Program, step: Step, lib: Library) -> bool:
    specs = [[program.slots[i].spec if i else None for i in part] for part in (step.ins, step.outs)]
    if any(s is not None and s.type_name not in DTYPES for part in specs for s in part):
        return False
    ins, outs = ([native_spec(s) for s in part] for part in specs)
    asked = request(lib, step.op, step.attrs, ins, outs)
    return asked is not None and lib.kernel(*asked, ins, outs) is not None


def _constant(program: Program, step: Step) -> list[Step]:
    """What depends on no input is held, and copied where it is a result."""
    bound = definition(program, step)
    values = bound.call()
    steps = []
    for o, value in zip(step.outs, (values,) if bound.single else values, strict=True):
        held = _hold(program, program.slots[o].spec, value)
        attributes = {"dtype": program.slots[o].spec.type_name}
        steps.append(Step.of("cast", attributes, (held,), (o,), step.second))
        steps[-1].source = step.source
    return steps


def _hold(program: Program, spec: Spec, value: Any) -> int:
    slot = program.new_slot(spec, role=CONSTANT)
    program.slots[slot].data = value
    return slot
