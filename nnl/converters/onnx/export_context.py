# SPDX-License-Identifier: Apache-2.0
"""The graph under construction: what a handler uses to add ONNX nodes, and how functions without
a handler are taken apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnl.converters.onnx.errors import UnsupportedOperator
from nnl.converters.onnx.export_batch import inferred, stretched
from nnl.converters.onnx.export_older import FORM, Refused, older
from nnl.converters.onnx.export_tensor import (
    Call,
    NodeRecord,
    Shape,
    Tensor,
    affine_size,
    as_initializer,
)
from nnl.converters.onnx.registry import ONNX
from nnl.core.context import using
from nnl.core.graph import Node, Value, capture
from nnl.core.op import OPS
from nnl.core.spec import Spec
from nnl.core.tracer import tracing
from nnl.core.variable import Variable

Key = tuple[int, int]
_RESHAPED = "reshaped_"  # parameters keep their names in another shape
_FLOATS = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))


class Exporter:
    """Turns nodes of an nnl graph into ONNX nodes.

    Args:
        opset: Version of the ONNX operators to write.
        batch: Batch size of the nnl graph, None to keep it as it is.
        moved_batch: Any other batch size.
    Attributes:
        nodes: What was written so far.
        casts, size: Tensors in other dtypes, and the batch size, as far as they were written.
        refused: Functions that could not be written, with the reasons.
    """

    def __init__(self, opset: int, batch: int | None, moved_batch: int = 0) -> None:
        self.opset, self.batch, self.moved_batch = opset, batch, moved_batch
        self.nodes: list[NodeRecord] = []
        self.values: dict[Key, Tensor] = {}
        self.refused: dict[str, str] = {}
        self.batch_source: tuple[Tensor, int] | None = None  # an input and its batch axis
        self._origin = ""  # the function being written
        self._constants: dict[tuple[Any, ...], Tensor] = {}
        self._folded: dict[tuple[int, str], Tensor] = {}
        self.casts: dict[tuple[int, Any], Tensor] = {}
        self.size: Tensor | None = None
        self._alive: list[Any] = []  # graphs whose ids are keys of `values`

    # ---- what handlers call ----

    def emit(
        self, op_type: str, *inputs: Any, outputs: int = 1, dtype: Any = None, **attributes: Any
    ) -> Any:
        """Add a node; returns its output, or a tuple if there are several.

        Args:
            inputs: Tensors, arrays, numbers (of the dtype of the first tensor), or None.
            dtype: Of the outputs; that of the first input if left out.
            attributes: Left out where None.
        """
        first = next((x for x in inputs if isinstance(x, Tensor)), None)
        tensors = [self.tensor(x, first.dtype if first is not None else dtype) for x in inputs]
        while tensors and tensors[-1] is None:
            tensors.pop()
        if dtype is None:
            if not tensors or tensors[0] is None:
                raise ValueError(f"export: {op_type} needs a dtype")
            dtype = tensors[0].dtype
        made = [Tensor(dtype=np.dtype(dtype)) for _ in range(outputs)]
        kept = {k: v for k, v in attributes.items() if v is not None}
        node = NodeRecord(op_type, tensors, made, kept, self._origin)
        if self.opset < FORM:
            instead = older(self, node)
            if instead is not None:
                return instead
        self.nodes.append(node)
        return made[0] if outputs == 1 else tuple(made)

    def tensor(self, x: Any, dtype: Any) -> Tensor | None:
        """x itself if it is a tensor, else a constant."""
        if x is None or isinstance(x, Tensor):
            return x
        return self.constant(np.asarray(x, dtype) if isinstance(x, (int, float)) else x)

    def constant(self, value: Any, dtype: Any = None) -> Tensor:
        """An initializer; equal ones are written once."""
        array = as_initializer(np.asarray(value, dtype))
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = Tensor(
                dtype=array.dtype, shape=array.shape, moved=array.shape, value=array
            )
        return self._constants[key]

    def ints(self, *values: int) -> Tensor:
        """An int64 vector."""
        return self.constant(np.array(values, np.int64))

    def cast(self, x: Tensor, dtype: Any) -> Tensor:
        """x in another dtype."""
        dtype = np.dtype(dtype)
        if x.dtype == dtype:
            return x
        if x.value is not None and x.name == "":
            return self.constant(x.value.astype(dtype))
        key = (id(x), dtype)
        if key not in self.casts:
            y = self.emit("Cast", x, dtype=dtype, to=onnx_type(dtype))
            y.shape, y.moved, y.inner = x.shape, x.moved, x.inner
            self.casts[key] = y
        return self.casts[key]

    def fold(self, x: Tensor, key: str, function: Callable[[Any], Any]) -> Tensor | None:
        """The initializer that `function` makes of x; None if x is no initializer."""
        if x.value is None:
            return None
        at = (id(x), key)
        if at not in self._folded:
            value = as_initializer(function(x.value))
            name = f"{x.name}/{key}" if x.name and not key.startswith(_RESHAPED) else x.name
            self._folded[at] = Tensor(name, value.dtype, value.shape, value.shape, value=value)
        return self._folded[at]

    def reshape(self, x: Tensor, shape: Sequence[int], moved: Sequence[int] | None = None) -> Any:
        """x in another shape; moved is that shape at the other batch size, if it differs."""
        shape = tuple(shape)
        moved = shape if moved is None else tuple(moved)
        if x.shape == shape and x.moved == moved:
            return x
        if moved == shape and x.value is not None:
            return self.fold(
                x, f"{_RESHAPED}{'x'.join(map(str, shape))}", lambda v: v.reshape(shape)
            )
        target = self.shape_tensor(shape, moved, inferred=True)
        if 0 not in shape:
            y = self.emit("Reshape", x, target)
        elif self.opset >= 14:
            y = self.emit("Reshape", x, target, allowzero=1)
        else:  # a 0 would be read as "the size of x"; without elements, any array will do
            y = self.emit("Expand", self.constant(np.zeros((), x.dtype)), target)
        y.shape, y.moved = shape, moved
        return y

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """x with its axes in another order."""
        axes = tuple(axes)
        if axes == tuple(range(len(axes))):
            return x
        folded = self.fold(x, f"transposed_{'x'.join(map(str, axes))}", lambda v: v.transpose(axes))
        if folded is not None:
            return folded
        y = self.emit("Transpose", x, perm=axes)
        if x.shape is not None and x.moved is not None:
            y.shape = tuple(x.shape[a] for a in axes)
            y.moved = tuple(x.moved[a] for a in axes)
        return y  # type: ignore[no-any-return]

    def squeeze(self, x: Tensor, *axes: int) -> Tensor:
        return self.emit("Squeeze", x, self.ints(*axes)) if axes else x

    def unsqueeze(self, x: Tensor, *axes: int) -> Tensor:
        return self.emit("Unsqueeze", x, self.ints(*axes)) if axes else x

    def reduce(
        self, op_type: str, x: Tensor, axes: Sequence[int] | None, keepdims: bool = False
    ) -> Tensor:
        """A Reduce* node, whose axes became an input in opset 18 (of ReduceSum in 13)."""
        if axes is not None and not len(axes):
            return self.emit("Identity", x)
        since = 13 if op_type == "ReduceSum" else 18
        if self.opset >= since:
            inputs = () if axes is None else (self.ints(*axes),)
            return self.emit(op_type, x, *inputs, keepdims=int(keepdims))
        axes_attribute = None if axes is None else tuple(axes)
        return self.emit(op_type, x, axes=axes_attribute, keepdims=int(keepdims))

    def from_bool(self, x: Tensor, dtype: Any) -> Tensor:
        """1 and 0 in the dtype of the function."""
        return self.emit("Cast", x, dtype=dtype, to=onnx_type(np.dtype(dtype)))

    def slice(
        self,
        x: Tensor,
        starts: Sequence[int],
        ends: Sequence[int],
        axes: Sequence[int],
        steps: Sequence[int] | None = None,
    ) -> Tensor:
        tensors = [self.ints(*starts), self.ints(*ends), self.ints(*axes)]
        return self.emit("Slice", x, *tensors, None if steps is None else self.ints(*steps))

    # ---- sizes that depend on the batch ----

    def shape_tensor(self, shape: Shape, moved: Shape, inferred: bool = False) -> Tensor:
        """An int64 vector of sizes; where they depend on the batch, it is computed from it.

        Args:
            inferred: One size may be written as -1.
        """
        moving = [i for i, (a, b) in enumerate(zip(shape, moved, strict=True)) if a != b]
        if not moving:
            return self.ints(*shape)
        if inferred and len(moving) == 1 and 0 not in shape:
            return self.ints(*(-1 if i in moving else n for i, n in enumerate(shape)))
        parts: list[Tensor] = []
        for i, n in enumerate(shape):
            if i in moving:
                parts.append(self._moving_size(n, moved[i]))
            elif parts and parts[-1].value is not None:
                parts[-1] = self.ints(*parts[-1].value, n)
            else:
                parts.append(self.ints(n))
        return parts[0] if len(parts) == 1 else self.emit("Concat", *parts, axis=0)

    def _moving_size(self, now: int, moved: int) -> Tensor:
        if self.batch is None:
            raise ValueError("export: there is no batch axis")
        found = affine_size(now, moved, self.batch, self.moved_batch)
        if found is None:
            raise Refused(f"a size of {now} does not follow from the batch size {self.batch}")
        size = self.batch_size()
        if found[0] != 1:
            size = self.emit("Mul", size, self.ints(found[0]))
        return size if found[1] == 0 else self.emit("Add", size, self.ints(found[1]))

    def batch_size(self) -> Tensor:
        """The batch size as an int64 vector of one element."""
        if self.size is None:
            if self.batch_source is None:
                raise Refused("no input has a batch axis, so its size is not known")
            x, axis = self.batch_source
            if self.opset >= 15:
                size = self.emit("Shape", x, dtype=np.int64, start=axis, end=axis + 1)
            else:
                shape = self.emit("Shape", x, dtype=np.int64)
                size = self.emit("Gather", shape, self.ints(axis), axis=0)
            self.size = size
        return self.size

    # ---- walking the graph ----

    def run(self, outputs: Sequence[Value], moved_attrs: Sequence[Any]) -> None:
        """Write everything that the outputs depend on; inputs and parameters are in `values`.

        Args:
            moved_attrs: Attributes of all functions, in order, at the other batch size.
        """
        nodes = capture(outputs)
        self.write(nodes, [n.attrs for n in nodes], moved_attrs)

    def write(self, nodes: Sequence[Node], attrs: Sequence[Any], moved: Sequence[Any]) -> None:
        """Write nodes with attributes at the batch size and at the other one."""
        top = self._origin == ""
        names = {v.key: v.name for n in nodes for v in n.inputs if v and v.name}
        for node, now, then in zip(nodes, attrs, moved, strict=True):
            if top:
                self._origin = node.op.name
            call = self._call(node, now, then)
            try:
                made = self.convert(call)
            except Refused as e:
                name = getattr(call.attrs, "type_name", call.name)  # of a PythonFunction its own
                self.refused.setdefault(name, str(e))
                made = tuple(Tensor(dtype=t) for t in call.dtypes)
            for j, y in enumerate(made):
                if y.value is None and all(y is not x for x in call.inputs):
                    y.shape, y.moved = call.shapes[j], call.moved_shapes[j]
                    y.hint = names.get((id(node), j), "")
                self.values[id(node), j] = y
        if top:
            self._origin = ""

    def _call(self, node: Node, attrs: Any, moved_attrs: Any) -> Call:
        op = node.op
        inputs: list[Tensor | None] = []
        for i, v in enumerate(node.inputs):
            if v is None or (op.takes_rng and i == len(node.inputs) - 1):
                inputs.append(None)
            else:
                inputs.append(self._read(op, i, self._source(v), node.target))
        for i, (shape, moved_shape) in stretched(op, attrs, inputs).items():
            y = self.emit("Expand", inputs[i], self.shape_tensor(shape, moved_shape))
            y.shape, y.moved = shape, moved_shape
            inputs[i] = y
        shapes = inferred(node, attrs, [None if x is None else x.shape for x in inputs])
        moved = inferred(node, moved_attrs, [None if x is None else x.moved for x in inputs])
        dtypes = [s.dtype for s in node.out_specs]
        return Call(op, attrs, moved_attrs, inputs, shapes, moved, dtypes, node.target)

    def _source(self, v: Value) -> Tensor:
        if v.key not in self.values:
            if v.node is not None:
                raise UnsupportedOperator(
                    f"save: {v.node.op.name}: its output {v.index} is for gradients only and has "
                    "no ONNX form"
                )
            self.values[v.key] = self.leaf(v)
        return self.values[v.key]

    def leaf(self, v: Value) -> Tensor:
        """A leaf that is neither input nor parameter is a constant."""
        return self.constant(v.array.read("host"))

    def _read(self, op: Any, i: int, x: Tensor, target: Any) -> Tensor:
        """The input in the dtype that the function computes with."""
        name = op.inputs[min(i, len(op.inputs) - 1)]
        if name in op.keep:
            return x
        if name in op.integer:
            return x if x.dtype.kind in "iu" else self.cast(x, np.int64)
        return self.cast(x, target.float_dtype)

    def convert(self, call: Call) -> tuple[Tensor, ...]:
        """Write one function: by its handler, one to one, or by what it is composed of.

        Raises:
            Refused: There is none of these, or the handler cannot write this form.
        """
        handler = ONNX.find_export(call.name, max(self.opset, FORM))
        if handler is not None:
            y = handler(self, call)
            return y if isinstance(y, tuple) else (y,)
        table = call.op.onnx
        if table is not None and table.since <= max(self.opset, FORM):
            values = call.attrs.as_dict()
            attributes = {onnx: values[name] for name, onnx in table.attrs.items()}
            return (self.emit(table.op_type, *call.inputs, **attributes),)
        if hasattr(call.attrs, "decompose"):
            return self.expand(call, lambda attrs, *x: attrs.decompose(*x))
        raise Refused(reason_without(call.name))

    def expand(
        self, call: Call, function: Callable[..., Any], *inputs: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Write `function(attrs, *variables)`, which calls nnl functions, in place of a function.

        Args:
            inputs: What the variables stand for; the inputs of the call if left out.
        """
        given = list(inputs) if inputs else call.inputs
        with using(auto_forward=False, target=call.target, no_grad=True), tracing(None):
            leaves = [_leaf(x, x.shape) if x is not None else None for x in given]
            ys = function(call.attrs, *leaves)
            moved = [_leaf(x, x.moved) if x is not None else None for x in given]
            others = function(call.moved_attrs, *moved)
        ys = ys if isinstance(ys, tuple) else (ys,)
        edges = [y.edge for y in ys]
        for x, leaf in zip(given, leaves, strict=True):
            if x is not None and leaf is not None:
                self.values[leaf.edge.key] = x
        moved_nodes = capture(
            [y.edge for y in (others if isinstance(others, tuple) else (others,))]
        )
        if [n.op for n in capture(edges)] != [n.op for n in moved_nodes]:
            raise Refused("its parts depend on the batch size")
        self.keep_alive(leaves, edges)
        self.run(edges, [n.attrs for n in moved_nodes])
        return tuple(self._source(e) for e in edges)

    def keep_alive(self, *graphs: Any) -> None:
        """Keep graphs whose ids are keys of `values`."""
        self._alive.append(graphs)


def _leaf(x: Tensor, shape: Shape | None) -> Variable:
    v = Variable(shape or ())
    if x.dtype != v.spec.dtype:
        v.data.set_spec(Spec.of(v.shape, _plain(x.dtype)))
    return v


def _plain(dtype: Any) -> Any:
    return np.dtype(np.float32) if dtype is None else dtype


def onnx_type(dtype: Any) -> int:
    """The number that ONNX has for a numpy dtype."""
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def reason_without(name: str) -> str:
    """Why a function has no ONNX form, at least not in the wanted version."""
    from nnl.converters.onnx.export_refusals import NO_MEANING

    if OPS[name].nnp is None and name not in NO_MEANING:
        return "it belongs to gradients or solvers"
    if name in ONNX.exports:
        return f"it needs opset {min(e.since for e in ONNX.exports[name])}"
    return NO_MEANING.get(name, "it has no ONNX form")
