# SPDX-License-Identifier: Apache-2.0
"""Graphs die by reference count, long chains work, plans share memory, caches are bounded."""

import gc
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import Spec
from nnl.core.ops.op import OPS
from nnl.graph.execution.session import session_of
from nnl.graph.plan.memory import ALIGN, plan_memory
from tests.core.conftest import leaf


@pytest.fixture(autouse=True)
def _no_collector():
    gc.disable()
    yield
    gc.enable()


def watched(*variables):
    """Weak references to what a Variable holds: the handle, the data and the gradient."""
    return [weakref.ref(o) for v in variables for o in (v, v.data)]


def alive(references):
    return sum(r() is not None for r in references)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("clear", [False, True])
def test_a_graph_and_its_leaves_die_with_the_last_handle(dynamic, clear):
    with nn.auto_forward(dynamic):
        x = leaf([1, 2])
        h = x * x
        y = F.sum(h * h)
        y.forward(clear_no_need_grad=clear)
        y.backward(clear_buffer=clear)
        y.forward()
        y.backward()
    references = watched(x, h, y)
    del x, h, y
    assert alive(references) == 0


def test_a_graph_dies_after_grad_hooks_recompute_and_forward_all():
    x = leaf([1, 2])
    with nn.recompute():
        h = x * x
    y = h * h
    (g,) = nn.grad([y], [x])
    z = F.sum(g * y)
    nn.forward_all([y, z], function_pre_hook=lambda f: f.inputs)
    z.forward(clear_no_need_grad=True)
    z.backward(clear_buffer=True)
    z.forward(function_pre_hook=lambda f: f.inputs)
    z.backward(function_post_hook=lambda f: f.outputs)
    references = watched(x, h, y, g, z)
    del x, h, y, g, z
    assert alive(references) == 0


def test_a_failed_backward_leaves_nothing_behind():
    x = leaf([1, 2])
    h = x * x
    y = F.sum(h * h)
    y.forward(clear_buffer=True)
    with pytest.raises(ValueError):
        y.backward()
    references = watched(x, h, y)
    del x, h, y
    assert alive(references) == 0


def test_a_compiled_function_frees_its_arguments_and_itself():
    def make():
        w = leaf([3, 4])

        def step(x):
            y = F.sum(x * w)
            y.forward()
            y.backward()
            return y

        return nn.compile(step), [*watched(w), weakref.ref(step)]

    run, inner = make()
    x = leaf([1, 2], False)
    y = run(x)
    references = watched(x, y)
    del x, y
    assert alive(references) == 0
    assert alive(inner) == 3
    del run
    assert alive(inner) == 0


def test_a_python_function_dies_with_its_graph():
    class Double(nn.function.PythonFunction):
        def min_outputs(self):
            return 1

        def setup_impl(self, inputs, outputs):
            outputs[0].reset_shape(inputs[0].shape, True)

        def forward_impl(self, inputs, outputs):
            outputs[0].d = 2 * inputs[0].d

    f = Double()
    y = f(leaf([1, 2]))
    y.forward()
    references = watched(y)
    del y
    assert alive(references) == 0


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_chain_of_20000_functions_runs_and_dies_without_recursion(dynamic):
    n = 20_000
    x = leaf([1])
    with nn.auto_forward(dynamic):
        y = x
        for _ in range(n):
            y = F.add_scalar(y, 1.0)
    if not dynamic:
        y.forward(clear_no_need_grad=True)
    y.backward(clear_buffer=True)
    np.testing.assert_array_equal(y.d, [n + 1])
    np.testing.assert_array_equal(x.g, [1])
    reference = weakref.ref(x.data)
    del x, y
    assert reference() is None


def test_many_functions_die_at_once():
    """Without the garbage collector, in well under a second."""
    y = x = leaf([1])
    for _ in range(300_000):
        y = F.add_scalar(y, 1.0)
    reference = weakref.ref(x.data)
    gc.disable()
    try:
        start = time.perf_counter()
        del x, y
        seconds = time.perf_counter() - start
    finally:
        gc.enable()
    assert reference() is None and seconds < 1  # 0.06 s seen; the rest is room for a busy machine


def test_dynamic_mode_frees_intermediates_that_no_backward_needs():
    with nn.auto_forward():
        x = leaf([1, 2])
        h = x + 1
        kept = h * h  # needs h
        passed = h + 1
        dead = weakref.ref(passed.data)
        needed = weakref.ref(h.data)
        y = F.sum(passed + kept)
        del passed, h, kept
        assert dead() is None and needed() is not None
        y.backward(clear_buffer=True)
        assert needed() is None
    np.testing.assert_array_equal(x.g, [5, 7])  # ((x + 1)^2 + x + 2)'


def test_dynamic_mode_without_gradients_keeps_nothing():
    with nn.auto_forward(), nn.no_grad():
        h = leaf([1, 2]) * 2
        reference = weakref.ref(h.data)
        y = h * h
        del h
        assert reference() is None
        np.testing.assert_array_equal(y.d, [4, 16])


# ---- plans ----


def overlaps(intervals, offsets):
    """Pairs that overlap in time and in space, by brute force over steps and bytes."""
    owner = {}
    for key, (first, last, size) in intervals.items():
        for t in range(first, last + 1):
            for byte in range(offsets[key], offsets[key] + size):
                if owner.setdefault((t, byte), key) != key:
                    yield key, owner[t, byte]


@pytest.mark.parametrize("seed", range(30))
def test_plan_memory_never_overlaps_and_is_never_larger_than_the_sum(seed):
    rng = np.random.default_rng(seed)
    intervals = {}
    for key in range(rng.integers(1, 25)):
        first = int(rng.integers(0, 12))
        intervals[key] = (first, first + int(rng.integers(0, 6)), int(rng.integers(0, 200)))
    offsets, arena = plan_memory(intervals)
    assert not list(overlaps(intervals, offsets))
    assert all(at % ALIGN == 0 for at in offsets.values())

    def rounded(n):
        return -(-n // ALIGN) * ALIGN

    busy = [sum(rounded(n) for a, b, n in intervals.values() if a <= t <= b) for t in range(20)]
    assert max(busy) <= arena <= sum(rounded(n) for *_, n in intervals.values())
    assert all(at + intervals[key][2] <= arena for key, at in offsets.items())


def test_plan_memory_reuses_what_has_died():
    offsets, arena = plan_memory({i: (i, i + 1, 64) for i in range(10)})
    assert arena == 128


def deep(n=20, size=256):
    x = leaf(np.ones(size))
    h = x
    for _ in range(n):
        h = F.add_scalar(F.mul_scalar(h, 0.5), 1.0)
    return x, F.sum(h * h)


def test_clearing_forwards_use_less_memory():
    x, y = deep()
    plans = {}
    for mode, kw in (("keep", {}), ("infer", {"clear_buffer": True})):
        y.forward(**kw)
        plans[mode] = session_of([y]).plans[mode].plan
    y.forward(clear_no_need_grad=True)
    y.backward(clear_buffer=True)
    plans["train"] = session_of([y]).plans["train"].plan
    assert not plans["keep"].offsets  # every intermediate has a buffer of its own
    for mode in ("infer", "train"):
        p = plans[mode]
        assert p.arena_bytes <= 4 * x.data.spec.nbytes
    with nn.auto_forward():
        expected = leaf(x.d)
        h = expected
        for _ in range(20):
            h = h * 0.5 + 1
        F.sum(h * h).backward()
    np.testing.assert_allclose(x.g, expected.g, rtol=1e-6)


# ---- caches ----


def test_a_scalar_that_changes_at_every_call_does_not_fill_memory():
    x = leaf([1, 2])
    op = OPS["mul_scalar"]
    with nn.auto_forward():
        for i in range(3000):
            x * (1.0 + i)
            F.sum(x * (1.0 + i))
    assert max(len(op._interned), len(op._raw), len(op._calls)) <= 512


def test_no_call_keeps_the_inputs_that_it_was_given_by_name():
    x = leaf([1, 2])
    held = sys.getrefcount(x)
    for _ in range(3):
        F.mul_scalar(x=x, val=3.5)
        F.sum(x=x, axis=0)
    assert sys.getrefcount(x) == held


def test_a_shape_that_changes_at_every_call_does_not_fill_memory():
    with nn.auto_forward():
        for n in range(1, 1500):
            F.sum(leaf(np.ones(n)) * 2.0)
    assert len(OPS["mul_scalar"].attrs(val=2.0).bound) <= 512
    for attrs in OPS["sum"]._interned.values():
        assert len(attrs.bound) <= 512 and len(attrs.resolved) <= 512


def test_specs_that_nobody_holds_are_forgotten():
    held = [Spec.of((i, 5, 3)) for i in range(100)]
    for i in range(20_000):
        Spec.of((i, 5, 7))
    assert len(Spec._table) < 12_000
    assert all(Spec.of((i, 5, 3)) is spec for i, spec in enumerate(held))


def test_threads_that_make_a_spec_at_a_time_get_one():
    made = [[] for _ in range(4)]

    def make(into):
        for i in range(5_000):
            into.append(Spec.of((i, 5, 9)))

    threads = [threading.Thread(target=make, args=(into,)) for into in made]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(len(set(map(id, specs))) == 1 for specs in zip(*made, strict=True))
