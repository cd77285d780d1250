# SPDX-License-Identifier: Apache-2.0
"""Modules that NNabla brings along: convolution with normalization, and a bottleneck unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.core.arrays.spec import ShapeError
from nnl.core.graph.variable import Variable
from nnl.parametric_functions.module import Module

Sizes = int | Sequence[int]


def complete_dims(s: Sizes, dims: int) -> Sequence[int]:
    """A size for every one of `dims` axes; an int stands for all.

    Raises:
        ShapeError: It has another number of sizes.
    """
    if not hasattr(s, "__iter__"):
        return (s,) * dims
    if len(s) != dims:
        raise ShapeError(f"complete_dims: s is {s}, wanted {dims} sizes")
    return s


def get_conv_same_pad(k: Sequence[int]) -> tuple[int, ...]:
    """The padding with which a convolution of an odd kernel keeps the size."""
    return tuple(n // 2 for n in k)


class ConvBn(Module):
    """Convolution that keeps the size, batch normalization, and `act` if it is given."""

    def __init__(
        self,
        outmaps: int,
        kernel: Sizes = 1,
        stride: Sizes = 1,
        act: Callable[[Variable], Variable] | None = None,
    ) -> None:
        self.outmaps, self.kernel, self.stride, self.act = outmaps, kernel, stride, act

    def call(self, x: Variable, training: bool = True) -> Variable:
        kernel = complete_dims(self.kernel, 2)
        pad, stride = get_conv_same_pad(kernel), complete_dims(self.stride, 2)
        h = PF.convolution(x, self.outmaps, kernel, pad, stride, with_bias=False)
        h = PF.batch_normalization(h, batch_stat=training)
        return h if self.act is None else self.act(h)


def _relu(x: Variable) -> Variable:
    y: Variable = F.relu(x, inplace=True)
    return y


class ResUnit(Module):
    """Three ConvBn, the middle one 3 x 3, and a skip connection through a fourth.

    Args:
        skip_by_conv: False connects x itself.
    """

    def __init__(self, channels: int, stride: Sizes = 1, skip_by_conv: bool = True) -> None:
        self.conv1 = ConvBn(channels // 4, 1, 1, act=_relu)
        self.conv2 = ConvBn(channels // 4, 3, stride, act=_relu)
        self.conv3 = ConvBn(channels, 1)
        self.skip_by_conv = skip_by_conv
        self.skip = ConvBn(channels, 1, stride)

    def call(self, x: Variable, training: bool = True) -> Any:
        h = self.conv3(self.conv2(self.conv1(x)))
        s = self.skip(x) if self.skip_by_conv else x
        return _relu(F.add2(h, s, inplace=True))
