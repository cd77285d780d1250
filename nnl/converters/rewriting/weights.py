# SPDX-License-Identifier: Apache-2.0
"""Where maps lie in the weights of convolution, deconvolution and affine; pruning of maps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.converters.rewriting.converter import (
    FunctionModifier,
    again,
    named_inputs,
)
from nnl.core.graph.function import Function
from nnl.core.graph.variable import Variable

Array = np.ndarray[Any, Any]

WITH_MAPS = ("Convolution", "Deconvolution", "Affine")


def leaves(variables: Sequence[Variable]) -> bool:
    """Whether no function computes them, so that their values are known before a forward."""
    return all(v.parent is None for v in variables)


def channel_axis(f: Function) -> int:
    """The axis of channels in data and result of a convolution, of elements for affine."""
    base = int(f.args["base_axis"])
    return f.inputs[0].ndim - 1 if f.args.get("channel_last") else base


def along_maps(f: Function, values: Array, outputs: bool) -> Array:
    """One value for every output (else input) map, in a shape that stretches to f's weight."""
    w = f.inputs[1].shape
    if (f.name == "Convolution") == outputs:  # the maps of axis 0 are those of all groups
        return values.reshape(-1, *(1,) * (len(w) - 1))
    group = f.args["group"]
    rows = np.repeat(values.reshape(group, -1), w[0] // group, axis=0)
    ones = (1,) * (len(w) - 2)
    return rows.reshape((w[0], *ones, -1) if f.args["channel_last"] else (w[0], -1, *ones))


def changed(
    modifier: FunctionModifier, f: Function, inputs: Any, suffix: str, w: Any, b: Any
) -> dict[str, Variable]:
    """Inputs of f by name, with this weight and, unless b is None, this bias."""
    _, weight, bias = f.node.op.inputs[:3]
    new = named_inputs(f, inputs)
    old, last = new[weight], os.path.basename(modifier.parameter_name(new[weight]))[1:]
    new[weight] = modifier.derived(old, suffix, w, name=f"w{last}")
    if b is not None:
        new[bias] = modifier.derived(new.get(bias, old), suffix, b, name=f"b{last}")
    return new


class PruningModifier(FunctionModifier):
    """Sets the weights of output maps to zero whose sum of squares is not above a threshold.

    The pruned weights are parameters of their own, "w-pruned" beside W; a bias is pruned as well.

    Args:
        pruning_threshold: The threshold.
        functions_to_prune: Types of functions whose weights are pruned.
        channel_last: Ignored: functions say themselves how their weights lie.
    """

    AXES = {
        "Convolution": 0,
        "Deconvolution": 1,
        "DepthwiseConvolution": 0,
        "DepthwiseDeconvolution": 0,
        "Affine": 1,
    }  # of the weight, along which output maps lie

    def __init__(
        self,
        pruning_threshold: float,
        functions_to_prune: Sequence[str] = tuple(AXES),
        channel_last: bool = False,
    ) -> None:
        self.threshold = float(pruning_threshold)
        self.types = frozenset(functions_to_prune) & set(self.AXES)

    def modify(self, f: Function, inputs: list[Variable]) -> Any:
        if f.name not in self.types or not leaves(inputs[1:]):
            return None
        _, w, *bias = inputs
        axis = w.ndim - 1 if f.args.get("channel_last") else self.AXES[f.name]
        if f.name == "Convolution":
            axis = 0
        others = tuple(i for i in range(w.ndim) if i != axis) if f.name != "Affine" else 0
        keep = np.sum(w.d**2, axis=others, keepdims=True) > self.threshold
        b = None
        if bias and keep.size <= bias[0].size:  # not where several maps are added up to one
            b = bias[0].d * np.resize(keep, bias[0].shape)  # one mask for all groups
        return again(f, changed(self, f, inputs, "-pruned", w.d * keep, b))
