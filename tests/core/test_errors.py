# SPDX-License-Identifier: Apache-2.0
"""Errors of arrays, calls, backward and graphs: the text, and that nothing has changed after it."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError, Spec, check_axes, check_rank, check_same_shape
from tests.core.conftest import leaf

# ---- shapes and arrays ----


def test_bad_shapes():
    for make in (nn.Variable, nn.NdArray):
        with pytest.raises(ShapeError, match=r"shape is \(-1,\), wanted sizes >= 0"):
            make((-1,))
        for bad in ("ab", (2.5,), (None,), ("2",)):
            with pytest.raises(TypeError, match="shape"):
                make(bad)


def test_spec_helpers_name_function_argument_and_shape():
    x, y = Spec.of((2, 3)), Spec.of((3,))
    with pytest.raises(ShapeError, match=r"f: axis 2 is outside \[-2, 2\) for x float32\[2, 3\]"):
        check_axes("f", [2], x)
    with pytest.raises(ShapeError, match=r"f: axes \(0, -2\) name an axis of x .* twice"):
        check_axes("f", [0, -2], x)
    with pytest.raises(ShapeError, match=r"f: w float32\[3\] has rank 1, wanted 2 or 4"):
        check_rank("f", "w", y, 2, 4)
    with pytest.raises(ShapeError, match=r"f: x .* and w .* must have the same shape"):
        check_same_shape("f", "x", x, "w", y)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (
            np.zeros((3, 2)),
            ShapeError,
            r"cannot assign an array of shape \(3, 2\) to float(32|64)\[2, 3\]",
        ),
        ("abc", TypeError, "data: got 'abc', wanted a number or an array of numbers"),
        (None, TypeError, "data: got None, wanted"),
        (np.array([1j]), TypeError, "data: got array.* wanted a number"),
        ([[1], [2, 3]], TypeError, r"data: got \[\[1\], \[2, 3\]\], wanted a number or an array"),
    ],
)
def test_wrong_values_for_d_and_g(value, error, text):
    v = nn.Variable.from_numpy_array(np.ones((2, 3)))
    v.g = 2
    for assign in (
        lambda: setattr(v, "d", value),
        lambda: setattr(v, "g", value),
        lambda: setattr(v.data, "data", value),
    ):
        with pytest.raises(error, match=text):
            assign()
    assert v.d.dtype == np.float64 and (v.d == 1).all() and (v.g == 2).all()


def test_wrong_values_for_data_and_grad():
    v = leaf([1, 2])
    for name in ("data", "grad"):
        with pytest.raises(TypeError, match="data: got ndarray, wanted an NdArray"):
            setattr(v, name, np.zeros(2))
        with pytest.raises(ShapeError, match=r"data: got float32\[3\], wanted the shape \(2,\)"):
            setattr(v, name, nn.NdArray((3,)))
    np.testing.assert_array_equal(v.d, [1, 2])


def test_reset_shape_needs_force_for_another_size():
    v = leaf([1, 2])
    with pytest.raises(ShapeError, match=r"reset_shape: float32\[2\] has 2 elements, shape \(3,\)"):
        v.reset_shape((3,))
    assert v.shape == (2,) and v.d.tolist() == [1, 2]


def test_ndarray_methods():
    a = nn.NdArray.from_numpy_array(np.float32([[1, 2], [3, 4]]))
    with pytest.raises(ShapeError, match=r"copy_from: arr is float32\[3\], wanted the shape"):
        a.copy_from(nn.NdArray((3,)))
    with pytest.raises(TypeError, match="copy_from: arr is ndarray, wanted an NdArray"):
        a.copy_from(np.zeros((2, 2)))
    with pytest.raises(ShapeError, match=r"view: float32\[2, 2\] does not fit the shape \(3,\)"):
        a.view((3,))
    for narrow in ((1, 0, 1), (0, 1, 2), (0, -1, 1), (5, 0, 1)):
        with pytest.raises(ShapeError, match="narrow: .* wanted a range inside dim 0"):
            a.narrow(*narrow)
    with pytest.raises(ShapeError, match="narrow: "):
        nn.NdArray().narrow(0, 0, 1)
    with pytest.raises(ValueError, match="get_data: mode is 'x', wanted 'r', 'w' or 'rw'"):
        a.get_data("x")
    with pytest.raises(TypeError, match="cast: dtype is 'no such type', wanted a type of numpy"):
        a.cast("no such type")
    np.testing.assert_array_equal(a.data, [[1, 2], [3, 4]])


def test_reading_what_was_cleared():
    x = leaf([1, 2])
    h = x * 2
    y = h * 3
    y.forward(clear_buffer=True)
    for _ in range(2):  # the flag stays
        with pytest.raises(ValueError, match="after it had been cleared by clear_buffer.*persist"):
            h.d  # noqa: B018
        assert h.data.clear_called
    with pytest.raises(ValueError, match="cleared"):
        nn.NdArray((2,)).copy_from(h.data)


# ---- calls ----


def test_wrong_arguments_of_functions():
    x = leaf([1, 2])
    for call, text in {
        lambda: F.add2(x, 3): "add2: x1 is int, wanted nnl.Variable or nnl.NdArray",
        lambda: F.add2(np.zeros(2), x): "add2: x0 is ndarray, wanted nnl.Variable or nnl.NdArray",
        lambda: F.add2(x): r"add2\(\) needs the input 'x1'",
        lambda: F.add2(x, None): r"add2\(\) needs the input 'x1'",
        lambda: F.add2(x, x, False, 1): r"add2\(\) takes 3 arguments, got 4",
        lambda: F.add2(x, x, x0=x): r"add2\(\) got two values for 'x0'",
        lambda: F.add_scalar(x, 1, val=2): r"add_scalar\(\) got two values for 'val'",
        lambda: F.add_scalar(x, foo=1): r"add_scalar\(\) has no argument 'foo'",
        lambda: F.add_scalar(x, "a"): "add_scalar: val is 'a', wanted a float",
        lambda: F.sum(x, axis="a"): "sum: axes is 'a', wanted a sequence of ints",
        lambda: F.sum(x, axis=(0.5,)): r"sum: axes is \(0.5,\), wanted a sequence of ints",
        lambda: F.sum(3): "sum: x is int, wanted nnl.Variable or nnl.NdArray",
        lambda: F.add_n(x, 3): "add_n: x is int, wanted nnl.Variable or nnl.NdArray",
        lambda: F.add_n(x, foo=3): r"add_n\(\) has no argument 'foo'",
    }.items():
        for dynamic in (False, True):
            with nn.auto_forward(dynamic), pytest.raises(TypeError, match=text):
                call()
    assert x.d.tolist() == [1, 2]


def test_a_required_attribute_left_out():
    with pytest.raises(TypeError, match=r"reshape\(\) needs the argument 'shape'"):
        nn.core.ops.op.OPS["reshape"](leaf([1, 2]))


def test_wrong_shapes_given_to_functions():
    x = leaf([1, 2])
    for call, text in {
        lambda: F.add2(x, leaf([[1, 2]])): r"add2: x0 float32\[2\] and x1 .* the same rank",
        lambda: F.add2(
            x, leaf([1, 2, 3])
        ): r"add2: x0 float32\[2\] and x1 float32\[3\] do not broad",
        lambda: F.sum(x, axis=1): r"sum: axis 1 is outside \[-1, 1\) for x float32\[2\]",
        lambda: F.reshape(x, (3,)): r"reshape: x float32\[2\] has 2 elements, shape \(3,\) has 3",
    }.items():
        for dynamic in (False, True):
            with nn.auto_forward(dynamic), pytest.raises(ShapeError, match=text):
                call()


def test_wrong_outputs_argument():
    x, a = leaf([1, 2]), nn.NdArray((2,))
    with pytest.raises(ValueError, match="add2: outputs has 2 arrays, wanted 1"):
        F.add2(x, x, outputs=[a, a])
    assert a.data.tolist() == [0, 0]


def test_a_shape_that_no_longer_fits_is_found_at_forward():
    x, w = leaf([1, 2]), leaf([3, 4])
    y = x * w
    y.forward()
    x.reset_shape((3,), force=True)
    with pytest.raises(ShapeError, match=r"mul2 \(test_errors.py:\d+\): x0 .* do not broadcast"):
        y.forward()
    x.reset_shape((2,), force=True)
    x.d = np.float32([1, 2])
    y.forward()
    np.testing.assert_array_equal(y.d, [3, 8])


def test_unhashable_attributes_keep_their_own_error():
    with pytest.raises(TypeError, match="add_scalar: val is .* wanted a float"):
        F.add_scalar(leaf([1, 2]), {})


# ---- backward ----


@pytest.mark.parametrize("dynamic", [False, True])
def test_wrong_start_gradients(dynamic):
    with nn.auto_forward(dynamic):
        x = leaf([1, 2])
        y = x * 3
        y.forward()
        with pytest.raises(ShapeError, match=r"backward: grad has the shape \(3,\), wanted \(2,\)"):
            y.backward(grad=np.zeros(3))
        with pytest.raises(ShapeError, match=r"backward: grad is float32\[3\], wanted the shape"):
            y.backward(grad=nn.NdArray((3,)))
        for bad in ("a", leaf([1, 2])):
            with pytest.raises(TypeError, match="backward: grad: got "):
                y.backward(grad=bad)
        assert x.g.tolist() == [0, 0]
        y.backward()
    assert x.g.tolist() == [3, 3]


def test_backward_through_a_freed_dynamic_graph():
    with nn.auto_forward():
        x = leaf([1, 2])
        y = F.sum(x * x)
        y.backward(clear_buffer=True)
        with pytest.raises(ValueError, match="what sum kept .* was freed by an earlier backward"):
            y.backward()
        assert x.g.tolist() == [2, 4]
        y.forward()
        y.backward()
        assert x.g.tolist() == [4, 8]


@pytest.mark.parametrize("forward", [{"clear_buffer": True}, {"clear_no_need_grad": True}])
@pytest.mark.parametrize("clear", [False, True])
def test_backward_through_a_cleared_static_graph(forward, clear):
    x = leaf([1, 2])
    h = x * x
    y = F.sum(h * h)
    y.forward(**forward)
    if "clear_no_need_grad" in forward:
        y.backward(clear_buffer=True)
    before = x.g.tolist()
    with pytest.raises(ValueError, match="read after it had been cleared by clear_buffer"):
        y.backward(clear_buffer=clear)
    assert x.g.tolist() == before
    x.grad.zero()
    y.forward()
    y.backward()
    assert x.g.tolist() == [4, 32]


def test_grad_arguments():
    x, w = leaf([1, 2]), leaf([3, 4], False)
    w.name = "w"
    y = x * w
    for kw, error, text in (
        ({"grad_outputs": [1, 2]}, ValueError, "grad: grad_outputs has 2 entries, wanted 1"),
        ({"grad_outputs": [leaf([1])]}, ShapeError, r"grad_outputs has the shape \(1,\), wanted"),
        ({"grad_outputs": [np.zeros(3)]}, ShapeError, r"grad has the shape \(3,\), wanted \(2,\)"),
        (
            {"persistent_outputs": [True] * 2},
            ValueError,
            "persistent_outputs has 2 entries, wanted 1",
        ),
        ({"inputs": [3]}, TypeError, r"grad: inputs\[0\] is int, wanted nnl.Variable"),
        ({"outputs": [3]}, TypeError, r"grad: outputs\[0\] is int, wanted nnl.Variable"),
        ({"outputs": []}, ValueError, "grad: outputs is empty"),
    ):
        with pytest.raises(error, match=text):
            nn.grad(**{"outputs": [y], "inputs": [x], **kw})


# ---- graph ----


def test_forward_all_takes_variables_only():
    with pytest.raises(TypeError, match="forward_all: variables must be nnl.Variable"):
        nn.forward_all([leaf([1]) * 2, 3])


def test_rewiring_needs_the_same_shape():
    x = leaf([1, 2])
    y = x * 2
    with pytest.raises(ShapeError, match=r"rewire_on: var has the shape \(1,\), wanted \(2,\)"):
        y.rewire_on(leaf([1]))
    with pytest.raises(TypeError, match="rewire_on: var is int, wanted nnl.Variable"):
        y.rewire_on(3)
    y.forward()
    assert y.d.tolist() == [2, 4]


def test_a_cycle_made_by_rewiring_is_an_error():
    x = leaf([1, 2])
    h = x * 2
    y = h * 3
    h.rewire_on(y)
    for use in (y.forward, lambda: y.visit(print), lambda: y.rank):
        with pytest.raises(ValueError, match="the graph has a cycle, made by rewire_on"):
            use()


def test_parent_can_only_be_cleared():
    y = leaf([1, 2]) * 2
    with pytest.raises(ValueError, match="parent can only be set to None, got Function: use"):
        y.parent = y.parent
    assert y.parent.name == "MulScalar"


def test_comparing_with_something_else():
    for f in (lambda: leaf([1]) == 3, lambda: leaf([1]) != None):  # noqa: E711
        with pytest.raises(TypeError, match=r"Variable == (int|NoneType): == tells whether"):
            f()


def test_variables_are_not_copied_or_pickled():
    import copy
    import pickle

    for f in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="a Variable cannot be pickled or copied"):
            f(leaf([1]) * 2)


def test_iteration_over_a_scalar():
    with pytest.raises(TypeError, match="iteration over a scalar Variable or NdArray"):
        list(nn.Variable())


def test_apply_knows_attributes_only():
    with pytest.raises(AttributeError, match="nope"):
        leaf([1]).apply(nope=1)


def test_matmul_operands():
    with pytest.raises(ShapeError, match=r"matmul: got shapes \(\) and \(2,\), wanted at least"):
        nn.Variable() @ leaf([1, 2])
    with pytest.raises(ShapeError, match=r"matmul: got shapes \(2,\) and \(3,\), their inner"):
        leaf([1, 2]) @ leaf([1, 2, 3])
    with pytest.raises(TypeError):
        leaf([1, 2]) @ 3


def test_in_place_operators_do_not_grow_their_array():
    a = nn.NdArray.from_numpy_array(np.ones((1, 2), np.float32))
    with pytest.raises(
        ShapeError, match=r"in-place operator: float32\[1, 2\] cannot hold .*\[3, 2\]"
    ):
        a += nn.NdArray((3, 2))
    assert a.data.tolist() == [[1, 1]]
