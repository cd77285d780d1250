# SPDX-License-Identifier: Apache-2.0
"""Batches of sequences of different lengths, and recurrent networks written out step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.core.graph.variable import Variable


class PackedSequence:
    """Sequences without padding, step by step; see nnl.functions.pack_padded_sequence.

    Attributes:
        data: The steps.
        batch_sizes: How many sequences have each step.
        sorted_indices, unsorted_indices: The order by falling length and its inverse; None where
            the sequences were given in that order.
    """

    def __init__(self) -> None:
        self.data: Any = None
        self.batch_sizes: Any = None
        self.sorted_indices: Any = None
        self.unsorted_indices: Any = None

    def __str__(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in vars(self).items())


def pad_sequence(
    sequences: Sequence[Variable], batch_first: bool = False, padding_value: float = 0.0
) -> Variable:
    """Stack sequences (T_i, ...) of different lengths as (T, B, ...), or (B, T, ...).

    Args:
        padding_value: What stands after the shorter ones.
    """
    length = max(s.shape[0] for s in sequences)
    padded = [
        F.pad(
            s,
            (0, length - s.shape[0], *[0] * (2 * (s.ndim - 1))),
            mode="constant",
            constant_value=padding_value,
        )
        for s in sequences
    ]
    y: Variable = F.stack(*padded, axis=0 if batch_first else 1)
    return y


def pack_padded_sequence(
    padded_sequence: Variable,
    lengths: Variable,
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> PackedSequence:
    """Leave out the padding of a padded batch.

    Args:
        padded_sequence: (T, B, ...), or (B, T, ...) if batch_first.
        lengths: (B,).
        enforce_sorted: The sequences are in the order of falling lengths; if False, they are
            brought into it.
    """
    packed = PackedSequence()
    if not enforce_sorted:
        lengths, order = F.sort(lengths, axis=0, reverse=True, with_index=True)
        n = order.shape[0]
        packed.sorted_indices = order
        packed.unsorted_indices = F.scatter_nd(F.arange(0, n), F.reshape(order, (1, n)), shape=(n,))
        padded_sequence = F.gather(padded_sequence, order, 0 if batch_first else 1)
    packed.data, packed.batch_sizes = F.pack_padded_sequence(padded_sequence, lengths, batch_first)
    return packed


def pack_sequence(
    sequences: Sequence[Variable], batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack sequences (T_i, ...). `batch_first` has no effect, as in NNabla."""
    lengths = Variable.from_numpy_array(np.array([s.shape[0] for s in sequences]))
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Variable, Variable]:
    """The padded batch and the lengths of a packed one, in the order of the sequences.

    Args:
        total_length: Number of steps to pad to; those of the longest sequence if left out.
    Raises:
        ValueError: total_length is smaller than the longest sequence.
    """
    steps = sequence.batch_sizes.shape[0]
    if total_length is not None and total_length < steps:
        raise ValueError(
            f"pad_packed_sequence: total_length is {total_length}, and a sequence has {steps} steps"
        )
    padded, lengths = F.pad_packed_sequence(
        sequence.data, sequence.batch_sizes, batch_first, padding_value, total_length
    )
    if sequence.unsorted_indices is not None:
        padded = F.gather(padded, sequence.unsorted_indices, 0 if batch_first else 1)
        lengths = F.gather(lengths, sequence.unsorted_indices, 0)
    return padded, lengths


# ---- networks of a fixed length, out of elementary functions ----

State = tuple[Variable, ...]  # h, or h and c
Cell = Callable[[Variable, State, Variable, Any], State]


def _product(x: Variable, w: Variable, b: Any) -> Variable:
    y: Variable = F.affine(x, F.transpose(w, (1, 0)), b)
    return y


def _split(a: Any, n: int) -> Sequence[Any]:
    return [None] * n if a is None else F.split(a, axis=0)


def _rnn_cell(nonlinearity: str) -> Cell:
    activation = {"tanh": F.tanh, "relu": F.relu}[nonlinearity]

    def cell(x: Variable, state: State, w: Variable, b: Any) -> State:
        return (activation(_product(F.concatenate(x, state[0], axis=1), w, b)),)

    return cell


def _gru_cell(x: Variable, state: State, w: Variable, b: Any) -> State:
    (h,) = state
    xh = F.concatenate(x, h, axis=1)
    (wr, wz, wn), (br, bz, bn, bh) = _split(w, 3), _split(b, 4)
    r, z = F.sigmoid(_product(xh, wr, br)), F.sigmoid(_product(xh, wz, bz))
    n_inputs = x.shape[1]
    hidden = _product(h, wn[:, n_inputs:], bh)
    n = F.tanh(_product(x, wn[:, :n_inputs], bn) + r * hidden)
    return ((1 - z) * n + z * h,)


def _lstm_cell(x: Variable, state: State, w: Variable, b: Any) -> State:
    h, c = state
    xh = F.concatenate(x, h, axis=1)
    i, f, g, o = (_product(xh, wk, bk) for wk, bk in zip(_split(w, 4), _split(b, 4), strict=True))
    c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
    return F.sigmoid(o) * F.tanh(c), c


def _layers(
    cell: Cell, x: Variable, states: State, w0: Variable, w: Any, b: Any, layers: int, ways: int
) -> tuple[Variable, ...]:
    """y (T, B, ways * H) and the last states (L, ways, B, H), each a Variable of its own.

    Args:
        x: (T, B, I).
        states: The first ones, each (L, ways, B, H).
        w0, w: Weights of the first layer and of the others.
        b: Biases or None.
        ways: 2 if every layer also runs backwards in time.
    """
    steps = [x[0]] if x.shape[0] == 1 else list(F.split(x, axis=0))
    last: list[State] = []
    for layer in range(layers):
        weights = w0 if layer == 0 else w[layer - 1]
        made = []
        for way in range(ways):
            state = tuple([s[layer, way] for s in states])
            bias = None if b is None else b[layer, way]
            hs = []
            for step in steps[:: -1 if way else 1]:
                state = cell(step, state, weights[way], bias)
                hs.append(state[0])
            made.append(hs[:: -1 if way else 1])
            last.append(state)
        steps = [h[0] if ways == 1 else F.concatenate(*h, axis=1) for h in zip(*made, strict=True)]
    ends = [
        F.reshape(F.stack(*s, axis=0), first.shape)
        for s, first in zip(zip(*last, strict=True), states, strict=True)
    ]
    return (F.stack(*steps, axis=0), *ends)


def _create_fixed_length_rnn(
    xs0: Variable, h0: Variable, w0: Variable, w: Any, b: Any,
    num_layers: int, nonlinearity: str, num_directions: int, with_bias: bool,
) -> tuple[Variable, ...]:  # fmt: skip
    cell = _rnn_cell(nonlinearity)
    return _layers(cell, xs0, (h0,), w0, w, b if with_bias else None, num_layers, num_directions)


def _create_fixed_length_gru(
    xs0: Variable, h0: Variable, w0: Variable, w: Any, b: Any,
    num_layers: int, num_directions: int, with_bias: bool,
) -> tuple[Variable, ...]:  # fmt: skip
    bias = b if with_bias else None
    return _layers(_gru_cell, xs0, (h0,), w0, w, bias, num_layers, num_directions)


def _create_fixed_length_lstm(
    xs0: Variable, h0: Variable, c0: Variable, w0: Variable, w: Any, b: Any,
    num_layers: int, num_directions: int, with_bias: bool,
) -> tuple[Variable, ...]:  # fmt: skip
    bias = b if with_bias else None
    return _layers(_lstm_cell, xs0, (h0, c0), w0, w, bias, num_layers, num_directions)
