# SPDX-License-Identifier: Apache-2.0
"""Optimizers over the contract of a Network: readable ones, and those that back ends have.

    for batch in batches:
        outs = Momentum(network, lr=0.1).train(batch)

The readable ones fetch every gradient and feed every parameter: slow, the same on every back end,
and what native ones are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from nnl.deep500.contract import NativeTraining, Network

Outputs = dict[str, Any]


class Optimizer:
    """Base of all: implement train(inputs), which changes the network's parameters once."""

    def __init__(self, network: Network) -> None:
        self.network = network

    @property
    def name(self) -> str:
        """Name of the class."""
        return type(self).__name__

    def train(self, inputs: Mapping[str, Any]) -> Outputs:
        """One step; gives the network's outputs, the loss among them."""
        raise NotImplementedError(f"{self.name}: implement train(inputs)")


class ThreeStepOptimizer(Optimizer):
    """An optimizer with three points of contact; override what it needs."""

    def new_input(self) -> None:
        """A step begins."""

    def prepare_param(self, name: str, param: Any) -> Any:
        """The parameter at which the gradient is wanted; None to leave it."""
        return None

    def update_rule(self, grad: Any, old_param: Any, name: str) -> Any:
        """The new parameter."""
        raise NotImplementedError(f"{self.name}: implement update_rule(grad, old_param, name)")

    def prepare(self) -> None:
        """The first two points, for every parameter."""
        self.new_input()
        if type(self).prepare_param is ThreeStepOptimizer.prepare_param:
            return
        for name in self.network.parameters():
            prepared = self.prepare_param(name, self.network.fetch([name])[0])
            if prepared is not None:
                self.network.feed(name, prepared)

    def update(self, name: str, grad: Any) -> None:
        """The third point, for one parameter."""
        (old,) = self.network.fetch([name])
        self.network.feed(name, self.update_rule(grad, old, name))

    def train(self, inputs: Mapping[str, Any]) -> Outputs:
        self.prepare()
        outs = self.network.inference_and_backprop(inputs)
        for name, gradient in self.network.gradient():
            self.update(name, self.network.fetch([gradient])[0])
        return outs


class OneStepOptimizer(ThreeStepOptimizer):
    """An optimizer that is one update rule."""


class GradientDescent(OneStepOptimizer):
    r"""$w \leftarrow w - \eta g$."""

    def __init__(self, network: Network, lr: float = 0.1) -> None:
        super().__init__(network)
        self.lr = lr

    def update_rule(self, grad: Any, old_param: Any, name: str) -> Any:
        return old_param - self.lr * grad


class Momentum(OneStepOptimizer):
    r"""$v \leftarrow \mu v + g$; $w \leftarrow w - \eta v$."""

    def __init__(self, network: Network, lr: float = 0.1, momentum: float = 0.9) -> None:
        super().__init__(network)
        self.lr, self.momentum = lr, momentum
        self.velocity: dict[str, Any] = {}

    def update_rule(self, grad: Any, old_param: Any, name: str) -> Any:
        v = self.velocity[name] = self.momentum * self.velocity.get(name, 0) + grad
        return old_param - self.lr * v


class Nesterov(ThreeStepOptimizer):
    r"""The gradient is taken where momentum leads: at $w - \eta\mu v$.

    The network's parameters are those points while the gradient is computed, and stay so after a
    step; `look_back` gives w itself. That is what frameworks call Nesterov, written as it was
    published.
    """

    def __init__(self, network: Network, lr: float = 0.1, momentum: float = 0.9) -> None:
        super().__init__(network)
        self.lr, self.momentum = lr, momentum
        self.velocity: dict[str, Any] = {}
        self.point: dict[str, Any] = {}

    def prepare_param(self, name: str, param: Any) -> Any:
        w = self.point.setdefault(name, param)
        return w - self.lr * self.momentum * self.velocity.get(name, 0)

    def update_rule(self, grad: Any, old_param: Any, name: str) -> Any:
        v = self.velocity[name] = self.momentum * self.velocity.get(name, 0) + grad
        w = self.point[name] = self.point[name] - self.lr * v
        return w - self.lr * self.momentum * v

    def look_back(self, name: str) -> Any:
        """The parameter without the look ahead."""
        return self.point[name]


class AdaGrad(OneStepOptimizer):
    r"""$s \leftarrow s + g^2$; $w \leftarrow w - \eta g / (\sqrt s + \epsilon)$."""

    def __init__(self, network: Network, lr: float = 0.01, eps: float = 1e-8) -> None:
        super().__init__(network)
        self.lr, self.eps = lr, eps
        self.squares: dict[str, Any] = {}

    def update_rule(self, grad: Any, old_param: Any, name: str) -> Any:
        s = self.squares[name] = self.squares.get(name, 0) + grad * grad
        return old_param - self.lr * grad / (np.sqrt(s) + self.eps)


class Adam(ThreeStepOptimizer):
    r"""$m, v$: running means of $g, g^2$ with rates $\beta_1, \beta_2$, corrected for their start;
    $w \leftarrow w - \eta \hat m / (\sqrt{\hat v} + \epsilon)$."""

    def __init__(
        self,
        network: Network,
        lr: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(network)
        self.lr, self.beta1, self.beta2, self.eps = lr, beta1, beta2, eps
        self.m: dict[str, Any] = {}
        self.v: dict[str, Any] = {}
        self.t = 0

    def new_input(self) -> None:
        self.t += 1

    def update_rule(self, grad: Any, old_param: Any, name: str) -> Any:
        b1, b2 = self.beta1, self.beta2
        m = self.m[name] = b1 * self.m.get(name, 0) + (1 - b1) * grad
        v = self.v[name] = b2 * self.v.get(name, 0) + (1 - b2) * grad * grad
        root = np.sqrt(v / (1 - b2**self.t)) + self.eps
        return old_param - self.lr * (m / (1 - b1**self.t)) / root


class AcceleGrad(ThreeStepOptimizer):
    r"""Levy, Yurtsever and Cevher, Online Adaptive Methods, Universality and Acceleration, 2018.

    $x = \tau z + (1 - \tau) y$ with $\tau = 1/\alpha$, where the gradient g is taken;
    $z \leftarrow \Pi_D(z - \alpha \eta g)$; $y \leftarrow x - \eta g$;
    $\eta = 2 D / \sqrt{G^2 + \sum \alpha^2 \|g\|^2}$, per parameter.

    Args:
        diameter: D; z stays within half of it around the start.
        bound: G, of the norms of gradients.
    """

    def __init__(self, network: Network, diameter: float = 1.0, bound: float = 1.0) -> None:
        super().__init__(network)
        self.diameter, self.bound, self.t = diameter, bound, -1
        self.start: dict[str, Any] = {}
        self.y: dict[str, Any] = {}
        self.z: dict[str, Any] = {}
        self.squares: dict[str, float] = {}

    def new_input(self) -> None:
        self.t += 1
        self.alpha = 1.0 if self.t <= 2 else (self.t + 1) / 4

    def prepare_param(self, name: str, param: Any) -> Any:
        for point in (self.start, self.y, self.z):
            point.setdefault(name, param)
        tau = 1 / self.alpha
        return tau * self.z[name] + (1 - tau) * self.y[name]

    def update_rule(self, grad: Any, old_param: Any, name: str) -> Any:
        total = self.squares.get(name, 0.0) + self.alpha**2 * float((grad * grad).sum())
        self.squares[name] = total
        rate = 2 * self.diameter / np.sqrt(self.bound**2 + total)
        away = self.z[name] - self.alpha * rate * grad - self.start[name]
        length = float(np.sqrt((away * away).sum()))
        shrink = min(1.0, self.diameter / 2 / length) if length else 1.0
        self.z[name] = (self.start[name] + shrink * away).astype(grad.dtype)
        self.y[name] = (old_param - rate * grad).astype(grad.dtype)
        return self.y[name]


class NativeOptimizer(Optimizer):
    """An optimizer of the back end: parameters and gradients do not leave it during a step.

    A subclass names its rule. Where a back end has none of it, NotImplementedError says so.
    """

    rule: ClassVar[str] = ""
    settings: ClassVar[dict[str, float]] = {}

    def __init__(self, network: Network, **settings: float) -> None:
        super().__init__(network)
        unknown = sorted(set(settings) - set(self.settings))
        if unknown:
            raise TypeError(f"{self.name}: there are no {unknown}, wanted {[*self.settings]}")
        self.given = {**self.settings, **settings}
        self._parts: NativeTraining | None = None

    @property
    def parts(self) -> NativeTraining:
        """The step in its parts; built when it is asked for first."""
        if self._parts is None:
            self.network._need_gradients()
            self._parts = self.build()
        return self._parts

    def build(self) -> NativeTraining:
        """What performs a step, made of the back end's own parts."""
        return self.network.native_optimizer(self.rule, **self.given)

    def train(self, inputs: Mapping[str, Any]) -> Outputs:
        parts = self._parts or self.parts
        if parts.whole is not None:
            return parts.whole(inputs)
        outs = parts.run(inputs)
        parts.update()
        return outs


class NativeGradientDescent(NativeOptimizer):
    rule, settings = "sgd", {"lr": 0.1}


class NativeMomentum(NativeOptimizer):
    rule, settings = "momentum", {"lr": 0.1, "momentum": 0.9}


class NativeNesterov(NativeOptimizer):
    rule, settings = "nesterov", {"lr": 0.1, "momentum": 0.9}


class NativeAdaGrad(NativeOptimizer):
    rule, settings = "adagrad", {"lr": 0.01, "eps": 1e-8}


class NativeAdam(NativeOptimizer):
    rule, settings = "adam", {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


REFERENCE: dict[str, type[ThreeStepOptimizer]] = {
    "sgd": GradientDescent,
    "momentum": Momentum,
    "nesterov": Nesterov,
    "adagrad": AdaGrad,
    "adam": Adam,
    "accelegrad": AcceleGrad,
}
NATIVE: dict[str, type[NativeOptimizer]] = {
    cls.rule: cls
    for cls in (
        NativeGradientDescent,
        NativeMomentum,
        NativeNesterov,
        NativeAdaGrad,
        NativeAdam,
    )
}


def optimizer(name: str, network: Network, **settings: float) -> Optimizer:
    """An optimizer by name: "adam" is the readable one, "native:adam" the back end's.

    Raises:
        ValueError: There is none of that name.
    """
    kind, _, rule = name.rpartition(":")
    table: Mapping[str, Any] = NATIVE if kind == "native" else REFERENCE
    if rule not in table or kind not in ("", "native"):
        known = [*REFERENCE, *(f"native:{n}" for n in NATIVE)]
        raise ValueError(f"there is no optimizer {name!r}, wanted one of {', '.join(known)}")
    made: Optimizer = table[rule](network, **settings)
    return made


def compare(first: Optimizer, second: Optimizer, batches: Any) -> list[dict[str, Any]]:
    """Two optimizers step by step on the same batches: a row per step with the norm of the
    difference of every parameter, the largest difference of outputs, and both losses."""
    names = first.network.parameters()
    if names != second.network.parameters():
        raise ValueError(
            f"compare: the networks have other parameters: {names} and "
            f"{second.network.parameters()}"
        )
    rows = []
    for step, batch in enumerate(batches):
        a, b = first.train(batch), second.train(batch)
        row: dict[str, Any] = {"step": step}
        for x, y, name in zip(
            first.network.fetch(names), second.network.fetch(names), names, strict=True
        ):
            row[name] = float(np.linalg.norm((x - y).ravel()))
        row["outputs"] = max(float(np.abs(a[k] - b[k]).max(initial=0)) for k in a)
        row["first_loss"] = float(a[first.network.loss])
        row["second_loss"] = float(b[second.network.loss])
        rows.append(row)
    return rows
