# SPDX-License-Identifier: Apache-2.0
"""One file of programs, run by several threads at the same time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.ext import native
from nnl.graph.program.turns import Turns
from nnl.graph.saving.files import Programs

CONTEXTS = ["numpy", "cpu"] if native.library() is not None else ["numpy"]
THREADS, RUNS = 8, 40


@pytest.fixture(autouse=True)
def _often_switching() -> Any:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def in_threads(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """What the calls return, each in a thread of its own that begins when all are there."""
    barrier = threading.Barrier(count)

    def begin(k: int) -> Any:
        barrier.wait(30)
        return work(k)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def network(x: nn.Variable) -> nn.Variable:
    h = PF.convolution(x, 16, (3, 3), pad=(1, 1), name="conv")
    return PF.affine(F.tanh(PF.affine(F.relu(h), 8, name="fc")), 3, name="out")


def saved(path: Path) -> Programs:
    x = nn.Variable((2, 3, 8, 8))
    nn.save_program(path, {"y": network(x)}, {"x": x})
    return nn.load_program(path)


@pytest.mark.parametrize("backend", CONTEXTS)
def test_each_thread_gets_its_own_answers(backend: str, tmp_path: Path) -> None:
    found = saved(tmp_path / "a.nnlp")
    xs = np.random.default_rng(0).normal(size=(THREADS, 2, 3, 8, 8)).astype(np.float32)
    with nn.context_scope(nn.Context([f"{backend}:float"])):
        want = [nn.load_program(found.where).run(x=x)["y"] for x in xs]

    def work(k: int) -> int:
        with nn.context_scope(nn.Context([f"{backend}:float"])):
            return sum((found.run(x=xs[k])["y"] != want[k]).any() for _ in range(RUNS))

    assert in_threads(work) == [0] * THREADS


def test_each_thread_gets_its_own_answers_at_sizes_of_its_own(tmp_path: Path) -> None:
    """More sizes than plans stay: they are made and dropped while others run."""
    x, path = nn.Variable((2, 3, 8, 8)), tmp_path / "a.nnlp"
    nn.save_program(path, network, {"x": x}, open={"x": ("n", None, None, None)})
    found, xs = nn.load_program(path), np.random.default_rng(0).normal(size=(12, 3, 8, 8))
    want = [nn.load_program(path).run(x=xs[: n + 1])["y"] for n in range(12)]

    def work(k: int) -> int:
        sizes = np.random.default_rng(k).integers(1, 13, 12)
        return sum((found.run(x=xs[:n])["y"] != want[n - 1]).any() for n in sizes)

    assert in_threads(work) == [0] * THREADS


@pytest.mark.parametrize("backend", CONTEXTS)
def test_programs_that_write_take_turns_and_readers_see_whole_updates(
    backend: str, tmp_path: Path
) -> None:
    """All weights are equal after every step; a reader that sees others has met half of one."""
    x = nn.Variable((4,))
    w = [nn.parameter.get_parameter_or_create(f"w{k}", (4,), np.zeros(4)) for k in range(6)]
    solver = S.Sgd(1.0)
    solver.set_parameters(nn.get_parameters())

    @nn.compile
    def step(x: nn.Variable) -> nn.Variable:
        solver.zero_grad()
        loss = F.sum(sum(v * x for v in w))
        loss.forward()
        loss.backward()
        solver.update()
        return loss

    @nn.compile
    def look(x: nn.Variable) -> nn.Variable:
        return F.stack(*[v * x for v in w])

    with nn.context_scope(nn.Context([f"{backend}:float"])):
        x.d = 0
        step(x), look(x)
        saver = nn.graph.saving.saving.Saver()
        step.add_to(saver, "step"), look.add_to(saver, "look")
        saver.write(tmp_path / "a.nnlp")
    found = nn.load_program(tmp_path / "a.nnlp")

    def work(k: int) -> int:
        wrong = 0
        with nn.context_scope(nn.Context([f"{backend}:float"])):
            for _ in range(RUNS):
                if k % 2:
                    found.run("step", x=np.ones(4, np.float32))
                else:
                    seen = found.run("look", x=np.ones(4, np.float32))
                    (y,) = seen.values()
                    wrong += len(np.unique(y)) > 1
        return wrong

    assert in_threads(work) == [0] * THREADS
    steps = THREADS // 2 * RUNS
    for k in range(6):
        np.testing.assert_array_equal(found.arrays[f"w{k}"].data, np.full(4, -steps))


def test_runs_that_read_do_not_wait_for_each_other() -> None:
    turns, met = Turns(2), threading.Barrier(2)

    def read(k: int) -> None:
        with turns.shared():
            met.wait(30)  # broken if one waits for the other to end

    in_threads(read, 2)


def test_a_writer_is_alone_and_comes_to_its_turn_between_readers() -> None:
    turns, reading = Turns(3), []

    def work(k: int) -> int:
        most = 0
        for _ in range(100):
            with turns.shared() if k else turns.alone():
                most = max(most, len(reading))
                if k:
                    reading.append(k)
                    reading.pop()
        return most

    alone, *others = in_threads(work)
    assert alone == 0 and max(others) <= 2
