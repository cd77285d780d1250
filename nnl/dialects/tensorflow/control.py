# SPDX-License-Identifier: Apache-2.0
"""Conditions, and loops whose bodies are parts of a graph."""

from __future__ import annotations

import numpy as np

import nnl.functions as F
import nnl.workspace as ws
from nnl.converters.onnx.importing.shape import part
from nnl.converters.onnx.values.values import dtype_of, is_var, tagged, var
from nnl.core.ops.op import OPS
from nnl.dialects.tensorflow.graph import Tensor, get_default_graph
from nnl.dialects.tensorflow.operation import Operation
from nnl.dialects.tensorflow.shapes import in_both
from nnl.dialects.tensorflow.table import N, tensor
from nnl.dialects.tensorflow.variables import choose, group
from nnl.graph import while_loop as recorded_loop


def flatten(structure):
    """What is in lists, tuples and dicts, in order."""
    if isinstance(structure, dict):
        return [x for k in sorted(structure) for x in flatten(structure[k])]
    if isinstance(structure, (list, tuple)):
        return [x for part in structure for x in flatten(part)]
    return [structure]


def packed(structure, values):
    """Values in the places that a structure has for them."""
    found = iter(values)

    def build(part):
        if isinstance(part, dict):
            return {k: v for k, v in zip(sorted(part), [build(part[k]) for k in sorted(part)])}  # noqa: B905
        if isinstance(part, (list, tuple)):
            parts = [build(p) for p in part]
            return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
        return next(found)

    return build(structure)


def map_structure(func, *structures):
    """A function of every part of structures that are alike."""
    return packed(structures[0], [func(*x) for x in zip(*map(flatten, structures), strict=True)])


def cond(pred, true_fn=None, false_fn=None, strict=False,
         name=None, fn1=None, fn2=None):  # fmt: skip
    """What one of two functions gives. Assignments in the other one are not done."""
    branches = (true_fn or fn1), (false_fn or fn2)
    if not isinstance(pred, ws.Tensor):
        raise TypeError("pred must not be a Python bool")
    graph, outer = get_default_graph(), get_default_graph().guards
    results = []
    for wanted, branch in zip((True, False), branches, strict=True):
        graph.guards = (*outer, (pred, wanted))
        try:
            results.append(branch())
        finally:
            graph.guards = outer
    first, second = map(flatten, results)
    if any(isinstance(x, ws.Operator) or x is None for x in (*first, *second)):
        return group(*[x for x in (*first, *second) if x is not None])
    if len(first) != len(second):
        raise ValueError(
            f"true_fn and false_fn must return the same number of outputs: {len(first)} and "
            f"{len(second)}"
        )
    xs = [tensor(x) for x in first]
    ys = [tensor(y) for y in second]
    for x, y in zip(xs, ys, strict=True):
        if x.dtype != y.dtype:
            raise TypeError(f"cond: the branches give {x.dtype.name} and {y.dtype.name}")
    n = len(xs)

    def compute(p, *values):
        return [choose(p, x, y) for x, y in zip(values[:n], values[n:], strict=True)]

    made = Operation(
        "cond", compute, (pred, *xs, *ys), name, count=n, dtypes=[x.dtype for x in xs],
        shapes=[in_both(x.sizes, y.sizes) for x, y in zip(xs, ys, strict=True)],
    )  # fmt: skip
    return packed(results[0], made.outputs)


def smart_cond(pred, true_fn, false_fn):
    """cond, decided at once where the condition is a bool of Python."""
    if isinstance(pred, ws.Tensor):
        return cond(pred, true_fn, false_fn)
    return true_fn() if pred else false_fn()


def case(pred_fn_pairs, default=None, exclusive=False, name=None):
    """What the first function gives whose condition holds."""
    pairs = list(pred_fn_pairs.items() if isinstance(pred_fn_pairs, dict) else pred_fn_pairs)
    (pred, fn), *rest = pairs
    if not rest and default is None:
        return fn()
    return cond(pred, fn, (lambda: case(rest, default)) if rest else default)


def Assert(condition, data=None, summarize=None, name=None):  # noqa: N802
    """An operation that stops the session where a condition does not hold."""
    whole = N.reduce_all(condition)
    made = Operation("Assert", lambda v: v, [whole], name or "Assert", dtypes=[np.bool_])
    made.message = str(data)
    known = whole.samples[0]
    if isinstance(known, np.ndarray) and np.array_equal(known, whole.samples[1]) and not known:
        raise ValueError(f"assertion failed: {data}")
    return made


def _assertion(relation):
    def function(x, y, data=None, summarize=None, message=None,
                 name=None):  # fmt: skip
        text = f"{message or ''} {x!r} {relation} {y!r}"
        return Assert(N[relation](x, y), text, name=name or f"assert_{relation}")

    function.__name__, function.__doc__ = f"assert_{relation}", f"Assert that {relation} holds."
    return function


assert_equal, assert_less, assert_less_equal, assert_greater, assert_greater_equal = map(
    _assertion, ("equal", "less", "less_equal", "greater", "greater_equal")
)


def _body(function, likes):
    """What a function makes of tensors: (the part of the graph, the structure of its results).

    Args:
        function: Gives a structure of tensors.
        likes: What it gets: (sizes, type) of each.
    """
    graph, first = get_default_graph(), next(ws.Operator.numbers)
    with graph.control_dependencies(None):
        given = [
            Tensor(graph.workspace, graph.unique("Placeholder"), sizes, dtype)
            for sizes, dtype in likes
        ]
        structure = function(*given)
        body = ws.Body(given, [tensor(x) for x in flatten(structure)], first)
    if any(op.writes for op in body.operators):
        raise NotImplementedError("a loop: its body assigns a variable; do that after the loop")
    return body, structure


def while_loop(cond, body, loop_vars, shape_invariants=None,
               parallel_iterations=10, back_prop=True, swap_memory=False,
               name=None, maximum_iterations=None, **_):  # fmt: skip
    """A function again and again for as long as a condition holds.

    Gradients need a condition that does not depend on values, or maximum_iterations.
    """
    starts = [tensor(x) for x in flatten(loop_vars)]
    shapes = [x.sizes for x in starts]
    if shape_invariants is not None:
        shapes = [s.sizes for s in flatten(shape_invariants)]
    likes = [(s, x.dtype) for s, x in zip(shapes, starts, strict=True)]

    def called(f):
        return lambda *given: f(*packed(loop_vars, given))

    (test, _), (step, _) = _body(called(cond), likes), _body(called(body), likes)
    n, m = len(starts), len(test.around)
    if len(step.results) != n:
        raise ValueError(
            "The number of inputs and outputs of body must match loop_vars: Got "
            f"{len(step.results)} outputs for {n} inputs"
        )

    def compute(*values):
        state, here, there = list(values[:n]), values[n : n + m], values[n + m :]
        trips = 0
        while maximum_iterations is None or trips < maximum_iterations:
            (goes,) = test(state, here)
            if is_var(goes):
                return _recorded(test, step, state, here, there, maximum_iterations)
            if not bool(goes):
                break
            state, trips = step(state, there), trips + 1
            if trips > 10**5:
                raise ValueError("while_loop: more than 100000 turns")
        return state

    made = Operation(
        "while", compute, (*starts, *test.around, *step.around), name, count=n,
        dtypes=[x.dtype for x in starts], constant=test.constant and step.constant,
    )  # fmt: skip
    made.wrt = (*test.wrt, *step.wrt)
    result = packed(loop_vars, made.outputs)
    return result[0] if isinstance(result, (list, tuple)) and len(result) == 1 else result


def _recorded(test, step, state, here, there, most):
    """A loop of which only values say when it ends."""
    kinds = [dtype_of(v) for v in state]
    start = [var(v) for v in state]

    def typed(xs):
        return [tagged(x, k) for x, k in zip(xs, kinds, strict=True)]

    def body(*xs):
        made = [var(v) for v in step(typed(xs), there)]
        return tuple(
            [
                v if v.spec.dtype == s.spec.dtype else OPS["cast"](v, dtype=s.spec.dtype.name)
                for v, s in zip(made, start, strict=True)
            ]
        )

    ends = recorded_loop(lambda *xs: test(typed(xs), here)[0], body, *start, max_trips=most)
    return typed(ends if isinstance(ends, (list, tuple)) else [ends])


def over_rows(function, rows, state, backwards=False, name=None):
    """A function of a state and a row of each tensor, along their first axis.

    Args:
        function: f(state, rows) -> (results, state).
    Returns:
        Results of all rows along a new first axis, the last state.
    """
    xs, starts = [tensor(x) for x in flatten(rows)], [tensor(s) for s in flatten(state)]
    lengths = {x.sizes[0] for x in xs if x.sizes is not None} - {None}
    if len(lengths) > 1:
        raise ValueError(f"{name}: tensors have {sorted(lengths)} rows, wanted one number")
    likes = [(s.sizes, s.dtype) for s in starts]
    likes += [(None if x.sizes is None else x.sizes[1:], x.dtype) for x in xs]
    n, m = len(starts), len(xs)

    def step(*given):
        results, after = function(packed(state, given[:n]), packed(rows, given[n:]))
        return after, results

    body, (_, shape) = _body(step, likes)
    count = len(body.results) - n

    def compute(*values):
        states, whole, around = list(values[:n]), values[n : n + m], values[n + m :]
        made = []
        for i in range(whole[0].shape[0])[:: -1 if backwards else 1]:
            results = body([*states, *[row(v, i) for v in whole]], around)
            states = results[:n]
            made.append(results[n:])
        made = made[:: -1 if backwards else 1]
        columns = list(zip(*made, strict=True)) or [[]] * count
        return [*states, *[stacked(c) for c in columns]]

    length = next(iter(lengths), None)
    ends = body.results
    shapes = [s.sizes for s in starts]
    shapes += [None if r.sizes is None else (length, *r.sizes) for r in ends[n:]]
    made = Operation(
        name or "scan", compute, (*starts, *xs, *body.around), count=n + count,
        dtypes=[r.dtype for r in ends], shapes=shapes, constant=body.constant,
    )  # fmt: skip
    made.wrt = body.wrt
    return packed(shape, made.outputs[n:]), packed(state, made.outputs[:n])


def row(v, i):
    """One part along the first axis."""
    if not is_var(v):
        return v[i]
    return tagged(F.reshape(part(v, 0, i, i + 1), v.shape[1:]), dtype_of(v))


def stacked(values):
    """Values along a new first axis."""
    if not any(map(is_var, values)):
        return np.stack(values)
    return tagged(F.stack(*map(var, values), axis=0), dtype_of(values[0]))


def map_fn(fn, elems, dtype=None, parallel_iterations=None,
           back_prop=True, swap_memory=False, infer_shape=True,
           name=None):  # fmt: skip
    """A function of every part along the first axis."""
    return over_rows(lambda _, x: (fn(x), ()), elems, (), name=name or "map")[0]


def scan(fn, elems, initializer=None, reverse=False, name=None,
         **_):  # fmt: skip
    """What a function makes of its last result and every part, all of them."""
    first = initializer
    if initializer is None:
        parts = [tensor(x) for x in flatten(elems)]
        first = packed(elems, [x[-1 if reverse else 0] for x in parts])
        elems = packed(elems, [x[:-1] if reverse else x[1:] for x in parts])

    def step(state, x):
        made = fn(state, x)
        return made, made

    every, _last = over_rows(step, elems, first, reverse, name or "scan")
    if initializer is None:
        parts = [N.expand_dims(x, 0) for x in flatten(first)]
        order = (lambda a, b: [b, a]) if reverse else (lambda a, b: [a, b])
        joined = [N.concat(order(a, b), 0) for a, b in zip(parts, flatten(every), strict=True)]
        every = packed(every, joined)
    return every


def foldl(fn, elems, initializer=None, name=None, **_):
    """What a function makes of its last result and every part, the last of them."""
    every = scan(fn, elems, initializer, name=name)
    return packed(every, [x[-1] for x in flatten(every)])
