# SPDX-License-Identifier: Apache-2.0
"""Calls of ops in C do what Op.call, the definition, does; they are only faster."""

from __future__ import annotations

import gc
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import Spec
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import Op
from nnl.ext.library import native_spec
from tests.native.kernels import require_library
from tests.native.test_threads import in_threads
from tests.test_derived import CASES, Case, samples

# A call takes `outputs` for the arrays of its results.
SAMPLED = {p.values[0].name: p.values[0] for p in CASES if "outputs" not in p.values[0].fields}


@pytest.fixture(autouse=True)
def _library() -> None:
    require_library()


def variable(*shape: int, need_grad: bool = True) -> Variable:
    v = nn.Variable(shape, need_grad=need_grad)
    v.d = np.linspace(-1, 1, v.size, dtype=np.float32).reshape(shape)
    return v


def contents(x: Any) -> Any:
    """What arrays hold."""
    if isinstance(x, tuple):
        return [contents(y) for y in x]
    return None if x is None else x.data.tobytes()


def told_by(y: Any) -> Any:
    """All that a result says of itself and of how it was computed."""
    if isinstance(y, NdArray):
        return y.spec, list(y.bufs), y.read("host").tobytes(), y.record
    edge, node = y.edge, y.edge.node
    assert type(y) is Variable and y.sessions is None and y.info is None
    flags = edge.index, edge.need_grad, edge.persistent, edge.recompute, edge.name, edge.own_grad
    assert (edge.spec, edge.data) == (y.spec, None if node else y.data)
    if node is None:
        return told_by(y.data), flags
    live = [r() for r in node.live]
    assert live[edge.index] is y.data
    made = node.op, node.attrs, node.out_specs, node.target, node.need_grad
    unset = node.outs, node.grads, node.info, node.origin
    inputs = [v if v is None else (v.index, v.spec, v.need_grad) for v in node.inputs]
    held = [nd and nd.spec for nd in live]
    return told_by(y.data), flags, made, unset, inputs, held, contents(node.saved)


def outcome(call: Callable[..., Any], case: Case, as_arrays: bool) -> list[Any]:
    """What a call gives, does to its inputs, and what the gradients are then."""
    xs: list[Any] = case.variables()
    if as_arrays:  # every other one
        xs = [x if x is None or k % 2 else x.data for k, x in enumerate(xs)]
    nn.seed(3)
    y = call(*xs, **case.attrs)
    ys = y if isinstance(y, tuple) else (y,)
    arrays = [x.data if isinstance(x, Variable) else x for x in xs]
    found = [type(y), *map(told_by, ys), contents(tuple(arrays))]
    for y in ys:
        if isinstance(y, Variable) and y.need_grad:
            y.backward(np.linspace(-1, 1, y.size).reshape(y.shape))
            found += [x.g.tobytes() for x in xs if x is not None and x.need_grad]
    return found


@pytest.mark.parametrize("op", SAMPLED.values(), ids=SAMPLED)
def test_calls_do_what_the_definition_does(op: Op) -> None:
    for i in range(min(len(samples(op)), 4)):
        case = Case(op, i, np.float32)
        for as_arrays, need in ((False, True), (False, False), (True, True)):
            with np.errstate(all="ignore"), nn.auto_forward(), nn.no_grad(not need):
                want = outcome(op.call, case, as_arrays)
                assert outcome(op, case, as_arrays) == want


def filled() -> NdArray:
    nd = NdArray(2, 3)
    nd.fill(2)
    return nd


USUAL = {
    "add2": lambda x: F.add2(x, x),
    "operator": lambda x: x * x,
    "scalar": lambda x: x + 2.5,
    "left out": lambda x: F.affine(F.reshape(x, (4, 6)), variable(6, 2)),
    "by position": lambda x: F.mean(x, 1, True),
    "by name": lambda x: F.sum(x, axis=(1, 2), keepdims=True),
    "zero": lambda x: F.leaky_relu(x, alpha=0.0),
    "zeros": lambda x: F.pad(x, (0, 1), constant_value=0.0),
    "no inputs": lambda x: F.randn(0, 1, (3, 4)),
    "lazily filled": lambda x: F.add2(filled(), filled()),
    "list": lambda x: F.reshape(x, [4, -1]),
    "variadic": lambda x: F.concatenate(x, x, x, axis=1),
    "several": lambda x: F.split(x, axis=1),
    "hidden": lambda x: F.max(x, axis=2, with_index=True),
    "random": lambda x: F.dropout(x, p=0.25),
    "written": lambda x: F.batch_normalization(
        x, *(variable(1, 2, 1) for _ in "ab"), *(variable(1, 2, 1, need_grad=False) for _ in "mv")
    ),
    "arrays": lambda x: F.mul2(x.data, x),
}


@pytest.mark.parametrize("call", USUAL.values(), ids=USUAL)
def test_usual_calls_do_without_python(call: Callable[[Variable], Any]) -> None:
    x = variable(4, 2, 3)
    ran = []
    with nn.auto_forward():
        call(x)  # finds attributes and kernels
        sys.setprofile(lambda frame, event, arg: ran.append(frame.f_code))
        try:
            call(x)
        finally:
            sys.setprofile(None)
    assert ran and Op.call.__code__ not in ran


def test_zeros_keep_their_sign() -> None:
    x = variable(3)
    x.d = 1
    with nn.auto_forward():
        for call in (F.mul_scalar, F.mul_scalar.call):
            for val in (0.0, -0.0, 0, np.float32(-0.0), 0.0, -0.0, False):
                for y in (call(x, val), call(x, val=val)):
                    assert np.signbit(y.d).tolist() == [bool(np.signbit(val))] * 3


def bad_kernel() -> Any:
    """A call whose kernel raises."""
    t = variable(2, 1, need_grad=False)
    t.d = 7
    return F.embed(t, variable(3, 2)), F.one_hot(t, (3,))


BAD = {
    "shapes": lambda: F.add2(variable(2, 3), variable(3, 2)),
    "kind": lambda: F.add2(variable(2), 3),
    "left out": lambda: F.add2(variable(2)),
    "too many": lambda: F.relu(variable(2), False, 3),
    "unknown": lambda: F.relu(variable(2), slope=3),
    "unhashable": lambda: F.leaky_relu(variable(2), alpha={}),
    "cleared": lambda: F.relu(cleared()),
    "in a kernel": bad_kernel,
}


def cleared() -> Variable:
    v = variable(2)
    v.data.clear()
    return v


@pytest.mark.parametrize("call", BAD.values(), ids=BAD)
def test_errors_are_those_of_the_definition(
    call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def error() -> BaseException:
        with nn.auto_forward(), nn.parameter_scope("block"), pytest.raises(Exception) as info:
            call()
        return info.value

    errors = [error(), error()]
    monkeypatch.setattr(Op, "__call__", Op.call)
    want = error()
    for e in errors:
        assert (type(e), str(e), getattr(e, "__notes__", [])) == (
            type(want), str(want), getattr(want, "__notes__", []),
        )  # fmt: skip
        assert e.__suppress_context__ == want.__suppress_context__
        lines = [f.line for f in traceback.extract_tb(e.__traceback__) if f.filename == __file__]
        assert any("F." in line or "cleared" in line for line in lines if line)


def test_a_call_that_is_not_usual_is_left_to_the_definition() -> None:
    x, y = variable(3), variable(3)
    seen: list[str] = []
    assert F.add2(x, y).parent is not None  # recorded only
    with nn.auto_forward():
        nn.set_function_post_hook("k", lambda f: seen.append(f.name))
        try:
            F.add2(x, y)
        finally:
            nn.unset_function_post_hook("k")
        z = F.add2(x, nn.Variable((3,)))  # read before it was written
        np.testing.assert_array_equal(z.d, x.d)
        out = nn.NdArray((3,))
        F.add2(x, y, outputs=[out])
        np.testing.assert_array_equal(out.data, x.d + y.d)
        F.add2(*[variable(2, 2)] * 2)
        np.testing.assert_array_equal(F.add_n(*[x] * 20).d, 20 * x.d)
    assert seen == ["Add2"]


def test_derived_classes_are_variables() -> None:
    class Mine(nn.Variable):
        pass

    x = Mine((2, 2), need_grad=True)
    x.d = 3
    with nn.auto_forward():
        for _ in "ab":
            y = F.add2(x, x)
    assert type(y) is nn.Variable and y.parent.inputs[0] == x


def test_calls_hold_nothing_in_the_end() -> None:
    """Counts references and blocks of memory over many calls of all forms."""
    x = variable(4, 2, 3)
    calls = [call for name, call in USUAL.items() if name not in ("left out", "written")]
    shared = [None, True, False, F.add2, F.add2.default_attrs, x, x.edge, x.data, x.data.spec]

    def many(n: int) -> None:
        with nn.auto_forward():
            for _ in range(n):
                for call in calls:
                    call(x)
        for _ in range(n):
            with pytest.raises(ValueError):
                with nn.auto_forward():
                    bad_kernel()

    many(100)
    gc.collect()
    before = [sys.getrefcount(o) for o in shared]
    blocks = sys.getallocatedblocks()
    many(3000)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 1500
    for o, b in zip(shared, before, strict=True):
        assert abs(sys.getrefcount(o) - b) < 100


def test_threads_have_their_own_modes() -> None:
    x = variable(4, 4)

    def compute() -> None:
        with nn.auto_forward():
            for _ in range(500):
                np.testing.assert_array_equal(F.add2(x, x).d, 2 * x.d)

    def record() -> None:
        for _ in range(500):
            assert F.add2(x, x).edge.node.outs is not None

    def untracked() -> None:
        with nn.auto_forward(), nn.no_grad():
            for _ in range(500):
                assert F.add2(x, x).parent is None

    assert in_threads(compute, record, untracked, compute) == [None] * 4


def test_a_kernel_is_made_at_its_first_call_and_then_called_straight() -> None:
    lib = require_library()
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    spec = native_spec(Spec.of(x.shape))
    made = []

    def make() -> Any:
        made.append(lib.array_kernel("softmax", {"axis": 1}, [spec], [spec], [x.dtype]))
        return made[0]

    call = lib.at_first_call(make)
    assert not made
    y, out = call(x), np.empty_like(x)
    assert call(x, out=out) is out and len(made) == 1
    want = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(y, want, rtol=1e-5)
    np.testing.assert_array_equal(y, out)
    with pytest.raises(ValueError, match=r"input 0 is not float32\[2, 3\]"):
        call(x[:1])
    with pytest.raises(ValueError, match="wrong number of arrays"):
        call()
    other = lib.at_first_call(lambda: np.add)  # where the library has no kernel
    np.testing.assert_array_equal(other(x, x, out=out), 2 * x)


def test_a_kernel_that_cannot_be_made_is_an_error_each_time() -> None:
    lib = require_library()
    call = lib.at_first_call(lambda: 1 / 0)
    for _ in "ab":
        with pytest.raises(ZeroDivisionError):
            call()


def test_calls_in_a_cycle_are_freed() -> None:
    lib = require_library()

    class Holder:
        call: Any

    holder = Holder()
    holder.call = lib.at_first_call(lambda holder=holder: holder.__init__)
    holder.call()
    dead = weakref.ref(holder)
    del holder
    gc.collect()
    assert dead() is None
