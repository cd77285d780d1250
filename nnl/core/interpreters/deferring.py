# SPDX-License-Identifier: Apache-2.0
"""The interpreter of a co-executed step: where nnl.coexec plugs in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.bulk import LISTS
from nnl.core.graph.node import Value
from nnl.core.graph.origin import PASSED
from nnl.core.interpreters.callback import HOOKS
from nnl.core.interpreters.context import STATE
from nnl.core.interpreters.dispatch import Bound, execute
from nnl.core.interpreters.interpreter import (
    Arrays,
    Eager,
    Edges,
    Inputs,
    Interpreter,
    Params,
    Static,
)
from nnl.core.ops.op import Op


class Deferring(Eager):
    """A co-executed step: puts off what it can, and computes the rest.

    Attributes:
        skeleton: What puts functions off; None while all is done at once.
        watch: What is told of the functions of Variables, or None.
    """

    __slots__ = ("skeleton", "watch")

    def __init__(self) -> None:
        super().__init__()
        self.skeleton: Any = None
        self.watch: Any = None

    def call(self, op: Op, attrs: Any, xs: Inputs, edges: Edges, bound: Bound, need: bool) -> Any:
        if self.watch is not None:
            self.watch.call(op, attrs, bound, edges)
        if self.skeleton is None or HOOKS.active:
            return super().call(op, attrs, xs, edges, bound, need)
        return self.skeleton.apply(op, attrs, xs, edges, bound, need and STATE.record)

    def execute(self, op: Op, attrs: Any, bound: Bound, datas: Arrays) -> Sequence[NdArray]:
        if self.skeleton is None:
            return execute(bound, datas)
        return self.skeleton.execute(op, attrs, bound, datas)  # type: ignore[no-any-return]

    def change(self, params: Params, op: Op, attrs: Any, inputs: Sequence[Inputs]) -> bool:
        return self.skeleton is not None and self.skeleton.change(op, attrs, inputs)

    def accumulate(self, into: NdArray, g: NdArray) -> bool:
        return self.skeleton is not None and self.skeleton.accumulate(into, g)

    def go_back(self, output: Value, grad: Any, clear: bool) -> bool:
        if self.skeleton is None or output.node is None or output.node.live is None:
            return False
        self.skeleton.backward(output, grad, clear)
        return True

    def update(self, op: Op, attrs: Any, entries: Sequence[Any], plan: Any) -> Any:
        calls = LISTS.to_update(entries)
        if not calls:
            return plan
        if self.skeleton is not None:
            self.skeleton.calls(op, attrs, calls)
            return plan
        made = self.executor.run_calls(op, attrs, calls, plan)
        if self.watch is not None:
            self.watch.wrote(len(calls), made is not plan)
        return made


# The native engine does these for calls that it knows.
PASSED |= {f.__code__ for f in (Interpreter.apply, Interpreter.on_arrays, Static.on_arrays)}
PASSED |= {f.__code__ for f in (Op.call, Deferring.call, Deferring.execute)}
