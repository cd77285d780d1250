# SPDX-License-Identifier: Apache-2.0
"""Networks as .nnb files."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnl.converters.networks.lowering import CannotLower, Lowered, lower
from nnl.converters.networks.model import Key, Network
from nnl.converters.nnb.table import CHOICES, LEVEL, TYPES, VERSIONS, check_level, variant
from nnl.converters.nnb.target import arguments, target, weights, wrong_types
from nnl.converters.nnb.types import Type, Types, outputs, size_of, stored
from nnl.converters.nnp.function_messages import visible_inputs
from nnl.core.graph.node import Node, Value
from nnl.core.parameters.atomic import replacing
from nnl.functions.binary import signs


def save(
    path: str | os.PathLike[str],
    network: Network,
    level: int | None = None,
    version: int | None = None,
    settings: Mapping[str, str] | None = None,
    default: str = "FLOAT32",
) -> None:
    """Write a network for NNabla's C runtime.

    Args:
        level: API level of the runtime that will read it, None for the newest that is published.
        version: Of the format: 2, which is the default, or 3.
        settings: Types of variables by name, see `types_of`.
        default: The type of what the settings leave out.
    Raises:
        ValueError: There is no such level, version, type or variable, or a type does not fit.
        CannotLower: The runtime lacks functions, or cannot run them with these types; all are
            listed.
    """
    version = VERSIONS[0] if version is None else version
    if version not in VERSIONS:
        raise ValueError(f"NNB has no version {version}, only {VERSIONS[0]} and {VERSIONS[1]}")
    level, lowered, types = _typed(network, level, settings or {}, default)
    content = _Writer(lowered, types, level, version).content()
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(content)


def types_of(
    network: Network, level: int | None = None, default: str = "FLOAT32"
) -> dict[str, str]:
    """Types of all variables of the file that `save` would write, by name."""
    _, lowered, types = _typed(network, level, {}, default)
    found = {types.names[v.key]: str(types.computed[v.key]) for v in lowered.inputs.values()}
    for node in lowered.nodes:
        for v in visible_inputs(node):
            found.setdefault(types.names[v.key], str(types.of(v, node)))
        for v in outputs(node):
            found[types.names[v.key]] = str(types.computed[v.key])
    return found


def _typed(
    network: Network, level: int | None, settings: Mapping[str, str], default: str
) -> tuple[int, Lowered, Types]:
    level = check_level(LEVEL if level is None else level)
    names = network.every_name()
    signs = {key for key, name in names.items() if settings.get(name) == "SIGN"}
    lowered = lower(network, target(level, signs))
    types = Types(network, lowered, settings, default)
    problems = [f"{n.label}: {why}" for n in lowered.nodes if (why := wrong_types(n, types))]
    if problems:
        raise CannotLower("NNB", network.name, problems)
    return level, lowered, types


MOST = 2**32 - 1  # bytes that the numbers of 32 bits in a file can reach


class _Variable(NamedTuple):
    """A record of a variable.

    Attributes:
        place: The block with its values, or the edge whose buffer it is in.
        before: Whether it is what the buffer holds before that edge is computed.
    """

    shape: tuple[int, ...]
    type: Type
    place: int | Key
    before: bool = False


class _Writer:
    """Attributes:
    blocks: What lists and records are, each once.
    variables: With their numbers.
    edges: Numbers of variables, by the keys of edges.
    """

    def __init__(self, lowered: Lowered, types: Types, level: int, version: int) -> None:
        self.lowered, self.types, self.level, self.version = lowered, types, level, version
        self.blocks: dict[bytes, int] = {}
        self.variables: dict[_Variable, int] = {}
        self.edges: dict[Key, int] = {}

    def content(self) -> bytes:
        """The bytes of the file."""
        low = self.lowered
        inputs = [self._computed(v) for v in low.inputs.values()]
        functions = [record for n in low.nodes for record in self._functions(n)]
        outputs = [self._computed(v) for v in low.outputs.values()]
        buffers, of = self._buffers()
        records = [self._record_of(v, n, of) for v, n in self.variables.items()]
        lists = [
            self._list("I", buffers),
            self._list("I", [self._block(r) for r in records]),
            self._list("I", [self._block(f) for f in functions]),
            self._list("I", inputs),
            self._list("I", outputs),
        ]
        blocks = list(self.blocks)
        index, at = [], 0
        for block in blocks:
            index.append(at)
            at += len(block)
        if at > MOST:
            raise ValueError(f"NNB: {at} bytes of numbers, and a .nnb file has at most {MOST}")
        head = struct.pack("<2I", self.version, self.level) + b"".join(lists)
        head += struct.pack(f"<2I{len(index)}I", len(blocks), at, *index)
        return head + b"".join(blocks)

    def _block(self, content: bytes) -> int:
        """The number of the block that holds this."""
        content += bytes(-len(content) % 4)
        return self.blocks.setdefault(content, len(self.blocks))

    def _list(self, kind: str, values: Sequence[int]) -> bytes:
        content = struct.pack(f"<{len(values)}{kind}", *values)
        return struct.pack("<Ii", len(values), self._block(content))

    # ---- variables ----

    def _number(self, variable: _Variable) -> int:
        return self.variables.setdefault(variable, len(self.variables))

    def _computed(self, v: Value) -> int:
        """The number of the variable for an input of the network, or the result of a function."""
        if v.key not in self.edges:
            kind = self.types.computed[v.key]
            self.edges[v.key] = self._number(_Variable(v.current_spec.shape, kind, v.key))
        return self.edges[v.key]

    def _values(self, values: np.ndarray[Any, Any], kind: Type, outputs_first: bool = False) -> int:
        """The number of the variable with these values."""
        laid = values.reshape(len(values), -1).T if outputs_first else values
        return self._number(_Variable(values.shape, kind, self._block(stored(laid, kind))))

    def _read(self, v: Value, node: Node) -> int:
        """The number of the variable that is an input of a function."""
        if v.key in self.types.computed:
            return self._computed(v)
        kind, values = self.types.of(v, node), v.array.read("host")
        return self._values(values, kind, any(v is u for u in weights(node)))

    def _record_of(self, v: _Variable, number: int, buffer_of: Mapping[Key, int]) -> bytes:
        shape = self._list("i", v.shape)
        place = v.place if isinstance(v.place, int) else -1 - buffer_of[v.place]
        kind = TYPES.index(v.type.name) | (v.type.point or 0) << 4
        return struct.pack("<I", number) + shape + struct.pack("<B3xi", kind, place)

    # ---- functions ----

    def _functions(self, node: Node) -> Iterator[bytes]:
        function = node.op.nnp or ""
        if function.startswith("Binary") and len(visible_inputs(node)) > 1:
            ins = self._with_signs(node)
        else:
            ins = [self._read(v, node) for v in visible_inputs(node)]
        outs = [self._computed(v) for v in outputs(node)]
        if function == "BatchMatmul":
            yield self._clearing(next(outputs(node)))
        yield self._record(function, ins, outs, arguments(function, node))

    def _with_signs(self, node: Node) -> list[int]:
        """Inputs of a function with binary weights: the runtime does not read the real ones."""
        x, w, s, *more, b = node.inputs
        values, outputs_first = w.array.read("host"), bool(weights(node))  # type: ignore[union-attr]
        binary = signs(np, values, node.attrs.quantize_zero_to)
        stored = self._values(binary, Type("SIGN"), outputs_first)
        found = [self._read(x, node), stored, stored]  # type: ignore[arg-type]
        for alpha in more:
            axes = 0 if outputs_first else tuple(range(1, values.ndim))
            sizes = np.abs(values).mean(axes).reshape(alpha.current_spec.shape)  # type: ignore[union-attr]
            found.append(self._values(sizes, self.types.of(alpha, node)))  # type: ignore[arg-type]
        return found if b is None else [*found, self._read(b, node)]

    def _clearing(self, y: Value) -> bytes:
        """A function that writes zeros: the runtime's product adds to what it finds in its memory.

        They are the sum of a column and a row of zeros, which take less memory.
        """
        *rows, columns = y.current_spec.shape
        kind = self.types.computed[y.key]
        parts = [(*rows, 1), (*(1 for _ in rows), columns)]
        ins = [self._values(np.zeros(s, np.float32), kind) for s in parts]
        zeros = _Variable(y.current_spec.shape, kind, y.key, before=True)
        return self._record("Add2", ins, [self._number(zeros)], {"inplace": False})

    def _record(
        self, function: str, ins: Sequence[int], outs: Sequence[int], arguments: Any
    ) -> bytes:
        form = variant(function, self.level)
        assert form is not None
        record = struct.pack("<2H", form.number, 0) + self._list("I", ins) + self._list("I", outs)
        for kind, (name, value) in zip(form.kinds, arguments.items(), strict=False):
            record += self._argument(function, name, kind, value, len(record))
        return record

    def _argument(self, function: str, name: str, kind: str, value: Any, at: int) -> bytes:
        if kind == "B":
            return struct.pack("<B", bool(value))
        padding = bytes(-at % 4)
        if kind == "iI":
            return padding + self._list("i", value)
        if kind == "f":
            return padding + struct.pack("<f", value)
        if isinstance(value, str):
            value = CHOICES[function, name].index(value)
        return padding + struct.pack("<i", value)

    # ---- memory ----

    def _buffers(self) -> tuple[list[int], dict[Key, int]]:
        """Sizes of buffers, and which variable is in which.

        Variables that live at the same time have different buffers. The largest come first, each
        into the first buffer that is free while it lives.
        """
        low = self.lowered
        end = len(low.nodes)
        first = {v.key: 0 for v in low.inputs.values()}
        last = dict(first)
        for t, node in enumerate(low.nodes):
            for v in (*visible_inputs(node), *outputs(node)):
                if v.key in self.edges:
                    first.setdefault(v.key, t)
                    last[v.key] = t
        for v in low.outputs.values():
            last[v.key] = end
        sizes = {
            v.place: size_of(v.type) * math.prod(v.shape)
            for v in self.variables
            if not isinstance(v.place, int)
        }
        buffers: list[tuple[int, list[Key]]] = []
        of: dict[Key, int] = {}
        for key in sorted(sizes, key=lambda k: -sizes[k]):
            for n, (_, users) in enumerate(buffers):
                if all(last[key] < first[u] or last[u] < first[key] for u in users):
                    users.append(key)
                    of[key] = n
                    break
            else:
                of[key] = len(buffers)
                buffers.append((sizes[key], [key]))
        unit = 1 if self.version > VERSIONS[0] else 4
        return [-(-size // unit) for size, _ in buffers], of
