# SPDX-License-Identifier: Apache-2.0
"""Connectionist temporal classification: a loss of sequences that nobody has aligned."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError, check_rank
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.on_device import on_host

CATEGORY = "Loss"

__all__ = ["ctc_loss"]

NEVER = -1e30  # the logarithm of a probability of 0, of which differences are no NaN


class OfAlignments:
    """Attributes, checks and sums over alignments of the loss and its gradient."""

    blank: int = 0

    def check(self, x, label, x_length, label_length):
        check_rank("ctc_loss", "x", x, 3)
        check_rank("ctc_loss", "label", label, 2)
        b, steps, classes = x.shape
        if not steps or label.shape[0] != b:
            raise ShapeError(
                f"ctc_loss: x {x} and label {label}, wanted (B, T, C) with T > 0 and (B, L)"
            )
        for name, n in (("x_length", x_length), ("label_length", label_length)):
            if n is not None and n.shape != (b,):
                raise ShapeError(f"ctc_loss: {name} {n}, wanted the shape ({b},)")
        if not 0 <= self.blank < classes:
            raise ValueError(f"ctc_loss: blank is {self.blank}, wanted 0 to {classes - 1}")

    def lengths(self, xp, name, given, low, high, b):
        """(B,) integers, all at their most where they are not given."""
        if given is None:
            return xp.full(b, high, np.int64)
        if on_host(given) and given.size and (given.min() < low or given.max() > high):
            bad = int(given[(given < low) | (given > high)][0])
            raise ValueError(f"ctc_loss: {name} has the value {bad}, wanted {low} to {high}")
        return given.astype(np.int64)

    def places(self, xp, x, label, label_length):
        """Labels with blanks around each, (B, 2 L + 1), and 0 where one may follow the last but
        one, as a label does that is another than that; elsewhere NEVER."""
        b, n = label.shape
        there = xp.arange(n) < label_length[:, None]
        bad = there & ((label < 0) | (label >= x.shape[2]) | (label == self.blank))
        if on_host(label) and bad.any():
            raise ValueError(
                f"ctc_loss: label has the value {int(label[bad][0])}, wanted 0 to "
                f"{x.shape[2] - 1} without the blank {self.blank}"
            )
        at = xp.full((b, 2 * n + 1), self.blank, np.int64)
        at[:, 1::2] = xp.where(there, label, self.blank)
        bar = xp.full(at.shape, NEVER, x.dtype)
        free = (at[:, 2:] != self.blank) & (at[:, 2:] != at[:, :-2])
        bar[:, 2:] = xp.where(free, 0, NEVER)
        return at, bar

    def said(self, xp, log_p, at):
        """Logarithms of the probabilities of places, (T, B, S)."""
        return xp.ascontiguousarray(xp.take_along_axis(log_p, at[:, None], axis=2).swapaxes(0, 1))

    def forwards(self, xp, said, bar, x_length, label_length):
        """Logarithms of sums over beginnings of alignments, (T, B, S), and over all, (B,)."""
        steps, b, places = said.shape
        begun = xp.full((steps, b, places + 2), NEVER, said.dtype)  # two places before the first
        begun[0, :, 2:4] = said[0, :, :2]
        for t in range(1, steps):
            last = begun[t - 1]
            y = log_sum(xp, last[:, 2:], last[:, 1:-1], last[:, :-2] + bar)
            y += said[t]
            xp.maximum(y, NEVER, out=begun[t, :, 2:])
        rows, begun = xp.arange(b), begun[:, :, 2:]
        end = begun[x_length - 1, rows]
        last, other = end[rows, 2 * label_length], end[rows, xp.maximum(2 * label_length - 1, 0)]
        other = xp.where(label_length > 0, other, NEVER)
        return begun, xp.logaddexp(last, other)

    def backwards(self, xp, said, bar, x_length, label_length):
        """Logarithms of sums over what follows on a place at a time, (T, B, S)."""
        steps, b, places = said.shape
        s = xp.arange(places)
        ends = (s == 2 * label_length[:, None]) | (s == 2 * label_length[:, None] - 1)
        ends = xp.where(ends, 0, NEVER).astype(said.dtype)
        left = xp.full(said.shape, NEVER, said.dtype)
        after, barred = xp.full((2, b, places + 2), NEVER, said.dtype)  # two behind the last
        for t in range(steps - 1, -1, -1):
            if t + 1 < steps:
                xp.maximum(left[t + 1] + said[t + 1], NEVER, out=after[:, :-2])
                xp.add(after[:, :-2], bar, out=barred[:, :-2])
                y = log_sum(xp, after[:, :-2], after[:, 1:-1], barred[:, 2:])
                xp.maximum(y, NEVER, out=left[t])
            left[t] = xp.where((x_length == t + 1)[:, None], ends, left[t])
            left[t] = xp.where((x_length <= t)[:, None], NEVER, left[t])
        return left


def log_sum(xp, a, b, c):
    """ln(e^a + e^b + e^c)."""
    top = xp.maximum(xp.maximum(a, b), c)
    y = xp.exp(a - top)
    y += xp.exp(b - top)
    y += xp.exp(c - top)
    xp.log(y, out=y)
    y += top
    return y


def log_softmax(xp, x):
    x = x - x.max(axis=2, keepdims=True)
    return x - xp.log(xp.exp(x).sum(axis=2, keepdims=True))


@op("ctc_loss", wide=True, integer=("label", "x_length", "label_length"))
class ctc_loss(OfAlignments):
    r"""Cross entropy of labels whose place in a longer sequence is not known.

    $$y_b = -\ln \sum_{a \to l_b} \prod_t p_{b,t,a_t}, \quad p_{b,t} = \mathrm{softmax}(x_{b,t})$$
    over all alignments a, one class for each step, that become the labels l when first repeated
    classes are joined and then blanks left out. Between two equal labels there is a blank.

    Args:
        x: (B, T, C), scores; logarithms of probabilities are scores too.
        label: (B, L), integers in [0, C), without the blank.
        x_length: (B,), steps of each sequence, 1 to T; all T if left out. Later ones do not count.
        label_length: (B,), labels of each sequence, 0 to L; all L if left out.
        blank: The class that is no label.
    Returns:
        (B,), losses; infinite where a sequence is too short for its labels, with a gradient of 0.
        PyTorch takes (T, B, C) and divides its default mean by the number of labels.
    Raises:
        ShapeError: Ranks or sizes do not fit.
        ValueError: A label, a length or blank is out of range; or a gradient of the gradient is
            wanted.
    Source: Graves et al., Connectionist Temporal Classification, ICML 2006.
    Example:
        >>> x = array([[[0, 9, 0], [9, 0, 0], [0, 0, 9]]])  # most probably 1, nothing, 2
        >>> F.ctc_loss(x, array([[1, 2]], int)).d
        array([0.0005], dtype=float32)
    """

    def infer(self, x, label, x_length=None, label_length=None):
        self.check(x, label, x_length, label_length)
        return x.with_shape(x.shape[:1])

    def forward(self, xp, x, label, x_length, label_length):
        if not len(x):
            return xp.zeros(0, x.dtype)
        x_length = self.lengths(xp, "x_length", x_length, 1, x.shape[1], len(x))
        label_length = self.lengths(xp, "label_length", label_length, 0, label.shape[1], len(x))
        at, bar = self.places(xp, x, label, label_length)
        said = self.said(xp, log_softmax(xp, x), at)
        _, whole = self.forwards(xp, said, bar, x_length, label_length)
        return xp.where(whole > NEVER / 2, -whole, np.inf).astype(x.dtype)

    def vjp(self, gy, *, x, label, x_length, label_length):
        g = ctc_loss_backward(gy, x, label, x_length, label_length, blank=self.blank)
        return g, None, None, None

    def cost(self, x, label, x_length=None, label_length=None):
        return Cost(5 * x.size + 20 * x.shape[1] * label.size, x.nbytes)

    def samples(rng):
        x, grad = rng.normal(size=(2, 5, 4)), (True, False)
        label = np.array([[1, 2], [3, 3]])
        yield Sample(x, label, None, None, grad=(*grad, False, False), order=1)
        lengths = np.array([4, 5]), np.array([1, 0])
        yield Sample(x, label - 1, *lengths, grad=(*grad, False, False), order=1, blank=3)


@op("ctc_loss_backward", wide=True, integer=("label", "x_length", "label_length"))
class ctc_loss_backward(OfAlignments):
    """Gradient of `ctc_loss` by x: probabilities, less those that alignments give each class."""

    optional = ("x_length", "label_length")

    def infer(self, gy, x, label, x_length=None, label_length=None):
        return x

    def forward(self, xp, gy, x, label, x_length, label_length):
        b, steps, classes = x.shape
        if not b:
            return xp.zeros(x.shape, x.dtype)
        x_length = self.lengths(xp, "x_length", x_length, 1, steps, b)
        label_length = self.lengths(xp, "label_length", label_length, 0, label.shape[1], b)
        at, bar = self.places(xp, x, label, label_length)
        log_p = log_softmax(xp, x)
        said = self.said(xp, log_p, at)
        begun, whole = self.forwards(xp, said, bar, x_length, label_length)
        left = self.backwards(xp, said, bar, x_length, label_length)
        there = xp.exp(xp.minimum(begun + left - whole[:, None], 0)).swapaxes(0, 1)
        of_class = (at[:, :, None] == xp.arange(classes)).astype(x.dtype)
        g = xp.exp(log_p) - there @ of_class
        counts = (xp.arange(steps) < x_length[:, None]) & (whole > NEVER / 2)[:, None]
        return xp.where(counts[:, :, None], g, 0).astype(x.dtype) * gy[:, None, None]

    def vjp(self, gg, *, x):
        raise ValueError("ctc_loss: its gradient has no gradient; wanted a loss without it")

    def samples(rng):
        gy = rng.normal(size=2)
        for s in ctc_loss.attrs_class.samples(rng):
            yield Sample(gy, *s.inputs, grad=(False,) * 5, order=0, **s.attrs)

    def cost(self, gy, x, label, x_length=None, label_length=None):
        return Cost(10 * x.size + 60 * x.shape[1] * label.size, 2 * x.nbytes)
