# SPDX-License-Identifier: Apache-2.0
"""Sequences of different lengths: padded to one length, or packed without padding.

A packed batch holds the first steps of all sequences, then the second steps of those that have one,
and so on; with the sequences ordered by falling length, those are always the first ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.arguments.annotations import Input, checked
from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.ops.op import Sample, op
from nnl.functions.layout import MovesData
from nnl.functions.mask import current_value
from nnl.functions.on_device import on_host

CATEGORY = "Array manipulation"

__all__ = ["pack_padded_sequence", "pad_packed_sequence"]


def places(xp, batch_sizes, batch_first):
    """Index of every packed step in a padded batch."""
    batch_sizes = batch_sizes.astype(np.int64, copy=False)
    steps = xp.repeat(xp.arange(len(batch_sizes)), batch_sizes)
    starts = xp.cumsum(batch_sizes) - batch_sizes
    sequences = xp.arange(len(steps)) - xp.repeat(starts, batch_sizes)
    return (sequences, steps) if batch_first else (steps, sequences)


def counts_above(xp, values, n):
    """How many of the values are above 0, above 1, ..., above n - 1."""
    return (values[None] > xp.arange(n)[:, None]).sum(1).astype(np.int64)


def check_values(name, arg, values, high):
    """Raise unless the values are in [0, high], no negative ones, no larger ones."""
    if on_host(values) and values.size and (values.min() < 0 or values.max() > high):
        bad = values[(values < 0) | (values > high)][0]
        raise ValueError(f"{name}: {arg} has the value {int(bad)}, wanted 0 to {high}")


@op("pack_padded_sequence", nnp="PackPaddedSequence", outputs=("y", "batch_sizes"),
    integer=("lengths",))  # fmt: skip
class pack_padded_sequence_op(MovesData):
    """See pack_padded_sequence."""

    batch_first: bool = False
    count: int = 0

    def infer(self, padded_sequence, lengths):
        t = check_padded(padded_sequence, lengths, self.batch_first)
        rest = padded_sequence.shape[2:]
        return padded_sequence.with_shape((self.count, *rest)), Spec.of((t,), np.int64)

    def forward(self, xp, x, lengths):
        name, t = "pack_padded_sequence", x.shape[1 if self.batch_first else 0]
        check_values(name, "lengths", lengths, t)
        batch_sizes = counts_above(xp, lengths, t)
        if int(batch_sizes.sum()) != self.count:
            raise ValueError(
                f"{name}: lengths have the sum {int(batch_sizes.sum())}, wanted {self.count} as "
                f"when {name} was called, because that fixed the shapes: call {name} again"
            )
        return x[places(xp, batch_sizes, self.batch_first)], batch_sizes

    def vjp(self, gy, gsizes, *, batch_sizes, padded_sequence_spec):
        g = place_steps(
            gy, batch_sizes, shape=padded_sequence_spec.shape, batch_first=self.batch_first
        )
        return g, None

    def samples(rng):
        lengths = np.array([4, 2, 1])
        yield Sample(rng.normal(size=(4, 3, 2)), lengths, count=7)
        yield Sample(rng.normal(size=(3, 4, 2)), lengths, batch_first=True, count=7)
        yield Sample(rng.normal(size=(5, 3)), lengths, count=7)


@op("pad_packed_sequence", nnp="PadPackedSequence", outputs=("y", "lengths"),
    integer=("batch_sizes",))  # fmt: skip
class pad_packed_sequence_op(MovesData):
    """See pad_packed_sequence."""

    batch_first: bool = False
    padding_value: float = 0.0
    total_length: int = -1
    count: int = 0
    counts = "batch_sizes"

    @staticmethod
    def count_of(batch_sizes):
        return max(0, int(batch_sizes[0])) if batch_sizes.size else 0

    def infer(self, packed_sequence, batch_sizes):
        check_packed(packed_sequence, batch_sizes)
        t = max(self.total_length, batch_sizes.shape[0])
        shape = (self.count, t) if self.batch_first else (t, self.count)
        y = packed_sequence.with_shape((*shape, *packed_sequence.shape[1:]))
        return y, Spec.of((self.count,), np.int64)

    def forward(self, xp, x, batch_sizes):
        name = "pad_packed_sequence"
        check_values(name, "batch_sizes", batch_sizes, self.count)
        if int(batch_sizes.sum()) != len(x):
            raise ValueError(
                f"{name}: batch_sizes have the sum {int(batch_sizes.sum())}, wanted the "
                f"{len(x)} steps of packed_sequence"
            )
        t = max(self.total_length, len(batch_sizes))
        shape = (self.count, t) if self.batch_first else (t, self.count)
        y = xp.full((*shape, *x.shape[1:]), self.padding_value, x.dtype)
        y[places(xp, batch_sizes, self.batch_first)] = x
        return y, counts_above(xp, batch_sizes, self.count)

    def vjp(self, gy, glengths, *, batch_sizes, packed_sequence_spec):
        count = packed_sequence_spec.shape[0]
        return take_steps(gy, batch_sizes, count=count, batch_first=self.batch_first), None

    def samples(rng):
        x, sizes = rng.normal(size=(7, 2)), np.array([3, 2, 1, 1])
        yield Sample(x, sizes, count=3)
        yield Sample(x, sizes, batch_first=True, total_length=6, count=3)
        yield Sample(x[:, 0], sizes, total_length=3, count=3)


@op("place_steps", integer=("batch_sizes",))
class place_steps(MovesData):
    """Packed steps at their places in a padded batch of zeros."""

    shape: tuple[int, ...]
    batch_first: bool = False

    def infer(self, x, batch_sizes):
        return x.with_shape(self.shape)

    def forward(self, xp, x, batch_sizes):
        y = xp.zeros(self.shape, x.dtype)
        y[places(xp, batch_sizes, self.batch_first)] = x
        return y

    def vjp(self, gy, *, batch_sizes, x_spec):
        count = x_spec.shape[0]
        return take_steps(gy, batch_sizes, count=count, batch_first=self.batch_first), None

    def samples(rng):
        yield Sample(rng.normal(size=(4, 2)), np.array([3, 1]), shape=(2, 3, 2))


@op("take_steps", integer=("batch_sizes",))
class take_steps(MovesData):
    """The steps of a padded batch that a packed one has."""

    count: int
    batch_first: bool = False

    def infer(self, x, batch_sizes):
        return x.with_shape((self.count, *x.shape[2:]))

    def forward(self, xp, x, batch_sizes):
        return x[places(xp, batch_sizes, self.batch_first)]

    def vjp(self, gy, *, batch_sizes, x_spec):
        g = place_steps(gy, batch_sizes, shape=x_spec.shape, batch_first=self.batch_first)
        return g, None

    def samples(rng):
        yield Sample(rng.normal(size=(3, 2, 2)), np.array([3, 1]), count=4, batch_first=True)


def check_padded(x, lengths, batch_first):
    """Number of steps of x, if lengths has one value for each of its sequences."""
    if x.ndim < 2 or lengths.shape != (x.shape[0 if batch_first else 1],):
        wanted = "(B, T, ...)" if batch_first else "(T, B, ...)"
        raise ShapeError(
            f"pack_padded_sequence: padded_sequence {x} and lengths {lengths} must have the shapes "
            f"{wanted} and (B,)"
        )
    return x.shape[1 if batch_first else 0]


def check_packed(x, batch_sizes):
    """Raise unless there are steps and numbers of sequences."""
    if x.ndim < 1 or batch_sizes.ndim != 1 or not batch_sizes.size:
        raise ShapeError(
            f"pad_packed_sequence: packed_sequence {x} and batch_sizes {batch_sizes} must have the "
            "shapes (N, ...) and (T,)"
        )


@checked
def pack_padded_sequence(
    padded_sequence: Input, lengths: Input, batch_first: bool = False, n_outputs: int = -1,
    outputs: Any = None,
) -> Any:  # fmt: skip
    r"""Pack sequences of different lengths without their padding.

    $$y_{s_t + b} = x_{t b} \text{ for } b < n_t, \quad
      n_t = |\{b : \mathit{lengths}_b > t\}|, \quad s_t = \sum_{u < t} n_u$$

    Args:
        padded_sequence: (T, B, ...), or (B, T, ...) if batch_first, by falling length.
        lengths: (B,), in [0, T]. Their sum at the time of the call fixes the shape of the result.
        batch_first: The sequences are the first axis.
    Returns:
        The packed sequences (sum of lengths, ...): the first steps of all, then the second steps of
        those that have one, and so on. And how many sequences have each step: (T,), int64.
    Raises:
        ShapeError: The arrays do not have the shapes above.
        ValueError: A length is out of range; lengths have no value yet; or, in forward, another
            sum than at the call.
    Example:
        >>> x = array([[[1], [4]], [[2], [5]], [[3], [0]]])  # 3 steps of 2 sequences
        >>> packed, sizes = F.pack_padded_sequence(x, array([3, 2], int))
        >>> packed.d.ravel(), sizes.d
        (array([1., 4., 2., 5., 3.], dtype=float32), array([2, 2, 1]))
    """
    check_padded(padded_sequence.spec, lengths.spec, batch_first)
    values = current_value("pack_padded_sequence", "lengths", lengths)
    return pack_padded_sequence_op(
        padded_sequence, lengths, batch_first=batch_first, outputs=outputs,
        count=int(values.astype(np.int64).clip(0).sum()),
    )  # fmt: skip


@checked
def pad_packed_sequence(
    packed_sequence: Input, batch_sizes: Input, batch_first: bool = False,
    padding_value: float = 0.0, total_length: int | None = None,
    n_outputs: int = -1, outputs: Any = None,
) -> Any:  # fmt: skip
    r"""Undo `pack_padded_sequence`: give all sequences one length.

    $$y_{t b} = x_{s_t + b} \text{ for } b < n_t, \text{ else padding\_value}, \quad
      s_t = \sum_{u < t} n_u$$ with n for batch_sizes.

    Args:
        packed_sequence: (N, ...).
        batch_sizes: (T,), how many sequences have each step, falling, with the sum N. The first of
            them, at the time of the call, fixes the number B of sequences, in a static graph until
            a shape changes.
        batch_first: The sequences are the first axis of the result.
        padding_value: What follows the last step of a sequence.
        total_length: Steps of the result if more than T.
    Returns:
        The sequences (T, B, ...), or (B, T, ...), and their lengths (B,), int64.
    Raises:
        ShapeError: The arrays do not have the shapes above.
        ValueError: batch_sizes have no value yet; or, in forward, a negative one, one above the
            first at the time of the call, or another sum than N.
    Example:
        >>> packed, sizes = array([[1], [4], [2], [5], [3]]), array([2, 2, 1], int)
        >>> y, lengths = F.pad_packed_sequence(packed, sizes)
        >>> y.d[:, :, 0], lengths.d
        (array([[1., 4.],
               [2., 5.],
               [3., 0.]], dtype=float32), array([3, 2]))
    """
    check_packed(packed_sequence.spec, batch_sizes.spec)
    values = current_value("pad_packed_sequence", "batch_sizes", batch_sizes)
    return pad_packed_sequence_op(
        packed_sequence, batch_sizes, batch_first=batch_first, padding_value=padding_value,
        total_length=-1 if total_length is None else total_length, outputs=outputs,
        count=pad_packed_sequence_op.attrs_class.count_of(values),
    )  # fmt: skip
