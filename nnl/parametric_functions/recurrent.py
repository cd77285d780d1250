# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers whose weights are parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.arguments.annotations import Input, checked
from nnl.core.arrays.resources import check_sizes
from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameter_or_create
from nnl.parametric_functions.affine import affine
from nnl.parametric_functions.api import parametric_function_api
from nnl.parametric_functions.initializer import ZERO, glorot

__all__ = ["rnn", "lstm", "gru", "lstm_cell", "LSTMCell"]

Rng = np.random.RandomState | None


def _described(gates: str, rows: str) -> list[tuple[str, str, str, bool]]:
    return [
        ("weight_l0", "Weight of the first layer", f"(D, {gates}H, I + H)", True),
        ("weight", "Weights of the others", f"(L - 1, D, {gates}H, D H + H)", True),
        ("bias", "Bias", f"(L, D, {rows}H)", True),
    ]


def _drawn_now(shape: Sequence[int], inputs: int, hidden: int, rng: Rng) -> Any:
    """Weights whose columns are those of the inputs, then those of the state.

    Each part is uniform with Glorot's limits of its own; all inputs are drawn before all states.
    """
    parts = []
    for n in (inputs, hidden):
        parts.append(glorot(n, hidden, rng=rng)((*shape[:-1], n)))
    return np.concatenate(parts, axis=-1)


def _beside(shape: Sequence[int], inputs: int, hidden: int, rng: Rng) -> Callable[[Any], Any]:
    """The initializer that draws such weights when it is called."""
    return lambda shape: _drawn_now(shape, inputs, hidden, rng)


def _parameters(
    name: str,
    x: Input,
    h: Input,
    gates: tuple[int, ...],
    rows: tuple[int, ...],
    inits: tuple[Any, Any, Any],
    num_layers: int,
    bidirectional: bool,
    rng: Rng,
    with_bias: bool,
    fix: bool,
) -> tuple[Any, Any, Any]:
    """weight_l0, weight and bias."""
    if x.ndim != 3 or h.ndim != 4:
        raise ShapeError(
            f"{name}: x has the shape {x.shape} and h {h.shape}, wanted (T, B, I) and (L, D, B, H)"
        )
    if num_layers > h.shape[0]:  # before weights of so many are drawn
        raise ShapeError(f"{name}: h has the shape {h.shape}, wanted ({num_layers}, D, B, H)")
    w0_init, w_init, b_init = inits
    # NNabla's rnn, but not lstm and gru, draws default values even if the parameters exist; later
    # draws are to be the same
    beside = _drawn_now if name == "rnn" else _beside
    size, hidden, directions = x.shape[2], h.shape[3], 2 if bidirectional else 1
    shape: tuple[int, ...] = (directions, *gates, hidden, size + hidden)
    if w0_init is None:
        w0_init = beside(shape, size, hidden, rng)
    weight_l0 = get_parameter_or_create("weight_l0", shape, w0_init, True, not fix)
    weight = bias = None
    if num_layers > 1:
        shape = (num_layers - 1, directions, *gates, hidden, (directions + 1) * hidden)
        if w_init is None:
            w_init = beside(shape, directions * hidden, hidden, rng)
        weight = get_parameter_or_create("weight", shape, w_init, True, not fix)
    if with_bias:
        b_init = ZERO if b_init is None else b_init
        shape = (num_layers, directions, *rows, hidden)
        bias = get_parameter_or_create("bias", shape, b_init, True, not fix)
    return weight_l0, weight, bias


@parametric_function_api("rnn", _described("", ""))
def rnn(
    x: Input,
    h: Input,
    w0_init: Any = None,
    w_init: Any = None,
    b_init: Any = None,
    num_layers: int = 1,
    nonlinearity: str = "tanh",
    dropout: float = 0.0,
    bidirectional: bool = False,
    training: bool = True,
    rng: Rng = None,
    with_bias: bool = True,
    fix_parameters: bool = False,
) -> Any:
    """Simple recurrent layers over a sequence, see `nnl.functions.rnn`.

    $$h_t = f(W x_t + U h_{t-1} + b)$$ with the nonlinearity f; W and U are the columns of the
    weight for x and for h.

    Args:
        x: (T, B, I): T steps, B samples, I inputs.
        h: (L, D, B, H), states before the first step; L layers, D directions, H states.
        w0_init, w_init, b_init: Initializers or arrays of weight_l0, weight and bias. Uniform with
            Glorot's limits, and 0, if left out.
        num_layers: L.
        nonlinearity: "tanh" or "relu".
        dropout: Probability of 0 for outputs of every layer but the last, if training.
        bidirectional: Whether D is 2.
        training: Whether dropout is applied.
        rng: Generator of the default initializers; the framework's if left out.
        with_bias: Whether there is a bias.
        fix_parameters: Compute no gradients for the parameters in this call.
    Returns:
        y: (T, B, D H), and the states after the last step: (L, D, B, H).
    Source: Elman, Finding Structure in Time, Cognitive Science 14, 1990.
    Example:
        >>> x, h = array(np.ones((5, 2, 3))), array(np.zeros((1, 1, 2, 4)))  # 5 steps, 2 samples
        >>> y, h = PF.rnn(x, h, name="ex")
        >>> y.shape, h.shape
        ((5, 2, 4), (1, 1, 2, 4))
    """
    inits = (w0_init, w_init, b_init)
    parameters = _parameters(
        "rnn", x, h, (), (), inits, num_layers, bidirectional, rng, with_bias, fix_parameters
    )
    return F.rnn(
        x,
        h,
        *parameters,
        num_layers=num_layers,
        nonlinearity=nonlinearity,
        dropout=dropout,
        bidirectional=bidirectional,
        training=training,
    )


@parametric_function_api("lstm", _described("4, ", "4, "))
def lstm(
    x: Input,
    h: Input,
    c: Input,
    w0_init: Any = None,
    w_init: Any = None,
    b_init: Any = None,
    num_layers: int = 1,
    dropout: float = 0.0,
    bidirectional: bool = False,
    training: bool = True,
    rng: Rng = None,
    with_bias: bool = True,
    fix_parameters: bool = False,
) -> Any:
    r"""Long short-term memory over a sequence, see `nnl.functions.lstm`.

    $$i_t = \sigma(W_i x_t + U_i h_{t-1} + b_i), \quad f_t = \sigma(W_f x_t + U_f h_{t-1} + b_f)$$
    $$g_t = \tanh(W_g x_t + U_g h_{t-1} + b_g), \quad o_t = \sigma(W_o x_t + U_o h_{t-1} + b_o)$$
    $$c_t = f_t c_{t-1} + i_t g_t, \quad h_t = o_t \tanh c_t$$

    Args:
        c: (L, D, B, H), cell states before the first step.

    The other arguments are those of `rnn`.

    Returns:
        y: (T, B, D H), and h and c after the last step: (L, D, B, H).
    Source: Hochreiter and Schmidhuber, Long Short-Term Memory, Neural Computation 9, 1997; the gate
        f: Gers, Schmidhuber and Cummins, Learning to Forget, Neural Computation 12, 2000.
    Example:
        >>> x, h = array(np.ones((5, 2, 3))), array(np.zeros((1, 1, 2, 4)))  # 5 steps, 2 samples
        >>> y, h, c = PF.lstm(x, h, h, name="ex")
        >>> y.shape, c.shape
        ((5, 2, 4), (1, 1, 2, 4))
    """
    inits = (w0_init, w_init, b_init)
    parameters = _parameters(
        "lstm", x, h, (4,), (4,), inits, num_layers, bidirectional, rng, with_bias, fix_parameters
    )
    return F.lstm(
        x,
        h,
        c,
        *parameters,
        num_layers=num_layers,
        dropout=dropout,
        bidirectional=bidirectional,
        training=training,
    )


@parametric_function_api("gru", _described("3, ", "4, "))
def gru(
    x: Input,
    h: Input,
    w0_init: Any = None,
    w_init: Any = None,
    b_init: Any = None,
    num_layers: int = 1,
    dropout: float = 0.0,
    bidirectional: bool = False,
    training: bool = True,
    rng: Rng = None,
    with_bias: bool = True,
    fix_parameters: bool = False,
) -> Any:
    r"""Gated recurrent units over a sequence, see `nnl.functions.gru`.

    $$r_t = \sigma(W_r x_t + U_r h_{t-1} + b_r), \quad z_t = \sigma(W_z x_t + U_z h_{t-1} + b_z)$$
    $$n_t = \tanh(W_n x_t + b_n + r_t (U_n h_{t-1} + d_n))$$
    $$h_t = (1 - z_t) n_t + z_t h_{t-1}$$

    The arguments and results are those of `rnn`.

    Source: Cho et al., Learning Phrase Representations using RNN Encoder-Decoder, EMNLP 2014,
        arXiv:1406.1078, with the reset gate after the product as in cuDNN.
    Example:
        >>> x, h = array(np.ones((5, 2, 3))), array(np.zeros((1, 1, 2, 4)))  # 5 steps, 2 samples
        >>> y, h = PF.gru(x, h, name="ex")
        >>> y.shape, h.shape
        ((5, 2, 4), (1, 1, 2, 4))
    """
    inits = (w0_init, w_init, b_init)
    parameters = _parameters(
        "gru", x, h, (3,), (4,), inits, num_layers, bidirectional, rng, with_bias, fix_parameters
    )
    return F.gru(
        x,
        h,
        *parameters,
        num_layers=num_layers,
        dropout=dropout,
        bidirectional=bidirectional,
        training=training,
    )


@parametric_function_api(
    "lstm",
    [
        ("affine/W", "Weight", "(I + H, 4, H)", True),
        ("affine/b", "Bias", "(4, H)", True),
    ],
)
def lstm_cell(
    x: Input,
    h: Input,
    c: Input,
    state_size: int,
    w_init: Any = None,
    b_init: Any = None,
    fix_parameters: bool = False,
) -> tuple[Any, Any]:
    r"""One step of a long short-term memory.

    $$i = \sigma([x, h]\, W_0 + b_0), \quad o = \sigma([x, h]\, W_1 + b_1)$$
    $$f = \sigma([x, h]\, W_2 + b_2), \quad g = \tanh([x, h]\, W_3 + b_3)$$
    $$c' = f c + i g, \quad h' = o \tanh c'$$ with W[:, k] as $W_k$, and x and h side by side.

    Args:
        x: (B, I).
        h, c: (B, H), output and cell state of the step before.
        state_size: H.
        w_init, b_init: Initializers or arrays of the weights and the bias of `affine`.
        fix_parameters: Compute no gradients for the parameters in this call.
    Returns:
        h and c of this step.
    Source: Hochreiter and Schmidhuber, Long Short-Term Memory, Neural Computation 9, 1997; the gate
        f: Gers, Schmidhuber and Cummins, Learning to Forget, Neural Computation 12, 2000.
    Example:
        >>> h, c = array(np.zeros((2, 4))), array(np.zeros((2, 4)))
        >>> h, c = PF.lstm_cell(array(np.ones((2, 3))), h, c, 4, name="ex")
        >>> h.shape, c.shape
        ((2, 4), (2, 4))
    """
    for name, state in (("h", h), ("c", c)):
        if state.shape != (*x.shape[:1], state_size) or x.ndim != 2:
            raise ShapeError(
                f"lstm_cell: {name} has the shape {state.shape} and x {x.shape}, wanted "
                f"(B, {state_size}) and (B, I)"
            )
    gates = affine(
        F.concatenate(x, h, axis=1),
        (4, state_size),
        w_init=w_init,
        b_init=b_init,
        fix_parameters=fix_parameters,
    )
    i, o, f, new = F.split(gates, axis=1)
    c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(new)
    return F.sigmoid(o) * F.tanh(c), c


class LSTMCell:
    """`lstm_cell` that keeps its state: $(h, c) \\leftarrow \\mathrm{lstm\\_cell}(x, h, c)$.

    Args:
        batch_size: Number of samples.
        state_size: Number of states.
        h, c: (batch_size, state_size), the first state; zeros if left out.
        name: Scope of the parameters.

    Source: Hochreiter and Schmidhuber, Long Short-Term Memory, Neural Computation 9, 1997.
    Example:
        >>> cell = PF.LSTMCell(batch_size=2, state_size=4, name="ex")
        >>> y = [cell(array(np.ones((2, 3)))) for step in range(5)]
        >>> y[-1].shape
        (2, 4)
    """

    @checked
    def __init__(
        self,
        batch_size: int,
        state_size: int,
        h: Input | None = None,
        c: Input | None = None,
        name: str | None = None,
    ) -> None:
        if min(batch_size, state_size) < 0:
            raise ShapeError(f"LSTMCell: batch_size {batch_size}, state_size {state_size}: < 0")
        check_sizes("LSTMCell", [Spec.of((batch_size, state_size))])
        self.batch_size, self.state_size, self.name = batch_size, state_size, name
        self.h = self._zeros() if h is None else h
        self.c = self._zeros() if c is None else c

    def _zeros(self) -> Variable:
        state = Variable((self.batch_size, self.state_size))
        state.data.zero()
        return state

    def __call__(
        self, x: Any, w_init: Any = None, b_init: Any = None, fix_parameters: bool = False
    ) -> Any:
        """Do one step with x (batch_size, inputs); returns h, (batch_size, state_size)."""
        self.h, self.c = lstm_cell(
            x,
            self.h,
            self.c,
            self.state_size,
            w_init,
            b_init,
            fix_parameters=fix_parameters,
            name=self.name,
        )
        return self.h

    def reset_state(self) -> None:
        """Set the state to zeros."""
        self.h, self.c = self._reset(self.h), self._reset(self.c)

    def _reset(self, state: Any) -> Any:
        if state.parent is None or state.data.record.version:  # shared: h0.data = cell.h.data
            state.data.zero()
        return state if state.parent is None else self._zeros()  # a graph's is left to it
