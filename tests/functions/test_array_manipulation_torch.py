# SPDX-License-Identifier: Apache-2.0
"""Joining, cutting, reordering, gathering, scattering and sorting against PyTorch."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

torch = pytest.importorskip("torch")
T = torch.nn.functional


def index(*shape, n, seed=5):
    return np.random.default_rng(seed).integers(0, n, shape)


def const(a):
    return nn.Variable.from_numpy_array(a)


def t(a):
    return torch.from_numpy(np.asarray(a))


def pad4(mode):
    return lambda x: T.pad(x, (3, 2, 1, 0), mode=mode)


I23, I33 = index(2, 3, n=3), index(3, 3, n=3)
MASK = np.array([[1, 0, 1], [0, 0, 1]])
ND = np.array([[0, 1, 1], [2, 0, -1]])
POSITIONS = (t([0, 1, 1]), t([2, 0, 2]))


def put(x, positions, values, accumulate=False):
    return x.index_put(positions, values, accumulate=accumulate)


CASES = {
    "concatenate": (
        lambda a, b, c: F.concatenate(a, b, c, axis=1),
        lambda a, b, c: torch.cat((a, b, c), 1),
        [(2, 1, 3), (2, 2, 3), (2, 4, 3)],
    ),
    "concatenate, default axis": (
        F.concatenate,
        lambda a, b: torch.cat((a, b), -1),
        [(2, 1), (2, 3)],
    ),
    "concatenate with itself": (
        lambda a: F.concatenate(a, a, axis=0),
        lambda a: torch.cat((a, a), 0),
        [(2, 3)],
    ),
    "stack": (
        lambda a, b: F.stack(a, b, axis=-1),
        lambda a, b: torch.stack((a, b), -1),
        [(2, 3), (2, 3)],
    ),
    "split": (lambda a: F.split(a, axis=1), lambda a: torch.unbind(a, 1), [(2, 3, 4)]),
    "meshgrid": (
        F.meshgrid,
        lambda a, b: torch.meshgrid(a, b, indexing="xy"),
        [(3,), (4,)],
    ),
    "meshgrid ij": (
        lambda a, b, c: F.meshgrid(a, b, c, ij_indexing=True),
        lambda a, b, c: torch.meshgrid(a, b, c, indexing="ij"),
        [(3,), (4,), (2,)],
    ),
    "slice": (
        lambda a: F.slice(a, start=(0, 1, -3), stop=(2, None, 4), step=(1, 2, 1)),
        lambda a: a[0:2, 1::2, -3:4],
        [(3, 4, 5)],
    ),
    "slice, negative step": (
        lambda a: F.slice(a, start=(None, 0), stop=(None, 9), step=(-2, 1)),
        lambda a: a.flip(0)[::2],
        [(4, 3)],
    ),
    "pad constant": (
        lambda a: F.pad(a, (1, 0, 3, 2), constant_value=1.5),
        lambda a: T.pad(a, (3, 2, 1, 0), value=1.5),
        [(1, 2, 4, 5)],
    ),
    "pad reflect": (lambda a: F.pad(a, (1, 0, 3, 2), "reflect"), pad4("reflect"), [(1, 2, 4, 5)]),
    "pad repeat": (lambda a: F.pad(a, (1, 0, 3, 2), "repeat"), pad4("replicate"), [(1, 2, 4, 5)]),
    "flip": (lambda a: F.flip(a, axes=(0, -1)), lambda a: a.flip(0, -1), [(2, 3, 4)]),
    "tile": (lambda a: F.tile(a, (2, 1, 3)), lambda a: a.tile((2, 1, 3)), [(2, 3)]),
    "shift": (
        lambda a: F.shift(a, (0, 2)),
        lambda a: T.pad(a[None, None], (2, 0, 0, 0), mode="replicate")[0, 0, :, :-2],
        [(3, 4)],
    ),
    "transpose": (lambda a: F.transpose(a, (2, 0, 1)), lambda a: a.permute(2, 0, 1), [(2, 3, 4)]),
    "broadcast_to": (
        lambda a: F.broadcast_to(const(np.zeros((2, 3, 4))), a, axis=1),
        lambda a: a[None, :, None].expand(2, 3, 4),
        [(3,)],
    ),
    "matrix_diag": (F.matrix_diag, torch.diag_embed, [(2, 3)]),
    "matrix_diag_part": (
        F.matrix_diag_part,
        lambda a: torch.diagonal(a, dim1=-2, dim2=-1),
        [(2, 3, 3)],
    ),
    "trilu upper": (lambda a: F.trilu(a, k=-1), lambda a: torch.triu(a, -1), [(2, 3, 4)]),
    "trilu lower": (lambda a: F.trilu(a, 1, False), lambda a: torch.tril(a, 1), [(2, 3, 4)]),
    "gather": (
        lambda a: F.gather(a, const(I23), axis=1),
        lambda a: a.index_select(1, t(I23.ravel())).reshape(2, 2, 3, 5),
        [(2, 3, 5)],
    ),
    "gather with batch_dims": (
        lambda a: F.gather(a, const(I23), axis=1, batch_dims=1),
        lambda a: torch.gather(a, 1, t(I23)[:, :, None].expand(2, 3, 5)),
        [(2, 3, 5)],
    ),
    "gather_nd": (
        lambda a: F.gather_nd(a, const(ND)),
        lambda a: a[POSITIONS],
        [(2, 3, 4)],
    ),
    "scatter_nd": (
        lambda a: F.scatter_nd(a, const(ND), shape=(2, 3, 4)),
        lambda a: put(torch.zeros(2, 3, 4, dtype=a.dtype), POSITIONS, a),
        [(3, 4)],
    ),
    "scatter_nd add": (
        lambda a: F.scatter_nd(a, [[0, 0, 1]], shape=(2, 4), add=True),
        lambda a: put(torch.zeros(2, 4, dtype=a.dtype), (t([0, 0, 1]),), a, True),
        [(3, 4)],
    ),
    "scatter_nd out": (
        lambda a, b: F.scatter_nd(a, const(ND), out=b * 1.0),
        lambda a, b: put(b, POSITIONS, a),
        [(3, 4), (2, 3, 4)],
    ),
    "scatter_nd out add": (
        lambda a, b: F.scatter_nd(a, [[0, 0, 1]], out=b * 1.0, add=True),
        lambda a, b: put(b, (t([0, 0, 1]),), a, True),
        [(3, 4), (2, 4)],
    ),
    "scatter_add": (
        lambda a, b: F.scatter_add(a, const(I33), b, axis=1),
        lambda a, b: torch.scatter_add(a, 1, t(I33), b[:, :3]),
        [(3, 4), (3, 5)],
    ),
    "scatter_add axis 0": (
        lambda a, b: F.scatter_add(a, const(I23), b),
        lambda a, b: torch.scatter_add(a, 0, t(I23), b[:2]),
        [(3, 4), (4, 3)],
    ),
    "bool_gather": (lambda a: F.bool_gather(a, const(MASK)), lambda a: a[t(MASK) > 0], [(2, 3)]),
    "bool_gather of slices": (
        lambda a: F.bool_gather(a, const(MASK)),
        lambda a: a[t(MASK) > 0].reshape(3, 8),
        [(2, 3, 4, 2)],
    ),
    "bool_scatter": (
        lambda a, b: F.bool_scatter(a, const(MASK), b * 1.0),
        lambda a, b: put(b, (t(MASK) > 0,), a),
        [(3, 4), (2, 3, 4)],
    ),
    "bool_fill": (
        lambda a: F.bool_fill(a, const(MASK), value=2.0),
        lambda a: a.masked_fill(t(MASK) > 0, 2.0),
        [(4, 2, 3)],
    ),
    "sort": (lambda a: F.sort(a, axis=1), lambda a: a.sort(1)[0], [(2, 3, 4)]),
    "sort reverse": (
        lambda a: F.sort(a, axis=-1, reverse=True),
        lambda a: a.sort(-1, descending=True)[0],
        [(2, 3, 4)],
    ),
    "top_k_data": (
        lambda a: F.top_k_data(a, 3),
        lambda a: a.reshape(2, 12).topk(3)[0],
        [(2, 3, 4)],
    ),
    "top_k_data of many": (
        lambda a: F.top_k_data(a, 3),
        lambda a: a.topk(3)[0],
        [(5, 300)],
    ),
    "top_k_data smallest": (
        lambda a: F.top_k_data(a, 2, largest=False, base_axis=2),
        lambda a: a.topk(2, largest=False)[0],
        [(2, 3, 4)],
    ),
    "top_k_data, not reduced": (
        lambda a: F.top_k_data(a, 2, abs=True, reduce=False, base_axis=-1),
        lambda a: a * torch.zeros_like(a).scatter(-1, a.abs().topk(2)[1], 1.0),
        [(2, 3, 4)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_equal_torch(name):
    ours, theirs, shapes = CASES[name]
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=s) for s in shapes]
    with nn.context_scope(nn.Context(["cpu:double"])), nn.auto_forward():
        xs = [nn.Variable.from_numpy_array(a, need_grad=True) for a in arrays]
        ys = ours(*xs)
        ys = ys if isinstance(ys, tuple) else (ys,)
        ts = [t(a).requires_grad_() for a in arrays]
        wants = theirs(*ts)
        wants = wants if isinstance(wants, (tuple, list)) else (wants,)
        us = [rng.normal(size=y.shape) for y in ys]
        F.sum(F.add_n(*(F.sum(y * const(u)) for y, u in zip(ys, us, strict=True)))).backward()
    torch.autograd.backward(wants, [t(u) for u in us])
    for y, want in zip(ys, wants, strict=True):
        np.testing.assert_allclose(y.d, want.detach().numpy(), rtol=1e-14)
    for x, want in zip(xs, ts, strict=True):
        np.testing.assert_allclose(x.g, want.grad.numpy(), rtol=1e-12)


def test_indices_of_sort_and_top_k_equal_torch():
    a = np.random.default_rng(0).permutation(60).reshape(3, 20).astype(np.float32)
    with nn.auto_forward():
        x = const(a)
        for reverse in (False, True):
            want = t(a).sort(1, descending=reverse)[1].numpy()
            np.testing.assert_array_equal(F.sort(x, reverse=reverse, only_index=True).d, want)
            y, i = F.sort(x, reverse=reverse, with_index=True)
            np.testing.assert_array_equal(i.d, want)
            np.testing.assert_array_equal(y.d, np.take_along_axis(a, want, 1))
        y, i = F.top_k_data(x, 2, with_index=True)
        np.testing.assert_array_equal(i.d, t(a).topk(2)[1].numpy())


@pytest.mark.parametrize("f", [F.sort, F.max, F.min])
def test_positions_pass_no_gradient_on(f):
    a = np.random.default_rng(0).permutation(12).reshape(3, 4).astype(np.float32)
    x = nn.Variable.from_numpy_array(a, need_grad=True)
    with nn.auto_forward():
        (F.sum(x) + F.sum(f(x, axis=1, only_index=True))).backward()
    np.testing.assert_array_equal(x.g, np.ones((3, 4)))


def test_one_hot_equals_torch():
    labels = index(4, 5, n=7)
    with nn.auto_forward():
        y = F.one_hot(const(labels[..., None]), (7,))
    np.testing.assert_array_equal(y.d, T.one_hot(t(labels), 7).numpy())


@pytest.mark.parametrize("sorted", [True, False])
def test_unique_equals_torch(sorted):
    a = index(20, n=6).astype(np.float32)
    with nn.auto_forward():
        y, i, inverse, counts = F.unique(
            const(a), sorted=sorted, with_index=True, with_inverse=True, with_counts=True
        )
    values, t_inverse, t_counts = torch.unique(t(a), return_inverse=True, return_counts=True)
    order = np.argsort(y.d, kind="stable")
    np.testing.assert_array_equal(y.d[order], values.numpy())
    np.testing.assert_array_equal(counts.d[order], t_counts.numpy())
    np.testing.assert_array_equal(y.d[inverse.d], values.numpy()[t_inverse.numpy()])
    np.testing.assert_array_equal(a[i.d], y.d)
    assert sorted or list(i.d) == list(np.sort(i.d))
