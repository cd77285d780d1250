# SPDX-License-Identifier: Apache-2.0
"""The interpreter of a co-executed step: where nnl.coexec plugs in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnl.core.arguments.origin import PASSED
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.bulk import BULK
from nnl.core.graph.dispatch import Bound, execute
from nnl.core.graph.node import Value
from nnl.core.interpreters.callback import HOOKS
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
from nnl.core.settings.context import STATE


class Deferring(Eager):
    """A co-executed step: puts off what it can, and computes the rest.

    Attributes:
        deferred: What puts functions off; None while all is done at once.
        watch: What is told of the functions of Variables, or None.
    """

    __slots__ = ("deferred", "watch")

    def __init__(self) -> None:
        super().__init__()
        self.deferred: Any = None
        self.watch: Any = None

    def call(self, op: Op, attrs: Any, xs: Inputs, edges: Edges, bound: Bound, need: bool) -> Any:
        if self.watch is not None:
            self.watch.call(op, attrs, bound, edges)
        if self.deferred is None or HOOKS.active:
            return super().call(op, attrs, xs, edges, bound, need)
        return self.deferred.apply(op, attrs, xs, edges, bound, need and STATE.make_nodes)

    def execute(self, op: Op, attrs: Any, bound: Bound, datas: Arrays) -> Sequence[NdArray]:
        if self.deferred is None:
            return execute(bound, datas)
        return self.deferred.execute(op, attrs, bound, datas)  # type: ignore[no-any-return]

    def change(self, params: Params, op: Op, attrs: Any, inputs: Sequence[Inputs]) -> bool:
        return self.deferred is not None and self.deferred.change(op, attrs, inputs)

    def accumulate(self, into: NdArray, g: NdArray) -> bool:
        return self.deferred is not None and self.deferred.accumulate(into, g)

    def go_back(self, output: Value, grad: Any, clear: bool) -> bool:
        if self.deferred is None or output.node is None or output.node.live is None:
            return False
        self.deferred.backward(output, grad, clear)
        return True

    def update(self, op: Op, attrs: Any, entries: Sequence[Any], plan: Any) -> Any:
        calls = BULK.to_update(entries)
        if not calls:
            return plan
        if self.deferred is not None:
            self.deferred.calls(op, attrs, calls)
            return plan
        made = self.executor.run_calls(op, attrs, calls, plan)
        if self.watch is not None:
            self.watch.wrote(len(calls), made is not plan)
        return made


# The native engine does these for calls that it knows.
PASSED |= {f.__code__ for f in (Interpreter.apply, Interpreter.on_arrays, Static.on_arrays)}
PASSED |= {f.__code__ for f in (Op.call, Deferring.call, Deferring.execute)}
