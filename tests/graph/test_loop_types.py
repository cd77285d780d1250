# SPDX-License-Identifier: Apache-2.0
"""while_loop and switch over values of every mixture of types, in every order, in every mode."""

import itertools

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.ops.op import OPS
from tests.graph.test_switch import backend, leaf  # noqa: F401

ml_dtypes = pytest.importorskip("ml_dtypes")
VALUES = {
    "int32": np.array(2, np.int32),
    "int64": np.array([2**40 + 1, 4]),
    "bool": np.array([True, False, False]),
    "float32": np.array([[0.25, 0.5]], np.float32),
    "bfloat16": np.array([0.25, 0.75], ml_dtypes.bfloat16),
}
MOST = 5


def orders():
    """All pairs, and a few of what is longer."""
    for n, every in ((1, 1), (2, 1), (3, 9), (5, 41)):
        yield from itertools.islice(itertools.permutations(VALUES, n), None, None, every)


def twice(x):
    """2 x, not x for booleans, in the type of x, as numpy defines it."""
    y = ~x if x.dtype == bool else x + x
    return y.astype(x.dtype)


def next_of(x, name):
    if name == "bool":
        return OPS["cast"](F.logical_not(x), dtype=name)
    # whole numbers of more than 24 bits do not survive float32
    return x if name == "int64" else OPS["cast"](x + x, dtype=name)


class Loop:
    """A counter at `place` among the carried values; each trip doubles all but int64."""

    def __init__(self, order, place, rows):
        self.order, self.place, self.rows = order, place, rows
        self.inputs = {f"x{k}": VALUES[t] for k, t in enumerate(order)}
        self.inputs["trips"] = np.array(0, np.int32)

    def wanted(self, trips):
        xs, rows = [VALUES[t] for t in self.order], []
        for _ in range(trips):
            rows.append(xs)
            xs = [x if x.dtype == np.int64 else twice(x) for x in xs]
        found = list(xs)
        found.insert(self.place, np.array(trips))
        if self.rows:
            for k, x in enumerate(xs):
                stack = np.zeros((MOST, *x.shape), x.dtype)
                stack[:trips] = [r[k] for r in rows] if rows else 0
                found.append(stack)
        return found

    def loop(self, *xs):
        *xs, limit = xs
        xs.insert(self.place, leaf(np.array(0)))

        def body(*xs):
            xs = list(xs)
            count = xs.pop(self.place)
            ys = [next_of(x, t) for x, t in zip(xs, self.order, strict=True)]
            ys.insert(self.place, OPS["cast"](count + 1, dtype="int64"))
            return (*ys, *xs) if self.rows else tuple(ys)

        def goes_on(*xs):
            return F.less(xs[self.place], limit)

        ys = nn.while_loop(goes_on, body, *xs, max_trips=MOST)
        return ys if isinstance(ys, tuple) else (ys,)


def same(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_array_equal(a, b)


def check_modes(function, inputs, cases, path):
    """A function of Variables gives what is wanted in every mode.

    Args:
        cases: (values of inputs, what is wanted) of each run.
    """
    leaves = {k: leaf(v) for k, v in inputs.items()}
    ys = function(*leaves.values())
    outputs = {f"y{k}": y for k, y in enumerate(ys)}
    nn.save_program(path, outputs, leaves)
    found = nn.load_program(path)
    compiled = nn.compile(function)
    for values, wanted in cases:
        for k, v in values.items():
            leaves[k].d = v
        nn.forward_all(ys)
        same([y.d for y in ys], wanted)
        nn.forward_all(ys, clear_buffer=True)
        same([y.d for y in ys], wanted)
        with nn.auto_forward():
            same([y.d for y in function(*map(leaf, values.values()))], wanted)
        same([y.d for y in compiled(*map(leaf, values.values()))], wanted)
        got = found.run(**values)
        same([got[k] for k in outputs], wanted)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("first", [True, False], ids=["counter first", "counter last"])
def test_loops_over_mixed_types(first, rows, backend, tmp_path):  # noqa: F811
    for order in [(), *orders()]:
        net = Loop(order, 0 if first else len(order), rows)
        cases = [({**net.inputs, "trips": np.array(n, np.int32)}, net.wanted(n)) for n in (0, 3)]
        check_modes(net.loop, net.inputs, cases, tmp_path / "x.nnlp")


def test_switches_over_mixed_types(backend, tmp_path):  # noqa: F811
    for order in orders():

        def function(*xs, order=order):
            def change(*xs):
                return tuple([next_of(x, t) for x, t in zip(xs, order, strict=True)])

            ys = nn.switch(xs[0], [change, lambda *xs: xs], *xs[1:])
            return ys if isinstance(ys, tuple) else (ys,)

        xs = [VALUES[t] for t in order]
        inputs = {"i": np.array(0), **{f"x{k}": x for k, x in enumerate(xs)}}
        changed = [x if x.dtype == np.int64 else twice(x) for x in xs]
        cases = [({**inputs, "i": np.array(i)}, w) for i, w in ((0, changed), (1, xs))]
        check_modes(function, inputs, cases, tmp_path / "x.nnlp")
