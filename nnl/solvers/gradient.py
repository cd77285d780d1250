# SPDX-License-Identifier: Apache-2.0
"""Functions that change gradients before an update: weight decay, scaling, clipping by norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import check_same_shape
from nnl.core.graph.dispatch import bind
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import Cost, Op, Sample, op
from nnl.core.settings.context import REORDERED, STATE
from nnl.solvers.rule import norm


@op("decay_gradient")
class decay_gradient:
    r"""Gradient of a loss with an L2 penalty: $y = g + \mathit{rate}\, w$.

    Args:
        g, w: Gradient and weight, one shape.
        rate: Weight decay rate.
    Raises:
        ShapeError: The shapes differ.
    """

    rate: float

    def infer(self, g, w):
        check_same_shape("decay_gradient", "g", g, "w", w)
        return g

    def forward(self, xp, g, w, out=None):
        return xp.add(g, xp.multiply(w, self.rate), out=out)

    def vjp(self, gy):
        return gy, scale_gradient(gy, self.rate)

    def cost(self, g, w):
        return Cost(flops=2 * g.size, bytes=3 * g.nbytes)

    def samples(rng):
        for shape in ((2, 3), (), (0, 2)):
            yield Sample(rng.normal(size=shape), rng.normal(size=shape), rate=0.3)


@op("scale_gradient")
class scale_gradient:
    r"""$y = \mathit{scale}\, g$.

    Args:
        g: Any shape.
        scale: A finite number.
    """

    scale: float

    def infer(self, g):
        return g

    def forward(self, xp, g, out=None):
        return xp.multiply(g, self.scale, out=out)

    def vjp(self, gy):
        return scale_gradient(gy, self.scale)

    def cost(self, g):
        return Cost(flops=g.size, bytes=2 * g.nbytes)

    def samples(rng):
        for shape in ((2, 3), (), (0, 2)):
            yield Sample(rng.normal(size=shape), scale=0.3)


@op("clip_gradient")
class clip_gradient:
    r"""Scale g down to a norm of at most clip_norm: $y = g \min(1, c / \|g\|)$.

    A clip_norm of 0 leaves g as it is. Like every update, this has no gradient of its own:
    F.clip_grad_by_norm is the function to put into a network.

    Args:
        g: Any shape; the norm is that of all its elements.
        clip_norm: $c$, in the units of g.
    """

    clip_norm: float

    def infer(self, g):
        return g

    def forward(self, xp, g, out=None):
        length = norm(xp, g)
        clip = 0.0 < self.clip_norm < length
        return xp.multiply(g, self.clip_norm / length if clip else 1.0, out=out)

    def cost(self, g):
        return Cost(flops=3 * g.size, bytes=3 * g.nbytes)

    def samples(rng):
        for shape in ((2, 3), (), (0, 2)):
            for clip_norm in (0.0, 0.5, 100.0):
                yield Sample(rng.normal(size=shape), clip_norm=clip_norm, grad=(False,))


def order_of(gradient: NdArray) -> str:
    """The memory space to read a gradient in where the order of its elements does not matter."""
    if "host" in gradient.bufs:  # which somebody may hold, and write to
        return "host"
    return next((space for space in gradient.bufs if space in REORDERED), "host")


def has_inf(array: np.ndarray) -> bool:
    """Whether any element is infinite."""
    return bool(np.isinf(array).any())


def has_nan(array: np.ndarray) -> bool:
    """Whether any element is not a number."""
    return bool(np.isnan(array).any())


def has_inf_or_nan(array: np.ndarray) -> bool:
    """Whether any element is not finite."""
    return not np.isfinite(array).all()


def change(
    params: Sequence[Variable], op: Op, attrs: Any, inputs: Sequence[tuple[Any, ...]]
) -> None:
    """Let the gradient of each parameter be what an op makes of inputs, which begin with it."""
    if not STATE.interpreter.now.change(params, op, attrs, inputs):
        for datas in inputs:
            _write_over(op, attrs, datas)


def _write_over(op: Op, attrs: Any, datas: tuple[NdArray, ...]) -> None:
    """Compute op(*datas) into the memory of the first of them, which others may share."""
    grad = datas[0]
    bound = bind(op, attrs, STATE.target, tuple([d.spec for d in datas]))
    space = order_of(grad) if bound.space == "host" else bound.space
    bufs = [d.read(space) for d in datas]
    into = grad.touch(space)
    if bound.into and bound.out_specs[0] is grad.spec:
        bound.call(*bufs, out=into)
    else:
        into[...] = bound.call(*bufs).reshape(into.shape)
