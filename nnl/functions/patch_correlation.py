# SPDX-License-Identifier: Apache-2.0
"""Products of patches of one image with shifted patches of another.

The correlation is linear in both images; it and its gradients by either are a closed family: the
gradients of any one are the other two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import Input, checked
from nnl.core.arrays.spec import ShapeError, check_rank, check_same_shape
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.layout import transpose

CATEGORY = "Special"

__all__ = ["patch_correlation"]


class Correlation:
    """Attributes of the correlation and of its gradients, and the geometry they describe."""

    patch: tuple[int, ...] = (1, 1)
    shift: tuple[int, ...] = (0, 0)
    patch_step: tuple[int, ...] = (1, 1)
    shift_step: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)

    def settings(self):
        return {f: getattr(self, f) for f in Correlation.__annotations__}

    def check_settings(self):
        least = {"patch": 1, "shift": 0, "patch_step": 1, "shift_step": 1, "padding": 0}
        for field, low in least.items():
            values, n = getattr(self, field), 4 if field == "padding" else 2
            if len(values) != n or min(values) < low:
                raise ValueError(
                    f"patch_correlation: {field} is {values}, wanted {n} numbers >= {low}"
                )

    def padded(self, shape):
        """Height and width with the padding."""
        top, bottom, left, right = self.padding
        return shape[1] + top + bottom, shape[2] + left + right

    def result_shape(self, shape):
        out = [
            (n - k) // s + 1
            for n, k, s in zip(self.padded(shape), self.patch, self.patch_step, strict=True)
        ]
        shifts = [2 * s // step + 1 for s, step in zip(self.shift, self.shift_step, strict=True)]
        return (shape[0], *out, *shifts)

    def pad(self, xp, x, extra=(0, 0)):
        """x with zeros around it: the padding, and `extra` rows and columns at either end."""
        top, _, left, _ = self.padding
        h, w = self.padded(x.shape)
        y = xp.zeros((len(x), h + 2 * extra[0], w + 2 * extra[1], x.shape[3]), x.dtype)
        self.crop(y, x.shape, extra)[...] = x
        return y

    def crop(self, y, shape, extra=(0, 0)):
        """The view of a padded array without its padding."""
        i, j = self.padding[0] + extra[0], self.padding[2] + extra[1]
        return y[:, i : i + shape[1], j : j + shape[2]]

    def shifts(self, shape):
        """(index of the shift, region of the image padded by `shift` that it moves)."""
        h, w = self.padded(shape)
        for m in range(2 * self.shift[0] // self.shift_step[0] + 1):
            for n in range(2 * self.shift[1] // self.shift_step[1] + 1):
                i, j = m * self.shift_step[0], n * self.shift_step[1]
                yield (m, n), (slice(None), slice(i, i + h), slice(j, j + w))

    def spread(self, xp, gy, shape):
        """Sums of gy over the patches that a pixel is in: (N, padded height, padded width)."""
        (kh, kw), (sh, sw), (oh, ow) = self.patch, self.patch_step, gy.shape[1:]
        y = xp.zeros((len(gy), *self.padded(shape)), gy.dtype)
        for i in range(kh):
            for j in range(kw):
                y[:, i : i + sh * (oh - 1) + 1 : sh, j : j + sw * (ow - 1) + 1 : sw] += gy
        return y

    def cost_of(self, x, y):
        products = x.size * y.shape[3] * y.shape[4]
        return Cost(2 * products + y.size * self.patch[0] * self.patch[1], 2 * x.nbytes + y.nbytes)


@op("patch_correlation", nnp="PatchCorrelation")
class patch_correlation_op(Correlation):
    """See patch_correlation; channels are last."""

    def infer(self, x1, x2):
        self.check_settings()
        check_rank("patch_correlation", "x1", x1, 4)
        check_same_shape("patch_correlation", "x1", x1, "x2", x2)
        y = self.result_shape(x1.shape)
        if min(y[1:3]) < 1:
            raise ShapeError(
                f"patch_correlation: patch {self.patch} is larger than x1 {x1} (channels last) "
                f"with padding {self.padding}"
            )
        return x1.with_shape(y)

    def forward(self, xp, x1, x2):
        n, oh, ow, mh, mw = self.result_shape(x1.shape)
        a, b = self.pad(xp, x1), self.pad(xp, x2, self.shift)
        (kh, kw), (sh, sw) = self.patch, self.patch_step
        y = xp.zeros((mh, mw, n, oh, ow), x1.dtype)
        for at, region in self.shifts(x1.shape):
            products = xp.einsum("nhwc,nhwc->nhw", a, b[region])
            for i in range(kh):
                for j in range(kw):
                    rows = slice(i, i + sh * (oh - 1) + 1, sh)
                    y[at] += products[:, rows, j : j + sw * (ow - 1) + 1 : sw]
        return xp.ascontiguousarray(y.transpose(2, 3, 4, 0, 1))

    def vjp(self, gy, *, x1, x2, need):
        return (
            patch_correlation_first(x2, gy, **self.settings()) if need[0] else None,
            patch_correlation_second(x1, gy, **self.settings()) if need[1] else None,
        )

    def cost(self, x1, x2):
        return self.cost_of(x1, self.infer(x1, x2))

    def samples(rng):
        x1, x2 = rng.normal(size=(2, 2, 5, 6, 3))
        yield Sample(x1, x2)
        yield Sample(
            x1, x2, patch=(2, 3), shift=(1, 1), patch_step=(2, 1), shift_step=(1, 2),
            padding=(1, 0, 2, 1),
        )  # fmt: skip
        yield Sample(x1, x2, patch=(2, 2), shift=(2, 3), patch_step=(2, 3), shift_step=(3, 2))
        yield Sample(x1[:0], x2[:0], patch=(2, 2))


@op("patch_correlation_first", outputs=("gx1",))
class patch_correlation_first(Correlation):
    """Gradient of the correlation by x1."""

    def infer(self, x2, gy):
        return x2

    def forward(self, xp, x2, gy):
        b = self.pad(xp, x2, self.shift)
        y = xp.zeros((len(x2), *self.padded(x2.shape), x2.shape[3]), gy.dtype)
        for (m, n), region in self.shifts(x2.shape):
            y += self.spread(xp, gy[..., m, n], x2.shape)[..., None] * b[region]
        return self.crop(y, x2.shape).copy()

    def vjp(self, ggx1, *, x2, gy, need):
        return (
            patch_correlation_second(ggx1, gy, **self.settings()) if need[0] else None,
            patch_correlation_op(ggx1, x2, **self.settings()) if need[1] else None,
        )

    def cost(self, x2, gy):
        return self.cost_of(x2, gy)

    def samples(rng):
        x = rng.normal(size=(2, 5, 6, 3))
        yield Sample(
            x, rng.normal(size=(2, 2, 6, 3, 2)), patch=(2, 3), shift=(1, 1), patch_step=(3, 1),
            shift_step=(1, 2), padding=(1, 0, 2, 0),
        )  # fmt: skip


@op("patch_correlation_second", outputs=("gx2",))
class patch_correlation_second(Correlation):
    """Gradient of the correlation by x2."""

    def infer(self, x1, gy):
        return x1

    def forward(self, xp, x1, gy):
        a = self.pad(xp, x1)
        h, w = self.padded(x1.shape)
        y = xp.zeros((len(x1), h + 2 * self.shift[0], w + 2 * self.shift[1], x1.shape[3]), gy.dtype)
        for (m, n), region in self.shifts(x1.shape):
            y[region] += self.spread(xp, gy[..., m, n], x1.shape)[..., None] * a
        return self.crop(y, x1.shape, self.shift).copy()

    def vjp(self, ggx2, *, x1, gy, need):
        return (
            patch_correlation_first(ggx2, gy, **self.settings()) if need[0] else None,
            patch_correlation_op(x1, ggx2, **self.settings()) if need[1] else None,
        )

    def cost(self, x1, gy):
        return self.cost_of(x1, gy)

    def samples(rng):
        x = rng.normal(size=(2, 5, 6, 3))
        yield Sample(
            x, rng.normal(size=(2, 2, 6, 3, 2)), patch=(2, 3), shift=(1, 1), patch_step=(3, 1),
            shift_step=(1, 2), padding=(1, 0, 2, 0),
        )  # fmt: skip


@checked
def patch_correlation(
    x1: Input,
    x2: Input,
    patch: int | Sequence[int] = (1, 1),
    shift: int | Sequence[int] = (0, 0),
    patch_step: int | Sequence[int] = (1, 1),
    shift_step: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0, 0, 0),
    channel_last: bool = False,
) -> Any:
    r"""Correlate patches of x1 with patches of x2 at nearby places, as for optical flow.

    $$y_{n,u,v,h,w} = \sum_{c,i,j} x1_{n,c,\,s h + i,\,s w + j}\;
      x2_{n,c,\,s h + i + t u - d,\,s w + j + t v - d}$$

    with $s$ patch_step, $t$ shift_step, $d$ shift (each for its axis), images padded by zeros.

    Args:
        x1, x2: (N, C, H, W), or (N, H, W, C) if channel_last.
        patch: Height and width of a patch, in pixels.
        shift: How far x2 is shifted at most, up and down, left and right, in pixels.
        patch_step: Distance of the patches, in pixels.
        shift_step: Distance of the shifts, in pixels.
        padding: Zeros added at the top, bottom, left and right, in pixels, or two numbers: at the
            top and bottom, and at the left and right.
        channel_last: Channels are the last axis, and shifts the last two of the result.

    One number for a setting stands for both axes.

    Returns:
        (N, U, V, H', W'), or (N, H', W', U, V), with U = 2 shift // shift_step + 1 and
        H' = (H + padding - patch) // patch_step + 1, and likewise V and W'.
    Raises:
        ShapeError: x1 and x2 differ in shape or are not of rank 4, or patch is larger than the
            padded images.
        ValueError: A setting has the wrong number of entries or one that is too small.
    Source: Fischer et al., FlowNet, arXiv:1504.06852.
    Example:
        >>> x = array(rng.normal(size=(1, 4, 4, 3)))
        >>> F.patch_correlation(x, x, shift=1, channel_last=True).shape  # 3 x 3 shifts
        (1, 4, 4, 3, 3)
    """
    at = {
        name: (value, value) if isinstance(value, (int, np.integer)) else value
        for name, value in (
            ("patch", patch), ("shift", shift), ("patch_step", patch_step),
            ("shift_step", shift_step), ("padding", padding),
        )
    }  # fmt: skip
    if len(at["padding"]) == 2:
        at["padding"] = tuple(n for n in at["padding"] for _ in range(2))
    if channel_last:
        return patch_correlation_op(x1, x2, **at)
    for name, x in (("x1", x1), ("x2", x2)):
        check_rank("patch_correlation", name, x.spec, 4)
    check_same_shape("patch_correlation", "x1", x1.spec, "x2", x2.spec)
    x1, x2 = (transpose(x, axes=(0, 2, 3, 1)) for x in (x1, x2))
    return transpose(patch_correlation_op(x1, x2, **at), axes=(0, 3, 4, 1, 2))
