# SPDX-License-Identifier: Apache-2.0
"""Networks out of a file's messages, and their parameters before they are registered."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from nnl.converters.nnp.archive import Content
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

# ---- initial values of parameters that a file names without giving their values ----


MAX_ELEMENTS = 2**30  # of one parameter whose values the file does not hold


def initial_value(
    message: Any, shape: tuple[int, ...], rng: np.random.RandomState, where: str
) -> np.ndarray[Any, Any] | None:
    r"""The array that an Initializer message asks for; None for zeros.

    Normal and Uniform draw with the standard deviation or the limit `multiplier`. Their forms for
    layers take $\sigma$ or the limit from the weights' shape, times `multiplier`: He forward
    $\sqrt{2/n_{in}}$, He backward $\sqrt{2/n_{out}}$, Glorot $\sqrt{2/(n_{in}+n_{out})}$ and
    uniform Glorot $\sqrt{6/(n_{in}+n_{out})}$, where $n$ counts the connections of one unit. Affine
    weights have the inputs first; those of convolutions the outputs, CL ones with the inputs last.
    Weights of depthwise convolutions have no axis of inputs; they count as having as many inputs as
    outputs, which is what NNabla does.

    Raises:
        ValueError: The array would be too large, or its shape is not that of such weights.
    """
    kind, scale = message.type, message.multiplier
    if math.prod(shape) > MAX_ELEMENTS:
        raise ValueError(
            f"{where}: the file has no values for the shape {shape}, which is too large"
        )
    if kind == "Constant":
        return np.full(shape, scale, np.float32)
    if kind == "Range":
        values = np.arange(math.prod(shape), dtype=np.float32) * np.float32(scale or 1.0)
        return values.reshape(shape)
    if not kind.startswith(("Normal", "Uniform")):
        return None
    distribution = "Normal" if kind.startswith("Normal") else "Uniform"
    rule = kind.removeprefix(distribution)
    if rule:
        scale *= _spread(distribution, rule, shape, where)
    if distribution == "Normal":
        return rng.normal(0.0, scale, shape).astype(np.float32)
    return rng.uniform(-scale, scale, shape).astype(np.float32)


def _spread(distribution: str, rule: str, shape: tuple[int, ...], where: str) -> float:
    layer = next((n for n in ("Affine", "CLConv", "Convolution") if rule.startswith(n)), "")
    kind = rule.removeprefix(layer)
    known = ("Glorot",) if distribution == "Uniform" else _NORMAL
    if not layer or kind not in known:
        raise ValueError(f"{where}: the initialiser {distribution}{rule} is unknown")
    if len(shape) < (1 if layer == "Affine" else 3) or 0 in shape:
        raise ValueError(f"{where}: weights of an initialiser {rule} cannot have the shape {shape}")
    if layer == "Affine":
        n_in, n_out = shape[0], math.prod(shape[1:])
    else:
        axis = -1 if layer == "CLConv" else 0 if len(shape) == 3 else 1
        channels, kernel = shape[axis], shape[1:-1] if layer == "CLConv" else shape[axis + 1 :]
        n_in, n_out = channels * math.prod(kernel), shape[0] * math.prod(kernel)
    if distribution == "Uniform":
        return math.sqrt(6.0 / (n_in + n_out))
    if kind == "Glorot":
        return math.sqrt(2.0 / (n_in + n_out))
    return math.sqrt(2.0 / (n_out if kind == "HeBackward" else n_in))


_NORMAL = ("He", "HeForward", "HeBackward", "Glorot")


# ---- networks ----


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
