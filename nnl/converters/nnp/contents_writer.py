# SPDX-License-Identifier: Apache-2.0
"""NNabla's `contents` dictionary as an NNablaProtoBuf message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nnl.converters.nnp.messages import messages
from nnl.converters.nnp.network_writer import WrittenNetwork
from nnl.converters.nnp.solver_files import write_scheduler
from nnl.core.graph.variable import Variable
from nnl.core.settings.context import Context
from nnl.solvers.base import Solver

KEYS = (
    "global_config",
    "training_config",
    "networks",
    "datasets",
    "optimizers",
    "monitors",
    "executors",
)
EXECUTOR_SETTINGS = (
    "num_evaluations",
    "repeat_evaluation_type",
    "need_back_propagation",
    "no_image_normalization",
)
Networks = Mapping[str, WrittenNetwork]


def write_contents(
    contents: Mapping[str, Any],
    parameters: Mapping[str, Variable],
    variable_batch_size: bool = True,
    with_states: bool = False,
) -> Any:
    """The message of a contents dictionary, without parameter values.

    Args:
        parameters: Variables by name, which the file calls parameters.
        variable_batch_size: Write the batch size as -1.
        with_states: Put the states of the solvers into the message.
    Raises:
        ValueError: A key is unknown, an entry is incomplete or names something that is not there.
    """
    if not isinstance(contents, Mapping):
        raise TypeError(f"save: contents is {type(contents).__name__}, wanted a dict")
    unknown = [k for k in contents if k not in KEYS]
    if unknown:
        raise ValueError(f"save: contents has the key {unknown[0]!r}, known are {', '.join(KEYS)}")
    proto = messages()["NNablaProtoBuf"]()
    if "global_config" in contents:
        context = contents["global_config"]["default_context"]
        _write_context(proto.global_config.default_context, context)
    if "training_config" in contents:
        config = contents["training_config"]
        target = proto.training_config
        target.SetInParent()
        for name in ("max_epoch", "iter_per_epoch", "save_best", "monitor_interval"):
            if name in config:
                setattr(target, name, config[name])
    networks: dict[str, WrittenNetwork] = {}
    for entry in contents.get("networks") or ():
        written = WrittenNetwork(proto.network.add(), entry, parameters, variable_batch_size)
        if written.name in networks:
            raise ValueError(f"save: two networks have the name {written.name!r}")
        networks[written.name] = written
    for entry in contents.get("datasets") or ():
        _write_dataset(proto.dataset.add(), entry)
    datasets = {d.name for d in proto.dataset}
    for entry in contents.get("optimizers") or ():
        _write_optimizer(proto.optimizer.add(), entry, networks, datasets, with_states)
    for entry in contents.get("monitors") or ():
        _write_monitor(proto.monitor.add(), entry, networks, datasets)
    for entry in contents.get("executors") or ():
        _write_executor(proto.executor.add(), entry, networks)
    return proto


def _write_context(message: Any, context: Any) -> None:
    if not isinstance(context, Context):
        raise TypeError(f"save: default_context is {type(context).__name__}, wanted nnl.Context")
    message.backends.extend(context.backend)
    message.array_class, message.device_id = context.array_class, context.device_id


def _required(entry: Mapping[str, Any], kind: str, key: str) -> Any:
    if key not in entry:
        name = f" {entry['name']!r}" if "name" in entry else ""
        raise ValueError(f"save: {kind}{name} has no {key!r} in the contents")
    return entry[key]


def _write_dataset(message: Any, entry: Mapping[str, Any]) -> None:
    message.name = _required(entry, "dataset", "name")
    message.type = entry.get("type", "")
    message.uri = entry.get("uri") or ""
    message.batch_size = _required(entry, "dataset", "batch_size")
    message.cache_dir = entry.get("cache_dir") or ""
    for name in (
        "overwrite_cache",
        "create_cache_explicitly",
        "shuffle",
        "no_image_normalization",
    ):
        setattr(message, name, bool(entry.get(name, False)))
    message.variable.extend(_required(entry, "dataset", "variables"))


def _network(entry: Mapping[str, Any], kind: str, networks: Networks) -> WrittenNetwork:
    name = _required(entry, kind, "network")
    if name not in networks:
        raise ValueError(
            f"save: {kind} {entry.get('name')!r}: there is no network {name!r}, "
            f"only {sorted(networks)}"
        )
    return networks[name]


def _dataset_names(entry: Mapping[str, Any], kind: str, datasets: set[str]) -> list[str]:
    given = _required(entry, kind, "dataset")
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in datasets:
            raise ValueError(
                f"save: {kind} {entry.get('name')!r}: there is no dataset {name!r}, "
                f"only {sorted(datasets)}"
            )
    return names


def _pairs(given: Mapping[str, str] | Sequence[str] | None) -> list[tuple[str, str]]:
    """(variable, data) from a dictionary, or from names that are the same for both."""
    if given is None:
        return []
    if isinstance(given, Mapping):
        return list(given.items())
    return [(name, name) for name in given]


def _write_data(
    message: Any, given: Any, resolve: Callable[[str, str], str], what: str, rename: Any = None
) -> None:
    for variable, data in _pairs(given):
        part = message.data_variable.add()
        part.variable_name = resolve(variable, what)
        part.data_name = (rename or {}).get(data, data)


def _write_generators(
    message: Any, given: Any, resolve: Callable[[str, str], str], what: str
) -> None:
    """Generators: type and multiplier, a type alone, or an initialiser with its parameters."""
    for variable, generator in dict(given or {}).items():
        part = message.generator_variable.add()
        part.variable_name = resolve(variable, what)
        part.type, part.multiplier = _generator(generator, what)


def _generator(given: Any, what: str) -> tuple[str, float]:
    if isinstance(given, str):
        return given, 1.0
    if isinstance(given, Sequence):
        kind, multiplier = given
        return kind, float(multiplier)
    kind = type(given).__name__.removesuffix("Initializer")
    if kind == "Normal":
        return kind, float(given.sigma)
    if kind == "Uniform":
        return kind, float(given.lim[1])
    if kind == "Constant":
        return kind, float(given.value)
    raise ValueError(
        f"save: {what}: the generator is {given!r}, wanted (type, multiplier) or a Normal-, "
        "Uniform- or ConstantInitializer"
    )


def _write_optimizer(
    message: Any, entry: Mapping[str, Any], networks: Networks, datasets: set[str], states: bool
) -> None:
    message.name = _required(entry, "optimizer", "name")
    what = f"optimizer {message.name!r}"
    network = _network(entry, "optimizer", networks)
    solver = _required(entry, "optimizer", "solver")
    if not isinstance(solver, Solver):
        raise TypeError(f"save: {what}: solver is {type(solver).__name__}, wanted a Solver")
    message.order = entry.get("order", 0)
    message.network_name = network.name
    message.dataset_name.extend(_dataset_names(entry, "optimizer", datasets))
    message.solver.type = solver.name
    message.solver.weight_decay = entry.get("weight_decay") or 0.0
    message.solver.lr_decay = entry.get("lr_decay", 1.0)
    message.solver.lr_decay_interval = entry.get("lr_decay_interval", 1)
    if entry.get("scheduler") is not None:
        write_scheduler(entry["scheduler"], message.solver, what)
    write_hyperparameters(solver, message.solver)
    message.update_interval = entry.get("update_interval", 1)
    _write_data(message, entry.get("data_variables"), network.resolve, what)
    _write_generators(message, entry.get("generator_variables"), network.resolve, what)
    losses = entry.get("loss_variables")
    for name in network.losses if losses is None else losses:
        message.loss_variable.add().variable_name = network.resolve(name, what)
    trained = solver.get_parameters()
    for name in network.parameters:
        part = message.parameter_variable.add()
        part.variable_name = name
        part.learning_rate_multiplier = float(name in trained)
    if states:
        solver.set_states_to_protobuf(message)


def write_hyperparameters(solver: Solver, message: Any) -> None:
    """Fill the arguments of a Solver message; the learning rate is the one of the next update."""
    for f in message.DESCRIPTOR.oneofs_by_name["parameter"].fields:
        if f.message_type.name == f"{solver.name}Parameter":
            arguments = getattr(message, f.name)
            arguments.SetInParent()
            for part in arguments.DESCRIPTOR.fields:
                rate = part.name == solver.rate
                value = solver.learning_rate() if rate else solver.info[part.name]
                setattr(arguments, part.name, value)


def _write_monitor(
    message: Any, entry: Mapping[str, Any], networks: Networks, datasets: set[str]
) -> None:
    message.name = _required(entry, "monitor", "name")
    what = f"monitor {message.name!r}"
    network = _network(entry, "monitor", networks)
    message.network_name = network.name
    message.dataset_name.extend(_dataset_names(entry, "monitor", datasets))
    _write_data(message, entry.get("data_variables"), network.resolve, what)
    _write_generators(message, entry.get("generator_variables"), network.resolve, what)
    watched = entry.get("monitor_variables")
    for name in network.losses if watched is None else watched:
        part = message.monitor_variable.add()
        part.type, part.variable_name = "Error", network.resolve(name, what)


def _write_executor(message: Any, entry: Mapping[str, Any], networks: Networks) -> None:
    message.name = _required(entry, "executor", "name")
    what = f"executor {message.name!r}"
    network = _network(entry, "executor", networks)
    message.network_name = network.name
    rename = entry.get("remp")
    if rename is not None and not isinstance(rename, Mapping):
        raise TypeError(f"save: {what}: remp is {rename!r}, wanted a dict of data names")
    _write_data(message, _required(entry, "executor", "data"), network.resolve, what, rename)
    for variable, data in _pairs(_required(entry, "executor", "output")):
        part = message.output_variable.add()
        part.variable_name = network.resolve(variable, what)
        part.data_name = (rename or {}).get(data, data)
    _write_generators(message, entry.get("generator_variables"), network.resolve, what)
    for name in network.parameters:
        message.parameter_variable.add().variable_name = name
    for key in EXECUTOR_SETTINGS:
        if key in entry:
            setattr(message, key, entry[key])
    if entry.get("need_back_propagation"):
        for name in entry.get("loss_variables", network.losses):
            message.loss_variable.add().variable_name = network.resolve(name, what)
