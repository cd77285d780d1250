# SPDX-License-Identifier: Apache-2.0
"""All solvers against NNabla, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.solvers as S
from tests.interop.bridge import Nnabla
from tests.solvers.cases import CASES, IDS, OURS, RATE, gradients

pytestmark = pytest.mark.interop

STEPS = 20
SKIPPED = (4, 9)  # steps at which parameter b has no gradient
THEIRS = [i for i, (name, _) in enumerate(CASES) if name not in OURS]


@pytest.mark.parametrize(("name", "kw"), [CASES[i] for i in THEIRS], ids=[IDS[i] for i in THEIRS])
def test_20_steps_agree(nnabla: Nnabla, name: str, kw: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    weights = {k: rng.normal(size=(3, 4)).astype(np.float32) for k in ("x/a", "b")}
    given = gradients(2 * STEPS, 3, 4).astype(np.float32).reshape(STEPS, 2, 3, 4)
    grads = [{"x/a": g[0], "b": None if i in SKIPPED else g[1]} for i, g in enumerate(given)]
    decay = [0.05 if i % 3 == 0 else None for i in range(STEPS)]
    rate = kw.get(RATE.get(name, "lr"), 0.01)
    calls = [
        [["clip_grad_by_norm", 2.0], ["scale_grad", 0.5], ["set_learning_rate", rate / (1 + i / 9)]]
        for i in range(STEPS)
    ]
    settings = {RATE.get(name, "lr"): rate, **kw}
    steps = nnabla.solver(name, weights, grads, weight_decay=decay, calls=calls, **settings)

    variables = {k: nn.Variable.from_numpy_array(w) for k, w in weights.items()}
    solver = getattr(S, name)(**settings)
    solver.set_parameters(variables)
    for g, r, extra, wanted in zip(grads, decay, calls, steps, strict=True):
        for k, v in variables.items():
            if g[k] is None:
                v.grad.zero()
            else:
                v.g = g[k]
        if r is not None:
            solver.weight_decay(r)
        for method, *args in extra:
            getattr(solver, method)(*args)
        solver.update()
        states = solver.get_states()
        for k, v in variables.items():
            # NNabla rounds hyperparameters to float32: 1 - 0.999 moves by 1.3e-5 of itself.
            # Its amsgrad variant of AdaBelief adds eps to the maximum instead of to s.
            atol = 1e-4 if kw.get("amsgrad") else 2e-6
            np.testing.assert_allclose(v.d, wanted.weights[k], rtol=2e-5, atol=atol)
            if name != "Lars":  # there NNabla's update() leaves the decay in the gradient
                np.testing.assert_allclose(v.g, wanted.grads[k], rtol=1e-5, atol=1e-6)
            assert states[k].t == wanted.t[k]
            assert sorted(states[k].pstate) == sorted(wanted.states[k])
            for n, s in states[k].pstate.items():
                np.testing.assert_allclose(s.d, wanted.states[k][n], rtol=5e-5, atol=1e-6)
        assert solver.learning_rate() == pytest.approx(wanted.learning_rate)
