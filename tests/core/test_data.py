# SPDX-License-Identifier: Apache-2.0
""".d, .data, dtypes, shapes and NdArray. Expected values were tried in NNabla 1.39."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from tests.core.conftest import leaf


def test_assigning_an_array_replaces_the_dtype():
    v = nn.Variable((2,))
    for value in (np.array([1, 2]), np.array([1, 2.0]), np.array([True, False])):
        v.d = value
        assert v.d.dtype == value.dtype
    v.d = [1, 2]
    assert v.d.dtype == np.int64
    v.g = np.array([1, 2])
    assert v.g.dtype == np.int64


def test_writing_into_the_array_and_cast_keep_the_dtype():
    v = nn.Variable((2,))
    v.d[...] = np.array([1, 2])
    assert v.d.dtype == np.float32
    v.d = np.array([1, 2])
    v.data.cast(np.float32)[...] = 2.5
    assert v.d.dtype == np.float32
    np.testing.assert_array_equal(v.d, [2.5, 2.5])


def test_a_scalar_fills_lazily_and_keeps_the_dtype():
    v = nn.Variable((2,))
    v.d = np.array([1, 2])
    v.d = 3
    assert not v.data.bufs
    assert v.d.dtype == np.int64
    np.testing.assert_array_equal(v.d, [3, 3])
    v.d = np.float64(1.5)
    np.testing.assert_array_equal(v.d, [1, 1])  # still int64


def test_from_numpy_array_keeps_the_dtype_and_copies():
    a = np.array([1, 2], np.int16)
    v, nd = nn.Variable.from_numpy_array(a), nn.NdArray.from_numpy_array(a)
    a[0] = 9
    assert v.d.dtype == nd.data.dtype == np.int16
    assert v.d[0] == nd.data[0] == 1


def test_an_array_taken_before_a_change_of_dtype_is_no_longer_the_variables():
    v = nn.Variable((2,))
    v.d = np.float32([1, 2])
    a = v.d
    a[0] = 9
    np.testing.assert_array_equal(v.d, [9, 2])
    v.d = np.float32([5, 6])  # same dtype: copied into the same memory
    np.testing.assert_array_equal(a, [5, 6])
    v.d = np.array([7, 8])
    a[0] = 0
    np.testing.assert_array_equal(v.d, [7, 8])


def test_assignment_copies_the_source():
    v, source = nn.Variable((2,)), np.float32([1, 2])
    for _ in range(2):
        v.d = source
        source[0] = 100
        assert v.d[0] == 1
        source[0] = 1


def test_assignment_stretches_sizes_of_one():
    v = nn.Variable((2, 3))
    v.d = np.ones((1, 3))
    assert v.d.shape == (2, 3) and v.d.all()


def test_assigning_an_ndarray_shares_its_memory():
    v, nd = nn.Variable((2,)), nn.NdArray.from_numpy_array(np.float32([1, 2]))
    v.data = nd
    nd.data[0] = 5
    np.testing.assert_array_equal(v.d, [5, 2])
    v.d = np.float32([3, 4])
    np.testing.assert_array_equal(nd.data, [3, 4])
    nd.zero()
    np.testing.assert_array_equal(v.d, [0, 0])


def test_a_change_of_dtype_or_shape_ends_sharing():
    v, nd = nn.Variable((2,)), nn.NdArray.from_numpy_array(np.float32([1, 2]))
    for change in (
        lambda: v.data.cast(np.int32),
        lambda: setattr(v, "d", np.array([3, 4])),
        lambda: v.reset_shape((2, 1)),
        lambda: v.reset_shape((3,), force=True),
    ):
        v.reset_shape((2,), force=True)
        v.data = nd
        change()
        assert nd.data.dtype == nd.dtype == np.float32 and nd.data.shape == nd.shape == (2,)
        assert v.d.dtype == v.data.dtype and v.d.shape == v.shape
        np.testing.assert_array_equal(nd.data, [1, 2])


def test_an_unlinked_copy_follows_shared_memory():
    x = leaf([1, 2])
    u = x.unlinked()
    x.data = nn.NdArray.from_numpy_array(np.float32([8, 9]))
    np.testing.assert_array_equal(u.d, [8, 9])


# ---- dtypes of functions ----


def test_functions_compute_in_the_type_of_the_context():
    for dtype in (np.int64, np.float64, np.uint8):
        x = nn.Variable.from_numpy_array(np.array([1, 2], dtype))
        y = x * 2
        y.forward()
        assert y.d.dtype == np.float32 and x.d.dtype == dtype
    with nn.context_scope(nn.Context(["cpu:double"])):
        y = x * 2
        y.forward()
    assert y.d.dtype == np.float64


def test_reshape_keeps_the_dtype_and_shares_memory_unless_told_otherwise():
    x = nn.Variable.from_numpy_array(np.array([[1, 2]]))
    y, z = F.reshape(x, (2,)), F.reshape(x, (2,), inplace=False)
    nn.forward_all([y, z])
    assert y.d.dtype == np.int64
    y.d[0] = 9
    z.d[0] = 11
    np.testing.assert_array_equal(x.d, [[9, 2]])
    y.forward()
    z.forward()
    np.testing.assert_array_equal(z.d, [9, 2])


def test_inplace_arguments_are_ignored():
    x = leaf([1, 2])
    y = F.add_scalar(x, 1, inplace=True)
    z = F.add2(x, x, inplace=True)
    nn.forward_all([y, z])
    np.testing.assert_array_equal(x.d, [1, 2])
    np.testing.assert_array_equal(y.d, [2, 3])


# ---- reset_shape ----


def test_reset_shape_keeps_the_value_when_the_size_stays():
    x = nn.Variable.from_numpy_array(np.float32([1, 2, 3, 4]))
    x.g = 4
    x.reset_shape((2, 2))
    np.testing.assert_array_equal(x.d, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(x.g, [[4, 4], [4, 4]])


def test_forward_sets_the_graph_up_again_after_reset_shape():
    x = leaf([1, 2])
    y = x * x
    z = F.sum(y)
    z.forward()
    z.backward()
    x.reset_shape((3,), True)
    assert x.g.shape == (3,)
    x.d = np.float32([1, 2, 3])
    x.grad.zero()
    z.forward()
    z.backward()
    assert y.shape == y.g.shape == (3,)
    assert z.d == 14
    np.testing.assert_array_equal(x.g, [2, 4, 6])


# ---- NdArray ----


def test_ndarray_shapes_and_fills():
    a = nn.NdArray((2, 3))
    assert (a.shape, a.size, a.ndim, a.strides) == ((2, 3), 6, 2, (3, 1))
    assert (a.size_from_axis(1), a.size_from_axis(0), a.size_from_axis(-1)) == (3, 6, 6)
    assert nn.NdArray(2, 3).shape == (2, 3) and nn.NdArray(4).shape == (4,)
    assert nn.NdArray().shape == () and a.dtype == np.float32
    a.fill(3)
    np.testing.assert_array_equal(a.data, np.full((2, 3), 3))
    a.zero()
    assert a.zeroing
    assert not a.data.any() and not a.zeroing  # reading makes it real
    a.clear()
    assert a.clear_called


def test_view_and_narrow_share_memory():
    a = nn.NdArray.from_numpy_array(np.arange(6, dtype=np.float32).reshape(2, 3))
    a.view((3, -1)).data[0, 0] = 9
    a.narrow(0, 1, 1).data[...] = 0
    np.testing.assert_array_equal(a.data, [[9, 1, 2], [0, 0, 0]])


def test_copy_from_copies_and_keeps_the_dtype():
    a, b = nn.NdArray((2,)), nn.NdArray.from_numpy_array(np.array([1, 2]))
    a.copy_from(b)
    b.data[0] = 7
    assert a.data.dtype == np.float32
    np.testing.assert_array_equal(a.data, [1, 2])


def test_get_data_modes():
    a = nn.NdArray.from_numpy_array(np.float32([1, 2]))
    with pytest.raises(ValueError, match="read-only"):
        a.get_data("r")[0] = 5
    a.get_data("rw")[0] = 5
    np.testing.assert_array_equal(a.data, [5, 2])
    a.clear()
    assert a.get_data("w").shape == (2,)
    assert a.get_data("rw", np.float64).dtype == np.float64 == a.data.dtype


def test_outputs_argument_writes_into_a_given_array():
    x, o = leaf([1, 2]), nn.NdArray((2,))
    with nn.auto_forward():
        assert isinstance(F.add2(x, x, outputs=[o]), nn.Variable)
    np.testing.assert_array_equal(o.data, [2, 4])
    y = F.add2(x, x, outputs=[o])
    x.d = np.float32([5, 6])
    y.forward()
    np.testing.assert_array_equal(o.data, [10, 12])
    a = nn.NdArray.from_numpy_array(np.float32([1, 2]))
    F.add2(a, a, outputs=[a])
    np.testing.assert_array_equal(a.data, [2, 4])


def test_a_view_of_what_nothing_has_written_stays_one():
    x = leaf([1, 2, 3, 4])
    y = F.relu(x)
    part = y.data.view((2, 2))  # zeros, with a warning
    assert y.data.data.tolist() == [0, 0, 0, 0] and not y.data.written
    y.d = 5
    assert part.data.tolist() == [[5, 5], [5, 5]] and y.data.written
    y.forward()
    assert part.data.tolist() == [[1, 2], [3, 4]]
    part.zero()
    assert y.d.tolist() == [0, 0, 0, 0]


def test_arrays_of_one_memory_are_lazy_and_cleared_together():
    a, b = nn.Variable((2,)), nn.Variable((2,))
    a.d = 1
    b.data = a.data
    b.data.zero()
    assert a.data.zeroing
    a.d = np.float32([3, 4])
    assert b.d.tolist() == [3, 4] and not b.data.zeroing
    b.data.clear()
    assert a.data.clear_called
    a.data.fill(2)
    assert b.d.tolist() == [2, 2]
