# SPDX-License-Identifier: Apache-2.0
"""Networks of other formats as programs (.nnlp), and programs where networks are run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from nnl.converters.formats import WriteOptions, with_bits
from nnl.converters.networks.model import Built, Model, Network, NnpModel
from nnl.converters.networks.open_networks import record_networks
from nnl.converters.nnp.content import with_executor
from nnl.core.arrays.spec import Spec
from nnl.core.graph.dispatch import apply
from nnl.core.graph.node import Value, capture
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS
from nnl.core.ops.random import seed
from nnl.core.parameters.parameter import get_parameters, parameter_scope, set_parameter
from nnl.core.settings.context import using
from nnl.graph import load_program
from nnl.graph.open_sizes.recording import OpenGraphs
from nnl.graph.passes.layout.undo import forget_orders, unfuse
from nnl.graph.program.program import FORWARD, INPUT, PARAMETER, PREPARE, Program, Step
from nnl.graph.program.sizes import witnesses
from nnl.graph.saving.files import Programs
from nnl.graph.saving.saving import Saver, lower_graph


def write_programs(model: Model, path: str, options: WriteOptions) -> None:
    """Write a program for each executor of a model, of the sizes that the model leaves open, or one
    for each batch size; they share parameters.

    Dropout does nothing in them, and batch normalization uses the running statistics.

    Raises:
        ValueError: The batch size is fixed, and another one, or shall stay open; the network is not
            the same program at all open sizes.
    """
    if options.version is not None:
        raise ValueError("the format NNLP has no versions to choose from: leave -d out")
    seed(0, set_parameter_seed=False)  # equal input gives equal bytes: the state is in the file
    model.bounded = True
    written = _Written()
    for prefix, part in executors(model):
        if stays_open(part, options):
            written.add_open(prefix, part)
            continue
        for name, network in _sized(prefix, part, options):
            try:
                written.add(name, with_bits(network, options))
            except ValueError as error:
                raise ValueError(f"{model.where}: {error}") from None
    written.saver.write(path, options.precision)


def stays_open(model: Model, options: WriteOptions) -> bool:
    """Whether the program of a model runs at any size that the model leaves open."""
    fixed = options.batch_size is not None or options.further or options.dataset
    return not fixed and model.open_sizes().open


class _Written:
    """A file of programs whose networks have parameters of their own, equal by name."""

    def __init__(self) -> None:
        self.saver = Saver()
        self._parameters: OrderedDict[str, Any] = OrderedDict()
        self._networks: list[Network] = []  # whose arrays the file knows by their identity

    def add(self, name: str, network: Network) -> None:
        """Add a program for the sizes of a network."""
        with self._shared(network):
            graph = network.outputs, network.inputs
            self.saver.add(name, *lower_graph(self.saver, name, *graph))
        self.saver.programs[name].words = network.words

    def add_open(self, prefix: str, model: Model) -> None:
        """Add a program that runs at any size that the model leaves open."""

        def use(graphs: OpenGraphs, networks: list[Network]) -> None:
            self._networks += networks
            name = prefix[:-1] or networks[0].name
            with self._shared(networks[0]):
                self.saver.add_open(name, graphs)
            self.saver.programs[name].words = networks[0].words

        record_networks(model, use, _simplify)

    @contextmanager
    def _shared(self, network: Network) -> Iterator[None]:
        """Let the parameters of a network be those of that name that are in the file."""
        self._networks.append(network)
        with parameter_scope("", network.parameters):
            for key, v in get_parameters(grad_only=False).items():
                known: Variable = self._parameters.setdefault(key, v)
                if known.spec is v.spec:
                    v.data = known.data
        with parameter_scope("", self._parameters):
            self.saver.know_parameters()
            yield


def executors(model: Model) -> Iterator[tuple[str, Model]]:
    """What each executor computes, as models, and prefixes for the names of programs."""
    found = model.content().proto.executor if isinstance(model, NnpModel) else []
    parts = {f"{e.name or i}_": i for i, e in enumerate(found)}
    if len(parts) < 2:
        yield "", model
        return
    for prefix, i in parts.items():
        yield prefix, NnpModel(with_executor(model.content(), i))


def entries(
    model: Model, options: WriteOptions, written: Programs
) -> Iterator[tuple[str, Network]]:
    """Names of the programs in a file, and networks to compare them with; open ones twice."""
    for prefix, part in executors(model):
        if not stays_open(part, options):
            yield from _sized(prefix, part, options)
            continue
        name = prefix[:-1] or next(iter(written))
        for sizes in witnesses(written[name].dims, count=2):
            yield name, part.sized(sizes)


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
        inputs, outputs: Shapes and types by name; of the example, where sizes are open.
        open: Whether they are.
    """

    def __init__(self, path: str, batch_size: int | None = None) -> None:
        self._programs = load_program(path)
        self._name = self._chosen(path, batch_size)
        self.open = bool(self._programs[self._name].dims)
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


class ProgramModel(Built):
    """A program of a file as a graph: every step calls the function that it was recorded as."""

    def __init__(self, path: str) -> None:
        self.programs, self.where = load_program(path), path

    def network(self, batch_size: int | None = None, inference: bool = False) -> Network:
        """The graph of the program of a batch size; of the first one without any.

        Raises:
            NotImplementedError: The program trains, or a step is no function.
        """
        for name in self.programs:
            shapes = [s.shape[:1] for s in self.programs.inputs(name).values()]
            if batch_size is None or (batch_size,) in shapes:
                return _Replayed(self.programs, name).network
        raise ValueError(f"{self.where}: the batch size is fixed, so it cannot be {batch_size}")


class _Replayed:
    def __init__(self, programs: Programs, name: str) -> None:
        program = programs.fresh(name)
        unfuse(program)
        forget_orders(program)
        self.where, self.program = f"{programs.where}: {name}", program
        if program.carries or any(s.phase not in (PREPARE, FORWARD) for s in program.steps):
            raise NotImplementedError(f"{self.where}: it trains, and is no network alone")
        self.values: list[Variable | None] = [None] * len(program.slots)
        self.network = Network(name, {}, {})
        with parameter_scope("", self.network.parameters), using(auto_forward=False):
            self._give(program, programs)
            for step in program.steps:
                self._call(step)
        for key, i in program.outputs.items():
            self.network.outputs[key] = self._value(i, "the end")

    def _give(self, program: Program, programs: Programs) -> None:
        """Variables for what is there before any step."""
        for i, slot in enumerate(program.slots[1:], 1):
            if not slot.given or slot.copies:
                continue
            if slot.role == INPUT:
                v = self.network.inputs[slot.name] = Variable(slot.spec.shape)
                v.data.set_spec(slot.spec)
            else:
                stored = programs.arrays.get(slot.name)
                array = stored.read("host") if stored is not None else slot.data
                v = Variable.from_numpy_array(array, need_grad=slot.role == PARAMETER)
                set_parameter(slot.name or f"constants/{i}", v)
            self.values[i] = v
        for i, slot in enumerate(program.slots):
            if slot.copies:  # in another type, which the function takes care of
                self.values[i] = self.values[slot.copies]

    def _call(self, step: Step) -> None:
        op, source = OPS.get(step.op), self.program.sources[step.source]
        if step.parts and (op is None or op.nnp is None):
            for part in step.parts:
                self._call(part)
            return
        if op is None:
            raise NotImplementedError(f"{self.where}: {step.op} is no function")
        given = [self._value(i, step.op) if i else None for i in step.ins]
        if step.op == "cast" and source is not None and source.function != "cast":
            found: Any = given[0]  # the function that reads it converts it as well
        else:
            found = apply(op, op.attrs(**step.attrs), tuple(given))
        outputs = found if isinstance(found, (tuple, list)) else (found,)
        for i, v in zip(step.outs, outputs, strict=False):  # hidden ones are nobody's
            self.values[i] = v

    def _value(self, i: int, reader: str) -> Variable:
        v = self.values[i]
        if v is None:
            raise ValueError(
                f"{self.where}: damaged: {reader} reads value {i}, which nothing gives"
            )
        return v
