# SPDX-License-Identifier: Apache-2.0
"""Lamb: Adam's direction, with a length that follows the norm of the weights."""

from __future__ import annotations

from nnl.solvers.base import Solver
from nnl.solvers.rule import Rule, blend, blocks, norm, samples, update_op


@update_op("lamb_update", "mean", "var")
class lamb_update(Rule):
    r"""$w \leftarrow w - \eta\, \phi(\|w\|)\, r / \|r\|$; $r = m / (\sqrt v+\epsilon) + \lambda w$.

    m and v are Adam's, divided by $1-\beta_1^t$ and $1-\beta_2^t$ with bias_correction;
    $\phi$ clips to [gamma_l, gamma_u]; $\lambda$ is wd.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    gamma_l: float = 0.0
    gamma_u: float = 10.0
    eps: float = 1e-6
    bias_correction: bool = False
    wd: float = 0.0
    passes = 18
    by_element = False

    def infer(self, w, g, mean, var, t, lr):
        return self.same_shape(w, g=g, mean=mean, var=var)

    def forward(self, xp, w, g, mean, var, t, lr):
        t += 1
        fix_m = fix_v = 1.0
        if self.bias_correction:
            fix_m, fix_v = 1.0 - self.beta1 ** int(t), 1.0 - self.beta2 ** int(t)
        r = xp.empty_like(w)  # its norm is needed before the first element moves
        for w_, g_, m, v, r_, s in blocks(xp, w, g, mean, var, r, scratch=1):
            blend(m, g_, self.beta1, s, xp)
            xp.multiply(g_, g_, out=s)
            blend(v, s, self.beta2, s, xp)
            xp.multiply(v, 1.0 / fix_v, out=s)
            xp.sqrt(s, out=s)
            s += self.eps
            s *= fix_m
            xp.divide(m, s, out=r_)
            if self.wd:
                xp.multiply(w_, self.wd, out=s)
                r_ += s
        length = norm(xp, r)
        if length:
            r *= float(lr) * min(max(norm(xp, w), self.gamma_l), self.gamma_u) / length
            w -= r
        return w

    def samples(rng):
        for settings in ({}, {"wd": 0.1}, {"bias_correction": True}, {"gamma_l": 5.0}):
            yield from samples(2, **settings)(rng)


class Lamb(Solver):
    r"""Layer-wise adaptive moments for batch training.

    $r = m / (\sqrt v + \epsilon) + \lambda w$; $w \leftarrow w - \eta\, \phi(\|w\|)\, r / \|r\|$,
    where $\phi$ clips to [gamma_l, gamma_u] and $\lambda$ is given by weight_decay(rate) for one
    step. With gamma_l = 0 a parameter that is all zeros stays so, as in NNabla.

    Args:
        eta: Learning rate $\eta$.
        beta1, beta2: $\beta_1$ and $\beta_2$ in [0, 1).
        gamma_l, gamma_u: Bounds of the norm of w, in its units.
        eps: $\epsilon$, in the units of g.
        bias_correction: Divide m and v by $1-\beta_1^t$ and $1-\beta_2^t$.
    Raises:
        ValueError: An argument is outside its range.
    Source: You et al., Large Batch Optimization for Deep Learning, arXiv:1904.00962, algorithm 2.
    """

    rule, states, rate, fused = lamb_update, ("mean", "var"), "eta", True

    def __init__(
        self,
        eta: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        gamma_l: float = 0.0,
        gamma_u: float = 10.0,
        eps: float = 1e-6,
        bias_correction: bool = False,
    ) -> None:
        super().__init__(
            eta=eta,
            beta1=beta1,
            beta2=beta2,
            gamma_l=gamma_l,
            gamma_u=gamma_u,
            eps=eps,
            bias_correction=bias_correction,
        )
        if gamma_l > gamma_u:
            raise ValueError(f"Lamb: gamma_l is {gamma_l}, wanted at most gamma_u {gamma_u}")
