# SPDX-License-Identifier: Apache-2.0
"""Networks that were trained with rounding in them: with scales fixed, they compute with 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.networks.model import Key, Network
from nnl.core.graph.dispatch import apply
from nnl.core.graph.node import Node, Value, capture
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.interpreter import STATIC
from nnl.core.settings.context import using

Array = np.ndarray[Any, Any]
ROUNDING = ("quantize_linear", "min_max_quantize")
BYTES = {(-128.0, 127.0): np.int8, (0.0, 255.0): np.uint8}


def is_trained(network: Network) -> bool:
    """Whether a network rounds values to whole numbers already."""
    nodes = capture([v.edge for v in network.outputs.values()])
    return any(n.op.name in ROUNDING for n in nodes)


def fixed(network: Network) -> tuple[dict[str, Variable], dict[str, Variable]]:
    """Inputs and outputs of the same network with numbers for scales and zero points, and with int8
    or uint8 for weights that it rounds."""
    with using(interpreter=STATIC, no_grad=True):
        return _Fixing(network).run()


class _Fixing:
    def __init__(self, network: Network) -> None:
        self.network = network
        self.values: dict[Key, Variable] = {}
        self.given = {v.edge.key for v in network.inputs.values()}

    def run(self) -> tuple[dict[str, Variable], dict[str, Variable]]:
        inputs = {}
        for name, v in self.network.inputs.items():
            inputs[name] = x = Variable(v.shape)
            x.data.set_spec(v.spec)
            self.values[v.edge.key] = x
        edges = [v.edge for v in self.network.outputs.values()]
        for node in capture(edges):
            made = self._made(node)
            for i, y in enumerate(made):
                self.values[id(node), i] = y
        return inputs, {n: self._value(v.edge) for n, v in self.network.outputs.items()}

    def _value(self, v: Value | None) -> Any:
        return None if v is None else self.values.get(v.key, Variable.on(v))

    def _known(self, v: Value | None) -> Array | None:
        """The numbers of an edge that is a parameter or another array that stays."""
        if v is None or v.node is not None or v.key in self.given:
            return None
        return np.asarray(v.array.read("host"), np.float32)

    def _made(self, node: Node) -> list[Variable]:
        rule = getattr(self, f"_{node.op.name}", None)
        found = None if rule is None else rule(node)
        if found is not None:
            return [found]
        ys = apply(node.op, node.attrs, tuple([self._value(v) for v in node.inputs]))
        made = (ys[0] if isinstance(ys, tuple) else ys).edge.node
        made.origin = node.origin
        return [
            Variable.on(Value.of(made, i, spec, False, made.outs[i]))
            for i, spec in enumerate(made.out_specs)
        ]

    def _numbers(self, values: Array) -> Variable:
        """A scale or zero point as a function reads it."""
        if (values == values.flat[0]).all():
            return F.constant(float(values.flat[0]), shape=values.shape)
        return Variable.from_numpy_array(values)

    def _quantize_linear(self, node: Node) -> Variable | None:
        x, scale, zero = node.inputs
        s, z, w = self._known(scale), self._known(zero), self._known(x)
        if s is None or z is None:
            return None
        a = node.attrs
        if w is not None:
            with using(auto_forward=True):
                of = [Variable.from_numpy_array(v) for v in (w, s, z)]
                stored = apply(node.op, a, tuple(of)).d.astype(np.dtype("bB"[a.dtype == 2]))
            return Variable.from_numpy_array(stored)
        y = apply(node.op, a, (self._value(x), self._numbers(s), self._numbers(z)))
        y.edge.node.origin = node.origin
        return y

    def _dequantize_linear(self, node: Node) -> Variable | None:
        x, scale, zero = node.inputs
        s, z = self._known(scale), self._known(zero)
        if s is None or z is None:
            return None
        return F.dequantize_linear(self._value(x), self._numbers(s), self._numbers(z))

    def _min_max_quantize(self, node: Node) -> Variable | None:
        """With the range that was learnt, or that of weights: whole numbers and the way back."""
        x, *ranges = node.inputs
        found = [self._known(v) for v in ranges]
        w, a = self._known(x), node.attrs
        if any(v is None for v in found) or (a.x_min_max and not a.ema and w is None):
            return None
        low, high, first, last = (np.asarray(v) for v in found)
        dtype = BYTES.get((float(first.flat[0]), float(last.flat[0])))
        if dtype is None or np.ptp(first) or np.ptp(last):
            return None
        if a.x_min_max and w is not None:
            axes = tuple(i for i, n in enumerate(low.shape) if n == 1)
            low, high = (f(w, axis=axes, keepdims=True) for f in (np.min, np.max))
        high = np.maximum(high, low + np.float32(a.eps))
        scale = ((high - low) / (last - first)).astype(np.float32)
        zero = np.clip(np.floor(first - low / scale + 0.5), first, last).astype(np.float32)
        s, z = self._numbers(scale), self._numbers(zero)
        if w is None:
            return F.dequantize_linear(F.quantize_linear(self._value(x), s, z, dtype=dtype), s, z)
        info = np.iinfo(dtype)
        steps = np.clip(np.floor((w - (first - zero) * scale) / scale + 0.5), 0, 255) + first
        stored = np.clip(steps, info.min, info.max).astype(dtype)
        return F.dequantize_linear(Variable.from_numpy_array(stored), s, z)
