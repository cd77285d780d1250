# SPDX-License-Identifier: Apache-2.0
"""What nnl.compile records of a call, and that as a plan which runs for other arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any

import numpy as np

from nnl.core.arguments.origin import at
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import Spec
from nnl.core.graph.node import Node, Value, capture
from nnl.core.graph.variable import Variable
from nnl.core.settings.context import EPOCH, using
from nnl.graph.execution.session import fingerprint
from nnl.graph.lowering.binding import Binding
from nnl.graph.lowering.infer_again import infer_again
from nnl.graph.lowering.lowering import lower
from nnl.graph.plan.plan import Plan
from nnl.graph.plan.recompute import insert_recomputation
from nnl.graph.program.program import Program
from nnl.graph.recording.recorder import Recorder
from nnl.graph.saving.saving import Saver, unique

NO_SHAPES: Mapping[str, Sequence[int]] = {}
NO_ARRAYS: Mapping[int, NdArray] = {}


class Recording:
    """One recorded call: its graph, the leaves for the arguments, and where results go.

    Args:
        shapes: {name of an argument: another shape than it has}.
    Attributes:
        names, holes: Of the arguments that are arrays.
        boundary: Number of the graph where its second part begins; 0: there is none.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        args: tuple[Any, ...],
        kw: dict[str, Any],
        shapes: Mapping[str, Sequence[int]] = NO_SHAPES,
    ) -> None:
        recorder = Recorder()
        self.holes: list[Variable] = []
        self.names: list[str] = []

        def hole(x: Any, name: str) -> Any:
            if not isinstance(x, (Variable, NdArray)):
                return x
            nd = NdArray.unwritten(x.spec.with_shape(shapes[name]) if name in shapes else x.spec)
            need = isinstance(x, Variable) and x.need_grad
            self.names.append(name)
            self.holes.append(Variable.of_edge(Value.leaf(nd, need), nd))
            return self.holes[-1]

        with using(interpreter=recorder, make_nodes=True):
            named = [hole(a, n) for a, n in zip(args, argument_names(f, len(args)), strict=True)]
            self.result = f(*named, **{k: hole(v, k) for k, v in kw.items()})
        self.outputs = _variables(self.result)
        self.grads = [(nd, g) for nd, g in recorder.grads.values() if g is not None]
        self.zeroed = [nd for nd, g in recorder.grads.values() if g is None]
        kept = [v.edge for v in self.outputs] + [g.edge for _, g in self.grads]
        self.ends = kept + recorder.effects  # what writes state runs; nobody keeps its results
        self.boundary = recorder.boundary
        self.kept = {v.key for v in kept}
        self.tiled = {g.edge.key: None for _, g in self.grads}
        self.take()

    def take(self) -> None:
        """Note the nodes of the graph, and what a plan of them depends on."""
        self.nodes = nodes = capture(self.ends)
        infer_again(nodes)
        self.epoch, self.print = EPOCH.now, fingerprint(nodes, self.ends)
        # passes may treat what comes after the first backward() as the second part of a step
        self.cut = sum(n.seq <= self.boundary for n in nodes) if self.boundary else None
        self.laid_out = False

    def lay_out(self) -> list[Node]:
        """The nodes in the order that they run, with those that are computed again in backward."""
        if self.cut is not None and not self.laid_out:
            second = insert_recomputation(self.nodes[: self.cut], self.nodes[self.cut :])
            self.nodes[self.cut :] = second
            self.print = fingerprint(self.nodes, self.ends)
        self.laid_out = True
        return self.nodes

    def valid(self) -> bool:
        """Whether no flag, shape or dtype of the recorded graph has changed since."""
        if self.epoch != EPOCH.now:
            if fingerprint(self.nodes, self.ends) != self.print:
                return False
            self.epoch = EPOCH.now
        return True

    def lower(self) -> tuple[Program, Binding]:
        """The program of it, which no pass has changed."""
        return lower(self.lay_out(), self.kept, self.cut, self.kept, self.tiled)

    def finish(self, name: str, program: Program, binding: Binding) -> None:
        """Let a program say what it returns and hands on to its next run: gradients."""
        for key, v in _named("y", self.result).items():
            if v.edge.key not in binding.slot_of:
                raise ValueError(f"save: {name} returns {key!r}, which no function computes")
            program.outputs[key] = binding.slot_of[v.edge.key]
        slots = {id(nd): i for i, nd in binding.arrays.items()}
        for nd, g in self.grads:
            if id(nd) in slots and g.edge.key in binding.slot_of:
                program.carries[slots[id(nd)]] = binding.slot_of[g.edge.key]
        for nd in self.zeroed:
            if id(nd) in slots:
                program.carries[slots[id(nd)]] = 0

    @property
    def inputs(self) -> dict[int, str]:
        """{id of the array of an argument: its name}"""
        return {id(v._data): key for key, v in zip(self.names, self.holes, strict=True)}

    def network(self, name: str) -> tuple[dict[str, Variable], dict[str, Variable]]:
        """What is given and what is returned, by name.

        Raises:
            ValueError: The call, of the function of this name, does more than to compute that.
        """
        found = _named("y", self.result)
        computed = capture([v.edge for v in found.values()])
        known = {id(n) for n in computed}
        more = [n for n in self.nodes if id(n) not in known or n.op.name == "store"]
        does = ""
        if self.grads or self.zeroed:
            does = "computes gradients"
        elif more:
            does = f"writes arrays, at {at(more[0].op.name, more[0].origin)}"
        elif not computed:
            does = "returns nothing that a function computes"
        if does:
            raise ValueError(
                f"save: {name} {does}, which is no network: save it as .nnlp, or record a function "
                "of the forward pass alone"
            )
        inputs = dict(zip(self.names, self.holes, strict=True))
        outputs: dict[str, Variable] = {}
        for key, v in found.items():
            outputs[unique(key, {*inputs, *outputs})] = v
        return inputs, outputs


class Compiled:
    """A recorded call as a plan.

    Args:
        other: {id of an array of the recording: the one that this plan has in its place}.
    """

    def __init__(
        self, recorded: Recording, plan: Plan, other: Mapping[int, NdArray] = NO_ARRAYS
    ) -> None:
        self.recorded, self.plan, self.other, self.lock = recorded, plan, other, RLock()
        self.valid = recorded.valid
        self.holes = [other.get(id(v._data), v._data) for v in recorded.holes]
        self.grads = [(other.get(id(nd), nd), g) for nd, g in recorded.grads]
        self.zeroed = [other.get(id(nd), nd) for nd in recorded.zeroed]
        # gradients of arguments that the function has asked for or computed, at their places
        asked = ((i, v.edge.own_grad) for i, v in enumerate(recorded.holes))
        self.asked = [(i, other.get(id(nd), nd)) for i, nd in asked if nd is not None]
        self.saved: tuple[Program, Binding] | None = None
        slots = [plan.slot_of.get(g.edge.key, 0) for _, g in self.grads]
        made = {s for step in plan.steps for s in step.outs if s not in plan.root}
        theirs = {id(nd) for _, nd in self.asked}  # may outlive this run: no buffer of the plan
        self.own = [
            s in made and slots.count(s) == 1 and id(nd) not in theirs
            for s, (nd, _) in zip(slots, self.grads, strict=True)
        ]
        # gradients that the run reads from the buffer it would write the new value to
        leaves = {id(nd) for _, nd, *_ in (*plan.binding.given, *plan.binding.ordered)}
        self.added_to = [
            (nd, g.edge.key)
            for (nd, g), own in zip(self.grads, self.own, strict=True)
            if own and id(nd) in leaves
        ]

    @classmethod
    def of(cls, f: Callable[..., Any], args: tuple[Any, ...], kw: dict[str, Any]) -> Compiled:
        """Record a call at the shapes of its arguments."""
        r = Recording(f, args, kw)
        return cls(r, Plan(r.lay_out(), r.kept, r.cut, gradients=r.tiled))

    def run(self, given: list[Variable | NdArray]) -> Any:
        with self.lock:  # all threads use the plan's buffers
            return self._run(given)

    def _run(self, given: list[Variable | NdArray]) -> Any:
        plan = self.plan
        for hole, a in zip(self.holes, given, strict=True):
            nd = a if isinstance(a, NdArray) else a._data
            if hole.bufs is not nd.bufs:
                hole.become(nd)
        for i, mine in self.asked:
            a = given[i]
            if isinstance(a, Variable) and mine.bufs is not a.grad.bufs:
                mine.become(a.grad)
        for nd, key in self.added_to:
            space, buf = plan.published(plan.slot_of[key])
            if space in nd.bufs and nd.bufs[space] is buf:
                nd.write(space, buf.copy())
        plan.run_both()
        for (nd, g), own in zip(self.grads, self.own, strict=True):
            slot, spec = plan.slot_of.get(g.edge.key), g.spec
            if slot is None:
                found = plan.space, self._leaf(g).read(plan.space)
            else:
                found, spec = plan.published(slot), self._spec(g, slot)
            space, buf = found
            if spec.is_half:  # as in accumulate()
                spec = spec.with_dtype(np.float32)
                buf, own = buf.astype(np.float32), True
            nd.spec = spec
            nd.write(space, buf if own else buf.copy())
        for nd in self.zeroed:
            nd.zero()
        return _rebuild(self.recorded.result, self._copy)

    def add_to(self, saver: Saver, name: str) -> None:
        """Add the program of this call to a file: gradients that it adds to are handed on.

        It is made at the first save; the next ones take as long as it takes to write arrays.
        """
        with self.lock:
            if self.saved is None:
                self.saved = self.recorded.lower()
            self.recorded.finish(name, *self.saved)
            saver.add(name, *self.saved, self.recorded.inputs)

    def network(self, name: str) -> tuple[dict[str, Variable], dict[str, Variable]]:
        """What is given and what is returned; see Recording."""
        return self.recorded.network(name)

    def _leaf(self, v: Variable) -> NdArray:
        return self.other.get(id(v._data), v._data)

    def _spec(self, v: Variable, slot: int) -> Spec:
        spec, shape = v.spec, self.plan.program.slots[slot].spec.shape
        return spec if spec.shape == shape else spec.with_shape(shape)

    def _copy(self, v: Variable) -> Variable:
        slot = self.plan.slot_of.get(v.edge.key)
        if slot is None:
            leaf = self._leaf(v)
            spec, value = leaf.spec, leaf.read(self.plan.space)
        else:
            spec, value = self._spec(v, slot), self.plan.slots[slot]
        nd = NdArray.holding(spec, self.plan.space, value.copy())
        return Variable.of_edge(Value.leaf(nd), nd)


def argument_names(f: Callable[..., Any], count: int) -> list[str]:
    """Names of the first arguments of a function; "x3" where it does not say."""
    code = getattr(f, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    if getattr(f, "__self__", None) is not None:  # of a method, which has its object already
        names = names[1:]
    return [*names[:count], *(f"x{i}" for i in range(len(names[:count]), count))]


def _variables(result: Any) -> list[Variable]:
    if isinstance(result, Variable):
        return [result]
    if isinstance(result, dict):
        return [v for r in result.values() for v in _variables(r)]
    if isinstance(result, (tuple, list)):
        return [v for r in result for v in _variables(r)]
    return []


def _named(name: str, result: Any) -> dict[str, Variable]:
    """The Variables in a result by name: "y", "y/0", "y/loss"; a dictionary's by their keys."""
    if isinstance(result, Variable):
        return {name: result}
    if isinstance(result, dict):
        return {k: v for key, r in result.items() for k, v in _named(str(key), r).items()}
    if isinstance(result, (tuple, list)):
        parts = enumerate(result)
        return {k: v for n, r in parts for k, v in _named(f"{name}{n}", r).items()}
    return {}


def _rebuild(result: Any, f: Callable[[Variable], Variable]) -> Any:
    """The result with f applied to every Variable in it."""
    if isinstance(result, Variable):
        return f(result)
    if isinstance(result, dict):
        return {k: _rebuild(r, f) for k, r in result.items()}
    if isinstance(result, (tuple, list)):
        return type(result)([_rebuild(r, f) for r in result])
    return result
