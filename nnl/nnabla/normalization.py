# SPDX-License-Identifier: Apache-2.0
"""The helpers of NNabla's normalization functions, which its scripts and tests import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.core.arrays.spec import ShapeError
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameter_or_create
from nnl.parametric_functions.initializer import ConstantInitializer


def _check_axis(ndim: int, axis: int) -> None:
    if not 0 <= axis < ndim:
        raise ValueError(f"_check_axis: axis is {axis}, wanted 0 to {ndim - 1}")


def _force_list(axis: Any) -> Any:
    return axis if hasattr(axis, "__iter__") else [axis]


def _check_batch_axis_and_force_list(ndim: int, batch_axis: Any) -> Any:
    axes = _force_list(batch_axis)
    for axis in axes:
        _check_axis(ndim, axis)
    return axes


def _get_axes_excluding(ndim: int, axes: Any) -> list[int]:
    left_out = [a % ndim for a in _force_list(axes)]
    return [i for i in range(ndim) if i not in left_out]


def _create_bn_dummy_vars(
    x: Variable, axes: Any, beta: Any, gamma: Any, mean: Any, variance: Any
) -> tuple[Any, Any, Any, Any]:
    """The four, with 0, 1 and unused statistics for those that are None."""
    kept = _force_list(axes)
    shape = tuple(n if i in kept else 1 for i, n in enumerate(x.shape))
    for name, p in (("beta", beta), ("gamma", gamma)):
        if p is not None and p.shape != shape:
            raise ShapeError(f"{name} has the shape {p.shape}, wanted {shape}")
    return (
        F.constant(0, shape) if beta is None else beta,
        F.constant(1, shape) if gamma is None else gamma,
        Variable(shape) if mean is None else mean,
        Variable(shape) if variance is None else variance,
    )


def _init_beta_gamma(
    shape: Sequence[int],
    fix_parameters: bool,
    param_init: Mapping[str, Any],
    no_bias: bool,
    no_scale: bool,
) -> tuple[Variable | None, Variable | None]:
    """The parameters beta and gamma, None for one that is not wanted."""

    def parameter(name: str, value: float) -> Variable:
        init = param_init.get(name, ConstantInitializer(value))
        return get_parameter_or_create(name, shape, init, True, not fix_parameters)

    return (None if no_bias else parameter("beta", 0), None if no_scale else parameter("gamma", 1))


def _apply_affine(x: Variable, scale: Any = None, bias: Any = None) -> Variable:
    x = x if scale is None else x * scale
    return x if bias is None else x + bias


class BatchNormalizationInOutAdapter:
    """Brings several normalized axes together to the end, and back.

    Args:
        ndim: Number of axes of the inputs.
        axes: Those that become one, the last.
    """

    def __init__(self, ndim: int, axes: Sequence[int]) -> None:
        if len(axes) == 1:
            raise ValueError(f"BatchNormalizationInOutAdapter: axes is {axes}, wanted several")
        self.ndim, self.axes = ndim, axes
        self.outer_axes = [i for i in range(ndim) if i not in axes]
        self.transpose_axes = self.outer_axes + sorted(axes)
        self.inv_transpose_axes = np.argsort(self.transpose_axes).tolist()
        self.transposed_shape: tuple[int, ...] | None = None

    def __call__(self, x: Variable) -> Any:
        """The outer axes, and all others as one."""
        transposed = F.transpose(x, self.transpose_axes)
        if self.transposed_shape not in (None, transposed.shape):
            raise ShapeError(
                f"BatchNormalizationInOutAdapter: x has the shape {x.shape}, wanted that of the "
                "first call"
            )
        self.transposed_shape = transposed.shape
        n = len(self.outer_axes)
        inner = int(np.prod(transposed.shape[n:], dtype=np.int64))
        return F.reshape(transposed, (*transposed.shape[:n], inner))

    def inv(self, y: Variable) -> Any:
        """Undo a call."""
        return F.transpose(F.reshape(y, self.transposed_shape), self.inv_transpose_axes)
