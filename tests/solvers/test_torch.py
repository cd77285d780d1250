# SPDX-License-Identifier: Apache-2.0
"""The rules that PyTorch has too, over 20 steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.solvers as S
from tests.solvers.cases import gradients

torch = pytest.importorskip("torch")

# eps is inside the bias correction there and outside here: the same where it is 0
CASES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("Sgd", {"lr": 0.1}, "SGD", {"lr": 0.1}),
    ("Momentum", {"lr": 0.1}, "SGD", {"lr": 0.1, "momentum": 0.9}),
    ("Nesterov", {"lr": 0.1}, "SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("Adagrad", {"lr": 0.1}, "Adagrad", {"lr": 0.1, "eps": 1e-8}),
    ("Adadelta", {}, "Adadelta", {"lr": 1.0, "rho": 0.95, "eps": 1e-6}),
    ("RMSprop", {"lr": 0.1}, "RMSprop", {"lr": 0.1, "alpha": 0.9, "eps": 1e-8}),
    ("Adam", {"alpha": 0.1, "eps": 0}, "Adam", {"lr": 0.1, "eps": 0}),
    ("Adamax", {"alpha": 0.1, "eps": 0}, "Adamax", {"lr": 0.1, "eps": 0}),
    (
        "AdamW",
        {"alpha": 0.1, "eps": 0, "wd": 0.1 * 0.3},
        "AdamW",
        {"lr": 0.1, "eps": 0, "weight_decay": 0.3},
    ),
]


@pytest.mark.parametrize(("name", "kw", "other", "other_kw"), CASES, ids=[c[0] for c in CASES])
def test_20_steps_agree_with_torch(
    name: str, kw: dict[str, Any], other: str, other_kw: dict[str, Any]
) -> None:
    w, grads = np.random.default_rng(0).normal(size=(3, 4)), gradients(20, 3, 4)
    with nn.context_scope(nn.Context(["cpu:double"])):
        v = nn.Variable.from_numpy_array(w)
        solver = getattr(S, name)(**kw)
        solver.set_parameters({"w": v})
        p = torch.nn.Parameter(torch.tensor(w))
        optimizer = getattr(torch.optim, other)([p], **other_kw)
        for g in grads:
            v.g, p.grad = g, torch.tensor(g)
            solver.update()
            optimizer.step()
            # Adamax adds eps elsewhere and AdamW decays first: the same up to rounding
            np.testing.assert_allclose(v.d, p.detach().numpy(), rtol=1e-9, atol=1e-12)


def test_clipping_agrees_with_torch() -> None:
    g = gradients(1, 3, 4)[0].astype(np.float32)
    v, p = nn.Variable((3, 4)), torch.nn.Parameter(torch.zeros(3, 4))
    v.g, p.grad = g, torch.tensor(g)
    solver = S.Sgd()
    solver.set_parameters({"v": v})
    solver.clip_grad_by_norm(0.5)
    torch.nn.utils.clip_grad_norm_([p], 0.5)
    np.testing.assert_allclose(v.g, p.grad.numpy(), rtol=1e-5)


@pytest.mark.parametrize("context", ["numpy", "cpu", "cpu:bfloat16"])
@pytest.mark.parametrize("shape", [(6, 20), (20, 6)])
@pytest.mark.parametrize(
    ("kw", "other"),
    [
        ({}, {"adjust_lr_fn": "match_rms_adamw"}),
        ({"match": False, "nesterov": False, "wd": 0.0}, {"nesterov": False, "weight_decay": 0.0}),
    ],
)
def test_muon_goes_where_that_of_torch_goes(kw: Any, other: Any, shape: Any, context: str) -> None:
    """Its iteration is of bfloat16 there, so each step differs by its rounding."""
    if not hasattr(torch.optim, "Muon"):  # since 2.9
        pytest.skip("torch.optim.Muon is missing")
    w = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    v, p = nn.Variable.from_numpy_array(w), torch.nn.Parameter(torch.tensor(w))
    with nn.context_scope(nn.Context([context])):
        solver = S.Muon(0.02, **kw)
        solver.set_parameters({"w": v})
        optimizer = torch.optim.Muon([p], 0.02, **other)
        for g in gradients(10, *shape).astype(np.float32):
            v.g, p.grad = g, torch.tensor(g)
            solver.update()
            optimizer.step()
    want = p.detach().numpy()
    moved = np.linalg.norm(want - w)
    assert np.linalg.norm(v.d - want) < 0.02 * moved
    m = optimizer.state[p]["momentum_buffer"].numpy()
    np.testing.assert_allclose(solver.get_states()["w"].pstate["m"].d, m, rtol=1e-4, atol=1e-6)
