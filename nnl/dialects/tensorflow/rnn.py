# SPDX-License-Identifier: Apache-2.0
"""Recurrent networks: cells, and what calls them step by step."""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from nnl.dialects.tensorflow import nn
from nnl.dialects.tensorflow.control import flatten, over_rows, packed
from nnl.dialects.tensorflow.graph import name_scope
from nnl.dialects.tensorflow.initializers import INITIALIZERS
from nnl.dialects.tensorflow.table import N, cast, tensor
from nnl.dialects.tensorflow.variables import get_variable, variable_scope

LSTMStateTuple = namedtuple("LSTMStateTuple", ("c", "h"))


class RNNCell:
    """What makes an output and the next state of an input and a state.

    Attributes:
        state_size, output_size: Numbers of features, or tuples of them.
    """

    state_size = None
    output_size = None
    kind = "rnn_cell"

    def __init__(self, num_units, activation=None, reuse=None, name=None,
                 **_):  # fmt: skip
        self.units, self.activation = num_units, activation or N.tanh
        self.state_size = self.output_size = num_units
        self.reuse, self.name = reuse, name
        self.variables = {}

    def __call__(self, inputs, state, scope=None):
        """(output, next state)."""
        if self.variables:  # a cell has one set of weights
            return self.step(tensor(inputs), state)
        with variable_scope(scope or self.name or self.kind, reuse=self.reuse):
            return self.step(tensor(inputs), state)

    def step(self, x, state):
        """What the cell computes."""
        raise NotImplementedError

    def zero_state(self, batch_size, dtype=np.float32):
        """The state before the first step."""
        sizes = flatten(self.state_size)
        return packed(self.state_size, [N.zeros([batch_size, n], dtype) for n in sizes])

    def weight(self, name, shape, initializer=None):
        """A weight, made at the first call."""
        if name not in self.variables:
            self.variables[name] = get_variable(name, shape, initializer=initializer)
        return self.variables[name]

    @property
    def trainable_variables(self):
        """Its weights."""
        return list(self.variables.values())

    def linear(self, x, h, units, name="", start=None):
        """$[x, h] w + b$."""
        whole = N.concat([x, h], 1)
        w = self.weight(
            f"{name}kernel", [whole.sizes[1], units], getattr(self, "initializer", None)
        )
        b = self.weight(f"{name}bias", [units], start or INITIALIZERS["zeros"]())
        return nn.bias_add(N.matmul(whole, w), b)


class BasicRNNCell(RNNCell):
    """$h' = f([x, h] w + b)$."""

    kind = "basic_rnn_cell"

    def step(self, x, state):
        """What the cell computes."""
        y = self.activation(self.linear(x, state, self.units))
        return y, y


class LSTMCell(RNNCell):
    """Long short-term memory: gates i, j, f, o of $[x, h] w + b$;
    $c' = \\sigma(f + forget\\_bias) c + \\sigma(i) \\tanh(j)$; $h' = \\sigma(o) \\tanh(c')$."""

    kind = "lstm_cell"

    def __init__(self, num_units, use_peepholes=False, cell_clip=None,
                 initializer=None, num_proj=None, proj_clip=None,
                 num_unit_shards=None, num_proj_shards=None, forget_bias=1.0,
                 state_is_tuple=True, activation=None, reuse=None,
                 name=None, **_):  # fmt: skip
        super().__init__(num_units, activation, reuse, name)
        self.peepholes, self.clip, self.projection = use_peepholes, cell_clip, num_proj
        self.initializer, self.forget_bias, self.is_tuple = initializer, forget_bias, state_is_tuple
        self.output_size = num_proj or num_units
        both = LSTMStateTuple(num_units, self.output_size)
        self.state_size = both if state_is_tuple else sum(both)

    def step(self, x, state):
        """What the cell computes."""
        c, h = state if self.is_tuple else N.split(state, [self.units, self.output_size], 1)
        i, j, f, o = N.split(self.linear(x, h, 4 * self.units), 4, axis=1)

        def seen(gate, memory, name):
            if not self.peepholes:
                return gate
            return gate + self.weight(f"w_{name}_diag", [self.units], self.initializer) * memory

        keep = N.sigmoid(seen(f + self.forget_bias, c, "f"))
        c = keep * c + N.sigmoid(seen(i, c, "i")) * self.activation(j)
        if self.clip is not None:
            c = N.maximum(N.minimum(c, self.clip), -self.clip)
        h = N.sigmoid(seen(o, c, "o")) * self.activation(c)
        if self.projection:
            shape = [self.units, self.projection]
            h = N.matmul(h, self.weight("projection/kernel", shape, self.initializer))
        return h, LSTMStateTuple(c, h) if self.is_tuple else N.concat([c, h], 1)


class BasicLSTMCell(LSTMCell):
    """LSTMCell without peepholes and projection."""

    kind = "basic_lstm_cell"

    def __init__(self, num_units, forget_bias=1.0, state_is_tuple=True,
                 activation=None, reuse=None, name=None,
                 input_size=None):  # fmt: skip
        super().__init__(num_units, forget_bias=forget_bias, state_is_tuple=state_is_tuple,
                         activation=activation, reuse=reuse, name=name)  # fmt: skip


class LSTMBlockCell(BasicLSTMCell):
    """BasicLSTMCell under the name of TensorFlow's faster one."""

    kind = "lstm_cell"


class GRUCell(RNNCell):
    """Gated recurrent unit: $r, u = \\sigma([x, h] w + b)$; $c = \\tanh([x, r h] w_c + b_c)$;
    $h' = u h + (1 - u) c$."""

    kind = "gru_cell"

    def __init__(self, num_units, activation=None, reuse=None,
                 kernel_initializer=None, bias_initializer=None,
                 name=None):  # fmt: skip
        super().__init__(num_units, activation, reuse, name)
        self.initializer, self.start = kernel_initializer, bias_initializer

    def step(self, x, state):
        """What the cell computes."""
        start = self.start or INITIALIZERS["constant"](1.0)
        gates = N.sigmoid(self.linear(x, state, 2 * self.units, "gates/", start))
        r, u = N.split(gates, 2, axis=1)
        c = self.activation(self.linear(x, r * state, self.units, "candidate/", self.start))
        h = u * state + (1.0 - u) * c
        return h, h


class MultiRNNCell(RNNCell):
    """Cells of which each gets the output of the one before."""

    kind = "multi_rnn_cell"

    def __init__(self, cells, state_is_tuple=True):
        super().__init__(0)
        self.cells, self.is_tuple = list(cells), state_is_tuple
        self.state_size = tuple([c.state_size for c in self.cells])
        self.output_size = self.cells[-1].output_size
        if not state_is_tuple:
            self.state_size = sum(flatten(self.state_size))

    def step(self, x, state):
        """What the cells compute."""
        if not self.is_tuple:
            state = N.split(state, [c.state_size for c in self.cells], 1)
        after = []
        for i, (cell, s) in enumerate(zip(self.cells, state, strict=True)):
            with variable_scope(f"cell_{i}"):
                x, s = cell(x, s)
            after.append(s)
        return x, tuple(after) if self.is_tuple else N.concat(after, 1)


class DropoutWrapper(RNNCell):
    """A cell whose inputs, outputs or states are dropped."""

    kind = ""

    def __init__(self, cell, input_keep_prob=1.0, output_keep_prob=1.0,
                 state_keep_prob=1.0, variational_recurrent=False,
                 input_size=None, dtype=None, seed=None):  # fmt: skip
        super().__init__(0)
        if variational_recurrent:
            raise NotImplementedError("DropoutWrapper: variational_recurrent")
        self.cell, self.keeps = cell, (input_keep_prob, state_keep_prob, output_keep_prob)
        self.state_size, self.output_size = cell.state_size, cell.output_size

    def __call__(self, inputs, state, scope=None):
        """(output, next state)."""
        first, between, last = self.keeps
        y, after = self.cell(nn.dropout(inputs, first), state, scope)
        if not isinstance(between, float) or between < 1:
            after = packed(after, [nn.dropout(s, between) for s in flatten(after)])
        return nn.dropout(y, last), after


def _start(cell, initial_state, x, dtype, at):
    if initial_state is not None:
        return initial_state
    if dtype is None:
        raise ValueError("If there is no initial_state, you must give a dtype.")
    n = x.sizes[at] if x.sizes is not None else None
    return cell.zero_state(N.shape(x)[at] if n is None else n, dtype)


def static_rnn(cell, inputs, initial_state=None, dtype=None,
               sequence_length=None, scope=None):  # fmt: skip
    """A cell called for each of a list of inputs: (list of outputs, last state)."""
    if not isinstance(inputs, (list, tuple)) or not inputs:
        raise TypeError("inputs must be a sequence")
    with variable_scope(scope or "rnn"):
        state = _start(cell, initial_state, tensor(inputs[0]), dtype, 0)
        outputs = []
        for t, x in enumerate(inputs):
            y, after = cell(x, state)
            if sequence_length is not None:
                y, after = _until(
                    N.less(tensor(t), cast(sequence_length, np.int32)), y, after, state
                )
            outputs.append(y)
            state = after
    return outputs, state


def _until(goes, y, after, before):
    """Zeros, and the state before, where a sequence is over."""
    kept = [N.where(goes, a, b) for a, b in zip(flatten(after), flatten(before), strict=True)]
    return N.where(goes, y, N.zeros_like(y)), packed(after, kept)


def dynamic_rnn(cell, inputs, sequence_length=None, initial_state=None,
                dtype=None, parallel_iterations=None, swap_memory=False,
                time_major=False, scope=None, _backwards=False):  # fmt: skip
    """A cell called for every step of sequences: (outputs, last state).

    Args:
        inputs: (N, T, features), with time_major (T, N, features).
        sequence_length: (N,); steps after these give zeros and leave the state.
    """
    x = tensor(inputs)
    order = [1, 0, *range(2, x.ndim or 3)]
    x = x if time_major else N.transpose(x, order)
    with variable_scope(scope or "rnn"):
        state = _start(cell, initial_state, x, dtype, 1)
        steps = N.range(N.shape(x)[0])

        def step(s, row):
            y, after = cell(row[0], s)
            if sequence_length is not None:
                y, after = _until(N.less(row[1], cast(sequence_length, np.int32)), y, after, s)
            return y, after

        outputs, last = over_rows(step, [x, steps], state, _backwards)
    if not time_major:
        outputs = packed(outputs, [N.transpose(y, order) for y in flatten(outputs)])
    return outputs, last


def static_bidirectional_rnn(cell_fw, cell_bw, inputs, initial_state_fw=None,
                             initial_state_bw=None, dtype=None,
                             sequence_length=None, scope=None):  # fmt: skip
    """static_rnn in both directions: (outputs side by side, last states)."""
    with variable_scope(scope or "bidirectional_rnn"):
        with variable_scope("fw") as fw:
            ahead, state = static_rnn(cell_fw, inputs, initial_state_fw, dtype, sequence_length, fw)
        with variable_scope("bw") as bw:
            back, other = static_rnn(cell_bw, inputs[::-1], initial_state_bw, dtype, None, bw)
    both = [N.concat([a, b], 1) for a, b in zip(ahead, back[::-1], strict=True)]
    return both, state, other


def bidirectional_dynamic_rnn(cell_fw, cell_bw, inputs, sequence_length=None,
                              initial_state_fw=None, initial_state_bw=None,
                              dtype=None, parallel_iterations=None,
                              swap_memory=False, time_major=False,
                              scope=None):  # fmt: skip
    """dynamic_rnn in both directions: (outputs, last states), each a pair."""
    axes = {"seq_axis": 0 if time_major else 1, "batch_axis": 1 if time_major else 0}

    def turned(x):
        if sequence_length is None:
            return N.reverse(x, [axes["seq_axis"]])
        return N.reverse_sequence(x, sequence_length, **axes)

    rest = {"dtype": dtype, "time_major": time_major, "sequence_length": sequence_length}
    with variable_scope(scope or "bidirectional_rnn"):
        with variable_scope("fw") as fw:
            ahead, state = dynamic_rnn(
                cell_fw, inputs, initial_state=initial_state_fw, scope=fw, **rest
            )
        with variable_scope("bw") as bw, name_scope(None, "back"):
            back, other = dynamic_rnn(
                cell_bw, turned(tensor(inputs)), initial_state=initial_state_bw, scope=bw, **rest
            )
    return (ahead, turned(back)), (state, other)


def sequence_loss(logits, targets, weights, average_across_timesteps=True,
                  average_across_batch=True, softmax_loss_function=None,
                  name=None):  # fmt: skip
    """The cross entropy (N, T) of logits (N, T, classes), weighted and averaged."""
    loss = softmax_loss_function or nn.sparse_softmax_cross_entropy_with_logits
    each = loss(labels=targets, logits=logits) * weights
    axes = [a for a, on in ((0, average_across_batch), (1, average_across_timesteps)) if on]
    if not axes:
        return each
    return N.reduce_sum(each, axes) / (N.reduce_sum(weights, axes) + 1e-12)
