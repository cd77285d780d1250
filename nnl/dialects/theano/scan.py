# SPDX-License-Identifier: Apache-2.0
"""scan: a step again and again, over sequences and with what earlier steps gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import nnl.functions as F
import nnl.workspace as ws
from nnl.converters.onnx.values.values import dtype_of, known, shape_of, tagged, var
from nnl.core.ops.op import OPS
from nnl.dialects.theano import elementwise as E
from nnl.dialects.theano.function import OrderedUpdates
from nnl.dialects.theano.methods import TensorVariable
from nnl.dialects.theano.variable import Apply, as_tensor_variable, cast, made, promoted, value_now
from nnl.graph import scan as _scan
from nnl.graph import while_loop


class until:
    """What a step returns as its last result: the loop ends after the step where it holds."""

    def __init__(self, condition: Any) -> None:
        self.condition = as_tensor_variable(condition)


def _list(x: Any) -> list[Any]:
    return list(x) if isinstance(x, (list, tuple)) else [] if x is None else [x]


class _State:
    """An output that later steps see."""

    def __init__(self, info: Any) -> None:
        entry = info if isinstance(info, Mapping) else {"initial": info}
        self.taps = [int(t) for t in _list(entry.get("taps", [-1]))]
        if entry.get("initial") is None:
            raise ValueError(f"scan: outputs_info has {entry!r} with taps and no initial")
        if any(t >= 0 for t in self.taps):
            raise ValueError(f"scan: the taps of an output are {self.taps}, wanted all below 0")
        self.initial = as_tensor_variable(entry["initial"])
        self.depth = -min(self.taps)
        self.single = self.taps == [-1]
        sizes = self.initial.sizes if self.single else self.initial.sizes[1:]
        self.sizes = tuple([None] * len(sizes))
        self.holes = [_hole(sizes, self.initial.dtype) for _ in self.taps]

    def before(self, initial: Any) -> list[Any]:
        """The values before the first step, the oldest one first."""
        x = _held(initial)
        if self.single:
            return [x]
        if x.shape[0] < self.depth:
            raise ValueError(
                f"scan: an initial value has {x.shape[0]} rows, wanted {self.depth} for the taps "
                f"{self.taps}"
            )
        return [x[i] for i in range(self.depth)]


def _hole(sizes: Sequence[int | None], dtype: Any) -> Any:
    return TensorVariable(ws.current(), "scan_input", sizes, dtype)


def _held(v: Any) -> Any:
    """A value as what functions give: loops carry values of one type."""
    v = var(v)
    held = "float64" if dtype_of(v) == np.float64 else "float32"
    return v if v.spec.dtype == held else tagged(OPS["cast"](v, dtype=held), dtype_of(v))


def _returned(result: Any) -> tuple[list[Any], dict[Any, Any], Any]:
    """Outputs, updates and condition of a step."""
    outputs: list[Any] = []
    updates: dict[Any, Any] = {}
    condition = None
    parts = list(result) if isinstance(result, (list, tuple)) else [result]
    for p in parts:
        if isinstance(p, until):
            condition = p.condition
        elif isinstance(p, Mapping):
            updates.update(p)
        elif isinstance(p, (list, tuple)):
            if all(isinstance(q, (list, tuple)) and len(q) == 2 for q in p):
                updates.update(p)
            else:
                outputs += p
        elif p is not None:
            outputs.append(p)
    return [as_tensor_variable(y) for y in outputs], updates, condition


def scan(
    fn: Callable[..., Any], sequences: Any = None, outputs_info: Any = None,
    non_sequences: Any = None, n_steps: Any = None, truncate_gradient: int = -1,
    go_backwards: bool = False, mode: Any = None, name: str | None = None, profile: Any = False,
    allow_gc: Any = None, strict: bool = False, return_list: bool = False,
) -> tuple[Any, OrderedUpdates]:  # fmt: skip
    """Call a step for each row of sequences.

    Args:
        fn: The step, of one row of each sequence, of earlier outputs, and of non_sequences. It
            returns outputs; besides, updates as a dict, and `until(condition)`.
        sequences: Variables, or {"input": variable, "taps": [...]} for rows around the present.
        outputs_info: For each output its value before the first step, {"initial": variable, "taps":
            [...]}, or None where no step sees it.
        n_steps: How often; as often as sequences have rows if left out. It may be computed: then
            there is a program for each value.
        truncate_gradient: Gradients go through so many of the last steps; -1: through all.
        go_backwards: Whether the last rows come first.
    Returns:
        The outputs of all steps, one alone where there is only one; and updates.
    Raises:
        ValueError: There are neither sequences nor n_steps, or outputs do not fit outputs_info.
    """
    first = next(ws.Operator.numbers)
    rows, lengths = _rows(_list(sequences), go_backwards)
    if not lengths and n_steps is None:
        raise ValueError("scan: there are neither sequences nor n_steps: how often?")
    count: Any = n_steps
    if count is None:
        count = lengths[0]
        for length in lengths[1:]:
            count = E.minimum(count, length)
    holes = [_hole(x.sizes[1:], x.dtype) for x in rows]
    info = _list(outputs_info)
    states = [
        None if i is None or isinstance(i, Mapping) and i.get("initial") is None else _State(i)
        for i in info
    ]
    seen = [h for s in states if s is not None for h in s.holes]
    outputs, updates, condition = _returned(fn(*holes, *seen, *_list(non_sequences)))
    if not states:
        states = [None] * len(outputs)
    if len(states) != len(outputs):
        raise ValueError(
            f"scan: {len(states)} of outputs_info, and the step returned {len(outputs)}"
        )
    outputs = [
        y if s is None else E.cast(y, s.initial.dtype) for s, y in zip(states, outputs, strict=True)
    ]
    for s, y in zip(states, outputs, strict=True):
        if s is not None and y.ndim != len(s.sizes):
            raise ValueError(
                f"scan: an output has {y.ndim} axes, and its initial value {len(s.sizes)}"
            )
    kept = list(updates)
    new = [E.cast(v, x.dtype) for x, v in updates.items()]
    targets = [*outputs, *new, *([] if condition is None else [condition])]
    body = ws.Body([*holes, *seen, *kept], targets, first)
    initials = [s.initial for s in states if s is not None]
    loop = _Loop(body, len(holes), states, kept, int(truncate_gradient), condition is not None)
    sizes = [(None, *y.sizes) for y in outputs] + [x.sizes for x in kept]
    dtypes = [y.dtype for y in outputs] + [x.dtype for x in kept]
    if condition is not None:
        sizes.append(())
        dtypes.append("int64")
    op = Apply(
        "scan",
        loop,
        [count, *rows, *initials, *kept, *body.around],
        sizes,
        dtypes,
        constant=body.constant,
    )
    op.wrt = body.wrt
    results = list(op.outputs)
    if condition is not None:
        done = results.pop()
        results = [y[:done] for y in results[: len(outputs)]] + results[len(outputs) :]
    found = results[: len(outputs)]
    for y in found:
        y.name = name
    changed = OrderedUpdates(zip(kept, results[len(outputs) :], strict=True))
    if len(found) == 1 and not return_list:
        return found[0], changed
    return found or None, changed


def _rows(sequences: list[Any], backwards: bool) -> tuple[list[Any], list[Any]]:
    """For each tap the rows that steps see, and how many there are of each sequence."""
    rows, lengths = [], []
    for entry in sequences:
        x = as_tensor_variable(entry["input"] if isinstance(entry, Mapping) else entry)
        taps = _list(entry.get("taps", [0])) if isinstance(entry, Mapping) else [0]
        x = x[::-1] if backwards else x
        low, high = min(min(taps), 0), max(max(taps), 0)
        size = x.shape[0]
        lengths.append(E.sub(size, high - low) if high - low else size)
        for t in taps:
            start, behind = t - low, high - t
            rows.append(x if not start and not behind else x[start : -behind or None])
    return rows, lengths


class _Loop:
    """Writes the loop down."""

    def __init__(
        self, body: ws.Body, rows: int, states: Any, kept: Any, truncate: int, ends: bool
    ) -> None:
        self.body, self.rows, self.kept = body, rows, kept
        self.states = states
        self.truncate, self.ends = truncate, ends

    def __call__(self, count: Any, *values: Any) -> list[Any]:
        n = int(value_now(count, "n_steps"))
        if n < 0:
            raise ValueError(f"scan: n_steps is {n}, wanted 0 or more")
        a, b = self.rows, sum(s is not None for s in self.states)
        c = b + a + len(self.kept)
        for x in values[:a]:
            if x.shape[0] < n:
                raise ValueError(f"scan: a sequence has {x.shape[0]} rows, and there are {n} steps")
        around = values[c:]
        rows = [x if x.shape[0] == n else x[:n] for x in values[:a]]
        states = iter(values[a : a + b])
        carried = [v for s in self.states if s is not None for v in s.before(next(states))] + [
            _held(v) for v in values[a + b : c]
        ]
        if self.ends:
            return self._until(n, rows, carried, around)
        cut = n - self.truncate if 0 <= self.truncate < n else 0
        early: list[Any] = []
        if cut:
            carried, early = self._steps(rows, carried, around, 0, cut)
            carried, early = [F.unlink(v) for v in carried], [F.unlink(y) for y in early]
        carried, ys = self._steps(rows, carried, around, cut, n)
        if cut:
            ys = [F.concatenate(x, y, axis=0) for x, y in zip(early, ys, strict=True)]
        return [*ys, *carried[len(carried) - len(self.kept) :]]

    def _steps(
        self, rows: Any, carried: Any, around: Any, start: int, stop: int
    ) -> tuple[list[Any], list[Any]]:
        xs = [var(x[start:stop] if stop - start < x.shape[0] else x) for x in rows]
        xs = xs or [var(np.zeros(stop - start, np.float32))]

        def step(carry: Any, row: Any) -> tuple[Any, Any]:
            new, ys = self._once(carry, row, around)
            return tuple(new), tuple(ys)

        carry, ys = _scan(step, tuple(carried), tuple(xs))
        return list(carry), list(ys)

    def _once(self, carry: Any, row: Any, around: Any, ends: bool = False) -> Any:
        given, windows, at = list(row[: self.rows]), [], 0
        for s in self.states:
            if s is None:
                continue
            window = list(carry[at : at + s.depth])
            windows.append(window)
            at += s.depth
            given += [window[s.depth + tap] for tap in s.taps]
        given += carry[at:]
        typed = [tagged(v, t.dtype) for v, t in zip(given, self.body.given, strict=True)]
        pairs = zip(self.body(typed, around), self.body.results, strict=True)
        made = [_held(cast(v, t.dtype)) for v, t in pairs]
        m = len(self.states)
        new, of = [], iter(windows)
        for s, y in zip(self.states, made[:m], strict=True):
            if s is not None:
                new += [*next(of)[1:], y]
        new += made[m : m + len(self.kept)]
        return (new, made[:m], made[-1]) if ends else (new, made[:m])

    def _until(self, n: int, rows: Any, carried: Any, around: Any) -> list[Any]:
        """With a condition: at most n steps, and how many there were."""
        xs = [var(x) for x in rows]

        def body(done: Any, goes: Any, *carry: Any) -> Any:
            row = [F.gather(x, done, axis=0) for x in xs]
            new, ys, ends = self._once(carry, row, around, True)
            goes = F.reshape(F.equal_scalar(ends, 0.0), ())
            return (F.add_scalar(done, 1.0), goes, *new, *ys)

        start = [var(np.zeros((), np.float32)), var(np.ones((), np.float32))]
        made = while_loop(lambda done, goes, *_: goes, body, *start, *carried, max_trips=n)
        k = 2 + len(carried)
        return [*made[k:], *made[k - len(self.kept) : k], made[0]]


def map(fn: Any, sequences: Any, non_sequences: Any = None, **more: Any) -> Any:
    """The results of a function of each row."""
    return scan(fn, sequences, None, non_sequences, **more)


def foldl(
    fn: Any, sequences: Any, outputs_info: Any, non_sequences: Any = None, **more: Any
) -> Any:
    """The last result of a function of each row and of the result before it."""
    found, updates = scan(fn, sequences, outputs_info, non_sequences, **more)
    return [y[-1] for y in found] if isinstance(found, list) else found[-1], updates


reduce = foldl


def foldr(
    fn: Any, sequences: Any, outputs_info: Any, non_sequences: Any = None, **more: Any
) -> Any:
    """The same from the last row to the first."""
    return foldl(fn, sequences, outputs_info, non_sequences, go_backwards=True, **more)


def ifelse(condition: Any, then_branch: Any, else_branch: Any, name: str | None = None) -> Any:
    """One of two values, or of two lists of them; what computes the other one runs as well.

    Where both have not the same sizes there is a program for each outcome of the condition.
    """

    def compute(c: Any, a: Any, b: Any) -> Any:
        if known(c) or shape_of(a) != shape_of(b):
            return a if value_now(c, "the condition") else b
        return E.handled("Where", cast(c, bool), a, b)

    pairs = zip(_list(then_branch), _list(else_branch), strict=True)
    found = []
    for a, b in pairs:
        a, b = as_tensor_variable(a), as_tensor_variable(b)
        dtype = promoted(a, b)
        sizes = tuple([m if m == n else None for m, n in zip(a.sizes, b.sizes, strict=True)])
        found.append(
            made("ifelse", compute, [condition, E.cast(a, dtype), E.cast(b, dtype)], sizes, dtype)
        )
    return found if isinstance(then_branch, (list, tuple)) else found[0]
