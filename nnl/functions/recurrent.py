# SPDX-License-Identifier: Apache-2.0
"""rnn, lstm and gru: stacks of recurrent layers over a whole sequence, in one or two directions.

Sizes: T steps, B samples, I inputs, H states, L layers, D directions (2 if bidirectional), G gates.
"""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError, check_rank
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.dropout import keep_mask
from nnl.functions.random import require
from nnl.functions.recurrent_cells import CELLS, run, run_backward

CATEGORY = "Layer"

__all__ = ["rnn", "lstm", "gru"]

HIDDEN = ("inner", "saved", "cells", "mask")  # what run() keeps for the gradient


class Recurrent:
    """Common to the three: shape rule, forward, gradient and cost."""

    @property
    def cell_name(self):
        return self.op.name

    def specs(self, x, h, weight_l0, weight, bias, c=None):
        """Check all shapes; the specs of y, h_n, c_n and of HIDDEN."""
        name, cell = self.op.name, CELLS[self.cell_name]
        check_rank(name, "x", x, 3)
        check_rank(name, "h", h, 4)
        require(name, "num_layers", self.num_layers, "at least 1", self.num_layers >= 1)
        require(name, "dropout", self.dropout, "0 <= dropout < 1", 0.0 <= self.dropout < 1.0)
        steps, batch, size = x.shape
        layers, directions, hidden = self.num_layers, 2 if self.bidirectional else 1, h.shape[3]
        gates = () if cell.gates == 1 else (cell.gates,)
        rows = () if cell.gates == 1 else (cell.bias_rows,)
        if layers > 1 and weight is None:
            raise ShapeError(
                f"{name}: weight is missing, wanted those of the other {layers - 1} layers"
            )
        wide = (directions + 1) * hidden
        wanted = [
            ("h", h, (layers, directions, batch, hidden)),
            ("c", c, (layers, directions, batch, hidden)),
            ("weight_l0", weight_l0, (directions, *gates, hidden, size + hidden)),
            ("weight", weight, (layers - 1, directions, *gates, hidden, wide)),
            ("bias", bias, (layers, directions, *rows, hidden)),
        ]
        for argument, spec, shape in wanted:
            if spec is not None and spec.shape != shape:
                raise ShapeError(
                    f"{name}: {argument} is {spec}, wanted the shape {shape} for x {x}, "
                    f"{layers} layers, {directions} directions and {hidden} states"
                )
        y = x.with_shape((steps, batch, directions * hidden))
        inner = (layers - 1, *y.shape)
        per_step = (layers, directions, steps, batch)
        dropped = self.dropout > 0 and self.training and layers > 1
        return (
            y,
            h,
            h,
            (
                x.with_shape(inner),
                x.with_shape((*per_step, cell.saved * hidden)),
                x.with_shape((*per_step, hidden * cell.has_cell)),
                x.with_shape(inner if dropped else (0,)).with_dtype(np.bool_),
            ),
        )

    def run(self, xp, x, h, c, weight_l0, weight, bias, rng):
        """y, h_n, c_n and the arrays of HIDDEN."""
        shape = (self.num_layers - 1, *x.shape[:2], h.shape[1] * h.shape[3])
        dropped = self.dropout > 0 and self.training and self.num_layers > 1
        mask = keep_mask(xp, rng, shape, self.dropout) if dropped else xp.zeros((0,), np.bool_)
        mask = xp.asarray(mask)
        cell = CELLS[self.cell_name]
        scale = 1.0 / (1.0 - self.dropout)
        y, h_n, c_n, inner, saved, cells = run(
            xp, cell, x, h, c, weight_l0, weight, bias, mask, scale
        )
        return y, h_n, c_n, (inner, saved, cells, mask)

    def gradients(
        self, need_x, gy, gh_n, gc_n, x, h, c, weight_l0, weight, bias, y, inner, saved, cells, mask
    ):
        """Gradients of x, h, c, weight_l0, weight and bias; None for x if need_x is False."""
        gs = recurrent_backward(
            gy, gh_n, gc_n, x, h, c, weight_l0, weight, bias, y, inner, saved, cells, mask,
            cell=self.cell_name, dropout=self.dropout, need_x=need_x,
        )  # fmt: skip
        given = (x if need_x else None, h, c, weight_l0, weight, bias)
        return tuple(None if v is None else g for v, g in zip(given, gs, strict=True))

    def work(self, x, h, weight_l0, weight):
        """Cost: every weight is multiplied with every step of every sample."""
        weights = weight_l0.size + (0 if weight is None else weight.size)
        n = x.shape[0] * x.shape[1]
        return Cost(flops=2 * n * weights, bytes=x.nbytes + 8 * weights + 4 * n * h.shape[3])


@op("rnn", narrow=True, nnp="RNN", outputs=("y", "h_n", *HIDDEN), hidden=4)
class rnn(Recurrent):
    r"""Simple recurrent layers, one above the other.

    $$h_t = f(W x_t + U h_{t-1} + b)$$ with f tanh or ReLU, and W beside U in the weights. Layers
    after the first take as x the states of the one before, of both directions if there are two.

    Args:
        x: (T, B, I).
        h: (L, D, B, H), states before the first step.
        weight_l0: (D, H, I + H), columns of x before those of h.
        weight: (L - 1, D, H, D H + H) of the further layers; left out if L is 1.
        bias: (L, D, H), or left out.
        num_layers: L.
        nonlinearity: "tanh" or "relu".
        dropout: Probability of 0 for outputs of every layer but the last, if training.
        bidirectional: Whether D is 2: the second direction runs from the last step to the first.
        training: Whether dropout is applied.
    Returns:
        y: (T, B, D H), outputs of the last layer. h_n: (L, D, B, H), states after the last step.
    Raises:
        ShapeError: A shape does not fit. ValueError: An argument is out of its range.
    Source: Elman, Finding Structure in Time, Cognitive Science 14, 1990.
    """

    num_layers: int = 1
    nonlinearity: str = "tanh"
    dropout: float | None = None
    bidirectional: bool = False
    training: bool = True

    def resolve(self, x, h, weight_l0, weight=None, bias=None, rng=None):
        return {"dropout": self.dropout or 0.0}

    @property
    def cell_name(self):
        return self.nonlinearity

    def infer(self, x, h, weight_l0, weight=None, bias=None, rng=None):
        word = self.nonlinearity
        require("rnn", "nonlinearity", repr(word), "'tanh' or 'relu'", word in ("tanh", "relu"))
        y, h_n, _, hidden = self.specs(x, h, weight_l0, weight, bias)
        return y, h_n, *hidden

    def forward(self, xp, x, h, weight_l0, weight, bias, rng):
        y, h_n, _, hidden = self.run(xp, x, h, None, weight_l0, weight, bias, rng)
        return y, h_n, *hidden

    def vjp(
        self,
        gy,
        gh_n,
        _0,
        _1,
        _2,
        _3,
        *,
        x,
        h,
        weight_l0,
        weight,
        bias,
        y,
        inner,
        saved,
        cells,
        mask,
        need,
    ):
        kept = (y, inner, saved, cells, mask)
        gs = self.gradients(need[0], gy, gh_n, None, x, h, None, weight_l0, weight, bias, *kept)
        return gs[:2] + gs[3:]

    def cost(self, x, h, weight_l0, weight=None, bias=None, rng=None):
        return self.work(x, h, weight_l0, weight)

    def samples(rng):
        for n, d, word in ((1, 1, "tanh"), (2, 2, "tanh"), (2, 1, "relu")):
            yield _sample(rng, 1, 1, n, d, nonlinearity=word)


@op("lstm", narrow=True, nnp="LSTM", outputs=("y", "h_n", "c_n", *HIDDEN), hidden=4)
class lstm(Recurrent):
    r"""Long short-term memory.

    $$i_t = \sigma(W_i x_t + U_i h_{t-1} + b_i), \quad f_t = \sigma(W_f x_t + U_f h_{t-1} + b_f)$$
    $$g_t = \tanh(W_g x_t + U_g h_{t-1} + b_g), \quad o_t = \sigma(W_o x_t + U_o h_{t-1} + b_o)$$
    $$c_t = f_t c_{t-1} + i_t g_t, \quad h_t = o_t \tanh c_t$$ with products of states element by
    element. The weights hold the gates in the order i, f, g, o, and in each W beside U.

    Args:
        x: (T, B, I).
        h, c: (L, D, B, H), states before the first step.
        weight_l0: (D, 4, H, I + H), columns of x before those of h.
        weight: (L - 1, D, 4, H, D H + H) of the further layers; left out if L is 1.
        bias: (L, D, 4, H), or left out.
        num_layers: L.
        dropout: Probability of 0 for outputs of every layer but the last, if training.
        bidirectional: Whether D is 2: the second direction runs from the last step to the first.
        training: Whether dropout is applied.
    Returns:
        y: (T, B, D H), outputs of the last layer. h_n, c_n: (L, D, B, H), states after the last
        step.
    Raises:
        ShapeError: A shape does not fit. ValueError: An argument is out of its range.
    Source: Hochreiter and Schmidhuber, Long Short-Term Memory, Neural Computation 9, 1997; the gate
        f: Gers, Schmidhuber and Cummins, Learning to Forget, Neural Computation 12, 2000.
    """

    num_layers: int = 1
    dropout: float | None = None
    bidirectional: bool = False
    training: bool = True

    def resolve(self, x, h, c, weight_l0, weight=None, bias=None, rng=None):
        return {"dropout": self.dropout or 0.0}

    def infer(self, x, h, c, weight_l0, weight=None, bias=None, rng=None):
        y, h_n, c_n, hidden = self.specs(x, h, weight_l0, weight, bias, c)
        return y, h_n, c_n, *hidden

    def forward(self, xp, x, h, c, weight_l0, weight, bias, rng):
        y, h_n, c_n, hidden = self.run(xp, x, h, c, weight_l0, weight, bias, rng)
        return y, h_n, c_n, *hidden

    def vjp(
        self, gy, gh_n, gc_n, _0, _1, _2, _3,
        *, x, h, c, weight_l0, weight, bias, y, inner, saved, cells, mask, need,
    ):  # fmt: skip
        kept = (y, inner, saved, cells, mask)
        return self.gradients(need[0], gy, gh_n, gc_n, x, h, c, weight_l0, weight, bias, *kept)

    def cost(self, x, h, c, weight_l0, weight=None, bias=None, rng=None):
        return self.work(x, h, weight_l0, weight)

    def samples(rng):
        for n, d in ((1, 1), (2, 2)):
            yield _sample(rng, 4, 4, n, d)


@op("gru", narrow=True, nnp="GRU", outputs=("y", "h_n", *HIDDEN), hidden=4)
class gru(Recurrent):
    r"""Gated recurrent units.

    $$r_t = \sigma(W_r x_t + U_r h_{t-1} + b_r), \quad z_t = \sigma(W_z x_t + U_z h_{t-1} + b_z)$$
    $$n_t = \tanh(W_n x_t + b_n + r_t (U_n h_{t-1} + d_n))$$
    $$h_t = (1 - z_t) n_t + z_t h_{t-1}$$ with products of states element by element. The weights
    hold the gates in the order r, z, n, and in each W beside U; the bias holds b and then d.

    Args:
        x: (T, B, I).
        h: (L, D, B, H), states before the first step.
        weight_l0: (D, 3, H, I + H), columns of x before those of h.
        weight: (L - 1, D, 3, H, D H + H) of the further layers; left out if L is 1.
        bias: (L, D, 4, H), rows of r, z, of n beside x and of n beside h; or left out.
        num_layers: L.
        dropout: Probability of 0 for outputs of every layer but the last, if training.
        bidirectional: Whether D is 2: the second direction runs from the last step to the first.
        training: Whether dropout is applied.
    Returns:
        y: (T, B, D H), outputs of the last layer. h_n: (L, D, B, H), states after the last step.
    Raises:
        ShapeError: A shape does not fit. ValueError: An argument is out of its range.
    Source: Cho et al., Learning Phrase Representations using RNN Encoder-Decoder, EMNLP 2014,
        arXiv:1406.1078, with the reset gate after the product as in cuDNN.
    """

    num_layers: int = 1
    dropout: float | None = None
    bidirectional: bool = False
    training: bool = True

    def resolve(self, x, h, weight_l0, weight=None, bias=None, rng=None):
        return {"dropout": self.dropout or 0.0}

    def infer(self, x, h, weight_l0, weight=None, bias=None, rng=None):
        y, h_n, _, hidden = self.specs(x, h, weight_l0, weight, bias)
        return y, h_n, *hidden

    def forward(self, xp, x, h, weight_l0, weight, bias, rng):
        y, h_n, _, hidden = self.run(xp, x, h, None, weight_l0, weight, bias, rng)
        return y, h_n, *hidden

    def vjp(
        self,
        gy,
        gh_n,
        _0,
        _1,
        _2,
        _3,
        *,
        x,
        h,
        weight_l0,
        weight,
        bias,
        y,
        inner,
        saved,
        cells,
        mask,
        need,
    ):
        kept = (y, inner, saved, cells, mask)
        gs = self.gradients(need[0], gy, gh_n, None, x, h, None, weight_l0, weight, bias, *kept)
        return gs[:2] + gs[3:]

    def cost(self, x, h, weight_l0, weight=None, bias=None, rng=None):
        return self.work(x, h, weight_l0, weight)

    def samples(rng):
        for n, d in ((1, 1), (2, 2)):
            yield _sample(rng, 3, 4, n, d)


@op(
    "recurrent_backward",
    outputs=("gx", "gh", "gc", "gweight_l0", "gweight", "gbias"),
    keep=("mask",),
    wide=(3, 4, 5),
)
class recurrent_backward:
    """The gradient of rnn, lstm and gru from what their forward kept.

    Its own gradient is that of the same gradient of the layers written step by step in other
    functions.

    Args:
        gy, gh_n, gc_n: Gradients of the outputs.
        x, h, c, weight_l0, weight, bias: Inputs; c, weight and bias may be left out.
        y, inner, saved, cells, mask: Outputs of the function, hidden ones included.
        cell: "tanh", "relu", "lstm" or "gru".
        dropout: Probability of 0 that mask was drawn with.
        need_x: Whether the gradient of x is wanted: a sixth of the work if I = H and L = 1.
    Returns:
        Gradients of the inputs; arrays of shape (0,) for those left out or not wanted.
    """

    cell: str
    dropout: float = 0.0
    need_x: bool = True

    def infer(
        self, gy, gh_n, gc_n=None, x=None, h=None, c=None, weight_l0=None, weight=None, bias=None,
        y=None, inner=None, saved=None, cells=None, mask=None,
    ):  # fmt: skip
        nothing = x.with_shape((0,))
        given = (x if self.need_x else None, h, c, weight_l0, weight, bias)
        return tuple(nothing if s is None else s for s in given)

    def forward(
        self, xp, gy, gh_n, gc_n, x, h, c, weight_l0, weight, bias, y, inner, saved, cells, mask
    ):
        gs = run_backward(
            xp, CELLS[self.cell], gy, gh_n, gc_n, x, h, c, weight_l0, weight, bias,
            (y, inner, mask, saved, cells), 1.0 / (1.0 - self.dropout), self.need_x,
        )  # fmt: skip
        return tuple(xp.zeros((0,), x.dtype) if g is None else g for g in gs)

    def decompose(
        self, gy, gh_n, gc_n, x, h, c, weight_l0, weight, bias, y, inner, saved, cells, mask
    ):
        from nnl.functions.recurrent_steps import gradient_by_steps

        inputs = (x, h, c, weight_l0, weight, bias)
        return gradient_by_steps(
            self.cell, 1.0 / (1.0 - self.dropout), (gy, gh_n, gc_n), inputs, mask, self.need_x
        )

    def cost(self, *specs):
        given = dict(zip(self.op.inputs, specs, strict=False))
        x, weight_l0, weight, saved = (given[n] for n in ("x", "weight_l0", "weight", "saved"))
        weights = weight_l0.size + (0 if weight is None else weight.size)
        n, size = x.shape[0] * x.shape[1], x.shape[2]
        left_out = 0 if self.need_x else weight_l0.size * size // weight_l0.shape[-1]
        return Cost(
            flops=2 * n * (2 * weights - left_out), bytes=2 * x.nbytes + 16 * weights + saved.nbytes
        )

    def samples(rng):
        for name, gates, rows, need_x in (
            ("tanh", 1, 1, True), ("lstm", 4, 4, True), ("lstm", 4, 4, False), ("gru", 3, 4, True),
        ):  # fmt: skip
            x, h, *rest = _sample(rng, gates, rows, 2, 2).inputs
            c, (w0, w, b) = (rest[0] if name == "lstm" else None), rest[-3:]
            mask = np.zeros((0,), np.bool_)
            y, h_n, c_n, inner, saved, cells = run(np, CELLS[name], x, h, c, w0, w, b, mask, 1.0)
            gy, gh = rng.normal(size=y.shape), rng.normal(size=h.shape)
            gc = rng.normal(size=h.shape) if name == "lstm" else None
            yield Sample(
                gy, gh, gc, x, h, c, w0, w, b, y, inner, saved, cells, mask,
                cell=name, need_x=need_x, order=1,
                grad=(True, True, gc is not None) + (False,) * 11,
            )  # fmt: skip


def _sample(rng, gates, rows, layers, directions, **attrs):
    steps, batch, size, hidden = 3, 2, 3, 2
    g = () if gates == 1 else (gates,)
    r = () if gates == 1 else (rows,)
    state = (layers, directions, batch, hidden)
    weight = (layers - 1, directions, *g, hidden, (directions + 1) * hidden)
    arrays = [rng.normal(size=(steps, batch, size)), rng.normal(size=state)]
    if gates == 4:
        arrays.append(rng.normal(size=state))
    arrays += [
        rng.normal(size=(directions, *g, hidden, size + hidden)),
        rng.normal(size=weight) if layers > 1 else None,
        rng.normal(size=(layers, directions, *r, hidden)),
    ]
    return Sample(*arrays, num_layers=layers, bidirectional=directions == 2, **attrs)
