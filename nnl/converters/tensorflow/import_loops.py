# SPDX-License-Identifier: Apache-2.0
"""Importer of While: a loop over the rows of arrays, as recurrent layers have it, is recorded once;
every other one is unrolled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnl.converters.onnx.importing.control_values import over_rows
from nnl.converters.onnx.values.values import known
from nnl.converters.tensorflow.graph import Graph
from nnl.converters.tensorflow.import_control import Elements, function_of
from nnl.converters.tensorflow.interpreter import ByTurn, _NotByTurn, tf_import
from nnl.converters.tensorflow.messages import TensorFlowError

UNROLLED = 16  # turns of a closed program that are worth more as nodes of their own
MOST = 2**20  # turns of a loop


@dataclass(frozen=True)
class Turn(ByTurn):
    """The number of a turn, plus an offset."""

    offset: int

    def step(self, op: str, values: Sequence[Any]) -> Any:
        if op == "Identity":
            return self
        if op in ("AddV2", "Add") and (
            more := [v for v in values if not isinstance(v, ByTurn) and known(v)]
        ):
            return Turn(self.offset + int(more[0]))
        raise _NotByTurn


@dataclass(frozen=True)
class Row(ByTurn):
    """An array of tensors, of which a turn takes its own."""

    value: Any

    def step(self, op: str, values: Sequence[Any]) -> Any:
        if op == "Identity":
            return self
        if op == "TensorListGetItem" and values[1] == Turn(0):
            return self.value
        raise _NotByTurn


@dataclass(frozen=True)
class Made(ByTurn):
    """An array of tensors, to which a turn adds its own."""

    value: Any = None

    def step(self, op: str, values: Sequence[Any]) -> Any:
        if op == "Identity":
            return self
        if op == "TensorListSetItem" and self.value is None and values[1] == Turn(0):
            return Made(values[2])
        raise _NotByTurn


@tf_import("While", "StatelessWhile")
def while_(ctx: Any, node: Any, *xs: Any) -> Any:
    """A function again and again, as long as another says so."""
    condition, body = function_of(node, "cond"), function_of(node, "body")
    if any(isinstance(x, Elements) for x in xs):
        try:
            return _by_rows(ctx, condition, body, xs)
        except _NotByTurn:
            pass
    state = list(xs)
    while _goes(ctx, condition, state):
        ctx.steps += 1
        state = ctx.call(body, state)
        if len(state) != len(xs):
            raise TensorFlowError(f"its body gives {len(state)} values, wanted {len(xs)}")
    return state


def _goes(ctx: Any, condition: str, state: Sequence[Any]) -> bool:
    going = ctx.call(condition, state)
    return len(going) == 1 and ctx.decided(going[0], "the condition of a loop")


def _by_rows(ctx: Any, condition: str, body: str, xs: Sequence[Any]) -> list[Any]:
    """The loop, recorded once for all rows.

    Raises:
        _NotByTurn: It is none over rows, or so short that it is unrolled.
    """
    graph = ctx.library.graph(body)
    if len(graph.args) != len(xs) or len(graph.results) != len(xs):
        raise _NotByTurn
    same = [
        _source(graph, name) == arg
        for (name, _), arg in zip(graph.results, graph.args, strict=True)
    ]
    rows, made, counters, carried = [], [], [], []
    for i, x in enumerate(xs):
        if same[i]:
            rows += [i] * isinstance(x, Elements)
        elif isinstance(x, (tuple, Elements)):
            if isinstance(x, Elements) or any(v is not None for v in x):
                raise _NotByTurn
            made.append(i)
        elif _is_counter(x):
            counters.append(i)
        else:
            carried.append(i)
    turns = _turns(ctx, condition, xs, counters)
    lengths = {len(xs[i]) for i in (*rows, *made)}
    if lengths != {turns} or not rows or (turns <= UNROLLED and not ctx.open) or not carried:
        raise _NotByTurn

    def once(values: list[Any], given: list[Any]) -> list[Any]:
        state = list(xs)
        for i, v in zip(carried, values, strict=True):
            state[i] = v
        for i, v in zip(rows, given, strict=True):
            state[i] = Row(v)
        for i in made:
            state[i] = Made()
        for i in counters:
            state[i] = Turn(int(xs[i]))
        ctx.in_turn = True
        try:
            new = ctx.call(body, state)
        finally:
            ctx.in_turn = False
        if any(new[i] != Turn(int(xs[i]) + 1) for i in counters):
            raise _NotByTurn
        if not all(isinstance(new[i], Made) and new[i].value is not None for i in made):
            raise _NotByTurn
        found = [*(new[i] for i in carried), *(new[i].value for i in made)]
        if any(isinstance(v, ByTurn) for v in found):
            raise _NotByTurn
        return found

    found = over_rows(once, [xs[i] for i in carried], [xs[i].whole for i in rows])
    out = list(xs)
    for i in counters:
        out[i] = np.asarray(xs[i] + turns, np.asarray(xs[i]).dtype)
    for i, y in zip(carried, found, strict=False):
        out[i] = y
    for i, y in zip(made, found[len(carried) :], strict=True):
        out[i] = Elements(y)
    return out


def _source(graph: Graph, name: str) -> str:
    """What a node hands on, through nodes that only do that."""
    while graph.nodes[name].op == "Identity":
        name = graph.nodes[name].inputs[0][0]
    return name


def _is_counter(x: Any) -> bool:
    return isinstance(x, (np.ndarray, np.generic)) and x.size == 1 and x.dtype.kind == "i"


def _turns(ctx: Any, condition: str, xs: Sequence[Any], counters: Sequence[int]) -> int:
    """How many turns a loop makes whose counters count turns."""
    state = list(xs)
    for turn in range(MOST):
        for i in counters:
            state[i] = np.asarray(xs[i] + turn, np.asarray(xs[i]).dtype)
        try:
            if not _goes(ctx, condition, state):
                return turn
        except TensorFlowError:  # values decide
            raise _NotByTurn from None
    raise _NotByTurn
