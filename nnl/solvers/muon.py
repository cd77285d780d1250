# SPDX-License-Identifier: Apache-2.0
"""Muon: the momentum of a matrix with singular values near 1; AdamW for what is no matrix."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import Cost, Op, Sample
from nnl.core.settings.context import STATE, half_type
from nnl.solvers.adam import adam_update
from nnl.solvers.base import Solver
from nnl.solvers.hyperparameters import checked
from nnl.solvers.rule import Rule, norm, update_op

A, B, C = 3.4445, -4.775, 2.0315  # coefficients of the iteration


@update_op("muon_update", "m")
class muon_update(Rule):
    r"""$w \leftarrow (1 - \eta\lambda) w - \eta f\, \mathrm{NS}(d)$ for a matrix w.

    $m \leftarrow \mu m + (1-\mu) g$; d is $\mu m + (1-\mu) g$ with nesterov, else m. NS begins with
    $X = d / \|d\|_F$ and takes some steps of $X \leftarrow a X + (b G + c G^2) X$, $G = X X^T$,
    which bring singular values near 1.

    Attributes:
        momentum, wd: $\mu$, $\lambda$.
        steps: Of the iteration.
        match: Whether f is 0.2 sqrt(max(rows, columns)); else sqrt(max(1, rows / columns)).
        half: Whether the products are of bfloat16.
        eps: The least that d is divided by.
    """

    momentum: float = 0.95
    wd: float = 0.0
    nesterov: bool = True
    steps: int = 5
    match: bool = True
    half: bool = False
    eps: float = 1e-7
    by_element = False

    def infer(self, w, g, m, t, lr):
        if len(w.shape) != 2:
            raise ShapeError(f"muon_update: w is {w}, wanted a matrix")
        return self.same_shape(w, g=g, m=m)

    def forward(self, xp, w, g, m, t, lr):
        t += 1
        m *= self.momentum
        m += (1.0 - self.momentum) * g.astype(m.dtype)
        if not w.size:
            return w
        d = self.momentum * m + (1.0 - self.momentum) * g.astype(m.dtype) if self.nesterov else m
        x = self.orthogonal(xp, d if w.shape[0] <= w.shape[1] else d.T)
        rows, columns = w.shape
        factor = max(1.0, rows / columns) ** 0.5
        if self.match:
            factor = 0.2 * max(rows, columns) ** 0.5
        rate = float(lr)
        w *= 1.0 - rate * self.wd
        w -= ((x if rows <= columns else x.T) * (rate * factor)).astype(w.dtype)
        return w

    def orthogonal(self, xp, d):
        """NS(d) of a matrix that is no taller than wide."""

        def kept(x):
            return x.astype(half_type("bfloat16")).astype(np.float32) if self.half else x

        x = kept(d / max(norm(xp, d), self.eps))
        for _ in range(self.steps):
            gram = kept(xp.matmul(x, x.T))
            x = kept(A * x + xp.matmul(kept(B * gram + C * xp.matmul(gram, gram)), x))
        return x

    def cost(self, w, g, m, t, lr):
        n = min(w.shape)
        products = self.steps * (4 * n * w.size + 2 * n**3)
        return Cost(products + 12 * w.size, 2 * w.nbytes + g.nbytes + 2 * m.nbytes)

    def samples(rng):
        for shape, more in (((3, 5), {}), ((5, 2), {"wd": 0.1, "nesterov": False}),
                            ((4, 4), {"match": False, "half": True}), ((0, 2), {})):  # fmt: skip
            w, g, m = rng.normal(size=(3, *shape))
            yield Sample(w, g, m, np.array(3), np.array(0.1), grad=(False,) * 5, **more)


class Muon(Solver):
    r"""Momentum of matrices with singular values near 1, and AdamW for everything else.

    $m \leftarrow \mu m + (1-\mu) g$; $d = \mu m + (1-\mu) g$;
    $w \leftarrow (1 - \eta\lambda) w - \eta f\, \mathrm{NS}(d)$, where NS(d) is near
    $U V^T$ of $d = U S V^T$: some steps of $X \leftarrow a X + (b G + c G^2) X$, $G = X X^T$.

    Parameters that are no matrices, and those whose names say that they embed or score, have the
    rule of AdamW with the same rate and decay $\eta \lambda$. The products of the iteration are of
    16 bits in contexts of bfloat16, as published, else of float32.

    Args:
        lr: Learning rate $\eta$.
        momentum: $\mu$.
        wd: $\lambda$; weight_decay(rate) replaces it for the next step.
        nesterov: Whether d looks ahead; else d is m.
        steps: Of the iteration.
        match: Whether $f = 0.2 \sqrt{\max(\mathrm{rows}, \mathrm{columns})}$, so that steps are as
            long as AdamW's and a rate of AdamW serves; else
            $f = \sqrt{\max(1, \mathrm{rows} / \mathrm{columns})}$.
        beta1, beta2, eps: As of AdamW.
        adam: A pattern: matrices whose names have it are AdamW's too.
    Raises:
        ValueError: An argument is outside its range, or adam is no pattern.
    Source: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024; Liu et
        al., Muon is Scalable for LLM Training, arXiv:2502.16982.
    """

    rule, states, fused = muon_update, ("m",), True

    def __init__(
        self,
        lr: float = 1e-3,
        momentum: float = 0.95,
        wd: float = 0.1,
        nesterov: bool = True,
        steps: int = 5,
        match: bool = True,
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-8,
        adam: str = "embed|tokens|positions|head",
    ) -> None:
        if not isinstance(adam, str):
            raise ValueError(f"Muon: adam is {adam!r:.60}, wanted a regular expression as a text")
        try:
            self._adam = re.compile(adam or "(?!)")
        except re.error as e:
            raise ValueError(f"Muon: adam is {adam!r:.60}, which is no pattern: {e}") from None
        if type(steps) is not int or not 0 < steps < 100:
            raise ValueError(f"Muon: steps is {steps!r:.40}, wanted a whole number from 1 to 99")
        super().__init__(lr=lr, momentum=momentum, wd=wd, nesterov=nesterov, steps=steps,
                         match=match)  # fmt: skip
        own = {"beta1": beta1, "beta2": beta2, "eps": eps}
        self._others = {k: checked(self.name, k, v) for k, v in own.items()} | {"lr0": lr}
        self.info |= {**own, "adam": adam}

    def _rule_of(self, key: str, variable: Variable) -> tuple[Op, tuple[str, ...]]:
        if len(variable.shape) == 2 and not self._adam.search(key):
            return self.rule, self.states
        return adam_update, ("mean", "var")

    def _settings(self, rule: Op, decay: float | None) -> dict[str, Any]:
        wd = self.info["wd"] if decay is None else decay
        if rule is adam_update:  # whose decay is relative to the first rate
            return {**self._others, "wd": wd * self.info["lr"]}
        half = STATE.target.half
        return {**self._hyperparameters, "wd": wd, "half": half == half_type("bfloat16")}
