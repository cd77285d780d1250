# SPDX-License-Identifier: Apache-2.0
"""load(): networks, parameters and training settings from the files of NNabla and of nnl."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from nnl.converters.nnp.archive import Content, Files, read_files
from nnl.converters.nnp.initial_values import initial_value
from nnl.converters.nnp.network_pass import NnpNetworkPass
from nnl.converters.nnp.network_reader import LoadedNetwork, build_network
from nnl.converters.nnp.parameter_files import Stored, set_value
from nnl.converters.nnp.training_reader import (
    context_of,
    link_executor,
    link_monitor,
    link_optimizer,
    read_dataset,
    restore_states,
    training_config,
)
from nnl.core.array import NdArray
from nnl.core.context import Context, using
from nnl.core.graph import Value
from nnl.core.parameter import (
    get_current_parameter_scope,
    get_parameter,
    get_parameters,
    set_parameter,
)
from nnl.core.spec import ShapeError, Spec
from nnl.core.variable import Variable


class NewParameters:
    """Parameters to be: nothing is registered or changed before `commit`.

    Args:
        stored: Those with values, from a file.
        keep: Copy the values, because the caller will read them again.
    Raises:
        ShapeError: One exists with another shape; ValueError: a name is a scope of another one.
    """

    def __init__(self, stored: list[Stored], where: str, keep: bool = False) -> None:
        self.keep = keep
        self.where, self.rng = where, np.random.RandomState(0)
        self.stored = {p.name: p for p in stored}
        self.variables: dict[str, Variable] = {}
        self.made: list[str] = []  # names of those that were not registered
        self.values: dict[str, np.ndarray[Any, Any]] = {}  # to be set
        for p in stored:
            self._add(p.name, p.value.shape, p.value)

    def __call__(self, name: str, shape: tuple[int, ...], initializer: Any) -> Variable:
        """The parameter for a network, made if there is none."""
        if name not in self.variables:
            existed = self._add(name, shape)
            if not existed and initializer is not None:
                at = f"{self.where}: parameter {name!r}"
                value = initial_value(initializer, shape, self.rng, at)
                if value is not None:
                    self.values[name] = value
        found = self.variables[name]
        if found.shape != shape:
            raise ShapeError(
                f"{self.where}: parameter {name!r} has the shape {found.shape}, "
                f"the network wants {shape}"
            )
        return found

    def _add(self, name: str, shape: tuple[int, ...], value: Any = None) -> bool:
        """Whether the parameter was registered before. Its value may still be read."""
        existing = get_parameter(name)
        if existing is not None and existing.shape != shape:
            raise ShapeError(
                f"{self.where}: parameter {name!r} has the shape {shape} in the file, the one that "
                f"exists has {existing.shape}: clear_parameters() to replace it"
            )
        if not name.strip("/"):
            raise ValueError(f"{self.where}: a parameter has the name {name!r}")
        if existing is None:
            self.made.append(name)
        if existing is None and value is not None and value.flags.carray and not self.keep:
            nd = NdArray.holding(Spec.of(shape, value.dtype), "host", value)
            self.variables[name] = Variable.of_edge(Value.leaf(nd, True), nd)
            return False
        self.variables[name] = Variable(shape, need_grad=True) if existing is None else existing
        if value is not None:
            self.values[name] = value
        return existing is not None

    def commit(self, wait: Callable[[], None] | None = None) -> None:
        """Register all parameters and set the values that the files gave.

        Args:
            wait: Comes back when the values are there, or raises an error; then nothing is changed.
        """
        self._check_scopes()
        if wait is not None:
            wait()
        for name, p in self.stored.items():
            self.variables[name].need_grad = p.need_grad
        for name, value in self.values.items():
            set_value(self.variables[name], value.copy() if self.keep else value)
        for name in self.made:
            set_parameter(name, self.variables[name])

    def _check_scopes(self) -> None:
        names = {_path(n) for n in self.variables}
        if len(names) < len(self.variables):
            raise ValueError(f"{self.where}: two parameters have names that differ in '/' only")
        names.update(get_parameters(grad_only=False))
        seen: set[str] = set()
        for name in names:
            scope = name.rpartition("/")[0]
            while scope and scope not in seen:
                if scope in names:
                    raise ValueError(
                        f"{self.where}: {scope!r} is a parameter and the scope of {name!r}"
                    )
                seen.add(scope)
                scope = scope.rpartition("/")[0]


def _path(name: str) -> str:
    """The name without empty parts, which the registry leaves out."""
    usual = "//" not in name and name[:1] != "/" != name[-1:]
    return name if usual else "/".join(part for part in name.split("/") if part)


def build_networks(
    content: Content,
    names: list[str] | None,
    batch_size: int | None,
    parameters: NewParameters,
    change: NnpNetworkPass | None = None,
) -> OrderedDict[str, LoadedNetwork]:
    """Build the networks of these names, or all; parameters are not registered yet."""
    networks: OrderedDict[str, LoadedNetwork] = OrderedDict()
    for message in content.proto.network:
        if names is None or message.name in names:
            if message.name in networks:
                raise ValueError(f"{content.where}: two networks have the name {message.name!r}")
            networks[message.name] = build_network(
                message, batch_size, parameters, content.where, change
            )
    return networks


class Info(SimpleNamespace):
    """What `load` found.

    Attributes:
        proto: The message of the files, without parameters.
        networks: LoadedNetwork by name.
        executors, optimizers, monitors, datasets: By name, linked to the networks.
        global_config, training_config: Settings; default_context is the file's context.
        parameter_scope: The scope that the parameters are in.
        renamed_variables: Empty: no variable is renamed.
        proto_graph: The networks as data, a nnl.graph_def.ProtoGraph.
    """

    proto: Any
    parameter_scope: Any

    @property
    def proto_graph(self) -> Any:
        # it is seldom wanted, and imports this module
        from nnl.converters.nnp.graph_def import graph_of

        return graph_of(Content("load", self.proto), self.batch_size, self.parameter_scope, None)


@contextmanager
def _no_collections() -> Iterator[None]:
    """No garbage collection: what is made here stays, and there is enough of it to start one."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_no_collections()
def load(
    filenames: Files,
    prepare_data_iterator: bool = True,
    batch_size: int | None = None,
    exclude_parameter: bool = False,
    parameter_only: bool = False,
    extension: str = ".nntxt",
    context: Context | None = None,
) -> Info:
    """Read files that `save` or NNabla wrote, into graphs and the current parameter scope.

    Nothing is changed if anything in the files is wrong.

    Args:
        filenames: One path or file, or several, which are merged: .nnp, .nntxt, .prototxt,
            .protobuf or .h5.
        prepare_data_iterator: Give each dataset with a uri a function that makes its iterator.
        batch_size: For networks with a variable batch size, instead of the saved one.
        exclude_parameter: Leave the values of parameters as they are.
        parameter_only: Read parameters only.
        extension: That of the format if filenames is an open file.
        context: To build the networks in, instead of the file's.
    Raises:
        ValueError: A file is broken, or what it says contradicts itself or nnl; the text names
            file, network and function. ShapeError: A parameter exists with another shape.
    """
    content = read_files(filenames, extension, "load")
    proto = content.proto
    parameters = NewParameters([] if exclude_parameter else content.promised, content.where)
    info = Info(
        proto=proto,
        prepare_data_iterator=prepare_data_iterator,
        batch_size=batch_size,
        exclude_parameter=exclude_parameter,
        parameter_only=parameter_only,
        parameter_scope=get_current_parameter_scope(),
        renamed_variables={},
    )
    info.default_context = context_of(proto.global_config) if context is None else context
    info.global_config = SimpleNamespace(default_context=info.default_context)
    info.training_config = training_config(proto)
    info.networks, info.datasets = OrderedDict(), OrderedDict()
    info.executors, info.optimizers = OrderedDict(), OrderedDict()
    info.monitors = OrderedDict()
    if not parameter_only:
        with using(target=info.default_context.target, auto_forward=False):
            info.networks = build_networks(content, None, batch_size, parameters)
            _link(info, content)
    parameters.commit(content.wait)
    return info


def _link(info: Info, content: Content) -> None:
    where, networks, proto = content.where, info.networks, content.proto
    for d in proto.dataset:
        info.datasets[d.name] = read_dataset(d, info.prepare_data_iterator, info.batch_size)
    for o in proto.optimizer:
        info.optimizers[o.name] = link_optimizer(o, networks, info.datasets, where)
        state = content.states.get(o.name)
        if state is None and o.solver.states:
            state = ".protobuf", o.SerializeToString()
        info.optimizers[o.name].solver_checkpoint = state
        restore_states(info.optimizers[o.name], where)
    for m in proto.monitor:
        info.monitors[m.name] = link_monitor(m, networks, info.datasets, where)
    for e in proto.executor:
        info.executors[e.name] = link_executor(e, networks, where)
