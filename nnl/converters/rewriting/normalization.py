# SPDX-License-Identifier: Apache-2.0
"""Batch normalisations folded into their neighbours, fused with them, or made plain arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl import functions as F
from nnl.converters.rewriting.converter import FunctionModifier, again, named_inputs
from nnl.converters.rewriting.weights import WITH_MAPS, along_maps, changed, channel_axis, leaves
from nnl.core.graph.function import Function
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameter_or_create, parameter_scope
from nnl.parametric_functions.initializer import ConstantInitializer

# The parameters of a normalisation, which are also those of a fused one.
PARAMETERS = ("beta", "gamma", "mean", "variance")


def is_plain(f: Function | None) -> bool:
    """Whether f is a batch normalisation without further outputs."""
    return f is not None and f.name == "BatchNormalization" and len(f.outputs) == 1


def foldable(f: Function | None) -> bool:
    """Whether f is a batch normalisation over one axis with values known before a forward."""
    if f is None or not is_plain(f) or len(f.args["axes"]) != 1 or not leaves(f.inputs[1:]):
        return False
    return {"mean", "variance"} <= set(named_inputs(f, f.inputs))


def scale_and_shift(f: Function) -> tuple[Any, Any]:
    """(c0, c1) of the normalisation c0 x + c1 by running statistics, in the parameters' shape."""
    of = {name: v.d for name, v in named_inputs(f, f.inputs).items() if name in PARAMETERS}
    scale = of.get("gamma", 1.0) / np.sqrt(of["variance"] + f.args["eps"])
    return scale, of.get("beta", 0.0) - of["mean"] * scale


class AddBiasModifier(FunctionModifier):
    """Gives a bias of zeros to convolutions and affine functions beside a batch normalisation."""

    def modify(self, f: Function, inputs: list[Variable]) -> Any:
        if f.name not in WITH_MAPS or len(inputs) == 3:
            return None
        if not any(g is not None and is_plain(g) for g in (*self.readers(f), f.inputs[0].parent)):
            return None
        y = f.outputs[0]
        shape = (
            y.shape[f.args["base_axis"] :] if f.name == "Affine" else (y.shape[channel_axis(f)],)
        )
        with parameter_scope(self.get_parameter_scope(inputs[1])):
            bias = get_parameter_or_create("b", shape, ConstantInitializer())
        return again(f, {**named_inputs(f, inputs), "bias": bias})


class BatchNormalizationFoldingModifierInner(FunctionModifier):
    """Folds batch normalisations into the convolution, deconvolution or affine before them.

    The running statistics count, also where a normalisation uses those of the batch. The folded
    weights are parameters of their own, "w-folded" and "b-folded" beside the old ones. What
    something besides the normalisation reads stays as it is.

    Args:
        channel_last: Ignored: functions say themselves where their channels are.
    """

    def __init__(self, channel_last: bool = False) -> None:
        pass

    def modify(self, f: Function, inputs: list[Variable]) -> Any:
        inner, before = (inputs[0].parent, f.inputs[0].parent) if foldable(f) else (None, None)
        if inner is None or before is None or inner.name not in WITH_MAPS:
            return None
        if len(self.readers(before)) != 1 or not leaves(inner.inputs[1:]):
            return None
        axis = f.args["axes"][0] % f.inputs[0].ndim
        channel = channel_axis(inner)
        if axis < channel or (axis != channel and inner.name != "Affine"):
            return None
        _, w, *bias = inner.inputs
        b = bias[0].d if bias else 0.0
        scale, shift = scale_and_shift(f)
        shape = scale.shape[channel:] if inner.name == "Affine" else (-1,)
        scale, shift = scale.reshape(shape), shift.reshape(shape)
        b = b * scale + shift
        if inner.name == "Affine":
            b = np.broadcast_to(b, w.shape[1:])
        else:
            scale = along_maps(inner, scale, outputs=True)
        return again(inner, changed(self, inner, inner.inputs, "-folded", w.d * scale, b))


class BatchNormalizationFoldingOppositeModifierInner(FunctionModifier):
    """Folds batch normalisations into the convolution, deconvolution or affine after them.

    The running statistics count, also where a normalisation uses those of the batch. The folded
    weights are parameters of their own, "w-folded" and "b-folded" beside the old ones.

    Where the zeros that a convolution pads with, or the border of a deconvolution, would have to
    become other values, a normalisation stays: with padding only one that shifts nothing goes.

    Args:
        channel_last: Ignored: functions say themselves where their channels are.
    """

    def __init__(self, channel_last: bool = False) -> None:
        pass

    def modify(self, f: Function, inputs: list[Variable]) -> Any:
        if f.name not in WITH_MAPS or not foldable(inputs[0].parent) or not leaves(inputs[1:]):
            return None
        bn: Any = inputs[0].parent
        axis, channel = bn.args["axes"][0] % inputs[0].ndim, channel_axis(f)
        if axis < channel or (axis != channel and f.name != "Affine"):
            return None
        x, w, b = bn.inputs[0], inputs[1].d, inputs[2].d if len(inputs) > 2 else 0.0
        scale, shift = scale_and_shift(bn)
        if f.name == "Affine":  # every element of a sample has a row of the weight
            rows = [np.broadcast_to(c, (1,) * channel + x.shape[channel:]) for c in (scale, shift)]
            scale, shift = (c.reshape(-1, *(1,) * (w.ndim - 1)) for c in rows)
            b = b + (w * shift).sum(0)
            return again(f, changed(self, f, (x, *inputs[1:]), "-folded", w * scale, b))
        if np.any(shift) and (f.name == "Deconvolution" or any(f.args["pad"])):
            return None
        scale, shift = (along_maps(f, c.reshape(-1), outputs=False) for c in (scale, shift))
        sums = (w * shift).sum(tuple(range(1, w.ndim))) if f.name == "Convolution" else 0.0
        b = np.broadcast_to(b + sums, (f.outputs[0].shape[channel],))
        return again(f, changed(self, f, (x, *inputs[1:]), "-folded", w * scale, b))


def BatchNormalizationFoldingModifier(
    opposite: bool = False, channel_last: bool = False
) -> FunctionModifier:
    """Folds batch normalisations into the function before them; `opposite`, into the one after.

    Args:
        channel_last: Ignored: functions say themselves where their channels are.
    """
    if opposite:
        return BatchNormalizationFoldingOppositeModifierInner(channel_last)
    return BatchNormalizationFoldingModifierInner(channel_last)


class BatchNormalizationSelfFoldingModifier(FunctionModifier):
    """Makes batch normalisations c0 x + c1 with two parameters, by the running statistics.

    Args:
        name: The parameters are called "c0-" and "c1-" and this, beside those of the normalisation.
    """

    def __init__(self, name: str = "bn-self-folding") -> None:
        self._name = name

    def modify(self, f: Function, inputs: list[Variable]) -> Any:
        if not foldable(f):
            return None
        c0, c1 = scale_and_shift(f)
        p = inputs[1]  # says which scope
        c0, c1 = (
            self.derived(p, f"-{self._name}", np.broadcast_to(c, p.shape), name=name)
            for name, c in (("c0", c0), ("c1", c1))
        )
        return c0 * inputs[0] + c1


class FusedBatchNormalizationModifier(FunctionModifier):
    """Makes a batch normalisation, an addition after it and relu one fused batch normalisation.

    Only where nothing else reads what lies between them. The parameters stay the same.
    """

    def modify(self, f: Function, inputs: list[Variable]) -> Any:
        if f.name != "ReLU":
            return None
        add, old = inputs[0].parent, f.inputs[0].parent
        if add is None or old is None or add.name != "Add2" or len(self.readers(old)) != 1:
            return None
        for i in (0, 1):
            bn, before = add.inputs[i].parent, old.inputs[i].parent
            z = add.inputs[1 - i]
            if bn is None or before is None or not is_plain(bn) or z.shape != inputs[0].shape:
                continue
            if len(self.readers(before)) == 1 and bn.inputs[0].shape == z.shape:
                p = named_inputs(bn, bn.inputs)
                args = {k: bn.args[k] for k in ("axes", "decay_rate", "eps", "batch_stat")}
                of = [p.get(name) for name in PARAMETERS]
                return F.fused_batch_normalization(p["x"], *of, z, **args)
        return None


class UnfusedBatchNormalizationModifier(FunctionModifier):
    """Makes fused batch normalisations a normalisation, an addition if there is one, and relu.

    The parameters stay the same.
    """

    def modify(self, f: Function, inputs: list[Variable]) -> Any:
        if f.name != "FusedBatchNormalization" or len(f.outputs) != 1:
            return None
        p = named_inputs(f, inputs)
        args = {k: f.args[k] for k in ("axes", "decay_rate", "eps", "batch_stat")}
        y = F.batch_normalization(p["x"], *[p.get(name) for name in PARAMETERS], **args)
        return F.relu(y if "z" not in p else F.add2(p["z"], y))
