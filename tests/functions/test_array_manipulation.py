# SPDX-License-Identifier: Apache-2.0
"""Joining, cutting, reordering, gathering, scattering, sorting: behaviour and edge cases.

The expected values without another source were observed with NNabla 1.39.
"""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
B = np.arange(4, dtype=np.float32)


def var(a, need_grad=False):
    return nn.Variable.from_numpy_array(np.asarray(a), need_grad=need_grad)


def value(f, *args, **kw):
    """The value of f for arrays, computed now."""
    with nn.auto_forward():
        y = f(*(var(a) if isinstance(a, np.ndarray) else a for a in args), **kw)
    return [v.d for v in y] if isinstance(y, tuple) else y.d


# ---- joining and cutting ----


def test_split_returns_a_tuple_even_of_one():
    with nn.auto_forward():
        assert [y.shape for y in F.split(var(X))] == [(3, 4), (3, 4)]
        y = F.split(var(X[:1]))
    assert isinstance(y, tuple) and len(y) == 1


def test_meshgrid_of_one_vector_is_the_vector():
    np.testing.assert_array_equal(value(F.meshgrid, B), B)


SLICES = [
    ({"start": (1,)}, slice(1, None)),
    ({"stop": (-1,)}, slice(None, -1)),
    ({"step": (2,)}, slice(None, None, 2)),
    ({"start": (8,), "stop": (2,), "step": (-2,)}, slice(8, 2, -2)),
    ({"start": (9,), "stop": (None,), "step": (-1,)}, slice(9, None, -1)),
    ({"start": (None,), "stop": (None,), "step": (-1,)}, slice(None, None, -1)),
    ({"start": (9,), "stop": (-11,), "step": (-1,)}, slice(9, -11, -1)),
    ({"start": (9,), "stop": (-1,), "step": (-1,)}, slice(9, -1, -1)),
    ({"start": (-20,), "stop": (20,)}, slice(-20, 20)),
    ({"start": (12,), "stop": (20,)}, slice(12, 20)),
    ({"start": (5,), "stop": (2,)}, slice(5, 2)),
    ({"step": (-1,)}, slice(0, 10, -1)),
]


@pytest.mark.parametrize("arguments,want", SLICES, ids=[str(s[1]) for s in SLICES])
def test_slice_has_the_meaning_of_a_python_slice(arguments, want):
    a = np.arange(10, dtype=np.float32)
    np.testing.assert_array_equal(value(F.slice, a, **arguments), a[want])


def test_slice_arguments_belong_to_the_last_axes():
    y = value(F.slice, X, start=(1, 0), stop=(None, 2), step=(1, 1))
    np.testing.assert_array_equal(y, X[:, 1:, :2])


def test_reflection_goes_back_and_forth():
    want = [2, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 1]
    np.testing.assert_array_equal(value(F.pad, B, (4, 4), mode="reflect"), want)
    np.testing.assert_array_equal(value(F.pad, B[:1] + 2, (2, 1), mode="reflect"), [2, 2, 2, 2])
    np.testing.assert_array_equal(
        value(F.pad, B, (7, 9), mode="reflect"), np.pad(B, (7, 9), mode="reflect")
    )


def test_padding_by_nothing_copies():
    for mode in ("constant", "reflect", "repeat"):
        np.testing.assert_array_equal(value(F.pad, B, (), mode=mode), B)


@pytest.mark.parametrize(
    "shifts,mode,want",
    [
        ((3,), "reflect", [2, 1, 0, 0]),
        ((5,), "reflect", [3, 3, 2, 1]),
        ((-3,), "reflect", [3, 3, 2, 1]),
        ((-5,), "reflect", [2, 1, 0, 0]),
        ((9,), "nearest", [0, 0, 0, 0]),
        ((-1,), "nearest", [1, 2, 3, 3]),
        (None, "nearest", [0, 1, 2, 3]),
    ],
)
def test_shift_brings_in_the_border(shifts, mode, want):
    np.testing.assert_array_equal(value(F.shift, B, shifts, border_mode=mode), want)


def test_tile_takes_an_int_and_new_axes():
    np.testing.assert_array_equal(value(F.tile, B, 3), np.tile(B, 3))
    np.testing.assert_array_equal(value(F.tile, B, (2, 1)), np.tile(B, (2, 1)))
    np.testing.assert_array_equal(value(F.tile, X, (2,)), np.tile(X, (2,)))


def test_flip_of_an_axis_named_twice_reverses_once():
    np.testing.assert_array_equal(value(F.flip, X, axes=(0, 0)), X[::-1])


# ---- layout ----


def test_transpose_takes_negative_axes_and_scalars():
    np.testing.assert_array_equal(value(F.transpose, X, (-1, 0, 1)), X.transpose(2, 0, 1))
    assert value(F.transpose, np.array(3.0), ()) == 3


def test_one_hot_of_index_tuples():
    y = value(F.one_hot, np.array([[0, 1], [-1, 2]]), (2, 3))
    want = np.zeros((2, 2, 3))
    want[0, 0, 1] = want[1, 1, 2] = 1
    np.testing.assert_array_equal(y, want)
    assert y.dtype == np.float32


def test_trilu_does_not_spread_infinity():
    a = np.full((2, 2), np.inf, np.float32)
    np.testing.assert_array_equal(value(F.trilu, a), [[np.inf, np.inf], [0, np.inf]])


@pytest.mark.parametrize(
    "start,end,want",
    [(None, None, [2, 3, 4]), (0, 0, [2, 3, 4]), (1, None, [3, 4]), (0, -1, [2, 3]), (-1, 9, [4])],
)
def test_shape_is_data(start, end, want):
    y = value(F.shape, X, start=start, end=end)
    np.testing.assert_array_equal(y, want)
    assert y.dtype == np.float32


def test_eye_like_uses_the_shape_only():
    np.testing.assert_array_equal(value(F.eye_like, X[0] * np.nan, k=1), np.eye(3, 4, 1))


# ---- gathering and scattering ----


def test_gather_of_a_scalar_index_removes_the_axis():
    np.testing.assert_array_equal(value(F.gather, X, np.array(1)), X[1])


def test_gather_takes_unsigned_and_float_indices():
    for dtype in (np.uint8, np.uint64, np.float32):
        np.testing.assert_array_equal(value(F.gather, X, np.array([1, 0], dtype)), X[[1, 0]])


def test_positions_may_be_lists():
    np.testing.assert_array_equal(value(F.gather_nd, X, [[1, 0], [2, 2]]), X[[1, 0], [2, 2]])
    y = value(F.scatter_nd, np.ones((2, 3)), [[0, 2]], shape=(3, 3))
    np.testing.assert_array_equal(y, [[1, 1, 1], [0, 0, 0], [1, 1, 1]])


DATA, AT = np.array([9.0, 10, 11, 12]), np.array([[4, 4, 1, -1]])


def test_scatter_nd_keeps_the_last_of_several_values_or_adds():
    np.testing.assert_array_equal(value(F.scatter_nd, DATA, AT, shape=(6,)), [0, 11, 0, 0, 10, 12])
    y = value(F.scatter_nd, DATA, AT, shape=(6,), add=True)
    np.testing.assert_array_equal(y, [0, 11, 0, 0, 19, 12])


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("auto", [True, False])
def test_scatter_nd_writes_out(auto, add):
    with nn.auto_forward(auto):
        out = var(np.ones(6))  # float64 stays
        y = F.scatter_nd(var(DATA), var(AT), out=out, add=add)
        if not auto:
            np.testing.assert_array_equal(out.d, np.ones(6))
            y.forward()
    want = [1, 12, 1, 1, 20, 13] if add else [1, 11, 1, 1, 10, 12]
    np.testing.assert_array_equal(y.d, want)
    np.testing.assert_array_equal(out.d, want)
    assert out.d.dtype == np.float64


def test_scatter_nd_writes_out_of_an_array():
    out = nn.NdArray.from_numpy_array(np.ones(6, np.float32))
    F.scatter_nd(nn.NdArray.from_numpy_array(DATA), AT.tolist(), out=out)
    np.testing.assert_array_equal(out.data, [1, 11, 1, 1, 10, 12])


def test_scatter_add_ignores_what_has_no_index():
    x1 = np.ones((4, 4))
    y = value(F.scatter_add, np.ones((3, 3)), np.array([[0, 1, 2], [0, 0, 2]]), x1, axis=1)
    np.testing.assert_array_equal(y, [[2, 2, 2], [3, 1, 2], [1, 1, 1]])


def test_gradients_of_repeated_indices_add_up_exactly():
    """Sums run in float64 or pairwise, so that many small gradients do not get lost."""
    with nn.auto_forward():
        x = var(np.zeros((2, 1), np.float32), True)
        n = 1 << 15
        F.gather(x, var(np.zeros(n, np.int64))).backward(np.full((n, 1), 0.1, np.float32))
    np.testing.assert_allclose(x.g.ravel(), [n * np.float32(0.1), 0], rtol=1e-6)


# ---- masks ----

MASK = np.array([[1, 0, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0]])


def test_bool_gather_flattens_the_axes_after_the_mask():
    np.testing.assert_array_equal(value(F.bool_gather, X[0], MASK), [0, 2, 6, 7])
    np.testing.assert_array_equal(value(F.bool_gather, X, np.array([0, 2])), X[1].reshape(1, 12))
    assert value(F.bool_gather, X, np.array([0, 0])).shape == (0, 12)


def test_bool_scatter_writes_output():
    out = var(np.ones((3, 4), np.float32))
    with nn.auto_forward():
        y = F.bool_scatter(var(np.arange(4) + 2.0), var(MASK), out)
    want = [[2, 1, 3, 1], [1, 1, 4, 5], [1, 1, 1, 1]]
    np.testing.assert_array_equal(out.d, want)
    np.testing.assert_array_equal(y.d, want)


def test_bool_fill_stretches_the_mask():
    np.testing.assert_array_equal(value(F.bool_fill, X, MASK, value=-3), np.where(MASK, -3, X))
    column = np.array([[1], [0], [2]])
    np.testing.assert_array_equal(value(F.bool_fill, X, column, -3.0), np.where(column, -3, X))


def test_nonzero_gives_positions_for_gather_nd():
    y = value(F.nonzero, MASK)
    np.testing.assert_array_equal(y, np.stack(np.nonzero(MASK)))
    assert y.dtype == np.uint64
    np.testing.assert_array_equal(value(F.gather_nd, X[0], y), X[0][MASK > 0])
    assert value(F.nonzero, np.zeros(3)).shape == (1, 0)
    assert value(F.nonzero, np.array(3.0)).shape == (0, 1)


def test_a_static_mask_may_change_but_not_its_count():
    x, mask = var(np.array([5.0, 6, 7])), var(np.array([1, 0, 1]))
    y, at = F.bool_gather(x, mask), F.nonzero(mask)
    assert (y.shape, at.shape) == ((2,), (1, 2))
    mask.d = [0, 1, 1]
    nn.forward_all([y, at])
    np.testing.assert_array_equal(y.d, [6, 7])
    np.testing.assert_array_equal(at.d, [[1, 2]])
    mask.d = [0, 0, 1]
    with pytest.raises(ValueError, match="bool_gather .*: mask has 1 elements that are not zero"):
        y.forward()
    with pytest.raises(
        ValueError, match="nonzero .*: x has 1 elements that are not zero, wanted 2"
    ):
        at.forward()


def test_a_static_unique_may_not_change_its_count():
    x = var(np.array([1.0, 1, 2]))
    y = F.unique(x)
    x.d = [1, 2, 3]
    with pytest.raises(ValueError, match="unique .*: x has 3 distinct elements, wanted 2 as when"):
        y.forward()


def test_unique_along_an_axis():
    rows = np.array([[3.0, 1], [1, 2], [3, 1]])
    y, i, inverse, n = value(
        F.unique, rows, False, 0, False, with_index=True, with_inverse=True, with_counts=True
    )
    np.testing.assert_array_equal(y, [[3, 1], [1, 2]])
    assert (i.tolist(), inverse.tolist(), n.tolist()) == ([0, 1], [0, 1, 0], [2, 1])
    assert i.dtype == np.int32


# ---- assign ----


def test_assign_keeps_a_counter_of_whole_numbers():
    counter = nn.NdArray.from_numpy_array(np.array([3, 4]))
    F.assign(counter, counter + 1)
    np.testing.assert_array_equal(counter.data, np.array([4, 5]), strict=True)


def test_assign_writes_when_executed_and_its_gradient_goes_to_dst():
    dst, src = var(np.zeros(3), True), var(np.arange(3.0), True)
    dst.g = src.g = 0
    y = F.assign(dst, src)
    np.testing.assert_array_equal(dst.d, np.zeros(3))
    y.forward()
    np.testing.assert_array_equal(dst.d, [0, 1, 2])
    assert dst.d.dtype == np.float64
    y.backward(2)
    np.testing.assert_array_equal(dst.g, [2, 2, 2])
    np.testing.assert_array_equal(src.g, [0, 0, 0])


# ---- sorting ----


def test_sort_keeps_the_order_of_equal_elements():
    a = np.array([[3.0, 1, 2, 1], [0, 5, 5, -1]])
    y, i = value(F.sort, a, with_index=True)
    np.testing.assert_array_equal(i, [[1, 3, 2, 0], [3, 0, 1, 2]])
    np.testing.assert_array_equal(y, np.sort(a))
    i = value(F.sort, a, reverse=True, only_index=True, with_index=True)
    np.testing.assert_array_equal(i, [[0, 2, 1, 3], [1, 2, 0, 3]])
    assert i.dtype == np.uint64


def test_sort_puts_nan_last():
    np.testing.assert_array_equal(value(F.sort, np.array([1, np.nan, 0])), [0, 1, np.nan])


T = np.array([[3.0, -7, 2, 1], [0, 5, 4, -1]])


@pytest.mark.parametrize(
    "arguments,want",
    [
        ({"k": 2}, [[3, 2], [5, 4]]),
        ({"k": 2, "abs": True}, [[-7, 3], [5, 4]]),
        ({"k": 2, "reduce": False}, [[3, 0, 2, 0], [0, 5, 4, 0]]),
        ({"k": 2, "largest": False}, [[-7, 1], [-1, 0]]),
        ({"k": 2, "abs": True, "largest": False}, [[1, 2], [0, -1]]),
        ({"k": 3, "base_axis": 0}, [5, 4, 3]),
        ({"k": 1, "base_axis": -1}, [[3], [5]]),
    ],
)
def test_top_k_data(arguments, want):
    np.testing.assert_array_equal(value(F.top_k_data, T, **arguments), want)


@pytest.mark.parametrize(
    "arguments,want",
    [
        ({"k": 2}, [[1, 0, 3, 0], [4, 3, 0, 0]]),
        ({"k": 2, "abs": True}, [[0, 0, 3, -4], [4, 0, 0, -5]]),
        ({"k": 1, "base_axis": 0}, [[0, 0, 0, 0], [4, 0, 0, 0]]),
    ],
)
def test_top_k_grad_lets_the_largest_gradients_through(arguments, want):
    with nn.auto_forward():
        x = var(T, True)
        y = F.top_k_grad(x, **arguments)
        y.backward(np.array([[1.0, -2, 3, -4], [4, 3, 1, -5]]))
    np.testing.assert_array_equal(y.d, T)
    np.testing.assert_array_equal(x.g, want)


# ---- generation ----


def test_generated_numbers_are_of_the_type_of_the_context():
    for context, dtype in ((nn.Context(), np.float32), (nn.Context(["cpu:double"]), np.float64)):
        with nn.context_scope(context):
            for auto in (True, False):
                with nn.auto_forward(auto):
                    made = [F.constant(3, (2, 2)), F.arange(0, 5, 2), F.linspace(0, 1, 3)]
                    if not auto:
                        nn.forward_all(made)
                assert [y.d.dtype for y in made] == [dtype] * 3
                np.testing.assert_array_equal(made[0].d, np.full((2, 2), 3))
                np.testing.assert_array_equal(made[1].d, [0, 2, 4])
                np.testing.assert_array_equal(made[2].d, [0, 0.5, 1])


@pytest.mark.parametrize(
    "arguments", [(0, 5), (5, 0, -2), (0, 1, 0.3), (0, 0.9, 0.3), (0, 5, -1), (2, 2), (0, 7, 0.7)]
)
def test_arange_equals_numpy(arguments):
    np.testing.assert_allclose(value(F.arange, *arguments), np.arange(*arguments), rtol=1e-6)


def test_linspace_of_none_and_one():
    assert value(F.linspace, 0, 1, 0).shape == (0,)
    np.testing.assert_array_equal(value(F.linspace, 2, 3, 1), [2])


# ---- sink ----


@pytest.mark.parametrize("auto", [True, False])
def test_sink_starts_backward_from_ones(auto):
    with nn.auto_forward(auto):
        xs = [var(np.ones(2, np.float32), True) for _ in range(2)]
        hs = [x * 2.0 for x in xs]
        for h in hs:
            h.g = 7
        y = F.sink(*hs)
        y.forward()
        assert (y.shape, y.d) == ((), 0)
        y.backward(5)
    for x in xs:
        np.testing.assert_array_equal(x.g, [2, 2])


@pytest.mark.parametrize("auto", [True, False])
@pytest.mark.parametrize("clear_buffer", [True, False])
def test_sink_starts_backward_from_the_stored_gradients(auto, clear_buffer):
    with nn.auto_forward(auto):
        x = var(np.array([3.0, 4], np.float32), True)
        leaf = var(np.ones(2, np.float32), True)
        a, b = x * 2.0, x * 3.0
        y = F.sink(a, b, leaf, one_input_grad=False)
        a.g, b.g, leaf.g = 7, [1, 2], 5
        y.forward()
        y.backward(clear_buffer=clear_buffer)
    np.testing.assert_array_equal(x.g, [14 + 3, 14 + 6])
    np.testing.assert_array_equal(leaf.g, [5, 5])


@pytest.mark.parametrize("axis", [-1, -2, -5, None])
@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_broadcast_to_takes_any_negative_axis_for_the_last_ones(axis, backend):
    """As NNabla does."""
    x = nn.Variable.from_numpy_array(np.zeros((2, 3, 4), np.float32))
    with nn.context_scope(nn.Context([f"{backend}:float"])), nn.auto_forward():
        for shape in ((2, 3, 4), (3, 4), (4,)):
            y = np.random.default_rng(0).normal(size=shape).astype(np.float32)
            v = nn.Variable.from_numpy_array(y, need_grad=True)
            z = F.broadcast_to(x, v, axis=axis)
            np.testing.assert_array_equal(z.d, np.broadcast_to(y, (2, 3, 4)))
            F.sum(z).backward()
            np.testing.assert_array_equal(v.g, np.full(shape, 24 // y.size))
