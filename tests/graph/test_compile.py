# SPDX-License-Identifier: Apache-2.0
"""nnl.compile of functions and of whole training steps, against the same code run eagerly."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from tests.core.conftest import leaf

BATCHES = np.random.default_rng(0).normal(size=(6, 2, 3)).astype(np.float32)


def variable(a):
    return nn.Variable.from_numpy_array(a)


def make_step(zero_inside, backwards=1):
    w, b = leaf(np.ones((1, 3)) * 0.3), leaf(np.zeros((1, 3)))

    def step(x):
        h = x * w + b
        loss = F.sum(F.tanh(h * w) ** 2)  # w is used twice
        loss.forward(clear_no_need_grad=True)
        if zero_inside:
            w.grad.zero()
            b.grad.zero()
        for _ in range(backwards):
            loss.backward(clear_buffer=backwards == 1)
        return loss

    return w, b, step


@pytest.mark.parametrize("zero_inside", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_step_equals_eager_bit_for_bit(zero_inside, dynamic):
    eager, compiled = make_step(zero_inside), make_step(zero_inside)
    run = nn.compile(compiled[2])
    for i, batch in enumerate(BATCHES):
        if not zero_inside and i % 3 == 0:  # gradients accumulate over three steps
            for v in (*eager[:2], *compiled[:2]):
                v.grad.zero()
        with nn.auto_forward(dynamic):
            expected = eager[2](variable(batch))
        got = run(variable(batch))
        assert got.d == expected.d and got.parent is None
        for a, b in zip(eager[:2], compiled[:2], strict=True):
            np.testing.assert_array_equal(a.g, b.g)
            for v in (a, b):
                v.d -= 0.1 * v.g


def test_several_backward_calls_in_one_step_accumulate():
    once, twice = make_step(True), make_step(True, backwards=2)
    run = nn.compile(twice[2])
    for batch in BATCHES:
        once[2](variable(batch))
        run(variable(batch))
        np.testing.assert_allclose(2 * once[0].g, twice[0].g, rtol=1e-6)


def test_backward_of_two_losses_accumulates():
    w = leaf([1, 2])

    @nn.compile
    def step(x):
        w.grad.zero()
        F.sum(x * w).backward()
        F.sum(x * w * w).backward(grad=2)

    for value in ([1, 2], [3, 4]):
        step(variable(np.float32(value)))
        np.testing.assert_array_equal(w.g, np.float32(value) * (1 + 4 * w.d))


def test_the_user_may_read_zero_and_write_gradients_between_runs():
    w = leaf([1, 2])

    @nn.compile
    def step(x):
        F.sum(x * w).backward()

    x = variable(np.float32([3, 4]))
    step(x)
    step(x)
    np.testing.assert_array_equal(w.g, [6, 8])
    w.g = 100
    step(x)
    np.testing.assert_array_equal(w.g, [103, 104])
    w.grad.zero()
    step(x)
    np.testing.assert_array_equal(w.g, [3, 4])


@pytest.mark.parametrize("axes", [None, {"x": ("n",)}])
@pytest.mark.parametrize("zero", [True, False])
def test_gradients_of_arguments_are_theirs(zero, axes):
    w = leaf([1, 2, 3])

    def step(x):
        if zero:
            x.grad.zero()
        y = F.sum(x * x) + F.sum(w * w)
        y.backward()
        return y

    run = nn.compile(open=axes)(step) if axes else nn.compile(step)
    a, b, fixed = leaf([1, 2]), leaf([4, 5]), leaf([6, 7])
    fixed.need_grad = False
    for _ in range(3):
        run(a)
    run(b)
    run(b)
    run(fixed)
    np.testing.assert_array_equal(a.g, [2, 4] if zero else [6, 12])
    np.testing.assert_array_equal(b.g, [8, 10] if zero else [16, 20])
    np.testing.assert_array_equal(fixed.g, [0, 0])
    np.testing.assert_array_equal(w.g, [12, 24, 36])


def test_zeroing_by_assignment_is_part_of_the_step():
    w = leaf([1, 2])

    @nn.compile
    def step(x):
        w.g = 0
        F.sum(x * w).backward()
        F.sum(x * w).backward()

    for _ in range(3):
        step(variable(np.float32([3, 4])))
        np.testing.assert_array_equal(w.g, [6, 8])
    assert not w.grad.zeroing
    zero = nn.compile(w.grad.zero)
    zero()
    w.g = 5
    zero()
    assert w.grad.zeroing


def test_a_gradient_that_passes_to_two_leaves_is_not_shared():
    x, w = leaf([1, 2]), leaf([3, 4])

    @nn.compile
    def step():
        x.grad.zero()
        w.grad.zero()
        (x + w).backward()

    for _ in range(2):
        step()
        x.g[0] = 50
        np.testing.assert_array_equal(w.g, [1, 1])


def test_results_keep_their_structure_and_are_new_leaves():
    @nn.compile
    def f(x, scale):
        return {"a": x * scale, "b": [x + 1, (x, None, 3)]}

    x = variable(np.float32([1, 2]))
    first, second = f(x, 2.0), f(x, 2.0)
    assert first["a"].d.tolist() == [2, 4] and first["b"][0].d.tolist() == [2, 3]
    assert first["b"][1][0].d.tolist() == [1, 2] and first["b"][1][1:] == (None, 3)
    first["a"].d[0] = 9
    assert second["a"].d.tolist() == [2, 4]
    first["b"][1][0].d[0] = 9
    assert x.d.tolist() == [1, 2]


def test_arguments_may_be_ndarrays_and_go_by_keyword():
    f = nn.compile(lambda x, y=None: x * 2 if y is None else x * y)
    a = nn.NdArray.from_numpy_array(np.float32([1, 2]))
    assert f(a).d.tolist() == [2, 4]
    assert f(a, y=a).d.tolist() == [1, 4]
    assert f(x=a, y=a).d.tolist() == [1, 4]
    assert f(y=a, x=a).d.tolist() == [1, 4]


def test_it_records_once_for_each_kind_of_arguments():
    traces = []

    @nn.compile
    def f(x, k):
        traces.append((x.shape, k))
        return x * k

    for _ in range(2):
        for shape in ((2,), (3,)):
            for k in (1.5, 2.5):
                assert f(variable(np.ones(shape, np.float32)), k).d.tolist() == [k] * shape[0]
    assert len(traces) == 4
    f(variable(np.ones(2)), 1.5)  # another dtype
    with nn.context_scope(nn.Context(["cpu:double"])):
        assert f(variable(np.ones(2)), 1.5).d.dtype == np.float64
    assert len(traces) == 6


def test_values_that_compare_equal_but_differ_in_type_are_told_apart():
    f = nn.compile(lambda x, k: x * 2 if k is True else x * 3)
    x = variable(np.float32([1]))
    assert f(x, True).d.tolist() == [2]
    assert f(x, 1).d.tolist() == [3]


def test_leaves_of_the_closure_are_read_at_every_call():
    w = leaf([1, 2])
    f = nn.compile(lambda x: x * w)
    x = variable(np.float32([1, 1]))
    for change in (
        lambda: w.d.fill(5),
        lambda: setattr(w, "d", 6),
        lambda: setattr(w, "data", nn.NdArray.from_numpy_array(np.float32([7, 8]))),
        lambda: setattr(w, "d", np.float32([8, 9])),
    ):
        change()
        assert f(x).d.tolist() == w.d.tolist()


def test_a_leaf_of_the_closure_may_change_shape_and_dtype():
    w = leaf([[1, 2]])
    f = nn.compile(lambda x: x * w)
    x = variable(np.float32([[1, 1]]))
    f(x)
    w.d = np.array([[3, 4]])
    assert f(x).d.tolist() == [[3, 4]]
    w.reset_shape((3, 2), force=True)
    w.d = np.float32([[1, 2], [3, 4], [5, 6]])
    assert f(x).d.tolist() == w.d.tolist()


def test_random_functions_draw_new_numbers_at_every_call():
    f = nn.compile(lambda: F.rand(shape=(3,)))
    nn.seed(5)
    first, second = f().d, f().d
    assert (first != second).all()
    nn.seed(5)
    np.testing.assert_array_equal(f().d, first)
    with nn.auto_forward():
        np.testing.assert_array_equal(F.rand(shape=(3,)).d, second)


def test_compiled_functions_nest():
    inner = nn.compile(lambda x: x * 2)
    outer = nn.compile(lambda x: inner(x) + 1)
    assert outer(variable(np.float32([1, 2]))).d.tolist() == [3, 5]


def test_grad_inside_a_compiled_function():
    f = nn.compile(lambda x: nn.grad([x * x * x], [x])[0])
    assert f(leaf([1, 2])).d.tolist() == [3, 12]


def test_a_result_that_is_an_argument_or_a_leaf_is_copied():
    w = leaf([3, 4])
    f = nn.compile(lambda x: (x, w, F.reshape(x, (2, 1))))
    x = variable(np.float32([1, 2]))
    a, b, c = f(x)
    for v in (a, b, c):
        v.d[...] = 0
    assert x.d.tolist() == [1, 2] and w.d.tolist() == [3, 4]


def test_writes_to_arguments_between_calls_are_seen():
    f = nn.compile(lambda x: x + 0)
    x = variable(np.float32([1, 2]))
    f(x)
    x.d[0] = 9
    assert f(x).d.tolist() == [9, 2]


# ---- errors ----


def test_numpy_and_unhashable_arguments():
    f = nn.compile(lambda x: x)
    with pytest.raises(TypeError, match="got a numpy array; wrap it with nnl.Variable.from_numpy"):
        f(np.ones(2))
    with pytest.raises(
        TypeError, match=r"must be a Variable, an NdArray or hashable, got \['list'"
    ):
        f([1, 2])


def test_reading_a_value_while_recording():
    @nn.compile
    def f(x):
        return float((x * 2).d[0])

    with pytest.raises(ValueError, match="nnl.compile is recording, there are no values yet"):
        f(variable(np.float32([1])))
    assert nn.compile(lambda x: x * 2)(variable(np.float32([1]))).d.tolist() == [2]


def test_an_error_in_the_function_leaves_no_recording_behind():
    @nn.compile
    def f(x, fail):
        if fail:
            raise KeyError("mine")
        return x * 2

    x = variable(np.float32([1]))
    with pytest.raises(KeyError, match="mine"):
        f(x, True)
    assert f(x, False).d.tolist() == [2]
    y = x * 3
    y.forward()
    assert y.d.tolist() == [3]


@pytest.mark.parametrize("name", ["Sgd", "Momentum", "Adam"])
def test_a_learning_rate_set_between_steps_takes_effect(name):
    import nnl.solvers as S

    runs = []
    for wrap in (lambda f: f, nn.compile):
        w = leaf([1, 2])
        solver = getattr(S, name)(0.1)
        solver.set_parameters({"w": w})

        @wrap
        def step(x, w=w, solver=solver):
            loss = F.sum((x * w) ** 2)
            loss.forward(clear_no_need_grad=True)
            solver.zero_grad()
            loss.backward(clear_buffer=True)
            solver.update()

        for i, batch in enumerate(BATCHES[:, 0, :2]):
            solver.set_learning_rate(0.1 / (i + 1))
            step(variable(batch.copy()))
        runs.append(w.d.copy())
    np.testing.assert_allclose(runs[0], runs[1], rtol=1e-6)
