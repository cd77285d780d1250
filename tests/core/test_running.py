# SPDX-License-Identifier: Apache-2.0
"""forward(), clearing, modes, hooks, recomputation. Expected values were tried in NNabla 1.39."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from tests.core.conftest import leaf


def cleared(*variables):
    return [v.data.clear_called for v in variables]


def chain():
    x = leaf([1, 2])
    h1 = x * 2
    h2 = h1 * h1
    h3 = h2 * 3
    return x, h1, h2, h3, F.sum(h3)


# ---- forward ----


def test_forward_always_computes_everything_below():
    x = leaf([1, 2])
    y = x * 2 + 1
    calls = []
    for value in (1, 5, 5):
        x.d[0] = value
        y.forward(function_pre_hook=calls.append)
        assert y.d[0] == 2 * value + 1
    assert len(calls) == 6


def test_a_value_written_to_an_intermediate_lasts_until_the_next_forward():
    x = leaf([1, 2])
    h = x * 2
    y = h * 3
    y.forward()
    h.d = 10
    np.testing.assert_array_equal(h.d, [10, 10])
    y.forward()
    np.testing.assert_array_equal(h.d, [2, 4])
    np.testing.assert_array_equal(y.d, [6, 12])


def test_forward_all_computes_what_is_shared_once():
    x = leaf([1, 2])
    h = x * 2
    a, b = h * 3, h + 1
    names = []
    nn.forward_all([a, b], function_pre_hook=lambda f: names.append(f.name))
    assert names == ["MulScalar", "MulScalar", "AddScalar"]
    np.testing.assert_array_equal(a.d, [6, 12])
    np.testing.assert_array_equal(b.d, [3, 5])
    nn.forward_all([a, b], clear_no_need_grad=True)
    a.backward()
    b.backward()
    np.testing.assert_array_equal(x.g, [8, 8])
    nn.forward_all([a, b], clear_buffer=True)
    np.testing.assert_array_equal(b.d, [3, 5])
    nn.forward_all([])


# ---- clearing ----


def test_clear_buffer_frees_intermediates_only():
    v = chain()
    v[-1].forward(clear_buffer=True)
    assert cleared(*v) == [False, True, True, True, False]


def test_clear_no_need_grad_keeps_what_backward_needs():
    v = chain()
    v[-1].forward(clear_no_need_grad=True)
    assert cleared(*v) == [False, False, True, True, False]  # h1 * h1 needs h1
    v[-1].backward(clear_buffer=True)
    assert cleared(*v) == [False, True, True, True, False]
    np.testing.assert_array_equal(v[0].g, [24, 48])


def test_backward_clear_buffer_keeps_leaves_and_the_root():
    x, h1, h2, h3, y = chain()
    y.forward(clear_no_need_grad=True)
    y.backward(clear_buffer=True)
    assert y.d == 60
    np.testing.assert_array_equal(x.d, [1, 2])
    np.testing.assert_array_equal(x.g, [24, 48])


def test_persistent_protects_a_variable():
    x = leaf([1, 2])
    h = x * 2
    k = h * 3
    y = k * 4
    h.persistent = True
    for forward in ({"clear_buffer": True}, {"clear_no_need_grad": True}):
        y.forward(**forward)
        assert cleared(h, k) == [False, True]
        np.testing.assert_array_equal(h.d, [2, 4])
    y.backward(clear_buffer=True)
    np.testing.assert_array_equal(h.d, [2, 4])
    np.testing.assert_array_equal(x.g, [24, 24])


def test_cleared_data_can_be_written_again():
    x = leaf([1, 2])
    h = x * 2
    y = h * 3
    y.forward(clear_buffer=True)
    h.d = 5
    assert not h.data.clear_called
    y.forward()
    np.testing.assert_array_equal(h.d, [2, 4])


@pytest.mark.parametrize("forward", [{}, {"clear_no_need_grad": True}])
@pytest.mark.parametrize("marked", [(), (0,), (0, 1)])
def test_recompute_gives_the_same_gradients(forward, marked):
    x = leaf([1, 2])
    h = x * x
    k = h * h
    for i in marked:
        (h, k)[i].recompute = True
    y = F.sum(k * k)
    for clear in (True, False):
        x.grad.zero()
        y.forward(**forward)
        assert cleared(h) == [bool(forward) and 0 in marked]
        y.backward(clear_buffer=clear)
        np.testing.assert_array_equal(x.g, [8, 1024])  # d x^8


def test_recompute_scopes_mark_what_functions_return():
    x = leaf([1, 2])
    with nn.recompute():
        h = x * x
        with nn.recompute(False):
            assert not (x * x).recompute
    assert h.recompute and not x.recompute and not (x * x).recompute
    assert nn.recompute_fn()(lambda v: v * v)(x).recompute
    nn.set_global_recompute(True)
    assert (x * x).recompute
    nn.set_global_recompute(False)
    assert not (x * x).recompute


# ---- dynamic mode and no_grad ----


def test_auto_forward_computes_at_once_and_backward_works():
    assert not nn.get_auto_forward()
    with nn.auto_forward():
        assert nn.get_auto_forward()
        x = leaf([1, 2])
        y = x * x
        np.testing.assert_array_equal(y.d, [1, 4])
        z = F.sum(y)
        z.backward()
        assert z.d == 5 and y.parent.name == "Mul2"
        np.testing.assert_array_equal(x.g, [2, 4])
        np.testing.assert_array_equal(y.g, [1, 1])
    assert not nn.get_auto_forward()
    nn.set_auto_forward(True)
    assert nn.get_auto_forward()
    nn.set_auto_forward(False)


def test_a_dynamic_graph_can_be_run_again_as_a_static_one():
    with nn.auto_forward():
        x = leaf([1, 2])
        z = F.sum(x * x)
    x.d = np.float32([3, 4])
    z.forward()
    z.backward()
    assert z.d == 25
    np.testing.assert_array_equal(x.g, [6, 8])


@pytest.mark.parametrize("first", [False, True])
def test_static_and_dynamic_parts_mix(first):
    x = leaf([1, 2])
    with nn.auto_forward(first):
        h = x * x
    if not first:
        h.forward()
    with nn.auto_forward(not first):
        y = h * h
    if first:
        y.forward()
    np.testing.assert_array_equal(y.d, [1, 16])
    y.backward()
    np.testing.assert_array_equal(x.g, [4, 32])
    x.d = np.float32([2, 1])
    x.grad.zero()
    y.forward(clear_no_need_grad=True)
    np.testing.assert_array_equal(y.d, [16, 1])
    y.backward(clear_buffer=True)
    np.testing.assert_array_equal(x.g, [32, 4])


def test_no_grad_in_dynamic_mode_records_nothing():
    with nn.auto_forward(), nn.no_grad():
        y = leaf([1, 2]) * 3
        assert y.parent is None and not y.need_grad
        np.testing.assert_array_equal(y.d, [3, 6])
        with nn.no_grad(False):
            assert (leaf([1]) * 3).need_grad


def test_no_grad_in_static_mode_keeps_the_graph():
    x = leaf([1, 2])
    with nn.no_grad():
        y = x * 3
    assert y.parent.name == "MulScalar" and not y.need_grad
    y.forward()
    np.testing.assert_array_equal(y.d, [3, 6])
    z = y * x  # a gradient of what comes after goes no further than y
    z.forward()
    z.backward()
    np.testing.assert_array_equal(x.g, [3, 6])


# ---- hooks ----


@pytest.fixture
def log():
    lines = []
    nn.set_function_pre_hook("log", lambda f: lines.append("pre " + f.info.type_name))
    nn.set_function_post_hook("log", lambda f: lines.append("post " + f.info.type_name))
    yield lines
    nn.unset_function_pre_hook("log")
    nn.unset_function_post_hook("log")


def test_global_hooks_enclose_every_function(log):
    y = F.sum(leaf([1, 2]) * 2)
    y.forward()
    assert log == ["pre MulScalar", "post MulScalar", "pre Sum", "post Sum"]
    log.clear()
    y.backward()
    assert log == ["pre Sum", "post Sum", "pre MulScalar", "post MulScalar"]
    nn.unset_function_pre_hook("log")
    nn.unset_function_post_hook("log")
    log.clear()
    y.forward()
    assert not log


def test_hooks_of_a_call_run_inside_the_global_ones(log):
    y = leaf([1, 2]) * 2
    wanted = ["pre MulScalar", "own", "own", "post MulScalar"]
    own = {f"function_{k}_hook": lambda f: log.append("own") for k in ("pre", "post")}
    y.forward(**own)
    assert log == wanted
    log.clear()
    y.backward(**own)
    assert log == wanted


def test_hooks_see_values_while_buffers_are_being_cleared():
    x, h1, h2, h3, y = chain()
    seen = {}
    y.forward(
        clear_buffer=True,
        function_post_hook=lambda f: seen.setdefault(f.name, []).append(f.outputs[0].d.copy()),
    )
    np.testing.assert_array_equal(seen["MulScalar"], [[2, 4], [12, 48]])
    np.testing.assert_array_equal(seen["Mul2"], [[4, 16]])
    assert cleared(h1, h2, h3, y) == [True, True, True, False]


@pytest.mark.parametrize("clear", [False, True])
def test_hooks_do_not_change_results_of_static_graphs(clear):
    x, *_, y = chain()
    for hook in (None, lambda f: None, None):
        x.grad.zero()
        y.forward(clear_no_need_grad=clear, function_pre_hook=hook)
        y.backward(clear_buffer=clear, function_post_hook=hook)
        assert y.d == 60
        np.testing.assert_array_equal(x.g, [24, 48])


def test_hooks_run_in_dynamic_mode(log):
    with nn.auto_forward():
        y = leaf([1, 2]) * 2
    assert log == ["pre MulScalar", "post MulScalar"]
    np.testing.assert_array_equal(y.d, [2, 4])


# ---- random streams ----


def test_seed_restarts_the_shared_stream():
    a = F.rand(shape=(3,))
    nn.seed(5)
    a.forward()
    first = a.d.copy()
    a.forward()
    assert (a.d != first).all()
    nn.seed(5)
    a.forward()
    np.testing.assert_array_equal(a.d, first)


def test_a_seed_of_its_own_starts_a_stream_that_goes_on():
    a, b, c = (F.rand(shape=(3,), seed=s) for s in (7, 7, 8))
    rows = []
    for v in (a, a, b, b, c):
        v.forward()
        rows.append(v.d.copy())
    np.testing.assert_array_equal(rows[:2], rows[2:4])
    assert (rows[0] != rows[1]).all() and (rows[0] != rows[4]).all()


def test_initial_values_come_from_numpys_generator_with_seed_313():
    import nnl.random

    nn.seed(313)
    np.testing.assert_array_equal(nnl.random.prng.rand(3), np.random.RandomState(313).rand(3))
    nn.seed(3)
    assert nnl.random.pseed == 3
    np.testing.assert_array_equal(nnl.random.prng.rand(3), np.random.RandomState(3).rand(3))
    nn.seed(313)


# ---- context ----


def test_context_fields_and_scope():
    c = nn.Context()
    assert (c.backend, c.array_class, c.device_id) == (["cpu:float"], "", "0")
    assert c["backend"] == ["cpu:float"]
    assert repr(c) == "Context(backend=['cpu:float'], array_class='', device_id='0')"
    before = nn.get_current_context()
    with nn.context_scope(nn.Context(["cpu:float"], "CpuArray", "3")):
        assert nn.get_current_context().device_id == "3"
    assert nn.get_current_context() is before
