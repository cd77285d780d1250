# SPDX-License-Identifier: Apache-2.0
"""Initial values of parameters.

An initializer is called with a shape and returns an array. The random ones draw from `rng`, or, if
it is None, from the parameter generator of the time when they were made (seed 313 until `nnl.seed`
replaces it), so initial weights are reproducible bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import checked

Array = np.ndarray[Any, Any]
Shape = Sequence[int]


def _generator(rng: np.random.RandomState | None) -> np.random.RandomState:
    """rng, or the present parameter generator: `nnl.seed` replaces it by another."""
    if rng is not None:
        return rng
    from nnl.core.ops import random as nnl_random

    return nnl_random.prng


class BaseInitializer:
    """What every initializer is: a callable from a shape to an array of that shape.

    Example:
        >>> class Diagonal(I.BaseInitializer):
        ...     def __call__(self, shape):
        ...         return np.eye(*shape)
        >>> Diagonal()((2, 2))
        array([[1., 0.],
               [0., 1.]])
    """

    def __call__(self, shape: Shape) -> Array:
        """Return the initial values.

        Raises:
            NotImplementedError: the subclass does not define `__call__`.
        """
        raise NotImplementedError(
            f"{type(self).__name__}: define __call__(shape) to return an array of that shape"
        )


class NormalInitializer(BaseInitializer):
    r"""Draw normal numbers: $w \sim N(0, \sigma^2)$.

    Args:
        sigma: Standard deviation.
        rng: Generator to draw from; None is the framework's parameter generator.
    Returns (when called): float32 array.
    Example:
        >>> I.NormalInitializer(0.1, rng=np.random.RandomState(0))((2, 2))
        array([[0.1764, 0.04  ],
               [0.0979, 0.2241]], dtype=float32)
    """

    @checked
    def __init__(self, sigma: float = 1.0, rng: np.random.RandomState | None = None) -> None:
        self.sigma = sigma
        self.rng = _generator(rng)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sigma})"

    @checked
    def __call__(self, shape: Shape) -> Array:
        return np.asarray(self.rng.randn(*shape) * self.sigma, np.float32)


class UniformInitializer(BaseInitializer):
    r"""Draw uniformly: $w \sim U[\mathit{lim}_0, \mathit{lim}_1)$.

    Args:
        lim: Lower and upper limit.
        rng: Generator to draw from; None is the framework's parameter generator.
    Returns (when called): float32 array.
    Example:
        >>> I.UniformInitializer((0, 1), rng=np.random.RandomState(0))((2, 2))
        array([[0.5488, 0.7152],
               [0.6028, 0.5449]], dtype=float32)
    """

    @checked
    def __init__(
        self, lim: tuple[float, float] = (-1, 1), rng: np.random.RandomState | None = None
    ) -> None:
        self.lim = lim
        self.rng = _generator(rng)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.lim})"

    @checked
    def __call__(self, shape: Shape) -> Array:
        return np.asarray(self.rng.uniform(*self.lim, size=tuple(shape)), np.float32)


class UniformIntInitializer(BaseInitializer):
    r"""Draw integers uniformly: $w \sim U\{\mathit{lim}_0, \ldots, \mathit{lim}_1 - 1\}$.

    Args:
        lim: Lower limit, and upper limit, which is not drawn.
        rng: Generator to draw from; None is the framework's parameter generator.
    Returns (when called): int64 array.
    Example:
        >>> I.UniformIntInitializer((0, 10), rng=np.random.RandomState(0))((2, 2))
        array([[5, 0],
               [3, 3]])
    """

    @checked
    def __init__(
        self, lim: tuple[int, int] = (0, 10), rng: np.random.RandomState | None = None
    ) -> None:
        self.lim = lim
        self.rng = _generator(rng)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.lim})"

    @checked
    def __call__(self, shape: Shape) -> Array:
        # the platform's integer: asking for another dtype would draw other numbers
        drawn = self.rng.randint(*self.lim, size=tuple(shape))
        return np.asarray(drawn, np.int64)


class RangeInitializer(BaseInitializer):
    r"""Evenly spaced numbers along the last axis, the same for every index of the other axes.

    $$w_{\ldots i} = \mathit{start} + i \cdot \mathit{step}$$

    Returns (when called): a read-only broadcast view, of integers if start and step are integers
        and 64 bits hold all of them.
    Example:
        >>> I.RangeInitializer(start=1, step=2)((2, 3))
        array([[1, 3, 5],
               [1, 3, 5]])
    """

    @checked
    def __init__(self, start: float = 0, step: float = 1) -> None:
        self.start = start
        self.step = step

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.start}, {self.step})"

    @checked
    def __call__(self, shape: Shape) -> Array:
        if not len(shape):
            raise ValueError("RangeInitializer: shape () has no last axis to count along")
        farthest = abs(self.start) + shape[-1] * abs(self.step)
        index = np.arange(shape[-1], dtype=np.int64 if farthest < 2**63 else np.float64)
        row = index * self.step + self.start
        return np.broadcast_to(row, tuple(shape))


class ConstantInitializer(BaseInitializer):
    """The same value everywhere: $w_i = value$. Returns (when called): float32 array.

    Example:
        >>> I.ConstantInitializer(0.5)((2, 2))
        array([[0.5, 0.5],
               [0.5, 0.5]], dtype=float32)
    """

    @checked
    def __init__(self, value: float = 0) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value})"

    @checked
    def __call__(self, shape: Shape) -> Array:
        return np.full(tuple(shape), self.value, np.float32)


ZERO, ONE = ConstantInitializer(0), ConstantInitializer(1)


class OrthogonalInitializer(BaseInitializer):
    r"""A random matrix with orthonormal rows or columns (whichever are fewer), times a gain.

    $$W W^T = \mathit{gain}^2\, I, \text{ with more rows } W^T W = \mathit{gain}^2\, I$$

    The array is seen as a matrix of shape[0] rows. It is the factor of that shape in the singular
    value decomposition of a matrix of standard normal numbers.

    Args:
        gain: Every singular value of the result.
        rng: Generator to draw from; None is the framework's parameter generator.
    Returns (when called): float32 array.
    Raises (when called): ValueError: shape is ().
    Source: Saxe, McClelland and Ganguli, Exact solutions to the nonlinear dynamics of learning in
        deep linear neural networks, arXiv:1312.6120.
    Example:
        >>> w = I.OrthogonalInitializer(rng=np.random.RandomState(0))((2, 4))
        >>> np.round(w @ w.T, 4) + 0
        array([[1., 0.],
               [0., 1.]], dtype=float32)
    """

    @checked
    def __init__(self, gain: float = 1.0, rng: np.random.RandomState | None = None) -> None:
        self.gain = gain
        self.rng = _generator(rng)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.gain})"

    @checked
    def __call__(self, shape: Shape) -> Array:
        if not len(shape):
            raise ValueError("OrthogonalInitializer: shape () has no rows")
        matrix = (shape[0], int(np.prod(shape[1:])))
        drawn = self.rng.normal(0.0, 1.0, matrix)
        left, _, right = np.linalg.svd(drawn, full_matrices=False)
        basis = left if left.shape == matrix else right
        return np.asarray(basis.reshape(tuple(shape)) * self.gain, np.float32)


class WeightNormalizationScaleInitializer(BaseInitializer):
    r"""The norm of each slice of a weight, so that weight normalisation starts as the identity.

    $$g_i = \sqrt{\sum w_i^2 + \epsilon}$$ over all axes of w but `dim`.

    Args:
        w: The weight: a Variable or NdArray (anything whose values are in `.d` or `.data`).
        dim: Axis of w that indexes the slices; negative counts from the last.
        eps: Added to the sum of squares, so in squared units of w.
    Returns (when called): array of w's dtype with w.shape[dim] elements, in the shape asked for; of
        one axis for the shape of w.
    Raises (when called): ValueError: another shape has another number of elements.
    Source: Salimans and Kingma, Weight Normalization, arXiv:1602.07868.
    Example:
        >>> I.WeightNormalizationScaleInitializer(array([[3, 4], [6, 8]]))((2,))
        array([ 5., 10.], dtype=float32)
    """

    @checked
    def __init__(self, w: Any, dim: int = 0, eps: float = 1e-12) -> None:
        self.w = w
        self.dim = dim
        self.eps = eps

    @checked
    def __call__(self, shape: Shape) -> Array:
        w = self.w.d if hasattr(self.w, "d") else np.asarray(self.w.data)
        kept = self.dim % w.ndim
        axes = tuple(axis for axis in range(w.ndim) if axis != kept)
        scale = np.sqrt(np.sum(w * w, axis=axes) + self.eps)
        if tuple(shape) == w.shape:  # as NNabla's, which takes any shape
            return np.asarray(scale, w.dtype)
        if int(np.prod(shape)) != scale.size:
            raise ValueError(
                f"WeightNormalizationScaleInitializer: shape {tuple(shape)} does not hold one "
                f"scale for each of the {scale.size} slices of w{w.shape} along axis {self.dim}"
            )
        return np.asarray(scale, w.dtype).reshape(tuple(shape))


def _terms(name: str, kernel: Shape, *maps: int) -> int:
    """Number of terms in a sum over a kernel and these maps."""
    terms = math.prod(kernel) * sum(maps)
    if terms < 1:
        counts = " and ".join(map(str, maps))
        raise ValueError(f"{name}: kernel {tuple(kernel)} of {counts} maps has no elements")
    return terms


@checked
def calc_normal_std_he_forward(inmaps: int, outmaps: int, kernel: Shape = (1, 1)) -> float:
    r"""Standard deviation that keeps the variance of activations through ReLU layers.

    $$\sqrt{2 / (K\,\mathrm{in})}$$ with K the number of elements of the kernel.

    Args:
        inmaps: Number of input maps.
        outmaps: Number of output maps; not used.
        kernel: Kernel shape.
    Source: He et al., Delving Deep into Rectifiers, arXiv:1502.01852, eq. 10.
    Example:
        >>> I.calc_normal_std_he_forward(16, 32, (3, 3))
        0.11785113019775792
    """
    return float(np.sqrt(2.0 / (_terms("calc_normal_std_he_forward", kernel, inmaps))))


@checked
def calc_normal_std_he_backward(inmaps: int, outmaps: int, kernel: Shape = (1, 1)) -> float:
    r"""Standard deviation that keeps the variance of gradients through ReLU layers.

    $$\sqrt{2 / (K\,\mathrm{out})}$$ with K the number of elements of the kernel.

    Args:
        inmaps: Number of input maps; not used.
        outmaps: Number of output maps.
        kernel: Kernel shape.
    Source: He et al., Delving Deep into Rectifiers, arXiv:1502.01852, eq. 14.
    Example:
        >>> I.calc_normal_std_he_backward(16, 32, (3, 3))
        0.08333333333333333
    """
    return float(np.sqrt(2.0 / (_terms("calc_normal_std_he_backward", kernel, outmaps))))


@checked
def calc_normal_std_glorot(inmaps: int, outmaps: int, kernel: Shape = (1, 1)) -> float:
    r"""Standard deviation of Glorot's initialisation.

    $$\sqrt{2 / (K(\mathrm{in} + \mathrm{out}))}$$ with K the number of elements of the kernel.

    Source: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural
        networks, AISTATS 2010, eq. 12.
    Example:
        >>> I.calc_normal_std_glorot(16, 32, (3, 3))
        0.06804138174397717
    """
    return float(np.sqrt(2.0 / (_terms("calc_normal_std_glorot", kernel, inmaps, outmaps))))


@checked
def calc_uniform_lim_glorot(
    inmaps: int, outmaps: int, kernel: Shape = (1, 1)
) -> tuple[float, float]:
    r"""Limits of Glorot's uniform initialisation.

    $$\pm\sqrt{6 / (K(\mathrm{in} + \mathrm{out}))}$$ with K the number of elements of the kernel.

    Source: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural
        networks, AISTATS 2010, eq. 16.
    Example:
        >>> I.calc_uniform_lim_glorot(16, 32, (3, 3))
        (-0.11785113019775792, 0.11785113019775792)
    """
    limit = float(np.sqrt(6.0 / (_terms("calc_uniform_lim_glorot", kernel, inmaps, outmaps))))
    return -limit, limit


def glorot(
    inmaps: int, outmaps: int, kernel: Shape = (1, 1), rng: np.random.RandomState | None = None
) -> Callable[[Shape], Array]:
    r"""Uniform with Glorot's limits, which are only worked out where a parameter is made.

    $$-l \le w < l, \quad l = \sqrt{6 / (K (\mathit{inmaps} + \mathit{outmaps}))}$$ with K the
    number of elements of the kernel.

    Source: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural
        networks, AISTATS 2010, eq. 16.
    Example:
        >>> I.glorot(4, 4, rng=np.random.RandomState(0))((1, 2)).shape
        (1, 2)
    """

    def drawn(shape: Shape) -> Array:
        limits = calc_uniform_lim_glorot(inmaps, outmaps, tuple(kernel))
        values: Array = UniformInitializer(limits, rng=rng)(shape)
        return values

    return drawn
