# SPDX-License-Identifier: Apache-2.0
"""Graphs at any batch size, made of one that was recorded at one.

Which numbers of such a graph are the batch size, nothing says. What a function infers from its
inputs follows by itself; the shape that a reshape is told follows from where the elements of a
sample lie. A constant may hold the batch size in its shape, or just have an axis of that size: one
of the two fits what is done with it, so the choices are tried in turn, the last one changed first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.graph.casts import widened
from nnl.core.graph.node import Node, Value, capture
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS
from nnl.core.settings.context import using

Key = tuple[int, int]
Shape = tuple[int, ...]
_TRIES = 1000  # changed choices before giving up
_TRIED = 101  # by which the batch size is larger that is tried first: no other size is that
_MADE = ("constant", "rand", "randn", "randint", "rand_binomial", "rand_beta", "rand_gamma")
_PICKING = {  # which inputs are the data and the indices
    "gather": (0, 1),
    "gather_nd": (0, 1),
    "take_along": (0, 1),
    "embed": (1, 0),
}


class At(NamedTuple):
    """A value at two batch sizes.

    Attributes:
        old: Its shape in the graph that is known.
        new: It, at another batch size.
        inner: How many neighbours along the batch axis belong to one sample: a merged axis (N, 3)
            has 3, (3, N) has 1.
    """

    old: Shape
    new: Value
    inner: int = 1

    @property
    def shape(self) -> Shape:
        """Its shape at the other batch size."""
        return self.new.current_spec.shape

    @property
    def moving(self) -> list[int]:
        """Axes whose size depends on the batch."""
        return [i for i, (a, b) in enumerate(zip(self.old, self.shape, strict=True)) if a != b]

    def reshaped_axis(self, shape: Shape, batch: int) -> tuple[int, int] | None:
        """Where the batch goes when it is reshaped: its axis, and its `inner` there.

        Elements of one sample that are neighbours in memory stay so. Where that leaves a choice, as
        a batch size of 1 may, the batch gets an axis of its own, the first one possible.
        """
        if len(self.moving) != 1:
            return None
        if 0 in shape:  # of no elements
            same = [i for i, n in enumerate(shape) if n == self.old[self.moving[0]]]
            return (same[0], self.inner) if same else None
        row = self.inner * prod(self.old[self.moving[0] + 1 :])
        found = []
        for i, n in enumerate(shape):
            tail = prod(shape[i + 1 :])
            inner = row // tail if row % tail == 0 else 0
            if inner and n % (batch * inner) == 0:
                found.append((n // (batch * inner), i, inner))
        return min(found)[1:] if found else None


Given = Sequence[At | None]


class AnyBatch:
    """A graph at any batch size.

    Args:
        outputs, inputs: Of the graph that is known, by name.
        axes: The batch axis of inputs that have one.
        parameters: Leaves that have none.
    Raises:
        ValueError: A function does not take another batch size.
    """

    def __init__(
        self,
        outputs: Mapping[str, Variable],
        inputs: Mapping[str, Variable],
        axes: Mapping[str, int],
        parameters: Collection[Key],
    ) -> None:
        self.outputs, self.inputs, self.axes = outputs, inputs, axes
        self.parameters = parameters
        self.batch = next(inputs[n].shape[axis] for n, axis in axes.items())
        nodes = capture([v.edge for v in outputs.values()])
        self.steps = list(in_order(nodes, {v.edge.key for v in inputs.values()}))
        self.names = {v.key: v.name for n in nodes for v in n.inputs if v is not None and v.name}
        self.chosen: dict[int, int | None] = {}
        self.open: dict[int, list[int | None]] = {}  # what a step may still be changed to
        self.at(self.batch + _TRIED)

    def at(self, batch: int) -> tuple[dict[str, Variable], dict[str, Variable]]:
        """Outputs and inputs at a batch size."""
        self.now, given = batch, {}
        self.values: dict[Key, At] = {}
        for name, v in self.inputs.items():
            shape = [batch if i == self.axes.get(name) else n for i, n in enumerate(v.shape)]
            given[name] = x = Variable(shape)
            x.data.set_spec(v.spec.with_shape(shape))
            self.values[v.edge.key] = At(v.shape, x.edge)
        self.derived = {k for k, x in self.values.items() if x.moving}  # from the batch
        i = tries = 0
        while i < len(self.steps):
            step = self.steps[i]
            try:
                if isinstance(step, Value):
                    self._leaf(i, step)
                else:
                    self._node(i, step)
                i += 1
            except ValueError as e:
                tries += 1
                earlier = self._suspect(i)
                if earlier is None or tries > _TRIES:
                    raise ValueError(
                        f"{self.steps[i].op.name} does not take another batch size than "
                        f"{self.batch} ({e})"
                    ) from None
                self.chosen[earlier] = self.open[earlier].pop(0)
                for j in range(earlier + 1, i + 1):
                    self.chosen.pop(j, None)
                i = earlier
        ends = {n: self.values[v.edge.key].new for n, v in self.outputs.items()}
        return {n: Variable.on(v) for n, v in ends.items()}, given

    def _choice(self, i: int, options: Sequence[int | None]) -> int | None:
        if i not in self.chosen:
            self.chosen[i], *self.open[i] = options
        return self.chosen[i]

    def _leaf(self, i: int, leaf: Value) -> None:
        """A constant, which may be the same for every sample along one axis."""
        shape, value = leaf.current_spec.shape, None
        options: list[int | None] = [None]
        if leaf.key not in self.parameters and self.batch in shape:
            value = leaf.array.read("host")
            for axis, n in enumerate(shape):
                first = np.repeat(value.take([0], axis), n, axis)
                if n == self.batch and np.array_equal(value, first, equal_nan=True):
                    options.append(axis)
        axis = self._choice(i, options)
        new = leaf
        if axis is not None:
            same = np.repeat(value.take([0], axis), self.now, axis)  # type: ignore[union-attr]
            new = Value.leaf(NdArray.from_numpy_array(same))
            new.name = leaf.name
        self.values[leaf.key] = At(shape, new)

    def _node(self, i: int, node: Node) -> None:
        op, attrs = node.op, node.attrs
        given: list[At | None] = [
            None if v is None else self.values.get(v.key) for v in node.inputs
        ]
        if op.name == "concatenate":
            _stretch(attrs.axis, given)
        told = _told(op.name, attrs, given, self.batch, self.now)
        axis = self._choice(i, _candidates(op.name, attrs, given, self.batch))
        if axis is not None:
            shape = told.get("shape", attrs.shape)
            told["shape"] = (*shape[:axis], self.now, *shape[axis + 1 :])
        if told:
            attrs = op.attrs(**{**attrs.as_dict(), **told})
        edges = [v if x is None else x.new for v, x in zip(node.inputs, given, strict=True)]
        new = _recorded(node, attrs, edges)
        for k, spec in enumerate(node.out_specs):
            y = At(spec.shape, Value.of(new, k, new.out_specs[k], False, new.outs[k]))  # type: ignore[index]
            y.new.name = self.names.get((id(node), k), "")
            self.values[id(node), k] = y._replace(inner=self._inner(op.name, given, y))
        self._check_samples(node, given)

    def _inner(self, name: str, given: Given, y: At) -> int:
        """`inner` of an output: as in the input that its batch axis comes from."""
        if len(y.moving) != 1:
            return 1
        x = given[0] if given else None
        if name == "reshape" and x is not None:
            found = x.reshaped_axis(y.old, self.batch)
            return 1 if found is None else found[1]
        size = y.old[y.moving[0]]
        for x in given:
            if x is not None and any(x.old[i] == size for i in x.moving):
                return x.inner
        return max(size // self.batch, 1)

    def _check_samples(self, node: Node, given: Given) -> None:
        """Raise if a function picks samples by numbers of the program's own: they may be those of
        all samples there are, and then are others at another batch size."""
        outs = [(id(node), k) for k in range(len(node.out_specs))]
        moves = any(x is not None and x.moving for x in given)
        if moves or any(v.key in self.derived for v in node.inputs if v is not None):
            self.derived.update(outs)
        else:
            self.derived.difference_update(outs)
        ends = any(self.values[key].moving for key in outs)
        if self._picks_samples(node, given) or (node.op.name == "slice" and moves and not ends):
            raise ValueError("it picks the same samples at any batch size")

    def _picks_samples(self, node: Node, given: Given) -> bool:
        """Whether indices that do not follow from the batch choose among its samples."""
        which = _PICKING.get(node.op.name)
        if which is None:
            return False
        data, indices = (given[i] for i in which)
        chosen = node.inputs[which[1]]
        if data is None or indices is None or chosen is None or chosen.key in self.derived:
            return False
        if node.op.name == "gather_nd":
            picked = range(indices.old[0])
        else:
            axis = (getattr(node.attrs, "axis", 0) or 0) % len(data.old)
            picked = range(axis, axis + 1)
        return any(i in picked for i in data.moving)

    def _suspect(self, i: int) -> int | None:
        """The last step that step i depends on and that may be changed."""
        step = self.steps[i]
        before = [*capture(step.inputs), step] if isinstance(step, Node) else []
        seen = {id(n) for n in before} | {v.key for n in before for v in n.inputs if v is not None}
        for j in range(i, -1, -1):
            if self.open.get(j) and getattr(self.steps[j], "key", id(self.steps[j])) in seen:
                return j
        return None


def in_order(nodes: Sequence[Node], inputs: Collection[Key]) -> Iterator[Node | Value]:
    """Nodes, and every leaf before the first one that reads it."""
    seen = set(inputs)
    for node in nodes:
        for i, v in enumerate(node.inputs):
            rng = node.op.takes_rng and i == len(node.inputs) - 1
            if v is not None and v.node is None and v.key not in seen and not rng:
                seen.add(v.key)
                yield v
        yield node


def _recorded(node: Node, attrs: Any, edges: Sequence[Value | None]) -> Node:
    """The node with other attributes and inputs.

    Raises:
        ValueError: The function does not take these.
    """
    specs = [None if v is None else v.current_spec for v in edges]
    with using(target=node.target):
        out = attrs.infer(*widened(node.op, specs))
    outs = out if isinstance(out, tuple) else (out,)
    if len(outs) != len(node.out_specs):
        raise ValueError("the number of its outputs depends on it")
    new = Node()
    new.op, new.attrs, new.inputs, new.target = node.op, attrs, tuple(edges), node.target
    pairs = zip(outs, node.out_specs, strict=True)
    new.out_specs = tuple([s.with_dtype(old.dtype) for s, old in pairs])
    new.outs = tuple([NdArray.unwritten(s) for s in new.out_specs])
    new.live = new.saved = new.grads = None
    new.need_grad, new.info, new.origin, new.seq = None, node.info, node.origin, Node.number()
    return new


def _told(name: str, attrs: Any, given: Given, batch: int, now: int) -> dict[str, Any]:
    """Attributes that the user's program would have given at another batch size."""
    x = given[0] if given else None
    if x is None:
        return {}
    if name == "reshape":
        found = x.reshaped_axis(attrs.shape, batch)
        if found is None:
            return {}
        axis = found[0]
        size = attrs.shape[axis] // batch * now
        return {"shape": (*attrs.shape[:axis], size, *attrs.shape[axis + 1 :])}
    if name == "broadcast" or (name == "onnx_resize" and attrs.sizes):
        field = "shape" if name == "broadcast" else "sizes"
        sizes = list(getattr(attrs, field))
        lead = len(sizes) - len(x.old)
        for i in x.moving:
            sizes[lead + i] = x.shape[i] if sizes[lead + i] == x.old[i] else sizes[lead + i]
        return {field: tuple(sizes)}
    if name == "slice":
        start, stop = list(attrs.start), list(attrs.stop)
        lead = len(x.old) - len(stop)
        for i in [i - lead for i in x.moving if i >= lead]:
            n, size = x.old[lead + i], x.shape[lead + i]
            if attrs.step[i] > 0 and stop[i] >= n:
                stop[i] = size
            if attrs.step[i] < 0:
                start[i] = size - 1 if start[i] >= n - 1 else start[i]
                stop[i] = -size - 1 if stop[i] < -n else stop[i]
        return {"start": tuple(start), "stop": tuple(stop)}
    return {}


def _candidates(name: str, attrs: Any, given: Given, batch: int) -> list[int | None]:
    """Axes that a function without batch may have made of the batch size, likely ones first."""
    if name == "broadcast":
        x = given[0]
        if x is None or x.moving:
            return [None]
        lead = len(attrs.shape) - len(x.old)
        stretched = [i for i in range(len(attrs.shape)) if i < lead or x.old[i - lead] == 1]
    elif name in _MADE:
        stretched = list(range(len(attrs.shape)))
    else:
        return [None]
    axes: list[int | None] = [i for i in stretched if attrs.shape[i] == batch]
    return [*axes, None] if batch > 1 else [None, *axes]


def _stretch(axis: int, given: list[At | None]) -> None:
    """Let inputs of a concatenation follow the batch of the others.

    At a batch size of 1 a constant may stand beside a batch (a class token beside patches); what
    the program had to do to stretch it, F.broadcast, is nothing at that size and leaves no node.
    """
    moving = {
        i: x.shape[i]
        for x in given
        if x is not None
        for i in x.moving
        if i != axis and 1 in (x.old[i], x.shape[i])
    }
    for k, x in enumerate(given):
        if x is not None and any(x.old[i] == x.shape[i] for i in moving):
            shape = tuple([moving.get(i, n) for i, n in enumerate(x.shape)])
            with using(auto_forward=False, no_grad=True):
                given[k] = At(x.old, OPS["broadcast"](Variable.on(x.new), shape=shape).edge)
