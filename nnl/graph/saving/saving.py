# SPDX-License-Identifier: Apache-2.0
"""Saving graphs and compiled functions as programs: names, roles, and what a run hands on."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from nnl.core.arguments.annotations import shown
from nnl.core.arguments.warn_once import warn_once
from nnl.core.arrays.array import NdArray
from nnl.core.graph.node import capture
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS
from nnl.core.parameters.parameter import get_parameters
from nnl.core.settings.context import SPACES, using
from nnl.ext.library import Library
from nnl.graph.lowering.binding import Binding
from nnl.graph.lowering.infer_again import infer_again
from nnl.graph.lowering.lowering import lower
from nnl.graph.open_sizes.at_most import counted
from nnl.graph.open_sizes.recording import Axes, OpenGraphs, record_open, unify_with_passes
from nnl.graph.passes import PORTABLE, portable, portable_inside
from nnl.graph.passes.rewriting.decompose import decompose_unknown
from nnl.graph.passes.rewriting.inner_programs import rewrite_inside
from nnl.graph.passes.rewriting.input_types import narrow_inputs
from nnl.graph.program.open_program import Differ, moved
from nnl.graph.program.program import INPUT, STATE, Program
from nnl.graph.program.sizes import Dim, Unexplained
from nnl.graph.saving.device_kernels import kernels_of
from nnl.graph.saving.files import write
from nnl.graph.saving.precision import in_bfloat16, narrow_arrays, narrow_type

logger = logging.getLogger("nnl")

Variables = Mapping[str, Variable]
T = TypeVar("T")


class Saver:
    """Programs that will be in one file, and the arrays that they share by name."""

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}
        self.arrays: dict[str, NdArray] = {}
        self.parameters: dict[str, bool] = {}
        self.names: dict[int, str] = {}  # {id of an array's memory: its name}
        self.know_parameters()

    def know_parameters(self) -> None:
        """Call the parameters that are registered now by their names."""
        for name, v in get_parameters(grad_only=False).items():
            self.parameters[name] = v.need_grad
            self.names[id(v.data.bufs)] = name

    def add(self, name: str, program: Program, binding: Binding, inputs: Mapping[int, str]) -> None:
        """Add a program that no pass has changed, or one that was saved before.

        Args:
            inputs: {id of an array: its name}, of those that are given at every run.
        """
        self._name(program, binding, inputs)
        lib = SPACES[program.space].library()
        if lib is not None and not program.fused:
            portable(program, lib)
            decompose_unknown(program, lib)
            rewrite_inside(program, lib, portable_inside)
        self._keep(name, program)

    def add_open(self, name: str, opened: OpenGraphs) -> None:
        """Add a program that runs at any size; its example is that of its dims, if it takes that.

        Raises:
            ValueError: The graphs are not one program; the text says where. Nothing is added.
        """
        lowered = [lower_graph(self, name, *graph) for graph in opened.graphs]
        self.add_recorded(name, opened, lowered)

    def add_recorded(
        self,
        name: str,
        opened: OpenGraphs,
        lowered: Sequence[tuple[Program, Binding, Mapping[int, str]]],
    ) -> None:
        """The same, with the programs of its witnesses, and the names of their inputs."""
        for program, binding, named in lowered:
            _give_roles(program, binding.arrays, named)
        programs = [p.copy() for p, _, _ in lowered]
        lib = SPACES[programs[0].space].library()
        passes = [*PORTABLE, decompose_unknown, _rewrite_inside, _finish]
        found = unify_with_passes(programs, opened, lib, passes)
        with suppress(ValueError):
            found = moved(found, {n: d.example for n, d in opened.dims.items()})
        self._name(*lowered[0])
        for i in lowered[0][1].arrays:  # passes leave the numbers of what is given
            found.slots[i].name = lowered[0][0].slots[i].name
        self._keep(name, found)

    def _name(self, program: Program, binding: Binding, inputs: Mapping[int, str]) -> None:
        """Give roles and names to what is given, and keep the arrays that it is."""
        given = {i: nd for i, nd in binding.arrays.items() if not program.slots[i].zero}
        _give_roles(program, given, inputs)
        told = _named_by_readers(program, given, self.names)
        for i, nd in given.items():
            slot = program.slots[i]
            if id(nd) in inputs:
                continue
            known = self.names.get(id(nd.bufs))
            if known is None or self.arrays.get(known, nd).bufs is not nd.bufs:
                known = unique(known or slot.name or told.get(i, f"value{i}"), self.arrays)
                self.names[id(nd.bufs)] = known
            self.arrays[known] = nd
            slot.name = known

    def _keep(self, name: str, program: Program) -> None:
        for i, slot in enumerate(program.slots):
            if slot.data is not None and any(slot.data.strides):  # what a pass has computed
                slot.name = unique(f"{name}/constant{i}", self.arrays)
                self.arrays[slot.name] = NdArray.from_numpy_array(slot.data)
        self.programs[name] = program

    def write(
        self, path: str | os.PathLike[str], precision: str = "float32", language: bytes = b""
    ) -> None:
        """Write the file; see load_program for precisions, `programs.write` for the language."""
        programs = self.programs
        if narrow_type(precision, "save_program") is not None:
            programs = {k: in_bfloat16(p) for k, p in programs.items()}
        used = {s.name for p in programs.values() for s in p.slots if s.given}
        arrays = {k: nd for k, nd in self.arrays.items() if k in used}
        if programs is not self.programs:
            narrow_arrays(arrays, programs)
        parameters = {k: v for k, v in self.parameters.items() if k in used}
        write(path, programs, arrays, parameters, language, kernels_of(programs))


def _give_roles(program: Program, given: Mapping[int, NdArray], inputs: Mapping[int, str]) -> None:
    for i, nd in given.items():
        slot = program.slots[i]
        if id(nd) in inputs:
            slot.name, slot.role = inputs[id(nd)], INPUT
        elif slot.role == INPUT:  # nobody gives it, so it is kept
            slot.role = STATE
    if not program.fused:
        narrow_inputs(program, [i for i, nd in given.items() if id(nd) in inputs])


def _rewrite_inside(program: Program, lib: Library) -> None:
    rewrite_inside(program, lib, portable_inside)


def _finish(program: Program, lib: Library) -> None:
    program.fused = True


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


def lower_graph(
    saver: Saver, name: str, outputs: Variables, inputs: Variables
) -> tuple[Program, Binding, dict[int, str]]:
    """The program that computes some outputs, and the names of the arrays that are its inputs.

    Raises:
        ValueError: An input is computed from something else.
    """
    edges, counts = {}, {}
    for key, v in outputs.items():
        made = counted(v.edge)
        computed = made is not None and made.x.node is not None  # or a copy of what is given
        edges[key] = made.x if made is not None and computed else v.edge
        if made is not None:
            counts[key] = f"{key}/count", made.axis
            edges[f"{key}/count"] = made.number
    nodes = capture([*edges.values()])
    for node in nodes:
        if node.op.name == "dropout" or getattr(node.attrs, "batch_stat", False):
            what = "drops values" if node.op.name == "dropout" else "uses statistics of its batch"
            warn_once(
                f"save_program: {name!r} has {node.op.name}, which {what} in every run, as in "
                "training: build what is for inference without it, or with batch_stat=False"
            )
    infer_again(nodes)
    keys = {e.key for e in edges.values()}
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
    program.counts = counts
    for key, edge in edges.items():
        program.outputs[key] = binding.slot_of.get(edge.key, 0)
        if not program.outputs[key]:
            raise ValueError(f"save_program: the output {key!r} is computed by no function")
    return program, binding, named


def save_program(
    path: str | os.PathLike[str],
    outputs: Variable | Variables | Callable[..., Any] | None = None,
    inputs: Variables | None = None,
    programs: Mapping[str, Any] | None = None,
    open: Axes | None = None,
    ranges: Mapping[str, Sequence[int]] | None = None,
    precision: str = "float32",
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
        open: Sizes that may be any, by names of your own: {"x": ("batch", 3, "height", None)}; what
            is no name stays as it is. Axes with one name are of one size. `outputs` is then a
            function of the inputs, by name, that builds the network: it is called with Variables of
            several sizes, and everything that Python computes from their shapes is followed.
        ranges: {"height": (32, 4096, 32)}: least size, greatest (None: any), and what sizes are a
            multiple of; of which it must be that is found out where nothing is said.
        precision: "bf16": weights and results of products in 16 bits, see load_program.
    Raises:
        NotImplementedError: A function runs Python code.
        ValueError: The network is not the same program at all sizes; the text names the function.

    Example:
        >>> import nnl as nn
        >>> x = nn.Variable((1, 2))
        >>> nn.save_program("twice.nnlp", {"y": x * 2}, {"x": x})
        >>> print(nn.load_program("twice.nnlp")["main"].text().splitlines()[0])
        x:f32[1, 2] input
        >>> nn.save_program("any.nnlp", lambda x: x * 2, {"x": x}, open={"x": ("batch", None)})
        >>> nn.load_program("any.nnlp").run(x=[[1, 2], [3, 4]])["y"].shape
        (2, 2)
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
    if open is not None or callable(outputs):

        def use(opened: OpenGraphs) -> Saver:
            saver = Saver()  # the parameters are there now
            saver.add_open("main", opened)
            return saver

        saver = record_function("save_program", outputs, inputs or {}, open, ranges, use)
        return saver.write(path, precision)
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
        saver.add(name, *lower_graph(saver, name, ends, given or {}))
    saver.write(path, precision)


def record_function(
    what: str,
    function: Any,
    inputs: Variables,
    open: Axes | None,
    ranges: Mapping[str, Sequence[int]] | None,
    use: Callable[[OpenGraphs], T],
) -> T:
    """Record what a function builds of its inputs at several sizes; see `save_program`.

    Args:
        what: Whose messages these are. use: What makes something of the graphs.
    Returns:
        What `use` returns.
    """
    axes, ranges = open or {}, ranges or {}
    if not callable(function):
        raise TypeError(
            f"{what}: outputs is {shown(function)}, wanted with open sizes a function that "
            'builds the network: lambda x: net(x), with inputs={"x": x}'
        )
    dims = dims_of(axes, {k: v.shape for k, v in inputs.items()}, ranges)

    def build(sizes: Mapping[str, int]) -> tuple[Variables, Variables]:
        given = {}
        for key, v in inputs.items():
            names = axes.get(key, v.shape)
            shape = [sizes[n] if isinstance(n, str) else v.shape[a] for a, n in enumerate(names)]
            given[key] = x = Variable(shape)
            x.data.set_spec(x.spec.with_dtype(v.spec.dtype))
        with using(auto_forward=False):
            found = function(**given)
        found = {"y": found} if isinstance(found, Variable) else found
        if not isinstance(found, Mapping) or not all(
            isinstance(y, Variable) for y in found.values()
        ):
            raise TypeError(
                f"{what}: the function returned {type(found).__name__}, wanted a Variable or "
                "a dict of them"
            )
        return found, given

    closed: Axes = {k: v.shape for k, v in inputs.items()}
    try:
        return record_open(build, dims, {**closed, **axes}, ranges, use)
    except (Differ, Unexplained) as e:
        raise ValueError(f"{what}: {e}") from None


def dims_of(
    axes: Axes, shapes: Mapping[str, Sequence[int]], ranges: Mapping[str, Sequence[Any]]
) -> dict[str, Dim]:
    """Open sizes by name; the shapes of the inputs are their examples.

    Raises:
        ValueError: Names, axes or ranges do not fit the inputs; the text says which.
    """
    example: dict[str, int] = {}
    for key, names in axes.items():
        if key not in shapes:
            raise ValueError(f"open: there is no input {key!r} among {sorted(shapes)}")
        if isinstance(names, str) or len(names) != len(shapes[key]):
            raise ValueError(
                f"open: {key} has the shape {tuple(shapes[key])}, wanted a name or None for each "
                f"axis, got {names!r}"
            )
        for n, size in zip(names, shapes[key], strict=True):
            if isinstance(n, str):
                if not n.isidentifier():
                    raise ValueError(f"open: {n!r} is no name of a size, wanted an identifier")
                example.setdefault(n, size)
            elif n is not None and n != size:
                raise ValueError(
                    f"open: {key} has the shape {tuple(shapes[key])}, {names!r} fixes {n}"
                )
    dims = {}
    for n in ranges:
        if n not in example:
            raise ValueError(f"ranges: there is no open size {n!r} among {sorted(example)}")
    for n, size in example.items():
        given = [*ranges.get(n, ())]
        least, greatest, multiple = [*given, *[1, None, 1][len(given) :]][:3]
        numbers = [k for k in (least, greatest, multiple) if k is not None]
        if any(type(k) is not int or k < 1 for k in numbers) or (greatest or least) < least:
            raise ValueError(
                f"ranges: {n} has {tuple(ranges[n])}, wanted (least, greatest or None, multiple)"
            )
        dims[n] = Dim(size, least, greatest, multiple)
    return dims
