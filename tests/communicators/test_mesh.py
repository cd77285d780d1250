# SPDX-License-Identifier: Apache-2.0
"""Meshes, and collectives as functions: values and gradients against the same in one process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nnl as nn
import nnl.communicators as C
from nnl.core.arrays.spec import ShapeError
from tests.communicators.ranks import run, say

# Every rank also computes what all ranks compute together, in one graph without a communicator.
COLLECTIVES = """
mesh = C.Mesh(model=size)
over = mesh.model
assert (over.size, over.place, over.ranks) == (size, rank, tuple(range(size)))
rng = np.random.default_rng(0)
SHAPE = (2 * size, 3 * size)
ALL = rng.normal(size=(size, *SHAPE)).astype(np.float32)
WEIGHTS = rng.normal(size=(size, 4 * size * size, 4 * size * size)).astype(np.float32)

def rolled(x, by=1):
    return [x[(k - by) % size] for k in range(size)]

CASES = {
    "all_reduce": (lambda x: over.all_reduce(x), lambda xs: [sum(xs[1:], xs[0])] * size),
    "all_gather": (
        lambda x: over.all_gather(x, axis=1), lambda xs: [F.concatenate(*xs, axis=1)] * size
    ),
    "reduce_scatter": (
        lambda x: over.reduce_scatter(x, axis=-1),
        lambda xs: F.split(F.reshape(sum(xs[1:], xs[0]), (SHAPE[0], size, 3)), axis=1),
    ),
    "all_to_all": (
        lambda x: over.all_to_all(x, split=0, join=1),
        lambda xs: [
            F.concatenate(*[x[2 * k : 2 * k + 2] for x in xs], axis=1) for k in range(size)
        ],
    ),
    "permute": (
        lambda x: over.permute(x, [(k, (k + 1) % size) for k in range(size)]), rolled
    ),
}

def weighted(y, k):
    "A loss of its own on every rank."
    w = WEIGHTS[k][tuple(slice(n) for n in y.shape)]
    return F.sum(y * y * nn.Variable.from_numpy_array(w))

def leaf(k):
    return nn.Variable.from_numpy_array(ALL[k], need_grad=True)

for name, (ours, together) in CASES.items():
    xs = [leaf(k) for k in range(size)]
    ys = together(xs)
    total = sum((weighted(y, k) for k, y in enumerate(ys)), 0.0)
    total.forward(), total.backward()
    for mode in ("static", "dynamic", "compiled"):
        x = leaf(rank)
        def step(x):
            y = ours(x)
            loss = weighted(y, rank)
            loss.backward()
            return y, loss
        x.grad.fill(0)
        if mode == "dynamic":
            with nn.auto_forward():
                y, loss = step(x)
        elif mode == "compiled":
            y, loss = nn.compile(step)(x)
        else:
            y = ours(x)
            loss = weighted(y, rank)
            nn.forward_all([y, loss])
            loss.backward()
        np.testing.assert_allclose(y.d, ys[rank].d, rtol=1e-5, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(x.g, xs[rank].g, rtol=1e-5, atol=1e-5, err_msg=f"{name} {mode}")

# What is replicated counts once: y = x W, with the columns or rows of W on different ranks.
X, W = ALL[0], rng.normal(size=(SHAPE[1], 4 * size)).astype(np.float32)
x, w = (nn.Variable.from_numpy_array(a, need_grad=True) for a in (X, W))
loss = F.sum(F.tanh(F.affine(x, w)) ** 2)
loss.forward(), loss.backward()
for auto in (False, True):
    for rows in (False, True):
        own = np.split(W, size, axis=0 if rows else 1)[rank]
        x1, w1 = (nn.Variable.from_numpy_array(a, need_grad=True) for a in (X, own))
        with nn.auto_forward(auto):
            if rows:
                y = over.all_reduce(F.affine(over.local_part(x1, 1), w1), replicated=True)
            else:
                y = over.all_gather(F.affine(over.replicate(x1), w1), axis=1, replicated=True)
            loss1 = F.sum(F.tanh(y) ** 2)
        if not auto:
            loss1.forward()
        loss1.backward()
        np.testing.assert_allclose(loss1.d, loss.d, rtol=1e-5)
        np.testing.assert_allclose(x1.g, x.g, rtol=1e-4, atol=1e-4)
        want = np.split(w.g, size, axis=0 if rows else 1)[rank]
        np.testing.assert_allclose(w1.g, want, rtol=1e-4, atol=1e-4)

# large arrays, and those of 16 bits: other ways of the data
for dtype in (np.float32, np.float16):
    big = nn.Variable.from_numpy_array(np.full((size, 70001), rank + 1, dtype))
    with nn.auto_forward():
        want = sum(range(1, size + 1))
        assert (over.reduce_scatter(big).d == want).all()
        assert (over.all_gather(big).d.reshape(size, -1) == np.arange(1, size + 1)[:, None]).all()
        assert (over.all_to_all(big).d == np.arange(1, size + 1)[:, None]).all()
        back = over.permute(big, [(size - 1, 0)])
        assert (back.d == (size if rank == 0 else 0)).all()

# a second derivative goes through a collective as well
x = leaf(rank)
(g,) = nn.grad([F.sum(over.all_reduce(x) ** 3)], [x])
F.sum(g).forward()
s = ALL.sum(axis=0)
np.testing.assert_allclose(g.d, 3 * size * s ** 2, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.parametrize(
    ("n", "backend"),
    [
        (2, "shared"),
        pytest.param(4, "shared", marks=pytest.mark.long),
        pytest.param(3, "mpi", marks=pytest.mark.long),
    ],
)
def test_collectives_give_what_one_process_gives(tmp_path: Path, n: int, backend: str) -> None:
    run(tmp_path, n, COLLECTIVES, NNL_COMMUNICATOR=backend)


PLACES = """
mesh = C.Mesh(data=2, model=2)
assert mesh.shape == {"pipe": 1, "data": 2, "shard": 1, "model": 2}
assert mesh.place_of(rank) == {"pipe": 0, "data": rank // 2, "shard": 0, "model": rank % 2}
assert mesh.model.ranks == ((0, 1), (2, 3))[rank // 2]
assert mesh.data.ranks == mesh.batch.ranks == ((0, 2), (1, 3))[rank % 2]
assert repr(mesh.model) == f"model[{rank % 2} of 2]"
again = C.Mesh(data=2, model=2, comm=mesh.comm)  # has the same groups
assert again.model.group == mesh.model.group
whole = C.Mesh(data=2, shard=2, comm=mesh.comm)
assert whole.batch.group == "world" and whole.shard.ranks == mesh.model.ranks
x = nn.Variable.from_numpy_array(np.full(2, rank + 1.0))
y = mesh.data.all_reduce(mesh.model.all_gather(x))
y.forward()
assert y.d.tolist() == [4, 4, 6, 6]
from nnl.core.graph.node import capture
from nnl.graph.plan.plan import Plan
text = Plan(capture([y.edge]), kept={y.edge.key}).program.text()
assert f"all_gather(%2) comm=4 ranks (shared) group=model {list(mesh.model.ranks)}" in text, text
assert "all_reduce(" in text and f"group=data {list(mesh.data.ranks)}" in text
"""


def test_a_mesh_knows_its_places_and_programs_print_collectives(tmp_path: Path) -> None:
    run(tmp_path, 4, PLACES)


def test_a_mesh_of_one_rank_exchanges_nothing() -> None:
    mesh = C.Mesh()
    x = nn.Variable((2, 3))
    for y in (
        mesh.data.all_reduce(x),
        mesh.model.all_gather(x, 1),
        mesh.shard.reduce_scatter(x),
        mesh.pipe.all_to_all(x),
        mesh.batch.replicate(x),
        mesh.model.local_part(x),
    ):
        assert y is x
    assert repr(mesh) == "Mesh(pipe=1, data=1, shard=1, model=1)"


def test_what_is_wrong_with_a_mesh_or_an_axis_is_said() -> None:
    for arguments, text in (
        ({"data": 2, "model": 3}, "Mesh: data=2, model=3 takes 6 ranks, but the job has 1: nnl"),
        ({"shard": 0}, "Mesh: shard is 0, wanted a number of ranks >= 1"),
        ({"pipe": 1.5}, "Mesh: pipe is 1.5, wanted a number of ranks >= 1"),
    ):
        with pytest.raises(ValueError, match=text):
            C.Mesh(**arguments)  # type: ignore[arg-type]
    over = C.Mesh().model
    with pytest.raises(TypeError, match=r"all_gather: x is 3, wanted nnl\.Variable"):
        over.all_gather(3)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"all_gather: axis 2 is outside \[-2, 2\) for x float32"):
        over.all_gather(nn.Variable((2, 3)), axis=2)
    with pytest.raises(ShapeError, match=r"all_to_all: axis -3 is outside \[-2, 2\) for x"):
        over.all_to_all(nn.Variable((2, 3)), join=-3)
    with pytest.raises(ShapeError, match=r"permute: pairs are \(0, 1\), wanted \(from, to\) among"):
        over.permute(nn.Variable((2, 3)), [(0, 1)])
    x = nn.Variable.from_numpy_array([[1, 2]])
    for pairs, want in ([(0, 0)], [[1, 2]]), ([], [[0, 0]]):  # also of one rank
        y = over.permute(x, pairs)  # type: ignore[arg-type]
        y.forward()
        assert y.d.tolist() == want


WRONG = {
    "C.Mesh(model=2).model.reduce_scatter(nn.Variable((3, 2)))":
        r"reduce_scatter: x is float32\[3, 2\], wanted a size of axis 0 that the 2 ranks of "
        r"group 'world' divide",
    "C.Mesh(**({'model': 2} if rank else {'data': 2}))":
        r"rank 0 has come to .*Mesh\(.*'data': 2.* but rank 1 to .*Mesh\(.*'data': 1",
    "C.Mesh(data=3)": r"Mesh: data=3 takes 3 ranks, but the job has 2: nnl launch -n 3",
    "x = nn.Variable.from_numpy_array(np.ones(2 + rank))\n"
    "with nn.auto_forward(): C.Mesh(model=2).model.all_gather(x)":
        r"rank 0 has come to .*all_gather\(float32\[2\].* rank 1 to .*float32\[3\]",
}  # fmt: skip


def test_ranks_that_do_not_fit_say_so(tmp_path: Path) -> None:
    for said, text in zip(say(tmp_path, 2, [*WRONG]), WRONG.values(), strict=True):
        assert re.search(text, "\n".join(said)), said
