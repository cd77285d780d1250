# SPDX-License-Identifier: Apache-2.0
"""What a classifier gets wrong. None of these has a gradient."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import Spec, check_same_shape
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.arithmetic import mul2
from nnl.functions.comparison import greater_equal, greater_equal_scalar, not_equal
from nnl.functions.softmax import Along, at_labels, check_label_shape, check_labels

CATEGORY = "Validation"

__all__ = ["top_n_error", "binary_error", "confusion_matrix"]


class Judged(Along):
    """Common to functions of scores and labels along one axis."""

    def cost(self, x, target):
        return Cost(flops=x.size, bytes=x.nbytes + target.nbytes)

    def samples(rng):
        x = rng.permutation(24).reshape(2, 3, 4) / 8
        yield Sample(x[0], np.array([[1], [3], [0]]))
        yield Sample(x, rng.integers(0, 3, (2, 1, 4)), axis=1)
        yield Sample(x, rng.integers(0, 2, (1, 3, 4)), axis=-3)


@op("top_n_error", wide=True, outputs=("output",), integer=("target",), nnp="TopNError")
class top_n_error(Judged):
    r"""1 where the label is not among the n best, else 0: $y = [\,|\{c : x_c \ge x_t\}| > n\,]$.

    A tie counts against it.

    Args:
        x: Scores (N, ..., C, ...), with the classes along `axis`.
        target: Integer labels in [0, C), of the shape of x with 1 in place of C; for negative ones
            the result is 0.
        axis: The axis of classes; the last if left out.
        n: How many classes may be named.
    Raises:
        ShapeError: target does not have that shape, or axis is out of range.
        ValueError: A label is C or larger.
    Example:
        >>> F.top_n_error(array([[1, 9, 5], [9, 1, 5]]), array([[1], [1]], int), n=2).d
        array([[0.],
               [1.]], dtype=float32)
    """

    n: int = 1

    def infer(self, x, target):
        return check_label_shape("top_n_error", x, target, self.axis)

    def forward(self, xp, x, target):
        check_labels("top_n_error", target, x.shape[self.axis])
        index = target.astype(np.int64, copy=False)
        chosen = x[at_labels(xp, index, self.axis)]
        as_large = xp.sum(x >= chosen, axis=self.axis, keepdims=True)
        return ((as_large > self.n) & (index >= 0)).astype(x.dtype)

    def portable(self, x, target):
        chosen = OPS["pick"](x, target, axes=(self.axis,))
        as_large = OPS["sum"](greater_equal(x, chosen), axes=(self.axis,), keep_dims=True)
        labelled = greater_equal_scalar(OPS["cast"](target, dtype=x.spec.dtype.name), 0.0)
        return mul2(OPS["greater_scalar"](as_large, float(self.n)), labelled)

    def samples(rng):
        yield from Judged.samples(rng)
        ties = np.array([[1.0, 1, 1], [3, 1, 1], [3, 3, 1]])
        for n in (1, 2, 3):
            yield Sample(ties, np.array([[0], [1], [1]]), n=n)


@op("binary_error", wide=True, outputs=("output",), nnp="BinaryError")
class binary_error:
    r"""1 where x and target lie on different sides of 0.5 (itself above), else 0.

    $$y = [\,(x \ge 0.5) \ne (t \ge 0.5)\,]$$

    Args:
        x, target: Probabilities of one shape.
    Raises:
        ShapeError: The shapes differ.
    """

    def infer(self, x, target):
        check_same_shape("binary_error", "x", x, "target", target)
        return x

    def forward(self, xp, x, target):
        return ((x >= 0.5) != (target >= 0.5)).astype(x.dtype)

    def portable(self, x, target):
        return not_equal(greater_equal_scalar(x, 0.5), greater_equal_scalar(target, 0.5))

    def cost(self, x, target):
        return Cost(flops=x.size, bytes=2 * x.nbytes + target.nbytes)

    def samples(rng):
        x = np.array([[0.4, 0.5, 0.6], [0.4, 0.5, 0.6]])
        yield Sample(x, np.array([[0.0, 0, 0], [1, 1, 1]]))


@op("confusion_matrix", wide=True, outputs=("output",), integer=("target",), nnp="ConfusionMatrix")
class confusion_matrix(Judged):
    r"""How often label i (row) was scored highest as class j (column): $y_{i j} = |\{n : t_n = i,
    \mathrm{argmax}_c\, x_{n c} = j\}|$; the first of equal scores.

    Args:
        x: Scores (N, ..., C, ...), with the classes along `axis`.
        target: Integer labels in [0, C), of the shape of x with 1 in place of C; negative ones are
            not counted.
        axis: The axis of classes; the last if left out.
    Returns:
        int32 (C, C).
    Raises:
        ShapeError: target does not have that shape, or axis is out of range.
        ValueError: A label is C or larger.
    """

    def infer(self, x, target):
        check_label_shape("confusion_matrix", x, target, self.axis)
        return Spec.of((x.shape[self.axis],) * 2, np.int32)

    def forward(self, xp, x, target):
        n = x.shape[self.axis]
        check_labels("confusion_matrix", target, n)
        if not x.size:
            return xp.zeros((n, n), np.int32)
        guess = xp.argmax(x, axis=self.axis).ravel()
        label = target.astype(np.int64).ravel()
        counts = xp.zeros(n * n, np.int32)
        xp.add.at(counts, xp.maximum(label, 0) * n + guess, (label >= 0).astype(np.int32))
        return counts.reshape(n, n)
