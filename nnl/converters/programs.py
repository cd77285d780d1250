# SPDX-License-Identifier: Apache-2.0
"""Networks of other formats as programs (.nnlp), and programs where networks are run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from nnl.converters.formats import WriteOptions
from nnl.converters.model import Model, Network, NnpModel
from nnl.converters.nnp.content import with_executor
from nnl.core.graph import Value, capture
from nnl.core.parameter import get_parameters, parameter_scope
from nnl.core.random import seed
from nnl.core.spec import Spec
from nnl.core.variable import Variable
from nnl.graph import load_program, save_program


def write_programs(model: Model, path: str, options: WriteOptions) -> None:
    """Write a program for each executor of a model and each batch size; they share parameters.

    Dropout does nothing in them, and batch normalization uses the running statistics.

    Raises:
        ValueError: The batch size is fixed, and another one, or shall stay open.
    """
    if options.version is not None:
        raise ValueError("the format NNLP has no versions to choose from: leave -d out")
    seed(0, set_parameter_seed=False)  # equal input gives equal bytes: the state is in the file
    shared: OrderedDict[str, Any] = OrderedDict()
    programs = {}
    for name, network in entries(model, options):
        with parameter_scope("", network.parameters):
            for key, v in get_parameters(grad_only=False).items():
                known: Variable = shared.setdefault(key, v)
                if known.spec is v.spec:
                    v.data = known.data
        programs[name] = network.outputs, network.inputs
    with parameter_scope("", shared):
        try:
            save_program(path, programs=programs)
        except ValueError as error:
            raise ValueError(f"{model.where}: {error}") from None


def entries(model: Model, options: WriteOptions) -> Iterator[tuple[str, Network]]:
    """Names of programs and their networks: one for each executor and each batch size."""
    executors = model.content().proto.executor if isinstance(model, NnpModel) else []
    parts = {f"{e.name or i}": i for i, e in enumerate(executors)}
    if len(parts) < 2:
        yield from _sized("", model, options)
        return
    for name, i in parts.items():
        yield from _sized(f"{name}_", NnpModel(with_executor(model.content(), i)), options)


def _sized(prefix: str, model: Model, options: WriteOptions) -> Iterator[tuple[str, Network]]:
    sizes = options.batch_size, *options.further
    if any(size is not None and size < 1 for size in sizes):
        raise ValueError(
            f"the batch size is {min(s for s in sizes if s is not None)}, wanted at least 1: every "
            "program has its own, `-b 1,8` writes two"
        )
    for size in dict.fromkeys(sizes):
        network = model.network(size or 1, inference=True)
        shapes = [v.shape for v in network.inputs.values()]
        if size is not None and shapes and not any(s[:1] == (size,) for s in shapes):
            raise ValueError(f"{model.where}: the batch size is fixed, so it cannot be {size}")
        _simplify(network)
        alone = prefix[:-1] or network.name
        yield f"{prefix}batch_{size}" if options.further else alone, network


def _simplify(network: Network) -> None:
    """Let functions read through what does nothing, and forget where the reader called them."""
    same: dict[tuple[int, int], Value] = {}
    for node in capture([v.edge for v in network.outputs.values()]):
        node.inputs = tuple([v and same.get(v.key, v) for v in node.inputs])
        node.origin = None
        if node.op.name == "dropout" and node.attrs.p == 0 and node.inputs[0] is not None:
            same[(id(node), 0)] = node.inputs[0]


class ProgramNetwork:
    """A program of a file, where networks are run.

    Attributes:
        inputs, outputs: Shapes and types by name.
    """

    def __init__(self, path: str, batch_size: int | None = None) -> None:
        self._programs = load_program(path)
        self._name = self._chosen(path, batch_size)
        self.inputs: dict[str, Spec] = self._programs.inputs(self._name)
        self.outputs: dict[str, Spec] = self._programs.outputs(self._name)

    def _chosen(self, path: str, batch_size: int | None) -> str:
        names = list(self._programs)
        if batch_size is not None:
            shapes = {n: [s.shape[:1] for s in self._programs.inputs(n).values()] for n in names}
            names = [n for n in names if (batch_size,) in shapes[n]]
        if len(names) == 1:
            return names[0]
        sized = "" if batch_size is None else f" of batch size {batch_size}"
        raise ValueError(
            f"{path} has {len(names)} programs{sized} among {', '.join(self._programs)}, wanted "
            "one: -b chooses by batch size, nnl.load_program by name"
        )

    def run(self, values: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """The outputs for values of the inputs."""
        return self._programs.run(self._name, **values)
