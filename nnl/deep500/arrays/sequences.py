# SPDX-License-Identifier: Apache-2.0
"""Control flow and sequences, which are lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.deep500.arrays.primitives import Primitives


class SequenceOperators(Primitives):
    """Subgraphs run now, by values that are known now."""

    # ---- control flow and sequences ----

    def control_If(self, machine: Any, node: Any, values: Any, condition: Any) -> Any:
        branch = node.then_branch if bool(self.host(condition)) else node.else_branch
        return tuple(machine.inside(branch, values, ()))

    def control_Loop(self, machine: Any, node: Any, values: Any, *given: Any) -> Any:
        trips, go = (*given, None, None)[:2]
        state = list(given[2:])
        count = None if trips is None else self.ints(trips)[0]
        alive, i, rows = go is None or bool(self.host(go)), 0, []
        while alive and (count is None or i < count):
            number = self.constant(np.array(i, np.int64))
            outs = machine.inside(
                node.body, values, [number, self.constant(np.array(True)), *state]
            )
            alive, state = bool(self.host(outs[0])), outs[1 : 1 + len(state)]
            rows.append(outs[1 + len(state) :])
            i += 1
        stacked = [self.stacked(column, 0) for column in zip(*rows, strict=True)]
        return (*state, *stacked)

    def control_Scan(self, machine: Any, node: Any, values: Any, *given: Any) -> Any:
        if node.since < 9:
            return self.missing(node)
        count = len(given) - node.num_scan_inputs
        state, rows = list(given[:count]), []
        columns = []  # what is read step by step, and along which axis
        kinds = [self.each(node, f"scan_input_{k}", len(given)) for k in ("axes", "directions")]
        for x, axis, backwards in zip(given[count:], *kinds, strict=False):
            axis = self.axis(x, axis)
            columns.append((self.flip(x, [axis]) if backwards else x, axis))
        for t in range(self.shape(columns[0][0])[columns[0][1]]):
            at = self.constant(np.array(t, np.int64))
            now = [self.take(x, at, axis) for x, axis in columns]
            outs = machine.inside(node.body, values, [*state, *now])
            state = outs[:count]
            rows.append(outs[count:])
        kinds = [self.each(node, f"scan_output_{k}", len(given)) for k in ("axes", "directions")]
        stacked = []
        for ys, axis, backwards in zip(zip(*rows, strict=True), *kinds, strict=False):
            stacked.append(self.stacked(ys[::-1] if backwards else ys, axis))
        return (*state, *stacked)

    def each(self, node: Any, name: str, at_least: int) -> list[int]:
        """Numbers of an attribute, zeros behind them."""
        return [*(node.attributes.get(name) or ()), *[0] * at_least]

    def visit_SequenceConstruct(self, node: Any, *xs: Any) -> Any:
        return list(xs)

    def visit_SequenceEmpty(self, node: Any) -> Any:
        return []

    def visit_SequenceLength(self, node: Any, xs: Any) -> Any:
        return self.constant(np.array(len(xs), np.int64))

    def visit_SequenceAt(self, node: Any, xs: Any, at: Any) -> Any:
        return xs[self.ints(at)[0]]

    def visit_SequenceInsert(self, node: Any, xs: Any, x: Any, at: Any = None) -> Any:
        place = len(xs) if at is None else self.ints(at)[0]
        place = place + len(xs) if place < 0 else place
        return [*xs[:place], x, *xs[place:]]

    def visit_SequenceErase(self, node: Any, xs: Any, at: Any = None) -> Any:
        place = -1 if at is None else self.ints(at)[0]
        return [x for i, x in enumerate(xs) if i != place % len(xs)]

    def visit_ConcatFromSequence(self, node: Any, xs: Any) -> Any:
        if node.new_axis:
            return self.stacked(xs, node.axis)
        return self.concatenate(xs, self.axis(xs[0], node.axis))

    def visit_SplitToSequence(self, node: Any, x: Any, split: Any = None) -> Any:
        axis = self.axis(x, node.axis)
        n = self.shape(x)[axis]
        sizes = [1] * n if split is None else self.ints(split)
        if split is not None and self.rank(split) == 0:
            sizes = [min(sizes[0], n - i) for i in range(0, n, sizes[0])]
        ends = np.cumsum(sizes)
        parts = [self.span(x, axis, int(e) - s, int(e)) for s, e in zip(sizes, ends, strict=True)]
        if split is None and not node.keepdims:
            parts = [
                self.reshape(p, [m for i, m in enumerate(self.shape(p)) if i != axis])
                for p in parts
            ]
        return parts

    def visit_OptionalHasElement(self, node: Any, x: Any = None) -> Any:
        return self.constant(np.array(x is not None))

    def visit_OptionalGetElement(self, node: Any, x: Any) -> Any:
        return x

    def visit_Optional(self, node: Any, x: Any = None) -> Any:
        return x
