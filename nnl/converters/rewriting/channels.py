# SPDX-License-Identifier: Apache-2.0
"""Graphs with their channels after the spatial axes, or before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.converters.rewriting.converter import FunctionModifier, again, named_inputs
from nnl.core.graph.function import Function
from nnl.core.graph.variable import Variable
from nnl.functions.arithmetic import Binary, Unary, Variadic
from nnl.functions.comparison import OneArray

SLIDING = ("Convolution", "Deconvolution")
POOLING = ("MaxPooling", "AveragePooling", "SumPooling", "Unpooling")
# Functions of every element alone: it does not matter where the channels are.
ELEMENTWISE = (Binary, Unary, Variadic, OneArray)
ELEMENTWISE_TYPES = frozenset(["Dropout", "Identity"])


class _ChannelModifier(FunctionModifier):
    """Moves the axis of channels of some inputs and of what is computed from them.

    Convolutions, normalisations, poolings, concatenations, affine and functions of single elements
    are made for the new order, with parameters of their own. Before any other function the
    channels are moved back, so that all values are those of the old graph.
    """

    last: bool  # whether channels shall come last
    suffix: str

    def __init__(self, inputs: Sequence[Variable], moved: Sequence[Variable] | None) -> None:
        self._inputs = list(inputs)
        if moved is None:
            moved = [Variable(self.shape(x.shape), need_grad=x.need_grad) for x in self._inputs]
            for x, new in zip(self._inputs, moved, strict=True):
                new.d = x.d.transpose(self.axes(x.ndim))
        self._replaced = dict(zip(self._inputs, moved, strict=True))
        self._done: set[Any] = set()  # edges whose channels have been moved

    def axes(self, n: int, back: bool = False) -> tuple[int, ...]:
        """The transposition that moves channels, or moves them back."""
        return (0, *range(2, n), 1) if self.last != back else (0, n - 1, *range(1, n - 1))

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(shape[i] for i in self.axes(len(shape)))

    def source(self, v: Variable) -> Variable:
        new = self._replaced.get(v, v)
        if new is not v:
            if new.shape != self.shape(v.shape):
                raise ValueError(
                    f"{type(self).__name__}: an input has the shape {new.shape}, wanted "
                    f"{self.shape(v.shape)} in place of {v.shape}"
                )
            self._done.add(new.edge.key)
        return new

    def is_moved(self, v: Variable) -> bool:
        return v.edge.key in self._done

    def moved(self, v: Variable) -> Variable:
        """v with its channels moved; of a parameter another parameter."""
        if self.is_moved(v):
            return v
        axes = self.axes(v.ndim)
        if v.parent is None:
            return self.derived(v, self.suffix, v.d.transpose(axes))
        return F.transpose(v, axes)  # type: ignore[no-any-return]

    def brought_back(self, v: Variable) -> Variable:
        return F.transpose(v, self.axes(v.ndim, back=True)) if self.is_moved(v) else v

    def modify(self, f: Function, inputs: list[Variable]) -> Any:
        if not any(self.is_moved(v) for v in inputs):
            return None
        y = self.in_new_order(f, inputs)
        if y is None:
            return again(f, [self.brought_back(v) for v in inputs])
        for v in y if isinstance(y, tuple) else (y,):
            if f.name != "Affine":
                self._done.add(v.edge.key)
        return y

    def in_new_order(self, f: Function, inputs: list[Variable]) -> Any:
        """The function with the channels of inputs and outputs moved; None if that cannot be."""
        x, n = inputs[0], inputs[0].ndim
        channel = 1 if self.last else n - 1  # where channels are in the old graph
        if n < 3:
            return None
        if f.name in SLIDING or f.name in POOLING:
            if bool(f.args["channel_last"]) == self.last or f.args.get("base_axis", 1) != 1:
                return None
            if f.name in POOLING:
                fits = self.is_moved(x) and len(f.args["kernel"]) == n - 2
                return again(f, inputs, channel_last=self.last) if fits else None
            of = named_inputs(f, inputs)
            of["x"], of["weight"] = self.moved(x), self.moved(of["weight"])
            return again(f, of, channel_last=self.last)
        if f.name in ("BatchNormalization", "FusedBatchNormalization"):
            if len(f.outputs) != 1 or [a % n for a in f.args["axes"]] != [channel]:
                return None
            return again(f, [self.moved(v) for v in inputs], axes=(n - 1 if self.last else 1,))
        if f.name == "Concatenate":
            axis = self.axes(n).index(f.args["axis"] % n)
            return again(f, [self.moved(v) for v in inputs], axis=axis)
        if f.name == "Affine" and f.args["base_axis"] == 1 and inputs[1].parent is None:
            return self.affine(f, inputs)
        definition = f.node.attrs
        if isinstance(definition, ELEMENTWISE) or f.name in ELEMENTWISE_TYPES:
            if all(v.ndim == n for v in inputs):
                return again(f, [self.moved(v) for v in inputs])
        return None

    def affine(self, f: Function, inputs: list[Variable]) -> Any:
        """Affine with the rows of its weight in the new order of the elements."""
        if not self.is_moved(inputs[0]):
            return None
        of = named_inputs(f, inputs)
        w, old = of["weight"].d, f.inputs[0].shape[1:]
        axes = tuple(a - 1 for a in self.axes(len(old) + 1)[1:])
        rows = np.arange(w.shape[0]).reshape(old).transpose(axes).reshape(-1)
        of["weight"] = self.derived(of["weight"], self.suffix, w[rows])
        return again(f, of)

    def __finish__(self) -> None:
        self._done = set()


class ChannelLastModifier(_ChannelModifier):
    """Makes a graph whose channels come last from one where they come first, (N, C, *S).

    Args:
        inputs: Inputs of the graph whose channels are to be moved.
        inputs_cl: What takes their place, (N, *S, C). Made with their values if left out.
    Raises:
        ValueError: On conversion, one of inputs_cl has a wrong shape.
    """

    last, suffix = True, "_cl"

    def __init__(
        self, inputs: Sequence[Variable], inputs_cl: Sequence[Variable] | None = None
    ) -> None:
        super().__init__(inputs, inputs_cl)
        self.inputs_cl = list(self._replaced.values())


class ChannelFirstModifier(_ChannelModifier):
    """Makes a graph whose channels come first from one where they come last, (N, *S, C).

    Args:
        inputs: Inputs of the graph whose channels are to be moved.
        inputs_cf: What takes their place, (N, C, *S). Made with their values if left out.
    Raises:
        ValueError: On conversion, one of inputs_cf has a wrong shape.
    """

    last, suffix = False, "_cf"

    def __init__(
        self, inputs: Sequence[Variable], inputs_cf: Sequence[Variable] | None = None
    ) -> None:
        super().__init__(inputs, inputs_cf)
        self.inputs_cf = list(self._replaced.values())
