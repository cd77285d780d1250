# SPDX-License-Identifier: Apache-2.0
"""x[key] and x[key] = value against numpy itself, over random index expressions."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError

SEEDS = range(150)


def random_index(rng, n):
    """A slice of an axis of size n, of any kind."""
    ends = [None, *range(-n - 2, n + 3)]
    step = rng.choice([-2, -1, 1, 2, 3])
    start, stop = (ends[rng.integers(len(ends))] for _ in range(2))
    return slice(start, stop, None if rng.random() < 0.3 else int(step))


def random_key(rng, shape):
    """Ints, slices, None, Ellipsis, integer arrays, lists and masks, as many as fit the shape."""
    common = tuple(rng.integers(1, 4, rng.integers(0, 3)))
    arrays = rng.random() < 0.5
    mask_left = rng.random() < 0.2
    items, axis = [], 0
    stop = rng.integers(0, len(shape) + 1)
    while axis < len(shape):
        n = shape[axis]
        kind = rng.random()
        if mask_left and kind < 0.4:
            mask_left = False
            common = None  # no other arrays: the number of trues need not stretch to them
            size = rng.integers(1, len(shape) - axis + 1)
            items.append(rng.random(shape[axis : axis + size]) < 0.5)
            axis += size
        elif arrays and common is not None and not mask_left and kind < 0.5:
            own = tuple(1 if rng.random() < 0.2 else s for s in common[rng.integers(0, 2) :])
            a = rng.integers(-n, n, own)
            items.append(a.tolist() if a.ndim and rng.random() < 0.3 else a)
            axis += 1
        elif kind < 0.65:
            items.append(int(rng.integers(-n, n)))
            axis += 1
        else:
            items.append(random_index(rng, n))
            axis += 1
        if axis >= stop and rng.random() < 0.5:
            break
    if rng.random() < 0.5:
        first = rng.integers(0, len(items) + 1)
        if axis >= len(shape) or first == len(items):
            items.insert(first, Ellipsis)
    for _ in range(rng.integers(0, 3)):
        items.insert(rng.integers(0, len(items) + 1), None)
    if len(items) == 1 and rng.random() < 0.5:
        return items[0]
    return tuple(items)


def case(seed):
    """(rng, array, key) of which numpy says that they fit."""
    rng = np.random.default_rng(seed)
    while True:
        shape = tuple(int(n) for n in rng.integers(1, 5, rng.integers(1, 5)))
        x = rng.normal(size=shape).astype(np.float32)
        key = random_key(rng, shape)
        try:
            x[key]
        except IndexError:
            continue
        return rng, x, key


def values(rng, x, key):
    """Random values that stretch to x[key]."""
    shape = list(x[key].shape)
    for i in range(len(shape)):
        if rng.random() < 0.2:
            shape[i] = 1
    shape = shape[rng.integers(0, len(shape) + 1) if rng.random() < 0.3 else 0 :]
    return np.asarray(rng.normal(size=shape), np.float32)


def variable(a, need_grad=False):
    return nn.Variable.from_numpy_array(a, need_grad=need_grad)


@pytest.mark.parametrize("seed", SEEDS)
def test_reading_equals_numpy(seed):
    _, x, key = case(seed)
    want = x[key]
    with nn.auto_forward():
        np.testing.assert_array_equal(variable(x)[key].d, want)
    np.testing.assert_array_equal(nn.NdArray.from_numpy_array(x)[key].data, want)
    y = variable(x)[key]
    assert y.shape == want.shape
    y.forward()
    np.testing.assert_array_equal(y.d, want)


@pytest.mark.parametrize("seed", SEEDS)
def test_gradient_of_reading_adds_up_where_the_elements_came_from(seed):
    rng, x, key = case(seed)
    u = np.asarray(rng.normal(size=x[key].shape), np.float32)
    want = np.zeros_like(x)
    np.add.at(want, key, u)
    for auto in (True, False):
        with nn.auto_forward(auto):
            v = variable(x, True)
            y = v[key]
            if not auto:
                y.forward()
            y.backward(u)
        np.testing.assert_allclose(v.g, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_writing_equals_numpy(seed):
    rng, x, key = case(seed)
    value = values(rng, x, key)
    want = x.copy()
    want[key] = value
    array = nn.NdArray.from_numpy_array(x)
    array[key] = value
    np.testing.assert_array_equal(array.data, want)
    for auto in (True, False):
        with nn.auto_forward(auto):
            v = variable(x)
            v[key] = variable(value)
            y = v + 0.0
            if not auto:
                y.forward()
        np.testing.assert_array_equal(y.d, want)
        np.testing.assert_array_equal(v.d, want)


@pytest.mark.parametrize("seed", SEEDS)
def test_gradient_of_writing_goes_to_the_value_and_to_what_was_kept(seed):
    rng, x, key = case(seed)
    value = values(rng, x, key)
    u = np.asarray(rng.normal(size=x.shape), np.float32)
    # which element of value each element of x holds in the end, -1 for its own
    source = np.full(x.shape, -1)
    source[key] = np.broadcast_to(np.arange(value.size).reshape(value.shape), x[key].shape)
    want_x = np.where(source < 0, u, 0)
    written = source >= 0
    want_value = np.bincount(source[written], u[written], value.size).reshape(value.shape)
    for auto in (True, False):
        with nn.auto_forward(auto):
            leaf, v = variable(x, True), variable(value, True)
            h = leaf * 1.0
            h[key] = v
            if not auto:
                h.forward()
            h.backward(u)
        np.testing.assert_allclose(leaf.g, want_x, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(v.g, want_value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(40))
def test_index_variables_of_a_static_graph_are_read_at_every_forward(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(2, 5, 3))
    x = rng.normal(size=shape).astype(np.float32)
    size = tuple(int(n) for n in rng.integers(1, 4, rng.integers(1, 3)))
    picked = sorted(rng.choice(3, rng.integers(1, 4), replace=False).tolist())
    leaves = {a: variable(np.zeros(size, np.int64)) for a in picked}
    key = tuple(leaves.get(a, random_index(rng, shape[a])) for a in range(3))
    y = variable(x)[key]
    z = variable(x) * 1.0
    z[key] = -1.0
    for _ in range(2):
        for a, leaf in leaves.items():
            leaf.d = rng.integers(-shape[a], shape[a], size)
        known = tuple(k.d if isinstance(k, nn.Variable) else k for k in key)
        nn.forward_all([y, z])
        np.testing.assert_array_equal(y.d, x[known])
        want = x.copy()
        want[known] = -1.0
        np.testing.assert_array_equal(z.d, want)


def test_indices_may_be_variables_arrays_and_floats_that_are_whole():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    i, mask = np.array([1, 0, 1]), x > 7
    with nn.auto_forward():
        v = variable(x)
        for same in (variable(i), variable(i.astype(np.float32)), nn.NdArray.from_numpy_array(i)):
            np.testing.assert_array_equal(v[same].d, x[i])
        np.testing.assert_array_equal(v[variable(mask)].d, x[mask])
        np.testing.assert_array_equal(v[:, variable(i), 0].d, x[:, i, 0])
    np.testing.assert_array_equal(nn.NdArray.from_numpy_array(x)[variable(i)].data, x[i])


def test_a_result_does_not_share_memory():
    x = nn.NdArray.from_numpy_array(np.zeros((2, 3), np.float32))
    for key in (0, slice(None), Ellipsis, [0, 1], (None, Ellipsis)):
        x[key].data[...] = 1
        assert not x.data.any()


def test_iteration_goes_over_the_first_axis():
    x = np.arange(6.0).reshape(3, 2)
    with nn.auto_forward():
        np.testing.assert_array_equal([row.d for row in variable(x)], x)


def test_networks_that_index_with_constants_use_functions_that_nnabla_has():
    x = nn.Variable((2, 3, 4))
    types = []
    y = x[0, 1:, [0, 1]] + x[:, -1, :2]
    h = x * 1.0
    h[0, 1:3] = 2.0
    F.sink(y, h).visit(lambda f: types.append(f.name))
    assert {"Slice", "Reshape", "GatherNd", "ScatterNd"} <= set(types)


# ---- writing: what handles and memory see ----


def test_static_uses_before_a_write_see_the_old_value_and_later_ones_the_new():
    v = variable(np.ones((3, 2), np.float32), True)
    h = v * 2.0
    before = h + 1.0
    w = variable(np.full(2, 100.0, np.float32), True)
    h[1] = w
    after = h * h
    nn.forward_all([before, after])
    np.testing.assert_array_equal(before.d, np.full((3, 2), 3.0))
    np.testing.assert_array_equal(after.d, [[4, 4], [1e4, 1e4], [4, 4]])
    after.backward()
    np.testing.assert_array_equal(v.g, [[8, 8], [0, 0], [8, 8]])
    np.testing.assert_array_equal(w.g, [200, 200])


def test_static_data_can_be_fed_after_elements_of_a_leaf_were_replaced():
    x = nn.Variable((4,))
    same = hash(x)
    x[0] = 5.0
    x[1:3] = variable(np.array([6.0, 7.0], np.float32))
    y = x * 1.0
    for value in (np.arange(4.0), np.arange(4.0) - 9):  # float64: changes the dtype of x
        x.d = value
        y.forward()
        np.testing.assert_array_equal(y.d, [5, 6, 7, value[3]])
        np.testing.assert_array_equal(x.d, y.d)
    assert hash(x) == same


def test_static_leaf_keeps_its_data_with_clear_buffer():
    x = variable(np.zeros(3, np.float32), True)
    leaf = x.edge
    x[0] = 1.0
    y = F.sum(x * x)
    for _ in range(2):
        y.forward(clear_no_need_grad=True)
        assert y.d == 1.0
        y.backward(clear_buffer=True)
    np.testing.assert_array_equal(leaf.data.data, [1, 0, 0])
    np.testing.assert_array_equal(leaf.own_grad.data, [0, 0, 0])


def test_dynamic_leaf_without_gradient_is_written_in_place():
    with nn.auto_forward():
        x = variable(np.zeros(3))
        memory, edge = x.d, x.edge
        x[1:] = 2
        assert x.edge is edge
        np.testing.assert_array_equal(memory, [0, 2, 2])
        w = variable(np.zeros(3), True)
        with nn.no_grad():
            w[0] = 1.0
        assert w.parent is None
        np.testing.assert_array_equal(w.d, [1, 0, 0])


def test_dynamic_leaf_with_gradient_is_written_and_recorded():
    with nn.auto_forward():
        w = variable(np.ones(3, np.float32), True)
        leaf = w.edge
        w[0] = 5.0
        y = w * w
        w[1] = 7.0
        z = w * 1.0
        np.testing.assert_array_equal(leaf.data.data, [5, 7, 1])
        y.backward()  # w is as it was when y was computed
    np.testing.assert_array_equal(leaf.own_grad.data, [0, 2, 2])
    np.testing.assert_array_equal(z.d, [5, 7, 1])


def test_of_two_values_for_one_element_only_the_last_gets_a_gradient():
    with nn.auto_forward():
        x = variable(np.zeros(3, np.float32), True) * 1.0
        v = variable(np.array([1.0, 2.0], np.float32), True)
        x[[1, 1]] = v
        np.testing.assert_array_equal(x.d, [0, 2, 0])
        x.backward(np.array([1, 10, 100]))
    np.testing.assert_array_equal(v.g, [0, 10])


def test_arrays_keep_their_dtype_when_written():
    x = nn.NdArray.from_numpy_array(np.zeros(3, np.int64))
    x[1] = 2.0
    assert x.data.dtype == np.int64
    np.testing.assert_array_equal(x.data, [0, 2, 0])


def test_whole_arrays_and_scalars_can_be_written():
    for auto in (True, False):
        for shape in ((), (2, 3)):
            with nn.auto_forward(auto):
                v = variable(np.ones(shape, np.float32), True)
                h = v * 1.0
                h[...] = 3.0
                y = h * h + v
                if not auto:
                    y.forward()
                y.backward()
            np.testing.assert_array_equal(y.d, np.full(shape, 10.0))
            np.testing.assert_array_equal(v.g, np.ones(shape))


# ---- masked_fill ----


@pytest.mark.parametrize("name", ["masked_fill_", "bool_fill_"])
@pytest.mark.parametrize("auto", [True, False])
def test_filling_an_intermediate_records_it(name, auto):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    mask = np.array([[1.0, 0, 0]], np.float32)
    with nn.auto_forward(auto):
        v = variable(x, True)
        h = v * 2.0
        assert getattr(h, name)(variable(mask), -1.0) is h
        y = h * h
        if not auto:
            y.forward()
        y.backward()
    np.testing.assert_array_equal(y.d, np.where(mask > 0, 1.0, 4 * x * x))
    np.testing.assert_array_equal(v.g, np.where(mask > 0, 0.0, 8 * x))


@pytest.mark.parametrize("name", ["masked_fill", "bool_fill"])
def test_filling_an_array_writes_its_memory(name):
    x = nn.NdArray.from_numpy_array(np.arange(4.0))
    memory = x.data
    for mask in (nn.NdArray.from_numpy_array(np.array([1, 0, 0, 0])), np.array([False, True] * 2)):
        assert getattr(x, name)(mask, -1) is x
    np.testing.assert_array_equal(memory, [-1, -1, 2, -1])


def test_filling_a_leaf_of_dynamic_mode_writes_its_memory():
    with nn.auto_forward():
        x = variable(np.arange(3.0))
        memory = x.d
        x.masked_fill_(variable(np.array([True, False, False])), 9.0)
    np.testing.assert_array_equal(memory, [9, 1, 2])


# ---- errors ----

WRONG = [
    (3, IndexError, r"indexing: index 3 is outside \[-2, 2\) for axis 0 of float32\[2, 3\]"),
    ((0, -4), IndexError, r"indexing: index -4 is outside \[-3, 3\) for axis 1"),
    ([0, 2], IndexError, r"indexing: index 2 is outside \[-2, 2\) for axis 0"),
    ((0, 0, 0), IndexError, r"indexing: 3 indices for float32\[2, 3\], wanted at most 2"),
    ((Ellipsis, Ellipsis), IndexError, "indexing: got two Ellipsis"),
    (0.5, IndexError, r"indexing: got 0.5 as an index of float32\[2, 3\], wanted an int, slice"),
    ("a", IndexError, "indexing: got 'a' as an index"),
    (True, IndexError, "indexing: got True as an index"),
    (np.array([0.0, 1.0]), IndexError, "indexing: got an array of float64 as an index"),
    ([[0], [0, 1]], IndexError, r"indexing: \[\[0\], \[0, 1\]\] is not an array of one shape"),
    ([True, False, True], IndexError, r"a mask of shape \(3,\) for the axes from 0 of float32"),
    (([0, 1], [0, 1, 2]), IndexError, r"index arrays of shapes \[\(2,\), \(3,\)\] do not stretch"),
    (slice(None, None, 0), IndexError, "slice step cannot be zero"),
    (slice(0, 1.5), IndexError, r"indexing: slice\(0, 1.5, None\) for axis 0 of float32\[2, 3\]"),
]


@pytest.mark.parametrize("key,error,text", WRONG, ids=[repr(w[0]) for w in WRONG])
def test_a_wrong_key_is_an_error_and_changes_nothing(key, error, text):
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    nd, static, dynamic = nn.NdArray.from_numpy_array(a), variable(a, True), variable(a)
    for x in (nd, static, dynamic):
        with nn.auto_forward(x is dynamic):
            with pytest.raises(error, match=text):
                x[key]
            with pytest.raises(error, match=text):
                x[key] = 1.0
    assert static.parent is None
    for values in (nd.data, static.d, dynamic.d):
        np.testing.assert_array_equal(values, a)


def test_a_value_of_a_wrong_shape_is_an_error_and_changes_nothing():
    a = np.zeros((2, 3), np.float32)
    for x in (nn.NdArray.from_numpy_array(a), variable(a)):
        for value in (np.ones(2), variable(np.ones(2)), np.ones((2, 2, 3))):
            with pytest.raises(ShapeError, match=r"value has the shape .*, x\[key\] the shape \(3"):
                x[0] = value
    with pytest.raises(TypeError, match="value: got 'a', wanted a number or an array"):
        x[0] = "a"
    assert x.parent is None


def test_a_mask_without_a_value_is_an_error():
    x = variable(np.arange(3.0))
    with pytest.raises(ValueError, match="read before anything was written"):
        nn.NdArray.from_numpy_array(np.zeros(3))[F.greater_scalar(x, 1.0)]


def test_a_mask_that_does_not_fit_cannot_fill():
    x = nn.NdArray.from_numpy_array(np.zeros((2, 3)))
    with pytest.raises(ShapeError, match=r"bool_fill: mask .*\[2\] does not stretch to the shape"):
        x.masked_fill(np.zeros(2), 1.0)
