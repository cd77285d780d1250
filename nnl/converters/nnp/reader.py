# SPDX-License-Identifier: Apache-2.0
"""load(): networks, parameters and training settings from the files of NNabla and of nnl."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from nnl.converters.nnp.archive import Content, Files, read_files
from nnl.converters.nnp.building import NewParameters, build_networks
from nnl.converters.nnp.training_reader import (
    context_of,
    link_executor,
    link_monitor,
    link_optimizer,
    read_dataset,
    restore_optimizer_state,
    training_config,
)
from nnl.core.parameters.parameter import (
    get_current_parameter_scope,
)
from nnl.core.settings.context import Context, using


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
    return build(content, prepare_data_iterator, batch_size, exclude_parameter, parameter_only,
                 context)  # fmt: skip


def build(
    content: Content,
    prepare_data_iterator: bool = True,
    batch_size: int | None = None,
    exclude_parameter: bool = False,
    parameter_only: bool = False,
    context: Context | None = None,
    seed: int = 0,
) -> Info:
    """What `load` gives of files that were read.

    Args:
        seed: Of initial values and of the order of data; 0 is NNabla's.
    """
    proto = content.proto
    stored = [] if exclude_parameter else content.promised
    parameters = NewParameters(stored, content.where, seed=seed)
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
            _link(info, content, seed)
    parameters.commit(content.wait)
    return info


def _link(info: Info, content: Content, seed: int) -> None:
    where, networks, proto = content.where, info.networks, content.proto
    for i, d in enumerate(proto.dataset):
        prepare = info.prepare_data_iterator
        info.datasets[d.name] = read_dataset(d, i, prepare, info.batch_size, seed)
    for o in proto.optimizer:
        info.optimizers[o.name] = link_optimizer(o, networks, info.datasets, where)
        state = content.states.get(o.name)
        if state is None and o.solver.states:
            state = ".protobuf", o.SerializeToString()
        info.optimizers[o.name].solver_checkpoint = state
        restore_optimizer_state(info.optimizers[o.name], where)
    for m in proto.monitor:
        info.monitors[m.name] = link_monitor(m, networks, info.datasets, where)
    for e in proto.executor:
        info.executors[e.name] = link_executor(e, networks, where)
