# SPDX-License-Identifier: Apache-2.0
"""Random imperative programs: what they read and keep must not depend on how they run.

    python -m tests.coexec.random_programs 20000 [--first 0] [--ways put_off,ahead,speculated]
    python -m tests.coexec.random_programs --steps 1000000

The first compares so many programs with dynamic mode bit by bit, on numpy: put off, ahead and
speculated by turns, these two by executors that are as early, as late or as odd as one can be. A
program that stands still for two minutes ends it with the stacks of all threads. The second runs
one program, and says what places and memory it has after each tenth of the steps.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import resource
import sys
from collections import Counter
from contextlib import ExitStack
from typing import Any

import numpy as np

import nnl as nn
import nnl.functions as F
import nnl.solvers as S

SHAPE = (2, 3)
UNARY = (F.relu, F.tanh, F.sigmoid, lambda x: x * 0.5, lambda x: x + 0.25, lambda x: -x)
BINARY = (F.add2, F.sub2, F.mul2, F.maximum2)


class Stop(Exception):
    """What a program raises in the middle of a step."""


class Program:
    """Some statements, drawn from a seed, over named Variables; a step runs all of them.

    Attributes:
        seen: Everything that the program has read, in order.
        kept: Variables that it holds from step to step.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.statements = [self._statement(0) for _ in range(rng.integers(3, 12))]
        self.raises_at = rng.integers(1, 6) if rng.random() < 0.15 else -1
        self.clears = bool(rng.random() < 0.5)
        nn.seed(seed)
        self.x = nn.Variable.from_numpy_array(rng.normal(size=SHAPE).astype(np.float32))
        self.w = [nn.Variable(SHAPE, need_grad=True) for _ in range(2)]
        for w in self.w:
            w.d = rng.normal(size=SHAPE)
        self.solver = S.Adam(0.05) if rng.random() < 0.5 else S.Momentum(0.05)
        self.solver.set_parameters({f"w{i}": w for i, w in enumerate(self.w)})
        self.state = nn.NdArray(SHAPE)
        self.state.zero()
        self.seen: list[np.ndarray] = []
        self.kept: list[nn.Variable] = []
        self.view = self.x.d  # a numpy array that is held
        self.scale = 1.0

    def _statement(self, depth: int) -> tuple[Any, ...]:
        rng = self.rng
        kinds = ["unary", "unary", "binary", "binary", "param", "fetch", "keep", "kept", "random"]
        kinds += ["backward", "array", "write", "view", "item", "unlink", "scale", "grad", "copy"]
        kinds += ["twice"]
        if depth < 2:
            kinds += ["if", "loop", "coin"]
        kind = str(rng.choice(kinds))
        body: list[Any] = []
        if kind in ("if", "loop", "coin"):
            body = [self._statement(depth + 1) for _ in range(rng.integers(1, 4))]
        return kind, [int(n) for n in rng.integers(0, 1000, 3)], body

    def step(self, k: int) -> None:
        self.env = [self.x, self.w[0] * 1.0]
        self.count, self.k = 0, k
        self._run(self.statements)

    def _run(self, statements: list[tuple[Any, ...]]) -> None:
        for kind, n, body in statements:
            self.count += 1
            if self.count == self.raises_at and self.k % 3 == 2:
                raise Stop
            getattr(self, f"_{kind}")(n, body)

    def _get(self, n: int) -> Any:
        return self.env[n % len(self.env)]

    def _put(self, v: Any) -> None:
        self.env = [*self.env[-3:], v]

    def _see(self, value: Any) -> None:
        self.seen.append(np.array(value))

    # ---- statements ----

    def _unary(self, n: list[int], body: Any) -> None:
        self._put(UNARY[n[0] % len(UNARY)](self._get(n[1])))

    def _binary(self, n: list[int], body: Any) -> None:
        self._put(BINARY[n[0] % len(BINARY)](self._get(n[1]), self._get(n[2])))

    def _param(self, n: list[int], body: Any) -> None:
        self._put(self._get(n[0]) * self.w[n[1] % 2])

    def _fetch(self, n: list[int], body: Any) -> None:
        self._see(self._get(n[0]).d)

    def _keep(self, n: list[int], body: Any) -> None:
        if (self.k + n[0]) % 3 == 0:
            self.kept = [*self.kept[-2:], self._get(n[1])]

    def _kept(self, n: list[int], body: Any) -> None:
        if self.kept:
            self._put(F.tanh(self.kept[n[0] % len(self.kept)].unlinked(need_grad=False)))

    def _random(self, n: list[int], body: Any) -> None:
        x = self._get(n[0])
        self._put(F.dropout(x, 0.5) if n[1] % 2 else x + F.rand(0.0, 1.0, SHAPE))

    def _backward(self, n: list[int], body: Any) -> None:
        loss = F.mean(F.tanh(self._get(n[0])) * self.w[n[1] % 2])
        if n[2] % 3:
            self.solver.zero_grad()
        loss.backward(clear_buffer=self.clears)
        if n[2] % 2:
            self._see(self.w[0].g)
        if n[0] % 3 == 0:
            self.solver.weight_decay(0.1)
        if n[0] % 4 == 1:
            self.solver.clip_grad_by_norm(0.5)
        if n[2] % 5:
            self.solver.update()
        self.env = [self.x, F.broadcast(F.reshape(loss, (1, 1)), SHAPE)]

    def _twice(self, n: list[int], body: Any) -> None:
        h = F.tanh(self._get(n[0])) * self.w[n[1] % 2]
        y = h + 1.0
        z = y - h * h
        y.backward(clear_buffer=bool(n[0] % 7 == 0))
        if n[1] % 3 == 0:
            h.grad.data[...] += 1.0
        if n[0] % 7:
            z.backward(2.0, clear_buffer=bool(n[2] % 2))
        for v in (h, self.w[n[1] % 2]):
            self._see(v.g)

    def _array(self, n: list[int], body: Any) -> None:
        w = self.w[n[0] % 2]
        w.data -= 0.1 * w.data
        self.state += w.data * self._get(n[1]).data

    def _write(self, n: list[int], body: Any) -> None:
        self.x.d = self.x.d * 0.5 + n[0] / 1000 if n[1] % 2 else n[0] / 1000

    def _view(self, n: list[int], body: Any) -> None:
        self.view[n[0] % 2] += 0.125

    def _item(self, n: list[int], body: Any) -> None:
        v = self._get(n[0])
        self._put(F.concatenate(v[:, 1:], v[:, :1], axis=1))

    def _unlink(self, n: list[int], body: Any) -> None:
        self._put(self._get(n[0]).unlinked(need_grad=bool(n[1] % 2)))

    def _scale(self, n: list[int], body: Any) -> None:
        self.scale = 1.0 + (self.k % (1 + n[0] % 3)) / 4
        self._put(self._get(n[1]) * self.scale)

    def _grad(self, n: list[int], body: Any) -> None:
        y = F.sum(F.sigmoid(self._get(n[0])) * self.w[0])
        (g,) = nn.grad([y], [self.w[0]])
        self._put(g)

    def _copy(self, n: list[int], body: Any) -> None:
        if n[0] % 3 == 0:
            self.state.copy_from(self._get(n[1]).data)
        elif n[0] % 3 == 1:
            self.state.zero()
        else:
            v = F.reshape(self._get(n[1]), (3, 2))
            self._put(F.reshape(v, SHAPE))

    def _if(self, n: list[int], body: Any) -> None:
        if float(self._get(n[0]).d.sum()) > 0:
            self._run(body)

    def _loop(self, n: list[int], body: Any) -> None:
        for _ in range((self.k + n[0]) % 4):
            self._run(body)

    def _coin(self, n: list[int], body: Any) -> None:
        if (self.k * 7 + n[0]) % 3 == 0:
            self._run(body)


def outcome(seed: int, steps: int, wrap: Any, context: str) -> list[np.ndarray]:
    """All that a program has read in some steps, and what there is after them."""
    with ExitStack() as stack:
        stack.enter_context(nn.context_scope(nn.Context([context])))
        stack.enter_context(nn.auto_forward())
        program = Program(seed)
        step = wrap(program.step)
        for k in range(steps):
            try:
                step(k)
            except (Stop, ValueError) as e:
                # a number that varies is an input: mul2 instead of mul_scalar
                program._see(len(str(e).replace("_scalar", "2")))
            if k % 2:
                program._see(program.state.data)
        states = program.solver.get_states()
        for name, w in zip(states, program.w, strict=True):
            program._see(w.d)
            program._see(w.g)
            for v in states[name].pstate.values():
                program._see(v.d)
        for v in program.kept:
            program._see(v.d)
        program._see(F.rand(shape=(2,)).d)
        return program.seen


# ---- many of them ----

WAYS: dict[str, dict[str, Any]] = {
    "put_off": {"ahead": 0},
    "ahead": {"ahead": 1},
    "speculated": {"speculate": True},
}
STANDS_STILL = 120  # seconds


def same(f: Any) -> Any:
    return f


def compare(first: int, n: int, ways: list[str], stands_still: float = 0.0) -> Counter[str]:
    """Run programs, and count what has become of them; raises at the first difference.

    Args:
        stands_still: Seconds after which a program is taken for a deadlock. 0: never.
    """
    import pytest

    from tests.coexec.schedules import Schedule, use

    found: Counter[str] = Counter()
    reports: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        use(Schedule(first, "early late thread"), patch)
        patch.setattr("nnl.coexec.policy.watch.OFTEN", 0)  # whatever comes again has a plan
        patch.setattr("nnl.coexec.plans.expectations.TRUST", 1)
        patch.setattr("nnl.coexec.plans.expectations.MOST_REST", 0)
        for seed in range(first, first + n):
            if stands_still:
                faulthandler.dump_traceback_later(stands_still, exit=True)
            way = ways[seed % len(ways)]

            def wrap(f: Any, way: str = way) -> Any:
                step = nn.coexecute(f, **WAYS[way])
                reports.append(step.report())  # type: ignore[attr-defined]
                return step

            wanted = outcome(seed, 9, same, "numpy:float")
            values = outcome(seed, 9, wrap, "numpy:float")
            assert len(values) == len(wanted), f"program {seed}, {way}"
            for i, (a, b) in enumerate(zip(values, wanted, strict=True)):
                np.testing.assert_array_equal(a, b, f"program {seed}, {way}, value {i}")
            found["programs"] += 1
            found["values"] += len(values)
            for name in ("segments", "ahead", "speculated", "cancelled"):
                found[name] += getattr(reports[-1], name)
            reports.clear()
            if found["programs"] % 500 == 0:
                print(dict(found), flush=True)
    if stands_still:
        faulthandler.cancel_dump_traceback_later()
    return found


def run_long(steps: int) -> None:
    """Run one program for so many steps, and say what it has after each tenth."""
    x, t = nn.Variable((8, 4)), nn.Variable((8, 1))
    w = nn.Variable((4, 3), need_grad=True)
    w.d = 0.1
    solver = S.Adam(1e-3)
    solver.set_parameters({"w": w})
    rng = np.random.default_rng(0)

    def step(k: int) -> nn.Variable:
        h = F.dropout(F.affine(x, w), 0.1 + 0.1 * (k // 50 % 3))
        for _ in range(k // 20 % 5):
            h = F.tanh(h)
        loss = F.mean(F.softmax_cross_entropy(h, t))
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        solver.update()
        return loss

    steps_of = nn.coexecution(speculate=True)
    with nn.context_scope(nn.Context(["cpu:float"])), nn.auto_forward():
        for k in range(steps):
            x.d, t.d = rng.normal(size=(8, 4)), rng.integers(0, 3, (8, 1))
            with steps_of:
                loss = step(k)
            if k % 100 == 0:
                assert np.isfinite(float(loss.d))
            if (k + 1) % max(1, steps // 10) == 0:
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                print(f"{k + 1} steps, {steps_of._paths.size} places, {memory} kB", flush=True)
    print(steps_of.report())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("programs", type=int, nargs="?", default=0)
    parser.add_argument("--first", type=int, default=0, help="seed of the first program")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--steps", type=int, default=0, help="of one long program")
    args = parser.parse_args()
    logging.getLogger("nnl").setLevel(logging.ERROR)
    if args.programs:
        found = compare(args.first, args.programs, args.ways.split(","), STANDS_STILL)
        print("equal bit by bit:", dict(found))
    if args.steps:
        run_long(args.steps)


if __name__ == "__main__":
    sys.exit(main())
