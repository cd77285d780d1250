# SPDX-License-Identifier: Apache-2.0
"""Arrays that share memory: a static graph reads and writes in the order it was written in."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

STEPS = {
    "twice": (lambda x: F.mul_scalar(x, 2.0), lambda x: x * 2),
    "tanh": (F.tanh, np.tanh),
    "sum": (lambda x: F.sum(x, axis=0), lambda x: x.sum(axis=0)),
    "softmax": (F.softmax, lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
}


def leaf(array):
    v = nn.Variable(array.shape)
    v.data = array
    return v


@pytest.mark.parametrize("reader", STEPS)
@pytest.mark.parametrize("part_written", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("by_outputs", [False, True])
def test_what_is_read_before_it_is_written_is_the_old_value(
    reader, part_written, dtype, by_outputs
):
    rng = np.random.default_rng(0)
    data = rng.standard_normal((4, 8)).astype(dtype)
    b = nn.NdArray.from_numpy_array(data.copy())
    read, written = (b, b.narrow(0, 1, 2)) if part_written else (b.narrow(0, 1, 2), b)
    old = np.array(read.data)
    x, to, new = leaf(read), leaf(written), nn.Variable(written.shape)
    new.d = rng.standard_normal(written.shape)
    function, wanted = STEPS[reader]
    y = F.mul_scalar(x, 0.5)
    done = F.mul_scalar(new, 1.0, outputs=[written]) if by_outputs else F.assign(to, new)
    after = None if by_outputs else F.mul_scalar(x, 0.5)
    z = function(y)
    nn.forward_all([done, z] if by_outputs else [done, z, after])
    np.testing.assert_allclose(z.d, wanted(old * 0.5), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.array(written.data), new.d, rtol=1e-6)
    if not by_outputs:
        np.testing.assert_allclose(after.d, np.array(read.data) * 0.5, rtol=1e-5)


@pytest.mark.parametrize("seed", range(60))
def test_random_orders_of_reads_and_assignments(seed):
    r = np.random.RandomState(seed)
    plain = r.randn(4, 8).astype(np.float32)
    b = nn.NdArray.from_numpy_array(plain.copy())
    places = [(0, 2), (1, 2), (2, 2), (0, 4)]
    arrays = [plain[at : at + n] for at, n in places]
    leaves = [leaf(b.narrow(0, at, n)) for at, n in places[:3]] + [leaf(b)]
    values, outs = [], []
    for _ in range(r.randint(4, 12)):
        k, kind = r.randint(4), r.randint(5)
        same = [(v, w) for v, w in values if v.shape == leaves[k].shape]
        x, a = same[r.randint(len(same))] if same and r.rand() < 0.6 else (leaves[k], arrays[k])
        if kind == 0 and x is not leaves[k]:
            outs.append(F.assign(leaves[k], x))
            arrays[k][:] = a
            continue
        if kind == 1:
            made = F.add2(x, leaves[k]), a + arrays[k]
        elif kind == 2:
            made = F.mul_scalar(x, 0.7), a * np.float32(0.7)
        elif kind == 3:
            made = F.tanh(x), np.tanh(a)
        else:
            made = F.broadcast(F.mean(x, 0, True), x.shape), np.broadcast_to(a.mean(0), a.shape)
        values.append(made)
        outs.append(made[0])
    nn.forward_all(outs)
    for v, w in values:
        np.testing.assert_allclose(v.d, w, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(b.data, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("static", [True, False])
def test_a_leaf_that_a_function_writes_is_read_as_it_is_then(static):
    """The gradient of t = v * v is that of the value which its backward finds."""
    v, x = leaf(nn.NdArray.from_numpy_array(np.ones(3, np.float32))), nn.Variable((3,))
    v.need_grad, x.d = True, 5
    with nn.auto_forward(not static):
        t = v * v
        y = F.mul_scalar(x, 2.0, outputs=[v.data])
        w = v * 2.0
        total = F.sum(t) + F.sum(w)
        if static:
            nn.forward_all([t, y, w, total])
        assert t.d.tolist() == [1] * 3 and w.d.tolist() == [20] * 3 and v.d.tolist() == [10] * 3
        v.grad.zero()
        total.backward()
    assert v.g.tolist() == [22] * 3


@pytest.mark.parametrize("whole_written", [True, False])
def test_a_leaf_of_which_a_function_writes_a_part_is_refused(whole_written):
    b = nn.NdArray.from_numpy_array(np.ones((4, 2), np.float32))
    part = b.narrow(0, 0, 2)
    read, written = (part, b) if whole_written else (b, part)
    v, x = leaf(read), nn.Variable(written.shape)
    first = v * 3.0
    y = F.mul_scalar(x, 2.0, outputs=[written])
    again = v * 2.0
    with pytest.raises(NotImplementedError, match="shares a part of its memory with what mul_sc"):
        nn.forward_all([first, y, again])
