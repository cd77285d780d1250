# SPDX-License-Identifier: Apache-2.0
"""Networks from .tflite files.

Quantized ones become networks in real numbers, rounded where the file has scales for what is
computed: the numbers are those of LiteRT's kernels, and plans compute them with 8 bits. Where only
weights have scales nothing else is rounded: LiteRT's kernels, which round what they read there,
each do so in another way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.networks.layout import plain
from nnl.converters.networks.model import Built, Network
from nnl.converters.networks.open_sizes import OpenSizes, named
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.tensorflow.messages import TensorFlowError
from nnl.converters.tflite import import_control as _g  # noqa: F401  register importers
from nnl.converters.tflite import import_elementwise as _e  # noqa: F401
from nnl.converters.tflite import import_recurrent as _r  # noqa: F401
from nnl.converters.tflite import import_shapes as _s  # noqa: F401
from nnl.converters.tflite import import_windows as _w  # noqa: F401
from nnl.converters.tflite import shared as _t  # noqa: F401
from nnl.converters.tflite.building import (
    BY_PARTS,
    IMPORTERS,
    TAKES,
    Builder,
    Complex,
    Handle,
    Value,
)
from nnl.converters.tflite.file import File, FileOperator, FileTensor, Graph, is_impossible
from nnl.converters.tflite.flatbuffer import Damaged
from nnl.converters.tflite.refused import REFUSED
from nnl.core.arrays.spec import ShapeError
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.interpreter import STATIC
from nnl.core.ops.op import OPS
from nnl.core.parameters.parameter import get_parameters, parameter_scope
from nnl.core.settings.context import using

# What functions and numpy raise for values that a damaged file gives them.
CONTROL = ("VAR_HANDLE", "CALL_ONCE", "CALL", "STABLEHLO_COMPOSITE", "IF", "WHILE")
MAX_DEPTH = 16  # of graphs that run graphs
_CAUSES = (ArithmeticError, LookupError, TypeError, ValueError, NotImplementedError)


class TfliteFile(Built):
    """A file, read.

    Args:
        path: Of the file, or what messages call the data.
        data: Its bytes, if they are known.
    Raises:
        ValueError: It is damaged, or no .tflite file.
        NotImplementedError: It has operators that nnl does not read; all are named.
    """

    def __init__(self, path: str, data: bytes | None = None) -> None:
        self.where = path
        self._sizes: OpenSizes | None = None  # of the file, or as somebody has said them
        try:
            self._file = File(Path(path).read_bytes() if data is None else data)
        except Damaged as error:
            raise ValueError(f"{path}: {error}") from None
        self._main = self._file.graphs[0]
        missing: dict[str, str] = {}
        for op in [op for graph in self._file.graphs for op in graph.operators]:
            if op.name not in IMPORTERS:
                why = REFUSED.get(op.name.split(" ")[0])
                missing.setdefault(op.name, op.label + (f": {why}" if why else ""))
        if missing:
            listed = ", ".join(sorted(missing.values()))
            raise NotImplementedError(f"{path}: nnl does not read {listed}")

    def network(self, batch_size: int | None = None, inference: bool = False) -> Network:
        """Sizes that stay open are the batch size on the first axis, else 1."""
        shapes = {}
        for name, sizes in self.open_sizes().axes.items():
            fixed = batch_size is not None and sizes and sizes[0] != batch_size
            if fixed and isinstance(sizes[0], int):
                raise ValueError(
                    f"{self.where}: the batch size is fixed at {sizes[0]}, so it cannot be "
                    f"{batch_size}"
                )
            given = self._main.tensors[self._main.inputs[name]].shape
            own = [batch_size or given[0], *given[1:]] if given else given
            shapes[name] = [n if type(n) is int else m for n, m in zip(sizes, own, strict=True)]
        return self._network(shapes)

    def open_sizes(self) -> OpenSizes:
        if self._sizes is None:
            self._sizes = OpenSizes(
                {
                    n: tuple(
                        [named(n, a, None) if a in t.open else k for a, k in enumerate(t.shape)]
                    )
                    for n, t in ((n, self._main.tensors[i]) for n, i in self._main.inputs.items())
                }
            )
        return self._sizes

    def close(self, shapes: Mapping[str, Sequence[str]]) -> None:
        self._sizes = self.open_sizes().closed(shapes, self.where)

    def sized(self, sizes: Mapping[str, int]) -> Network:
        return self._network(self.open_sizes().shapes(sizes))

    def observed(self) -> Network:
        """The network with every real number that is computed as an output, by number of tensor."""
        return self._network(every=True)

    def _network(
        self,
        shapes: Mapping[str, Sequence[int]] | None = None,
        every: bool = False,
    ) -> Network:
        graph = self._main
        scope: OrderedDict[str, Any] = OrderedDict()
        inputs = {
            n: self._input(
                n, graph.tensors[i], graph.tensors[i].shape if shapes is None else shapes[n]
            )
            for n, i in graph.inputs.items()
        }
        given = {i: Value(inputs[n], plain(inputs[n].ndim)) for n, i in graph.inputs.items()}
        with parameter_scope("", scope), using(interpreter=STATIC):
            walk = _Walk(self._file, self.where)
            walk.build.sized = all(v.shape == graph.tensors[i].shape for i, v in given.items())
            values = walk.run(graph, given)
            ends = {n: values.get(i) for n, i in graph.outputs.items()}
            if every:
                ends = {f"{i}": v for i, v in values.items() if _is_observed(v, graph.tensors[i])}
            outputs = {n: self._output(walk.build, n, v) for n, v in ends.items()}
            states = self._kept(walk.build, outputs)
        return Network(graph.name, inputs, outputs, scope, states=states)

    def _input(self, name: str, t: FileTensor, shape: Sequence[int]) -> Variable:
        if 0 in shape or is_impossible(shape):
            raise ValueError(f"{self.where}: the input {name!r} has the shape {list(shape)}")
        x = Variable(shape)  # takes no memory yet
        if t.dtype.kind in "Oc":
            what = "texts" if t.dtype.kind == "O" else "complex numbers"
            raise NotImplementedError(f"{self.where}: the input {name!r} is of {what}")
        if t.dtype in (np.int32, np.int64, np.bool_):
            x.data.set_spec(x.spec.with_dtype(t.dtype))
        return x

    def _output(self, build: Builder, name: str, v: Any) -> Variable:
        if not isinstance(v, Value):
            what = "nothing makes" if v is None else "nnl does not give, as it is no real number,"
            raise ValueError(f"{self.where}: {what} the output {name!r}")
        y = build.held(v)
        return y if y.parent is not None else F.identity(y)

    def _kept(self, build: Builder, outputs: dict[str, Variable]) -> dict[str, Any]:
        """Let the first output come after what writes the states, and give their first values."""
        states = build.states
        done = []
        for name, leaf in states.leaves.items():
            if name in states.now:
                done.append(OPS["store"](leaf, build.held(states.now[name])))
        if done:
            name, y = next(iter(outputs.items()))
            outputs[name] = OPS["keep_states"](y, *done)
        with_leaves = get_parameters(grad_only=False)
        keys = {id(v.data): k for k, v in with_leaves.items()}
        return {keys[id(leaf.data)]: states.first[n] for n, leaf in states.leaves.items()}


class _Walk:
    """Runs the operators of a file's graphs."""

    def __init__(self, file: File, where: str) -> None:
        self.file, self.where, self.depth = file, where, 0
        self.build = Builder(self.inside)

    def inside(self, n: int, given: Sequence[Any]) -> list[Any]:
        """The outputs of a graph that an operator names."""
        if not 0 < n < len(self.file.graphs):
            raise Damaged(f"there is no graph {n}, of {len(self.file.graphs)}")
        graph, build = self.file.graphs[n], self.build
        if len(given) != len(graph.given):
            raise Damaged(f"graph {n} has {len(graph.given)} inputs, and gets {len(given)}")
        before = build.op, build.outs, build.ins
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Damaged("its graphs run each other without end")
        values = self.run(graph, dict(zip(graph.given, given, strict=True)))
        self.depth -= 1
        build.op, build.outs, build.ins = before
        return [self.value(graph, i, values) for i in graph.made]

    def run(self, graph: Graph, values: dict[int, Any]) -> dict[int, Any]:
        """Values of tensors by their numbers, from those of the inputs."""
        if not self.depth:  # others get what has been rounded
            values = {i: _rounded(v, graph.tensors[i]) for i, v in values.items()}
        for op in graph.operators:
            try:
                self._step(graph, op, values)
            except (Damaged, OnnxError, TensorFlowError) as error:
                raise ValueError(f"{self.where}: {op.label}: {error}") from None
            except _CAUSES as error:
                text = str(error) if isinstance(error, ShapeError) else "its inputs do not fit"
                if str(error).startswith(self.where):  # of an operator inside
                    raise
                raise ValueError(f"{self.where}: {op.label}: {text}") from error
            given = [graph.tensors[i] for i in op.ins if i >= 0 and graph.tensors[i].scale]
            for i in op.outs:
                if not _only_moves(op, given, graph.tensors[i]):
                    values[i] = _rounded(values[i], graph.tensors[i])
        return values

    def _step(self, graph: Graph, op: FileOperator, values: dict[int, Any]) -> None:
        tensors, build = graph.tensors, self.build
        build.op, build.outs = op, [tensors[i] for i in op.outs]
        build.ins = [None if i < 0 else tensors[i] for i in op.ins]
        given = [None if i < 0 else self.value(graph, i, values) for i in op.ins]
        known = all(v is None or v.known for v in given)
        known = known and op.name not in CONTROL and not _looks_up(graph, op)
        with using(auto_forward=known):
            made = _imported(build, op.name, given)
        found = made if isinstance(made, list) else [made]
        for i, v in zip(op.outs, found, strict=True):
            values[i] = self._checked(tensors[i], v, known)

    def _checked(self, t: FileTensor, v: Any, known: bool) -> Any:
        if isinstance(v, Complex):
            return Complex(self._checked(t, v.real, known), self._checked(t, v.imag, known))
        if isinstance(v, Handle):
            return v
        if self.build.sized and t.shape and not _agree(v.shape, t):
            raise Damaged(f"it gives {list(v.shape)}, and the file says {list(t.shape)}")
        if is_impossible(v.shape):
            raise Damaged(f"it gives the impossible shape {list(v.shape)}")
        if known and not v.known:
            dtype = np.dtype(np.float32) if t.dtype.kind == "c" else t.dtype
            return Value(v.x.data.read("host").astype(dtype), v.order)
        return v

    def value(self, graph: Graph, i: int, values: dict[int, Any]) -> Any:
        """What a tensor is at this point."""
        if i not in values:
            t = graph.tensors[i]
            if t.state:
                return self.build.read(t.name or f"state_{i}", t.shape)
            if t.value is None:
                raise Damaged(f"it reads tensor {i}, which nothing has made")
            order, name = plain(t.value.ndim), t.name or f"constant_{i}"
            if t.dtype.kind == "c":
                values[i] = Complex(*[Value(p, order, name) for p in (t.value.real, t.value.imag)])
            else:
                values[i] = Value(t.value, order, name, t.stored)
        return values[i]


def _imported(build: Builder, name: str, given: list[Any]) -> Any:
    """What the importer of an operator makes, of complex numbers part by part where it may."""
    importer = IMPORTERS[name]
    if not any(isinstance(v, Complex) for v in given) or name not in BY_PARTS:
        for v in given:
            if v is not None and not isinstance(v, (Value, TAKES.get(name, Value))):
                what = "complex numbers" if isinstance(v, Complex) else "a state's handle"
                raise Damaged(f"it reads {what}, which nnl does not read there")
        return importer(build, *given)
    made = []
    for part in ("real", "imag"):
        made.append(
            importer(build, *[getattr(v, part) if isinstance(v, Complex) else v for v in given])
        )
    if isinstance(made[0], list):
        return [Complex(*pair) for pair in zip(*made, strict=True)]
    return Complex(*made)


def _looks_up(graph: Graph, op: FileOperator) -> bool:
    """Whether it reads places that are computed, of sizes for one, in a table of the file: that
    is a function, not one more table."""
    if op.name not in ("GATHER", "EMBEDDING_LOOKUP") or len(op.ins) != 2:
        return False
    table, places = op.ins if op.name == "GATHER" else op.ins[::-1]
    found = graph.tensors[table].value
    if found is None or found.dtype.kind != "f" or found.ndim < 2:
        return False
    return graph.tensors[places].value is None


def _agree(shape: tuple[int, ...], t: FileTensor) -> bool:
    """Whether a shape is that of the file, as far as the file knows it."""
    pairs = enumerate(zip(shape, t.shape, strict=False))
    return len(shape) == len(t.shape) and all(n == m or a in t.open for a, (n, m) in pairs)


def _is_observed(v: Any, t: FileTensor) -> bool:
    return isinstance(v, Value) and not v.known and t.dtype == np.float32


def _only_moves(op: FileOperator, given: Sequence[FileTensor], made: FileTensor) -> bool:
    """Whether an operator gives numbers that have been rounded to this scale before."""
    if op.name == "READ_VARIABLE":
        return True
    scales = {(t.scale, t.zero) for t in (*given, made)}
    return op.name in BY_PARTS and len(given) > 0 and len(scales) == 1


def _rounded(v: Any, t: FileTensor) -> Any:
    """As numbers of 8 bits of the scale that the file gives the tensor."""
    if not isinstance(v, Value) or v.known or t.dtype not in _BITS or not t.scale:
        return v
    shape = (1,) * v.rank
    scale, zero = (
        Variable.from_numpy_array(np.full(shape, n, np.float32)) for n in (t.scale, t.zero)
    )
    whole = F.quantize_linear(v.x, scale, zero, "HALF_TO_EVEN", False, _BITS[t.dtype])
    return Value(F.dequantize_linear(whole, scale, zero), v.order)


_BITS = {np.dtype(np.int8): np.int8, np.dtype(np.uint8): np.uint8}
