# SPDX-License-Identifier: Apache-2.0
"""Static graphs whose leaves, flags, shapes or edges change between runs; every order of calls."""

import itertools

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from tests.core.conftest import leaf

RNG = np.random.default_rng(0)


def array(values):
    return nn.NdArray.from_numpy_array(np.float32(values))


def network(x, w):
    """sum((x w)^2 + x w): the gradient of w is x (2 x w + 1)."""
    h = x * w
    return h, F.sum(h * h + h)


@pytest.mark.parametrize("clear", [False, True])
def test_leaf_buffers_may_be_replaced_between_runs(clear):
    x, w = leaf([0, 0], False), leaf([3, 4])
    _, y = network(x, w)
    for i in range(5):
        value = np.float32([i, i + 1])
        x.data = array(value)
        if i % 2:
            w.data = array([3, 4])
        w.grad.zero()
        y.forward(clear_no_need_grad=clear)
        y.backward(clear_buffer=clear)
        np.testing.assert_array_equal(w.g, value * (2 * value * w.d + 1))


def test_leaf_dtypes_may_change_between_runs():
    x, w = leaf([1, 2], False), leaf([3, 4])
    _, y = network(x, w)
    for dtype in (np.float32, np.int64, np.float64, np.uint8, np.float32):
        x.d = np.array([1, 2], dtype)
        w.grad.zero()
        y.forward(clear_no_need_grad=True)
        y.backward(clear_buffer=True)
        np.testing.assert_array_equal(w.g, [7, 34])
        assert x.d.dtype == dtype


@pytest.mark.parametrize("clear", [False, True])
def test_shapes_may_change_between_runs(clear):
    x, w = leaf([1, 2], False), leaf([3, 4])
    h, y = network(x, w)
    for n in (2, 5, 1, 2):
        for v in (x, w):
            v.reset_shape((n,), force=True)
        x.d, w.d = RNG.normal(size=(2, n)).astype(np.float32)
        w.grad.zero()
        y.forward(clear_no_need_grad=clear)
        y.backward(clear_buffer=clear)
        assert h.shape == (n,)
        np.testing.assert_allclose(w.g, x.d * (2 * x.d * w.d + 1), rtol=1e-5)


@pytest.mark.parametrize("clear", [False, True])
def test_need_grad_may_change_between_runs(clear):
    x, w = leaf([1, 2]), leaf([3, 4])
    h, y = network(x, w)

    def gradients():
        x.grad.zero()
        w.grad.zero()
        y.forward(clear_no_need_grad=clear)
        y.backward(clear_buffer=clear)
        return x.g.tolist(), w.g.tolist()

    full = ([21, 68], [7, 34])
    assert gradients() == full
    w.need_grad = False
    assert gradients() == (full[0], [0, 0])
    w.need_grad, x.need_grad = True, False
    assert gradients() == ([0, 0], full[1])
    h.need_grad = False
    assert gradients() == ([0, 0], [0, 0])
    h.need_grad = x.need_grad = True
    assert gradients() == full


def test_persistent_may_change_between_runs():
    x, w = leaf([1, 2]), leaf([3, 4])
    h, y = network(x, w)
    for flag in (False, True, False):
        h.persistent = flag
        for kw in ({"clear_buffer": True}, {"clear_no_need_grad": True}):
            y.forward(**kw)
            if "clear_no_need_grad" in kw:
                y.backward(clear_buffer=True)
            assert h.data.clear_called != flag
            if flag:
                assert h.d.tolist() == [3, 8]


@pytest.mark.parametrize("clear", [False, True])
def test_edges_may_be_rewired_between_runs(clear):
    x, w, other = leaf([1, 2]), leaf([3, 4]), leaf([5, 6])
    h, y = network(x, w)
    y.forward(clear_no_need_grad=clear)
    y.backward(clear_buffer=clear)
    h.rewire_on(other * 2)
    for v in (x, w, other):
        v.grad.zero()
    for i in (1, 2):
        y.forward(clear_no_need_grad=clear)
        y.backward(clear_buffer=clear)
        assert y.d == 10 * 10 + 12 * 12 + 22
        assert other.g.tolist() == [42 * i, 50 * i]  # 2 (2 (2 v) + 1)
    assert x.g.tolist() == w.g.tolist() == [0, 0]


def test_the_context_of_the_call_decides_the_type_not_that_of_forward():
    x = leaf([1, 2])
    y = F.sum(x * x)
    with nn.context_scope(nn.Context(["cpu:double"])):
        z = F.sum(x * x)
        y.forward()
    z.forward()
    assert (y.d.dtype, z.d.dtype) == (np.float32, np.float64)
    with nn.context_scope(nn.Context(["cpu:double"])):
        y.backward()
    assert x.g.tolist() == [2, 4]


# ---- orders of calls ----

FORWARDS = {"keep": {}, "train": {"clear_no_need_grad": True}, "infer": {"clear_buffer": True}}
CALLS = [
    *(("forward", name) for name in FORWARDS),
    ("backward", False),
    ("backward", True),
    ("hooked forward", "train"),
    ("hooked backward", True),
]


@pytest.mark.parametrize("calls", list(itertools.product(CALLS, repeat=3)), ids=str)
def test_any_order_of_calls_is_right_or_a_clear_error(calls):
    x, w = leaf([1, 2], False), leaf([3, 4])
    h, y = network(x, w)
    once, total = np.float32([7, 34]), np.zeros(2, np.float32)
    for kind, arg in calls:
        hook = {"function_pre_hook": lambda f: None} if "hooked" in kind else {}
        if "forward" in kind:
            y.forward(**FORWARDS[arg], **hook)
            assert y.d == 3 + 8 + 9 + 64
        else:
            try:
                y.backward(clear_buffer=arg, **hook)
                total += once
            except ValueError as e:
                assert "forward" in str(e) or "cleared" in str(e)
        np.testing.assert_array_equal(w.g, total)
        try:
            assert h.d.tolist() == [3, 8]
        except ValueError as e:
            assert "cleared" in str(e) or "before anything was written" in str(e)
    y.forward(clear_no_need_grad=True)
    y.backward(clear_buffer=True)
    np.testing.assert_array_equal(w.g, total + once)


@pytest.mark.parametrize("first", FORWARDS)
@pytest.mark.parametrize("second", FORWARDS)
def test_two_outputs_of_one_graph_run_in_turns(first, second):
    x = leaf([1, 2])
    h = x * x
    a, b = F.sum(h * h), F.sum(h * 3 + h * h)
    for _ in range(2):
        x.grad.zero()
        a.forward(**FORWARDS[first])
        b.forward(**FORWARDS[second])
        assert (a.d, b.d) == (17, 32)
        for y, gradient in ((b, [10, 44]), (a, [4, 32])):
            before = x.g.copy()
            try:
                y.backward(clear_buffer=first != "keep")
                np.testing.assert_array_equal(x.g, before + np.float32(gradient))
            except ValueError as e:
                assert "cleared" in str(e)
                np.testing.assert_array_equal(x.g, before)


@pytest.mark.parametrize("clear", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_accumulate_over_minibatches(clear, dynamic):
    w = leaf([3, 4])
    x = leaf([0, 0], False)
    total = np.zeros(2, np.float32)
    y = None
    for i in range(4):
        value = np.float32([i, 1 - i])
        x.d = value
        with nn.auto_forward(dynamic):
            if y is None or dynamic:
                _, y = network(x, w)
        y.forward(clear_no_need_grad=clear)
        y.backward(clear_buffer=clear)
        total += value * (2 * value * w.d + 1)
        np.testing.assert_array_equal(w.g, total)
        if i == 2:  # the user adds something of their own
            w.g[...] += 100
            total += 100


@pytest.mark.parametrize("clear", [False, True])
def test_writing_into_a_gradient_between_backward_calls_of_a_plan(clear):
    x = leaf([1, 2])
    y = F.sum(x * x)
    held = x.grad
    for i in range(4):
        y.forward(clear_no_need_grad=clear)
        x.g = np.float32([i, -i])
        y.backward(clear_buffer=clear)
        np.testing.assert_array_equal(held.data, [2 + i, 4 - i])
        x.grad.zero()
        y.forward(clear_no_need_grad=clear)
        y.backward(clear_buffer=clear)
        kept = x.g.copy()
        alias = x.g
        y.forward(clear_no_need_grad=clear)  # must not write into what the user holds
        np.testing.assert_array_equal(alias, kept)


@pytest.mark.parametrize("clear", [False, True])
def test_a_gradient_array_shared_by_two_leaves_collects_both(clear):
    x, w = leaf([1, 2]), leaf([3, 4])
    w.grad = x.grad
    y = F.sum(x * w)
    for i in (1, 2):
        y.forward(clear_no_need_grad=clear)
        y.backward(clear_buffer=clear)
        np.testing.assert_array_equal(x.g, np.multiply(i, [4, 6]))


def test_an_output_may_be_a_view_of_a_leaf_or_of_an_intermediate():
    x = leaf([[1, 2]])
    a, b = F.reshape(x, (2,)), F.reshape(x * 2, (2,))
    y = F.sum(F.reshape(x * x, (2, 1)))
    for i in (1, 2):
        x.d = np.float32([[i, 2]])
        for clear in (False, True):
            nn.forward_all([a, b, y], clear_buffer=clear)
            assert a.d.tolist() == [i, 2] and b.d.tolist() == [2 * i, 4] and y.d == i * i + 4
    x.grad.zero()
    y.forward(clear_no_need_grad=True)
    y.backward(clear_buffer=True)
    assert x.g.tolist() == [[4, 4]]


def test_a_view_of_a_leaf_whose_memory_is_replaced():
    x = leaf([[1, 2]], False)
    y = F.reshape(x, (2,)) * 2
    for i in range(4):
        x.data = array([[i, 2]])
        y.forward(clear_buffer=bool(i % 2))
        assert y.d.tolist() == [2 * i, 4]


def test_random_graphs_run_the_same_in_every_mode():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        program = [(int(rng.integers(4)), *rng.integers(0, 100, 2)) for _ in range(12)]

        def build(program=program):
            leaves = [leaf([0.5, -1.5]), leaf([1.25, 0.75]), leaf([2, 3], False)]
            vs = list(leaves)
            for kind, i, j in program:
                a, b = vs[i % len(vs)], vs[j % len(vs)]
                if kind == 0:
                    vs.append(a + b)
                elif kind == 1:
                    vs.append(a * b * 0.5)
                elif kind == 2:
                    vs.append(F.reshape(F.reshape(a, (2, 1)), (2,)) - b)
                else:
                    vs.append(1 - a)
            return leaves, F.sum(F.add_n(*vs[-3:]))

        results = []
        for mode in ("dynamic", *FORWARDS, "hooked"):
            with nn.auto_forward(mode == "dynamic"):
                leaves, y = build()
            for _ in range(2):
                for v in leaves:
                    v.grad.zero()
                hook = {"function_pre_hook": lambda f: None} if mode == "hooked" else {}
                if mode != "dynamic":
                    y.forward(**FORWARDS.get(mode, {}), **hook)
                value = float(y.d)
                if mode != "infer":
                    y.backward(clear_buffer=mode == "train", **hook)
            results.append((value, *(v.g.tolist() for v in leaves if mode != "infer")))
        for r in results[1:]:
            assert r == results[0][: len(r)]


def test_a_network_that_drops_layers_at_random_trains_in_dynamic_mode():
    rng = np.random.default_rng(3)
    target = np.float32([2.0, -1.0, 0.5])
    scale = leaf(np.ones(3))
    shifts = [leaf(np.zeros(3)) for _ in range(4)]
    losses = []
    with nn.auto_forward():
        for _ in range(300):
            h = scale * 1
            for shift in shifts:
                if rng.random() < 0.7:
                    h = h + shift
            loss = F.sum((h - nn.Variable.from_numpy_array(target)) ** 2)
            for v in (scale, *shifts):
                v.grad.zero()
            loss.backward(clear_buffer=True)
            for v in (scale, *shifts):
                if not v.grad.zeroing:
                    v.d -= 0.05 * v.g
            losses.append(float(loss.d))
    assert np.mean(losses[-20:]) < 0.2 * np.mean(losses[:20])


@pytest.mark.parametrize("compiled", [False, True])
def test_a_table_that_scores_too_has_one_gradient(compiled):
    """Rows are added to what is there already, in the memory of the result."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    table = rng.normal(size=(300, 16)).astype(np.float32)
    index, labels = rng.integers(0, 300, (2, 40))
    w = nn.Variable.from_numpy_array(table, need_grad=True)

    def loss(i, t):
        x = F.tanh(F.embed(i, w))
        y = F.affine(x, F.transpose(w, (1, 0)))
        return F.mean(F.softmax_cross_entropy(y, F.reshape(t, (-1, 1))))

    def step(i, t):
        y = loss(i, t)
        w.grad.zero()
        y.backward()
        return y

    given = [nn.Variable.from_numpy_array(a) for a in (index, labels)]
    if compiled:
        step = nn.compile(step)
        step(*given)
    else:
        y = loss(*given)
        w.grad.zero()
        y.forward()
        y.backward()
    v = torch.tensor(table, requires_grad=True)
    out = torch.tanh(v[torch.tensor(index)]) @ v.T
    torch.nn.functional.cross_entropy(out, torch.tensor(labels)).backward()
    np.testing.assert_allclose(w.g, v.grad.numpy(), rtol=1e-5, atol=1e-7)
