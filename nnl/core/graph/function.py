# SPDX-License-Identifier: Apache-2.0
"""Function: the user's view of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from nnl.core.arrays.array import NdArray
from nnl.core.graph.autodiff import _vjp, accumulate
from nnl.core.graph.dispatch import bind, execute
from nnl.core.graph.node import Node, Value
from nnl.core.graph.variable import Variable
from nnl.core.settings.context import EPOCH, STATE, Context, using

Key = tuple[int, int]


class Function:
    """A function that was applied: `variable.parent`, and what hooks and visit() are given.

    Attributes:
        info: type_name and args (attribute values by name).
        inputs, outputs: Variables on its edges.
        tags: A dictionary for the user.

    Args:
        edges: By key, edges of the graph: outputs that are among them are these, with their names
            and flags. A node does not know its outputs' edges.
    """

    __slots__ = ("node", "edges")

    def __init__(self, node: Node, edges: Mapping[Key, Value] | None = None) -> None:
        self.node, self.edges = node, edges or {}

    @property
    def name(self) -> str:
        """Type name as in .nnp files, for example "ReLU"; of a PythonFunction its name."""
        name: str = getattr(self.node.attrs, "type_name", self.node.op.type_name)
        return name

    @property
    def args(self) -> dict[str, Any]:
        """Attribute values by name, sequences as lists; of a PythonFunction none."""
        values = {} if hasattr(self.node.attrs, "type_name") else self.node.attrs.as_dict()
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    arguments = args

    @property
    def info(self) -> SimpleNamespace:
        """type_name, args and tags, as NNabla has them."""
        return SimpleNamespace(type_name=self.name, args=self.args, tags=self.tags)

    @property
    def inputs(self) -> list[Variable]:
        """Variables on the edges that it reads."""
        edges = self._edges()
        return [Variable.on(v) for v in edges[: len(edges) - self.node.op.takes_rng] if v]

    @property
    def outputs(self) -> list[Variable]:
        """Variables on the edges that it makes."""
        node, op = self.node, self.node.op
        n = len(node.out_specs) if op.visible == len(op.outputs) else op.visible
        outs = node.outs
        return [
            Variable.on(
                self.edges.get((id(node), i))
                or Value.of(node, i, s, bool(node.need_grad), outs[i] if outs else None)
            )
            for i, s in enumerate(node.out_specs[:n])
        ]

    @property
    def need_grad(self) -> bool:
        """Whether a gradient passes through it."""
        return bool(self.node.need_grad)

    @property
    def rank(self) -> int:
        """How many functions lie below it, on the longest way."""
        return self.outputs[0].rank - 1

    @property
    def tags(self) -> dict[str, Any]:
        """A dictionary for the user, which stays with the function."""
        if self.node.info is None:
            self.node.info = {}
        return self.node.info

    @tags.setter
    def tags(self, value: dict[str, Any]) -> None:
        self.node.info = value

    @property
    def context(self) -> Context:
        """The context in which it was called."""
        target = self.node.target
        return Context(target.names, device_id=target.device_id)

    def min_outputs(self) -> int:
        """The least number of outputs."""
        return 1

    def setup(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        """Infer the shapes of outputs from inputs."""
        for y, spec in zip(outputs, self._bind(inputs).out_specs, strict=False):
            y.reset_shape(spec.shape, force=True)

    def forward(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        """Compute outputs from inputs, outside of any graph."""
        self._run(inputs, outputs, _arrays(self._all(inputs)))

    def _run(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], arrays: list[Any]
    ) -> None:
        self._check_not_recording("forward")
        mine = self._kept()  # what only backward needs is that of the latest run
        for i, result in enumerate(execute(self._bind(inputs), arrays)):
            nd = outputs[i]._data if i < len(outputs) else mine.get(i)
            if nd is not None and (i < len(outputs) or nd.spec is result.spec):
                nd.become(result)

    def need_setup_recompute(self, o: int) -> bool:
        """Whether output o depends on a state that only setup_recompute() keeps."""
        return bool(self.node.op.takes_rng)

    def setup_recompute(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        """Before forward(): keep what recompute() needs, the state of random numbers."""
        if self.node.op.takes_rng:
            self.tags[_STATE] = _copy(self._all(inputs)[-1]._data)  # type: ignore[union-attr]

    def recompute(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        """Compute outputs again, without the effects of another forward(): running statistics stay,
        and random numbers are those that followed setup_recompute()."""
        arrays = _arrays(self._all(inputs))
        for i in self._bind(inputs).writes:
            arrays[i] = arrays[i] and _copy(arrays[i])
        state = self.tags.get(_STATE)
        if state is not None:
            arrays[-1] = _copy(state)
        self._run(inputs, outputs, arrays)

    def set_active_input_mask(self, mask: Sequence[bool]) -> None:
        """Leave inputs out of the next forward() and backward(), and all that only they need.

        Args:
            mask: For every input, whether it takes part.
        Raises:
            ValueError: The function cannot leave inputs out; or the mask has another length than
                the inputs, or no True.
        """
        name, edges = f"set_active_input_mask: {self.name}", self._edges()
        if not getattr(self.node.attrs, "skips_inputs", False) or self.node.outs is None:
            raise ValueError(
                f"{name} cannot leave inputs out, wanted AddN or MulN in a static graph"
            )
        mask = [bool(m) for m in mask]
        if len(mask) != len(edges) or not any(mask):
            raise ValueError(
                f"{name}: mask is {mask}, wanted {len(edges)} values, and at least one True"
            )
        self.tags[_ALL] = edges
        self.node.inputs = tuple([v for v, m in zip(edges, mask, strict=True) if m])
        EPOCH.advance()

    def _edges(self) -> tuple[Value | None, ...]:
        """The inputs, also those that are left out."""
        node = self.node
        edges: tuple[Value | None, ...] = (node.info or {}).get(_ALL, node.inputs)
        return edges

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
        self._check_not_recording("backward")
        xs = self._all(inputs)
        ys = self._results(self._bind(inputs), xs, outputs)
        node = Node.__new__(Node)
        node.op, node.attrs, node.target = self.node.op, self.node.attrs, self.node.target
        node.origin = self.node.origin
        node.inputs = tuple([None if x is None else Value.leaf(x._data, x.need_grad) for x in xs])
        node.out_specs = tuple([y.spec for y in ys])
        node.outs, node.live, node.saved = tuple(ys), None, None
        gys: list[Any] = [y.grad for y in outputs]
        gys += [None] * (len(ys) - len(gys))
        with using(make_nodes=False, auto_forward=True, target=node.target):
            gxs = _vjp(node, gys, False)
        there = [(x, g) for x, g in zip(xs, gxs, strict=False) if x is not None]
        for i, (x, g) in enumerate(there):
            if g is None or not x.need_grad:
                continue
            if accum is not None and not accum[i]:
                x.grad.zero()
            accumulate(x.grad, g, own=False)

    def _check_not_recording(self, method: str) -> None:
        if not STATE.interpreter.has_values:
            raise ValueError(
                f"{self.name}.{method}: nnl.compile is recording, and a function that computes at "
                "once would do so only now, not at every run: call the function on Variables"
            )

    def _kept(self) -> dict[int, NdArray]:
        """The arrays of outputs that the graph holds, by position."""
        node, op = self.node, self.node.op
        if node.outs is not None or node.saved is None or op.variadic_out:
            return dict(enumerate(node.outs or ()))
        saved = node.saved[len(op.kept_inputs) :]
        return {i: nd for (_, i), nd in zip(op.kept_outputs, saved, strict=True)}

    def _results(
        self, bound: Any, xs: Sequence[Variable | None], outputs: Sequence[Variable]
    ) -> list[NdArray]:
        """All outputs as backward sees them.

        A function that draws numbers or updates statistics does not run again: its outputs are
        those given, and what the graph holds of the others. They are computed where there are none.
        """
        if bound.writes:
            known = {**self._kept(), **{i: y._data for i, y in enumerate(outputs)}}
            missing = [NdArray.unwritten(s) for s in bound.out_specs]
            ys = [known.get(i, nd) for i, nd in enumerate(missing)]
            needed = [(ys[i], bound.out_specs[i]) for _, i in self.node.op.kept_outputs]
            if all(nd.written and not nd.clear_called and nd.spec is s for nd, s in needed):
                return ys
        return execute(bound, _arrays(xs))

    def _all(self, inputs: Sequence[Variable]) -> list[Variable | None]:
        """The inputs with None for those that were left out, and the state of random numbers."""
        edges = self._edges()
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
        if edges is not self.node.inputs:
            return [x for x, v in zip(xs, edges, strict=True) if v in self.node.inputs]
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


_STATE, _ALL = "state before forward", "all inputs"  # what tags hold beside the user's


def _arrays(xs: Sequence[Variable | None]) -> list[Any]:
    return [None if x is None else x._data for x in xs]


def _copy(nd: NdArray) -> NdArray:
    return NdArray.unwritten(nd.spec).copy_from(nd)
