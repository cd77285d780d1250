# SPDX-License-Identifier: Apache-2.0
"""Small habits of NNabla's arrays that its own tests rely on; each was tried there."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from tests.core.conftest import leaf


def test_products_of_arrays_and_variables():
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    b = np.arange(12, dtype=np.float32).reshape(3, 4)
    nd, v = nn.NdArray.from_numpy_array(a), nn.Variable.from_numpy_array(b)
    np.testing.assert_array_equal((nd @ v).data, a @ b)
    nd, v = nn.NdArray.from_numpy_array(b), nn.Variable.from_numpy_array(a)
    np.testing.assert_array_equal((v @ nd).data, a @ b)
    for x, y in ((np.arange(3.0), b), (np.ones((5, 2, 3)), np.ones((5, 3, 2))), (a, np.ones(3))):
        p = nn.NdArray.from_numpy_array(x) @ nn.Variable.from_numpy_array(y)
        np.testing.assert_allclose(p.data, x @ y)


def test_copy_from_without_the_context_takes_the_dtype():
    a, b = nn.NdArray((2,)), nn.NdArray.from_numpy_array(np.uint8([1, 2]))
    a.copy_from(b, use_current_context=False)
    assert a.dtype == np.uint8 and a.data.tolist() == [1, 2]
    b.data[0] = 7
    assert a.data.tolist() == [1, 2]


def test_no_grad_turns_leaves_and_parameters_off_in_the_copy():
    y = PF.affine(nn.Variable((2, 3), need_grad=True), 4, name="fc")
    z = y.no_grad()
    flags = []
    z.visit(lambda f: flags.extend(v.need_grad for v in f.inputs))
    assert flags == [False, False, False]
    assert all(v.need_grad for v in nn.get_parameters().values()) and y.parent.inputs[0].need_grad
    assert z.parent.inputs[0].data is y.parent.inputs[0].data
    x = leaf([2], need_grad=True)
    z = (x * x).no_grad()
    assert z.parent.inputs[0] == z.parent.inputs[1]
    x.d = 3
    z.forward()
    assert z.d.tolist() == [9]


def test_memory_that_a_script_has_cleared_can_be_written():
    a = nn.NdArray((3,))
    a.data = 5
    a.clear()
    assert a.clear_called
    a.data[0] = 1
    assert a.data.tolist() == [1, 0, 0] and not a.clear_called
    h = leaf([1, 2]) * 2
    y = h * 3
    y.forward(clear_buffer=True)
    with pytest.raises(ValueError, match="cleared"):
        h.data.data  # noqa: B018


def test_a_tuple_of_indices_is_an_array():
    a = np.arange(20, dtype=np.float32).reshape(10, 2)
    for x in (nn.Variable.from_numpy_array(a), nn.NdArray.from_numpy_array(a)):
        for key in (((1, 4, 7),), ((1, 4), (0, 1)), (slice(1, 5), (1, 0, 0))):
            with nn.auto_forward():
                y = x[key]
            np.testing.assert_array_equal(y.d if isinstance(y, nn.Variable) else y.data, a[key])
    x = nn.NdArray.from_numpy_array(a)
    x[(1, 4, 7),] = -1
    a[(1, 4, 7),] = -1
    np.testing.assert_array_equal(x.data, a)


@pytest.mark.parametrize("dynamic", [False, True])
def test_broadcast_to_the_same_shape_is_a_function_too(dynamic):
    x = leaf([[1, 2]], need_grad=True)
    with nn.auto_forward(dynamic):
        y = F.broadcast(x, x.shape)
        assert y is not x and y != x and y.parent.name == "Broadcast"
        y.forward()
        y.backward()
    assert y.d.tolist() == [[1, 2]] and x.g.tolist() == [[1, 1]]


def test_dot_makes_a_variable_its_result():
    a, b, out = leaf(np.ones((2, 3))), leaf(np.ones((3, 4))), nn.Variable((2, 4))
    F.dot(a, b, out)
    for value in (1, 5):
        a.d = value
        out.forward()
        np.testing.assert_array_equal(out.d, np.full((2, 4), 3 * value))
    nd = nn.NdArray((2, 4))
    F.dot(a.data, b.data, nd)
    np.testing.assert_array_equal(nd.data, np.full((2, 4), 15))


def test_parts_of_an_array_share_its_memory_whoever_writes_and_however():
    a = nn.NdArray((2, 6))
    a.data = np.arange(12).reshape(2, 6)
    n = a.narrow(0, 0, 1)
    a.fill(4)
    assert (n.data == 4).all()
    n.fill(9)
    assert a.data[:, 0].tolist() == [9, 4]
    n.zero()
    assert a.data[:, 0].tolist() == [0, 4]
    a.copy_from(nn.NdArray.from_numpy_array(np.full((2, 6), 7)))
    assert (n.data == 7).all()
    n.copy_from(nn.NdArray.from_numpy_array(np.full((1, 6), 5)))
    assert a.data[:, 0].tolist() == [5, 7]
    n.data = np.full((1, 6), 3.0)  # float64: the memory keeps its type
    assert a.data[:, 0].tolist() == [3, 7] and a.dtype == n.dtype == np.int64
    v = a.view((3, 4))
    v.data[0, 0] = 8
    assert (a.data[0, 0], n.data[0, 0]) == (8, 8)


def test_an_unlinked_reshape_shares_data_and_gradient():
    v = nn.Variable((2, 6), need_grad=True)
    r = v.reshape((3, 4), unlink=True)
    r.d = 3
    v.g = 2
    assert (v.d == 3).all() and (r.g == 2).all()
    F.sum(r * 5).forward()
    y = F.sum(r * 5)
    y.forward()
    y.backward()
    assert (v.g == 7).all()
