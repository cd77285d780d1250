# SPDX-License-Identifier: Apache-2.0
"""Experts on several ranks against each sample going through its experts in numpy and one graph."""

from __future__ import annotations

from pathlib import Path

import pytest

import nnl as nn
import nnl.communicators as C
from nnl.core.arrays.spec import ShapeError
from tests.communicators.ranks import run

EXPERTS = """
N, E, H, X, K = 8, 5, 6, 4, 2
rng = np.random.default_rng(0)
INPUT, GY = rng.normal(size=(2, N, E)).astype(np.float32)

def alone(p, x, dropped=()):
    "Every sample through every expert, weighted by 0 where it does not go."
    scores = F.softmax(F.affine(x, p["router"]), axis=1)
    scores.forward()
    best = np.argsort(-scores.d, axis=1)[:, :K]
    mask = np.zeros((N, X), np.float32)
    np.put_along_axis(mask, best, 1, axis=1)
    chosen = scores * nn.Variable.from_numpy_array(mask)
    gates = chosen / F.sum(chosen, axis=1, keepdims=True)
    keep = np.ones((N, X), np.float32)
    for n, e in dropped:
        keep[n, e] = 0
    gates = gates * nn.Variable.from_numpy_array(keep)
    every = F.broadcast(F.reshape(x, (1, N, E)), (X, N, E))
    h = F.gelu(F.batch_matmul(every, p["W1"]) + p["b1"])
    h = F.batch_matmul(h, p["W2"]) + p["b2"]
    y = F.sum(h * F.reshape(F.transpose(gates, (1, 0)), (X, N, 1)), axis=0)
    share = np.bincount(best[:, 0], minlength=X) / N
    even = F.sum(F.mean(scores, axis=0) * nn.Variable.from_numpy_array(share)) * X
    return y, even, best

def full(x, ranks, capacity):
    "The samples that an expert has no room for: by rank, first choices before second ones."
    if capacity is None:
        return []
    best = alone(PARAMS, x)[2]
    own, out = N // ranks, []
    room = min(own, int(np.ceil(capacity * K * own / X)))
    for r in range(ranks):
        count = np.zeros(X, int)
        for j in range(K):
            for n in range(r * own, (r + 1) * own):
                e = best[n, j]
                if count[e] >= room:
                    out.append((n, e))
                count[e] += 1
    return out

mesh = C.Mesh(model=size)
over = mesh.model
for capacity in (None, 0.75):
    for auto in (False, True):
        nn.clear_parameters()
        nn.seed(2)
        x = nn.Variable.from_numpy_array(INPUT, need_grad=True)
        gy = nn.Variable.from_numpy_array(GY)
        with nn.auto_forward(auto):
            y, even = C.mixture_of_experts(x, X, H, over, k=K, capacity=capacity)
            loss = F.sum(y * gy) + even * 0.1
        if not auto:
            nn.forward_all([y, loss])
        loss.backward()
        parts = dict(nn.get_parameters())
        nn.clear_parameters()
        nn.seed(2)
        one = C.mixture_of_experts(x, X, H, C.Mesh(data=size, comm=comm).model, k=K)
        PARAMS = {k.split("/")[1]: v for k, v in nn.get_parameters().items()}
        x1 = nn.Variable.from_numpy_array(INPUT, need_grad=True)
        dropped = full(x1, size, capacity)
        assert (capacity is None) == (not dropped), dropped
        y1, even1, _ = alone(PARAMS, x1, dropped)
        loss1 = F.sum(y1 * gy) + even1 * 0.1
        nn.forward_all([y1, even1, loss1])
        loss1.backward()
        np.testing.assert_allclose(y.d, y1.d, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(loss.d, loss1.d, rtol=1e-5)
        np.testing.assert_allclose(x.g, x1.g, rtol=1e-4, atol=1e-5)
        for key, v in parts.items():
            whole = PARAMS[key.split("/")[1]]
            cut = v.layout.cut if hasattr(v, "layout") else lambda a: a
            assert (v.d == cut(whole.d)).all()
            np.testing.assert_allclose(v.g, cut(whole.g), rtol=1e-4, atol=1e-5, err_msg=key)
"""


@pytest.mark.parametrize(
    "n", [2, pytest.param(1, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)]
)
def test_samples_reach_their_experts_and_gradients_come_back(tmp_path: Path, n: int) -> None:
    run(tmp_path, n, EXPERTS)


def test_what_is_wrong_with_experts_is_said() -> None:
    over, x = C.Mesh().model, nn.Variable((4, 3))
    for arguments, how, text in (
        ((x, 4, 8, over), {"k": 5}, "k is 5, wanted 1 to the 4 experts"),
        ((x, 4, 8, over), {"capacity": 0}, "capacity is 0.*, wanted a number > 0 or None"),
    ):
        with pytest.raises(ValueError, match=f"mixture_of_experts: {text}"):
            C.mixture_of_experts(*arguments, **how)
    with pytest.raises(ShapeError, match=r"inp has the shape \(4,\), wanted \(samples, features\)"):
        C.mixture_of_experts(nn.Variable((4,)), 4, 8, over)
    with pytest.raises(TypeError, match="mixture_of_experts: over is 2, wanted an axis of a mesh"):
        C.mixture_of_experts(x, 4, 8, 2)
