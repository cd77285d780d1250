# SPDX-License-Identifier: Apache-2.0
"""Saving graphs and compiled functions as programs: names, roles, and what a run hands on."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from typing import Any

from nnl.core.annotations import shown
from nnl.core.array import NdArray
from nnl.core.context import SPACES
from nnl.core.graph import capture
from nnl.core.once import warn_once
from nnl.core.op import OPS
from nnl.core.parameter import get_parameters
from nnl.core.variable import Variable
from nnl.graph.binding import Binding
from nnl.graph.infer_again import infer_again
from nnl.graph.lowering import lower
from nnl.graph.passes import portable, portable_inside
from nnl.graph.passes.decompose import decompose_unknown
from nnl.graph.passes.inside import rewrite_inside
from nnl.graph.program import INPUT, STATE, Program
from nnl.graph.programs import write

logger = logging.getLogger("nnl")

Variables = Mapping[str, Variable]


class Saver:
    """Programs that will be in one file, and the arrays that they share by name."""

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}
        self.arrays: dict[str, NdArray] = {}
        registered = get_parameters(grad_only=False)
        self.parameters = {name: v.need_grad for name, v in registered.items()}
        # {id of an array's memory: its name}
        self.names = {id(v.data.bufs): name for name, v in registered.items()}

    def add(self, name: str, program: Program, binding: Binding, inputs: Mapping[int, str]) -> None:
        """Add a program that no pass has changed, or one that was saved before.

        Args:
            inputs: {id of an array: its name}, of those that are given at every run.
        """
        given = {i: nd for i, nd in binding.arrays.items() if not program.slots[i].zero}
        for i, nd in given.items():
            slot = program.slots[i]
            if id(nd) in inputs:
                slot.name, slot.role = inputs[id(nd)], INPUT
        told = _named_by_readers(program, given, self.names)
        for i, nd in given.items():
            slot = program.slots[i]
            if id(nd) in inputs:
                continue
            if slot.role == INPUT:  # nobody gives it, so it is kept
                slot.role = STATE
            known = self.names.get(id(nd.bufs))
            if known is None or self.arrays.get(known, nd).bufs is not nd.bufs:
                known = unique(known or slot.name or told.get(i, f"value{i}"), self.arrays)
                self.names[id(nd.bufs)] = known
            self.arrays[known] = nd
            slot.name = known
        lib = SPACES[program.space].library()
        if lib is not None and not program.fused:
            portable(program, lib)
            decompose_unknown(program, lib)
            rewrite_inside(program, lib, portable_inside)
        for i, slot in enumerate(program.slots):
            if slot.data is not None and any(slot.data.strides):  # what a pass has computed
                slot.name = unique(f"{name}/constant{i}", self.arrays)
                self.arrays[slot.name] = NdArray.from_numpy_array(slot.data)
        self.programs[name] = program

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file."""
        used = {s.name for p in self.programs.values() for s in p.slots if s.given}
        arrays = {k: nd for k, nd in self.arrays.items() if k in used}
        parameters = {k: v for k, v in self.parameters.items() if k in used}
        write(path, self.programs, arrays, parameters)


def unique(name: str, taken: Collection[str]) -> str:
    """The name, or with ".2" and so on where it is taken."""
    n, found = 1, name
    while found in taken:
        n, found = n + 1, f"{name}.{n + 1}"
    return found


def _named_by_readers(
    program: Program, given: Mapping[int, NdArray], names: Mapping[int, str]
) -> dict[int, str]:
    """Names for given values that have none: "conv/W/m", where an update of conv/W reads it as m.

    What updates of several parameters share is called by the op: "adam_update/lr".
    """
    found: dict[int, str] = {}
    for step in program.steps:
        inputs = OPS[step.op].inputs
        first = given.get(step.ins[0]) if step.ins else None
        base = names.get(id(first.bufs)) if first is not None else None
        for p, i in enumerate(step.ins):
            what = inputs[min(p, len(inputs) - 1)]
            if i in given and p and base is not None:
                found[i] = f"{step.op if i in found else base}/{what}"
            elif i in given and what == "rng":
                found.setdefault(i, what)
    return found


def add_graph(saver: Saver, name: str, outputs: Variables, inputs: Variables) -> None:
    """Add the program that computes some outputs.

    Raises:
        ValueError: An input is computed from something else.
    """
    edges = [v.edge for v in outputs.values()]
    nodes = capture(edges)
    for node in nodes:
        if node.op.name == "dropout" or getattr(node.attrs, "batch_stat", False):
            what = "drops values" if node.op.name == "dropout" else "uses statistics of its batch"
            warn_once(
                f"save_program: {name!r} has {node.op.name}, which {what} in every run, as in "
                "training: build what is for inference without it, or with batch_stat=False"
            )
    infer_again(nodes)
    keys = {e.key for e in edges}
    program, binding = lower(nodes, keys, plain=keys)
    for key, v in inputs.items():
        if v.edge.node is not None:
            raise ValueError(f"save_program: the input {key!r} is computed: {v.edge.label}")
    named = {id(v.data): key for key, v in inputs.items()}
    if not inputs:
        for i, nd in binding.arrays.items():
            slot = program.slots[i]
            if slot.role == INPUT and id(nd.bufs) not in saver.names:
                named[id(nd)] = unique(slot.name or f"x{len(named)}", named.values())
    for i, nd in binding.arrays.items():
        slot = program.slots[i]
        no_input = id(nd) not in named and id(nd.bufs) not in saver.names
        if slot.role == INPUT and nd.zeroing and no_input:  # forgotten, or an initial state
            what = f"{slot.name!r}, " if slot.name else "a Variable of shape "
            logger.info(
                "save_program: %s%s, is none of the inputs: it is saved as the zeros that it holds",
                what,
                slot.spec.shape,
            )
    for key, v in outputs.items():
        program.outputs[key] = binding.slot_of.get(v.edge.key, 0)
        if not program.outputs[key]:
            raise ValueError(f"save_program: the output {key!r} is computed by no function")
    saver.add(name, program, binding, named)


def save_program(
    path: str | os.PathLike[str],
    outputs: Variable | Variables | None = None,
    inputs: Variables | None = None,
    programs: Mapping[str, Any] | None = None,
) -> None:
    """Save graphs as programs (.nnlp): for C++, for exporters, or to run without their code.

    Args:
        path: The file.
        outputs: What the program "main" computes; a Variable alone is called "y".
        inputs: Its inputs by name. Left out: all arrays that are neither parameters nor computed,
            by the names of their Variables. What is no input is saved with its present value.
        programs: Several programs instead, which share parameters: {name: what it computes}, each
            value a Variable, {name: Variable}, a pair of outputs and inputs, or a function that
            nnl.compile has made and that has been called.
    Raises:
        NotImplementedError: A function runs Python code.

    Example:
        >>> import nnl as nn
        >>> x = nn.Variable((1, 2))
        >>> nn.save_program("twice.nnlp", {"y": x * 2}, {"x": x})
        >>> print(nn.load_program("twice.nnlp")["main"].text().splitlines()[0])
        x:f32[1, 2] input
    """
    if (outputs is None) == (programs is None):
        raise TypeError("save_program: give outputs, or programs")
    for name, given in (("inputs", inputs), ("programs", programs)):
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(
                f"save_program: {name} is {shown(given)}, wanted a dict"
                + (', as {"x": x}' if isinstance(given, Variable) else "")
            )
    todo: Mapping[str, Any] = programs or {"main": (outputs, inputs or {})}
    saver = Saver()
    for name, what in todo.items():
        if hasattr(what, "add_to"):
            what.add_to(saver, name)
            continue
        ends, given = what if isinstance(what, tuple) else (what, {})
        ends = {"y": ends} if isinstance(ends, Variable) else ends
        if not isinstance(ends, Mapping) or not all(
            isinstance(v, Variable) for d in (ends, given or {}) for v in d.values()
        ):
            raise TypeError(
                f"save_program: {name!r} is {type(what).__name__}, wanted a Variable, a dict of "
                "them, a pair of dicts for outputs and inputs, or a compiled function"
            )
        add_graph(saver, name, ends, given or {})
    saver.write(path)
