# SPDX-License-Identifier: Apache-2.0
"""GraphExecutor: what Variable.forward() and backward(), and the solvers, call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnl.core.arguments.warn_once import warn_once
from nnl.core.arrays.array import NdArray
from nnl.core.graph.autodiff import start_gradient
from nnl.core.graph.dispatch import apply
from nnl.core.graph.function import Function
from nnl.core.graph.node import Node, Value, capture
from nnl.core.graph.variable import Hook, Variable
from nnl.core.interpreters.callback import HOOKS
from nnl.core.interpreters.interpreter import STATIC, run_by
from nnl.core.ops.op import Op
from nnl.core.settings.context import STATE, using
from nnl.graph.execution.eager import backward_now
from nnl.graph.execution.session import INFER, KEEP, TRAIN, Session, session_of
from nnl.graph.plan.plan import Plan
from nnl.graph.plan.progress import check_callbacks, reports_to


class UpdatePlan:
    """Ops that write their inputs, as one plan: the updates of a solver's parameters.

    Args:
        key: What the plan depends on. It holds the arrays, so that they stay theirs.
        record: () -> results of the ops, which are dropped.
    """

    def __init__(self, key: list[Any], record: Callable[[], Sequence[Any]]) -> None:
        self.key = key
        with using(interpreter=STATIC, make_nodes=True, no_grad=True):
            ends = [(y[0] if isinstance(y, tuple) else y).edge for y in record()]
        self.plan = Plan(capture(ends), set())  # what writes runs, whoever reads its results


class GraphExecutor:
    """What Variable.forward() and backward(), and the solvers, call."""

    def __init__(self) -> None:
        self._forwards = self._updates = 0

    def run_recorded(
        self,
        attrs: Any,
        arrays: Sequence[tuple[NdArray | None, ...]],
        record: Callable[[list[tuple[Variable | None, ...]]], Sequence[Any]],
        calls: UpdatePlan | None,
    ) -> UpdatePlan | None:
        """Run ops that write arrays.

        Args:
            attrs: What `record` depends on besides the arrays.
            record: (the arrays as Variables) -> results; calls the ops.
            calls: What the previous call returned; it is used again if nothing has changed.
        """
        key: list[Any] = [attrs, STATE.target]
        for datas in arrays:
            key += datas
            key += [None if d is None else d.spec for d in datas]
        if calls is None or calls.key != key:
            calls = UpdatePlan(key, lambda: record([as_leaves(datas) for datas in arrays]))
        self._updates += 1
        calls.plan.run()
        return calls

    def run_calls(
        self,
        op: Op,
        attrs: Any,
        arrays: Sequence[tuple[NdArray | None, ...]],
        calls: UpdatePlan | None,
    ) -> UpdatePlan | None:
        """Apply an op that writes its inputs to each of the lists of arrays; see run_recorded."""
        return self.run_recorded(
            attrs, arrays, lambda leaves: [apply(op, attrs, x) for x in leaves], calls
        )

    def forward(
        self,
        outputs: Sequence[Variable],
        clear_buffer: bool,
        clear_no_need_grad: bool,
        pre: Hook | None,
        post: Hook | None,
    ) -> None:
        if not any([v.edge.node for v in outputs]):
            return
        self._forwards += 1
        mode = INFER if clear_buffer else TRAIN if clear_no_need_grad else KEEP
        session = session_of(outputs)
        if HOOKS.active or pre is not None or post is not None:
            session.forward(mode, *_hooks(pre, post))
        else:
            session.forward(mode)

    def backward(
        self,
        output: Variable,
        grad: Any,
        clear_buffer: bool,
        callbacks: Sequence[Any],
        pre: Hook | None,
        post: Hook | None,
    ) -> None:
        check_callbacks(callbacks)
        edge = output.edge
        if edge.node is not None and edge.need_grad:
            self._backward(output, grad, clear_buffer, callbacks, pre, post)
        else:
            for callback in callbacks:
                callback.begin([])
        for callback in callbacks:
            callback.finish()

    def _backward(
        self,
        output: Variable,
        grad: Any,
        clear_buffer: bool,
        callbacks: Sequence[Any],
        pre: Hook | None,
        post: Hook | None,
    ) -> None:
        edge = output.edge
        assert edge.node is not None
        hooked = HOOKS.active or pre is not None or post is not None
        dynamic = edge.node.saved is not None or edge.node.outs is None
        if not dynamic:
            session = session_of([output])
            self._check_forward(session)
            session.prepare_backward(clear_buffer and not hooked)
        if not (hooked or callbacks) and STATE.interpreter.now.go_back(edge, grad, clear_buffer):
            return
        if dynamic or hooked:
            gy = start_gradient(edge, output.shape, grad)
            before, after = _hooks(pre, post) if hooked else (None, None)
            backward_now(edge, gy, clear_buffer, before, after, reports_to(edge, callbacks))
            return
        session.backward(grad, clear_buffer, callbacks)

    def _check_forward(self, session: Session) -> None:
        """Warn where nothing was computed again after an update: what is static is not by itself.

        Several backwards after one forward are all right, if no solver has been between them.
        """
        forwards, updates = session.backward_at
        if forwards == self._forwards and updates != self._updates:
            warn_once(
                "backward: parameters were updated after the latest forward(), so these gradients "
                "are those of an old result: call forward() before every backward()"
            )
        session.backward_at = self._forwards, self._updates


def _hooks(pre: Hook | None, post: Hook | None) -> tuple[Any, Any]:
    def before(node: Node) -> None:
        HOOKS.before(node)
        if pre is not None:
            pre(Function(node))

    def after(node: Node) -> None:
        if post is not None:
            post(Function(node))
        HOOKS.after(node)

    return before, after


def as_leaves(arrays: Sequence[NdArray | None]) -> tuple[Variable | None, ...]:
    """Arrays as leaves of a graph."""
    return tuple([None if d is None else Variable.of_edge(Value.leaf(d), d) for d in arrays])


EXECUTOR = GraphExecutor()
run_by(EXECUTOR)
