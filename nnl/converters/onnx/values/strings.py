# SPDX-License-Identifier: Apache-2.0
"""Strings in static graphs: numbers of the strings that a model knows.

A model that is told strings compares them with those in its attributes and constants, and the ones
it answers with stand there, too. So a graph holds their numbers; what no model knows is -1. Strings
become numbers where they enter a graph, and strings again where they leave it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.model import Graph, Model, Node, subgraphs
from nnl.converters.onnx.values.values import array, dtype_of, is_var, known, tagged, var
from nnl.core.graph.variable import Variable
from nnl.graph.program import strings as boundary

STRING = np.dtype(object)
_MOVES = (
    "ArrayFeatureExtractor Concat Expand Flatten Gather Identity Reshape Slice Split Squeeze Tile "
    "Transpose Unsqueeze Where"
)
_CONSTANTS = frozenset(f"{_MOVES} Equal".split())
_TAKES = _CONSTANTS | {"CategoryMapper", "LabelEncoder", "OneHotEncoder", "If"}


def is_text(x: Any) -> bool:
    """Whether x is a Variable of strings, whose array holds their numbers."""
    return is_var(x) and dtype_of(x) == STRING


def words_of(model: Model) -> Words:
    """The strings that a model knows."""
    found: Words | None = model.tables.get(Words)
    if found is None:
        found = model.tables[Words] = Words(model)
    return found


class Words(boundary.Words):
    """The strings of a model in order of their numbers."""

    def __init__(self, model: Model) -> None:
        super().__init__(dict.fromkeys(_strings(model.graph)))

    def variable(self, strings: Any) -> Variable:
        """Strings as a constant of a static graph."""
        return tagged(var(self.numbers(strings)), STRING)

    def inputs_of(self, node: Node, values: list[Any]) -> list[Any]:
        """What a node of a static graph reads, some of it strings: numbers for constants, too.

        Raises:
            OnnxError: The node does not only move strings, or compare them with constants.
        """
        told = any(map(is_text, values))
        if (
            told
            and node.op_type not in _TAKES
            or node.op_type == "Equal"
            and all(map(is_text, values))
        ):
            raise OnnxError(
                f"{node.op_type} needs the strings themselves, and a static graph has the numbers "
                "of those that the model knows: run the model with arrays of strings"
            )
        if node.op_type not in _CONSTANTS:
            return values
        return [self.variable(v) if _is_constant(v) else v for v in values]


def has_text(values: list[Any]) -> bool:
    """Whether a node reads strings in a static graph, or chooses from constant ones."""
    return any(map(is_text, values)) or (
        any(map(_is_constant, values)) and any(map(is_var, values)) and not all(map(known, values))
    )


def _is_constant(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == STRING


def chosen(ctx: Any, at: Any, table: Any) -> Any:
    """Entries of a table of numbers or strings at positions, which may depend on inputs."""
    if known(at):
        return table[array(at).astype(np.int64)]
    held = words_of(ctx.model).numbers(table) if table.dtype == STRING else table
    if held.dtype.kind in "iu" and np.abs(held).max(initial=0) > 2**24:
        raise OnnxError(f"gives {np.abs(held).max()}, and static graphs whole numbers up to 2^24")
    return tagged(F.gather(var(held), at, axis=0), table.dtype)


def _strings(graph: Graph) -> Iterator[str]:
    constants = list(graph.initializers.values())
    for node in graph.nodes:
        for name, value in node.attributes.items():
            if "string" in name and isinstance(value, (str, tuple)):
                yield from (value,) if isinstance(value, str) else value
            elif isinstance(value, np.ndarray):
                constants.append(value)
        for inner in subgraphs(node):
            yield from _strings(inner)
    for value in constants:
        if value.dtype == STRING:
            yield from value.reshape(-1).tolist()
