# SPDX-License-Identifier: Apache-2.0
"""Gradient descent, with momentum, with decoupled decay, with layer-wise rates."""

from __future__ import annotations

from nnl.solvers.base import Solver
from nnl.solvers.rule import Rule, blocks, norm, samples, update_op


@update_op("sgd_update")
class sgd_update(Rule):
    r"""One step of gradient descent: $w \leftarrow w - \eta g$. Writes w and t."""

    passes = 2
    samples = samples(0)

    def infer(self, w, g, t, lr):
        return self.same_shape(w, g=g)

    def forward(self, xp, w, g, t, lr):
        t += 1
        rate = float(lr)
        for w_, g_, s in blocks(xp, w, g, scratch=1):
            xp.multiply(g_, rate, out=s)
            w_ -= s
        return w


class Sgd(Solver):
    r"""Gradient descent: $w \leftarrow w - \eta g$.

    Args:
        lr: Learning rate $\eta$.
    Raises:
        ValueError: lr is negative or not finite.
    Source: Robbins and Monro, A Stochastic Approximation Method, Annals of Mathematical
        Statistics 22, 1951.
    """

    rule = sgd_update

    def __init__(self, lr: float = 1e-3) -> None:
        super().__init__(lr=lr)


@update_op("momentum_update", "m")
class momentum_update(Rule):
    r"""$m \leftarrow \mu m + \eta g$; $w \leftarrow w - m - (\eta / \eta_0) \lambda w$.

    Attributes:
        momentum: $\mu$.
        wd: $\lambda$, 0 for no decay.
        lr0: $\eta_0$, the rate that the schedule started from.
    """

    momentum: float = 0.9
    wd: float = 0.0
    lr0: float = 1.0
    samples = samples(1, wd=0.1)

    def infer(self, w, g, m, t, lr):
        return self.same_shape(w, g=g, m=m)

    def forward(self, xp, w, g, m, t, lr):
        t += 1
        rate = float(lr)
        keep = 1.0 - scheduled(self.wd, rate, self.lr0)
        for w_, g_, m_, s in blocks(xp, w, g, m, scratch=1):
            m_ *= self.momentum
            xp.multiply(g_, rate, out=s)
            m_ += s
            if keep != 1.0:
                w_ *= keep
            w_ -= m_
        return w


def scheduled(value: float, rate: float, rate0: float) -> float:
    """A value that follows the schedule of the learning rate: value rate / rate0."""
    return value * rate / rate0 if value and rate0 else value


class Momentum(Solver):
    r"""Gradient descent with momentum: $m \leftarrow \mu m + \eta g$; $w \leftarrow w - m$.

    The learning rate is inside the velocity: a change of it acts on later gradients only.

    Args:
        lr: Learning rate $\eta$.
        momentum: $\mu$ in [0, 1].
    Raises:
        ValueError: An argument is outside its range.
    Source: Qian, On the Momentum Term in Gradient Descent Learning Algorithms, 1999.
    """

    rule, states = momentum_update, ("m",)

    def __init__(self, lr: float = 1e-3, momentum: float = 0.9) -> None:
        super().__init__(lr=lr, momentum=momentum)


@update_op("nesterov_update", "m")
class nesterov_update(Rule):
    r"""$m' = \mu m - \eta g$; $w \leftarrow w - \mu m + (1 + \mu) m'$; $m \leftarrow m'$."""

    momentum: float = 0.9
    passes = 6
    samples = samples(1)

    def infer(self, w, g, m, t, lr):
        return self.same_shape(w, g=g, m=m)

    def forward(self, xp, w, g, m, t, lr):
        t += 1
        rate, mu = float(lr), self.momentum
        for w_, g_, m_, s in blocks(xp, w, g, m, scratch=1):
            m_ *= mu
            w_ -= m_
            xp.multiply(g_, rate, out=s)
            m_ -= s
            xp.multiply(m_, 1.0 + mu, out=s)
            w_ += s
        return w


class Nesterov(Solver):
    r"""Nesterov's accelerated gradient, with the gradient taken at w.

    $m' = \mu m - \eta g$; $w \leftarrow w - \mu m + (1 + \mu) m'$.

    Args:
        lr: Learning rate $\eta$.
        momentum: $\mu$ in [0, 1].
    Raises:
        ValueError: An argument is outside its range.
    Source: Nesterov 1983; Sutskever et al., On the importance of initialization and momentum, 2013.
    """

    rule, states = nesterov_update, ("m",)

    def __init__(self, lr: float = 1e-3, momentum: float = 0.9) -> None:
        super().__init__(lr=lr, momentum=momentum)


class SgdW(Solver):
    r"""Momentum with decoupled decay.

    $m \leftarrow \mu m + \eta g$; $w \leftarrow w - m - (\eta / \eta_0) \lambda w$.

    $\eta / \eta_0$ is the schedule multiplier: wd = 0.5 halves a weight in one step at any initial
    learning rate.

    Args:
        lr: Learning rate $\eta$; the one given here is $\eta_0$.
        momentum: $\mu$ in [0, 1].
        wd: Decay $\lambda$ of every step; weight_decay(rate) replaces it for the next one.
    Raises:
        ValueError: An argument is outside its range.
    Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, arXiv:1711.05101.
    """

    rule, states, fused = momentum_update, ("m",), True

    def __init__(self, lr: float = 1e-3, momentum: float = 0.9, wd: float = 1e-4) -> None:
        super().__init__(lr=lr, momentum=momentum, wd=wd)


@update_op("lars_update", "v")
class lars_update(Rule):
    r"""$v \leftarrow \mu v + \eta \rho (g + \lambda w)$; $w \leftarrow w - v$.

    $\rho = c \|w\| / (\|g\| + \lambda \|w\|)$, and 1 where $\|w\| < \epsilon$.

    Attributes:
        momentum, coefficient, eps, wd: $\mu$, $c$, $\epsilon$, $\lambda$.
    """

    momentum: float = 0.9
    coefficient: float = 1e-3
    eps: float = 1e-6
    wd: float = 0.0
    passes = 10
    by_element = False
    samples = samples(1, wd=0.1)

    def infer(self, w, g, v, t, lr):
        return self.same_shape(w, g=g, v=v)

    def forward(self, xp, w, g, v, t, lr):
        t += 1
        rate, length = float(lr), norm(xp, w)
        if length >= self.eps:
            slope = norm(xp, g) + self.wd * length
            rate *= self.coefficient * length / slope if slope else 1.0  # slope 0: no step anyway
        for w_, g_, v_, s in blocks(xp, w, g, v, scratch=1):
            v_ *= self.momentum
            xp.multiply(g_, rate, out=s)
            v_ += s
            if self.wd:
                xp.multiply(w_, rate * self.wd, out=s)
                v_ += s
            w_ -= v_
        return w


class Lars(Solver):
    r"""Layer-wise adaptive rate scaling: every parameter's rate follows its norm.

    $v \leftarrow \mu v + \eta \rho (g + \lambda w)$; $w \leftarrow w - v$ with
    $\rho = c \|w\| / (\|g\| + \lambda \|w\|)$, and $\rho = 1$ where $\|w\| < \epsilon$.

    Args:
        lr: Learning rate $\eta$.
        momentum: $\mu$ in [0, 1].
        coefficient: Trust coefficient $c$.
        eps: $\epsilon$, in the units of a norm of w.
    Raises:
        ValueError: An argument is outside its range.
    Source: You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks,
        arXiv:1708.03888, algorithm 1. $\lambda$ is given by weight_decay(rate), for one step.
    """

    rule, states, fused = lars_update, ("v",), True

    def __init__(
        self,
        lr: float = 1e-3,
        momentum: float = 0.9,
        coefficient: float = 1e-3,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(lr=lr, momentum=momentum, coefficient=coefficient, eps=eps)
