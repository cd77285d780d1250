# SPDX-License-Identifier: Apache-2.0
"""Graphs made anew function by function, some of them changed on the way."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.context import using
from nnl.core.dispatch import apply
from nnl.core.function import Function
from nnl.core.graph import capture
from nnl.core.parameter import get_parameter_or_create, get_parameters, parameter_scope
from nnl.core.variable import Variable

NORMALIZATIONS = ("BatchNormalization", "FusedBatchNormalization", "SyncBatchNormalization")


class FunctionModifier:
    """Decides, function by function, what a new graph is made of. Subclasses define `modify`.

    Example:
        >>> import nnl as nn, nnl.functions as F
        >>> class ELUForReLU(FunctionModifier):
        ...     def modify(self, f, inputs):
        ...         if f.info.type_name == "ReLU":
        ...             return F.elu(inputs[0])
        >>> y = GraphConverter([ELUForReLU()]).convert(F.relu(nn.Variable((2, 3))))
        >>> y.parent.name
        'ELU'
    """

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

    def get_parameter_scope(self, v: Variable) -> str:
        """The scope of a parameter; "" for what is none."""
        for name, p in get_parameters(grad_only=False).items():
            if p == v:
                return os.path.dirname(name)
        return ""


def again(f: Function, inputs: Sequence[Variable], **changes: Any) -> Any:
    """The same function of other inputs, with some of its arguments changed."""
    node = f.node
    given = iter(inputs)
    n = len(node.inputs) - node.op.takes_rng
    full = [None if v is None else next(given) for v in node.inputs[:n]]
    full += [None if v is None else Variable.on(v) for v in node.inputs[n:]]
    attrs = node.op.attrs(**{**node.attrs.as_dict(), **changes}) if changes else node.attrs
    with using(auto_forward=False, target=node.target):
        return apply(node.op, attrs, tuple(full))


class GraphConverter:
    """Makes graphs anew with modifiers, one after the other. The old graph stays as it was.

    Args:
        modifiers: FunctionModifiers, or lists of them.
    """

    def __init__(self, modifiers: Sequence[Any] = ()) -> None:
        self._modifiers: list[FunctionModifier] = []
        for m in modifiers:
            self._modifiers += m if isinstance(m, (list, tuple)) else [m]
        for m in self._modifiers:
            if not isinstance(m, FunctionModifier):
                raise TypeError(
                    f"GraphConverter: modifiers has a {type(m).__name__}, wanted FunctionModifier"
                )

    def convert(self, o: Variable | Sequence[Variable]) -> Any:
        """The new graph's outputs, as many as were given.

        Raises:
            TypeError: A modifier gave something else than Variables.
            ValueError: It gave another number of outputs than are in use.
        """
        outputs = [o] if isinstance(o, Variable) else list(o)
        for modifier in self._modifiers:
            outputs = _converted(outputs, modifier)
            modifier.finish_up()
        return outputs[0] if isinstance(o, Variable) else outputs


def _converted(outputs: list[Variable], modifier: FunctionModifier) -> list[Variable]:
    made: dict[tuple[int, int], Variable] = {}
    name = type(modifier).__name__

    def current(edge: Any) -> Variable:
        if edge.key not in made:
            if edge.node is not None:
                raise ValueError(
                    f"{name}: output {edge.index} of {Function(edge.node).name} is in use, and "
                    "what takes its place has fewer outputs"
                )
            made[edge.key] = modifier.source(Variable.on(edge))
        return made[edge.key]

    for node in capture([v.edge for v in outputs]):
        f = Function(node)
        n = len(node.inputs) - node.op.takes_rng
        inputs = [current(v) for v in node.inputs[:n] if v is not None]
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
        known = get_parameters(grad_only=False).values()
        return v.unlinked(need_grad=False) if any(p == v for p in known) else v


class BatchNormalizationFoldingModifier(FunctionModifier):
    """Folds batch normalisations by running statistics into the convolution or affine before them.

    The folded weights are parameters of their own, "W-folded" and "b-folded" beside the old ones,
    and have the values that the old ones have now.

    Raises:
        ValueError: On conversion, a normalisation behind a convolution uses batch statistics.
    """

    AXES = {"Convolution": 0, "Affine": -1}  # of the weight, along which outputs lie

    def __init__(self) -> None:
        self._inner: dict[Any, tuple[Function, list[Variable]]] = {}

    def modify(self, f: Function, inputs: list[Variable]) -> Any:
        if f.name in self.AXES and not f.args.get("channel_last"):
            y = again(f, inputs)
            self._inner[y.edge.key] = (f, inputs)
            return y
        if f.name != "BatchNormalization" or inputs[0].edge.key not in self._inner:
            return None
        inner, (x, w, *bias) = self._inner[inputs[0].edge.key]
        if f.args["batch_stat"]:
            raise ValueError(
                "BatchNormalizationFoldingModifier: a BatchNormalization has batch_stat=True, "
                "wanted False: convert with BatchNormBatchStatModifier first"
            )
        if list(f.args["axes"]) != [inner.args["base_axis"]] or w.d.ndim < 2:
            return None
        w_new, b_new = _folded(w.d, bias[0].d if bias else 0.0, self.AXES[inner.name], f)
        with parameter_scope(self.get_parameter_scope(w)):
            w = get_parameter_or_create("W-folded", w_new.shape, w_new)
            b = get_parameter_or_create("b-folded", b_new.shape, b_new)
        w.d, b.d = w_new, b_new  # where they were made by an earlier conversion
        if inner.name == "Affine":
            return F.affine(x, w, b, **inner.args)
        return F.convolution(x, w, b, **inner.args)

    def finish_up(self) -> None:
        self._inner = {}


def _folded(w: Any, b: Any, axis: int, f: Function) -> tuple[Any, Any]:
    """Weight and bias that give what normalisation f makes of the results of w and b."""
    names = [n for n, v in zip(f.node.op.inputs, f.node.inputs, strict=False) if v is not None]
    of = {n: v.d.reshape(-1) for n, v in zip(names[1:], f.inputs[1:], strict=False)}
    scale = of.get("gamma", 1.0) / np.sqrt(of["variance"] + f.args["eps"])
    shape = [1] * w.ndim
    shape[axis] = -1
    shift = of.get("beta", 0.0) + (b - of["mean"]) * scale
    return (w * scale.reshape(shape)).astype(w.dtype), np.asarray(shift, w.dtype)
