# SPDX-License-Identifier: Apache-2.0
"""Adaptive moment estimation: Adam, AdamW, Adamax, AdaBelief."""

from __future__ import annotations

import math

from nnl.solvers.adagrad import descend
from nnl.solvers.base import Solver
from nnl.solvers.hyperparameters import checked
from nnl.solvers.rule import Rule, blend, blocks, samples, update_op
from nnl.solvers.sgd import scheduled


def corrected(rate: float, step: int, beta1: float, beta2: float) -> float:
    r"""$\eta \sqrt{1-\beta_2^t} / (1-\beta_1^t)$: the rate that undoes the bias of zero moments."""
    return rate * math.sqrt(1.0 - beta2**step) / (1.0 - beta1**step)


@update_op("adam_update", "mean", "var")
class adam_update(Rule):
    r"""One step of Adam, with decoupled decay if wd is not 0.

    $m \leftarrow \beta_1 m + (1-\beta_1) g$; $v \leftarrow \beta_2 v + (1-\beta_2) g^2$;
    $w \leftarrow w - \alpha_t m / (\sqrt v + \epsilon) - (\alpha / \alpha_0) \lambda w$ with
    $\alpha_t = \alpha \sqrt{1-\beta_2^t} / (1-\beta_1^t)$.

    Attributes:
        beta1, beta2, eps: $\beta_1$, $\beta_2$, $\epsilon$.
        wd: $\lambda$.
        lr0: $\alpha_0$, the rate that the schedule started from.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    wd: float = 0.0
    lr0: float = 1.0
    passes = 12
    samples = samples(2, wd=0.1)

    def infer(self, w, g, mean, var, t, lr):
        return self.same_shape(w, g=g, mean=mean, var=var)

    def forward(self, xp, w, g, mean, var, t, lr):
        t += 1
        rate = corrected(float(lr), int(t), self.beta1, self.beta2)
        keep = 1.0 - scheduled(self.wd, float(lr), self.lr0)
        for w_, g_, m, v, s in blocks(xp, w, g, mean, var, scratch=1):
            blend(m, g_, self.beta1, s, xp)
            xp.multiply(g_, g_, out=s)
            blend(v, s, self.beta2, s, xp)
            if keep != 1.0:
                w_ *= keep
            descend(xp, w_, m, v, rate, self.eps, s)
        return w


class Adam(Solver):
    r"""Adaptive moment estimation.

    $m \leftarrow \beta_1 m + (1-\beta_1) g$; $v \leftarrow \beta_2 v + (1-\beta_2) g^2$;
    $w \leftarrow w - \alpha_t m / (\sqrt v + \epsilon)$ with
    $\alpha_t = \alpha \sqrt{1-\beta_2^t} / (1-\beta_1^t)$: eps is outside the bias correction.

    Args:
        alpha: Learning rate $\alpha$.
        beta1, beta2: $\beta_1$ and $\beta_2$ in [0, 1).
        eps: $\epsilon$, in the units of g.
    Raises:
        ValueError: An argument is outside its range.
    Source: Kingma and Ba, Adam: A Method for Stochastic Optimization, arXiv:1412.6980, the form at
        the end of section 2.
    """

    rule, states, rate = adam_update, ("mean", "var"), "alpha"

    def __init__(
        self, alpha: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8
    ) -> None:
        super().__init__(alpha=alpha, beta1=beta1, beta2=beta2, eps=eps)


class AdamW(Solver):
    r"""Adam with decoupled decay.

    $w \leftarrow w - \alpha_t m / (\sqrt v + \epsilon) - (\alpha / \alpha_0) \lambda w$ with
    Adam's m, v and $\alpha_t$.

    $\alpha / \alpha_0$ is the schedule multiplier: wd = 0.5 halves a weight in one step at any
    initial learning rate.

    Args:
        alpha: Learning rate $\alpha$; the one given here is $\alpha_0$.
        beta1, beta2, eps: As of Adam.
        wd: Decay $\lambda$ of every step; weight_decay(rate) replaces it for the next one.
    Raises:
        ValueError: An argument is outside its range.
    Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, arXiv:1711.05101.
    """

    rule, states, rate, fused = adam_update, ("mean", "var"), "alpha", True

    def __init__(
        self,
        alpha: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        wd: float = 1e-4,
    ) -> None:
        super().__init__(alpha=alpha, beta1=beta1, beta2=beta2, eps=eps, wd=wd)


@update_op("adamax_update", "m", "u")
class adamax_update(Rule):
    r"""$w \leftarrow w - \alpha / (1-\beta_1^t)\, m / (u + \epsilon)$.

    $m \leftarrow \beta_1 m + (1-\beta_1) g$; $u \leftarrow \max(\beta_2 u, |g|)$.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    passes = 10
    samples = samples(2)

    def infer(self, w, g, m, u, t, lr):
        return self.same_shape(w, g=g, m=m, u=u)

    def forward(self, xp, w, g, m, u, t, lr):
        t += 1
        rate = float(lr) / (1.0 - self.beta1 ** int(t))
        for w_, g_, m_, u_, s in blocks(xp, w, g, m, u, scratch=1):
            blend(m_, g_, self.beta1, s, xp)
            u_ *= self.beta2
            xp.absolute(g_, out=s)
            xp.maximum(u_, s, out=u_)
            xp.add(u_, self.eps, out=s)
            xp.divide(m_, s, out=s)
            s *= rate
            w_ -= s
        return w


class Adamax(Solver):
    r"""Adam with the infinity norm: $u \leftarrow \max(\beta_2 u, |g|)$.

    $w \leftarrow w - \alpha / (1-\beta_1^t)\, m / (u + \epsilon)$ with Adam's m.

    Args:
        alpha: Learning rate $\alpha$.
        beta1, beta2, eps: As of Adam.
    Raises:
        ValueError: An argument is outside its range.
    Source: Kingma and Ba, Adam: A Method for Stochastic Optimization, arXiv:1412.6980, algorithm 2.
    """

    rule, states, rate = adamax_update, ("m", "u"), "alpha"

    def __init__(
        self, alpha: float = 2e-3, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8
    ) -> None:
        super().__init__(alpha=alpha, beta1=beta1, beta2=beta2, eps=eps)


@update_op("adabelief_update", "mean", "var", "s_max")
class adabelief_update(Rule):
    r"""$s \leftarrow \beta_2 s + (1-\beta_2)(g - m)^2 + \epsilon$; Adam's step with s for v, where
    eps is added to the root without bias.

    Attributes:
        beta1, beta2, eps: As of Adam; eps is added into the stored s at every step.
        wd: Decoupled decay, times the learning rate unless fixed_decay; 0 for none.
        fixed_decay: Decay by wd itself.
        rectify: Multiply the step by RAdam's $r_t$; while that is undefined, step by $\alpha m$.

    s_max, where given, holds the maximum of s so far, and is used in its place.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    wd: float = 0.0
    fixed_decay: bool = False
    rectify: bool = False
    passes = 15

    def infer(self, w, g, mean, var, t, lr, s_max=None):
        return self.same_shape(w, g=g, mean=mean, var=var, s_max=s_max)

    def forward(self, xp, w, g, mean, var, t, lr, s_max=None):
        t += 1
        alpha, step = float(lr), int(t)
        keep = 1.0 - self.wd * (1.0 if self.fixed_decay else alpha)
        rate = corrected(alpha, step, self.beta1, self.beta2)
        eps = self.eps * math.sqrt(1.0 - self.beta2**step)  # the rate undoes the root
        if self.rectify:
            factor = rectification(step, self.beta2)
            rate = None if factor is None else rate * factor
        arrays = (w, g, mean, var) if s_max is None else (w, g, mean, var, s_max)
        for w_, g_, m, v, *largest, s in blocks(xp, *arrays, scratch=1):
            blend(m, g_, self.beta1, s, xp)
            xp.subtract(g_, m, out=s)
            s *= s
            blend(v, s, self.beta2, s, xp)
            v += self.eps
            if largest:
                xp.maximum(largest[0], v, out=largest[0])
            if keep != 1.0:
                w_ *= keep
            if rate is None:
                xp.multiply(m, alpha, out=s)
                w_ -= s
            else:
                descend(xp, w_, m, largest[0] if largest else v, rate, eps, s)
        return w

    def samples(rng):
        for settings in ({}, {"wd": 0.1}, {"wd": 0.1, "fixed_decay": True}, {"rectify": True}):
            for largest in (False, True):
                for sample in samples(2, **settings)(rng):
                    shape = sample.inputs[0].shape
                    sample.inputs += (rng.uniform(0.1, 1.0, shape) if largest else None,)
                    sample.grad += (False,)
                    yield sample


def rectification(step: int, beta2: float) -> float | None:
    """The variance rectification r of RAdam at this step, None while the variance is undefined.

    Source: Liu et al., On the Variance of the Adaptive Learning Rate and Beyond,
        arXiv:1908.03265, algorithm 2.
    """
    longest = 2.0 / (1.0 - beta2) - 1.0
    length = longest - 2.0 * step * beta2**step / (1.0 - beta2**step)
    if length <= 4.0:
        return None
    return math.sqrt(
        (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length)
    )


class AdaBelief(Solver):
    r"""Adam that divides by the deviation of g from its average instead of g itself.

    $s \leftarrow \beta_2 s + (1-\beta_2)(g - m)^2 + \epsilon$;
    $w \leftarrow w - \alpha\, \hat m / (\sqrt{\hat s} + \epsilon)$ with Adam's m,
    $\hat m = m / (1-\beta_1^t)$ and $\hat s = s / (1-\beta_2^t)$.

    Args:
        alpha: Learning rate $\alpha$.
        beta1, beta2, eps: As of Adam, but eps is added to the corrected root; it is also added into
            s at every step.
        wd: Decay rate of every step if weight_decouple is True, unused otherwise.
        amsgrad: Use the maximum of s so far (NNabla adds eps to the maximum instead of to s, so
            that it grows without end; this follows the authors).
        weight_decouple: Let decay act on w directly: by wd alpha w, or wd w with fixed_decay.
        fixed_decay: See weight_decouple.
        rectify: Use RAdam's rectification; in the first steps, where it is undefined, the step is
            $\alpha m$ without correction of the bias, as in NNabla.
    Raises:
        ValueError: An argument is outside its range.
    Source: Zhuang et al., AdaBelief Optimizer, arXiv:2010.07468, algorithm 2.
    """

    rule, rate = adabelief_update, "alpha"

    def __init__(
        self,
        alpha: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        wd: float = 0.0,
        amsgrad: bool = False,
        weight_decouple: bool = False,
        fixed_decay: bool = False,
        rectify: bool = False,
    ) -> None:
        maximum = checked(self.name, "amsgrad", amsgrad)
        self.states = ("mean", "var", "s_max") if maximum else ("mean", "var")
        self.fused = bool(checked(self.name, "weight_decouple", weight_decouple))
        super().__init__(
            alpha=alpha,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            wd=wd,
            amsgrad=amsgrad,
            weight_decouple=weight_decouple,
            fixed_decay=fixed_decay,
            rectify=rectify,
        )
