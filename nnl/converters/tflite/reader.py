# SPDX-License-Identifier: Apache-2.0
"""Networks from .tflite files. Quantized ones become the networks in real numbers that they stand
for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.layout import plain
from nnl.converters.model import Built, Network
from nnl.converters.open_sizes import OpenSizes, named
from nnl.converters.tflite import import_elementwise as _e  # noqa: F401  register importers
from nnl.converters.tflite import import_shapes as _s  # noqa: F401
from nnl.converters.tflite import import_windows as _w  # noqa: F401
from nnl.converters.tflite.building import IMPORTERS, Builder, Value
from nnl.converters.tflite.file import File, FileOperator, FileTensor, is_impossible
from nnl.converters.tflite.flatbuffer import Damaged
from nnl.core.context import using
from nnl.core.parameter import parameter_scope
from nnl.core.spec import ShapeError
from nnl.core.tracer import tracing
from nnl.core.variable import Variable

# What functions and numpy raise for values that a damaged file gives them.
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
        missing: dict[str, str] = {}
        for op in self._file.operators:
            if op.name not in IMPORTERS:
                missing.setdefault(op.name, op.label)
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
            given = self._file.tensors[self._file.inputs[name]].shape
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
                    for n, t in ((n, self._file.tensors[i]) for n, i in self._file.inputs.items())
                }
            )
        return self._sizes

    def close(self, shapes: Mapping[str, Sequence[str]]) -> None:
        self._sizes = self.open_sizes().closed(shapes, self.where)

    def sized(self, sizes: Mapping[str, int]) -> Network:
        return self._network(self.open_sizes().shapes(sizes))

    def stored(self) -> Network:
        """The network with its numbers rounded as those of a quantized file are."""
        return self._network(rounds=True)

    def observed(self) -> Network:
        """The network with every real number that is computed as an output, by number of tensor."""
        return self._network(every=True)

    def _network(
        self,
        shapes: Mapping[str, Sequence[int]] | None = None,
        rounds: bool = False,
        every: bool = False,
    ) -> Network:
        file = self._file
        scope: OrderedDict[str, Any] = OrderedDict()
        inputs = {
            n: self._input(
                n, file.tensors[i], file.tensors[i].shape if shapes is None else shapes[n]
            )
            for n, i in file.inputs.items()
        }
        values = {i: Value(inputs[n], plain(inputs[n].ndim)) for n, i in file.inputs.items()}
        with parameter_scope("", scope), using(auto_forward=False), tracing(None):
            build = Builder()
            build.sized = all(v.shape == file.tensors[i].shape for i, v in values.items())
            if rounds:
                for i, v in values.items():
                    values[i] = _rounded(v, file.tensors[i])
            for op in file.operators:
                try:
                    self._step(build, op, values)
                except Damaged as error:
                    raise ValueError(f"{self.where}: {op.label}: {error}") from None
                except _CAUSES as error:
                    text = str(error) if isinstance(error, ShapeError) else "its inputs do not fit"
                    raise ValueError(f"{self.where}: {op.label}: {text}") from error
                for i in op.outs if rounds else ():
                    values[i] = _rounded(values[i], file.tensors[i])
            ends = {n: values.get(i) for n, i in file.outputs.items()}
            if every:
                ends = {f"{i}": v for i, v in values.items() if _is_observed(v, file.tensors[i])}
            outputs = {n: self._output(build, n, v) for n, v in ends.items()}
        return Network(file.name, inputs, outputs, scope)

    def _input(self, name: str, t: FileTensor, shape: Sequence[int]) -> Variable:
        if 0 in shape or is_impossible(shape):
            raise ValueError(f"{self.where}: the input {name!r} has the shape {list(shape)}")
        x = Variable(shape)  # takes no memory yet
        if t.dtype in (np.int32, np.int64, np.bool_):
            x.data.set_spec(x.spec.with_dtype(t.dtype))
        return x

    def _output(self, build: Builder, name: str, v: Value | None) -> Variable:
        if v is None:
            raise ValueError(f"{self.where}: nothing makes the output {name!r}")
        y = build.held(v)
        return y if y.parent is not None else F.identity(y)

    def _step(self, build: Builder, op: FileOperator, values: dict[int, Value]) -> None:
        tensors = self._file.tensors
        build.op, build.outs = op, [tensors[i] for i in op.outs]
        build.ins = [None if i < 0 else tensors[i] for i in op.ins]
        given = [None if i < 0 else self._value(i, values) for i in op.ins]
        known = all(v is None or v.known for v in given) and not self._looks_up(op)
        with using(auto_forward=known):
            made = IMPORTERS[op.name](build, *given)
        found = [made] if isinstance(made, Value) else list(made)
        for i, v in zip(op.outs, found, strict=True):
            t = tensors[i]
            if build.sized and t.shape and not _agree(v.shape, t):
                raise Damaged(f"it gives {list(v.shape)}, and the file says {list(t.shape)}")
            if is_impossible(v.shape):
                raise Damaged(f"it gives the impossible shape {list(v.shape)}")
            if known and not v.known:
                v = Value(v.x.data.read("host").astype(t.dtype), v.order)
            values[i] = v

    def _looks_up(self, op: FileOperator) -> bool:
        """Whether it reads places that are computed, of sizes for one, in a table of the file: that
        is a function, not one more table."""
        if op.name not in ("GATHER", "EMBEDDING_LOOKUP") or len(op.ins) != 2:
            return False
        table, places = op.ins if op.name == "GATHER" else op.ins[::-1]
        tensors = self._file.tensors
        found = tensors[table].value
        if found is None or found.dtype.kind != "f" or found.ndim < 2:
            return False
        return tensors[places].value is None

    def _value(self, i: int, values: dict[int, Value]) -> Value:
        if i not in values:
            t = self._file.tensors[i]
            if t.value is None:
                raise Damaged(f"it reads tensor {i}, which nothing has made")
            values[i] = Value(t.value, plain(t.value.ndim), t.name or f"constant_{i}")
        return values[i]


def _agree(shape: tuple[int, ...], t: FileTensor) -> bool:
    """Whether a shape is that of the file, as far as the file knows it."""
    pairs = enumerate(zip(shape, t.shape, strict=False))
    return len(shape) == len(t.shape) and all(n == m or a in t.open for a, (n, m) in pairs)


def _is_observed(v: Value, t: FileTensor) -> bool:
    return not v.known and t.dtype == np.float32


def _rounded(v: Value, t: FileTensor) -> Value:
    """As int8 numbers of the scale that the file gives the tensor."""
    if v.known or t.dtype != np.int8 or not t.scale:
        return v
    whole = F.round(v.x * (1 / t.scale)) + float(t.zero)
    whole = F.minimum_scalar(F.maximum_scalar(whole, -128.0), 127.0)
    return Value((whole - float(t.zero)) * t.scale, v.order)
