# SPDX-License-Identifier: Apache-2.0
"""Values that a recorded step computes again in backward, and those that it must keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.graph.recording.recording import Recording


def weights() -> list[nn.Variable]:
    rng = np.random.default_rng(0)
    values = [rng.normal(size=(4, 4)).astype(np.float32) for _ in range(2)]
    return [nn.Variable.from_numpy_array(v, need_grad=True) for v in values]


def chain(x: nn.Variable, w: nn.Variable) -> nn.Variable:
    h = F.exp(F.tanh(F.batch_matmul(x, w)))
    return F.sum(F.sin(h) * h)


def test_a_recorded_step_computes_marked_values_again() -> None:
    w, _ = weights()
    x = nn.Variable.from_numpy_array(np.ones((4, 4), np.float32))

    def step(x: nn.Variable) -> nn.Variable:
        with nn.recompute():
            loss = chain(x, w)
        loss.backward()
        return loss

    r = Recording(step, (x,), {})
    before = [n.op.name for n in r.nodes]
    names = [n.op.name for n in r.lay_out()]
    assert names.count("exp") == before.count("exp") + 1
    assert names.index("exp") < r.cut <= len(names) - 1 - names[::-1].index("exp")
    assert r.lay_out() is r.nodes and r.valid()


@pytest.mark.parametrize("context", ["numpy", "cpu"])
@pytest.mark.parametrize("case", ["update", "store", "view"])
def test_what_was_computed_from_an_array_that_is_written_is_kept(context: str, case: str) -> None:
    """Backward of the second loss reads what its forward has seen, not what is there now."""
    found: list[list[Any]] = []
    for again in (False, True):
        a, b = weights()
        solver = S.Sgd(0.5)
        solver.set_parameters({"a": a})

        def step(
            x: nn.Variable, again: Any = again, a: Any = a, b: Any = b, solver: Any = solver
        ) -> Any:
            with nn.recompute(again):
                first = chain(x, a)
                shown = F.reshape(a, (2, 8)) if case == "view" else a
                second = chain(F.reshape(shown, (4, 4)) * 2, b)
            first.backward()
            if case == "store":
                a.data *= 3.0
            else:
                solver.update()
            second.backward()
            return first, second

        with nn.context_scope(nn.Context([context])):
            run = nn.compile(step)
            x = nn.Variable.from_numpy_array(np.eye(4, dtype=np.float32))
            for _ in range(2):
                a.grad.zero()
                b.grad.zero()
                losses = run(x)
        found.append([a.d.copy(), a.g.copy(), b.g.copy(), *(v.d.copy() for v in losses)])
    for got, want in zip(found[1], found[0], strict=True):
        np.testing.assert_array_equal(got, want)
