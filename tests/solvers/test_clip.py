# SPDX-License-Identifier: Apache-2.0
"""Clipping by the norm of all gradients, in every mode, against PyTorch."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S

SHAPES = ((3, 4), (), (5,), (2, 2, 2), (2,))
WEIGHTS = [np.random.default_rng(i).normal(size=s).astype("f") for i, s in enumerate(SHAPES)]
LIMIT, RATE, STEPS = 2.0, 0.1, 4


def theirs(scale):
    torch = pytest.importorskip("torch")
    weights = [torch.nn.Parameter(torch.tensor(w)) for w in WEIGHTS]
    norms = []
    for _ in range(STEPS):
        for w in weights:
            w.grad = None
        sum((w * w).sum() * scale for w in weights[:-1]).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(weights, LIMIT)))
        torch.optim.SGD(weights, RATE).step()
    return norms, [w.detach().numpy() for w in weights]


@pytest.mark.parametrize("scale", [0.01, 50.0])
@pytest.mark.parametrize("mode", ["static", "dynamic", "compiled", "coexecuted"])
def test_all_gradients_are_scaled_by_one_factor(mode, scale):
    weights = [nn.Variable.from_numpy_array(w, need_grad=True) for w in WEIGHTS]
    solver = S.Sgd(RATE)
    solver.set_parameters({str(i): w for i, w in enumerate(weights)})

    def step():
        loss = F.sum(weights[0] * weights[0]) * scale
        for w in weights[1:-1]:  # the last one gets no gradient
            loss = loss + F.sum(w * w) * scale
        loss.forward()
        solver.zero_grad()
        loss.backward()
        norm = S.clip_grad_norm(solver, LIMIT)
        solver.update()
        return norm

    run = {"compiled": nn.compile, "coexecuted": nn.coexecute}.get(mode, lambda f: f)(step)
    with nn.auto_forward(mode in ("dynamic", "coexecuted")):
        norms = []
        for _ in range(STEPS):
            n = run()
            norms.append(float(n.d if isinstance(n, nn.Variable) else n.data))
    want, after = theirs(scale)
    np.testing.assert_allclose(norms, want, rtol=1e-5)
    for w, v in zip(weights, after, strict=True):
        np.testing.assert_allclose(w.d, v, rtol=1e-5, atol=1e-7)


def test_what_is_no_parameter_and_no_norm():
    w = nn.Variable((2,), need_grad=True)
    w.grad.zero()
    assert S.clip_grad_norm({"w": w}, 1).data == 0 and w.grad.zeroing
    w.g = [3, 4]
    assert S.clip_grad_norm([w, w], 10).data == 5  # a variable counts once
    for parameters, limit, text in (
        ([1], 1, "clip_grad_norm: parameters holds 1, wanted a solver or Variables"),
        (None, 1, "clip_grad_norm: parameters holds None, wanted a solver or Variables"),
        (w, 0, "clip_grad_norm: max_norm is 0, wanted a finite number > 0"),
        (w, np.nan, "clip_grad_norm: max_norm is nan, wanted a finite number > 0"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            S.clip_grad_norm(parameters, limit)
    with pytest.raises(AttributeError, match="did you mean nnl.solvers.clip_grad_norm?"):
        nn.clip_grad_norm_  # noqa: B018
    with pytest.raises(AttributeError, match=r"write S.clip_grad_norm\(solver, max_norm\)"):
        S.Sgd().clip_grad_norm_  # noqa: B018
