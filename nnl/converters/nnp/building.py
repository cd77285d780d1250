# SPDX-License-Identifier: Apache-2.0
"""Networks out of a file's messages, and their parameters before they are registered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from nnl.converters.nnp.archive import Content
from nnl.converters.nnp.initial_values import initial_value
from nnl.converters.nnp.network_pass import NnpNetworkPass
from nnl.converters.nnp.network_reader import LoadedNetwork, build_network
from nnl.converters.nnp.parameter_files import Stored, is_well_placed, set_value
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import (
    get_parameter,
    get_parameters,
    set_parameter,
)


class NewParameters:
    """Parameters to be: nothing is registered or changed before `commit`.

    Args:
        stored: Those with values, from a file.
        keep: Copy the values, because the caller will read them again.
        seed: Of initial values; 0 is NNabla's.
    Raises:
        ShapeError: One exists with another shape; ValueError: a name is a scope of another one.
    """

    def __init__(self, stored: list[Stored], where: str, keep: bool = False, seed: int = 0) -> None:
        self.keep = keep
        self.where, self.rng = where, np.random.RandomState(seed)
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
        if existing is None and value is not None and is_well_placed(value) and not self.keep:
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
