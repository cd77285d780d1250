# SPDX-License-Identifier: Apache-2.0
"""need_grad, gradients, unlinked handles, nnl.grad. Values were tried in NNabla 1.39."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from tests.core.conftest import leaf


def test_a_new_variable_reads_as_zeros_and_needs_no_gradient():
    v = nn.Variable((2,))
    assert (v.need_grad, v.persistent, v.recompute, v.name, v.rank) == (False, False, False, "", 0)
    assert v.parent is None and v.info is None
    assert v.data.zeroing and v.grad.zeroing and not v.data.clear_called
    assert v.d.dtype == v.g.dtype == np.float32
    np.testing.assert_array_equal(v.d, [0, 0])
    np.testing.assert_array_equal(v.g, [0, 0])
    assert nn.Variable().shape == ()


def test_sizes_and_chained_attributes():
    v = nn.Variable((2, 3, 4), info="anything")
    assert (v.size, v.ndim, v.size_from_axis(1), v.size_from_axis()) == (24, 3, 12, 24)
    assert v.info == "anything"
    assert v.apply(name="q", need_grad=True) is v
    assert (v.name, v.need_grad) == ("q", True)
    assert nn.Variable([2, 3]).shape == (2, 3)


# ---- need_grad ----


def test_need_grad_of_an_output_is_fixed_when_the_function_is_called():
    x, w = leaf([1, 2], False), leaf([3, 4])
    y, z = x * w, x * x
    assert y.need_grad and not z.need_grad
    w.need_grad, x.need_grad = False, True
    assert y.need_grad and not z.need_grad


def test_need_grad_of_a_leaf_is_read_at_backward():
    x, w = leaf([1, 2]), leaf([3, 4], False)
    y = x * w
    w.need_grad = True
    y.forward()
    y.backward()
    np.testing.assert_array_equal(w.g, [1, 2])
    w.need_grad, x.need_grad = False, False
    y.forward()
    y.backward()
    np.testing.assert_array_equal(w.g, [1, 2])
    np.testing.assert_array_equal(x.g, [3, 4])


def test_need_grad_false_on_an_intermediate_stops_the_gradient_there():
    x = leaf([1, 2])
    h = x * x
    y = h * 3
    h.need_grad = False
    y.forward()
    y.backward()
    assert y.need_grad
    np.testing.assert_array_equal(x.g, [0, 0])
    h.need_grad = True
    y.forward()
    y.backward()
    np.testing.assert_array_equal(x.g, [6, 12])


def test_need_grad_true_on_an_intermediate_starts_a_gradient_there():
    x = leaf([1, 2], False)
    h = x * 2
    h.need_grad = True
    y = h * h
    assert y.need_grad
    y.forward()
    y.backward()
    np.testing.assert_array_equal(h.g, [4, 8])
    np.testing.assert_array_equal(x.g, [0, 0])


def test_backward_without_anything_that_needs_a_gradient_does_nothing():
    x = leaf([1, 2], False)
    y = x * 3
    y.forward()
    y.backward()
    np.testing.assert_array_equal(x.g, [0, 0])


# ---- gradients ----


def test_leaves_accumulate_and_intermediates_are_overwritten():
    x = leaf([1, 2])
    h = x * x
    y = h * 3
    y.forward()
    for i in (1, 2):
        y.backward()
        np.testing.assert_array_equal(x.g, np.multiply(i, [6, 12]))
        np.testing.assert_array_equal(h.g, [3, 3])
    y.forward()
    y.backward()
    np.testing.assert_array_equal(x.g, [18, 36])


def test_the_start_gradient_is_temporary():
    x = leaf([1, 2])
    y = x * 3
    y.g = 7
    y.forward()
    y.backward()
    np.testing.assert_array_equal(y.g, [7, 7])
    y.backward(clear_buffer=True)
    np.testing.assert_array_equal(y.g, [7, 7])
    with nn.auto_forward():
        z = x * 3
        z.g = 5
        z.backward(clear_buffer=True)
    np.testing.assert_array_equal(z.g, [5, 5])


@pytest.mark.parametrize("dynamic", [False, True])
def test_start_gradients_of_every_kind(dynamic):
    with nn.auto_forward(dynamic):
        x = leaf([1, 2])
        y = x * 3
        y.forward()

        def gradient(**kw):
            x.grad.zero()
            y.backward(**kw)
            return x.g.tolist()

        assert gradient() == [3, 3]  # an output that is no scalar starts from ones
        assert gradient(grad=2) == [6, 6]
        assert gradient(grad=np.array([1, 5])) == [3, 15]
        assert gradient(grad=nn.NdArray.from_numpy_array(np.float32([2, 3]))) == [6, 9]
        y.g = np.float32([1, 10])
        assert gradient(grad=None) == [3, 30]  # what is stored in y.g
        assert y.g.tolist() == [1, 10]


def test_the_start_gradient_none_is_zero_where_nothing_was_stored():
    x = leaf([1, 2])
    y = x * 3
    y.forward()
    y.backward(grad=None)
    np.testing.assert_array_equal(x.g, [0, 0])


def test_two_outputs_of_one_graph_add_to_the_leaf():
    x = leaf([1, 2])
    h = x * x
    a, b = F.sum(h * 2), F.sum(h * 3)
    a.forward()
    b.forward()
    a.backward()
    np.testing.assert_array_equal(x.g, [4, 8])
    np.testing.assert_array_equal(h.g, [2, 2])
    b.backward()
    np.testing.assert_array_equal(x.g, [10, 20])
    np.testing.assert_array_equal(h.g, [3, 3])


def test_the_user_may_write_into_a_gradient_between_backward_calls():
    x = leaf([1, 2])
    y = x * 3
    y.forward()
    x.g = 5
    y.backward()
    np.testing.assert_array_equal(x.g, [8, 8])
    x.g[0] = 100
    y.backward()
    np.testing.assert_array_equal(x.g, [103, 11])
    x.grad.zero()
    assert x.grad.zeroing
    y.backward()
    assert not x.grad.zeroing
    np.testing.assert_array_equal(x.g, [3, 3])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("clear", [False, True])
def test_a_gradient_that_passes_unchanged_to_two_leaves_is_not_shared(dynamic, clear):
    with nn.auto_forward(dynamic):
        x, w = leaf([1, 2]), leaf([3, 4])
        y = x + w
        y.forward(clear_no_need_grad=clear)
        y.backward(clear_buffer=clear)
        x.g[0] = 50
        np.testing.assert_array_equal(w.g, [1, 1])
        y.forward(clear_no_need_grad=clear)
        y.backward(grad=2, clear_buffer=clear)
        np.testing.assert_array_equal(x.g, [52, 3])
        np.testing.assert_array_equal(w.g, [3, 3])


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_leaf_used_several_times_gets_the_sum(dynamic):
    with nn.auto_forward(dynamic):
        x = leaf([1, 2])
        y = x + x + x * x
        y.forward()
        y.backward()
    np.testing.assert_array_equal(x.g, [4, 6])


def test_an_int_leaf_gets_a_float_gradient():
    x = nn.Variable.from_numpy_array(np.array([1, 2]), need_grad=True)
    y = F.sum(x * x)
    y.forward()
    y.backward()
    assert x.g.dtype == np.float32
    np.testing.assert_array_equal(x.g, [2, 4])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [int, np.int32, np.uint8, bool])
def test_a_gradient_that_was_set_to_whole_numbers_becomes_a_float(dynamic, dtype):
    with nn.auto_forward(dynamic):
        x = leaf([0.5, 2])
        x.g = np.array([1, 1], dtype)
        y = F.sum(x * x * 0.25)
        y.forward()
        y.backward()
    assert x.g.dtype == np.float32
    np.testing.assert_array_equal(x.g, [1.25, 2])


def test_a_given_gradient_buffer_is_written():
    x = leaf([1, 2])
    g = nn.NdArray((2,))
    x.grad = g
    y = x * 3
    y.forward()
    y.backward()
    np.testing.assert_array_equal(g.data, [3, 3])


# ---- handles ----


def test_an_unlinked_copy_is_equal_and_shares_data_and_gradient():
    x = leaf([1, 2])
    y = x * 2
    y.forward()
    u = y.get_unlinked_variable()
    assert u.parent is None and u == y and hash(u) == hash(y) and u is not y
    assert u.need_grad and not y.unlinked(need_grad=False).need_grad
    u.d[0] = 77
    np.testing.assert_array_equal(y.d, [77, 4])
    u.g = 4
    np.testing.assert_array_equal(y.g, [4, 4])
    z = u * 3
    u.grad.zero()
    z.forward()
    z.backward()
    np.testing.assert_array_equal(u.g, [3, 3])
    np.testing.assert_array_equal(y.g, [3, 3])
    np.testing.assert_array_equal(x.g, [0, 0])


def copied(x, mode):
    """Gradients by a variable and by its unlinked copy, each way of asking."""
    u = x.get_unlinked_variable(need_grad=True)

    def ask():
        y = F.sum(F.tanh(u * 1.5) + x * x)
        alone = F.sum(u * u * u)
        return [
            *nn.grad([y], [x]), *nn.grad([y], [u]), *nn.grad([y], [x, u]), *nn.grad([alone], [x]),
            *nn.grad([F.sum(nn.grad([y], [x])[0] * u)], [u]),
        ]  # fmt: skip

    if mode == "compiled":
        return nn.compile(ask)()
    with nn.auto_forward(mode == "dynamic"):
        found = ask()
    nn.forward_all(found)
    return found


@pytest.mark.parametrize("context", ["cpu", "numpy"])
@pytest.mark.parametrize("mode", ["static", "dynamic", "compiled"])
def test_grad_takes_an_unlinked_copy_for_an_input_of_its_own(mode, context):
    """As `x.detach().requires_grad_()` is in torch; backward adds both up, in the shared array."""
    x = leaf([1, -2])
    with nn.context_scope(nn.Context([f"{context}:float"])):
        found = [g.d.copy() for g in copied(x, mode)]
        by_x, by_u = 2 * x.d, 1.5 * (1 - np.tanh(1.5 * x.d) ** 2)
        wanted = [by_x, by_u, by_x, by_u, 3 * x.d**2, by_x]
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        y = F.sum(F.tanh(x.unlinked(need_grad=True) * 1.5) + x * x)
        y.forward()
        y.backward()
    np.testing.assert_allclose(x.g, by_x + by_u, rtol=1e-5)


@pytest.mark.parametrize("mode", ["static", "dynamic", "compiled"])
def test_an_unlinked_copy_of_a_result_adds_to_no_other_gradient(mode):
    """d/dx of sum((2 h + u) w), where h = x + w and u is h as a constant: 2 w."""
    x, w = leaf([1, 2]), leaf([3, 4])

    def step():
        h = x + w
        u = h.get_unlinked_variable(need_grad=True)
        y = F.sum(F.add_n(h, u, h) * w)
        if mode == "static":
            y.forward()
        y.backward()
        return y

    with nn.auto_forward(mode == "dynamic"):
        y = nn.compile(step)() if mode == "compiled" else step()
    np.testing.assert_array_equal(y.d, 3 * (4 * 3 + 6 * 4))
    np.testing.assert_array_equal(x.g, [6, 8])


def test_an_unlinked_copy_alone_has_the_value_of_its_run():
    x = leaf([1, 2])
    run = nn.compile(lambda x: F.sum((x * 3).get_unlinked_variable(need_grad=False) * 2))
    assert run(x).d == 18
    x.d = [2, 3]
    assert run(x).d == 30


def test_grad_takes_handles_of_one_parameter_for_one_input():
    w, again = [nn.parameter.get_parameter_or_create("w", (2,)) for _ in range(2)]
    w.d = [1, -2]
    y = F.sum(w * again * again)
    for x in (w, again, nn.get_parameters()["w"]):
        (g,) = nn.grad([y], [x])
        g.forward()
        np.testing.assert_array_equal(g.d, [3, 12])


def test_persistent_is_not_inherited_by_unlinked_copies():
    x = leaf([1, 2])
    x.persistent = True
    assert not x.unlinked().persistent


def test_python_protocols_of_a_variable():
    x, y = leaf([1, 2]), leaf([1, 2])
    assert x == x and x != y and x not in [y] and bool(x)
    assert len(x) == 2
    for operation in (lambda: float(x), lambda: int(x), lambda: x > 1):
        with pytest.raises(TypeError):
            operation()


# ---- nn.grad ----


def test_grad_returns_nodes_that_can_be_differentiated_again():
    x = leaf([1, 2])
    y = x * x * x
    g = nn.grad([y], [x])
    assert isinstance(g, list) and g[0].parent is not None
    g[0].forward()
    np.testing.assert_array_equal(g[0].d, [3, 12])
    (g2,) = nn.grad(g, [x])
    g2.forward()
    np.testing.assert_array_equal(g2.d, [6, 12])
    np.testing.assert_array_equal(x.g, [0, 0])  # .g is backward()'s


def test_grad_in_a_loss():
    x = leaf([1, 2])
    loss = F.sum(nn.grad([x * x * x], [x])[0] ** 2)  # (3 x^2)^2 = 9 x^4
    loss.forward(clear_no_need_grad=True)
    loss.backward(clear_buffer=True)
    np.testing.assert_array_equal(x.g, [36, 288])


def test_grad_takes_single_variables_and_start_gradients():
    x = leaf([1, 2])
    y = x * x

    def gradient(outputs, **kw):
        g = nn.grad(outputs, x, **kw)[0]
        g.forward()
        return g.d.tolist()

    assert gradient(y) == [2, 4]
    assert gradient([y, y * 2]) == [6, 12]
    assert gradient([y], grad_outputs=[2]) == [4, 8]
    assert gradient([y], grad_outputs=[None]) == [2, 4]
    assert gradient([y], grad_outputs=[leaf([1, 10])]) == [2, 40]
    assert gradient(y, grad_outputs=nn.NdArray.from_numpy_array(np.float32([2, 3]))) == [4, 12]


def test_grad_of_intermediates_and_of_what_does_not_matter():
    x, unused = leaf([1, 2]), leaf([1, 2, 3])
    h = x * x
    gh, gx, gu = nn.grad([h * h], [h, x, unused])
    nn.forward_all([gh, gx])
    np.testing.assert_array_equal(gh.d, [2, 8])
    np.testing.assert_array_equal(gx.d, [4, 32])
    np.testing.assert_array_equal(gu.d, [0, 0, 0])


def test_grad_binds_gradient_arrays_on_request():
    x = leaf([1, 2])
    (g,) = nn.grad([x * x * x], [x], bind_grad_output=True, persistent_outputs=[True])
    assert g.persistent
    g.forward()
    np.testing.assert_array_equal(x.g, [3, 12])


def test_grad_computes_at_once_in_dynamic_mode():
    with nn.auto_forward():
        x = leaf([1, 2])
        y = x * x * x
        (g,) = nn.grad([y], [x])
        np.testing.assert_array_equal(g.d, [3, 12])
        (g2,) = nn.grad([g], [x])
        np.testing.assert_array_equal(g2.d, [6, 12])


def test_need_grad_set_on_an_input_after_the_call_takes_effect_at_the_next_forward():
    x = nn.Variable((2, 3))
    x.d = 1
    y = F.sum(x * 2)
    y.forward()
    y.backward()
    assert (x.g == 0).all()
    x.need_grad = True
    y.forward(clear_no_need_grad=True)
    y.backward(clear_buffer=True)
    assert y.need_grad and (x.g == 2).all()


def test_need_grad_set_late_does_not_reach_functions_called_under_no_grad():
    x = nn.Variable((2, 3))
    x.d = 1
    with nn.no_grad():
        h = x * 2
    y = F.sum(h)
    x.need_grad = True
    y.forward()
    y.backward()
    assert not y.need_grad and (x.g == 0).all()


@pytest.mark.parametrize("auto_forward", (False, True))
def test_gradients_with_respect_to_what_was_unlinked(auto_forward):
    """The penalty on a critic's slope: backward passes w and stops at the unlinked point."""
    x = nn.Variable.from_numpy_array(np.array([1.0, 2.0], np.float32), need_grad=True)
    w = nn.Variable.from_numpy_array(np.array([3.0, 5.0], np.float32), need_grad=True)
    with nn.auto_forward(auto_forward):
        point = F.unlink(x * 2)
        point.need_grad = True
        (slope,) = nn.grad([F.sum(w * point**2)], [point])
        penalty = F.sum(slope**2)  # (2 w p)^2
    penalty.forward()
    x.g = w.g = 0
    penalty.backward()
    np.testing.assert_allclose(w.g, 8 * w.d * (2 * x.d) ** 2, rtol=1e-6)
    assert not x.g.any()
