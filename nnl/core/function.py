# SPDX-License-Identifier: Apache-2.0
"""Function: the user's view of a node."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from nnl.core import callback
from nnl.core.context import Context, using
from nnl.core.dispatch import bind, execute
from nnl.core.graph import Node, Value
from nnl.core.variable import Variable


class Function:
    """A function that was applied: `variable.parent`, and what hooks and visit() are given.

    Attributes:
        info: type_name and args (attribute values by name).
        inputs, outputs: Variables on its edges.
        tags: A dictionary for the user.
    """

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node

    @property
    def name(self) -> str:
        """Type name as in .nnp files, for example "ReLU"; of a PythonFunction its name."""
        op = self.node.op
        return getattr(self.node.attrs, "type_name", None) or op.nnp or op.name

    @property
    def args(self) -> dict[str, Any]:
        """Attribute values by name, sequences as lists."""
        values = self.node.attrs.as_dict()
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    arguments = args

    @property
    def info(self) -> SimpleNamespace:
        return SimpleNamespace(type_name=self.name, args=self.args, tags=self.tags)

    @property
    def inputs(self) -> list[Variable]:
        n = len(self.node.inputs) - self.node.op.takes_rng
        return [Variable.on(v) for v in self.node.inputs[:n] if v is not None]

    @property
    def outputs(self) -> list[Variable]:
        node, op = self.node, self.node.op
        n = len(node.out_specs) if op.visible == len(op.outputs) else op.visible
        outs = node.outs
        return [
            Variable.on(Value.of(node, i, s, bool(node.need_grad), outs[i] if outs else None))
            for i, s in enumerate(node.out_specs[:n])
        ]

    @property
    def need_grad(self) -> bool:
        return bool(self.node.need_grad)

    @property
    def rank(self) -> int:
        return self.outputs[0].rank - 1

    @property
    def tags(self) -> dict[str, Any]:
        if self.node.info is None:
            self.node.info = {}
        return self.node.info

    @tags.setter
    def tags(self, value: dict[str, Any]) -> None:
        self.node.info = value

    @property
    def context(self) -> Context:
        target = self.node.target
        return Context(target.names, device_id=target.device_id)

    def min_outputs(self) -> int:
        return 1

    def setup(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        """Infer the shapes of outputs from inputs."""
        for y, spec in zip(outputs, self._bind(inputs).out_specs, strict=False):
            y.reset_shape(spec.shape, force=True)

    def forward(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        """Compute outputs from inputs, outside of any graph."""
        ys = execute(self._bind(inputs), _arrays(self._all(inputs)))
        for y, result in zip(outputs, ys, strict=False):
            y._data.spec, y._data.bufs = result.spec, result.bufs

    def backward(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        accum: Sequence[bool] | None = None,
    ) -> None:
        """Write the gradients of inputs from those of outputs.

        Args:
            accum: Per input, whether to add to the gradient it has (if left out, to all of them).
                False overwrites.
        """
        xs = self._all(inputs)
        ys = execute(self._bind(inputs), _arrays(xs))
        node = Node.__new__(Node)
        node.op, node.attrs, node.target = self.node.op, self.node.attrs, self.node.target
        node.origin = self.node.origin
        node.inputs = tuple([None if x is None else Value.leaf(x._data, x.need_grad) for x in xs])
        node.out_specs = tuple([y.spec for y in ys])
        node.outs, node.saved = tuple(ys), None
        from nnl.core.autodiff import _vjp, accumulate

        gys: list[Any] = [y.grad for y in outputs]
        gys += [None] * (len(ys) - len(gys))
        with using(record=False, auto_forward=True, target=node.target):
            gxs = _vjp(node, gys, False)
        there = [(x, g) for x, g in zip(xs, gxs, strict=False) if x is not None]
        for i, (x, g) in enumerate(there):
            if g is None or not x.need_grad:
                continue
            if accum is not None and not accum[i]:
                x.grad.zero()
            accumulate(x.grad, g, own=False)

    def _all(self, inputs: Sequence[Variable]) -> list[Variable | None]:
        """The inputs with None for those that were left out, and the state of random numbers."""
        edges = self.node.inputs
        n = len(edges) - self.node.op.takes_rng
        wanted = [v is not None for v in edges[:n]]
        given = [x for x in inputs if x is not None]
        if len(given) != sum(wanted):
            raise ValueError(
                f"{self.name}: inputs has {len(given)} Variables, wanted the {sum(wanted)} that "
                "the function was called with"
            )
        left = iter(given)
        xs = [next(left) if there else None for there in wanted]
        return xs + [None if v is None else Variable.on(v) for v in edges[n:]]

    def _bind(self, inputs: Sequence[Variable]) -> Any:
        specs = tuple([None if x is None else x.spec for x in self._all(inputs)])
        return bind(self.node.op, self.node.attrs, self.node.target, specs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Function) and other.node is self.node

    def __hash__(self) -> int:
        return hash(self.node)

    def __repr__(self) -> str:
        return f"<Function {self.name} {self.args}>"


def _arrays(xs: Sequence[Variable | None]) -> list[Any]:
    return [None if x is None else x._data for x in xs]


callback.HOOKS.wrap = Function
