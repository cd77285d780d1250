# SPDX-License-Identifier: Apache-2.0
"""Following the batch size through a graph, with the choices that constants leave.

A constant array, or one that a program has made with F.constant or F.broadcast, may hold the batch
size in its shape, or may just have an axis of that size. Nothing says which, but one of the two
fits what is done with it: the choices are tried in turn, the last one changed first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from nnl.converters.onnx.errors import OnnxError
from nnl.converters.onnx.export_batch import (
    candidates,
    inferred,
    inner_of,
    moved_attributes,
    moving_axes,
    stretched,
)
from nnl.converters.onnx.export_tensor import Shape, Tensor
from nnl.core.graph import Node, Value

Key = tuple[int, int]
_TRIES = 1000  # changed choices before giving up
_PICKING = {  # which inputs are the data and the indices
    "gather": (0, 1),
    "gather_nd": (0, 1),
    "take_along": (0, 1),
    "embed": (1, 0),
}


class Follower:
    """Shapes and attributes of a graph at another batch size.

    Args:
        nodes: The graph, inputs first.
        inputs: Its inputs, with their shapes at both batch sizes.
        parameters: Leaves that have no batch axis.
    Attributes:
        attrs: Attributes of every node at the other batch size.
        leaf_axes: Batch axes of the constants that have one; they are the same for every sample.
    Raises:
        OnnxError: A function does not take another batch size.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        inputs: Mapping[Key, Tensor],
        parameters: Collection[Key],
        batch: int,
        moved_batch: int,
    ) -> None:
        self.batch, self.moved_batch, self.parameters = batch, moved_batch, parameters
        self.values = dict(inputs)
        self.derived = {key for key, x in inputs.items() if moving_axes(x)}  # from the batch
        self.steps = list(_steps(nodes, inputs))
        self.chosen: dict[int, int | None] = {}
        self.open: dict[int, list[int | None]] = {}  # what a step may still be changed to
        made: list[Any] = []
        tries = 0
        while len(made) < len(self.steps):
            i = len(made)
            try:
                made.append(self._step(i))
            except ValueError as e:
                tries += 1
                earlier = self._suspect(i)
                if earlier is None or tries > _TRIES:
                    name = self.steps[i].op.name
                    raise OnnxError(
                        f"save: {name} does not take another batch size than {batch} ({e}): give "
                        "batch=None to fix the batch size, or batch_axes to say where it is"
                    ) from None
                self.chosen[earlier] = self.open[earlier].pop(0)
                for j in range(earlier + 1, i + 1):
                    self.chosen.pop(j, None)
                del made[earlier:]
        found = list(zip(self.steps, made, strict=True))
        self.attrs = [attrs for step, attrs in found if isinstance(step, Node)]
        self.leaf_axes: dict[Key, int] = {
            step.key: axis for step, axis in found if isinstance(step, Value) and axis is not None
        }

    def _step(self, i: int) -> Any:
        """Attributes of a node, or the batch axis of a leaf."""
        step = self.steps[i]
        if isinstance(step, Value):
            if i not in self.chosen:
                self.chosen[i], *self.open[i] = self._leaf_axes(step)
            axis = self.chosen[i]
            shape = step.current_spec.shape
            self.values[step.key] = leaf_at_both(shape, axis, self.moved_batch)
            return axis
        inputs = [None if v is None else self.values.get(v.key) for v in step.inputs]
        for k, (shape, moved) in stretched(step.op, step.attrs, inputs).items():
            inputs[k] = Tensor(shape=shape, moved=moved)
        if i not in self.chosen:
            options = candidates(step.op, step.attrs, inputs, self.batch)
            self.chosen[i], *self.open[i] = options
        attrs = moved_attributes(step.op, step.attrs, inputs, self.batch, self.moved_batch)
        axis = self.chosen[i]
        if axis is not None:
            sizes = list(attrs.shape)
            sizes[axis] = self.moved_batch
            attrs = step.op.attrs(**{**attrs.as_dict(), "shape": tuple(sizes)})
        shapes = inferred(step, attrs, [None if x is None else x.moved for x in inputs])
        for k, (spec, moved) in enumerate(zip(step.out_specs, shapes, strict=True)):
            y = Tensor(shape=spec.shape, moved=moved)
            y.inner = inner_of(step.op.name, inputs, y, self.batch)
            self.values[id(step), k] = y
        self._check_samples(step, inputs)
        return attrs

    def _check_samples(self, node: Node, inputs: Sequence[Tensor | None]) -> None:
        """Raise if a function picks samples by numbers of the program's own: they may be those of
        all samples there are, and then are others at another batch size."""
        outs = [(id(node), k) for k in range(len(node.out_specs))]
        keys = [v.key for v in node.inputs if v is not None]
        moving = [x is not None and bool(moving_axes(x)) for x in inputs]
        if any(moving) or any(key in self.derived for key in keys):
            self.derived.update(outs)
        else:
            self.derived.difference_update(outs)
        if self._picks_samples(node, inputs) or (
            node.op.name == "slice"
            and any(moving)
            and not any(moving_axes(self.values[key]) for key in outs)
        ):
            raise ValueError("it picks the same samples at any batch size")

    def _picks_samples(self, node: Node, inputs: Sequence[Tensor | None]) -> bool:
        """Whether indices that do not follow from the batch choose among its samples."""
        which = _PICKING.get(node.op.name)
        if which is None:
            return False
        data, indices = (inputs[i] for i in which)
        chosen = node.inputs[which[1]]
        if data is None or indices is None or chosen is None or chosen.key in self.derived:
            return False
        if node.op.name == "gather_nd":
            picked = range(indices.sizes[0])
        else:
            axis = (getattr(node.attrs, "axis", 0) or 0) % data.ndim
            picked = range(axis, axis + 1)
        return any(i in picked for i in moving_axes(data))

    def _leaf_axes(self, leaf: Value) -> list[int | None]:
        """None, and the axes along which a constant has the same value for every sample."""
        shape = leaf.current_spec.shape
        if leaf.key in self.parameters or self.batch not in shape:
            return [None]
        value = leaf.array.read("host")
        return [
            None,
            *(
                i
                for i, n in enumerate(shape)
                if n == self.batch and np.array_equal(value, _first(value, i, n), equal_nan=True)
            ),
        ]

    def _suspect(self, i: int) -> int | None:
        """The last step that step i depends on and that may be changed."""
        step = self.steps[i]
        seen: set[Any] = {id(step)}
        stack = [step] if isinstance(step, Node) else []
        while stack:
            for v in stack.pop().inputs:
                if v is None:
                    continue
                if v.node is None:
                    seen.add(v.key)
                elif id(v.node) not in seen:
                    seen.add(id(v.node))
                    stack.append(v.node)
        for j in range(i, -1, -1):
            other = self.steps[j]
            name = other.key if isinstance(other, Value) else id(other)
            if self.open.get(j) and name in seen:
                return j
        return None


def _first(value: Any, axis: int, n: int) -> Any:
    """The first entry along the axis, n times."""
    return np.repeat(np.take(value, [0], axis), n, axis)


def leaf_at_both(shape: Shape, axis: int | None, moved_batch: int) -> Tensor:
    """A constant that has the batch size along an axis."""
    moved = tuple(moved_batch if i == axis else n for i, n in enumerate(shape))
    return Tensor(shape=shape, moved=moved)


def _steps(nodes: Sequence[Node], inputs: Mapping[Key, Tensor]) -> Any:
    """Every leaf before the first node that reads it."""
    seen = set(inputs)
    for node in nodes:
        for i, v in enumerate(node.inputs):
            rng = node.op.takes_rng and i == len(node.inputs) - 1
            if v is not None and v.node is None and v.key not in seen and not rng:
                seen.add(v.key)
                yield v
        yield node
