# SPDX-License-Identifier: Apache-2.0
"""Lion: the sign of an interpolated momentum."""

from __future__ import annotations

from nnl.solvers.base import Solver
from nnl.solvers.rule import Rule, blend, blocks, samples, update_op


@update_op("lion_update", "m")
class lion_update(Rule):
    r"""$u = \mathrm{sign}(\beta_1 m + (1-\beta_1) g)$; $w \leftarrow w - \eta (u + \lambda w)$.

    $m \leftarrow \beta_2 m + (1-\beta_2) g$ afterwards; $\lambda$ is wd.
    """

    beta1: float = 0.9
    beta2: float = 0.99
    wd: float = 0.0
    passes = 9
    samples = samples(1, wd=0.1)

    def infer(self, w, g, m, t, lr):
        return self.same_shape(w, g=g, m=m)

    def forward(self, xp, w, g, m, t, lr):
        t += 1
        rate = float(lr)
        keep = 1.0 - rate * self.wd
        for w_, g_, m_, s, r in blocks(xp, w, g, m, scratch=2):
            xp.multiply(m_, self.beta1, out=s)
            xp.multiply(g_, 1.0 - self.beta1, out=r)
            s += r
            xp.sign(s, out=s)
            s *= rate
            if keep != 1.0:
                w_ *= keep
            w_ -= s
            blend(m_, g_, self.beta2, r, xp)
        return w


class Lion(Solver):
    r"""Sign descent with two averages of the gradient.

    $u = \mathrm{sign}(\beta_1 m + (1-\beta_1) g)$; $w \leftarrow w - \eta (u + \lambda w)$;
    $m \leftarrow \beta_2 m + (1-\beta_2) g$, where $\lambda$ is given by weight_decay(rate) for one
    step.

    Args:
        lr: Learning rate $\eta$; every element moves by it.
        beta1, beta2: $\beta_1$ and $\beta_2$ in [0, 1).
    Raises:
        ValueError: An argument is outside its range.
    Source: Chen et al., Symbolic Discovery of Optimization Algorithms, arXiv:2302.06675.
    """

    rule, states, fused = lion_update, ("m",), True

    def __init__(self, lr: float = 1e-4, beta1: float = 0.9, beta2: float = 0.99) -> None:
        super().__init__(lr=lr, beta1=beta1, beta2=beta2)
