# SPDX-License-Identifier: Apache-2.0
"""Layers of which every rank does a part, against the same layers of one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.communicators as C
from nnl.core.arrays.spec import ShapeError
from tests.communicators.ranks import run

# A language model of one block, and a network of convolutions: with nnl's layers, or in parts.
NETWORKS = """
import nnl.parametric_functions as PF
import nnl.solvers as S

V, E, H, T, B, STEPS = 16, 8, 4, 4, 4, 4
rng = np.random.default_rng(0)
IDS = rng.integers(0, V, (STEPS, B, T))
NEXT = rng.integers(0, V, (STEPS, B, T, 1))
PICTURES = rng.normal(size=(STEPS, B, 3, 6, 6)).astype(np.float32)

def attention(qkv, heads):
    q, k, v = F.split(F.reshape(qkv, (B_, T, 3, heads, E // H)), axis=2)
    q, k, v = (F.transpose(a, (0, 2, 1, 3)) for a in (q, k, v))
    s = F.softmax(F.batch_matmul(q, k, transpose_b=True) * (E // H) ** -0.5, axis=3)
    return F.reshape(F.transpose(F.batch_matmul(s, v), (0, 2, 1, 3)), (B_, T, heads * E // H))

def whole(ids, t):
    h = PF.embed(ids, V, E, name="tok")
    for i in range(2):
        with nn.parameter_scope(f"block{i}"):
            n = PF.layer_normalization(h, batch_axis=(0, 1), name="n1")
            n = attention(PF.affine(n, 3 * E, base_axis=2, name="qkv"), H)
            h = h + PF.affine(n, E, base_axis=2, name="proj")
            n = PF.layer_normalization(h, batch_axis=(0, 1), name="n2")
            h = h + PF.affine(F.gelu(PF.affine(n, 4 * E, base_axis=2, name="up")), E, base_axis=2,
                              name="down")
    y = PF.affine(h, V, base_axis=2, with_bias=False, name="head")
    y = F.softmax_cross_entropy(F.reshape(y, (-1, V)), F.reshape(t, (-1, 1)))
    return F.mean(y)

def in_parts(ids, t, over, sequence):
    h = C.embed(ids, V, E, over, name="tok")
    along = 1 if sequence else None
    h = over.local_part(h, 1) if sequence else h
    def norm(h, name):
        if sequence:
            return C.layer_normalization(h, over, name=name)
        return PF.layer_normalization(h, batch_axis=(0, 1), name=name)
    for i in range(2):
        with nn.parameter_scope(f"block{i}"):
            n = C.affine(norm(h, "n1"), 3 * E, over, groups=3, sequence=along, name="qkv")
            n = attention(n, H // over.size)
            h = h + C.affine(n, E, over, split="in", sequence=along, name="proj")
            n = C.affine(norm(h, "n2"), 4 * E, over, sequence=along, name="up")
            h = h + C.affine(F.gelu(n), E, over, split="in", sequence=along, name="down")
    y = C.affine(h, V, over, with_bias=False, sequence=along, name="head")
    return F.mean(C.softmax_cross_entropy(y, t, over))

def whole_pictures(x, t):
    h = F.relu(PF.convolution(x, 8, (3, 3), name="c1"))
    h = F.relu(PF.convolution(h, 4, (3, 3), name="c2"))
    h = F.relu(PF.convolution(h, 4, (1, 1), name="c3"))
    return F.mean(h ** 2)

def pictures_in_parts(x, t, over, sequence):
    h = F.relu(C.convolution(x, 8, (3, 3), over, name="c1"))
    h = F.relu(C.convolution(h, 4, (3, 3), over, split="in", name="c2"))
    h = F.relu(C.convolution(h, 4, (1, 1), over, gather=True, name="c3"))
    return F.mean(h ** 2)

def train(mesh, net, inputs, mode="static", level=0):
    global B_
    nn.clear_parameters()
    nn.seed(3)
    place, n = (mesh.batch.place, mesh.batch.size) if mesh is not None else (0, 1)
    B_ = B // n
    mine = slice(place * B_, (place + 1) * B_)
    args = [nn.Variable((B_, *a.shape[2:])) for a in inputs]
    loss = net(*args)
    solver = S.Adam(0.01)
    solver.set_parameters(nn.get_parameters())
    if level:
        C.shard(solver, mesh, level, outputs=loss)

    def update(loss):
        loss.forward(clear_no_need_grad=True)
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        norms.append(S.clip_grad_norm(solver, 0.3))
        solver.update()
        return loss

    compiled, losses, norms = nn.compile(lambda *args: update(net(*args))), [], []
    for i in range(STEPS):
        for x, a in zip(args, inputs):
            x.d = a[i, mine]
        if mode == "dynamic":
            with nn.auto_forward():
                now = update(net(*args))
        else:
            now = compiled(*args) if mode == "compiled" else update(loss)
        losses.append(float(now.d))
    losses = nn.NdArray.from_numpy_array(np.array(losses))
    if n > 1:
        mesh.comm.all_reduce(losses, division=True, group=mesh.batch.group)
    norms = [float(v.data) for v in norms] if mode != "compiled" else []
    params = nn.get_parameters()
    cut = {k: (v.layout.cut if hasattr(v, "layout") else lambda a: a) for k, v in params.items()}
    return losses.data, norms, {k: v.d.copy() for k, v in params.items()}, cut

def compare(mesh, level=0, modes=("static", "dynamic", "compiled")):
    over = mesh.model
    for alone, net, inputs, both in (
        (whole, in_parts, (IDS, NEXT), (False, True)),
        (whole_pictures, pictures_in_parts, (PICTURES, NEXT), (False,)),
    ):
        want, norms, end, _ = train(None, alone, inputs)
        assert want[0] - want[-1] > 1e-2
        for sequence in both:
            for mode in modes:
                got, norms1, end1, cut = train(
                    mesh, lambda *a: net(*a, over, sequence), inputs, mode, level
                )
                np.testing.assert_allclose(got, want, rtol=3e-5, err_msg=f"{mode} {sequence}")
                if norms1:
                    np.testing.assert_allclose(norms1, norms, rtol=1e-3)
                assert set(end1) == set(end)
                for k in end:  # Adam makes of tiny differences of gradients larger ones
                    np.testing.assert_allclose(end1[k], cut[k](end[k]), atol=4e-3, err_msg=k)
"""


@pytest.mark.parametrize(
    ("n", "code"),
    [
        (2, "compare(C.Mesh(model=2))"),
        pytest.param(4, "compare(C.Mesh(model=4))", marks=pytest.mark.long),
        pytest.param(
            4,
            "compare(C.Mesh(shard=2, model=2), 3)\n"
            "compare(C.Mesh(shard=2, model=2), 2, ('compiled',))",
            marks=pytest.mark.long,
        ),
    ],
)
def test_layers_in_parts_train_as_whole_ones(tmp_path: Path, n: int, code: str) -> None:
    run(tmp_path, n, NETWORKS + code, seconds=180)


def test_dropout_of_parts_draws_on_each_rank(tmp_path: Path) -> None:
    code = """
    nn.seed(1)
    over = C.Mesh(model=size).model
    x = nn.Variable.from_numpy_array(np.ones((64, 64), np.float32), need_grad=True)
    y = C.dropout(x, over, p=0.25)
    parts = over.all_gather(F.reshape(y, (1, 64, 64)))
    nn.forward_all([y, parts])
    kept = [np.mean(p > 0) for p in parts.d]
    assert all(abs(k - 0.75) < 0.05 for k in kept), kept
    assert abs(np.mean((parts.d[0] > 0) == (parts.d[1] > 0)) - 0.625) < 0.05
    """
    run(tmp_path, 2, code)


def test_gathered_groups_are_in_the_order_of_one_process(tmp_path: Path) -> None:
    code = """
    over = C.Mesh(model=2).model
    w = np.arange(36.0).reshape(3, 12)
    x = nn.Variable.from_numpy_array(np.arange(6.0).reshape(2, 3), need_grad=True)
    y = C.affine(x, 12, over, groups=3, gather=True, w_init=w, with_bias=False)
    y.forward()
    np.testing.assert_allclose(y.d, x.d @ w)
    x.g = 0
    weights = np.arange(24.0).reshape(2, 12)
    y.backward(weights)
    np.testing.assert_allclose(x.g, weights @ w.T)
    """
    run(tmp_path, 2, code)


def test_what_is_wrong_with_a_layer_in_parts_is_said(tmp_path: Path) -> None:
    over, x = C.Mesh().model, nn.Variable((2, 4))
    with pytest.raises(TypeError, match=r"affine: over is 3, wanted an axis of a mesh, mesh.model"):
        C.affine(x, 4, 3)
    with pytest.raises(ValueError, match="affine: split is 'up', wanted 'out' or 'in'"):
        C.affine(x, 4, over, split="up")
    with pytest.raises(ShapeError, match=r"target has the shape \(2,\), wanted \(2, 1\)"):
        C.softmax_cross_entropy(x, nn.Variable((2,)), over)
    code = """
    over = C.Mesh(model=size).model
    def said(call):
        try:
            call()
        except Exception as e:
            return str(e)
    x = nn.Variable((2, 4))
    assert "affine: 5 n_outmaps, wanted a multiple of the 2 ranks" in said(
        lambda: C.affine(x, 5, over))
    assert "embed: 5 rows, wanted a multiple of the 2 ranks of over" in said(
        lambda: C.embed(x, 5, 4, over))
    assert "convolution: 3 outmaps, wanted a multiple" in said(
        lambda: C.convolution(nn.Variable((1, 2, 3, 3)), 3, (1, 1), over))
    assert "W: the initial value has the shape (3, 3), wanted (4, 6)" in said(
        lambda: C.affine(x, 6, over, w_init=np.ones((3, 3))))
    """
    run(tmp_path, 2, code)


def test_blocks_of_a_layout_join_to_the_whole() -> None:
    from nnl.communicators.parallel.layout import Layout, Split

    class Two:
        size = 2

        def __init__(self, place: int) -> None:
            self.place = place

    whole = np.arange(24).reshape(2, 12)
    both = [Layout((2, 12), (Split(1, Two(k), 3),)).cut(whole) for k in (0, 1)]  # type: ignore[arg-type]
    assert both[0][0].tolist() == [0, 1, 4, 5, 8, 9] and both[1][0].tolist() == [2, 3, 6, 7, 10, 11]
