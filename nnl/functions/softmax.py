# SPDX-License-Identifier: Apache-2.0
"""Softmax, its logarithm, and the cross entropies of class labels."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError, check_axis, check_same_shape
from nnl.core.ops.op import OPS, Cost, Onnx, Sample, op
from nnl.functions.arithmetic import div2, mul2, mul_scalar, sub2
from nnl.functions.choice import pick, place
from nnl.functions.on_device import on_host
from nnl.functions.reduction import sum_op
from nnl.functions.standardize import blocks

CATEGORY = "Activation"

__all__ = ["softmax", "log_softmax", "softmax_cross_entropy", "categorical_cross_entropy"]

# The smallest probability whose logarithm is taken: NNabla's, the smallest normal float32.
TINY = 2.0**-126


class Along:
    """Common to functions along one axis, the last unless told."""

    axis: int | None = None

    def resolve(self, x, *rest):
        return {"axis": check_axis(self.op.name, -1 if self.axis is None else self.axis, x)}

    def infer(self, x):
        return x

    def cost(self, x):
        return Cost(flops=5 * x.size, bytes=2 * x.nbytes)

    def samples(rng):
        for axis in (None, 0, 1, -1):
            yield Sample(rng.normal(size=(2, 3, 4)), axis=axis)
        yield Sample(np.array([[-1000.0, 1.0, 999.0]]), axis=1)
        yield Sample(rng.normal(size=(0, 3)), axis=1)


def largest(xp, x, axis):
    """The largest element along the axis, which keeps size 1."""
    if not x.shape[axis]:
        return xp.zeros([1 if i == axis % x.ndim else n for i, n in enumerate(x.shape)], x.dtype)
    return x.max(axis=axis, keepdims=True)


def sum_of_exponentials(xp, x, top, axis):
    """Sum of exp(x - top) along the axis, block by block, so that the terms stay in the cache."""
    if axis == 0:
        return xp.sum(xp.exp(x - top), axis=0, keepdims=True)
    total = xp.empty_like(top)
    for block in blocks(x.shape):
        e = x[block] - top[block]
        xp.sum(xp.exp(e, out=e), axis=axis, keepdims=True, out=total[block])
    return total


def along_sum(x, axis):
    return sum_op(x, axes=(axis,), keep_dims=True)


@op("softmax", nnp="Softmax", onnx=Onnx("Softmax", since=13, axis="axis"))
class softmax(Along):
    r"""Normalise to a probability distribution along an axis.

    $$y_i = e^{x_i - m} / \sum_j e^{x_j - m}, \quad m = \max_j x_j$$

    Args:
        x: Scores, at least one axis.
        axis: The axis that sums to 1; the last if left out.
    Raises:
        ShapeError: axis is out of range.
    Source: Bridle, Probabilistic Interpretation of Feedforward Classification Network Outputs,
        Neurocomputing, 1990.
    Example:
        >>> F.softmax(array([[1, 1, 1], [0, 0, 9]])).d
        array([[0.3333, 0.3333, 0.3333],
               [0.0001, 0.0001, 0.9998]], dtype=float32)
    """

    def forward(self, xp, x, out=None):
        y = xp.subtract(x, largest(xp, x, self.axis), out=out)
        xp.exp(y, out=y)
        y /= xp.sum(y, axis=self.axis, keepdims=True)
        return y

    def vjp(self, gy, *, y):
        return softmax_backward(gy, y, self.axis)


class AlongBackward:
    """Common to the gradients of softmax and log_softmax."""

    axis: int

    def infer(self, gy, y):
        check_same_shape(self.op.name, "gy", gy, "y", y)
        return y

    def cost(self, gy, y):
        return Cost(flops=4 * y.size, bytes=3 * y.nbytes)

    def samples(rng):
        for axis in (0, 1, 2):
            y = rng.uniform(0.1, 0.9, (2, 3, 4))
            yield Sample(rng.normal(size=(2, 3, 4)), y, axis=axis)


@op("softmax_backward")
class softmax_backward(AlongBackward):
    r"""$y_i (g_i - \sum_j g_j y_j)$, the gradient of softmax."""

    def forward(self, xp, gy, y):
        gx = gy * y
        total = xp.sum(gx, axis=self.axis, keepdims=True)
        xp.subtract(gy, total, out=gx)
        gx *= y
        return gx

    def decompose(self, gy, y):
        return mul2(y, sub2(gy, along_sum(mul2(gy, y), self.axis)))


@op("log_softmax", nnp="LogSoftmax", onnx=Onnx("LogSoftmax", since=13, axis="axis"))
class log_softmax(Along):
    r"""Logarithm of softmax, without overflow.

    $$y_i = x_i - m - \log \sum_j e^{x_j - m}, \quad m = \max_j x_j$$

    Args:
        x: Scores, at least one axis.
        axis: The axis of classes; the last if left out.
    Raises:
        ShapeError: axis is out of range.
    """

    def forward(self, xp, x, out=None):
        y = xp.subtract(x, largest(xp, x, self.axis), out=out)
        y -= xp.log(xp.sum(xp.exp(y), axis=self.axis, keepdims=True))
        return y

    def vjp(self, gy, *, y):
        return log_softmax_backward(gy, y, self.axis)


@op("log_softmax_backward")
class log_softmax_backward(AlongBackward):
    r"""$g_i - e^{y_i} \sum_j g_j$, the gradient of log_softmax."""

    def forward(self, xp, gy, y):
        gx = xp.exp(y)
        gx *= xp.sum(gy, axis=self.axis, keepdims=True)
        return xp.subtract(gy, gx, out=gx)

    def decompose(self, gy, y):
        return sub2(gy, mul2(OPS["exp"](y), along_sum(gy, self.axis)))


# ---- cross entropies of labels ----


def check_label_shape(name, x, target, axis):
    """Raise unless target has one label where x has an axis of classes."""
    wanted = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    if target.shape != wanted:
        hint = ""
        if target.shape == x.shape:
            hint = f": of rows t that are one-hot, it is t.argmax({axis}, keepdims=True)"
        elif target.shape == wanted[:axis] + wanted[axis + 1 :]:
            hint = f": write F.reshape(target, {wanted})"
        raise ShapeError(f"{name}: target {target} must have the shape {wanted} for x {x}{hint}")
    return x.with_shape(wanted)


def check_labels(name, target, classes):
    """Raise if a label is too large. Negative ones stand for no label."""
    if on_host(target) and target.size and (top := int(target.max())) >= classes:
        raise ValueError(
            f"{name}: target has the label {top}, wanted labels in [0, {classes}), "
            "or negative ones to be ignored"
        )


def at_labels(xp, index, axis):
    """What indexes the elements that labels choose along an axis; the first for negative ones."""
    at = [
        xp.arange(n).reshape((-1,) + (1,) * (index.ndim - 1 - i)) for i, n in enumerate(index.shape)
    ]
    at[axis] = xp.maximum(index, 0)
    return tuple(at)


class OfLabels(Along):
    """Common to the two cross entropies: one loss per label, same shape rules."""

    def infer(self, x, target):
        return check_label_shape(self.op.name, x, target, self.axis)

    def cost(self, x, target):
        return Cost(flops=4 * x.size, bytes=x.nbytes + target.nbytes)

    def samples(rng):
        scores = rng.uniform(0.1, 0.9, (2, 3, 4))
        yield Sample(scores[0], np.array([[1], [3], [0]]))
        yield Sample(scores[0], np.array([[1], [-1], [0]]), axis=1)  # one is ignored
        yield Sample(scores, rng.integers(0, 3, (2, 1, 4)), axis=1)
        yield Sample(scores, rng.integers(0, 2, (1, 3, 4)), axis=-3)


@op(
    "softmax_cross_entropy",
    wide=True,
    outputs=("y", "largest", "total"),
    hidden=2,
    integer=("target",),
    nnp="SoftmaxCrossEntropy",
)
class softmax_cross_entropy(OfLabels):
    r"""$y = -\log \mathrm{softmax}(x)_t$ for each label t. Where t is negative, the loss is 0.

    Args:
        x: Scores (N, ..., C, ...), with the classes along `axis`.
        target: Integer labels in [0, C), of the shape of x with 1 in place of C; negative ones are
            ignored.
        axis: The axis of classes; the last if left out.
    Returns:
        Losses, of the shape of target.
    Raises:
        ShapeError: target does not have that shape, or axis is out of range.
        ValueError: A label is C or larger.
    Example:
        >>> F.softmax_cross_entropy(array([[0, 0], [0, 9]]), array([[0], [1]], int)).d
        array([[0.6931],
               [0.0001]], dtype=float32)
    """

    def infer(self, x, target):
        y = check_label_shape("softmax_cross_entropy", x, target, self.axis)
        return y, y, y

    def forward(self, xp, x, target):
        check_labels("softmax_cross_entropy", target, x.shape[self.axis])
        top = largest(xp, x, self.axis)
        index = target.astype(np.int64, copy=False)
        chosen = x[at_labels(xp, index, self.axis)]
        total = sum_of_exponentials(xp, x, top, self.axis)
        y = xp.log(total)
        y -= chosen - top
        xp.copyto(y, 0, where=index < 0)
        return y, top, total

    def vjp(self, gy, *_, x, target, largest, total):
        return softmax_cross_entropy_backward(gy, x, target, largest, total, self.axis), None


@op("softmax_cross_entropy_backward", integer=("target",))
class softmax_cross_entropy_backward:
    """Softmax of x, less 1 at the label, times gy; 0 where the label is negative.

    Args:
        largest, total: Of x along the axis: its maximum m, and the sum of exp(x - m).
    """

    axis: int

    def infer(self, gy, x, target, largest, total):
        check_label_shape("softmax_cross_entropy_backward", x, target, self.axis)
        return x

    def forward(self, xp, gy, x, target, largest, total):
        index = target.astype(np.int64, copy=False)
        weight = xp.where(index < 0, 0, gy)
        gx = x - largest
        xp.exp(gx, out=gx)
        gx *= weight / total
        at = at_labels(xp, index, self.axis)
        gx[at] = gx[at] - weight
        return gx

    def decompose(self, gy, x, target, largest, total):
        g = place(gy, target, shape=x.shape, axes=(self.axis,))
        return sub2(mul2(softmax(x, self.axis), along_sum(g, self.axis)), g)

    def cost(self, gy, x, target, largest, total):
        return Cost(flops=4 * x.size, bytes=2 * x.nbytes + target.nbytes)

    def samples(rng):
        x, label = rng.normal(size=(2, 3, 4)), np.array([[[1, 0, 2, -1]], [[2, 2, 0, 1]]])
        top = x.max(1, keepdims=True)
        total = np.exp(x - top).sum(1, keepdims=True)
        yield Sample(
            rng.normal(size=(2, 1, 4)), x, label, top, total, axis=1,
            grad=(True, False, False, False, False),
        )  # fmt: skip


@op("categorical_cross_entropy", wide=True, integer=("target",), nnp="CategoricalCrossEntropy")
class categorical_cross_entropy(OfLabels):
    r"""$y = -\log \max(x_t, 2^{-126})$ for each label t. Where t is negative, the loss is 0.

    Args:
        x: Probabilities (N, ..., C, ...), with the classes along `axis`.
        target: Integer labels in [0, C), of the shape of x with 1 in place of C; negative ones are
            ignored.
        axis: The axis of classes; the last if left out.
    Returns:
        Losses, of the shape of target.
    Raises:
        ShapeError: target does not have that shape, or axis is out of range.
        ValueError: A label is C or larger.
    """

    def forward(self, xp, x, target):
        check_labels("categorical_cross_entropy", target, x.shape[self.axis])
        index = target.astype(np.int64, copy=False)
        y = x[at_labels(xp, index, self.axis)]
        y = xp.negative(xp.log(xp.maximum(y, TINY, out=y), out=y), out=y)
        xp.copyto(y, 0, where=index < 0)
        return y

    def vjp(self, gy, *, x, target):
        axes = (self.axis,)
        chosen = OPS["maximum_scalar"](pick(x, target, axes=axes), TINY)
        return mul_scalar(place(div2(gy, chosen), target, shape=x.shape, axes=axes), -1.0), None
