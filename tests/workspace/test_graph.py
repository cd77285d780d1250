# SPDX-License-Identifier: Apache-2.0
"""What a Function's program shows: what is left out, what is shared, in which order it runs."""

from __future__ import annotations

import re

import numpy as np
import pytest

import nnl.functions as F
from nnl.workspace import Function, Operator, Tensor, Workspace, gradients


@pytest.fixture
def workspace():
    made = Workspace({})
    with made:
        yield made


def ops(text):
    """The ops of a program's text, in order."""
    return re.findall(r"^%.* = (\w+)\(", text, re.M)


def places(text):
    """{result: where it lies}."""
    return dict(re.findall(r"^(%\d+) at (\d+)$", text, re.M))


def test_a_program_is_read_before_and_after_its_passes(workspace):
    x, a, b = (Tensor(workspace, n, (3,)) for n in "xab")
    f = Function([x, a, b], [x * (x * a + b).make("sin", F.sin)])
    f(*np.ones((3, 3)))
    assert ops(f.text(passes=False)) == ["mul2", "add2", "sin", "mul2"]
    assert "x:f32[3] input" not in f.text() and "test_graph.py" in f.text()  # where it was written
    assert ops(f.text()) == ["fused_elementwise"] == ops(f.text(("prune", "fuse_elementwise")))
    assert f.program.text() == f.text()
    with pytest.raises(ValueError, match="passes: there is none called 'prun'.*prune"):
        f.text(["prun"])


def test_what_targets_do_not_need_is_not_written_down(workspace):
    """Forward: for a target a x neither b nor the sine are there. What nothing reads of what was
    written down goes with the pass `prune`."""
    x, a, b = (Tensor(workspace, n, (3,)) for n in "xab")
    ax = x * a
    y = (ax + b).make("sin", F.sin)
    f = Function([x, a], [ax])
    f(*np.ones((2, 3)))
    assert ops(f.text(passes=False)) == ["mul2"]
    loud = ax.make("both", lambda v: (F.exp(v), v + 1)[1])  # the exponential is not used
    g = Function([x, a], [loud])
    g(*np.ones((2, 3)))
    assert "exp" not in g.text(("prune",)) and y.operator.type == "sin"


def test_only_gradients_on_the_way_are_computed(workspace):
    """Backward: o = w a(w), both ways to w count, and none to x."""
    w, x = Tensor(workspace, "w", (2,)), Tensor(workspace, "x", (2,))
    a = w.make("exp", F.exp) + x.make("tanh", F.tanh)
    (g,) = gradients([w * a], [w])
    f = Function([w, x], [g])
    v = np.array([[1, 2], [3, 4]], np.float32)
    np.testing.assert_allclose(f(*v)[0], np.exp(v[0]) * (1 + v[0]) + np.tanh(v[1]), rtol=1e-5)
    assert "tanh_backward" not in f.text(("prune",))
    count = len(ops(f.text(("prune",))))
    both = Function([w, x], gradients([w * a], [w, x]))
    both(*v)
    assert len(ops(both.text(("prune",)))) > count


def test_parts_of_a_gradient_are_gathered(workspace):
    """x is used three times in x x + x: 2 x + 1 is the sum of three parts."""
    x = Tensor(workspace, "x", (2,))
    (g,) = gradients([x * x + x], [x])
    f = Function([x], [g])
    assert f([1, 2])[0].tolist() == [3, 5]
    assert sum(op in ("add2", "add_n") for op in ops(f.text(("prune",)))) >= 1


def test_results_take_the_place_of_what_dies(workspace):
    """f0 -> relu t0 -> tanh t1 -> flip t2: t1 lies where t0 lay, after pruning alone; what is
    wanted itself is not written over; a flip reads other elements and gets a place of its own."""
    f0 = Tensor(workspace, "f0", (64,))
    t0 = f0.make("sigmoid", F.sigmoid)
    t1 = t0.make("tanh", F.tanh)
    t2 = t1.make("flip", lambda v: F.flip(v, [0]))
    passes = ("prune", "choose_kernels")

    def run(outputs):
        f = Function([f0], outputs)
        found = f(np.linspace(-1, 1, 64))
        want = np.tanh(1 / (1 + np.exp(-np.linspace(-1, 1, 64))))[::-1]
        np.testing.assert_allclose(found[-1], want, rtol=1e-5)
        return f.text(passes, memory=True)

    text = run([t2])
    at = places(text)
    assert len(at) == 2 and len(set(at.values())) == 1 and "shared: 256 bytes" in text
    assert places(run([t0, t2])).keys() < at.keys()  # t0 has memory of its own now


def test_what_is_not_used_takes_no_memory(workspace):
    """Of two results of 1 MB one is not wanted: the shared memory is as large as without it."""
    x = Tensor(workspace, "x", (2, 2**18))

    def sizes(count):
        made = Operator(
            workspace, "split", lambda v: [v[0] * 2, *[F.exp(v[1]) for _ in range(count)]], (x,),
            count=1 + count,
        )  # fmt: skip
        f = Function([x], [made.outputs[0]])
        f(np.ones((2, 2**18)))
        return re.search(r"shared: (\d+) bytes", f.text(memory=True)).group(1)

    assert sizes(0) == sizes(1) == sizes(3)


def test_operators_run_in_the_order_that_they_were_made_in(workspace):
    x = Tensor(workspace, "x", (2,))
    late = x.make("tanh", F.tanh)
    first, second = late.make("exp", F.exp), x.make("sin", F.sin)
    f = Function([x], [second, first])
    f([1, 2])
    assert ops(f.text(("prune",))) == ["tanh", "exp", "sin"]
    (g,) = gradients([first], [x])
    f = Function([x], [g])
    f([1, 2])
    back = [n for n in ops(f.text(("prune",))) if "tanh" in n or "exp" in n]
    assert back.index("tanh") == 0 and back[1] == "exp"  # gradients follow, the last one first
    again = Function([x], [g])
    again([1, 2])
    assert ops(f.text()) == ops(again.text())


def test_the_same_expression_gives_the_same_program(workspace):
    x = Tensor(workspace, "x", (2,))
    one, two = (Function([x], [(x * 2 + 1).make("tanh", F.tanh)]) for _ in range(2))
    one([1, 2]), two([1, 2])

    def shown(f):
        return re.sub(r"#.*", "", f.text())

    assert shown(one) == shown(two) and len(one.plans) == 1
    one([3, 4])
    assert len(one.plans) == 1
