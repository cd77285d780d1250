# SPDX-License-Identifier: Apache-2.0
"""Networks of a file as messages: choose an executor, cut out functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nnl.converters.nnp.archive import Content
from nnl.converters.nnp.loops import expand_loops
from nnl.converters.nnp.messages import copy_of
from nnl.converters.nnp.network_reader import in_order, shapes_of


def expanded(content: Content) -> Content:
    """The content with the loops of its networks unrolled."""
    proto = copy_of(content.proto)
    del proto.network[:]
    for message in content.proto.network:
        where = f"{content.where}: network {message.name!r}"
        proto.network.add().CopyFrom(expand_loops(message, where))
    return Content(content.where, proto, content.stored, content.states)


def network_of(content: Content, name: str | None = None) -> Any:
    """The Network message of this name; of the first executor, or the first one, for None.

    Raises:
        ValueError: There is no such network.
    """
    networks = {n.name: n for n in content.proto.network}
    if name is None and content.proto.executor:
        name = content.proto.executor[0].network_name
    if name is None and networks:
        name = next(iter(networks))
    if name not in networks:
        raise ValueError(
            f"{content.where}: there is no network"
            + (f" {name!r}, only {sorted(networks)}" if name is not None else " in it")
        )
    return networks[name]


def functions_of(content: Content, message: Any) -> list[Any]:
    """The Function messages of a network in the order of execution."""
    where = f"{content.where}: network {message.name!r}"
    shapes = shapes_of(message, max(message.batch_size, 1), where)
    return [step.message for step in in_order(message, shapes, where)]


def with_executor(content: Content, index: int) -> Content:
    """What one executor needs: its network without what its outputs do not depend on.

    Raises:
        ValueError: There is no such executor.
    """
    executors = content.proto.executor
    if not 0 <= index < len(executors):
        raise ValueError(
            f"{content.where}: there is no executor {index}, the file has {len(executors)}"
        )
    executor = executors[index]
    message = network_of(content, executor.network_name)
    wanted = {v.variable_name for v in executor.output_variable}
    kept = []
    for f in reversed(functions_of(content, message)):
        if wanted.intersection(f.output):
            kept.append(f)
            wanted.update(f.input)
    reduced = _with_functions(content, message, kept[::-1], extra=wanted)
    reduced.proto.executor.add().CopyFrom(executor)
    names = {v.name for v in reduced.proto.network[0].variable}
    copy = reduced.proto.executor[0]
    for part in (copy.data_variable, copy.parameter_variable, copy.generator_variable):
        kept_parts = [v for v in part if v.variable_name in names]
        del part[:]
        part.extend(kept_parts)
    return reduced


def between(
    content: Content, inputs: Sequence[str] | None, outputs: Sequence[str] | None
) -> Content:
    """The part of the network that computes `outputs` from `inputs`, both names of variables.

    Args:
        inputs: Where the part begins; where the network begins if left out.
        outputs: Where it ends; where the network ends if left out.
    Raises:
        ValueError: There is no such variable, or the outputs need other inputs as well.
    """
    message = network_of(content)
    variables = {v.name for v in message.variable}
    parameters = {v.name for v in message.variable if v.type == "Parameter"}
    first, last = interface(content)
    ends = list(last) if outputs is None else list(outputs)
    for name in (*(inputs or ()), *ends):
        if name not in variables - parameters:
            raise ValueError(
                f"{content.where}: the network {message.name!r} has no variable {name!r}, only "
                f"{', '.join(sorted(variables - parameters))}"
            )
    begins = set(first if inputs is None else inputs)
    wanted, kept = set(ends), []
    for f in reversed(functions_of(content, message)):
        if (wanted - begins).intersection(f.output):
            kept.append(f)
            wanted.update(f.input)
    made = {n for f in kept for n in f.output}
    missing = sorted(wanted - made - begins - parameters)
    if missing:
        raise ValueError(
            f"{content.where}: {', '.join(ends)} cannot be computed from "
            f"{', '.join(sorted(begins)) or 'nothing'}: {', '.join(missing)} is needed too"
        )
    part = _with_functions(content, message, kept[::-1], extra=ends)
    executor = part.proto.executor.add(name="runtime", network_name=message.name)
    for name in first if inputs is None else inputs:
        if name in wanted:
            executor.data_variable.add(variable_name=name, data_name=name)
    for name in ends:
        executor.output_variable.add(variable_name=name, data_name=name)
    for v in part.proto.network[0].variable:
        if v.name in parameters:
            executor.parameter_variable.add(variable_name=v.name)
    return part


def with_functions(content: Content, message: Any, functions: Sequence[Any]) -> Content:
    """A part of a network as a network with an executor: what the part does not compute itself
    is an input, what nothing in it reads, or something outside it does, an output."""
    part = _with_functions(content, message, functions)
    inside = {id(f) for f in functions}
    made = {name for f in functions for name in f.output}
    read = {name for f in functions for name in f.input}
    outside = {name for f in message.function if id(f) not in inside for name in f.input}
    parameters = {v.name for v in message.variable if v.type == "Parameter"}
    executor = part.proto.executor.add(name="runtime", network_name=message.name)
    for v in part.proto.network[0].variable:
        if v.name in parameters:
            executor.parameter_variable.add(variable_name=v.name)
        elif v.name not in made:
            executor.data_variable.add(variable_name=v.name, data_name=v.name)
        elif v.name not in read or v.name in outside:
            executor.output_variable.add(variable_name=v.name, data_name=v.name)
    return part


def _with_functions(
    content: Content, message: Any, functions: Sequence[Any], extra: Iterable[str] = ()
) -> Content:
    proto = type(content.proto)()
    if content.proto.HasField("global_config"):  # NNabla refuses an empty one
        proto.global_config.CopyFrom(content.proto.global_config)
    new = proto.network.add(name=message.name, batch_size=message.batch_size)
    names = set(extra) | {n for f in functions for n in (*f.input, *f.output)}
    for v in message.variable:
        if v.name in names:
            new.variable.add().CopyFrom(v)
    for f in functions:
        new.function.add().CopyFrom(f)
    stored = [p for p in content.stored if p.name in names]
    return Content(content.where, proto, stored)


def interface(content: Content) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Shapes of the inputs and of the outputs of the first executor, or of the first network."""
    message = network_of(content)
    shapes = {v.name: list(v.shape.dim) for v in message.variable}
    if content.proto.executor:
        e = content.proto.executor[0]
        inputs = [v.variable_name for v in e.data_variable]
        outputs = [v.variable_name for v in e.output_variable]
    else:
        made = {n for f in message.function for n in f.output}
        read = {n for f in message.function for n in f.input}
        buffers = [v.name for v in message.variable if v.type != "Parameter"]
        inputs = [n for n in buffers if n in read - made]
        outputs = [n for n in buffers if n in made - read]
    for name in (*inputs, *outputs):
        if name not in shapes:
            raise ValueError(f"{content.where}: the executor names {name!r}, which is not there")
    return {n: shapes[n] for n in inputs}, {n: shapes[n] for n in outputs}
