# SPDX-License-Identifier: Apache-2.0
"""Networks cut into stages, against the same network in one graph of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

import nnl as nn
import nnl.communicators as C
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.communicators.parallel.pipeline import BACKWARD, FORWARD, cut, schedule
from tests.communicators.ranks import run

TRAIN = """
import nnl.parametric_functions as PF
import nnl.solvers as S

STEPS, B = 5, 16
rng = np.random.default_rng(0)
X = rng.normal(size=(STEPS, B, 6)).astype(np.float32)
T = rng.integers(0, 5, (STEPS, B, 1))

def layers(over):
    def wide(h, name):
        if over is None:
            up = F.tanh(PF.affine(h, 8, name=name + "u"))
            return PF.affine(up, 6, name=name + "d")
        up = F.tanh(C.affine(h, 8, over, name=name + "u"))
        return C.affine(up, 6, over, split="in", name=name + "d")
    def first(h):
        return wide(F.affine(h, PF.get_parameter_or_create("table", (6, 6), TABLE)), "a")
    def last(h):
        y = F.affine(h, PF.get_parameter_or_create("table", (6, 6), TABLE))
        return PF.affine(y, 5, name="head")
    return [first, lambda h: wide(h, "b"), lambda h: h + wide(h, "c"), last]

TABLE = rng.normal(size=(6, 6)).astype(np.float32)

def mean_loss(y, t):
    return F.mean(F.softmax_cross_entropy(y, t))

def alone():
    nn.clear_parameters()
    nn.seed(3)
    x, t = nn.Variable((B, 6)), nn.Variable((B, 1))
    h = x
    for layer in layers(None):
        h = layer(h)
    loss = mean_loss(h, t)
    solver = S.Adam(0.02)
    solver.set_parameters(nn.get_parameters())
    losses = []
    for i in range(STEPS):
        x.d, t.d = X[i], T[i]
        loss.forward(clear_no_need_grad=True), solver.zero_grad(), loss.backward(clear_buffer=True)
        norm = S.clip_grad_norm(solver, 0.4)
        solver.update()
        losses += [float(loss.d), float(norm.data)]
    return losses, {k: v.d.copy() for k, v in nn.get_parameters().items()}

def piped(mesh, chunks, batches, level):
    nn.clear_parameters()
    nn.seed(3)
    parts = C.balanced(layers(mesh.model), mesh.pipe.size * chunks, (B, 6), mesh)
    n, place = mesh.batch.size, mesh.batch.place
    b = B // n
    pipeline = C.Pipeline(mesh, parts, mean_loss, (b, 6), (b, 1), batches, tied=["table"])
    solver = S.Adam(0.02)
    params = nn.get_parameters()
    if mesh.pipe.size > 1:
        assert 0 < len(params) < 15, list(params)
    solver.set_parameters(params)
    grads = [v.grad for v in params.values()]
    if level:
        C.shard(solver, mesh, level, outputs=pipeline.outputs)
    losses = []
    for i in range(STEPS):
        solver.zero_grad()
        loss = pipeline.step(X[i, place * b : (place + 1) * b], T[i, place * b : (place + 1) * b])
        if n > 1 and level < 2:
            mesh.comm.all_reduce(grads, division=True, group=mesh.batch.group)
        norm = S.clip_grad_norm(solver, 0.4)
        solver.update()
        mean = nn.NdArray.from_numpy_array(np.array([loss]))
        if n > 1:
            mesh.comm.all_reduce(mean, division=True, group=mesh.batch.group)
        losses += [float(mean.data[0]), float(norm.data)]
    assert len(pipeline.outputs) <= chunks * (mesh.pipe.size + chunks), len(pipeline.outputs)
    return losses

want, end = alone()
assert abs(want[0] - want[-2]) > 1e-2
for mesh, chunks, batches, level in CASES:
    got = piped(mesh, chunks, batches, level)
    np.testing.assert_allclose(got, want, rtol=5e-4, err_msg=f"{mesh} {chunks} {batches} {level}")
    for k, v in nn.get_parameters().items():
        np.testing.assert_allclose(v.d, v.layout.cut(end[k]), atol=2e-3, err_msg=k)
"""


@pytest.mark.parametrize(
    ("n", "cases"),
    [
        (2, "[(C.Mesh(pipe=2), 1, 4, 0), (C.Mesh(pipe=2), 2, 4, 0)]"),
        pytest.param(1, "[(C.Mesh(), 1, 2, 0), (C.Mesh(), 4, 4, 0)]", marks=pytest.mark.long),
        pytest.param(
            4,
            "[(C.Mesh(pipe=4), 1, 8, 0), (C.Mesh(pipe=2, data=2), 1, 4, 0), "
            "(C.Mesh(pipe=2, data=2), 2, 2, 0), (C.Mesh(pipe=2, model=2), 2, 8, 0), "
            "(C.Mesh(pipe=2, shard=2), 1, 4, 1), (C.Mesh(pipe=2, shard=2), 2, 4, 3)]",
            marks=pytest.mark.long,
        ),
    ],
)
def test_stages_train_as_one_graph(tmp_path: Path, n: int, cases: str) -> None:
    run(tmp_path, n, TRAIN.replace("CASES", cases), seconds=120)


@pytest.mark.parametrize(
    ("ranks", "batches", "chunks"), [(2, 4, 1), (4, 8, 1), (3, 5, 1), (4, 8, 2)]
)
def test_a_schedule_can_run_and_waits_no_longer_than_it_must(
    ranks: int, batches: int, chunks: int
) -> None:
    """By simulation: a backward takes twice a forward. Source: arXiv:2104.04473, section 2.2."""
    orders = [schedule(ranks, p, batches, chunks) for p in range(ranks)]
    last = ranks * chunks - 1
    done: dict[tuple[str, int, int], float] = {}
    clock, at = [0.0] * ranks, [0] * ranks
    while any(a < len(o) for a, o in zip(at, orders, strict=True)):
        before = list(at)
        for p, order in enumerate(orders):
            while at[p] < len(order):
                kind, chunk, k = order[at[p]]
                s = chunk * ranks + p
                needs = (FORWARD, s - 1, k) if kind == FORWARD else (BACKWARD, s + 1, k)
                needs = (FORWARD, s, k) if kind == BACKWARD and s == last else needs
                if not (kind == FORWARD and s == 0) and needs not in done:
                    break
                clock[p] = max(clock[p], done.get(needs, 0.0)) + (1 if kind == FORWARD else 2)
                done[kind, s, k] = clock[p]
                at[p] += 1
        assert at != before, "it waits for itself"
    assert len(done) == 2 * batches * ranks * chunks
    work = 3 * batches * chunks
    assert max(clock) == pytest.approx(work + 3 * (ranks - 1))
    if chunks == 1:  # no more micro batches are on their way than ranks follow
        for p, order in enumerate(orders):
            on_way = most = 0
            for kind, *_ in order:
                on_way += 1 if kind == FORWARD else -1
                most = max(most, on_way)
            assert most == min(ranks - p, batches)


def test_cuts_balance_costs() -> None:
    assert cut([1, 1, 1, 1], 2) == [2]
    assert cut([5, 1, 1, 1, 1, 1], 2) == [1]
    assert cut([1, 2, 3, 4, 5, 6, 7, 8, 9], 3) == [5, 7]  # 15, 13, 17
    assert cut([3], 1) == []


def test_what_is_wrong_with_a_pipeline_is_said(tmp_path: Path) -> None:
    mesh, nothing = C.Mesh(), (lambda h: h)
    for arguments, text in (
        (([], F.mean, (4, 2), (4, 1), 2), "0 stages, wanted a multiple of the 1 ranks of pipe"),
        (([F.tanh], F.mean, (4, 2), (4, 1), 3), "micro_batches is 3, wanted a number that divides"),
        (([F.tanh], F.mean, (4, 2), (2, 1), 2), "micro_batches is 2, wanted a number that divides"),
    ):
        with pytest.raises(ValueError, match=text):
            C.Pipeline(mesh, *arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tied names 'w', which no stage uses"):
        C.Pipeline(mesh, [F.tanh], lambda y, t: F.mean(y), (4, 2), (4, 1), 2, tied=["w"])
    with pytest.raises(ValueError, match="balanced: 1 layers, wanted at least the 2 stages"):
        C.balanced([nothing], 2, (4, 2), mesh)
    code = """
    import nnl.parametric_functions as PF
    layer = lambda h: PF.affine(h, 3, name="same")
    mean = lambda y, t: F.mean(y)
    def said(call):
        try:
            call()
        except Exception as e:
            return str(e)
    mesh = C.Mesh(pipe=2)
    text = said(lambda: C.Pipeline(mesh, [layer, layer], mean, (4, 3), (4, 1), 2))
    if rank == 1:
        assert "stage 1 uses the parameter 'same/affine/" in text and "of stage 0" in text, text
    nn.clear_parameters()
    text = said(lambda: C.Pipeline(mesh, [F.tanh] * 3, mean, (4, 3), (4, 1), 2))
    assert "3 stages, wanted a multiple of the 2 ranks of pipe" in text
    text = said(lambda: C.Pipeline(mesh, [F.tanh] * 4, mean, (4, 3), (4, 1), 1))
    assert "micro_batches is 1, wanted a multiple of the 2 ranks" in text
    """
    run(tmp_path, 2, code)


def test_stages_exchange_what_the_context_computes_in(tmp_path: Path) -> None:
    code = """
    import nnl.parametric_functions as PF

    def stage(name):
        return lambda h: F.tanh(PF.affine(h, 4, name=name))

    x, t = np.linspace(-1, 1, 16).reshape(4, 4), np.zeros((4, 4))
    for kind, tolerance in (("float", 1e-6), ("double", 1e-14), ("half", 2e-3), ("bfloat16", 1e-2)):
        nn.set_default_context(nn.Context(["cpu:" + kind]))
        nn.clear_parameters()
        nn.seed(1)
        h = nn.Variable.from_numpy_array(x)
        want = F.mean((stage("b")(stage("a")(h)) - nn.Variable.from_numpy_array(t)) ** 2)
        want.forward()
        nn.clear_parameters()
        nn.seed(1)
        p = C.Pipeline(
            C.Mesh(pipe=2), [stage("a"), stage("b")], lambda y, t: F.mean((y - t) ** 2),
            (4, 4), (4, 4), 2,
        )
        np.testing.assert_allclose(p.step(x, t), float(want.d), rtol=tolerance)
    """
    run(tmp_path, 2, code)


def test_a_pipeline_of_one_rank_is_the_network() -> None:
    nn.clear_parameters()
    pipeline = C.Pipeline(
        C.Mesh(), [lambda h: PF.affine(h, 2)], lambda y, t: F.mean((y - t) ** 2), (2, 3), (2, 2), 1
    )
    with pytest.raises(ValueError, match="Pipeline.step: x has no micro batch 0"):
        pipeline.step()
    nn.clear_parameters()


def test_the_norm_counts_stages_without_gradients(tmp_path: Path) -> None:
    code = """
    import nnl.parametric_functions as PF
    import nnl.solvers as S
    stages = [lambda h: PF.affine(h, 2, name="a"), lambda h: PF.affine(h, 2, name="b")]
    C.Pipeline(C.Mesh(pipe=2), stages, lambda y, t: F.mean(y), (2, 2), (2, 1), 1)
    solver = S.Sgd()
    solver.set_parameters(nn.get_parameters())
    if rank == 1:
        for v in nn.get_parameters().values():
            v.g = 2
    norm = S.clip_grad_norm(solver, 1.0)  # (4 + 2) elements of 2
    assert abs(float(norm.data) - 24 ** 0.5) < 1e-5
    if rank == 1:
        assert abs(nn.get_parameters()["b/affine/b"].g[0] - 2 / 24 ** 0.5) < 1e-5
    """
    run(tmp_path, 2, code)
