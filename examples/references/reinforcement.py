# SPDX-License-Identifier: Apache-2.0
"""What the references for reinforcement share: a tower of layers, episodes, a memory, updates."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S


def tower(x: Any, outputs: int, name: str, width: int = 128) -> Any:
    """Two hidden layers and linear outputs, (B, D) -> (B, outputs)."""
    with nn.parameter_scope(name):
        h = F.relu(PF.affine(x, width, name="first"))
        h = F.relu(PF.affine(h, width, name="second"))
        return PF.affine(h, outputs, name="last")


def solver_of(scope: str, rate: float) -> Any:
    """Adam for what a scope has."""
    with nn.parameter_scope(scope):
        solver = S.Adam(rate)
        solver.set_parameters(nn.get_parameters())
    return solver


def descend(loss: Any, solver: Any) -> Any:
    """One step of a solver."""
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    solver.update()
    return loss


def follow(target: str, source: str, share: float) -> None:
    """Move the weights of one scope by a share of the way to those of another."""
    with nn.parameter_scope(target):
        ours = nn.get_parameters(grad_only=False)
    with nn.parameter_scope(source):
        theirs = nn.get_parameters(grad_only=False)
    for name, w in ours.items():
        w.d = w.d + share * (theirs[name].d - w.d)


class Memory:
    """The latest transitions: state, action, reward, next state, and whether that was an end."""

    def __init__(self, size: int) -> None:
        self.size, self.rows = size, []
        self.at = 0

    def add(self, *row: Any) -> None:
        if len(self.rows) < self.size:
            self.rows.append(row)
        else:
            self.rows[self.at] = row
        self.at = (self.at + 1) % self.size

    def some(self, rng: Any, n: int) -> list[np.ndarray]:
        chosen = [self.rows[i] for i in rng.integers(len(self.rows), size=n)]
        return [np.array(a, np.float32) for a in zip(*chosen, strict=True)]


def mean_return(env: Any, act: Any, episodes: int = 20) -> float:
    """Mean sum of rewards of a policy, state -> action, in episodes that are not trained on."""
    total = 0.0
    for seed in range(episodes):
        state, done = env.reset(seed=10_000 + seed)[0], False
        while not done:
            state, reward, end, cut, _ = env.step(act(state))
            total, done = total + float(reward), end or cut
    return total / episodes
