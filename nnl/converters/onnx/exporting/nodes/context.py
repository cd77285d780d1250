# SPDX-License-Identifier: Apache-2.0
"""The graph under construction: what a handler uses to add ONNX nodes, and how functions without
a handler are taken apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnl.converters.networks.simpler import SIMPLER
from nnl.converters.onnx.exporting.nodes.older_opsets import FORM, Refused, older
from nnl.converters.onnx.exporting.nodes.refusals import NO_MEANING
from nnl.converters.onnx.exporting.nodes.tensor import Call, NodeRecord, Tensor, as_initializer
from nnl.converters.onnx.file.errors import UnsupportedOperator
from nnl.converters.onnx.file.registry import ONNX
from nnl.converters.rules.spectra import PIXELS, SPECTRA
from nnl.core.arrays.spec import Spec
from nnl.core.graph.node import Node, Value, capture
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.interpreter import STATIC
from nnl.core.ops.op import OPS
from nnl.core.settings.context import using

Key = tuple[int, int]
_RESHAPED = "reshaped_"  # parameters keep their names in another shape
RULES = {**SIMPLER, **SPECTRA, **PIXELS}  # what functions are in others
_FLOATS = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))


class Exporter:
    """Turns nodes of an nnl graph into ONNX nodes.

    Args:
        opset: Version of the ONNX operators to write.
        folded: What was made of initializers, by their ids, where other exporters share it.
        moving: Axes of the values of nodes that depend on open sizes; None where none is open.
    Attributes:
        ops: What was written so far.
        inputs, outputs: Tensors of the graph, by name.
        casts: Tensors in other dtypes, as far as they were written.
        refused: Functions that could not be written, with the reasons.
    """

    def __init__(
        self,
        opset: int,
        folded: dict[tuple[int, str], tuple[Any, Any]] | None = None,
        moving: Mapping[Key, frozenset[int]] | None = None,
    ) -> None:
        self.opset, self.moving = opset, moving
        self.ops: list[NodeRecord] = []
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.values: dict[Key, Tensor] = {}
        self.refused: dict[str, str] = {}
        self._origin = ""  # the function being written
        self._given: list[Tensor | None] = []  # its inputs
        self._constants: dict[tuple[Any, ...], Tensor] = {}
        self._folded = {} if folded is None else folded
        self.casts: dict[tuple[int, Any], Tensor] = {}
        self.whole: dict[int, Tensor] = {}  # what floats were cast from, by the id of these
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
        node = NodeRecord(op_type, tensors, made, kept, self._origin, self._given)
        if self.opset < FORM:
            instead = older(self, node)
            if instead is not None:
                return instead
        self.ops.append(node)
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
            self._constants[key] = Tensor(dtype=array.dtype, shape=array.shape, value=array)
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
            y.shape, y.moving = x.shape, x.moving
            self.casts[key] = y
        return self.casts[key]

    def fold(self, x: Tensor, key: str, function: Callable[[Any], Any]) -> Tensor | None:
        """The initializer that `function` makes of x; None if x is no initializer."""
        if x.value is None:
            return None
        at = (id(x.value), key)
        if at not in self._folded:
            value = as_initializer(function(x.value))
            name = f"{x.name}/{key}" if x.name and not key.startswith(_RESHAPED) else x.name
            self._folded[at] = x, Tensor(name, value.dtype, value.shape, value=value)
        return self._folded[at][1]

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Any:
        """x in another shape."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        if x.value is not None:
            return self.fold(
                x, f"{_RESHAPED}{'x'.join(map(str, shape))}", lambda v: v.reshape(shape)
            )
        if 0 not in shape:
            y = self.emit("Reshape", x, self.ints(*shape))
        elif self.opset >= 14:
            y = self.emit("Reshape", x, self.ints(*shape), allowzero=1)
        else:  # a 0 would be read as "the size of x"; without elements, any array will do
            y = self.expand_to(self.constant(np.zeros((), x.dtype)), shape)
        y.shape = shape
        return y

    def expand_to(self, x: Any, shape: Sequence[int]) -> Tensor:
        """x stretched to a shape."""
        y: Tensor = self.emit("Expand", x, self.ints(*shape))
        y.shape = tuple(shape)
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
        if x.shape is not None:
            y.shape = tuple(x.shape[a] for a in axes)
        return y  # type: ignore[no-any-return]

    def moves(self, x: Tensor, axis: int) -> bool:
        """Whether the size of an axis may depend on open sizes."""
        known = self.moving is None or x.value is not None
        return not known and (x.moving is None or axis in x.moving)

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

    # ---- walking the graph ----

    def write(self, nodes: Sequence[Node]) -> None:
        """Write nodes; inputs and parameters are in `values`."""
        top = self._origin == ""
        names = {v.key: v.name for n in nodes for v in n.inputs if v and v.name}
        for node in nodes:
            if top:
                self._origin = node.op.name
            call = self._call(node)
            self._given = call.inputs if top else self._given
            try:
                made = self.convert(call)
            except Refused as e:
                name = getattr(call.attrs, "type_name", call.name)  # of a PythonFunction its own
                self.refused.setdefault(name, str(e))
                made = tuple(Tensor(dtype=t) for t in call.dtypes)
            for j, y in enumerate(made):
                if y.value is None and all(y is not x for x in call.inputs):
                    y.shape = call.shapes[j]
                    y.moving = (self.moving or {}).get((id(node), j))
                    y.hint = names.get((id(node), j), "")
                self.values[id(node), j] = y
        if top:
            self._origin = ""

    def _call(self, node: Node) -> Call:
        op = node.op
        inputs: list[Tensor | None] = []
        for i, v in enumerate(node.inputs):
            if v is None or (op.takes_rng and i == len(node.inputs) - 1):
                inputs.append(None)
            else:
                inputs.append(self._read(op, i, self._source(v), node.target))
        shapes, dtypes = [s.shape for s in node.out_specs], [s.dtype for s in node.out_specs]
        return Call(op, node.attrs, inputs, shapes, dtypes, node.target)

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
        """Write one function: by its handler, one to one, or by what it is composed of, also where
        a handler gives None.

        Raises:
            Refused: There is none of these, or the handler cannot write this form.
        """
        handler = ONNX.find_export(call.name, max(self.opset, FORM))
        if handler is not None:
            y = handler(self, call)
            if y is not None:
                return y if isinstance(y, tuple) else (y,)
        table = call.op.onnx
        if table is not None and table.since <= max(self.opset, FORM):
            values = call.attrs.as_dict()
            attributes = {onnx: values[name] for name, onnx in table.attrs.items()}
            return (self.emit(table.op_type, *call.inputs, **attributes),)
        if call.name in NO_MEANING:
            raise Refused(NO_MEANING[call.name])
        own = [getattr(type(call.attrs), how, None) for how in ("decompose", "portable")]
        for rule in (own[0], RULES.get(call.name), own[1]):
            if rule is not None:
                try:
                    return self.expand(call, rule)
                except _Silent:
                    continue
        raise Refused(reason_without(call.name))

    def expand(
        self, call: Call, function: Callable[..., Any], *inputs: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Write `function(attrs, *variables)`, which calls nnl functions, in place of a function.

        Args:
            inputs: What the variables stand for; the inputs of the call if left out.
        Raises:
            _Silent: The function has nothing to say of these arguments.
        """
        given = list(inputs) if inputs else call.inputs
        with using(interpreter=STATIC, target=call.target, no_grad=True):
            leaves = [_leaf(x) if x is not None else None for x in given]
            try:
                ys = function(call.attrs, *leaves)
            except NotImplementedError:  # what `portable` says of some arguments
                ys = None
        if ys is None:
            raise _Silent
        edges = [y.edge for y in (ys if isinstance(ys, tuple) else (ys,))]
        for x, leaf in zip(given, leaves, strict=True):
            if x is not None and leaf is not None:
                self.values[leaf.edge.key] = x
        self.keep_alive(leaves, edges)
        self.write(capture(edges))
        return tuple(self._source(e) for e in edges)

    def keep_alive(self, *graphs: Any) -> None:
        """Keep graphs whose ids are keys of `values`."""
        self._alive.append(graphs)


class _Silent(Exception):
    """A rule has nothing to say of some arguments."""


def _leaf(x: Tensor) -> Variable:
    v = Variable(x.shape or ())
    if x.dtype != v.spec.dtype:
        v.data.set_spec(Spec.of(v.shape, _plain(x.dtype)))
    return v


def _plain(dtype: Any) -> Any:
    return np.dtype(np.float32) if dtype is None else dtype


def onnx_type(dtype: Any) -> int:
    """The number that ONNX has for a numpy dtype."""
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def has_parts(name: str) -> bool:
    """Whether a function is written as what it is made of where there is no handler for it."""
    own = OPS[name].attrs_class
    made = name in RULES or hasattr(own, "decompose") or hasattr(own, "portable")
    return made and name not in NO_MEANING


def reason_without(name: str) -> str:
    """Why a function has no ONNX form, at least not in the wanted version."""
    if OPS[name].nnp is None:
        return "it belongs to gradients or solvers"
    if name in ONNX.exports:
        return f"it needs opset {min(e.since for e in ONNX.exports[name])}"
    return "it has no ONNX form"
