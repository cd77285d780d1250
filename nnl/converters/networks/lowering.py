# SPDX-License-Identifier: Apache-2.0
"""From a network to one of the functions that a target has: what exporters share.

A function that the target lacks is replaced: by a rule of the target or of SIMPLER, else by its own
`decompose` or `portable`, until only functions of the target remain. What depends on no input is
computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.networks.model import Key, Network
from nnl.converters.networks.simpler import SIMPLER
from nnl.core.arrays.array import NdArray
from nnl.core.graph.dispatch import apply
from nnl.core.graph.node import Node, Value, capture
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.interpreter import STATIC
from nnl.core.settings.context import using
from nnl.ext import numpy as reference

Rule = Callable[..., Any]  # attributes and Variables of the inputs -> Variables
MAX_DEPTH = 16  # of rules inside rules


@dataclass(frozen=True)
class Target:
    """What a format can say.

    Attributes:
        name: Of the format, for messages.
        refuses: Node, and what tells of an edge whether it is a constant -> why the format has no
            such call, None if it has.
        rules: What to say instead of an op, by its name; they go before SIMPLER. Their functions
            may be ones that the format lacks too.
    """

    name: str
    refuses: Callable[[Node, Callable[[Value], bool]], str | None]
    rules: Mapping[str, Rule]


@dataclass
class Lowered:
    """A network of functions that a target has.

    Attributes:
        nodes: In an order in which they can run. Edges that none of them makes are inputs and
            constants, which hold their values.
        inputs, outputs: Edges by name. Functions make all outputs, if by `identity`.
        became: What edges of the network are now, by their keys. Weights that a normalization has
            become part of count as what they were.
    """

    nodes: list[Node]
    inputs: dict[str, Value]
    outputs: dict[str, Value]
    became: dict[Key, Value]


class CannotLower(NotImplementedError):
    """A target cannot say some functions; the text lists all of them.

    Attributes:
        problems: Each function, where it was called, and why.
    """

    def __init__(self, target: str, network: str, problems: Iterable[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        listed = "".join(f"\n  {p}" for p in self.problems)
        super().__init__(
            f"{target} cannot hold the network {network!r} "
            f"(documentation: conversion#what-can-be-converted):{listed}"
        )


def lower(network: Network, target: Target, moving: Collection[int] = ()) -> Lowered:
    """Say a network in the functions of a target.

    Args:
        moving: Ids of nodes whose values depend on open sizes, if on no input: they stay.
    Raises:
        CannotLower: With every function that cannot be said, where it was called, and the reason.
    """
    if network.words.names:
        texts = ", ".join(sorted(network.words.names))
        raise CannotLower(target.name, network.name, [f"{texts}: strings, which only .nnlp holds"])
    with using(interpreter=STATIC, no_grad=False, target=reference.context().target):
        lowering = _Lowering(network, target, moving)
        outputs = {name: lowering.output(v.edge) for name, v in network.outputs.items()}
    if lowering.problems:
        raise CannotLower(target.name, network.name, lowering.problems)
    nodes = capture(list(outputs.values()))
    inputs = {name: lowering.values[v.edge.key].edge for name, v in network.inputs.items()}
    return Lowered(nodes, inputs, outputs, lowering.became())


class _Lowering:
    """Attributes:
    values: What the edges of the network are now, as Variables.
    problems: What cannot be said.
    folded: Weights with a normalization in them, by the keys of those without.
    """

    def __init__(self, network: Network, target: Target, moving: Collection[int]) -> None:
        self.target, self.moving = target, moving
        self.values: dict[Key, Variable] = {}
        self.problems: list[str] = []
        self.depth = 0
        self.alive: list[Any] = []  # keys of edges are of objects that must not go
        self.computed: set[Key] = set()
        self.folded: dict[Key, Value] = {}
        for v in network.inputs.values():
            x = _leaf(v)
            self.values[v.edge.key] = x
            self.computed.add(x.edge.key)
        edges = [v.edge for v in network.outputs.values()]
        self.readers: dict[Key, int] = {v.key: 2 for v in edges}
        for node in capture(edges):
            for v in node.inputs:
                if v is not None:
                    self.readers[v.key] = self.readers.get(v.key, 0) + 1

    def output(self, edge: Value) -> Value:
        """What an edge is now, with all that it needs; a function always makes it."""
        self._run([edge])
        y = self.values[edge.key]
        if y.edge.node is None:
            y = F.identity(y)
            self.alive.append(y)
        return y.edge

    def _run(self, edges: Sequence[Value]) -> None:
        for node in capture(edges):
            if (id(node), 0) not in self.values:
                ys = self._say(node)
                for i, y in enumerate(ys):
                    self.values[id(node), i] = y
        for v in edges:
            if v.node is None and v.key not in self.values:
                self.values[v.key] = _constant(Variable.on(v))

    def _say(self, node: Node) -> Sequence[Variable]:
        """What the outputs of a node are now."""
        self._run([v for v in node.inputs if v is not None and v.node is None])
        xs = [None if v is None else self.values[v.key] for v in node.inputs]
        if not self._varies(node, xs):
            return self._folded(node, xs)
        if node.op.name in SAME and xs[0] is not None:
            return [xs[0]]
        if node.op.name == "batch_normalization":
            found = self._normalization(node, xs)
            if found is not None:
                return found
        call = self._call(node, xs)
        reason = self.target.refuses(call[0].edge.node, self._is_constant)  # type: ignore[arg-type]
        if reason is None:
            return call
        name = node.op.name
        own = [getattr(type(node.attrs), how, None) for how in ("decompose", "portable")]
        for rule in (self.target.rules.get(name), SIMPLER.get(name), *own):
            if rule is not None and self.depth < MAX_DEPTH:
                said = self._expanded(rule, node, xs)
                if said is not None:
                    return said
        self.problems.append(f"{node.label}: {reason}")
        return call

    def _call(self, node: Node, xs: Sequence[Variable | None]) -> list[Variable]:
        """The outputs, hidden ones too, of the same function of these inputs."""
        ys = apply(node.op, node.attrs, tuple(xs))
        found = list(ys) if isinstance(ys, tuple) else [ys]
        made = found[0].edge.node
        assert made is not None
        made.origin = node.origin
        self.alive.append(made)
        found += [
            Variable.on(Value.of(made, i, made.out_specs[i], False, made.outs[i]))  # type: ignore[index]
            for i in range(len(found), len(made.out_specs))
        ]
        self.computed.update(y.edge.key for y in found)
        return found

    def _expanded(
        self, rule: Rule, node: Node, xs: Sequence[Variable | None]
    ) -> list[Variable] | None:
        """What a rule says, in functions of the target; None if it has nothing to say here."""
        leaves = [None if x is None else _leaf(x) for x in xs]
        try:
            ys = rule(node.attrs, *leaves)
        except NotImplementedError:  # what `portable` says of some arguments
            return None
        if ys is None:
            return None
        ys = ys if isinstance(ys, tuple) else (ys,)
        self.alive.append((leaves, ys))
        for x, leaf in zip(xs, leaves, strict=True):
            if x is not None and leaf is not None:
                self.values[leaf.edge.key] = x
        edges = [y.edge for y in ys]
        for inner in capture(edges):
            inner.origin = node.origin
            for v in inner.inputs:
                if v is not None:
                    self.readers[v.key] = self.readers.get(v.key, 0) + 1
        self.depth += 1
        self._run(edges)
        self.depth -= 1
        return [self.values[e.key] for e in edges]

    def became(self) -> dict[Key, Value]:
        """What the edges of the network are now, by their keys."""
        return {key: v.edge for key, v in self.values.items()} | self.folded

    # ---- what is known before anything runs ----

    def _varies(self, node: Node, xs: Sequence[Variable | None]) -> bool:
        """Whether a node's value depends on an input, on open sizes, or on chance."""
        if id(node) in self.moving or node.op.takes_rng or node.op.written(node.attrs):
            return True
        return any(x is not None and not self._is_constant(x.edge) for x in xs)

    def _is_constant(self, v: Value) -> bool:
        return v.key not in self.computed

    def _folded(self, node: Node, xs: Sequence[Variable | None]) -> list[Variable]:
        arrays = [None if x is None else NdArray.from_numpy_array(x.data.read("host")) for x in xs]
        with using(auto_forward=True, make_nodes=False):
            ys = apply(node.op, node.attrs, tuple(arrays))
        found = ys if isinstance(ys, tuple) else (ys,)
        arrays = [y.data if isinstance(y, Variable) else y for y in found]
        return [Variable.from_numpy_array(nd.read("host")) for nd in arrays]

    def _normalization(self, node: Node, xs: Sequence[Variable | None]) -> list[Variable] | None:
        """A batch normalization by constants, as part of the weights of what is before it."""
        a = node.attrs
        x, beta, gamma, mean, variance = xs[:5]
        constants = [v for v in (beta, gamma, mean, variance) if v is not None]
        if a.batch_stat or x is None or mean is None or variance is None or len(a.axes) != 1:
            return None
        if not all(self._is_constant(v.edge) for v in constants):
            return None
        maker, before = x.edge.node, node.inputs[0]
        if maker is None or maker.op.name not in _WEIGHTS or before is None:
            return None
        axis = _WEIGHTS[maker.op.name]
        w, b = (*maker.inputs[1:3], None)[:2]
        if w is None or not all(self._is_constant(v) for v in (w, b) if v is not None):
            return None
        channel_last = getattr(maker.attrs, "channel_last", False)
        maps = maker.out_specs[0].shape[a.axes[0]]
        base = getattr(maker.attrs, "base_axis", 1)
        if self.readers.get(before.key, 2) > 1 or channel_last or a.axes[0] != base:
            return None
        if maker.op.name == "affine" and (len(w.spec.shape) != 2 or x.ndim != base + 1):
            return None
        if getattr(maker.attrs, "group", 1) != 1 and axis != 0:
            return None

        def number(v: Any, default: float) -> Any:
            one = np.full(maps, default) if v is None else v.data.read("host")
            return one.reshape(-1).astype(np.float64)

        scale = number(gamma, 1.0) / np.sqrt(number(variance, 1.0) + a.eps)
        shift = number(beta, 0.0) - number(mean, 0.0) * scale
        weight = w.array.read("host")
        shape = [1] * weight.ndim
        shape[axis] = maps
        bias = 0.0 if b is None else b.array.read("host")
        new = [
            Variable.from_numpy_array((weight * scale.reshape(shape)).astype(weight.dtype)),
            Variable.from_numpy_array((bias * scale + shift).astype(weight.dtype)),
        ]
        for v, now in zip((w, b), new, strict=True):
            if v is not None:
                self.folded[v.key] = now.edge
        return self._call(maker, [Variable.on(maker.inputs[0]), *new])  # type: ignore[arg-type]


# Functions with weights that a normalization may become part of: the axis of the maps.
_WEIGHTS = {"convolution": 0, "affine": 1, "deconvolution": 1, "depthwise_convolution": 0}
SAME = ("identity", "dropout")  # give their input unchanged when a network is used


def _leaf(x: Variable) -> Variable:
    """Something of the same shape, and of the type that networks compute with."""
    v = Variable(x.shape)
    if x.spec.dtype.kind not in "fV":
        v.data.set_spec(x.spec)
    return v


def _constant(x: Variable) -> Variable:
    """The same in float32, if it is a number of another size."""
    if x.spec.dtype.kind not in "fV" or x.spec.dtype == np.float32:
        return x
    return Variable.from_numpy_array(x.data.read("host").astype(np.float32))
