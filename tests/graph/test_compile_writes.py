# SPDX-License-Identifier: Apache-2.0
"""Writes to arrays inside a function that nnl.compile records: done at every run, or an error."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from tests.core.conftest import leaf

BATCHES = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def variable(a):
    return nn.Variable.from_numpy_array(np.asarray(a, np.float32))


def array(a):
    return nn.NdArray.from_numpy_array(np.asarray(a, np.float32))


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.fixture(params=["cpu", "numpy"], autouse=True)
def _context(request):
    with nn.context_scope(nn.Context([f"{request.param}:float"])):
        yield


@pytest.mark.parametrize("compiled", [False, True])
def test_an_update_by_hand_happens_at_every_run(compiled):
    w = leaf([1, 2, 3])

    def step(x):
        loss = F.sum((w * x) ** 2)
        loss.forward()
        w.grad.zero()
        loss.backward()
        w.data -= 0.1 * w.grad
        return loss

    run = nn.compile(step) if compiled else step
    want = np.float32([1, 2, 3])
    for x in BATCHES:
        loss = run(variable(x))
        close(loss.d, ((want * x) ** 2).sum())
        want = want - 0.1 * 2 * want * x * x
        close(w.d, want)


@pytest.mark.parametrize("compiled", [False, True])
def test_momentum_by_hand_with_state_in_an_array(compiled):
    w, m = leaf([1, 2, 3]), array([0, 0, 0])

    def step(x):
        nonlocal m
        loss = F.sum(w * x)
        loss.forward()
        w.grad.zero()
        loss.backward()
        m *= 0.9
        m += w.grad
        w.data -= 0.5 * m

    run = nn.compile(step) if compiled else step
    want, state = np.float32([1, 2, 3]), np.zeros(3, np.float32)
    for x in BATCHES:
        run(variable(x))
        state = 0.9 * state + x
        want = want - 0.5 * state
        close(m.data, state)
        close(w.d, want)


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_changed_by_hand_reach_the_solver(compiled):
    w = leaf([1, 2, 3])
    solver = S.Sgd(1.0)
    solver.set_parameters({"w": w})

    def step(x):
        loss = F.sum(w * x)
        loss.forward()
        solver.zero_grad()
        loss.backward()
        w.grad *= 0.5
        w.grad += 0.1 * w.data
        solver.update()

    run = nn.compile(step) if compiled else step
    want = np.float32([1, 2, 3])
    for x in BATCHES:
        run(variable(x))
        g = 0.5 * x + 0.1 * want
        want = want - g
        close(w.g, g)
        close(w.d, want)


@pytest.mark.parametrize("compiled", [False, True])
def test_writes_happen_in_the_order_of_the_program(compiled):
    t, copy, last = variable([1, 1, 1]), variable([0, 0, 0]), variable([0, 0, 0])

    def step(x):
        before = t * 2
        t.data += x.data if isinstance(x, nn.Variable) else x
        after = t * 2
        copy.data.copy_from(t.data)
        t.data *= 3
        last.data.copy_from(t.data * x.data)
        t.d = 1
        nn.forward_all([before, after])
        return before, after

    if compiled:
        run = nn.compile(step)
    else:

        def run(x):
            with nn.auto_forward():
                return step(x)

    for x in BATCHES:
        before, after = run(variable(x))
        close(before.d, [2, 2, 2])
        close(after.d, 2 * (1 + x))
        close(copy.d, 1 + x)
        close(last.d, 3 * (1 + x) * x)
        close(t.d, [1, 1, 1])


@pytest.mark.parametrize("zero", [lambda t: t.data.zero(), lambda t: setattr(t, "d", 0)])
def test_an_array_that_was_zeroed_reads_as_zero_in_the_step(zero):
    t = variable([5, 5, 5])

    @nn.compile
    def step(x):
        zero(t)
        y = t + x
        t.data += y.data
        return y, t * 1

    for x in BATCHES:
        t.d = 5
        y, after = step(variable(x))
        close(y.d, x)
        close(after.d, x)
        close(t.d, x)


def test_statistics_that_were_zeroed_are_updated_from_zero():
    x = variable(BATCHES)
    PF.batch_normalization(x)
    mean = nn.get_parameters(grad_only=False)["bn/mean"]

    @nn.compile
    def step(x):
        mean.data.zero()
        return PF.batch_normalization(x)

    for _ in range(2):
        step(x)
        close(mean.d, 0.1 * BATCHES.mean(0, keepdims=True))


def test_an_output_array_is_written_at_every_run():
    total = array([0, 0, 0])

    @nn.compile
    def step(x):
        F.add2(total, x.data, outputs=[total])

    for x in BATCHES:
        step(variable(x))
    close(total.data, BATCHES.sum(0))


def test_a_parameter_created_while_recording_is_trained():
    @nn.compile
    def step(x):
        w = PF.get_parameter_or_create("w", (3,), np.ones(3), need_grad=True)
        loss = F.sum(w * x)
        w.grad.zero()
        loss.backward()
        w.data -= w.grad

    for x in BATCHES:
        step(variable(x))
    close(nn.get_parameters()["w"].d, 1 - BATCHES.sum(0))


def test_an_argument_is_written_like_any_other_array():
    @nn.compile
    def step(x):
        x.data += 1

    for _ in range(2):
        x = variable([1, 2, 3])
        step(x)
        close(x.d, [2, 3, 4])


def test_constants_made_in_the_function_may_be_written_before_they_are_used():
    @nn.compile
    def step(x):
        k = nn.Variable((3,))
        k.d = [1, 2, 3]
        k.d[0] += k.d[1]
        z = nn.NdArray.from_numpy_array(np.float32([1, 1, 1]))
        z.zero()
        return x * k + F.exp(nn.Variable.from_numpy_array(k.d)), x.data * 2 + z

    k = np.float32([3, 2, 3])
    for x in BATCHES:
        y, _ = step(variable(x))
        close(y.d, x * k + np.exp(k))


def check_every_run(compiled, f, *wants):
    with nn.auto_forward():
        run = nn.compile(f) if compiled else f
        for _ in range(3):
            for got, want in zip(run(), wants, strict=True):
                close(got.d, want)


def normalize(mean):
    return F.batch_normalization(
        variable(BATCHES), None, None, mean, variable(np.ones((1, 3))), axes=[1], decay_rate=0.5
    )


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("place", [0, 1])
def test_of_two_equal_values_a_step_writes_one(compiled, place):
    w = variable([[1, 2, 3]])

    def f():
        values = w * 2, w * 2
        y = normalize(values[place])
        return *[v * 1 for v in values], y

    mean, spread = BATCHES.mean(0), np.sqrt(BATCHES.var(0) + 1e-5)
    wants = [2 * w.d, 2 * w.d]
    wants[place] = w.d + 0.5 * mean
    check_every_run(compiled, f, *wants, (BATCHES - mean) / spread)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_constant_that_a_step_writes_is_new_at_every_run(compiled):
    def f():
        mean = F.constant(4.0, (1, 3))
        normalize(mean)
        return (mean * 1,)

    check_every_run(compiled, f, 2 + 0.5 * BATCHES.mean(0, keepdims=True))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_sum_is_of_what_was_written_before_it(compiled):
    w = variable(np.linspace(-1, 2, 64))

    def f():
        value = F.tanh(w)
        F.assign(value, w)
        return (F.sum(value),)

    check_every_run(compiled, f, w.d.sum())


def test_auto_forward_inside_is_recorded_as_well():
    w = variable([1, 2, 3])

    @nn.compile
    def step():
        with nn.auto_forward():
            return w * 2

    for k in (1, 2):
        w.d = k
        close(step().d, [2 * k] * 3)


def test_what_recording_would_lose_is_an_error_at_its_line():
    t, w = variable([1, 2, 3]), leaf([1, 2, 3])
    numpy = np.ones(3, np.float32)
    once = "while nnl.compile is recording would happen only once, not at every run: write with "
    there = r"nnl.compile is recording, there are no values yet, and what .d or .data holds now"

    def used():
        k = nn.Variable((3,))
        y = k * t
        k.d = numpy
        return y

    def made():
        k = nn.NdArray(3)
        k += t.data

    def intermediate():
        y = t * 2
        y.data += 1

    def sharing():
        t.data = nn.NdArray(3)

    def iadd():
        t.d += 1

    for f, text in {
        lambda: setattr(t, "d", numpy): "writing a numpy array " + once,
        lambda: setattr(w, "g", numpy): "writing a numpy array " + once,
        lambda: t.data.__setitem__(0, 1): r"x\[key\] = value of an NdArray " + once,
        sharing: "sharing the memory of another array " + once,
        used: "writing a numpy array " + once,
        iadd: there,
        lambda: t.d.sum(): there,
        lambda: w.g.sum(): there,
        lambda: t.data.get_data("r"): there,
        lambda: (t * 2).d: "Variable, output of mul_scalar .*" + there,
        made: "is made in the compiled function itself",
        intermediate: "is the result of a function in the compiled function itself",
        lambda: (t * 2).parent.forward([t], [t]): "MulScalar.forward: nnl.compile is recording",
        lambda: (t * 2).parent.backward([t], [t]): "MulScalar.backward: nnl.compile is recording",
    }.items():
        with pytest.raises(ValueError, match=text):
            nn.compile(lambda f=f: f())()
            raise AssertionError(f"no error where {text!r} was wanted")
    close(t.d, [1, 2, 3])
    assert w.grad.zeroing
