# SPDX-License-Identifier: Apache-2.0
""".nnb files as NNabla's messages: variables are called v0, v1, ... after their numbers."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from nnl.converters.nnb.table import (
    BY_NUMBER,
    CHOICES,
    DTYPES,
    TRANSPOSED,
    TYPES,
    VERSIONS,
    Variant,
)
from nnl.converters.nnb.types import Type
from nnl.converters.nnp.archive import Content
from nnl.converters.nnp.function_messages import argument_field
from nnl.converters.nnp.messages import messages
from nnl.converters.nnp.parameter_files import Stored

HEADER = struct.Struct("<2I10I2I")
VARIABLE = struct.Struct("<I2IB3xi")
FUNCTION = struct.Struct("<2H4I")
MAX_RANK = 32


def read(path: str) -> Content:
    """Read a file.

    Raises:
        ValueError: It is damaged, or has functions that NNabla's C runtime lacks.
    """
    data = Path(path).read_bytes()
    try:
        return _File(data, path).content()
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"{path}: damaged: {error}") from None
    except _Damaged as error:
        raise ValueError(f"{path}: {error}") from None


def ends(path: str) -> tuple[list[Type], list[Type]]:
    """Types of the inputs and outputs of a file."""
    data = Path(path).read_bytes()
    try:
        return _File(data, path).ends()
    except (struct.error, IndexError) as error:
        raise ValueError(f"{path}: damaged: {error}") from None


class _Damaged(ValueError):
    pass


class _File:
    def __init__(self, data: bytes, where: str) -> None:
        self.where = where
        if len(data) < HEADER.size:
            raise _Damaged(f"{len(data)} bytes are no .nnb file")
        self.version, self.level, *fields = HEADER.unpack_from(data)
        self.lists, (count, size) = list(zip(fields[:10:2], fields[1:10:2])), fields[10:]  # noqa: B905
        if self.version not in VERSIONS:
            raise _Damaged(f"its version is {self.version}, wanted 2 or 3: is it an .nnb file?")
        start = HEADER.size + 4 * count
        if start + size > len(data):
            raise _Damaged(f"damaged: it claims {start + size} bytes, and has {len(data)}")
        self.index = struct.unpack_from(f"<{count}I", data, HEADER.size)
        self.data = data[start : start + size]

    def content(self) -> Content:
        """The network with its parameters."""
        proto = messages()["NNablaProtoBuf"](version="0.1")
        network = proto.network.add(name="network", batch_size=1)
        executor = proto.executor.add(name="runtime", network_name="network")
        _, variables, functions, inputs, outputs = (self._ints("I", *x) for x in self.lists)
        self._read_variables(variables)
        self.transposed: set[int] = set()  # constants that the file holds with the outputs first
        self.real: dict[str, tuple[int, int | None]] = {}  # weights: their signs, and sizes
        for block in functions:
            self._add_function(network, block)
        for n, shape in enumerate(self.shapes):
            is_parameter = self.places[n][1] >= 0
            kind = "Parameter" if is_parameter else "Buffer"
            network.variable.add(name=f"v{n}", type=kind).shape.dim.extend(shape)
            if is_parameter:
                executor.parameter_variable.add(variable_name=f"v{n}")
        for n in inputs:
            executor.data_variable.add(variable_name=self._name(n), data_name=f"v{n}")
        for n in outputs:
            executor.output_variable.add(variable_name=self._name(n), data_name=f"v{n}")
        stored = [
            Stored(f"v{n}", self._value(n), True)
            for n, (_, at) in enumerate(self.places)
            if at >= 0
        ]
        for name, (signs, sizes) in self.real.items():
            value = self._real(signs, sizes)
            network.variable.add(name=name, type="Parameter").shape.dim.extend(value.shape)
            executor.parameter_variable.add(variable_name=name)
            stored.append(Stored(name, value, True))
        return Content(self.where, proto, stored)

    def ends(self) -> tuple[list[Type], list[Type]]:
        """Types of inputs and outputs."""
        _, variables, _, inputs, outputs = (self._ints("I", *x) for x in self.lists)
        self._read_variables(variables)
        codes = [[self.places[n][0] for n in numbers] for numbers in (inputs, outputs)]
        first, second = ([Type(TYPES[c & 15], c >> 4) for c in found] for found in codes)
        return first, second

    def _read_variables(self, variables: tuple[int, ...]) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.places: list[tuple[int, int]] = []
        for n, block in enumerate(variables):
            number, size, at, kind, place = VARIABLE.unpack_from(self.data, self._at(block))
            if number != n:
                raise _Damaged(f"damaged: variable {n} has the number {number}")
            if size > MAX_RANK:
                raise _Damaged(f"damaged: variable {n} has {size} axes")
            self.shapes.append(self._ints("i", size, at))
            self.places.append((kind, place))

    def _at(self, block: int) -> int:
        if not 0 <= block < len(self.index):
            raise _Damaged(f"damaged: there is no block {block}")
        return self.index[block]

    def _ints(self, kind: str, count: int, block: int) -> tuple[int, ...]:
        """A list of numbers; it must be inside the file before it is taken."""
        at = self._at(block)
        if at + 4 * count > len(self.data):
            raise _Damaged(f"damaged: a list of {count} numbers does not fit into the file")
        return struct.unpack_from(f"<{count}{kind}", self.data, at)

    def _name(self, n: int) -> str:
        if not 0 <= n < len(self.shapes):
            raise _Damaged(f"damaged: there is no variable {n}")
        return f"v{n}"

    def _add_function(self, network: Any, block: int) -> None:
        at = self._at(block)
        number, _, ins, in_at, outs, out_at = FUNCTION.unpack_from(self.data, at)
        form = BY_NUMBER.get(number)
        if form is None:
            raise _Damaged(f"NNabla's C runtime has no function {number}")
        i = len(network.function)
        message = network.function.add(name=f"f{i}", type=form.function)
        inputs = self._ints("I", ins, in_at)
        names = [self._name(n) for n in inputs]
        if form.function.startswith("Binary") and len(inputs) > 2:
            names[1] = f"v{inputs[2]}_real{i}"
            self.real[names[1]] = inputs[2], inputs[3] if "Weight" in form.function else None
        message.input.extend(names)
        message.output.extend([self._name(n) for n in self._ints("I", outs, out_at)])
        self._read_arguments(message, form, at)
        for place in TRANSPOSED.get(form.function, ()):
            if place < len(inputs):
                self.transposed.add(inputs[place])

    def _read_arguments(self, message: Any, form: Variant, start: int) -> None:
        field = argument_field().get(form.function)
        if field is None:
            return
        arguments = getattr(message, field)
        arguments.SetInParent()
        at = start + FUNCTION.size
        for kind, f in zip(form.kinds, arguments.DESCRIPTOR.fields, strict=False):
            at += 0 if kind == "B" else -(at - start) % 4
            if kind == "iI":
                size, block = struct.unpack_from("<Ii", self.data, at)
                values = self._ints("i", size, block)
                if f.message_type is not None:
                    getattr(arguments, f.name).SetInParent()
                    getattr(arguments, f.name).dim.extend(values)
                else:
                    getattr(arguments, f.name).extend(values)
                at += 8
                continue
            (value,) = struct.unpack_from({"i": "<i", "f": "<f", "B": "<B"}[kind], self.data, at)
            at += 1 if kind == "B" else 4
            choices = CHOICES.get((form.function, f.name))
            if choices is not None:
                if not 0 <= value < len(choices):
                    raise _Damaged(f"damaged: {form.function} has the {f.name} number {value}")
                value = choices[value]
            setattr(arguments, f.name, bool(value) if kind == "B" else value)

    # ---- constants ----

    def _value(self, n: int) -> np.ndarray[Any, Any]:
        kind, block = self.places[n]
        shape = self.shapes[n]
        if min(shape, default=1) < 0:
            raise _Damaged(f"damaged: variable {n} has the shape {shape}")
        count, at = math.prod(shape), self._at(block)
        code, point = kind & 15, kind >> 4
        if code >= len(TYPES):
            raise _Damaged(f"damaged: variable {n} has the type {code}")
        dtype = DTYPES.get(TYPES[code])
        if dtype is None:
            values = self._signs(n, count, at)
        else:
            self._check(n, at + count * dtype.itemsize)
            raw = np.frombuffer(self.data, dtype, count, at)
            values = raw.astype(np.float32) * np.float32(2.0**-point if code else 1)
        if n in self.transposed and len(shape) > 1 and count:
            return np.ascontiguousarray(values.reshape(-1, shape[0]).T).reshape(shape)
        return values.reshape(shape)

    def _real(self, signs: int, sizes: int | None) -> np.ndarray[Any, Any]:
        """Weights that have these signs and mean sizes: the runtime does without the real ones."""
        for n in (signs, sizes):
            if n is not None and self.places[n][1] < 0:
                raise _Damaged(f"the binary weight v{n} is computed, wanted a constant")
        value = self._value(signs)
        if sizes is None:
            return value
        size = self._value(sizes).reshape(-1)
        outputs = value.shape[1:] if signs in self.transposed else value.shape[:1]
        if size.size != math.prod(outputs):
            raise _Damaged(f"damaged: v{sizes} has {size.size} sizes for {outputs} outputs")
        shape = outputs if signs in self.transposed else (-1, *(1 for _ in value.shape[1:]))
        return value * size.reshape(shape)

    def _signs(self, n: int, count: int, at: int) -> np.ndarray[Any, Any]:
        self._check(n, at + -(-count // 8))
        raw = np.frombuffer(self.data, np.uint8, -(-count // 8), at)
        bits = np.unpackbits(raw, count=count, bitorder="little")
        return bits.astype(np.float32) * 2 - 1

    def _check(self, n: int, end: int) -> None:
        if end > len(self.data):
            raise _Damaged(f"damaged: the values of variable {n} do not fit into the file")
