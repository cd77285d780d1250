# SPDX-License-Identifier: Apache-2.0
"""Cross entropy of scores that are products with the rows of a table, without the scores."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError, check_rank
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.affine import batch_matmul
from nnl.functions.arithmetic import add2, add_scalar, mul2, mul_scalar, sub2
from nnl.functions.on_device import on_host
from nnl.functions.reduction import max_op, reshape, sum_op

CATEGORY = "Loss"

__all__ = ["linear_cross_entropy"]

CHUNK = 1 << 22  # scores that the definition holds at once


class OfRows:
    """Attributes and checks of the loss and its gradient."""

    ignore_index: int = -100
    soft_cap: float = 0.0

    def check(self, x, weight, label):
        name = self.op.name
        check_rank(name, "weight", weight, 2)
        if not x.shape or x.shape[-1] != weight.shape[1]:
            raise ShapeError(
                f"{name}: x {x} has another number of features than a row of weight {weight}"
            )
        if label.shape != x.shape[:-1]:
            raise ShapeError(f"{name}: label {label}, wanted the shape {x.shape[:-1]} for x {x}")
        if not weight.shape[0]:
            raise ShapeError(f"{name}: weight {weight} has no rows")
        if self.soft_cap < 0:
            raise ValueError(f"{name}: soft_cap is {self.soft_cap}, wanted at least 0")

    def check_labels(self, label, rows):
        """Raise a ValueError unless labels are rows of the table, or the one that is ignored."""
        if not on_host(label):
            return
        bad = ((label < 0) | (label >= rows)) & (label != self.ignore_index)
        if bad.any():
            raise ValueError(
                f"{self.op.name}: label holds {label[bad].ravel()[0]}, wanted 0 to "
                f"{rows - 1}, or ignore_index {self.ignore_index}"
            )

    def chunks(self, n, rows):
        step = max(1, CHUNK // rows)
        return [slice(i, i + step) for i in range(0, n, step)]

    def scores(self, xp, x, weight):
        """(scores of a chunk of x, the slope of their cap)."""
        s = x @ weight.T
        if not self.soft_cap:
            return s, None
        t = xp.tanh(s / self.soft_cap)
        return t * self.soft_cap, 1 - t * t


@op("linear_cross_entropy", outputs=("y", "lse"), hidden=1, wide=True, integer=("label",))
class linear_cross_entropy(OfRows):
    r"""Softmax cross entropy of the scores $s_{nv} = x_n \cdot w_v$ of a large vocabulary.

    $$y_n = \ln \sum_v e^{s_{nv}} - s_{n l_n}$$ Scores are computed in chunks, and again for the
    gradient: memory does not grow with N V.

    Args:
        x: (..., D).
        weight: (V, D), a row for each class, as an embedding has it.
        label: (...), integers: l.
        ignore_index: A label whose loss is 0.
        soft_cap: If not 0, scores s become $c \tanh(s / c)$ first.
    Returns:
        (...), float32. For the mean over the labels that count, divide its sum by their number.
    Raises:
        ShapeError: Sizes do not fit.
        ValueError: A label is no row of weight.
    Source: Wijmans et al., Cut Your Losses in Large-Vocabulary Language Models, arXiv:2411.09009.
    Example:
        >>> x, w = array([[0, 0], [0, 9]]), array([[1, 0], [0, 1]])
        >>> F.linear_cross_entropy(x, w, array([0, 1], int)).d
        array([0.6931, 0.0001], dtype=float32)
    """

    def infer(self, x, weight, label):
        self.check(x, weight, label)
        y = x.with_shape(label.shape)
        return y, y

    def forward(self, xp, x, weight, label):
        rows = weight.shape[0]
        self.check_labels(label, rows)
        x, flat = x.reshape(-1, x.shape[-1]), label.reshape(-1)
        y, lse = xp.zeros(flat.shape, x.dtype), xp.zeros(flat.shape, x.dtype)
        for part in self.chunks(len(flat), rows):
            s, _ = self.scores(xp, x[part], weight)
            top = s.max(axis=1)
            lse[part] = xp.log(xp.exp(s - top[:, None]).sum(axis=1)) + top
            at = xp.clip(flat[part], 0, rows - 1).astype(np.int64)
            own = xp.take_along_axis(s, at[:, None], axis=1)[:, 0]
            y[part] = xp.where(flat[part] == self.ignore_index, 0, lse[part] - own)
        return y.reshape(label.shape), lse.reshape(label.shape)

    def decompose(self, x, weight, label):
        s = flat_scores(self, x, weight)
        top = OPS["unlink"](max_op(s, axes=(2,), keep_dims=True))
        lse = add2(OPS["log"](total(OPS["exp"](sub2(s, top)))), top)
        hit, counts = chosen(self, label, weight)
        y = mul2(sub2(lse, total(mul2(s, hit))), counts)
        return reshape(y, label.shape), reshape(lse, label.shape)

    def vjp(self, gy, glse, *, x, weight, label, lse):
        gx, gw = linear_cross_entropy_backward(
            gy, x, weight, label, lse, glse, ignore_index=self.ignore_index, soft_cap=self.soft_cap
        )
        return gx, gw, None

    def cost(self, x, weight, label):
        return Cost(2 * label.size * weight.size, x.nbytes + weight.nbytes)

    def samples(rng):
        x, w = rng.normal(size=(2, 3, 4)), rng.normal(size=(5, 4))
        label = np.array([[0, 4, 2], [-100, 1, 1]])
        yield Sample(x, w, label, grad=(True, True, False))
        yield Sample(x[0], w, label[0], grad=(True, True, False), ignore_index=2, soft_cap=1.5)


@op("linear_cross_entropy_backward", outputs=("gx", "gw"), wide=(1,), integer=("label",))
class linear_cross_entropy_backward(OfRows):
    """Gradients of `linear_cross_entropy` by x and weight.

    Args:
        gy: Gradient of y. x, weight, label: Its inputs. lse: Its second result.
        glse: Gradient of lse, where there is one.
    """

    zeros = ("glse",)

    def infer(self, gy, x, weight, label, lse, glse=None):
        self.check(x, weight, label)
        if gy.shape != label.shape or lse.shape != label.shape:
            raise ShapeError(f"{self.op.name}: gy {gy} and lse {lse} do not fit label {label}")
        return x, weight

    def forward(self, xp, gy, x, weight, label, lse, glse):
        rows = weight.shape[0]
        flat_x, label = x.reshape(-1, x.shape[-1]), label.reshape(-1)
        gy = xp.where(label == self.ignore_index, 0, gy.reshape(-1))
        slope = gy if glse is None else gy + glse.reshape(-1)
        lse = lse.reshape(-1)
        gx, gw = xp.zeros(flat_x.shape, x.dtype), xp.zeros(weight.shape, weight.dtype)
        for part in self.chunks(len(label), rows):
            s, bend = self.scores(xp, flat_x[part], weight)
            g = xp.exp(s - lse[part, None]) * slope[part, None]
            at = xp.clip(label[part], 0, rows - 1).astype(np.int64)
            g[xp.arange(len(g)), at] -= gy[part]
            if bend is not None:
                g *= bend
            gx[part] = g @ weight
            gw += g.T @ flat_x[part]
        return gx.reshape(x.shape), gw

    def decompose(self, gy, x, weight, label, lse, glse=None):
        n = label.size
        s = flat_scores(self, x, weight)
        p = OPS["exp"](sub2(s, reshape(lse, (1, n, 1))))
        hit, counts = chosen(self, label, weight)
        gy = mul2(reshape(gy, (1, n, 1)), counts)
        g = mul2(gy, sub2(p, hit))
        if glse is not None:
            g = add2(g, mul2(p, reshape(glse, (1, n, 1))))
        if self.soft_cap:
            t = mul_scalar(s, 1 / self.soft_cap)
            g = mul2(g, add_scalar(mul_scalar(mul2(t, t), -1.0), 1.0))
        rows = reshape(x, (1, n, x.shape[-1]))
        gx = batch_matmul(g, reshape(weight, (1, *weight.shape)))
        gw = batch_matmul(g, rows, transpose_a=True)
        return reshape(gx, x.shape), reshape(gw, weight.shape)

    def cost(self, gy, x, weight, label, lse, glse=None):
        return Cost(6 * label.size * weight.size, 2 * x.nbytes + 2 * weight.nbytes)

    def samples(rng):
        for s in linear_cross_entropy.attrs_class.samples(rng):
            x, w, label = s.inputs
            gy, glse = rng.normal(size=(2, *label.shape))
            scores = x @ w.T
            if cap := s.attrs.get("soft_cap"):
                scores = cap * np.tanh(scores / cap)
            lse = np.log(np.exp(scores).sum(-1))
            grad = (True, True, True, False, True, True)
            yield Sample(gy, x, w, label, lse, glse, grad=grad, **s.attrs)
            yield Sample(gy, x, w, label, lse, None, grad=(*grad[:5], False), **s.attrs)


def flat_scores(attrs, x, weight):
    """(1, N, V), with the cap."""
    rows = reshape(x, (1, x.size // (x.shape[-1] or 1), x.shape[-1]))
    s = batch_matmul(rows, reshape(weight, (1, *weight.shape)), transpose_b=True)
    if attrs.soft_cap:
        s = mul_scalar(OPS["tanh"](mul_scalar(s, 1 / attrs.soft_cap)), attrs.soft_cap)
    return s


def chosen(attrs, label, weight):
    """(1 at the label, 1 for labels that count), (1, N, V) and (1, N, 1)."""
    counts = OPS["not_equal_scalar"](label, val=float(attrs.ignore_index))
    counts = reshape(counts, (1, label.size, 1))
    at = mul2(reshape(label, (1, label.size, 1)), counts)
    hit = OPS["one_hot"](reshape(at, (label.size, 1)), shape=(weight.shape[0],))
    return mul2(reshape(hit, (1, label.size, weight.shape[0])), counts), counts


def total(x):
    return sum_op(x, axes=(2,), keep_dims=True)
