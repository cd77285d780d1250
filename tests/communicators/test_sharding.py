# SPDX-License-Identifier: Apache-2.0
"""Sharded data parallelism against one process: the same losses and weights, less memory."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.communicators as C
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from tests.communicators.ranks import run, say

# Sizes that no number of ranks divides, in every mode; one process takes the whole batch.
TRAIN = """
import nnl.parametric_functions as PF
import nnl.solvers as S

STEPS, B = 5, 12
rng = np.random.default_rng(0)
X = rng.normal(size=(STEPS, B, 6)).astype(np.float32)
T = rng.integers(0, 4, (STEPS, B, 1))

def net(x, t):
    h = F.tanh(PF.affine(x, 7, name="a"))
    h = F.tanh(PF.affine(h, 7, name="b"))
    h = h + F.tanh(PF.affine(h, 7, name="b"))  # twice
    return F.mean(F.softmax_cross_entropy(PF.affine(h, 4, name="c"), t))

def train(mesh, level, mode, solver, late=False):
    nn.clear_parameters()
    nn.seed(3)
    place, n = (mesh.batch.place, mesh.batch.size) if mesh is not None else (0, 1)
    mine = slice(place * B // n, (place + 1) * B // n)
    x, t = nn.Variable((B // n, 6)), nn.Variable((B // n, 1))
    loss = net(x, t)
    params = nn.get_parameters()
    grads = [p.grad for p in params.values()]
    solver.set_parameters(params)
    if mesh is not None:
        C.shard(solver, mesh, level, outputs=() if late else loss)
    if late:
        loss = net(x, t)

    def update(loss):
        loss.forward(clear_no_need_grad=True)
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        if level == 1:
            comm.all_reduce(grads, division=True, group=mesh.batch.group)
        S.clip_grad_norm(solver, 0.3)
        solver.weight_decay(1e-3)
        solver.update()
        return loss

    compiled = nn.compile(lambda x, t: update(net(x, t)))
    losses = []
    for i in range(STEPS):
        x.d, t.d = X[i, mine], T[i, mine]
        if mode == "dynamic":
            with nn.auto_forward():
                now = update(net(x, t))
        else:
            now = compiled(x, t) if mode == "compiled" else update(loss)
        losses.append(float(now.d))
    losses = nn.NdArray.from_numpy_array(np.array(losses))
    if mesh is not None:
        comm.all_reduce(losses, division=True, group=mesh.batch.group)
    return losses.data, solver
"""

SAME = """
want, _ = train(None, 0, "static", S.Adam(0.05))
assert want[0] - want[-1] > 1e-3
for mesh in MESHES:
    for level in (1, 2, 3):
        for mode in ("static", "dynamic", "compiled"):
            late = mode == "static" and level == 2
            got, solver = train(mesh, level, mode, S.Adam(0.05), late)
            np.testing.assert_allclose(got, want, rtol=2e-5, err_msg=f"{mesh} {level} {mode}")
            state = solver.get_states()["a/affine/W"].pstate["mean"]
            assert state.shape == (-(-42 // mesh.shard.size),), state.shape
            p = nn.get_parameters()["a/affine/W"]
            assert p.shape == ((6, 7) if level == 1 else state.shape)
"""


@pytest.mark.parametrize(
    ("n", "meshes"),
    [
        (2, "[C.Mesh(shard=2)]"),
        pytest.param(4, "[C.Mesh(shard=4), C.Mesh(data=2, shard=2)]", marks=pytest.mark.long),
    ],
)
def test_every_level_trains_as_one_process(tmp_path: Path, n: int, meshes: str) -> None:
    run(tmp_path, n, TRAIN + SAME.replace("MESHES", meshes), seconds=120)


MEMORY = """
import nnl.parametric_functions as PF
import nnl.solvers as S

def bytes_of(level, mesh):
    "Of what lasts from step to step, and of what a step takes."
    nn.clear_parameters()
    x = nn.Variable((2, 64))
    h = x
    for k in range(16):
        h = F.tanh(PF.affine(h, 64, name=str(k)))
    loss = F.mean(h ** 2)
    solver = S.Adam()
    solver.set_parameters(nn.get_parameters())
    if level:
        C.shard(solver, mesh, level, outputs=loss)
    loss.forward(clear_no_need_grad=True)
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    solver.update()
    params = nn.get_parameters().values()
    states = [v for s in solver.get_states().values() for v in s.pstate.values()]
    (session,) = loss.sessions.values()
    step = session.plans["train"].plan.nbytes  # gradients are a part of it
    return sum(v.d.nbytes for v in [*params, *states]) + step

mesh = C.Mesh(shard=size)
whole, one = bytes_of(0, None), 64 * 65 * 4
got = {level: bytes_of(level, mesh) for level in (1, 2, 3)}
kinds = 4  # parameters, gradients, mean and variance
model = 16 * one
assert whole >= kinds * model
assert got[1] <= whole - 2 * model * (1 - 1 / size) + one, (got, whole)
assert got[2] <= model + whole / size + 3 * one, (got, whole)
# what a step puts together: the layer at work, its gradient, and that of the next one
assert got[3] <= whole / size + 3 * one, (got, whole, one)
if rank == 0:
    print({level: round(n / whole, 3) for level, n in got.items()})
"""


def test_memory_of_each_level(tmp_path: Path) -> None:
    print(run(tmp_path, 2, MEMORY))


HALF = """
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.ext_utils import get_extension_context

nn.set_default_context(get_extension_context("cpu", type_config="half"))
def train(mesh, level):
    nn.clear_parameters()
    nn.seed(1)
    w = PF.get_parameter_or_create("w", (5, 3), np.linspace(-1, 1, 15).reshape(5, 3))
    w.data.cast(np.float16)
    x = nn.Variable.from_numpy_array(np.linspace(0, 1, 20).reshape(4, 5).astype(np.float16))
    loss = F.mean(F.affine(x, w) ** 2)
    solver = S.Momentum(1e-3)
    solver.set_parameters(nn.get_parameters())
    if mesh is not None:
        C.shard(solver, mesh, level, outputs=loss)
    losses = []
    for i in range(6):
        loss.forward(clear_no_need_grad=True)
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        solver.update()
        losses.append(float(loss.d))
    (state,) = solver.get_states().values()
    return losses, state.pstate["master"]

want, master = train(None, 0)
assert want[0] > want[-1]
for level in (1, 2, 3):
    got, own = train(C.Mesh(shard=size), level)
    np.testing.assert_allclose(got, want, rtol=1e-3)
    assert own.d.dtype == np.float32 and own.shape == (8,)
    mine = master.d.reshape(-1)[8 * rank : 8 * rank + 8]
    np.testing.assert_allclose(own.d[: len(mine)], mine, rtol=1e-4)
"""


def test_masters_of_16_bit_parameters_are_in_pieces(tmp_path: Path) -> None:
    run(tmp_path, 2, HALF)


def test_a_parameter_without_gradient_stays_as_it_is(tmp_path: Path) -> None:
    code = """
    import nnl.parametric_functions as PF
    import nnl.solvers as S

    def train(mesh):
        nn.clear_parameters()
        a, b = (PF.get_parameter_or_create(k, (3,), np.arange(3.0)) for k in "ab")
        solver = S.Momentum(0.1)
        solver.set_parameters(nn.get_parameters())
        if mesh is not None:
            C.shard(solver, mesh, level=1)
        for k in range(5):
            solver.zero_grad()
            with nn.auto_forward():  # b is used in every second step only
                loss = F.sum(a * a) if k % 2 else F.sum((a - b) ** 2)
            loss.backward()
            solver.update()
        return [v.d.tolist() for v in nn.get_parameters().values()]

    want, got = train(None), train(C.Mesh(shard=2))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    """
    run(tmp_path, 2, code)


def test_level_1_updates_the_memory_of_parameters(tmp_path: Path) -> None:
    """Where ranks can read it; whatever a script has written meanwhile, and wherever."""
    code = """
    import nnl.solvers as S

    def train(mesh):
        nn.clear_parameters()
        sizes = {"even": (4, 300), "uneven": (7, 3), "half": (2, 5), "none": (0,)}
        for k, shape in sizes.items():
            value = np.arange(np.prod(shape), dtype="float16" if k == "half" else "float32")
            value = nn.Variable.from_numpy_array(value.reshape(shape) / 2000, need_grad=True)
            nn.parameter.set_parameter(k, value)
        params = nn.get_parameters()
        even, twice = params["even"], {**params, "again": params["even"]}
        solver = S.Momentum(0.1)
        solver.set_parameters(twice)
        if mesh is not None:
            C.shard(solver, mesh, level=1)
        held = []
        for k in range(6):
            solver.zero_grad()
            with nn.auto_forward():
                loss = sum(F.sum(v * v * v) for v in params.values())
            loss.backward()
            if k == 2:
                even.d[0] = 0.5  # in place
            if k == 3:
                even.data = nn.NdArray.from_numpy_array(even.d * 2)  # other memory
            if k == 4:
                even.data.cast(np.float64)[...] *= 0.5  # another type
            solver.update()
            held.append(even.d)
        return [v.d.astype("float32") for v in params.values()], held

    (want, _), (got, held) = train(None), train(C.Mesh(shard=2))
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=1e-3 if a.shape == (2, 5) else 1e-6)
    assert np.may_share_memory(held[1], held[2])
    every = comm.meet("weights", held[-1].tobytes())
    assert every[0] == every[1]
    """
    run(tmp_path, 2, code)
    run(tmp_path, 2, code, NNL_COMMUNICATOR="mpi")


def test_clipping_by_norm_is_that_of_whole_parameters(tmp_path: Path) -> None:
    code = """
    import nnl.solvers as S
    whole = np.arange(1, 6, dtype=np.float32)
    nn.parameter.set_parameter("w", nn.Variable.from_numpy_array(whole, need_grad=True))
    w = nn.get_parameters()["w"]
    loss = F.sum(w * w) * 0.5
    solver = S.Sgd(1.0)
    solver.set_parameters({"w": w})
    C.shard(solver, C.Mesh(shard=size), outputs=loss)
    for clip in (lambda: S.clip_grad_norm(solver, 1.0), lambda: solver.clip_grad_by_norm(1.0)):
        loss.forward(), solver.zero_grad(), loss.backward()
        norm = clip()
        assert norm is None or abs(float(norm.data) - np.sqrt((whole ** 2).sum())) < 1e-5
        want = np.append(whole / np.linalg.norm(whole), 0)[3 * rank : 3 * rank + 3]
        (piece,) = solver.get_parameters().values()
        np.testing.assert_allclose(piece.g, want, rtol=1e-5)
    """
    run(tmp_path, 2, code)


def test_what_cannot_be_split_is_said(tmp_path: Path) -> None:
    w = nn.Variable((2, 3), need_grad=True)
    solver = S.Adam()
    with pytest.raises(ValueError, match="shard: Adam has no parameters, call set_parameters"):
        C.shard(solver, C.Mesh())
    solver.set_parameters({"w": w})
    with pytest.raises(ValueError, match="shard: level is 4, wanted 1, 2 or 3"):
        C.shard(solver, C.Mesh(), level=4)
    for kind in (S.Lamb, S.Lars, S.Muon):
        other = kind()
        other.set_parameters({"w": w})
        with pytest.raises(NotImplementedError, match=f"shard: {kind.__name__} updates 'w' by "):
            C.shard(other, C.Mesh())
    C.shard(solver, C.Mesh())  # one process: as it was
    assert solver.get_parameters()["w"] is w


WRONG = {
    "C.shard(solver, C.Mesh(shard=2), outputs=())\nloss.forward()":
        r"was read after it had been split by C\.shard: give it the graphs",
    "C.shard(solver, C.Mesh(data=2))": "has one rank along shard, wanted 2 or more",
    "w.d = rank\nC.shard(solver, C.Mesh(shard=2))":
        r"rank 0 has come to .*shard\(level=3, 1 parameters of 3 elements, checksum",
    "C.shard(solver, C.Mesh(shard=2), level=1 + rank)":
        r"rank 1 has come to .*, but rank 0 to call \d+, shard\(level=1, 1 param",
    "mesh = C.Mesh(shard=2)\nC.shard(solver, mesh, outputs=loss)\n"
    "C.shard(solver, mesh, outputs=loss)":
        "shard: parameter 'w' is stored in pieces already",
}  # fmt: skip


def test_shard_says_what_is_wrong_on_ranks(tmp_path: Path) -> None:
    before = """
import nnl.solvers as S
w = nn.Variable.from_numpy_array(np.ones(3), need_grad=True)
loss = F.sum(w * w)
solver = S.Sgd(1.0)
solver.set_parameters({"w": w})
"""
    for said, text in zip(say(tmp_path, 2, [*WRONG], before), WRONG.values(), strict=True):
        assert re.search(text, "\n".join(said)), said


def test_a_network_that_is_not_split_is_as_it_was() -> None:
    nn.clear_parameters()
    x = nn.Variable.from_numpy_array(np.ones((2, 3), np.float32))
    loss = F.sum(PF.affine(x, 2))
    solver = S.Momentum(0.1)
    solver.set_parameters(nn.get_parameters())
    C.shard(solver, C.Mesh(), level=1, outputs=loss)
    loss.forward(), solver.zero_grad(), loss.backward(), solver.update()
    assert solver.get_states()["affine/W"].pstate["m"].shape == (3, 2)
    nn.clear_parameters()
