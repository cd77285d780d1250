# SPDX-License-Identifier: Apache-2.0
"""A Network message as a graph."""

from __future__ import annotations

import heapq
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from nnl.converters.nnp.function_messages import SHAPED, argument_field, call
from nnl.converters.nnp.loops import expand_loops
from nnl.converters.nnp.messages import copy_of
from nnl.converters.nnp.network_pass import NnpNetworkPass
from nnl.core.graph.variable import Variable
from nnl.core.settings.context import using

MAX_ELEMENTS = 2**40  # of one variable; a larger product of sizes is a broken file
END = 2**31 - 1  # as the end of a slice, in NNabla as well: where the axis ends

# (name, shape, initializer message) -> the parameter
Parameters = Callable[[str, tuple[int, ...], Any], Variable]


class Step(NamedTuple):
    """A function of a network: its message, and the names in it, which take long to get."""

    message: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(eq=False)
class LoadedVariable:
    """A variable of a network.

    Attributes:
        name: Its name in the file.
        type: "Parameter" or "Buffer".
        shape: Sizes, with the batch size in the place of -1.
        variable_instance: The Variable of the graph.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    variable_instance: Variable


@dataclass(eq=False)
class LoadedNetwork:
    """A network of a file as a graph.

    Attributes:
        name: Name of the network.
        batch_size: The one it was built for.
        variables: All variables by name, parameters last.
        parameters: The parameters among them.
        inputs: What no function computes and is no parameter.
        outputs: What is computed and no function reads.
        functions: Type of every function by name, in the order of execution.
    """

    name: str
    batch_size: int
    variables: OrderedDict[str, LoadedVariable] = field(default_factory=OrderedDict)
    parameters: OrderedDict[str, LoadedVariable] = field(default_factory=OrderedDict)
    inputs: OrderedDict[str, LoadedVariable] = field(default_factory=OrderedDict)
    outputs: OrderedDict[str, LoadedVariable] = field(default_factory=OrderedDict)
    functions: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def parameters_named(self, name: str) -> list[LoadedVariable]:
        """The parameters of this name, or those whose names begin with it.

        W{R} are those of all iterations of a loop.
        """
        if name in self.parameters:
            return [self.parameters[name]]
        pattern = "".join(
            r"\[\d+\]" if part.startswith("{") else re.escape(part)
            for part in re.split(r"(\{[^{}]*\})", name)
        )
        return [p for key, p in self.parameters.items() if re.match(pattern, key)]

    def variable(self, name: str, where: str) -> LoadedVariable:
        """The variable of this name, or a ValueError."""
        if name not in self.variables:
            raise ValueError(f"{where}: the network {self.name!r} has no variable {name!r}")
        return self.variables[name]


def build_network(
    message: Any,
    batch_size: int | None,
    parameters: Parameters,
    where: str,
    change: NnpNetworkPass | None = None,
) -> LoadedNetwork:
    """Build the graph of a Network message, in static mode.

    Args:
        batch_size: What stands for -1 in shapes; the batch size of the message if None.
        parameters: Gives the Variable of a parameter.
        where: The file, for messages.
        change: What to change in the message before.
    Raises:
        ValueError: A variable is missing or computed twice, the graph has a cycle, a function is
            unknown or does not accept its inputs, or loops cannot be unrolled.
    """
    where = f"{where}: network {message.name!r}"
    message = whole_slices(expand_loops(message, where))
    batch = message.batch_size if batch_size is None else batch_size
    given: Mapping[str, Variable] = {}
    if change is not None:
        open_batch = {v.name for v in message.variable if list(v.shape.dim[:1]) == [-1]}
        message, given = change.apply(message, where)
        # the batch size of a given input is that of the whole network
        batch = next((v.shape[0] for n, v in given.items() if n in open_batch and v.shape), batch)
    shapes = shapes_of(message, batch, where)
    ordered = in_order(message, shapes, where)
    values: dict[str, Variable] = {}
    network = LoadedNetwork(message.name, batch)
    names = set(shapes)  # of what is not a parameter
    with using(auto_forward=False):
        for v in _parameters(message, ordered):
            name = v.name
            names.discard(name)
            initializer = v.initializer if v.HasField("initializer") else None
            value = parameters(name, shapes[name], initializer)
            fixed = change is not None and change.fixed
            values[name] = value.unlinked(need_grad=False) if fixed else value
        values.update(given)
        read: set[str] = set()
        computed: set[str] = set()
        for f, used, made in ordered:
            at = f"{where}: function {f.name!r} ({f.type})"
            fresh = [name for name in used if name not in values]
            values.update((name, Variable(shapes[name])) for name in fresh)
            read.update(used)
            computed.update(made)
            inputs = [values[name] for name in used]
            if change is not None:
                f = change.adjusted(f, inputs, at)
            out_shapes = [shapes[name] for name in made]
            with using(origin=f.name):
                outputs = _call(
                    _with_batch(f, batch, at), inputs, [values[n] for n in fresh], out_shapes, at
                )
            if len(outputs) < len(made):
                raise ValueError(
                    f"{at}: the file names {len(made)} outputs, the function has {len(outputs)}"
                )
            values.update(zip(made, outputs, strict=False))
            network.functions[f.name] = f.type
        for name in sorted(shapes, key=lambda n: n not in names):
            found = values.get(name)
            value = Variable(shapes[name]) if found is None else found
            kind = "Buffer" if name in names else "Parameter"
            entry = LoadedVariable(name, kind, value.shape, value)
            network.variables[name] = entry
            if kind == "Parameter":
                network.parameters[name] = entry
            elif name not in computed:
                network.inputs[name] = entry
            elif name not in read:
                network.outputs[name] = entry
    return network


def _call(
    message: Any,
    inputs: list[Variable],
    fresh: list[Variable],
    out_shapes: list[tuple[int, ...]],
    where: str,
) -> tuple[Variable, ...]:
    """Apply a function. Files do not tell integers from floats: what a function does not accept as
    float32 from the network's inputs `fresh`, it is given as integers."""
    try:
        return call(message, inputs, out_shapes, where)
    except ValueError:
        if not fresh:
            raise
        for x in fresh:
            x.data.set_spec(x.spec.with_dtype(np.uint32))
        try:
            return call(message, inputs, out_shapes, where)
        except ValueError:
            pass  # the first error says more
        raise


def whole_slices(message: Any) -> Any:
    """The message in which slices over the whole of an open batch, whose ends are the batch size
    that was recorded, end where the axis does; the given one if it has none."""
    first = {v.name: v.shape.dim[0] for v in message.variable if v.shape.dim}
    ranks = {v.name: len(v.shape.dim) for v in message.variable}

    def is_whole(f: Any) -> bool:
        if f.type != "Slice" or not f.input or first.get(f.input[0]) != -1:
            return False
        p = f.slice_param
        return (
            len(p.stop) == len(p.start) == len(p.step) == ranks[f.input[0]]
            and p.start[0] == 0
            and p.step[0] > 0
            and p.stop[0] == message.batch_size
        )

    if not any(map(is_whole, message.function)):
        return message
    found = copy_of(message)
    for f in filter(is_whole, found.function):
        f.slice_param.stop[0] = END
    return found


def shapes_of(message: Any, batch: int, where: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the variables by name, with the batch size in the place of -1."""
    shapes: dict[str, tuple[int, ...]] = {}
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    for v in message.variable:
        name, dims = v.name, tuple(v.shape.dim[:])  # a slice comes at once
        if name in shapes:
            raise ValueError(f"{where}: variable {name!r}: two variables have this name")
        shape = known.get(dims)
        if shape is None:
            at = f"{where}: variable {name!r}"
            if -1 in dims and batch < 1:
                raise ValueError(f"{at}: its batch size is open, give batch_size")
            shape = known[dims] = tuple([batch if n == -1 else n for n in dims])
            if min(shape, default=0) < 0 or math.prod([n or 1 for n in shape]) > MAX_ELEMENTS:
                raise ValueError(f"{at}: its shape {dims} is impossible")
        shapes[name] = shape
    return shapes


def in_order(message: Any, shapes: Mapping[str, object], where: str) -> list[Step]:
    """The functions, every one after those that compute its inputs, else in the file's order."""
    functions = [Step(f, tuple(f.input[:]), tuple(f.output[:])) for f in message.function]
    source: dict[str, int] = {}
    for i, (f, used, made) in enumerate(functions):
        for name in (*used, *made):
            if name not in shapes:
                raise ValueError(f"{where}: function {f.name!r}: there is no variable {name!r}")
        for name in made:
            if name in source:
                raise ValueError(
                    f"{where}: function {f.name!r}: the variable {name!r} is already computed by "
                    f"the function {functions[source[name]].message.name!r}"
                )
            source[name] = i
    missing = [{source[n] for n in f.inputs if n in source} for f in functions]
    users: list[list[int]] = [[] for _ in functions]
    for i, before in enumerate(missing):
        for j in before:
            users[j].append(i)
    ready = [i for i, before in enumerate(missing) if not before]
    order: list[Step] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(functions[i])
        for j in users[i]:
            missing[j].discard(i)
            if not missing[j]:
                heapq.heappush(ready, j)
    if len(order) != len(functions):
        stuck = next(f for f, before in zip(functions, missing, strict=True) if before)
        name = stuck.message.name
        raise ValueError(f"{where}: function {name!r}: its inputs depend on its outputs (a cycle)")
    return order


def _parameters(message: Any, ordered: list[Step]) -> list[Any]:
    """The parameters' messages, in the order in which NNabla draws their initial values.

    That is the order of their first use by the functions, which it visits from the last output
    back, and at every function from the last input back.
    """
    found = [v for v in message.variable if v.type == "Parameter"]
    if not any(v.HasField("initializer") for v in found):
        return found
    source = {name: step for step in ordered for name in step.outputs}
    read = {name for step in ordered for name in step.inputs}
    stack = [source[v.name] for v in message.variable if v.name in source and v.name not in read]
    rank: dict[str, int] = {}
    done: set[str] = set()
    while stack:
        step = stack.pop()
        missing = [source[n] for n in step.inputs if n in source and n not in done]
        if missing:
            stack += [step, *missing]
            continue
        for name in step.inputs:
            rank.setdefault(name, len(rank))
        done.update(step.outputs)
    return sorted(found, key=lambda v: rank.get(v.name, len(rank)))


def _with_batch(message: Any, batch: int, where: str) -> Any:
    """The Function message with the batch size in the place of -1 in its argument `shape`."""
    name = argument_field().get(message.type)
    if message.type not in SHAPED or name is None:
        return message
    dims = tuple(getattr(message, name).shape.dim)
    sizes = [n or 1 for n in dims]
    if min(dims, default=0) < -1 or abs(math.prod(sizes)) > MAX_ELEMENTS:
        raise ValueError(f"{where}: its shape {dims} is impossible")
    if -1 not in dims:
        return message
    changed = copy_of(message)
    shape = getattr(changed, name).shape
    del shape.dim[:]
    shape.dim.extend(batch if n == -1 else n for n in dims)
    return changed
