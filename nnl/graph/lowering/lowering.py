# SPDX-License-Identifier: Apache-2.0
"""From a graph to a program, and from a step back to a call on arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nnl.core.arrays.array import NdArray, Zeros
from nnl.core.arrays.spec import Spec
from nnl.core.graph.casts import whole
from nnl.core.graph.dispatch import Bound, bind
from nnl.core.graph.node import Node, Value
from nnl.core.ops.op import OPS
from nnl.core.settings.context import SPACES, resolve
from nnl.core.settings.context import STATE as MODES
from nnl.graph.lowering.binding import Binding, Key
from nnl.graph.program.program import (
    CONSTANT,
    INPUT,
    PARAMETER,
    SPACE,
    STATE,
    Program,
    Source,
    Step,
    repeated,
)
from nnl.graph.program.sharing import find_shared

NO_GRADIENTS: Mapping[Key, Any] = {}


def lower(
    nodes: Sequence[Node],
    kept: Iterable[Key],
    cut: int | None = None,
    plain: Iterable[Key] = (),
    gradients: Mapping[Key, NdArray | None] = NO_GRADIENTS,
    inputs: Iterable[Value] = (),
) -> tuple[Program, Binding]:
    """The program of a graph, and which of its values are which arrays and edges.

    Args:
        nodes: In an order in which they can run. Edges that none of them computes are given.
        kept: Keys of edges whose value must survive the run.
        cut: Number of nodes in the first part.
        plain: Keys of those that must lie in the plain order in the end.
        gradients: {key of a gradient that is kept and may be tiled: the array it is of, if known}.
        inputs: Edges that get the first slots, in this order, whether a node reads them or not.
    Raises:
        NotImplementedError: Nodes run on two devices.
    """
    lowering = _Lowering(nodes)
    for value in inputs:
        lowering.input_slot(value)
    cut = len(nodes) if cut is None else cut
    for i, node in enumerate(nodes):
        lowering.add(node, i >= cut)
    program, binding = lowering.program, lowering.binding
    made = [(n, nd) for nd, n, _ in lowering.stays]
    program.shared = find_shared([*binding.arrays.items(), *made])
    for step in program.steps:
        for p in step.writes:
            slot = program.slots[program.root(step.ins[p])]
            if slot.role == INPUT:
                slot.role = STATE
    slot_of = binding.slot_of
    program.kept = {slot_of[k] for k in kept if k in slot_of}
    program.plain = {slot_of[k] for k in plain if k in slot_of}
    program.gradients = {
        slot_of[k]: 0 if a is None else binding.memory_of(a)
        for k, a in gradients.items()
        if k in slot_of
    }
    return program, binding


def settle(program: Program, binding: Binding, inputs: Iterable[Value]) -> None:
    """Say of a program that given values other than these rarely change from run to run."""
    program.steady = True
    for i in binding.arrays.keys() - {binding.slot_of[v.key] for v in inputs}:
        if program.slots[i].role == INPUT:
            program.slots[i].role = PARAMETER


class _Lowering:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self.program, self.binding = Program(_memory_of(nodes)), Binding()
        self.made_here: dict[int, int] = {}  # id of the array of an edge made so far: its slot
        self.stays: list[tuple[NdArray, int, Node]] = []  # of those made where others read
        self.casts: dict[tuple[int, Any], int] = {}  # (slot, dtype): the slot with its conversion

    def add(self, node: Node, second: bool) -> None:
        program, binding = self.program, self.binding
        slots = program.slots
        ins = [0 if v is None else self.input_slot(v) for v in node.inputs]
        specs = tuple([None if v is None else v.current_spec for v in node.inputs])
        bound = bind(node.op, node.attrs, node.target, specs)
        binding.nodes.append(node)
        name = getattr(node.attrs, "type_name", node.op.name)
        program.sources.append(
            Source(node.op.name, name, node.origin, (node.target.names, node.target.device_id))
        )
        step = Step(node.op.name, node.attrs.as_dict(), ins, (), second)
        step.source, step.view, step.writes = len(program.sources) - 1, bound.view, bound.writes
        step.native = any(b.fused and b.space == program.space for b in node.target.backends)
        for p, (i, want) in enumerate(zip(ins, bound.in_specs, strict=True)):
            if i and want is not None and want.dtype != slots[i].spec.dtype:
                if step.view or p in step.writes:
                    step.converts = True
                else:
                    ins[p] = self._converted(i, want, p, node, step)
        outs = []
        for i, spec in enumerate(bound.out_specs):
            seen = slots[ins[0]] if bound.view else None
            if seen is not None:
                spec = spec.with_dtype(seen.spec.dtype)  # also where it is computed in another one
            outs.append(program.new_slot(spec, None if seen is None else seen.root))
            binding.slot_of[(id(node), i)] = outs[-1]
            if node.outs is not None:
                self.made_here[id(node.outs[i])] = outs[-1]
                if node.outs[i].record.own is not None:
                    self.stays.append((node.outs[i], outs[-1], node))
        step.ins, step.outs = tuple(ins), tuple(outs)
        program.steps.append(step)
        written = {slots[program.root(ins[p])].memory for p in step.writes}
        if self.casts and (written or self.stays):
            self.casts = {k: v for k, v in self.casts.items() if self._stays(k[0], written)}

    def _stays(self, slot: int, written: set[int]) -> bool:
        """Whether a slot is none of the memory written, nor shares a part with anything."""
        n = self.program.root(slot)
        nd = self.binding.arrays.get(n)
        return self.program.slots[n].memory not in written and (nd is None or nd.record.own is None)

    def _converted(self, slot: int, spec: Spec, place: int, node: Node, reader: Step) -> int:
        """The slot in the type that a step computes with: made once, however many steps read it.

        A label given as float32 becomes an integer, which it must be, float64 from numpy becomes
        the float type of the context. State that a step writes stays as it is; such a step converts
        by itself.
        """
        program = self.program
        key = slot, spec.dtype
        if key not in self.casts:
            self.casts[key] = program.new_slot(spec)
            what = whole(node.op, place, program.slots[slot].spec)
            attrs = {"dtype": spec.type_name, "whole": what}
            cast = Step.of("cast", attrs, (slot,), (self.casts[key],), reader.second)
            cast.source, cast.native = reader.source, reader.native
            program.steps.append(cast)
        return self.casts[key]

    def input_slot(self, value: Value) -> int:
        slot = self.binding.slot_of.get(value.key)
        if slot is None or (
            value.node is None and (self.stays or id(value.array) in self.made_here)
        ):
            # an unlinked copy of what an earlier node of this graph makes is that edge's value, and
            # so is a leaf that a node has written since another one has read it
            made = self.made_here.get(id(value.array)) or self._written_before(value)
            slot = made or slot or self._given(value)
            self.binding.slot_of[value.key] = slot
        return slot

    def _written_before(self, value: Value) -> int:
        """The slot of an earlier node's output whose memory a leaf has; 0 for a leaf of its own.

        Raises:
            NotImplementedError: It has only a part of that memory.
        """
        nd, found = value.array, 0
        for out, slot, node in self.stays if nd.record.own is not None else ():
            if nd.bufs is out.bufs:
                found = slot
            elif np.shares_memory(nd.record.own, out.record.own):
                raise NotImplementedError(
                    f"plan: {value.label} reads {nd.spec}, which shares a part of its memory with "
                    f"what {node.label} writes in the same graph: use the result of {node.op.name} "
                    "itself, or run two graphs"
                )
        return found

    def _given(self, value: Value) -> int:
        program, binding, nd = self.program, self.binding, value.array
        n = program.new_slot(value.current_spec, role=PARAMETER if value.need_grad else INPUT)
        slot = program.slots[n]
        slot.name, slot.memory = value.name, binding.memory_of(nd)
        if isinstance(nd, Zeros):
            slot.role, slot.data = CONSTANT, repeated(slot.spec)
        binding.arrays[n] = nd
        program.found[n] = frozenset(nd.bufs)
        if SPACE in nd.bufs and nd.bufs[SPACE].base is not None:
            program.parts_of_others.add(n)
        return n


def _memory_of(nodes: Sequence[Node]) -> str:
    """Where a program of these nodes computes: on the device that some of them name."""
    spaces = {n.target.backends[0].space for n in nodes} - {SPACE}
    if len(spaces) > 1:
        raise NotImplementedError(
            f"plan: functions of one graph run in {sorted(spaces)}, wanted one device and the host"
        )
    return spaces.pop() if spaces else SPACE


def definition(program: Program, step: Step) -> Bound:
    """The call on arrays that the definition of a step's op is.

    Raises:
        NotImplementedError: There is no such op.
    """
    op = OPS.get(step.op)
    if op is None:
        raise NotImplementedError(f"plan: {step} has neither a kernel nor a definition")
    source = program.sources[step.source]
    specs = tuple([program.slots[i].spec if i else None for i in step.ins])
    target = MODES.target if source is None else resolve(*source.context)
    bound = bind(op, op.attrs(**step.attrs), target, specs)
    return bound if bound.space == program.space else SPACES[program.space].adopt(bound)  # type: ignore[attr-defined]
