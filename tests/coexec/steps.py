# SPDX-License-Identifier: Apache-2.0
"""Steps of a small training program, for the tests of co-execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S

Step = Callable[..., Any]


def variable(*shape: int, seed: int = 0) -> nn.Variable:
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return nn.Variable.from_numpy_array(x)


class Trainer:
    """A small network in the style of trainer classes, with state of its own."""

    def __init__(self, solver: Any, dropout: float = 0.0, norm: bool = False) -> None:
        nn.clear_parameters()
        nn.seed(5)
        self.solver, self.dropout, self.norm, self.loss = solver, dropout, norm, 0.0
        self.train = True

    def net(self, x: nn.Variable) -> nn.Variable:
        h = PF.affine(x, 8, name="a")
        if self.norm:
            h = PF.batch_normalization(h, batch_stat=self.train, name="n")
        h = F.relu(h)
        if self.dropout and self.train:
            h = F.dropout(h, self.dropout)
        return PF.affine(h, 3, name="b")

    def step(self, x: nn.Variable, t: nn.Variable) -> nn.Variable:
        loss = F.mean(F.softmax_cross_entropy(self.net(x), t))
        if not self.train:
            return loss
        if not self.solver.get_parameters():
            self.solver.set_parameters(nn.get_parameters())
        self.solver.zero_grad()
        loss.backward(clear_buffer=True)
        self.solver.update()
        return loss


def train(wrap: Callable[[Step], Step], steps: int, **kw: Any) -> tuple[list[Any], Any]:
    """What some steps leave: losses and parameters, and the wrapped step."""
    trainer = Trainer(S.Momentum(0.1), **kw)
    step, out = wrap(trainer.step), []
    for k in range(steps):
        trainer.train = k % 4 != 3
        n = 6 if k % 3 else 4
        t = nn.Variable.from_numpy_array(np.arange(n).reshape(n, 1) % 3)
        out.append(float(step(variable(n, 5, seed=k), t).d))
    return [*out, *[v.d.copy() for v in nn.get_parameters(grad_only=False).values()]], step


def same(f: Step) -> Step:
    return f
