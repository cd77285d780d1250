# SPDX-License-Identifier: Apache-2.0
"""Executors, optimizers, monitors, datasets and settings of a file, linked to its networks."""

from __future__ import annotations

import io
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

import nnl.solvers as solvers
from nnl.converters.nnp.messages import parse
from nnl.converters.nnp.network_reader import LoadedNetwork, LoadedVariable
from nnl.converters.nnp.solver_files import load_h5, read_scheduler
from nnl.core.graph.variable import Variable
from nnl.core.settings.context import BACKENDS, FLOAT_TYPES, Context
from nnl.functions.sink import sink
from nnl.parametric_functions.initializer import (
    ConstantInitializer,
    NormalInitializer,
    RangeInitializer,
    UniformInitializer,
)
from nnl.solvers.base import Solver

# ---- datasets, and the iterators over their rows ----


def read_dataset(
    message: Any, index: int, prepare: bool, batch_size: int | None, seed: int = 0
) -> SimpleNamespace:
    """A data set; `data_iterator` is a function that makes its iterator, or None.

    Args:
        index: Its place in the file. With `seed` it determines the order of its rows, for all
            iterators of the data set together, as in NNabla.
    """
    found = SimpleNamespace(
        name=message.name,
        uri=message.uri,
        cache_dir=message.cache_dir,
        variables=list(message.variable),
        shuffle=message.shuffle,
        batch_size=message.batch_size if batch_size is None else batch_size,
        normalize=not message.no_image_normalization,
        overwrite_cache=message.overwrite_cache,
        create_cache_explicitly=message.create_cache_explicitly,
        data_iterator=None,
    )
    if prepare and message.uri:
        found.data_iterator = _Maker(found, (seed + index) % 2**32)
    return found


class _Maker:
    """Makes the iterators of one data set, whose orders come from one generator."""

    def __init__(self, dataset: SimpleNamespace, seed: int) -> None:
        self.dataset, self.seed = dataset, seed
        self.rng: np.random.RandomState | None = None

    def __call__(self) -> Any:
        from nnl.data.iterator import data_iterator_cache, data_iterator_csv_dataset
        from nnl.data.source_csv import CreateCache

        d = self.dataset
        if self.rng is None:
            self.rng = np.random.RandomState(self.seed)
            self.cached = bool(d.cache_dir) and not self._cache_is_due(d)
            if d.cache_dir and d.create_cache_explicitly:
                if not self.cached:
                    cache = CreateCache(d.uri, rng=self.rng, shuffle=d.shuffle)
                    cache.create(d.cache_dir, normalize=False)
                    self.rng, self.cached = np.random.RandomState(self.seed), True
        options = {"shuffle": d.shuffle, "rng": self.rng, "normalize": d.normalize}
        if self.cached:
            return data_iterator_cache(d.cache_dir, d.batch_size, **options)
        return data_iterator_csv_dataset(
            d.uri, d.batch_size, cache_dir=d.cache_dir or None, **options
        )

    @staticmethod
    def _cache_is_due(d: SimpleNamespace) -> bool:
        if d.overwrite_cache or not os.path.isdir(d.cache_dir):
            return True
        if d.create_cache_explicitly:
            return not os.path.exists(os.path.join(d.cache_dir, "cache_index.csv"))
        return not os.listdir(d.cache_dir)


# ---- what is linked to networks ----


logger = logging.getLogger("nnl")
Networks = Mapping[str, LoadedNetwork]
_MONITOR_INTERVAL = 10  # iterations, where the file says nothing


def context_of(config: Any) -> Context:
    """The default context of a file, as far as its backends are there; else the CPU."""
    message = config.default_context
    old = (message.backend, message.compute_backend)
    asked = list(message.backends) or [b for text in old for b in text.split("|") if b]
    known = [entry for entry in asked if _available(entry, message.device_id or "0")]
    if asked and not known:
        logger.warning("load: the file's context %s is not available, using the CPU", asked)
    return Context(known or ["cpu:float"], message.array_class, message.device_id or "0")


def _available(entry: str, device_id: str) -> bool:
    name, _, kind = entry.partition(":")
    if name not in BACKENDS or (kind or "float") not in FLOAT_TYPES:
        return False
    try:
        BACKENDS[name](device_id)
    except NotImplementedError:  # this machine lacks what the backend needs
        return False
    return True


def training_config(proto: Any) -> SimpleNamespace:
    """max_epoch, iter_per_epoch, save_best and monitor_interval."""
    config = proto.training_config
    return SimpleNamespace(
        max_epoch=config.max_epoch,
        iter_per_epoch=config.iter_per_epoch,
        save_best=config.save_best,
        monitor_interval=config.monitor_interval or _MONITOR_INTERVAL,
    )


def _network(message: Any, networks: Networks, where: str) -> LoadedNetwork:
    if message.network_name not in networks:
        raise ValueError(
            f"{where}: there is no network {message.network_name!r}, only {sorted(networks)}"
        )
    return networks[message.network_name]


def _data(message: Any, network: LoadedNetwork, where: str) -> OrderedDict[LoadedVariable, str]:
    return OrderedDict(
        (network.variable(v.variable_name, where), v.data_name) for v in message.data_variable
    )


def _generators(
    message: Any, network: LoadedNetwork, where: str
) -> OrderedDict[LoadedVariable, Callable[[Any], Any]]:
    return OrderedDict(
        (network.variable(v.variable_name, where), generator(v.type, v.multiplier, where))
        for v in message.generator_variable
    )


def generator(kind: str, multiplier: float, where: str) -> Callable[[Any], Any]:
    """A function of a shape that gives a new array: Normal, Uniform, Range or Constant."""
    make: dict[str, Callable[[], Any]] = {
        "Normal": lambda: NormalInitializer(multiplier),
        "Uniform": lambda: UniformInitializer((-multiplier, multiplier)),
        "Range": lambda: RangeInitializer(0, multiplier),
        "Constant": lambda: ConstantInitializer(multiplier),
    }
    if kind not in make:
        raise ValueError(f"{where}: the generator {kind!r} is unknown, known are {sorted(make)}")
    found: Callable[[Any], Any] = make[kind]()
    return found


def _loss_target(losses: list[LoadedVariable]) -> Variable | None:
    """One root below which every loss has the gradient 1/size, so it counts as its mean."""
    for v in losses:
        v.variable_instance.g = 1.0 / max(v.variable_instance.size, 1)
    return sink(*(v.variable_instance for v in losses), one_input_grad=False) if losses else None


def _iterators(message: Any, datasets: Mapping[str, Any], where: str) -> OrderedDict[str, Any]:
    found: OrderedDict[str, Any] = OrderedDict()
    for name in message.dataset_name:
        if name not in datasets:
            raise ValueError(f"{where}: there is no dataset {name!r}, only {sorted(datasets)}")
        found[name] = datasets[name].data_iterator
    return found


def link_executor(message: Any, networks: Networks, where: str) -> SimpleNamespace:
    """An executor with the variables of its network."""
    where = f"{where}: executor {message.name!r}"
    network = _network(message, networks, where)
    found = SimpleNamespace(
        name=message.name,
        network=network,
        dataset_assign=_data(message, network, where),
        generator_assign=_generators(message, network, where),
        output_assign=OrderedDict(
            (network.variable(v.variable_name, where), [v.type, v.data_name])
            for v in message.output_variable
        ),
        parameters=OrderedDict(
            (p, p.name)
            for v in message.parameter_variable
            for p in network.parameters_named(v.variable_name)
        ),
        num_evaluations=message.num_evaluations or 1,
        repeat_evaluation_type=message.repeat_evaluation_type,
        need_back_propagation=message.need_back_propagation,
        no_image_normalization=message.no_image_normalization,
        forward_target=None,
    )
    outputs = [v.variable_instance for v in found.output_assign]
    if outputs:
        found.forward_target = sink(*outputs)
    if message.need_back_propagation:
        found.loss_variables = [
            network.variable(v.variable_name, where) for v in message.loss_variable
        ]
        found.backward_target = _loss_target(found.loss_variables)
    return found


def link_monitor(
    message: Any, networks: Networks, datasets: Mapping[str, Any], where: str
) -> SimpleNamespace:
    """A monitor with the variables of its network."""
    where = f"{where}: monitor {message.name!r}"
    network = _network(message, networks, where)
    watched = [network.variable(v.variable_name, where) for v in message.monitor_variable]
    return SimpleNamespace(
        name=message.name,
        network=network,
        data_iterators=_iterators(message, datasets, where),
        dataset_assign=_data(message, network, where),
        generator_assign=_generators(message, network, where),
        monitor_variables=watched,
        target=sink(*(v.variable_instance for v in watched)) if watched else None,
    )


def link_optimizer(
    message: Any, networks: Networks, datasets: Mapping[str, Any], where: str
) -> SimpleNamespace:
    """An optimizer whose solver has the parameters of its network."""
    where = f"{where}: optimizer {message.name!r}"
    network = _network(message, networks, where)
    settings = message.solver
    solver = make_solver(settings, where)
    rates = OrderedDict()
    for v in message.parameter_variable:
        named = network.parameters_named(v.variable_name)
        if not named:
            raise ValueError(
                f"{where}: the network {network.name!r} has no parameter {v.variable_name!r}"
            )
        rates.update((p, v.learning_rate_multiplier) for p in named)
    parameters = OrderedDict((p.name, p.variable_instance) for p, rate in rates.items() if rate > 0)
    solver.set_parameters(parameters)
    losses = [network.variable(v.variable_name, where) for v in message.loss_variable]
    return SimpleNamespace(
        name=message.name,
        order=message.order,
        network=network,
        solver=solver,
        comm=None,
        weight_decay=settings.weight_decay,
        lr_decay=settings.lr_decay or 1.0,
        lr_decay_interval=settings.lr_decay_interval or 1,
        scheduler=read_scheduler(settings, solver.learning_rate(), where),
        update_interval=message.update_interval or 1,
        start_iter=message.start_iter,
        end_iter=message.end_iter,
        data_iterators=_iterators(message, datasets, where),
        dataset_assign=_data(message, network, where),
        generator_assign=_generators(message, network, where),
        loss_variables=losses,
        parameter_learning_rate_multipliers=rates,
        parameters=parameters,
        target=_loss_target(losses),
        solver_checkpoint=None,
    )


def make_solver(message: Any, where: str) -> Solver:
    """The solver of a Solver message; hyperparameters that it lacks have their defaults.

    Raises:
        ValueError: The type is unknown, or a hyperparameter is out of range.
    """
    name = "Sgd" if message.type == "SGD" else message.type
    kind = vars(solvers).get(name)
    if not isinstance(kind, type) or not issubclass(kind, Solver) or kind is Solver:
        raise ValueError(f"{where}: the solver {message.type!r} is unknown")
    given: dict[str, Any] = {}
    for f in message.DESCRIPTOR.oneofs_by_name["parameter"].fields:
        if f.message_type.name == f"{name}Parameter" and message.HasField(f.name):
            arguments = getattr(message, f.name)
            for part in arguments.DESCRIPTOR.fields:
                value = getattr(arguments, part.name)
                single = part.type == part.TYPE_FLOAT
                given[part.name] = float(str(np.float32(value))) if single else value
    try:
        solver: Solver = kind(**given)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return solver


def restore_optimizer_state(
    optimizer: SimpleNamespace, where: str = "restore_optimizer_state"
) -> None:
    """Set the states of an optimizer's solver to those of its file, if that has some."""
    if optimizer.solver_checkpoint is None:
        return
    kind, content = optimizer.solver_checkpoint
    where = f"{where}: optimizer {optimizer.name!r}"
    try:
        if kind == ".h5":
            load_h5(optimizer.solver, io.BytesIO(content))
        else:
            message = parse("Optimizer", content, False, where)
            optimizer.solver.set_states_from_protobuf(message)
    except (ValueError, OSError, RuntimeError, KeyError) as error:
        raise ValueError(f"{where}: {error}") from error
