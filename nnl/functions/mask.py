# SPDX-License-Identifier: Apache-2.0
"""Reading, writing and finding the elements where a mask is not zero.

The number of these elements decides a shape, so it is read when the function is called; forward()
checks that the mask still has as many.
"""

from __future__ import annotations

import math

import numpy as np

from nnl.core.arguments.annotations import Input, checked
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import ShapeError, Spec, check_axis
from nnl.core.ops.op import OPS, Sample, op
from nnl.core.settings.context import STATE
from nnl.functions.assign import store
from nnl.functions.layout import MovesData
from nnl.functions.reduction import reshape

CATEGORY = "Array manipulation"

__all__ = ["bool_gather", "bool_scatter", "bool_fill", "nonzero", "unique"]


def current_value(name, arg, x):
    """The value that x has now as a numpy array.

    Raises:
        ValueError: x was not computed yet.
    """
    nd = x if isinstance(x, NdArray) else x.data
    try:
        return nd.read("host")
    except ValueError:
        raise ValueError(
            f"{name}: {arg} {nd.spec} has no value yet, and the shape of the result depends on it: "
            "call forward() on it first, or use auto_forward"
        ) from None


def check_count(name, arg, found, expected):
    """Raise if the number of elements that are not zero has changed since the call."""
    if found != expected:
        raise ValueError(
            f"{name}: {arg} has {found} elements that are not zero, wanted {expected} as when "
            f"{name} was called, because that fixed the shapes: call {name} again"
        )


@op("bool_gather", nnp="BoolGather", keep=("mask",))
class bool_gather_op(MovesData):
    """The elements of input where mask is not zero."""

    count: int

    def infer(self, input, mask):
        m = mask.ndim
        if m == 0 or input.shape[:m] != mask.shape:
            raise ShapeError(
                f"bool_gather: mask {mask} must have the first sizes of input {input}, at least one"
            )
        rest = input.shape[m:]
        return input.with_shape((self.count, math.prod(rest)) if rest else (self.count,))

    def forward(self, xp, input, mask):
        y = input[mask != 0]
        check_count("bool_gather", "mask", len(y), self.count)
        return y.reshape((self.count, math.prod(y.shape[1:])) if y.ndim > 1 else (self.count,))

    def vjp(self, gy, *, mask, input_spec):
        g = bool_scatter_op(gy, mask)
        return (g if g.shape == input_spec.shape else reshape(g, input_spec.shape)), None

    def samples(rng):
        mask = np.array([[1.0, 0, 1, 0], [0, 0, 1, 1]])
        yield Sample(rng.normal(size=(2, 4)), mask, grad=(True, False), count=4)
        yield Sample(rng.normal(size=(2, 4, 3)), mask, grad=(True, False), count=4)
        yield Sample(rng.normal(size=(2, 3)), np.array([0.0, 1]), grad=(True, False), count=1)


@checked
def bool_gather(input: Input, mask: Input, n_outputs=-1, outputs=None):
    r"""The elements or slices of input where mask is not zero.

    $$y_{j,r} = x_{i_j,\,r}$$ with the positions $i_0, i_1, \ldots$ where mask is not zero, in
    row-major order, and the rest r of the axes of input.

    Args:
        input: mask.shape + rest.
        mask: At least one axis. Its value at the time of the call fixes the shape of the result; a
            static graph is run again with as many non-zero elements only.
    Returns:
        (count,) without rest, else (count, product of rest).
    Raises:
        ShapeError: mask does not have the first sizes of input.
        ValueError: mask has no value yet; or, in forward, another number of non-zero elements.
    Example:
        >>> F.bool_gather(array([1, 2, 3]), array([1, 0, 1])).d
        array([1., 3.], dtype=float32)
    """
    count = int(np.count_nonzero(current_value("bool_gather", "mask", mask)))
    return bool_gather_op(input, mask, count=count, outputs=outputs)


@op("bool_scatter", nnp="BoolScatter", keep=("mask",))
class bool_scatter_op(MovesData):
    """input where mask is not zero, elsewhere 0 or what output has."""

    def infer(self, input, mask, output=None):
        if input.ndim == 0 or mask.ndim == 0:
            raise ShapeError(
                f"bool_scatter: input {input} and mask {mask} must have at least one axis"
            )
        shape = mask.shape + input.shape[1:]
        if output is not None and output.shape != shape:
            raise ShapeError(
                f"bool_scatter: output {output} must have the shape {shape} of mask and the axes "
                "of input after the first"
            )
        return Spec.of(shape, input.dtype)

    def forward(self, xp, input, mask, output=None):
        where = mask != 0
        count = int(xp.count_nonzero(where))
        if count != len(input):
            raise ValueError(
                f"bool_scatter: mask has {count} elements that are not zero, wanted {len(input)}, "
                "the first size of input"
            )
        if output is None:
            y = xp.zeros(mask.shape + input.shape[1:], input.dtype)
        else:
            y = output.copy()
        y[where] = input
        return y

    def vjp(self, gy, *, mask, input_spec, need):
        g_input = g_output = None
        if need[0]:
            g_input = reshape(bool_gather_op(gy, mask, count=input_spec.shape[0]), input_spec.shape)
        if len(need) > 2 and need[2]:
            full = mask
            if len(mask.shape) < len(gy.shape):
                full = reshape(mask, mask.shape + (1,) * (len(gy.shape) - len(mask.shape)))
            g_output = bool_fill(gy, full, value=0.0)
        return g_input, None, g_output

    def samples(rng):
        mask = np.array([[1.0, 0, 1, 0], [0, 0, 1, 1]])
        yield Sample(rng.normal(size=(4,)), mask, grad=(True, False))
        yield Sample(rng.normal(size=(4, 2)), mask, grad=(True, False))
        output = rng.normal(size=(2, 4, 2))
        yield Sample(rng.normal(size=(4, 2)), mask, output, grad=(True, False, True))


def bool_scatter(input, mask, output=None, n_outputs=-1, outputs=None):
    r"""Write the elements or slices of input where mask is not zero.

    $$y_{i_j,\,r} = x_{j,r}$$ with the positions $i_0, i_1, \ldots$ where mask is not zero, in
    row-major order, and the rest r of the axes of input.

    Args:
        input: (count, ...) with as many entries as mask has non-zero elements.
        mask: At least one axis.
        output: mask.shape + input.shape[1:], the array to write into; the result starts from its
            values, and they are overwritten with the result. Zeros if left out.
    Raises:
        ShapeError: output has another shape.
        ValueError: In forward: mask has another number of non-zero elements.
    Example:
        >>> F.bool_scatter(array([1, 3]), array([1, 0, 1])).d
        array([1., 0., 3.], dtype=float32)
    """
    y = bool_scatter_op(input, mask, output, outputs=outputs)
    return y if output is None else store(output, y)


@op("bool_fill", nnp="BoolFill", keep=("mask",))
class bool_fill(MovesData):
    r"""data with one value wherever mask is not zero.

    $$y_i = \mathit{value} \text{ if } \mathit{mask}_i \ne 0, \text{ else } \mathit{data}_i$$

    Args:
        data: Any shape.
        mask: A shape that stretches to that of data: missing leading axes and sizes of 1.
        value: The number to write.
    Raises:
        ShapeError: mask does not stretch to the shape of data.
    """

    value: float = 0.0

    def infer(self, data, mask):
        tail = data.shape[data.ndim - mask.ndim :]
        if mask.ndim > data.ndim or any(
            m != n and m != 1 for m, n in zip(mask.shape, tail, strict=True)
        ):
            raise ShapeError(f"bool_fill: mask {mask} does not stretch to the shape of data {data}")
        return data

    def forward(self, xp, data, mask, out=None):
        out = xp.empty_like(data) if out is None else out
        xp.copyto(out, data)
        xp.copyto(out, xp.asarray(self.value, out.dtype), where=mask != 0)
        return out

    def portable(self, data, mask):
        if mask.shape != data.shape:
            mask = OPS["broadcast"](mask, shape=data.shape)
        value = OPS["constant"](val=self.value, shape=data.shape)
        return OPS["where"](mask, value, data)

    def vjp(self, gy, *, mask):
        return bool_fill(gy, mask, value=0.0), None

    def samples(rng):
        for size in ((2, 3), (3,), (2, 1), (1, 3)):
            mask = rng.integers(0, 2, size).astype(float)
            yield Sample(rng.normal(size=(2, 3)), mask, grad=(True, False), value=-1.5)


@op("nonzero", nnp="NonZero", keep=("x",))
class nonzero_op(MovesData):
    """Positions of the elements that are not zero."""

    count: int

    def infer(self, x):
        return Spec.of((x.ndim, self.count), np.uint64)

    def forward(self, xp, x):
        if x.ndim == 0:
            check_count("nonzero", "x", int(x != 0), self.count)
            return xp.empty((0, self.count), np.uint64)
        y = xp.stack(xp.nonzero(x)).astype(np.uint64)
        check_count("nonzero", "x", y.shape[1], self.count)
        return y

    def samples(rng):
        yield Sample(np.array([[1.0, 0, 2], [0, 0, 3]]), grad=(False,), count=3)
        yield Sample(np.array([0.0, 0]), grad=(False,), count=0)


@checked
def nonzero(x: Input, n_outputs=-1, outputs=None):
    r"""Positions of the elements that are not zero, in row-major order.

    $$x_{y_{0 j}, \ldots, y_{n - 1, j}} \ne 0$$ for every j, with n the rank of x.

    Args:
        x: Any shape. Its value at the time of the call fixes the shape of the result.
    Returns:
        (rank of x, count), uint64; as gather_nd takes it. No gradient.
    Raises:
        ValueError: x has no value yet; or, in forward, another number of non-zero elements.
    Example:
        >>> F.nonzero(array([[0, 5], [7, 0]])).d
        array([[0, 1],
               [1, 0]], dtype=uint64)
    """
    count = int(np.count_nonzero(current_value("nonzero", "x", x)))
    return nonzero_op(x, count=count, outputs=outputs)


@op("unique", nnp="Unique", outputs=("*y",))
class unique_op(MovesData):
    """Distinct elements, or slices along an axis."""

    flatten: bool = True
    axis: int | None = None
    sorted: bool = True
    with_index: bool = False
    with_inverse: bool = False
    with_counts: bool = False
    count: int = 0

    def _axis(self):
        return None if self.flatten else self.axis

    def infer(self, x):
        a = self._axis()
        if a is not None:
            check_axis("unique", a, x)
        n, shape = (x.size, (self.count,)) if a is None else (x.shape[a], list(x.shape))
        if a is not None:
            shape[a] = self.count
        index = Spec.of((self.count,), np.int32)
        asked = (
            (self.with_index, index),
            (self.with_inverse, Spec.of((n,), np.int32)),
            (self.with_counts, index),
        )
        return (x.with_shape(shape), *(spec for wanted, spec in asked if wanted))

    def forward(self, xp, x):
        a = self._axis()
        y, first, inverse, counts = xp.unique(
            x, return_index=True, return_inverse=True, return_counts=True, axis=a
        )
        inverse = inverse.ravel()
        check_distinct(len(first), self.count)
        if not self.sorted:  # in the order of first appearance
            order = xp.argsort(first)
            y = xp.take(y, order, axis=0 if a is None else a)
            first, counts = first[order], counts[order]
            place = xp.empty_like(order)
            place[order] = xp.arange(len(order))
            inverse = place[inverse]
        asked = (
            (self.with_index, first),
            (self.with_inverse, inverse),
            (self.with_counts, counts),
        )
        return (xp.ascontiguousarray(y), *(v.astype(np.int32) for wanted, v in asked if wanted))

    def samples(rng):
        x = np.array([3.0, 1, 1, 2, 3, 0])
        yield Sample(x, grad=(False,), axis=0, count=4)
        yield Sample(
            x, grad=(False,), axis=0, count=4, with_index=True, with_inverse=True, with_counts=True
        )
        rows = np.array([[1.0, 0], [0, 1], [1, 0]])
        yield Sample(rows, grad=(False,), flatten=False, axis=0, count=2, with_counts=True)


def check_distinct(found, expected):
    """Raise if the number of distinct elements has changed since the call."""
    if found != expected:
        raise ValueError(
            f"unique: x has {found} distinct elements, wanted {expected} as when unique was "
            "called, because that fixed the shapes: call unique again"
        )


@checked
def unique(
    x: Input,
    flatten: bool = True,
    axis: int | None = None,
    sorted: bool = True,
    with_index: bool = False,
    with_inverse: bool = False,
    with_counts: bool = False,
    n_outputs=-1,
    outputs=None,
):
    r"""Distinct elements of x, or distinct slices along an axis.

    $$\{y_j\} = \{x_i\}, \quad \mathit{counts}_j = |\{i : x_i = y_j\}|$$
    $$y_j = x_{\mathit{index}_j}, \quad x_i = y_{\mathit{inverse}_i}$$

    Args:
        x: Any shape. Its value at the time of the call fixes the shapes of the results.
        flatten: Compare elements; otherwise the slices along axis.
        axis: Needed if flatten is False.
        sorted: In ascending order, otherwise in the order of first appearance.
        with_index, with_inverse, with_counts: Also return where each one is first, which one each
            element is, how often each one occurs.
    Returns:
        The distinct ones, or a tuple of them and int32 vectors. No gradient.
    Raises:
        ValueError: flatten is False and axis is missing or out of range; x has no value yet; in
            forward: another number of distinct elements.
    Example:
        >>> F.unique(array([3, 1, 3, 2])).d
        array([1., 2., 3.], dtype=float32)
    """
    if not flatten and (axis is None or not -len(x.shape) <= axis < len(x.shape)):
        raise ValueError(f"unique: axis is {axis}, wanted an axis of x of shape {x.shape}")
    # compared in the type that forward will compare in
    value = current_value("unique", "x", x).astype(STATE.target.float_dtype)
    if flatten:
        count = len(np.unique(value))
    else:
        axis %= value.ndim
        count = np.unique(value, axis=axis).shape[axis]
    y = unique_op(
        x,
        flatten=flatten,
        axis=axis,
        sorted=sorted,
        with_index=with_index,
        with_inverse=with_inverse,
        with_counts=with_counts,
        count=count,
        outputs=outputs,
    )
    return y[0] if len(y) == 1 else y
