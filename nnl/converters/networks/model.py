# SPDX-License-Identifier: Apache-2.0
"""Models as files give them: a graph for a batch size, and NNabla's messages."""

from __future__ import annotations

import logging
import math
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nnl.converters.networks.open_sizes import OpenSizes, named
from nnl.converters.nnp.archive import Content
from nnl.converters.nnp.building import NewParameters, build_networks
from nnl.converters.nnp.content import between, expanded, interface, network_of, with_executor
from nnl.converters.nnp.function_messages import visible_inputs
from nnl.converters.nnp.messages import copy_of
from nnl.converters.nnp.network_pass import NnpNetworkPass
from nnl.converters.nnp.network_reader import MAX_ELEMENTS, whole_slices
from nnl.converters.nnp.open_batch import count_by_sums, opened
from nnl.converters.nnp.parameter_files import Stored, stored_of
from nnl.converters.nnp.writer import create_proto
from nnl.core.graph.node import capture
from nnl.core.graph.variable import Variable, forward_all
from nnl.core.ops.op import OPS
from nnl.core.parameters.parameter import (
    get_parameter,
    get_parameters,
    parameter_scope,
    set_parameter,
    shared_values,
)
from nnl.core.settings.context import using
from nnl.graph.open_sizes.at_most import counted, rows_of
from nnl.graph.open_sizes.recording import ATTEMPTS, OpenGraphs, record_open
from nnl.graph.program.strings import Words

logger = logging.getLogger("nnl")
Key = tuple[int, int]  # of an edge, see Value.key


@dataclass
class Network:
    """A graph for one batch size.

    Attributes:
        name: Its name.
        inputs, outputs: Variables by name.
        parameters: The registry that its parameters are in.
        names: What the file calls its edges, by their keys.
        words: The strings that it holds as numbers, and what of its ends are strings.
        states: What those parameters begin with that a run leaves for the next one, by name.
    """

    name: str
    inputs: dict[str, Variable]
    outputs: dict[str, Variable]
    parameters: OrderedDict[str, Any] = field(default_factory=OrderedDict)
    names: dict[Key, str] = field(default_factory=dict)
    states: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    words: Words = field(default_factory=Words)

    def reset(self, *names: str) -> None:
        """Let states begin again, all of them if none is named.

        Raises:
            KeyError: There is no state of that name.
        """
        for name in names or self.states:
            if name not in self.states:
                raise KeyError(f"reset: there is no state {name!r} among {sorted(self.states)}")
            with parameter_scope("", self.parameters):
                get_parameters(grad_only=False)[name].d = self.states[name]

    def calibrated(self, samples: Any) -> tuple[Network, Any]:
        """For formats that have a way of their own to 8 bits: a network of floats, and the samples
        whose ranges 8 bits have; those given, or None, where this network does not know better."""
        return self, samples

    @property
    def variables(self) -> dict[str, Variable]:
        """Parameters by name."""
        with parameter_scope("", self.parameters):
            return dict(get_parameters(grad_only=False))

    def every_name(self) -> dict[Key, str]:
        """Names of edges by their keys, also those of inputs, outputs and parameters."""
        with parameter_scope("", self.parameters):
            parameters = get_parameters(grad_only=False)
        named = (*parameters.items(), *self.outputs.items(), *self.inputs.items())
        return {**self.names, **{v.edge.key: name for name, v in named}}

    def run(self, values: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """The outputs for values of the inputs."""
        for name, v in self.inputs.items():
            v.d = values[name]
        made = {name: counted(v.edge) for name, v in self.outputs.items()}
        counts = {name: Variable.on(c.number) for name, c in made.items() if c is not None}
        forward_all([*self.outputs.values(), *counts.values()])
        found = {}
        for name, v in self.outputs.items():
            c = made[name]
            y = v.d if c is None else rows_of(name, v.d, counts[name].d, c.axis)
            found[name] = y.copy()
        return found


class Model:
    """A file, read. A subclass gives `content` and `network`.

    Attributes:
        where: The files, for messages.
        bounded: Whether networks may have results of nnl.at_most, which programs cut.
    """

    where, bounded = "", False

    def content(self, batch_size: int | None = None) -> Content:
        """As NNabla's messages.

        Args:
            batch_size: The file's own if None; -1 leaves it open.
        Raises:
            NotImplementedError: A function has no type in .nnp files.
            ValueError: The file's batch size is fixed, and another one, or .nnp does not say what
                depends on it.
        """
        raise NotImplementedError(f"{type(self).__name__}: define content()")

    def network(self, batch_size: int | None = None, inference: bool = False) -> Network:
        """The graph, in a parameter registry of its own.

        Args:
            batch_size: The file's own if None.
            inference: Dropout does nothing, batch normalisation uses the running statistics.
        """
        raise NotImplementedError(f"{type(self).__name__}: define network()")

    def open_sizes(self) -> OpenSizes:
        """Shapes of the inputs, as far as the file leaves them open; empty if it does not."""
        return OpenSizes()

    def sized(self, sizes: Mapping[str, int]) -> Network:
        """The graph for inference at sizes of all dims of `open_sizes`."""
        raise NotImplementedError(f"{type(self).__name__}: define sized()")

    def close(self, shapes: Mapping[str, Sequence[str]]) -> None:
        """Close sizes of inputs, or leave them open under other names; see OpenSizes.closed.

        Raises:
            ValueError: The file's sizes are others. NotImplementedError: Its format has a batch
                size alone.
        """
        raise NotImplementedError(
            f"{self.where}: --shape and --open are for ONNX, TensorFlow and TensorFlow Lite, -b "
            "says a batch size"
        )

    def bound_loops(self, trips: int) -> None:
        """Say how often loops run at most that values end, where the file does not.

        Raises:
            NotImplementedError: The format has no such loops. ValueError: It is no number of trips.
        """
        raise NotImplementedError(f"{self.where}: --max-trips is for loops of ONNX")

    def between(self, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Model:
        """The part that computes `outputs` from `inputs`; None keeps those of the file.

        Raises:
            ValueError: There is no such variable, or the outputs need other inputs as well.
        """
        return NnpModel(between(expanded(self.content()), inputs, outputs))


class NnpModel(Model):
    """NNabla's messages; the first executor chooses inputs and outputs."""

    def open_sizes(self) -> OpenSizes:
        """An open batch size: it is on the axes that differ between two."""
        found = any(is_open(n) for n in self._content.proto.network)
        return batch_size_of(self) if found else OpenSizes()

    def sized(self, sizes: Mapping[str, int]) -> Network:
        return self.network(sizes["batch"], inference=True)

    def __init__(self, content: Content) -> None:
        self._content, self.where = content, content.where

    def content(self, batch_size: int | None = None) -> Content:
        content = self._content
        if batch_size == -1 and not all(is_open(n) for n in content.proto.network):
            raise ValueError(f"{self.where}: the batch size is fixed, so -1 cannot leave it open")
        if batch_size is None or batch_size == -1:
            return content
        proto = copy_of(content.proto)
        for network in proto.network:
            if not is_open(network) and network.batch_size not in (0, batch_size):
                raise ValueError(
                    f"{self.where}: the network {network.name!r} has the fixed batch size "
                    f"{network.batch_size}, so it cannot be {batch_size}"
                )
            network.CopyFrom(whole_slices(network))
            network.batch_size = batch_size
        return replace(content, proto=proto)

    def network(self, batch_size: int | None = None, inference: bool = False) -> Network:
        content = self._content
        if content.proto.executor:
            content = with_executor(expanded(content), 0)
        message = network_of(content)
        change = NnpNetworkPass()
        if inference:
            change.set_batch_normalization_batch_stat_all(False)
            change.on_generate_function_by_type("Dropout")(_without_dropout)
        if batch_size is None:
            batch_size = message.batch_size or 1
        _, outputs = interface(content)
        scope: OrderedDict[str, Any] = OrderedDict()
        with parameter_scope("", scope), using(auto_forward=False):
            parameters = NewParameters(content.stored, self.where, keep=True)
            built = build_networks(content, [message.name], batch_size, parameters, change)
            parameters.commit()
        network = built[message.name]
        drawn = [n for n in parameters.variables if n not in parameters.stored]
        if drawn:
            logger.warning(
                "%s: the files have no values of %d parameters, %s: they are initial ones",
                self.where,
                len(drawn),
                ", ".join(drawn[:3]) + (" ..." if len(drawn) > 3 else ""),
            )
        inputs = {n: v.variable_instance for n, v in network.inputs.items()}
        ends = {n: network.variable(n, self.where).variable_instance for n in outputs}
        names = {v.variable_instance.edge.key: name for name, v in network.variables.items()}
        return Network(message.name, inputs, ends, scope, names)


def batch_size_of(model: Model) -> OpenSizes:
    """The batch size that a model leaves open: it is on the axes that differ between two."""
    pairs = [model.network(n, inference=True).inputs for n in (2, 3)]
    axes = {}
    for name, x in pairs[0].items():
        sizes = zip(x.shape, pairs[1][name].shape, strict=True)
        axes[name] = tuple(["batch" if pair == (2, 3) else pair[0] for pair in sizes])
    return OpenSizes(axes)


def is_open(network: Any) -> bool:
    """Whether a network message leaves its batch size open."""
    return any(-1 in v.shape.dim for v in network.variable)


def _without_dropout(f: Any) -> None:
    f.proto.dropout_param.p = 0.0


class Built(Model):
    """A file whose graph is built by running it; a subclass gives `network`."""

    def content(self, batch_size: int | None = None) -> Content:
        try:
            content = self._of_any_batch()
            size = None if batch_size == -1 else batch_size
            content.proto.network[0].batch_size = size or 1
            NnpModel(content).network(size)
        except ValueError as error:
            if batch_size == -1:
                raise
            network = self.network(batch_size)
            proto, stored = self._messages(network)
            fixed = proto.network[0].batch_size
            logger.warning("%s: the batch size is fixed at %d: %s", self.where, fixed, error)
            content = Content(self.where, proto, stored)
        return content

    def _of_any_batch(self) -> Content:
        """
        Raises:
            ValueError: The batch size is fixed, or .nnp does not say what depends on it.
        """
        sizes = batch_size_of(self)
        if not sizes.open:
            raise ValueError(f"{self.where}: the batch size is fixed, so -1 cannot leave it open")
        networks: list[Network] = []

        def build(sizes: Mapping[str, int]) -> tuple[Any, Any]:
            networks.append(self.network(sizes["batch"]))
            return networks[-1].outputs, networks[-1].inputs

        def use(graphs: OpenGraphs) -> Content:
            count_by_sums(graphs)
            found = [self._messages(n) for n in networks]
            batch = tuple([s["batch"] for s in graphs.sizes])
            return Content(
                self.where, opened([p for p, _ in found], batch, self.where), found[0][1]
            )

        # such messages say the batch size itself only, which four tell from other numbers
        how = {"attempts": ATTEMPTS[:1], "count": 2}
        try:
            return record_open(build, sizes.dims, sizes.axes, sizes.dims, use, **how)
        except ValueError as e:
            text = str(e).removeprefix(f"{self.where}: ")
            raise ValueError(f"{self.where}: with an open batch size: {text}") from None

    def _messages(self, network: Network) -> tuple[Any, list[Stored]]:
        """A network as NNabla's message, and its parameters."""
        if network.words.names:
            texts = ", ".join(sorted(network.words.names))
            raise NotImplementedError(f"{self.where}: {texts}: strings, which only .nnlp holds")
        sizes = [v.shape[0] for v in network.inputs.values() if v.shape]
        entry: dict[str, Any] = {
            "name": network.name,
            "batch_size": sizes[0] if sizes else 1,
            "names": network.inputs,
            "outputs": network.outputs,
        }
        executor = {"name": "runtime", "network": network.name}
        executor["data"] = list(network.inputs)  # type: ignore[assignment]
        executor["output"] = list(network.outputs)  # type: ignore[assignment]
        with parameter_scope("", network.parameters):
            keep_constants(network)
            stored = stored_of(get_parameters(grad_only=False))
            contents = {"networks": [entry], "executors": [executor]}
            return create_proto(contents, variable_batch_size=False), stored


class ForeignModel(Built):
    """A graph of another format, whose nodes call functions of nnl; unknown sizes of inputs are
    the batch size on the first axis, else 1."""

    def __init__(self, loaded: Any, where: str) -> None:
        self._model, self.where = loaded, where
        self._sizes: OpenSizes | None = None  # where somebody has said them
        self._shared: dict[int, Any] = {}  # weights, for the networks of all sizes

    def name(self) -> str:
        """What the file calls its graph."""
        return "network"

    def network(self, batch_size: int | None = None, inference: bool = False) -> Network:
        shapes = {}
        for name, sizes in self.open_sizes().axes.items():
            one = [batch_size or 1 if i == 0 else 1 for i in range(len(sizes))]
            shapes[name] = [n if type(n) is int else m for n, m in zip(sizes, one, strict=True)]
        return self._network(shapes)

    def open_sizes(self) -> OpenSizes:
        if self._sizes is None:
            axes = {}
            for name, info in self._infos().items():
                sizes = enumerate(info.shape)
                axes[name] = tuple(
                    [n if type(n) is int and n >= 0 else named(name, i, n) for i, n in sizes]
                )
            self._sizes = OpenSizes(axes)
        return self._sizes

    def close(self, shapes: Mapping[str, Sequence[str]]) -> None:
        self._sizes = self.open_sizes().closed(shapes, self.where)

    def sized(self, sizes: Mapping[str, int]) -> Network:
        self._model.open = True
        try:
            return self._network(self.open_sizes().shapes(sizes))
        finally:
            self._model.open = False

    def _infos(self) -> dict[str, Any]:
        infos = {v.name: v for v in self._model.infos}
        for name in self._model.inputs:
            if infos[name].kind != "tensor" or infos[name].shape is None:
                raise ValueError(f"{self.where}: the input {name!r} has no shape")
        return {name: infos[name] for name in self._model.inputs}

    def _network(self, shapes: Mapping[str, Sequence[int]]) -> Network:
        infos = self._infos()
        scope: OrderedDict[str, Any] = OrderedDict()
        inputs = {}
        for name, shape in shapes.items():
            info = infos[name]
            if math.prod(n or 1 for n in shape) > MAX_ELEMENTS:
                raise ValueError(
                    f"{self.where}: the input {name!r} has the impossible shape {shape}"
                )
            inputs[name] = x = Variable(shape)  # takes no memory yet
            dtype = np.float32 if info.dtype is None else info.dtype
            x.data.set_spec(x.spec.with_dtype(np.int64 if dtype == np.object_ else dtype))
        with parameter_scope("", scope), using(auto_forward=False), shared_values(self._shared):
            result = self._model(**inputs)
        values = result if isinstance(result, tuple) else (result,)
        outputs = dict(zip(self._model.outputs, values, strict=True))
        for name, y in outputs.items():
            if not isinstance(y, np.ndarray) or y.dtype.kind not in "fiub":
                continue
            with using(auto_forward=False):  # what no input decides is computed, too
                outputs[name] = OPS["identity"](Variable.from_numpy_array(np.asarray(y)))
        for name, y in outputs.items():
            if not isinstance(y, Variable):
                raise ValueError(f"{self.where}: the output {name!r} does not depend on the inputs")
        states, words = self._states(), self._words(outputs)
        return Network(self.name(), inputs, outputs, scope, states=states, words=words)

    def _states(self) -> dict[str, Any]:
        return {}

    def _words(self, outputs: Mapping[str, Variable]) -> Words:
        return Words()


class OnnxFile(ForeignModel):
    """An ONNX model."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from nnl.converters.onnx.running.onnx_model import load

        super().__init__(load(path), str(path))

    def bound_loops(self, trips: int) -> None:
        if trips < 1:
            raise ValueError(f"--max-trips is {trips}, wanted at least 1")
        self._model.max_trips = trips

    def _network(self, shapes: Mapping[str, Sequence[int]]) -> Network:
        self._model.bounded = self.bounded
        return super()._network(shapes)

    def name(self) -> str:
        return self._model.model.graph.name or "network"

    def _words(self, outputs: Mapping[str, Variable]) -> Words:
        text = np.dtype(object)
        names = [v.name for v in self._model.infos if v.dtype == text]
        names += [name for name, y in outputs.items() if y.info == text]
        if not names:
            return Words()
        from nnl.converters.onnx.values.strings import words_of

        return Words(words_of(self._model.model).strings, names)


class TensorFlowGraph(ForeignModel):
    """A graph of TensorFlow."""

    def _states(self) -> dict[str, Any]:
        return dict(self._model.states)

    def between(self, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Model:
        return TensorFlowGraph(self._model.between(inputs, outputs), self.where)


def keep_constants(network: Network) -> None:
    """Register arrays in the graph that are neither inputs nor parameters, which messages have no
    place for, as parameters without gradient."""
    parameters = get_parameters(grad_only=False)
    known = {v.edge.key for v in (*network.inputs.values(), *parameters.values())}
    count = 0
    for node in capture([v.edge for v in network.outputs.values()]):
        for v in visible_inputs(node):
            if v.node is None and v.key not in known:
                known.add(v.key)
                while get_parameter(f"constants/{count}") is not None:
                    count += 1
                set_parameter(f"constants/{count}", Variable.on(v))
