# SPDX-License-Identifier: Apache-2.0
"""Arrays that share memory stay connected whoever writes, and `outputs=` writes where it is told.
Values are NNabla 1.39's."""

import gc

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError
from tests.core.conftest import leaf

MODES = [(c, m) for c in ("cpu", "numpy") for m in ("static", "dynamic", "compiled")]


@pytest.fixture(params=MODES, ids="-".join)
def run(request):
    """Calls a function of Variables and computes its result, in one of the modes."""
    context, mode = request.param

    def run(f, times=1):
        found, y = [], None
        with nn.context_scope(nn.Context([f"{context}:float"])):
            if mode == "compiled":
                step = nn.compile(f)
                return [step().d.copy() for _ in range(times)]
            for _ in range(times):
                if mode == "dynamic":
                    with nn.auto_forward():
                        found.append(f().d.copy())
                    continue
                y = f() if y is None else y
                y.forward(clear_no_need_grad=True)
                found.append(y.d.copy())
            return found

    run.mode = mode
    return run


def filled():
    b = nn.NdArray((4,))
    b.fill(5)
    return b


# ---- outputs= ----


def test_outputs_may_be_views(run):
    b, x = filled(), leaf([1, 2])
    c = b.narrow(0, 1, 2)
    d = c.narrow(0, 1, 1)
    run(lambda: F.identity(x, outputs=[c]))
    assert b.data.tolist() == [5, 1, 2, 5] and c.data.tolist() == [1, 2] and d.data.tolist() == [2]
    c.fill(7)
    assert b.data.tolist() == [5, 7, 7, 5]
    square = b.view((2, 2))
    run(lambda: F.mul_scalar(leaf([[1, 2], [3, 4]]), 2, outputs=[square]))
    assert b.data.tolist() == [2, 4, 6, 8] and d.data.tolist() == [6]


def test_outputs_of_functions_of_arrays_may_be_views():
    b, a = filled(), nn.NdArray.from_numpy_array(np.array([1, 2], np.float32))
    y = F.identity(a, outputs=[b.narrow(0, 0, 2)])
    assert b.data.tolist() == [1, 2, 5, 5]
    b.fill(3)
    assert y.data.tolist() == [3, 3]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_outputs_may_be_an_input_of_the_same_call(run, dtype):
    a, b = leaf([1, 1]), leaf([1, 1])
    a.d = np.ones(2, dtype)
    if run.mode == "compiled":
        a.data.cast(np.float32)  # which is asked for, see below
    found = run(lambda: F.add2(a, b, inplace=True, outputs=[a.data]), 3)
    assert [v.tolist() for v in found] == [[2, 2], [3, 3], [4, 4]] and a.d.tolist() == [4, 4]


@pytest.mark.parametrize("size", [2, 64])
def test_a_product_may_be_written_over_its_factor(run, size):
    a = leaf(np.eye(size) * 2 + np.eye(size, k=1))
    want = [a.d.copy()]
    for _ in range(3):
        want.append(want[-1] @ want[-1])
    found = run(lambda: F.affine(a, a, outputs=[a.data]), 3)
    np.testing.assert_allclose(found, want[1:], rtol=1e-5)


def test_outputs_may_be_a_parameter_and_another_graphs_data(run):
    w = nn.parameter.get_parameter_or_create("w", (2,), np.array([1, 2], np.float32))
    p, x = nn.get_parameters()["w"], leaf([3, 4])
    run(lambda: F.add2(w, x, outputs=[w.data]))
    assert w.d.tolist() == p.d.tolist() == [4, 6]
    h = leaf([0, 0])
    nd = nn.NdArray((2,))
    h.data = nd
    run(lambda: F.mul_scalar(x, 2, outputs=[nd]))
    assert h.d.tolist() == nd.data.tolist() == [6, 8]
    h.d = 1
    assert nd.data.tolist() == [1, 1]


def test_outputs_are_written_also_where_their_variable_would_be_cleared():
    b, x = filled(), leaf([1, 2])
    h = F.tanh(F.mul_scalar(x, 2, outputs=[b.narrow(0, 0, 2)]))
    for flag in ("clear_buffer", "clear_no_need_grad"):
        b.fill(5)
        F.sum(h).forward(**{flag: True})
        assert b.data.tolist() == [2, 4, 5, 5]


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_outputs_of_another_dtype_change_it_for_all_that_share_the_memory(mode):
    b = nn.NdArray((4,))
    b.cast(np.int32)[...] = 5
    c = b.narrow(0, 0, 2)
    with nn.auto_forward(mode == "dynamic"):
        F.mul_scalar(leaf([1, 2]), 0.5, outputs=[c]).forward()
    assert c.data.tolist() == [0.5, 1] and b.data.tolist() == [0.5, 1, 5, 5]


@pytest.mark.parametrize("function", [F.identity, lambda x, **k: F.reshape(x, (2,), **k)])
@pytest.mark.parametrize("part", [True, False])
def test_outputs_are_written_also_where_an_input_has_got_another_dtype(function, part):
    b = filled()
    c = b.narrow(0, 1, 2) if part else nn.NdArray((2,))
    x = leaf([1, 2])
    y = function(x, outputs=[c])
    for dtype in (np.float32, np.float64, np.int32, np.float16):
        x.d = np.array([3, 4], dtype)
        for value in ([3, 4], [6, 8]):
            x.d[...] = value
            y.forward(clear_no_need_grad=value[0] == 6)
            assert c.data.tolist() == y.d.tolist() == value and c.dtype == dtype
            assert b.data.tolist() == ([5, *value, 5] if part else [5, 5, 5, 5])


@pytest.mark.parametrize("function", [F.identity, F.tanh])
def test_outputs_that_are_a_part_stay_it_where_an_input_has_got_another_shape(function):
    b = filled()
    c = b.narrow(0, 1, 2)
    x = leaf([1, 2])
    y = function(x, outputs=[c])
    y.forward()
    x.reset_shape((2, 1), force=True)
    x.d = [[3], [4]]
    y.forward()
    assert y.shape == (2, 1) and c.data.tolist() == y.d.ravel().tolist() == b.data[1:3].tolist()
    np.testing.assert_allclose(c.data, np.tanh([3, 4]) if function is F.tanh else [3, 4], 1e-6)
    x.reset_shape((3,), force=True)
    with pytest.raises(ShapeError, match=r": outputs is .*\[2, 1\], which .* is .*\[3\] now"):
        y.forward()
    x.reset_shape((2,), force=True)
    x.d = [0, 0]
    y.forward()
    assert b.data.tolist() == [5, 0, 0, 5]


def test_outputs_keep_their_type_in_compiled_functions():
    b = nn.NdArray((2,))
    b.cast(np.int32)
    step = nn.compile(lambda: F.mul_scalar(leaf([1, 2]), 0.5, outputs=[b]))
    with pytest.raises(
        TypeError, match=r"^mul_scalar: outputs is int32\[2\], and the result float32"
    ):
        step()


# ---- casts, readings, clearing ----


def test_reading_in_another_dtype_cuts_nothing_off():
    b = filled()
    c = b.narrow(0, 0, 2)
    seen = b.get_data("r", dtype=np.float16)
    assert seen.dtype == np.float16 and not seen.flags.writeable and b.dtype == np.float32
    c += 1
    assert b.data.tolist() == [6, 6, 5, 5]
    c.fill(8)
    assert b.data.tolist() == [8, 8, 5, 5] and seen.tolist() == [5] * 4
    b.get_data("rw", dtype=np.int32)[0] = 1
    c.get_data("rw")[1] = 2
    assert b.data.tolist() == [1, 2, 5, 5] and c.data.tolist() == [1, 2] and c.dtype == np.int32


@pytest.mark.parametrize("who", ["root", "part", "part of a part", "shared with a part"])
def test_a_cast_is_one_of_all_that_share_the_memory(who):
    b = filled()
    c = b.narrow(0, 1, 3)
    d = c.narrow(0, 1, 1)
    v = leaf([0, 0, 0])
    v.data = c
    arrays = {"root": b, "part": c, "part of a part": d, "shared with a part": v.data}
    y = F.mul_scalar(v, 1)
    y.forward()
    arrays[who].cast(np.int32)
    assert {a.dtype for a in arrays.values()} == {np.dtype(np.int32)}
    d.fill(8)
    assert b.data.tolist() == [5, 5, 8, 5] and c.data.tolist() == v.d.tolist() == [5, 8, 5]
    v.data.data[0] = 2
    assert b.data.tolist() == [5, 2, 8, 5]
    y.forward()
    assert y.d.tolist() == [2, 8, 5]
    del b, arrays
    gc.collect()
    c.cast(np.float32)[0] = 0.5
    d.fill(3)
    assert c.data.tolist() == [0.5, 3, 5]
    alone = filled().narrow(0, 1, 2)
    assert alone.cast(np.int32).tolist() == [5, 5] and alone.dtype == np.int32


def test_clearing_a_part_is_refused_and_a_whole_one_begins_with_zeros():
    b = filled()
    c = b.narrow(0, 0, 2)
    with pytest.raises(ValueError, match=r"^clear: float32\[2\] is a part of the memory of"):
        c.clear()
    b.clear()
    assert c.data.tolist() == [0, 0]
    b.fill(1)
    assert c.data.tolist() == [1, 1]
    del c
    b.clear()
    assert b.clear_called


def test_a_value_that_a_graph_clears_stays_connected_with_its_parts():
    x = leaf([1, 2])
    h = F.mul_scalar(x, 2)
    y = F.sum(h)
    y.forward()
    part = h.data.narrow(0, 1, 1)
    y.forward(clear_buffer=True)
    x.d = 3
    y.forward()
    assert part.data.tolist() == [6] and h.d.tolist() == [6, 6]


def test_outputs_of_another_shape_fit_by_their_size(run):
    b, x = filled(), leaf([1, 2])
    c, d = b.narrow(0, 0, 2).view((2, 1)), b.narrow(0, 1, 3)
    if run.mode != "compiled":  # where shapes are told from what is recorded
        run(lambda: F.mul_scalar(x, 2, outputs=[c]))
        assert b.data.tolist() == [2, 4, 5, 5] and c.shape == (2, 1)
        with pytest.raises(ShapeError, match=r"^exp: outputs is float32\[3\], which shares its"):
            F.exp(x, outputs=[d])
    assert d.shape == (3,)


def test_a_leaf_of_the_memory_that_a_function_before_writes_reads_what_it_wrote(run):
    b, x, z = filled(), leaf([1, 2]), leaf([0, 0])
    z.data = c = b.narrow(0, 0, 2)
    assert run(lambda: F.mul2(F.identity(x, outputs=[c]), z))[0].tolist() == [1, 4]
    whole = leaf([0, 0, 0, 0])
    whole.data = b
    b.fill(5)
    if run.mode != "static":
        assert run(lambda: F.sum(F.identity(x, outputs=[c]), keepdims=True) + whole)[
            0
        ].tolist() == [4, 5, 8, 8]
        return
    with pytest.raises(
        NotImplementedError,
        match=r"^plan: Variable reads float32\[4\], which shares a part of its memory with what "
        r"identity \(test_shared_memory.py:\d+\) writes in the same graph: use the result of",
    ):
        run(lambda: F.sum(F.identity(x, outputs=[c]), keepdims=True) + whole)


def test_a_leaf_of_memory_that_a_graph_clears_says_so():
    x, z = leaf([1, 2]), leaf([0, 0])
    h = F.mul_scalar(x, 2)
    z.data = h.data
    y, w = F.sum(F.tanh(h)), F.mul_scalar(z, 3)
    y.forward(clear_no_need_grad=True)
    with pytest.raises(ValueError, match=r"^Variable, read by mul_scalar .* set persistent=True"):
        w.forward()
    h.persistent = True
    y.forward(clear_no_need_grad=True)
    w.forward()
    assert w.d.tolist() == [6, 12]
