# SPDX-License-Identifier: Apache-2.0
"""Graphs made anew function by function, some of them changed on the way."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from nnl.converters.nnp.function_messages import op_of_type
from nnl.core.graph.dispatch import apply
from nnl.core.graph.function import Function
from nnl.core.graph.node import Node, capture
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import (
    get_parameter,
    get_parameter_or_create,
    get_parameters,
    parameter_scope,
)
from nnl.core.settings.context import using

logger = logging.getLogger("nnl")
NORMALIZATIONS = ("BatchNormalization", "FusedBatchNormalization", "SyncBatchNormalization")


class FunctionModifier:
    """Decides, function by function, what a new graph is made of. Subclasses define `modify`.

    Example:
        >>> import nnl as nn, nnl.functions as F
        >>> class ELUForReLU(FunctionModifier):
        ...     def modify(self, f, inputs):
        ...         if f.info.type_name == "ReLU":
        ...             return F.elu(inputs[0])
        >>> y = GraphConverter(ELUForReLU()).convert(F.relu(nn.Variable((2, 3))))
        >>> y.parent.name
        'ELU'
    """

    _readers: Mapping[Node, Sequence[Function | None]] = MappingProxyType({})
    _derived: dict[str, Any]
    _names: Mapping[Variable, str] = MappingProxyType({})

    def _begin(self, readers: Mapping[Node, Sequence[Function | None]]) -> None:
        """Forget what belongs to another conversion; not in __init__, which subclasses replace."""
        self._readers, self._derived, self._names = readers, {}, {}

    def modify(self, f: Function, inputs: list[Variable]) -> Any:
        """What takes the place of f.

        Args:
            f: The function of the old graph.
            inputs: What its inputs are in the new one.
        Returns:
            A Variable, or several for several outputs; None for the same function.
        """
        return None

    def source(self, v: Variable) -> Variable:
        """What takes the place of a Variable that no function computes."""
        return v

    def finish_up(self) -> None:
        """Called when the new graph is complete."""
        self.__finish__()

    def __finish__(self) -> None:
        """The same, as NNabla calls it."""

    def get_parameter_scope(self, v: Variable) -> str:
        """The scope of a parameter; "" for what is none."""
        return os.path.dirname(self.parameter_name(v))

    def parameter_name(self, v: Variable) -> str:
        """The name of a parameter relative to the current scope; "" for what is none."""
        if v not in self._names:  # collected once for many
            self._names = {p: name for name, p in get_parameters(grad_only=False).items()}
        return self._names.get(v, "")

    def readers(self, f: Function) -> Sequence[Function | None]:
        """Who reads the outputs of a function of the old graph, once for every time that it does.

        None stands for the graph's own outputs.
        """
        return self._readers.get(f.node, ())

    def derived(self, v: Variable, suffix: str, value: Any, name: str = "") -> Variable:
        """A leaf of this value that takes the place of v.

        That of a parameter is a parameter, too, in the same scope and called as v with the suffix.
        As in parametric functions one that exists keeps its value. Of one scope, two that are made
        for different values in one conversion get different names.

        Args:
            v: What value was computed from.
            name: Of v, if it is to be another one than its own.
        """
        value = np.asarray(value, v.d.dtype)
        path = self.parameter_name(v)
        parameter = get_parameter(path)
        if parameter is None:
            return Variable.from_numpy_array(value, need_grad=v.need_grad)
        scope, leaf = os.path.split(path)
        first = full = f"{scope}/{name or leaf}{suffix}"
        n = 1
        while full in self._derived and not np.array_equal(self._derived[full], value):
            n += 1
            full = f"{first}-{n}"
        self._derived[full] = value
        with parameter_scope(scope):
            made = get_parameter_or_create(
                os.path.basename(full), value.shape, value, parameter.need_grad, v.need_grad
            )
        if not np.array_equal(made.d, value):
            logger.warning(
                "%s: the parameter %s exists and keeps its value, which is not the one that %s "
                "gives now", type(self).__name__, full, path,
            )  # fmt: skip
        return made

    def _modify_as_same(self, f: Function, inputs: Sequence[Variable]) -> Any:
        return again(f, inputs)

    def _call_function(self, type_name: str, inputs: Sequence[Variable], args: Any) -> Any:
        return op_of_type()[type_name](*inputs, **args)


def named_inputs(f: Function, inputs: Sequence[Variable]) -> dict[str, Variable]:
    """Inputs that stand for those of f, by the names in f's definition; without those left out."""
    node = f.node
    there = [n for n, v in zip(node.op.inputs, node.inputs, strict=False) if v is not None]
    return dict(zip(there, inputs, strict=False))


def again(
    f: Function, inputs: Sequence[Variable] | Mapping[str, Variable | None], **changes: Any
) -> Any:
    """The same function of other inputs, with some of its arguments changed.

    Args:
        inputs: As many as f has, or all by name, those not in it left out.
    """
    node = f.node
    n = len(node.inputs) - node.op.takes_rng
    if isinstance(inputs, Mapping):
        full = [inputs.get(name) for name in node.op.inputs[:n]]
    else:
        given = iter(inputs)
        full = [None if v is None else next(given) for v in node.inputs[:n]]
    full += [None if v is None else Variable.on(v) for v in node.inputs[n:]]
    attrs = node.op.attrs(**{**node.attrs.as_dict(), **changes}) if changes else node.attrs
    with using(auto_forward=False, target=node.target):
        return apply(node.op, attrs, tuple(full))


class GraphConverter:
    """Makes graphs anew with modifiers, one after the other. The old graph stays as it was.

    Args:
        modifiers: A FunctionModifier, or several, also in lists of lists.
    """

    def __init__(self, modifiers: Any = ()) -> None:
        self._modifiers = list(_flat(modifiers))

    def convert(self, o: Variable | Sequence[Variable]) -> Any:
        """The new graph's outputs, as many as were given.

        Raises:
            TypeError: A modifier gave something other than Variables.
            ValueError: It gave another number of outputs than are in use.
        """
        outputs = [o] if isinstance(o, Variable) else list(o)
        for modifier in self._modifiers:
            outputs = _converted(outputs, modifier)
            modifier.finish_up()
            modifier._begin({})  # or it would hold the old graph
        return outputs[0] if isinstance(o, Variable) else outputs


def _flat(modifiers: Any) -> Iterator[FunctionModifier]:
    if isinstance(modifiers, (list, tuple)):
        for m in modifiers:
            yield from _flat(m)
    elif isinstance(modifiers, FunctionModifier):
        yield modifiers
    else:
        raise TypeError(
            f"GraphConverter: modifiers has a {type(modifiers).__name__}, wanted FunctionModifier"
        )


def _converted(outputs: list[Variable], modifier: FunctionModifier) -> list[Variable]:
    made: dict[tuple[int, int], Variable] = {}
    name = type(modifier).__name__
    nodes = capture([v.edge for v in outputs])
    readers: dict[Node, list[Function | None]] = {node: [] for node in nodes}
    for node in nodes:
        for edge in node.inputs:
            if edge is not None and edge.node is not None:
                readers[edge.node].append(Function(node))
    for v in outputs:
        if v.edge.node is not None:
            readers[v.edge.node].append(None)
    modifier._begin(readers)

    def current(edge: Any) -> Variable:
        if edge.key not in made:
            if edge.node is not None:
                raise ValueError(
                    f"{name}: output {edge.index} of {Function(edge.node).name} is in use, and "
                    "what takes its place has fewer outputs"
                )
            made[edge.key] = modifier.source(Variable.on(edge))
        return made[edge.key]

    for node in nodes:
        f = Function(node)
        n = len(node.inputs) - node.op.takes_rng
        inputs = [current(v) for v in node.inputs[:n] if v is not None]
        with using(auto_forward=False, target=node.target):
            y = modifier.modify(f, inputs)
            y = again(f, inputs) if y is None else y
        for i, v in enumerate(y if isinstance(y, (list, tuple)) else [y]):
            if not isinstance(v, Variable):
                raise TypeError(
                    f"{name}.modify: {type(v).__name__} for {f.name}, wanted nnl.Variable or None"
                )
            made[id(node), i] = v
    return [current(v.edge) for v in outputs]


class IdentityModifier(FunctionModifier):
    """Makes the same graph again.

    Args:
        inputs: {old input: new input}; inputs that are not in it are shared.
        copy_value: Copy the values of the old inputs to the new ones.
    Raises:
        ValueError: On conversion, values are to be copied to another shape.
    """

    def __init__(
        self, inputs: Mapping[Variable, Variable] | None = None, copy_value: bool = False
    ) -> None:
        self.inputs, self.copy_value = dict(inputs or {}), copy_value

    def source(self, v: Variable) -> Variable:
        new = self.inputs.get(v, v)
        if new is not v and self.copy_value:
            if new.shape != v.shape:
                raise ValueError(
                    f"IdentityModifier: the new input has the shape {new.shape}, the values to "
                    f"copy {v.shape}"
                )
            new.data.copy_from(v.data)
        return new


class RemoveFunctionModifier(FunctionModifier):
    """Leaves out functions; who reads their output reads their first input instead.

    Args:
        rm_funcs: Their types, ["Dropout"].
    """

    def __init__(self, rm_funcs: Sequence[str] = ()) -> None:
        self.rm_funcs = tuple(rm_funcs)

    def modify(self, f: Function, inputs: list[Variable]) -> Any:
        return inputs[0] if f.name in self.rm_funcs else None


def running_statistics(f: Function, inputs: Sequence[Variable]) -> Any:
    """A batch normalisation by its running statistics; None for other functions."""
    return again(f, inputs, batch_stat=False) if f.name in NORMALIZATIONS else None


class BatchNormBatchStatModifier(FunctionModifier):
    """Lets batch normalisations use their running statistics."""

    def modify(self, f: Function, inputs: list[Variable]) -> Any:
        return running_statistics(f, inputs)


class TestModeModifier(RemoveFunctionModifier):
    """Leaves out functions, and lets batch normalisations use their running statistics.

    Args:
        rm_funcs: Types of functions to leave out, ["Dropout"].
    """

    __test__ = False  # for pytest

    def modify(self, f: Function, inputs: list[Variable]) -> Any:
        y = super().modify(f, inputs)
        return running_statistics(f, inputs) if y is None else y


class NoGradModifier(FunctionModifier):
    """Makes a graph that gives the parameters no gradients."""

    def source(self, v: Variable) -> Variable:
        return v.unlinked(need_grad=False) if self.parameter_name(v) else v
