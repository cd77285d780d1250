# SPDX-License-Identifier: Apache-2.0
"""Rates per element from the history of squared gradients: Adagrad, Adadelta, RMSprop."""

from __future__ import annotations

from nnl.solvers.base import Solver
from nnl.solvers.rule import Rule, blend, blocks, samples, update_op


@update_op("adagrad_update", "v")
class adagrad_update(Rule):
    r"""$v \leftarrow v + g^2$; $w \leftarrow w - \eta g / (\sqrt v + \epsilon)$."""

    eps: float = 1e-8
    passes = 7
    samples = samples(1)

    def infer(self, w, g, v, t, lr):
        return self.same_shape(w, g=g, v=v)

    def forward(self, xp, w, g, v, t, lr):
        t += 1
        for w_, g_, v_, s in blocks(xp, w, g, v, scratch=1):
            xp.multiply(g_, g_, out=s)
            v_ += s
            descend(xp, w_, g_, v_, float(lr), self.eps, s)
        return w


def descend(xp, w, direction, second, rate, eps, s):
    r"""$w \leftarrow w - \eta d / (\sqrt v + \epsilon)$ in place, with scratch s."""
    xp.sqrt(second, out=s)
    s += eps
    xp.divide(direction, s, out=s)
    s *= rate
    w -= s


class Adagrad(Solver):
    r"""$v \leftarrow v + g^2$; $w \leftarrow w - \eta g / (\sqrt v + \epsilon)$.

    Args:
        lr: Learning rate $\eta$.
        eps: $\epsilon$, in the units of g.
    Raises:
        ValueError: An argument is outside its range.
    Source: Duchi, Hazan and Singer, Adaptive Subgradient Methods, JMLR 12, 2011.
    """

    rule, states = adagrad_update, ("v",)

    def __init__(self, lr: float = 1e-2, eps: float = 1e-8) -> None:
        super().__init__(lr=lr, eps=eps)


@update_op("adadelta_update", "e_sqr_grad", "e_sqr_delta")
class adadelta_update(Rule):
    r"""$w \leftarrow w - \eta\delta$ with $\delta = \sqrt{(E_\delta+\epsilon)/(E_g+\epsilon)}\, g$.

    $E_g$ and $E_\delta$ are the moving averages of $g^2$ and $\delta^2$ with rate `decay`.
    """

    decay: float = 0.95
    eps: float = 1e-6
    passes = 14
    samples = samples(2)

    def infer(self, w, g, e_sqr_grad, e_sqr_delta, t, lr):
        return self.same_shape(w, g=g, e_sqr_grad=e_sqr_grad, e_sqr_delta=e_sqr_delta)

    def forward(self, xp, w, g, e_sqr_grad, e_sqr_delta, t, lr):
        t += 1
        rate = float(lr)
        for w_, g_, eg, ed, s, r in blocks(xp, w, g, e_sqr_grad, e_sqr_delta, scratch=2):
            xp.multiply(g_, g_, out=s)
            blend(eg, s, self.decay, s, xp)
            xp.add(ed, self.eps, out=s)
            xp.add(eg, self.eps, out=r)
            s /= r
            xp.sqrt(s, out=s)
            s *= g_
            xp.multiply(s, s, out=r)
            blend(ed, r, self.decay, r, xp)
            s *= rate
            w_ -= s
        return w


class Adadelta(Solver):
    r"""$w \leftarrow w - \eta\delta$ with $\delta = \sqrt{(E_\delta+\epsilon)/(E_g+\epsilon)}\, g$.

    Args:
        lr: Learning rate $\eta$; 1 is the method of the paper.
        decay: Rate of the moving averages of $g^2$ and $\delta^2$, in [0, 1].
        eps: $\epsilon$, in squared units.
    Raises:
        ValueError: An argument is outside its range.
    Source: Zeiler, ADADELTA: An Adaptive Learning Rate Method, arXiv:1212.5701.
    """

    rule, states = adadelta_update, ("e_sqr_grad", "e_sqr_delta")

    def __init__(self, lr: float = 1.0, decay: float = 0.95, eps: float = 1e-6) -> None:
        super().__init__(lr=lr, decay=decay, eps=eps)


@update_op("rmsprop_update", "v")
class rmsprop_update(Rule):
    r"""$v \leftarrow d v + (1 - d) g^2$; $w \leftarrow w - \eta g / (\sqrt v + \epsilon)$."""

    decay: float = 0.9
    eps: float = 1e-8
    passes = 9
    samples = samples(1)

    def infer(self, w, g, v, t, lr):
        return self.same_shape(w, g=g, v=v)

    def forward(self, xp, w, g, v, t, lr):
        t += 1
        for w_, g_, v_, s in blocks(xp, w, g, v, scratch=1):
            xp.multiply(g_, g_, out=s)
            blend(v_, s, self.decay, s, xp)
            descend(xp, w_, g_, v_, float(lr), self.eps, s)
        return w


class RMSprop(Solver):
    r"""$v \leftarrow d v + (1 - d) g^2$; $w \leftarrow w - \eta g / (\sqrt v + \epsilon)$.

    Args:
        lr: Learning rate $\eta$.
        decay: $d$ in [0, 1].
        eps: $\epsilon$, in the units of g.
    Raises:
        ValueError: An argument is outside its range.
    Source: Tieleman and Hinton, Neural Networks for Machine Learning, lecture 6e, 2012.
    """

    rule, states = rmsprop_update, ("v",)

    def __init__(self, lr: float = 1e-3, decay: float = 0.9, eps: float = 1e-8) -> None:
        super().__init__(lr=lr, decay=decay, eps=eps)


@update_op("rmsprop_graves_update", "n", "g", "d")
class rmsprop_graves_update(Rule):
    r"""$d \leftarrow \mu d - \eta\, \nabla / \sqrt{n - g^2 + \epsilon}$; $w \leftarrow w + d$.

    $n$ and $g$ are the moving averages of $\nabla^2$ and $\nabla$ with rate `decay`.
    """

    decay: float = 0.95
    momentum: float = 0.9
    eps: float = 1e-4
    passes = 17

    def infer(self, w, gradient, n, g, d, t, lr):
        return self.same_shape(w, gradient=gradient, n=n, g=g, d=d)

    def forward(self, xp, w, gradient, n, g, d, t, lr):
        t += 1
        rate = float(lr)
        for w_, x, n_, g_, d_, s in blocks(xp, w, gradient, n, g, d, scratch=1):
            xp.multiply(x, x, out=s)
            blend(n_, s, self.decay, s, xp)
            blend(g_, x, self.decay, s, xp)
            xp.multiply(g_, g_, out=s)
            xp.subtract(n_, s, out=s)
            xp.maximum(s, 0.0, out=s)  # a variance; rounding can make it negative
            s += self.eps
            xp.sqrt(s, out=s)
            xp.divide(x, s, out=s)
            s *= rate
            d_ *= self.momentum
            d_ -= s
            w_ += d_
        return w

    def samples(rng):
        for sample in samples(3)(rng):
            w, gradient, n, g, d, t, lr = sample.inputs
            sample.inputs = (w, gradient, n + 1.0, g, d, t, lr)  # n - g^2 is a variance
            yield sample


class RMSpropGraves(Solver):
    r"""RMSprop with centred second moment and momentum.

    $d \leftarrow \mu d - \eta\, \nabla / \sqrt{n - g^2 + \epsilon}$; $w \leftarrow w + d$, where n
    and g are moving averages of $\nabla^2$ and $\nabla$.

    Args:
        lr: Learning rate $\eta$.
        decay: Rate of the moving averages, in [0, 1].
        momentum: $\mu$ in [0, 1].
        eps: $\epsilon$, in squared units of the gradient.
    Raises:
        ValueError: An argument is outside its range.
    Source: Graves, Generating Sequences With Recurrent Neural Networks, arXiv:1308.0850, eq. 38-45.
    """

    rule, states = rmsprop_graves_update, ("n", "g", "d")

    def __init__(
        self, lr: float = 1e-4, decay: float = 0.95, momentum: float = 0.9, eps: float = 1e-4
    ) -> None:
        super().__init__(lr=lr, decay=decay, momentum=momentum, eps=eps)
