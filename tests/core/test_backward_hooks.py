# SPDX-License-Identifier: Apache-2.0
"""What hooks of backward() see, and may do: the sums so far of this pass, as in NNabla."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from tests.core.conftest import leaf

MODES = [(c, m) for c in ("cpu", "numpy") for m in ("static", "dynamic")]


@pytest.fixture(params=MODES, ids="-".join, autouse=True)
def _mode(request):
    context, mode = request.param
    with nn.context_scope(nn.Context([f"{context}:float"])), nn.auto_forward(mode == "dynamic"):
        yield


def number(v):
    assert len(set(v.g.ravel().tolist())) == 1
    return float(v.g.ravel()[0])


class MemoryRecord:
    """(name, gradients of the inputs, those of the outputs) for each call of a hook."""

    def __init__(self):
        self.calls = []

    def __call__(self, f):
        self.calls.append((f.name, [number(v) for v in f.inputs], [number(v) for v in f.outputs]))

    def check(self, *wanted):
        assert [c[0] for c in self.calls] == [w[0] for w in wanted]
        for got, want in zip(self.calls, wanted, strict=True):
            np.testing.assert_allclose(got[1] + got[2], want[1] + want[2], rtol=1e-6)
        self.calls.clear()


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("clear", [False, True])
def test_hooks_see_the_gradients_that_a_function_has_got_and_given(clear, everywhere):
    x = leaf(np.zeros((2, 3)))
    y = (x + 2) * 0.5
    y.forward()
    pre, post = MemoryRecord(), MemoryRecord()
    if everywhere:
        nn.set_function_pre_hook("test", pre)
        nn.set_function_post_hook("test", post)
    try:
        if everywhere:
            y.backward(clear_buffer=clear)
        else:
            y.backward(clear_buffer=clear, function_pre_hook=pre, function_post_hook=post)
    finally:
        nn.unset_function_pre_hook("test")
        nn.unset_function_post_hook("test")
    pre.check(("MulScalar", [0], [1]), ("AddScalar", [0], [0.5]))
    post.check(("MulScalar", [0.5], [1]), ("AddScalar", [0.5], [0.5]))
    assert number(x) == 0.5 and y.grad.zeroing


def test_hooks_see_sums_as_they_come_and_leaves_that_have_gradients_already():
    x, w = leaf(np.full((2, 3), 1)), leaf(np.full((2, 3), 3))
    x.g, w.g = 10, 20
    h = x * w
    y = F.sum(h * w + h + x)
    y.forward()
    pre, post = MemoryRecord(), MemoryRecord()
    y.backward(function_pre_hook=pre, function_post_hook=post)
    post.check(
        ("Sum", [1], [1]),
        ("Add2", [1, 11], [1]),  # (h w + h) + x
        ("Add2", [1, 1], [1]),  # h w + h
        ("Mul2", [1 + 3, 20 + 3], [1]),  # h w: h has 1 already
        ("Mul2", [11 + 4 * 3, 23 + 4], [4]),  # x w
    )
    pre.check(
        ("Sum", [0], [1]),
        ("Add2", [0, 10], [1]),
        ("Add2", [0, 0], [1]),
        ("Mul2", [1, 20], [1]),
        ("Mul2", [11, 23], [4]),
    )
    assert (number(x), number(w)) == (23, 27)


def test_several_outputs_and_one_input_given_twice():
    x = leaf([1, 1])
    a, b = F.split(F.add2(x, x), 0)
    y = a * b + a
    y.forward()
    seen = []
    y.backward(function_post_hook=lambda f: seen.append((f.name, [v.g.tolist() for v in f.inputs])))
    assert seen == [
        ("Add2", [1, 1]),
        ("Mul2", [3, 2]),
        ("Split", [[3, 2]]),
        ("Add2", [[6, 4], [6, 4]]),
    ]


def test_a_hook_finds_the_function_whose_gradient_is_not_finite():
    x = leaf([0, 4])
    h = F.pow_scalar(F.mul_scalar(x, 1), 0.5)
    y = F.sum(F.exp(h))
    y.forward()
    found = []

    def look(f):
        if any(not np.isfinite(v.g).all() for v in f.inputs):
            found.append(f.name)

    with np.errstate(divide="ignore"):
        y.backward(function_post_hook=look)
    assert found == ["PowScalar", "MulScalar"]


def test_what_a_hook_writes_flows_on_and_reaches_nothing_else():
    x, z = leaf([3, 4]), leaf([3, 4])
    h = F.mul_scalar(x, 2)
    y = F.sum(F.add2(h, F.mul_scalar(z, 2)))
    y.forward()

    def halve(f):
        if f.name == "Add2":
            f.inputs[0].g *= 0.5

    y.backward(function_post_hook=halve)
    assert x.g.tolist() == [1, 1] and z.g.tolist() == [2, 2] and h.g.tolist() == [0.5, 0.5]


def test_the_output_has_the_start_gradient_in_hooks_only():
    x = leaf([1, 2])
    y = x * 2
    y.forward()
    y.g = 7
    seen, held = [], y.grad
    y.backward(np.array([3, 4]), function_pre_hook=lambda f: seen.append(f.outputs[0].g.tolist()))
    assert seen == [[3, 4]] and y.g.tolist() == [7, 7] and y.grad is held
    y.backward(None, function_pre_hook=lambda f: seen.append(f.outputs[0].g.tolist()))
    assert seen == [[3, 4], [7, 7]] and x.g.tolist() == [6 + 14, 8 + 14]
    with pytest.raises(ZeroDivisionError):
        y.backward(function_pre_hook=lambda f: 1 / 0)
    assert y.g.tolist() == [7, 7]


def test_clear_buffer_drops_the_gradients_of_intermediates_after_the_hooks():
    x = leaf([1, 2])
    h = x * 2
    y = F.sum(h * 3)
    y.forward()
    seen = []
    y.backward(
        clear_buffer=True, function_post_hook=lambda f: seen.append(f.inputs[0].g.ravel()[0])
    )
    assert seen == [1, 3, 6] and x.g.tolist() == [6, 6]
