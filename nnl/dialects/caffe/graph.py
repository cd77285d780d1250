# SPDX-License-Identifier: Apache-2.0
"""The graph of some layers of a network, whose forward and backward passes run apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import nnl.functions as F
from nnl.core.arrays.array import NdArray
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable, forward_all
from nnl.core.interpreters.switches import auto_forward
from nnl.dialects.caffe.layer import Layer
from nnl.graph.open_sizes.at_most import counted, rows_of
from nnl.workspace import Tensor

if TYPE_CHECKING:
    from nnl.dialects.caffe.net import Net


class Graph:
    """The graph of some layers: what is computed, of what, and what a backward pass begins with.

    Attributes:
        values: Of tensors, as Variables.
        leaves: Those of them that are given.
        heads: What no layer in it reads, or is part of the loss.
        total: Sum of the heads times their gradients; None where nothing can be learned.
        updates: (parameter, its next value).
    """

    def __init__(self, net: Net, layers: Sequence[Layer]) -> None:
        operators, visible = [], {*net.blobs.values(), *net.ends.values()}
        wanted: set[Tensor] = set()
        for layer in reversed(layers):
            wanted |= {t for _, t in layer.updates}
            for op in reversed(layer.operators):
                if any(t in wanted or t in visible for t in op.outputs):
                    operators.append(op)
                    wanted.update(op.tensors)
        self.values: dict[Tensor, Variable] = {}
        self.leaves: dict[Tensor, Variable] = {}
        inputs = {t for layer in net.layers for t in layer.tops if t.operator is None}
        made: set[Tensor] = set()
        with auto_forward(False):
            for op in reversed(operators):
                for t in op.tensors:
                    if t not in self.values:
                        self._leaf(net, t, t not in inputs or net.message.force_backward)
                for t, v in zip(op.outputs, op.results(self.values), strict=False):
                    if not isinstance(v, Variable):
                        v = Variable.from_numpy_array(v)
                    self.values[t] = v
                    made.add(t)
            self.updates = [(p, self.values[t]) for layer in layers for p, t in layer.updates]
            read = {t for op in operators for t in op.tensors}
            states = {t for layer in layers for _, t in layer.updates}
            self.heads = [
                t for t in self.values
                if t in made and t not in states and (t not in read or t in net.loss_weights)
                and t in visible
            ]  # fmt: skip
            self.ends = [self.values[t] for t in self.values if t in made and t not in read]
            sums = [
                F.sum(self.values[t] * self._start(net, t))
                for t in self.heads
                if self.values[t].need_grad
            ]
            self.total = F.add_n(*sums) if len(sums) > 1 else sums[0] if sums else None
            self.counts = {}
            for t in visible & made:
                c = counted(self.values[t].edge)
                if c is not None:
                    self.counts[t] = Variable.on(c.number), c.axis
        self.has_run = False

    def _leaf(self, net: Net, t: Tensor, need_grad: bool) -> None:
        parameter = net.workspace.parameter(t.key)
        if parameter is not None:
            self.values[t] = parameter
            return
        nd = net.value(t)
        v = Variable.of_edge(Value.leaf(nd, need_grad), nd)
        self.values[t] = self.leaves[t] = v

    def _start(self, net: Net, t: Tensor) -> Variable:
        nd = net.start(t)
        return Variable.of_edge(Value.leaf(nd, False), nd)

    def run(self, net: Net) -> None:
        """Compute everything."""
        for t, v in self.leaves.items():
            nd = net.value(t)
            if nd is not v.data:
                v.data = nd
        ends = [*self.ends, *(c for c, _ in self.counts.values())]
        forward_all([*ends, self.total] if self.total is not None else ends)
        values = net.workspace.values
        for t, v in self.values.items():
            if t in self.counts:
                count, axis = self.counts[t]
                values[t.key] = NdArray.from_numpy_array(rows_of(t.name, v.d, count.d, axis))
            elif t.operator is not None:
                values[t.key] = v.data
        self.has_run = True
