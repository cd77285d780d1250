# SPDX-License-Identifier: Apache-2.0
"""nnl.graph_def: networks as data, made from a graph, a file or functions called on ProtoVariables.

A ProtoGraph holds networks with one parameter scope; each network is called like a function and
gives a new graph on its arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from nnl.converters.nnp.archive import Content
from nnl.converters.nnp.building import NewParameters, build_networks
from nnl.converters.nnp.content import functions_of
from nnl.converters.nnp.contents_writer import EXECUTOR_SETTINGS
from nnl.converters.nnp.function_messages import argument_field, op_of_type, read_arguments
from nnl.converters.nnp.loops import expand_loops
from nnl.converters.nnp.messages import copy_of, messages
from nnl.converters.nnp.network_pass import NnpNetworkPass
from nnl.converters.nnp.parameter_files import add_to_proto, from_proto, stored_of
from nnl.converters.nnp.training_reader import context_of
from nnl.converters.nnp.writer import write_content
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import (
    Scope,
    get_current_parameter_scope,
    get_parameters,
    parameter_scope,
    set_parameter,
)
from nnl.core.settings.context import STATE, using

DEFAULT_NAME = "model"


class ProtoVariable:
    """A variable of a network; or, called, a Variable without data to call functions on.

    `ProtoVariable(shape, name, need_grad)` gives a Variable: what is called on it becomes a network
    of the graph of `with graph():`, or outside of it of the default graph. The objects in
    `ProtoNetwork.variables` are of this class.

    Attributes:
        name, shape, need_grad: As given or in the file; -1 is the batch size.
        type: "Parameter" or "Buffer".
        proto: The message.
    Example:
        >>> nn.ProtoVariable((2, 3)).shape
        (2, 3)
    """

    name: str
    shape: tuple[int, ...]
    need_grad: bool
    type: str
    proto: Any
    listeners: ClassVar[list[Callable[[Variable], None]]] = []  # told of every new Variable

    def __new__(  # type: ignore[misc]
        cls,
        shape: Sequence[int] = (),
        name: str | None = None,
        need_grad: bool = False,
        var_type: str = "Buffer",
    ) -> Variable:
        v = Variable(shape, need_grad=need_grad)
        v.name = name or ""
        for listener in cls.listeners:
            listener(v)
        return v

    @classmethod
    def of(cls, message: Any, batch_size: int | None) -> ProtoVariable:
        """The variable of a message; a batch size takes the place of -1 in its shape."""
        v = object.__new__(cls)
        dims = message.shape.dim
        v.name, v.type, v.proto, v.need_grad = message.name, message.type, message, False
        v.shape = tuple(batch_size if n == -1 and batch_size is not None else n for n in dims)
        return v


class ProtoFunction:
    """A function of a network.

    Attributes:
        name, type: As in the file.
        args: Arguments by name.
        inputs, outputs: Names of variables.
        proto: The message.
    """

    def __init__(self, message: Any) -> None:
        self.name, self.type, self.proto = message.name, message.type, message
        self.inputs, self.outputs = list(message.input), list(message.output)

    @property
    def args(self) -> dict[str, Any]:
        """Arguments by name; none where the type is unknown."""
        op = op_of_type().get(self.type)
        if op is None or self.type not in argument_field():
            return {}
        return dict(read_arguments(self.proto, op))


class ProtoNetwork:
    """A network as data.

    Args:
        owner: The graph that it belongs to.
        message: Its Network message.
        batch_size: Takes the place of -1 in shapes; None leaves it open.
    """

    def __init__(self, owner: ProtoGraph, message: Any, batch_size: int | None = None) -> None:
        self.owner, self._message, self.batch_size = owner, message, batch_size
        self._recorded: tuple[dict[Any, str], Any] = {}, None

    def recorded(self, names: Mapping[Any, str], alive: Any) -> None:
        """Remember the names of the Variables that it was made from, as long as these live."""
        self._recorded = dict(names), alive

    def rename(self, v: Any, new: str, where: str) -> None:
        """Give a variable, or what a Variable has become, another name.

        Raises:
            ValueError: There is no such variable, or another one of that name.
        """
        known, edge = self._recorded[0], getattr(v, "edge", None)
        old = v.name if edge is None else known.get(edge.key, v.name)
        names = {v.name for v in self._message.variable}
        if old not in names or (new in names and new != old):
            which = f"no variable {old!r}" if old not in names else f"a variable {new!r} already"
            raise ValueError(f"{where}: the network {self.name!r} has {which}")
        for variable in self._message.variable:
            variable.name = new if variable.name == old else variable.name
        for f in self._message.function:
            for ends in (f.input, f.output):
                ends[:] = [new if name == old else name for name in ends]
        self._recorded[0].update((key, new) for key, name in known.items() if name == old)

    @property
    def name(self) -> str:
        """Name of the network in its file."""
        return str(self._message.name)

    @property
    def variables(self) -> OrderedDict[str, ProtoVariable]:
        """Variables that are no parameters, by name."""
        return self._of_kind(False)

    @property
    def parameters(self) -> OrderedDict[str, ProtoVariable]:
        """Parameters by name."""
        return self._of_kind(True)

    def _of_kind(self, parameter: bool) -> OrderedDict[str, ProtoVariable]:
        return OrderedDict(
            (v.name, ProtoVariable.of(v, self.batch_size))
            for v in self._message.variable
            if (v.type == "Parameter") == parameter
        )

    @property
    def functions(self) -> OrderedDict[str, ProtoFunction]:
        """Functions by name, in the order of the file."""
        return OrderedDict((f.name, ProtoFunction(f)) for f in self._message.function)

    @property
    def inputs(self) -> list[str]:
        """Names of what no function computes and is no parameter."""
        made = {name for f in self._message.function for name in f.output}
        return [name for name in self.variables if name not in made]

    @property
    def outputs(self) -> list[str]:
        """Names of what is computed and no function reads."""
        made = {name for f in self._message.function for name in f.output}
        read = {name for f in self._message.function for name in f.input}
        return [name for name in self.variables if name in made - read]

    def forward_sequence(self) -> list[ProtoFunction]:
        """The functions in the order of execution."""
        content = Content("ProtoNetwork", messages()["NNablaProtoBuf"]())
        return [ProtoFunction(f) for f in functions_of(content, self._message)]

    def expand_loop_control(self) -> None:
        """Unroll repeated and recurrent parts."""
        self._message = expand_loops(self._message, f"expand_loop_control: {self.name!r}")

    def promote(self, callback: NnpNetworkPass | None) -> ProtoNetwork:
        """Change the network with the callbacks of a NnpNetworkPass; returns it."""
        if callback is not None:
            self._message, given = callback.apply(self._message, f"promote: {self.name!r}")
            if given:
                raise ValueError(
                    f"promote: {sorted(given)} cannot be given here: pass them when calling the "
                    "network"
                )
        return self

    def clone(self) -> ProtoNetwork:
        """A copy that can be changed on its own."""
        return ProtoNetwork(self.owner, copy_of(self._message), self.batch_size)

    def as_proto(
        self,
        include_parameter: bool = False,
        only_parameter: bool = False,
        variable_batch_size: bool = True,
    ) -> Any:
        """An NNablaProtoBuf message with this network alone."""
        return self.owner.as_proto(include_parameter, only_parameter, [self], variable_batch_size)

    def save(
        self,
        filename: Any,
        include_parameter: bool = False,
        variable_batch_size: bool = True,
        executors: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Write a file with this network alone; see ProtoGraph.save."""
        self.owner.save(filename, include_parameter, variable_batch_size, executors, [self])

    def __call__(self, *args: Variable, **kwargs: Variable) -> Any:
        """A graph on these inputs, given in their order or by name.

        Returns:
            The output, or a tuple of several.
        Raises:
            ValueError: An input is missing, unknown or of the wrong shape.
        """
        where = f"network {self.name!r}"
        names = self.inputs
        if len(args) > len(names):
            raise ValueError(f"{where} has {len(names)} inputs {names}, got {len(args)}")
        given = dict(zip(names, args, strict=False))
        for name, v in kwargs.items():
            if name not in names or name in given:
                raise ValueError(f"{where}: {name!r} is no input or given twice, it has {names}")
            given[name] = v
        missing = [n for n in names if n not in given]
        if missing:
            raise ValueError(f"{where}: the input {missing[0]!r} is missing")
        change = NnpNetworkPass()
        for name, v in given.items():
            change.set_variable(name, v)
        content = Content(where, messages()["NNablaProtoBuf"]())
        content.proto.network.add().CopyFrom(self._message)
        with parameter_scope("", self.owner.parameter_scope), using(auto_forward=False):
            parameters = NewParameters([], where)
            built = build_networks(content, None, self.batch_size, parameters, change)[self.name]
            parameters.commit()
        outputs = tuple(built.variables[n].variable_instance for n in self.outputs)
        return outputs[0] if len(outputs) == 1 else outputs


class ProtoGraph:
    """Networks with one parameter scope.

    Args:
        networks: By name.
        parameter_scope: Where their parameters are; the current scope if left out.
    """

    def __init__(
        self,
        networks: Mapping[str, ProtoNetwork] | None = None,
        parameter_scope: Scope | None = None,
    ) -> None:
        self.networks: OrderedDict[str, ProtoNetwork] = OrderedDict(networks or {})
        self.executors: OrderedDict[str, Any] = OrderedDict()
        self.current_context = STATE.context
        self.parameter_scope = (
            get_current_parameter_scope() if parameter_scope is None else parameter_scope
        )

    def default_graph(self) -> ProtoNetwork:
        """The network of the first executor, or the first one.

        Raises:
            ValueError: There is none.
        """
        if not self.networks:
            raise ValueError("ProtoGraph.default_graph: there is no network")
        for executor in self.executors.values():
            return self.networks[executor.network_name]
        return next(iter(self.networks.values()))

    def __call__(self, *args: Variable, **kwargs: Variable) -> Any:
        """Call the default network."""
        return self.default_graph()(*args, **kwargs)

    def __getitem__(self, name: str) -> ProtoNetwork:
        return self.networks[name]

    def __setitem__(self, name: str, network: ProtoNetwork) -> None:
        self.networks[name] = network

    def __contains__(self, name: object) -> bool:
        return name in self.networks

    def get(self, key: str, value: Any = None) -> Any:
        """The network of this name, or `value`."""
        return self.networks.get(key, value)

    def expand_loop_control(self) -> None:
        """Unroll repeated and recurrent parts of all networks."""
        for network in self.networks.values():
            network.expand_loop_control()

    def get_parameters(self, grad_only: bool = False) -> dict[str, Variable]:
        """Parameters by name."""
        with parameter_scope("", self.parameter_scope):
            return get_parameters(grad_only=grad_only)

    def set_parameter(self, key: str, param: Variable) -> None:
        """Register a parameter."""
        with parameter_scope("", self.parameter_scope):
            set_parameter(key, param)

    def set_parameters(self, params: Mapping[str, Variable]) -> None:
        """Register several parameters."""
        for key, param in params.items():
            self.set_parameter(key, param)

    @staticmethod
    def from_proto(
        proto: Any,
        batch_size: int | None = None,
        param_scope: Scope | None = None,
        rng: Any = None,
    ) -> ProtoGraph:
        """The graph of an NNablaProtoBuf message, whose parameters go to param_scope.

        Args:
            rng: numpy RandomState for initial values that the message does not hold.
        Raises:
            ValueError: The message contradicts itself.
        """
        where = "ProtoGraph.from_proto"
        content = Content(where, type(proto)(), from_proto(proto, where))
        content.proto.MergeFrom(proto)
        del content.proto.parameter[:]
        return graph_of(content, batch_size, param_scope, rng)

    def as_proto(
        self,
        include_parameter: bool = False,
        only_parameter: bool = False,
        networks: Sequence[ProtoNetwork] | None = None,
        variable_batch_size: bool = True,
    ) -> Any:
        """The NNablaProtoBuf message of all networks, or of those given.

        Args:
            include_parameter: With the values of parameters.
            only_parameter: With nothing else.
            variable_batch_size: Leave -1 where the batch size stands.
        """
        proto = messages()["NNablaProtoBuf"]()
        if not only_parameter:
            for network in self.networks.values() if networks is None else networks:
                copy = proto.network.add()
                copy.CopyFrom(network._message)
                if not variable_batch_size and copy.batch_size > 0:
                    _close_batch(copy)
        if include_parameter or only_parameter:
            add_to_proto(proto, self.get_parameters())
        return proto

    def save(
        self,
        filename: Any,
        include_parameter: bool = False,
        variable_batch_size: bool = True,
        executors: Sequence[Mapping[str, Any]] | None = None,
        networks: Sequence[ProtoNetwork] | None = None,
    ) -> None:
        """Write .nnp (always with parameters), .nntxt, .prototxt or .protobuf.

        Args:
            executors: [{name, network, data: [name], output: [name] or {new name: variable}, remp:
                {name: name of the data}}]; those of the last time if left out. Further entries are
                those of `nnl.utils.save.save`.
        Raises:
            ValueError: There is no such network or variable.
        """
        included = {n.name: n for n in (self.networks.values() if networks is None else networks)}
        if executors is not None:
            made = {e["name"]: self._executor(e, included) for e in executors}
            self.executors = OrderedDict(made)
        proto = self.as_proto(False, False, networks, variable_batch_size)
        for executor in self.executors.values():
            if executor.network_name in included:
                proto.executor.add().CopyFrom(executor)
        stored = stored_of(self.get_parameters())
        apart = str(filename).endswith(".nnp")
        kind = ".h5" if apart and not include_parameter else ".nntxt"
        write_content(
            filename,
            Content("graph_def.save", proto, stored),
            kind if apart or include_parameter else None,
        )

    def _executor(self, entry: Mapping[str, Any], included: Mapping[str, ProtoNetwork]) -> Any:
        """The message of an executor; outputs given by name get these names in their network."""
        where = f"graph_def.save: executor {entry['name']!r}"
        network = included.get(entry["network"])
        if network is None:
            raise ValueError(
                f"{where}: there is no network {entry['network']!r}, only {sorted(included)}"
            )
        outputs = entry.get("output", ())
        if isinstance(outputs, Mapping):
            for new, v in outputs.items():
                network.rename(v, new, f"{where}: the output {new!r}")
        return executor_message(entry, network)


def executor_message(entry: Mapping[str, Any], network: ProtoNetwork) -> Any:
    """An Executor message; see ProtoGraph.save."""
    executor = messages()["Executor"](name=entry["name"], network_name=network.name)
    renamed = entry.get("remp") or {}
    for kind in ("data", "output"):
        for name in entry.get(kind, ()):
            variable = getattr(executor, f"{kind}_variable").add(variable_name=name)
            variable.data_name = renamed.get(name, name)
    for key in EXECUTOR_SETTINGS:
        if key in entry:
            setattr(executor, key, entry[key])
    for name in network.parameters:
        executor.parameter_variable.add(variable_name=name)
    return executor


def _close_batch(message: Any) -> None:
    for v in message.variable:
        v.shape.dim[:] = [message.batch_size if n == -1 else n for n in v.shape.dim]
    fields = argument_field()
    for f in message.function:
        arguments = getattr(f, fields[f.type]) if f.type in fields else None
        shape = getattr(arguments, "shape", None)
        if shape is not None and hasattr(shape, "dim") and f.type != "Reshape":
            shape.dim[:] = [message.batch_size if n == -1 else n for n in shape.dim]


def graph_of(content: Content, batch_size: int | None, scope: Scope | None, rng: Any) -> ProtoGraph:
    graph = ProtoGraph(parameter_scope=scope)
    graph.current_context = context_of(content.proto.global_config)
    for message in content.proto.network:
        if message.name in graph.networks:
            raise ValueError(f"{content.where}: two networks have the name {message.name!r}")
        message = expand_loops(message, f"{content.where}: network {message.name!r}")
        graph.networks[message.name] = ProtoNetwork(graph, message, batch_size)
    for executor in content.proto.executor:
        if executor.network_name not in graph.networks:
            raise ValueError(
                f"{content.where}: executor {executor.name!r}: there is no network "
                f"{executor.network_name!r}"
            )
        graph.executors[executor.name] = executor
    with parameter_scope("", graph.parameter_scope):
        parameters = NewParameters(content.stored, content.where)
        if rng is not None:
            parameters.rng = rng
        for network in graph.networks.values():
            for v in network._message.variable:
                if v.type == "Parameter":
                    initializer = v.initializer if v.HasField("initializer") else None
                    parameters(v.name, tuple(v.shape.dim), initializer)
        parameters.commit()
    return graph
