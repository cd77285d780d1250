# SPDX-License-Identifier: Apache-2.0
"""Paths that never came before run by the plans of blocks that did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.coexec.plans.paths import Paths
from nnl.ext.native import library
from tests.coexec.random_programs import outcome
from tests.coexec.steps import variable

CONTEXTS = ["numpy:float", *(["cpu:float"] if library() is not None else [])]


@pytest.fixture(autouse=True)
def only_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks get plans when they come again, and whole paths never do."""
    monkeypatch.setattr("nnl.coexec.policy.payoff.PLAN", 0.0)
    monkeypatch.setattr(Paths, "_pays", lambda self, end, path, given: end.plan is not None)


class Learner:
    """A step with a loop and branches: `rounds` of a cell, then one layer of two in each place."""

    def __init__(self, rounds: list[int], branches: list[tuple[bool, ...]]) -> None:
        nn.clear_parameters()
        nn.seed(3)
        self.rounds, self.branches = rounds, branches
        self.solver = S.Adam(0.01)

    def step(self, k: int) -> nn.Variable:
        h = x = variable(3, 4, seed=k)
        for _ in range(self.rounds[k]):
            h = F.tanh(PF.affine(h, 4, name="cell"))
        taken = self.branches[k]
        if taken[0]:
            h = F.relu(PF.affine(h, 4, name="a0"))
        else:
            h = F.sigmoid(PF.affine(h, 4, name="b0"))
        if taken[1]:
            h = F.relu(PF.affine(h, 4, name="a1"))
        else:
            h = F.sigmoid(PF.affine(h, 4, name="b1"))
        if taken[2]:
            h = h + x
        loss = F.mean((h - x) ** 2)
        if len(self.solver.get_parameters()) < len(nn.get_parameters()):
            self.solver.set_parameters(nn.get_parameters(), reset=False)
        self.solver.zero_grad()
        loss.backward(clear_buffer=True)
        self.solver.update()
        return loss

    def run(self, wrap: Any, context: str) -> tuple[list[Any], Any]:
        with nn.context_scope(nn.Context([context])), nn.auto_forward():
            step = wrap(self.step)
            losses = [float(step(k).d) for k in range(len(self.rounds))]
            values = [v.d.copy() for v in nn.get_parameters().values()]
        return [*losses, *values], step


def alike(rounds: list[int], branches: list[tuple[bool, ...]], context: str) -> Any:
    """The report of steps whose results are those of dynamic mode."""
    wanted, _ = Learner(rounds, branches).run(lambda f: f, context)
    found, step = Learner(rounds, branches).run(nn.coexecute, context)
    for a, b in zip(found, wanted, strict=True):
        if context.startswith("numpy"):
            np.testing.assert_array_equal(a, b)
        else:  # fused functions round otherwise
            np.testing.assert_allclose(a, b, 1e-3, 1e-5)
    return step.report()


@pytest.mark.parametrize("context", CONTEXTS)
def test_numbers_of_rounds_that_never_came_run_by_the_plan_of_one(context: str) -> None:
    known = alike([2, 3, 4, 2, 3], [(True, True, False)] * 5, context)
    more = alike([2, 3, 4, 2, 3, 9, 17, 5, 30, 12], [(True, True, False)] * 10, context)
    assert known.block_plans == more.block_plans > 0
    assert (more.plans, more.traces, more.fallbacks) == (0, 1, [])
    # forward of a round are two calls, backward four or five, sums of gradients two
    assert more.calls_by_blocks - known.calls_by_blocks > 5 * sum([9, 17, 5, 30, 12])


@pytest.mark.parametrize("context", CONTEXTS)
def test_combinations_of_branches_that_never_came_run_by_the_plans_of_branches(
    context: str,
) -> None:
    combinations = [(bool(n & 1), bool(n & 2), bool(n & 4)) for n in (0, 7, 0, 7, 1, 2, 4, 6, 5, 3)]
    known = alike([3] * 7, combinations[:7], context)
    report = alike([3] * 10, combinations, context)
    assert report.plans == 0
    # what is read of a block, or where one ends, may be new once more
    assert report.block_plans <= known.block_plans + 2
    assert report.calls_by_blocks - known.calls_by_blocks > 3 * 20


@pytest.mark.parametrize("context", CONTEXTS)
def test_nothing_is_written_over_an_input_of_which_a_view_is_kept(context: str) -> None:
    x = nn.Variable.from_numpy_array(np.full(6, 3.0, np.float32))

    def step(rounds: int) -> list[nn.Variable]:
        h, kept = x, []
        for _ in range(rounds):
            kept.append(F.reshape(h, (2, 3)))
            h = F.reshape(kept[-1], (6,)) * 3.0
        return kept

    run = nn.coexecute(step)
    with nn.context_scope(nn.Context([context])), nn.auto_forward():
        for rounds in (2, 3, 4, 5, 6):
            values = [r.d[0, 0] for r in run(rounds)]
            assert values == [3.0**k for k in range(1, 1 + rounds)]
    assert run.report().block_plans > 0


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_profile_has_the_kernels_of_blocks(context: str) -> None:
    learner = Learner([2, 3, 4, 2, 3, 5], [(True, True, False)] * 6)
    step = nn.coexecute(learner.step)
    with nn.context_scope(nn.Context([context])), nn.auto_forward():
        for k in range(5):
            step(k)
        assert step.report().block_plans > 0
        with nn.profile() as profile:
            for k in range(4):
                step(k)
    assert [e.op for e in profile.events].count("affine") == 2 + 3 + 4 + 2 + 4 * 2


def test_blocks_are_the_longest_chains() -> None:
    """Of the graph whose loops are folded, and of the graph with its cycles."""
    branches = [(bool(n & 1), bool(n & 2), bool(n & 4)) for n in range(8)] * 2
    learner = Learner([2, 3] * 8, branches)
    _, step = learner.run(nn.coexecute, "numpy:float")
    report = step.report()
    found = set()
    for place in _places(report._paths.root):
        pieces = place.pieces
        if pieces is not None and pieces.version == report._paths.blocks.version:
            for piece in pieces.pieces:
                found.add(tuple([c.op.name for c in pieces.calls[piece.begin : piece.end]]))
    wanted = set()
    for dag in _dags(report.graph.body):
        for chain in _chains(dag):
            ops = tuple([n.op for n in chain if n.op])
            if len(ops) == len(chain):
                wanted.add(ops)
    forward = {ops for ops in wanted if not {"backward", "mean"} & {*ops}}
    assert {("affine", "tanh"), ("affine", "relu"), ("affine", "sigmoid")} <= forward
    assert forward <= found


def _chains(dag: Any) -> Iterator[list[Any]]:
    """Nodes that always come together, in the order they come in."""
    for node in dag.nodes:
        if len(node.before) == 1 and len(next(iter(node.before)).after) == 1:
            if next(iter(node.before)) is not dag.start:
                continue  # it goes on a chain
        chain = [node]
        while len(chain[-1].after) == 1:
            (after,) = chain[-1].after
            if after is dag.end or len(after.before) != 1:
                break
            chain.append(after)
        yield chain


def _places(root: Any) -> list[Any]:
    found = [root]
    for place in found:
        found += place.after.values()
        found += [p.place for passes in place.passes.values() for p in passes]
    return found


def _dags(dag: Any) -> list[Any]:
    return [dag, *[d for n in dag.nodes if n.body is not None for d in _dags(n.body)]]


@pytest.mark.parametrize("context", CONTEXTS)
def test_where_there_are_too_many_plans_all_begin_again(
    context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnl.coexec.plans.blocks.MOST", 2)
    report = alike([2, 3] * 5, [(bool(k % 2), k % 3 == 0, False) for k in range(10)], context)
    assert len(report._paths.blocks.planned) <= 2 < report.block_plans


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("context", CONTEXTS)
def test_an_error_in_the_plan_of_a_block_names_the_line(context: str, writes: bool) -> None:
    w, mean, var = variable(3, 2), variable(1, 2), variable(1, 2)
    beta, gamma = variable(1, 2, seed=1), variable(1, 2, seed=2)

    def look_up(rows: list[int]) -> Any:
        before = w * 2
        for row in rows:
            h = F.embed(nn.Variable.from_numpy_array(np.array([row])), w)
            if writes:
                h = F.batch_normalization(h, beta, gamma, mean, var, axes=[1])
            h = F.tanh(h) + 1.0
        return before, h

    step = nn.coexecute(look_up)
    with nn.context_scope(nn.Context([context])), nn.auto_forward():
        for n in (2, 3, 4, 5):
            step([0] * n)
        assert step.report().calls_by_blocks > 0
        with pytest.raises(ValueError, match=r"embed \(test_blocks.py:\d+\).*index 7"):
            step([0, 1, 7, 2, 1, 1])
        before, h = step([2] * 7)
        np.testing.assert_array_equal(before.d, w.d * 2)
        if not writes:
            np.testing.assert_allclose(h.d, np.tanh(w.d[2:3]) + 1, 1e-6)


@pytest.mark.parametrize("beginning", (0, 30))
def test_steps_that_are_always_new_are_not_followed_unless_part_of_them_has_a_plan(
    beginning: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # paths have plans, but not at once
    rng = np.random.default_rng(0)
    x = variable(2, 3)

    def step(coins: Any) -> nn.Variable:
        h = x
        for _ in range(beginning):
            h = F.tanh(F.affine(h, w)) + h
        if beginning:
            h = x * float(F.mean(h).d)
        for coin in coins:
            h = F.tanh(h) if coin else F.sigmoid(h)
        return h

    w = variable(3, 3)
    run = nn.coexecute(step)
    with nn.context_scope(nn.Context(["numpy:float"])), nn.auto_forward():
        for k in range(400):
            coins = rng.integers(0, 2, 20)
            np.testing.assert_array_equal(run(coins).d, step(coins).d)
            if k in (10, 300):  # followed, and in the first case not
                with pytest.raises(TypeError, match="iterable"):
                    run(None)
    report = run.report()
    assert report.steps == 402 and report.left > 340
    # of the last 200 steps, all or two of a trial
    assert report.segments > 550 if beginning else report.segments < 60


def test_the_report_says_which_blocks_have_plans() -> None:
    report = alike([2, 3, 4], [(True, False, True)] * 3, "numpy:float")
    assert f"{report.calls_by_blocks} calls ran in the plans of" in str(report)
    assert "a plan for the block affine cell (test_blocks.py:" in report.explain()


def check(seed: int, context: str) -> int:
    """A random program with as many steps as its loops have numbers of rounds; calls by blocks."""
    steps: list[Any] = []

    def wrap(f: Any) -> Any:
        steps.append(nn.coexecute(f))
        return steps[0]

    wanted = outcome(seed, 9, lambda f: f, context)
    found = outcome(seed, 9, wrap, context)
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        where = f"program {seed}, value {i}"
        if context.startswith("numpy"):
            np.testing.assert_array_equal(a, b, where)
        else:
            np.testing.assert_allclose(a, b, 1e-2, 1e-2, err_msg=where)
    return int(steps[0].report().calls_by_blocks)


@pytest.mark.parametrize("context", CONTEXTS)
def test_random_programs_by_blocks(context: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR", "nnl")
    assert sum([check(seed, context) for seed in range(60)]) > 1000


@pytest.mark.long
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("first", range(30000, 34000, 500))
def test_many_random_programs_by_blocks(
    first: int, context: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("ERROR", "nnl")
    for seed in range(first, first + 500):
        check(seed, context)


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_block_that_writes_what_it_also_reads_as_a_view_falls_apart(context: str) -> None:
    """In its plan the view would be an input of its own, which may be read after the write."""
    beta, gamma, x = variable(1, 4), variable(1, 4, seed=1), variable(3, 4, seed=2)

    def run(wrap: Any) -> tuple[list[Any], Any]:
        mean, var = variable(1, 4, seed=3), nn.Variable.from_numpy_array(np.ones((1, 4), "f"))

        def f(k: int) -> tuple[nn.Variable, ...]:
            view = F.reshape(mean, (4,))
            h = F.tanh(x) if k % 2 else F.sigmoid(x)
            before = view * 2.0
            y = F.batch_normalization(h, beta, gamma, mean, var, decay_rate=0.5)
            return y, F.tanh(before + 1.0), F.exp(view)

        step = wrap(f)
        found = [v.d.copy() for k in (0, 1) * 4 for v in step(k)]
        return [*found, mean.d.copy(), var.d.copy()], step

    with nn.context_scope(nn.Context([context])), nn.auto_forward():
        (wanted, _), (found, step) = run(lambda f: f), run(nn.coexecute)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)
    assert step.report().calls_by_blocks == 0  # after the branch each call is by itself


def test_paths_leave_a_block_that_has_fallen_apart() -> None:
    x = variable(2, 3)

    def step(branches: bool) -> nn.Variable:
        h = F.tanh(x)
        if branches:
            h = F.sin(h)
        return F.exp(h) * 2.0

    run = nn.coexecute(step)
    with nn.auto_forward():
        for _ in range(4):
            run(False)
        (block,) = run.report()._paths.blocks.planned
        assert [c.op.name for c in block.calls] == ["tanh", "exp", "mul_scalar"]
        runs = block.runs
        run(True)
        for _ in range(3):
            np.testing.assert_allclose(run(False).d, step(False).d, 1e-6)
    assert block.runs == runs  # it is tanh, and exp with the product, from now on
    assert [len(b.calls) for b in run.report()._paths.blocks.planned] == [3, 2]
