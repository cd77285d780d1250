# SPDX-License-Identifier: Apache-2.0
"""Adam with a rate that cannot grow, or that is bounded: AMSGRAD, AdaBound, AMSBound."""

from __future__ import annotations

from nnl.solvers.adagrad import descend
from nnl.solvers.adam import corrected
from nnl.solvers.base import Solver
from nnl.solvers.rule import Rule, blend, blocks, samples, update_op
from nnl.solvers.sgd import scheduled


@update_op("amsgrad_update", "m", "v", "v_hat")
class amsgrad_update(Rule):
    r"""$\hat v \leftarrow \max(\hat v, v)$; $w \leftarrow w - \alpha m / (\sqrt{\hat v}+\epsilon)$.

    m and v are Adam's. With bias_correction $\alpha$ is Adam's $\alpha_t$.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    bias_correction: bool = False
    passes = 13

    def infer(self, w, g, m, v, v_hat, t, lr):
        return self.same_shape(w, g=g, m=m, v=v, v_hat=v_hat)

    def forward(self, xp, w, g, m, v, v_hat, t, lr):
        t += 1
        rate = float(lr)
        if self.bias_correction:
            rate = corrected(rate, int(t), self.beta1, self.beta2)
        for w_, g_, m_, v_, h, s in blocks(xp, w, g, m, v, v_hat, scratch=1):
            blend(m_, g_, self.beta1, s, xp)
            xp.multiply(g_, g_, out=s)
            blend(v_, s, self.beta2, s, xp)
            xp.maximum(h, v_, out=h)
            descend(xp, w_, m_, h, rate, self.eps, s)
        return w

    def samples(rng):
        yield from samples(3)(rng)
        yield from samples(3, bias_correction=True)(rng)


class AMSGRAD(Solver):
    r"""Adam with the largest second moment so far, so that the rate of an element never grows.

    $\hat v \leftarrow \max(\hat v, v)$; $w \leftarrow w - \alpha m / (\sqrt{\hat v} + \epsilon)$.

    Args:
        alpha: Learning rate $\alpha$.
        beta1, beta2, eps: As of Adam.
        bias_correction: Use Adam's $\alpha_t$; the paper has none.
    Raises:
        ValueError: An argument is outside its range.
    Source: Reddi, Kale and Kumar, On the Convergence of Adam and Beyond, arXiv:1904.09237.
    """

    rule, states, rate = amsgrad_update, ("m", "v", "v_hat"), "alpha"

    def __init__(
        self,
        alpha: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        bias_correction: bool = False,
    ) -> None:
        super().__init__(
            alpha=alpha, beta1=beta1, beta2=beta2, eps=eps, bias_correction=bias_correction
        )


def bounded_descent(xp, w, direction, second, rate, eps, bounds, s):
    """w -= clip(rate / (sqrt(second) + eps), *bounds) direction, in place, with scratch s."""
    xp.sqrt(second, out=s)
    s += eps
    xp.divide(rate, s, out=s)
    xp.clip(s, *bounds, out=s)
    s *= direction
    w -= s


def bounds(final_lr: float, gamma: float, step: int) -> tuple[float, float]:
    r"""$\eta_l = f (1 - 1/(\gamma t + 1))$ and $\eta_u = f (1 + 1/(\gamma t))$."""
    return final_lr * (1.0 - 1.0 / (gamma * step + 1.0)), final_lr * (1.0 + 1.0 / (gamma * step))


@update_op("adabound_update", "mean", "var")
class adabound_update(Rule):
    r"""$w \leftarrow w - \mathrm{clip}(\alpha_t / (\sqrt v + \epsilon), \eta_l, \eta_u)\, m$.

    m, v and $\alpha_t$ are Adam's; $\eta_l, \eta_u$ close in on final_lr times lr / lr0.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    final_lr: float = 0.1
    gamma: float = 1e-3
    lr0: float = 1.0
    passes = 14
    samples = samples(2)

    def infer(self, w, g, mean, var, t, lr):
        return self.same_shape(w, g=g, mean=mean, var=var)

    def forward(self, xp, w, g, mean, var, t, lr):
        t += 1
        step = int(t)
        rate = corrected(float(lr), step, self.beta1, self.beta2)
        limits = bounds(scheduled(self.final_lr, float(lr), self.lr0), self.gamma, step)
        for w_, g_, m, v, s in blocks(xp, w, g, mean, var, scratch=1):
            blend(m, g_, self.beta1, s, xp)
            xp.multiply(g_, g_, out=s)
            blend(v, s, self.beta2, s, xp)
            bounded_descent(xp, w_, m, v, rate, self.eps, limits, s)
        return w


class AdaBound(Solver):
    r"""Adam whose rates are clipped to bounds that close in on that of gradient descent.

    $w \leftarrow w - \mathrm{clip}(\alpha_t / (\sqrt v + \epsilon), \eta_l, \eta_u)\, m$ with
    $\eta_l = f (1 - 1/(\gamma t + 1))$, $\eta_u = f (1 + 1/(\gamma t))$ and $f$ = final_lr times
    the schedule multiplier $\alpha / \alpha_0$.

    Args:
        alpha: Learning rate $\alpha$; the one given here is $\alpha_0$.
        beta1, beta2, eps: As of Adam.
        final_lr: Rate that the bounds converge to.
        gamma: How fast they do, per step; positive.
    Raises:
        ValueError: An argument is outside its range.
    Source: Luo et al., Adaptive Gradient Methods with Dynamic Bound of Learning Rate,
        arXiv:1902.09843, algorithm 2.
    """

    rule, states, rate = adabound_update, ("mean", "var"), "alpha"

    def __init__(
        self,
        alpha: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        final_lr: float = 0.1,
        gamma: float = 1e-3,
    ) -> None:
        super().__init__(
            alpha=alpha, beta1=beta1, beta2=beta2, eps=eps, final_lr=final_lr, gamma=gamma
        )


@update_op("amsbound_update", "m", "v", "v_hat")
class amsbound_update(Rule):
    r"""$w \leftarrow w - \mathrm{clip}(\alpha / (\sqrt{\hat v} + \epsilon), \eta_l, \eta_u)\, m$.

    m, v and $\hat v$ are AMSGRAD's, the bounds AdaBound's.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    final_lr: float = 0.1
    gamma: float = 1e-3
    bias_correction: bool = False
    lr0: float = 1.0
    passes = 15

    def infer(self, w, g, m, v, v_hat, t, lr):
        return self.same_shape(w, g=g, m=m, v=v, v_hat=v_hat)

    def forward(self, xp, w, g, m, v, v_hat, t, lr):
        t += 1
        step, rate = int(t), float(lr)
        limits = bounds(scheduled(self.final_lr, rate, self.lr0), self.gamma, step)
        if self.bias_correction:
            rate = corrected(rate, step, self.beta1, self.beta2)
        for w_, g_, m_, v_, h, s in blocks(xp, w, g, m, v, v_hat, scratch=1):
            blend(m_, g_, self.beta1, s, xp)
            xp.multiply(g_, g_, out=s)
            blend(v_, s, self.beta2, s, xp)
            xp.maximum(h, v_, out=h)
            bounded_descent(xp, w_, m_, h, rate, self.eps, limits, s)
        return w

    def samples(rng):
        yield from samples(3)(rng)
        yield from samples(3, bias_correction=True)(rng)


class AMSBound(Solver):
    r"""AMSGRAD whose rates are clipped to the bounds of AdaBound.

    $\hat v \leftarrow \max(\hat v, v)$;
    $w \leftarrow w - \mathrm{clip}(\alpha / (\sqrt{\hat v} + \epsilon), \eta_l, \eta_u)\, m$ with
    the m and v of Adam and the bounds of AdaBound.

    NNabla's CPU code has the upper bound $f (1 + t / \gamma)$; this one follows the paper.

    Args:
        alpha: Learning rate $\alpha$; the one given here is $\alpha_0$.
        beta1, beta2, eps: As of Adam.
        final_lr, gamma: As of AdaBound.
        bias_correction: Use Adam's $\alpha_t$; the paper has none.
    Raises:
        ValueError: An argument is outside its range.
    Source: Luo et al., Adaptive Gradient Methods with Dynamic Bound of Learning Rate,
        arXiv:1902.09843, algorithm 3.
    """

    rule, states, rate = amsbound_update, ("m", "v", "v_hat"), "alpha"

    def __init__(
        self,
        alpha: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        final_lr: float = 0.1,
        gamma: float = 1e-3,
        bias_correction: bool = False,
    ) -> None:
        super().__init__(
            alpha=alpha,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            final_lr=final_lr,
            gamma=gamma,
            bias_correction=bias_correction,
        )
