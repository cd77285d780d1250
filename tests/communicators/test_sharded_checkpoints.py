# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of several ranks: going on bit for bit, on other meshes, and after kills."""

from __future__ import annotations

import errno
import json
import mmap
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.communicators as C
import nnl.solvers as S
from nnl.core.parameters import safetensors
from tests.communicators.ranks import finish, run, start

NETWORK = """
import json, os, sys, time
import nnl.parametric_functions as PF
import nnl.solvers as S

def make(mesh, level):
    nn.clear_parameters()
    nn.seed(5)
    rng = np.random.default_rng(1)
    b = 8 // mesh.batch.size
    X = rng.normal(size=(30, 8, 6)).astype(np.float32)
    x = nn.Variable((b, 6))
    over = mesh.model
    h = F.tanh(C.affine(x, 12, over, groups=3, name="up"))
    h = F.sum(F.reshape(h, (b, 3, 4 // over.size)), axis=1)
    h = C.affine(h, 5, over, split="in", name="down")
    loss = F.mean(F.dropout(h, p=0.1) ** 2) if DROP else F.mean(h ** 2)
    solver = S.Adam(0.01)
    solver.set_parameters(nn.get_parameters())
    grads = [p.grad for p in nn.get_parameters().values()]
    if level:
        C.shard(solver, mesh, level, outputs=loss)
    def step(i):
        x.d = X[i, mesh.batch.place * b : (mesh.batch.place + 1) * b]
        loss.forward(clear_no_need_grad=True)
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        if level < 2 and mesh.batch.size > 1:
            comm.all_reduce(grads, division=True, group=mesh.batch.group)
        solver.update()
        return float(loss.d)
    return solver, step
"""

BIT_FOR_BIT = """
DROP = True
mesh = MESH
solver, step = make(mesh, LEVEL)
for i in range(3):
    step(i)
solver.set_learning_rate(0.02)
C.Checkpoints(FOLDER, mesh, solver).save(3, {"next": 3}, wait=False)
want = [step(i) for i in range(3, 6)]
end = {k: v.d.copy() for k, v in nn.get_parameters().items()}
solver, step = make(mesh, LEVEL)
nn.seed(77)
checkpoints = C.Checkpoints(FOLDER, mesh, solver)
while not checkpoints.steps():  # the thread of the other one still writes
    time.sleep(0.01)
assert checkpoints.load() == (3, {"next": 3})
assert [step(i) for i in range(3, 6)] == want
for k, v in nn.get_parameters().items():
    assert (v.d == end[k]).all(), k
"""


@pytest.mark.parametrize(
    ("n", "mesh", "level"),
    [
        (2, "C.Mesh(shard=2)", 3),
        pytest.param(2, "C.Mesh(model=2)", 0, marks=pytest.mark.long),
        pytest.param(2, "C.Mesh(shard=2)", 1, marks=pytest.mark.long),
        pytest.param(4, "C.Mesh(shard=2, model=2)", 2, marks=pytest.mark.long),
        pytest.param(4, "C.Mesh(data=2, shard=2)", 3, marks=pytest.mark.long),
    ],
)
def test_training_goes_on_bit_for_bit(tmp_path: Path, n: int, mesh: str, level: int) -> None:
    code = BIT_FOR_BIT.replace("MESH", mesh).replace("LEVEL", str(level))
    run(tmp_path, n, NETWORK + code.replace("FOLDER", repr(str(tmp_path / "saved"))))


ELSEWHERE = """
DROP = False
mesh = MESH
solver, step = make(mesh, LEVEL)
checkpoints = C.Checkpoints(FOLDER, mesh, solver)
found = checkpoints.load()
first = 0 if found is None else found[0]
losses = [step(i) for i in range(first, first + 3)]
losses = nn.NdArray.from_numpy_array(np.array(losses))
comm.all_reduce(losses, division=True)
checkpoints.save(first + 3)
if rank == 0:
    print(json.dumps(losses.data.tolist()))
"""


@pytest.mark.parametrize(
    "jobs",
    [
        [("C.Mesh(shard=2)", 2, 3), ("C.Mesh(model=2)", 2, 0), ("C.Mesh()", 1, 0)],
        pytest.param(
            [
                ("C.Mesh(shard=2, model=2)", 4, 3),
                ("C.Mesh(shard=3)", 3, 1),
                ("C.Mesh(shard=2)", 2, 2),
                ("C.Mesh(model=4)", 4, 0),
            ],
            marks=pytest.mark.long,
        ),
    ],
)
def test_training_goes_on_with_other_meshes(
    tmp_path: Path, jobs: list[tuple[str, int, int]]
) -> None:
    folder = repr(str(tmp_path / "saved"))
    losses: list[float] = []
    for mesh, n, level in jobs:
        if 8 % n:  # the batch does not divide: only checks that it loads
            code = ELSEWHERE.split("first =")[0]
            code = NETWORK.replace("b = 8 // mesh.batch.size", "b = 2") + code
        else:
            code = NETWORK + ELSEWHERE
        code = code.replace("MESH", mesh).replace("LEVEL", str(level)).replace("FOLDER", folder)
        out = run(tmp_path, n, code)
        losses += json.loads(out) if out else []
    alone = (NETWORK + ELSEWHERE).replace("MESH", "C.Mesh()").replace("LEVEL", "0")
    alone = alone.replace("FOLDER", repr(str(tmp_path / "alone")))
    alone = alone.replace("first + 3)", f"first + {len(losses)})")
    want = json.loads(run(tmp_path, 1, alone))
    np.testing.assert_allclose(losses, want, rtol=1e-4)


KILLED = """
DROP = False
mesh = C.Mesh(shard=2)
solver, step = make(mesh, 3)
checkpoints = C.Checkpoints(FOLDER, mesh, solver)
for i in range(1, 10000):
    checkpoints.save(i, {"w": float(i)}, wait=i % 2 == 0)
"""


def test_a_kill_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    for seconds in (0.05, 0.11, 0.17):
        process = start(tmp_path, 2, NETWORK + KILLED.replace("FOLDER", repr(str(folder))))
        end = time.monotonic() + 30
        while not list(folder.glob("step-*/index.json")) and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
    code = """
    mesh = C.Mesh()
    solver, step = make(mesh, 0)
    checkpoints = C.Checkpoints(FOLDER, mesh, solver)
    step, extra = checkpoints.load()
    assert checkpoints.steps()[-1] == step and extra == {"w": float(step)}, (step, extra)
    """
    import textwrap

    code = "DROP = False\n" + NETWORK + textwrap.dedent(code).replace("FOLDER", repr(str(folder)))
    run(tmp_path, 1, code)


def saved(tmp_path: Path, **arrays: np.ndarray) -> C.Checkpoints:
    nn.clear_parameters()
    for name, a in arrays.items():
        nn.parameter.set_parameter(name, nn.Variable.from_numpy_array(a, need_grad=True))
    solver = S.Adam()
    solver.set_parameters(nn.get_parameters())
    checkpoints = C.Checkpoints(tmp_path, C.Mesh(), solver, keep=2)
    for step in (1, 2, 3):
        checkpoints.save(step)
    return checkpoints


def test_damaged_checkpoints_are_named_and_change_nothing(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, v=np.ones(3, np.float32), w=np.ones((2, 2), np.float32))
    assert checkpoints.steps() == [2, 3]
    assert checkpoints.load(2) == (2, {})
    with pytest.raises(FileNotFoundError, match="load: there is no checkpoint .*step-00000001"):
        checkpoints.load(1)
    with pytest.raises(ValueError, match="Checkpoints: keep is 0, wanted a number >= 1"):
        C.Checkpoints(tmp_path, C.Mesh(), keep=0)
    with pytest.raises(ValueError, match="save: step is -1, wanted a number >= 0"):
        checkpoints.save(-1)
    old, new = tmp_path / "step-00000002", tmp_path / "step-00000003"
    file = new / "rank-00000.safetensors"
    whole = file.read_bytes()
    params = nn.get_parameters()
    params["v"].d = 7

    def fails(kind: type[Exception], text: str) -> None:
        with pytest.raises(kind, match=text):
            checkpoints.load()
        assert (params["v"].d == 7).all()

    file.write_bytes((old / file.name).read_bytes())
    fails(ValueError, "rank-00000.safetensors is of another save than .*index.json")
    file.write_bytes(whole[:-5])
    fails(ValueError, "bytes .* are not in the|belong to none")
    file.unlink()
    fails(FileNotFoundError, "load: .*step-00000003 lacks rank-00000.safetensors")
    file.write_bytes(whole)
    index = json.loads((new / "index.json").read_text())
    (new / "index.json").write_text(json.dumps(index | {"version": 2}))
    fails(ValueError, "index.json is of version 2, wanted 1")
    (new / "index.json").write_text("{}")
    fails(ValueError, "index.json is no index of a checkpoint: 'version'")
    (new / "index.json").write_text(json.dumps(index))
    nn.clear_parameters()
    nn.parameter.set_parameter("u", nn.Variable((2,), need_grad=True))
    with pytest.raises(ValueError, match="load: .* has no 'u'"):
        C.Checkpoints(tmp_path, C.Mesh()).load()
    nn.clear_parameters()
    nn.parameter.set_parameter("w", nn.Variable((3,), need_grad=True))
    with pytest.raises(ValueError, match=r"'w' has the shape \(2, 2\) in .*, wanted \(3,\)"):
        C.Checkpoints(tmp_path, C.Mesh()).load()
    nn.clear_parameters()


def test_solvers_may_have_the_same_names_for_parameters_of_no_scope(tmp_path: Path) -> None:
    nn.clear_parameters()
    solvers, params = {}, {}
    for k, name in enumerate(("critic", "generator")):
        params[name] = nn.Variable.from_numpy_array(np.full(2, k), need_grad=True)
        solvers[name] = S.Adam()
        solvers[name].set_parameters({"w": params[name]})
    (tmp_path / ".step-00000007.parts").mkdir()  # of a job that was killed
    (tmp_path / ".step-00000006.old").mkdir()
    checkpoints = C.Checkpoints(tmp_path, C.Mesh(), solvers)
    for _ in range(2):  # the second replaces the first
        checkpoints.save(8)
    for v in params.values():
        v.d = 9
    checkpoints.load()
    assert [v.d.tolist() for v in params.values()] == [[0, 0], [1, 1]]
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000008"]


def test_a_parameter_of_two_stages_is_read_by_one_rank(tmp_path: Path) -> None:
    code = """
    import nnl.parametric_functions as PF
    import nnl.solvers as S

    def first(h):
        return F.affine(h, PF.get_parameter_or_create("table", (3, 3), np.arange(9.0)))

    def train(mesh, level):
        nn.clear_parameters()
        p = C.Pipeline(
            mesh, [first, first], lambda y, t: F.mean((y - t) ** 2), (4, 3), (4, 3), 2, ["table"]
        )
        solver = S.Sgd(0.1)
        solver.set_parameters(nn.get_parameters())
        if level:
            C.shard(solver, mesh, level, outputs=p.outputs)
        return solver, C.Checkpoints(FOLDER, mesh, solver)
    """.replace("FOLDER", repr(str(tmp_path / "saved")))
    import textwrap

    code = textwrap.dedent(code.replace("np.arange(9.0)", "np.arange(9.0).reshape(3, 3)"))
    run(tmp_path, 2, code + "train(C.Mesh(pipe=2), 0)[1].save(1)\n")
    load = """
checkpoints = train(MESH, LEVEL)[1]
(table,) = nn.get_parameters().values()
table.d = 0
checkpoints.load()
assert table.d.sum() in WANTED
"""
    cases = [("C.Mesh()", "0", 1), ("C.Mesh(shard=2)", "3", 2)]
    for mesh, level, n in cases:
        now = load.replace("MESH", mesh).replace("LEVEL", level).replace("WANTED", "(36, 10, 26)")
        run(tmp_path, n, code + now)


def test_a_rank_that_cannot_write_is_named_on_all(tmp_path: Path) -> None:
    code = """
    from nnl.core.parameters import safetensors
    w = nn.Variable.from_numpy_array(np.ones(4, np.float32), need_grad=True)
    nn.parameter.set_parameter("w", w)
    checkpoints = C.Checkpoints(FOLDER, C.Mesh(data=2))
    checkpoints.save(1)
    usual = safetensors.save
    def full(*args):
        raise OSError(28, "No space left on device")
    def worse(*args):
        raise ValueError("of another kind")
    for failure, text in (
        (full, "rank 1: OSError: [Errno 28] No space left"),
        (worse, "rank 1: ValueError: of another kind"),
    ):
        if rank == 1:
            safetensors.save = failure
        try:
            checkpoints.save(2)
        except OSError as e:
            assert "the end of Checkpoints.save(2): rank 0: OSError: no file of rank 1" in str(e), e
            assert text in str(e), e
        else:
            raise AssertionError
        assert checkpoints.steps() == [1]
    safetensors.save = usual
    checkpoints.save(2)
    assert checkpoints.steps() == [1, 2]
    """.replace("FOLDER", repr(str(tmp_path / "saved")))
    _, out, err = finish(start(tmp_path, 2, code))
    assert not err, err


def refuse(*args: object) -> int:
    raise OSError(errno.EINVAL, "Invalid argument")


def test_a_copy_is_written_past_the_systems_memory_or_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.numpy import load_file

    arrays = {
        "a": np.arange(5000, dtype=np.float32)[::2],
        "b": np.full((3, 1), 7, np.int64),
        "none": np.zeros((0, 2), np.float16),
        "scalar": np.array(2.5),
    }
    path, meta = tmp_path / "x.safetensors", {"k": "v"}
    data = safetensors.packed(path, arrays, meta)
    assert data.ctypes.data % mmap.PAGESIZE == 0
    assert data.size % mmap.PAGESIZE > 0 < data.size // mmap.PAGESIZE

    def check() -> None:
        safetensors.write_packed(path, data)
        found = load_file(path)
        assert found.keys() == arrays.keys()
        for name, a in arrays.items():
            np.testing.assert_array_equal(found[name], a)
        path.unlink()

    check()
    monkeypatch.setattr(os, "O_DIRECT", 0, raising=False)  # so that pwrite is come to
    usual = os.pwrite

    def within_a_page(file: int, some: Any, at: int) -> int:
        return usual(file, some[:100], at) if at % 512 == 0 else refuse()

    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for pwrite in (refuse, within_a_page):
        monkeypatch.setattr(os, "pwrite", pwrite)
        check()
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left on device.*x.safetensors"):
        safetensors.write_packed(path, data)
    assert not [*tmp_path.iterdir()]
    monkeypatch.delattr(os, "O_DIRECT")
    check()
