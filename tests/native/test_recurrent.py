# SPDX-License-Identifier: Apache-2.0
"""rnn, lstm, gru and their gradient at sizes that several threads share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.core.ops.op import OPS
from nnl.graph.execution.session import session_of
from tests.native.kernels import BF16, F16, F32, assert_close, run_native, run_numpy

GATES = {"tanh": (1, 1), "relu": (1, 1), "lstm": (4, 4), "gru": (3, 4)}


def inputs_of(cell: str, t: int, b: int, i: int, h: int, n: int, d: int, bias: bool) -> list[Any]:
    rng = np.random.default_rng(t + h)
    gates, rows = GATES[cell]
    g, r = ((gates,), (rows,)) if gates > 1 else ((), ())

    def random(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(F32)

    def weights(*shape: int) -> np.ndarray:
        return random(*shape) / np.float32(np.sqrt(shape[-1]))

    x, state = random(t, b, i), (n, d, b, h)
    w0 = weights(d, *g, h, i + h)
    w = weights(n - 1, d, *g, h, (d + 1) * h) if n > 1 else None
    return [
        x,
        random(*state),
        *([random(*state)] if cell == "lstm" else []),
        w0,
        w,
        random(n, d, *r, h) if bias else None,
    ]


def op_of(cell: str, n: int, d: int, dropout: float = 0.0) -> tuple[Any, Any]:
    op = OPS["rnn" if cell in ("tanh", "relu") else cell]
    attrs = {"num_layers": n, "bidirectional": d == 2, "dropout": dropout}
    if op.name == "rnn":
        attrs["nonlinearity"] = cell
    return op, op.attrs(**attrs)


def rounded(x: Any, dtype: np.dtype) -> Any:
    return x if x is None or x.dtype == bool else x.astype(dtype)


SIZES = [
    # steps, batch, inputs, states, layers, directions, bias
    (1, 1, 1, 1, 1, 1, False),
    (5, 3, 7, 5, 1, 2, True),
    (9, 33, 20, 48, 3, 2, True),
    (12, 17, 31, 65, 2, 1, False),
    (6, 1, 9, 37, 2, 2, True),
    (0, 2, 3, 4, 2, 2, True),
    (3, 0, 3, 4, 1, 1, True),
]


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("cell", GATES)
def test_layers_and_their_gradient_equal_the_definition(
    cell: str, size: Any, dtype: np.dtype
) -> None:
    n, d = size[4:6]
    op, attrs = op_of(cell, n, d)
    inputs = [rounded(x, dtype) for x in inputs_of(cell, *size)]
    inputs.append(np.zeros(2, np.uint64))
    exact = [x if x is None or x.dtype == np.uint64 else x.astype(F32) for x in inputs]
    specs, want = run_numpy(op, attrs, exact)
    outs = [s if s.dtype == bool else s.with_dtype(dtype) for s in specs]
    got = run_native(op, attrs, inputs, outs)
    assert got is not None
    for name, g, w in zip(op.outputs, got, want, strict=True):
        if w.dtype != bool:
            assert_close(g, w, dtype, name)

    # the gradient from what the definition kept, so that errors do not add up
    rng = np.random.default_rng(1)
    kept = [rounded(y, dtype) for y in want]
    state = 3 if cell == "lstm" else 2
    gys = [rounded(rng.normal(size=y.shape).astype(F32), dtype) for y in want[:state]]
    if cell != "lstm":
        gys.append(None)
    x, h, *rest = inputs[:-1]
    c = rest.pop(0) if cell == "lstm" else None
    given = [*gys, x, h, c, *rest, kept[0], *kept[state:]]
    backward = OPS["recurrent_backward"]
    attrs = backward.attrs(cell=cell)
    exact = [x if x is None or x.dtype == bool else x.astype(F32) for x in given]
    specs, want = run_numpy(backward, attrs, exact)
    got = run_native(backward, attrs, given, [s.with_dtype(dtype) for s in specs])
    assert got is not None
    for name, g, w in zip(backward.outputs, got, want, strict=True):
        assert_close(g, w, dtype, name)


def as_in_a_bfloat16_context(cell: str, size: Any) -> tuple[list[Any], list[Any]]:
    """Inputs as a network in bfloat16 has them, parameters in float32, and rounded to float32."""
    x, *rest = inputs_of(cell, *size)
    given = [x.astype(BF16), *rest, np.zeros(2, np.uint64)]
    return given, [x if x is None or x.dtype == np.uint64 else x.astype(F32) for x in given]


@pytest.mark.parametrize("need_x", [True, False])
@pytest.mark.parametrize("size", [(9, 33, 20, 48, 3, 2, True), (7, 6, 5, 19, 1, 1, True)], ids=str)
@pytest.mark.parametrize("cell", GATES)
def test_bfloat16_data_meet_float32_parameters(cell: str, size: Any, need_x: bool) -> None:
    op, attrs = op_of(cell, *size[4:6])
    inputs, exact = as_in_a_bfloat16_context(cell, size)
    specs, want = run_numpy(op, attrs, exact)
    outs = [s if s.dtype == bool else s.with_dtype(BF16) for s in specs]
    got = run_native(op, attrs, inputs, outs)
    assert got is not None
    for name, g, w in zip(op.outputs, got, want, strict=True):
        if w.dtype != bool:
            assert_close(g, w, BF16, name)

    states = 3 if cell == "lstm" else 2
    rng = np.random.default_rng(2)
    gys = [rng.normal(size=y.shape).astype(BF16) for y in want[:states]]
    gys += [None] * (3 - states)
    x, h, *rest = inputs[:-1]
    c = rest.pop(0) if cell == "lstm" else None
    given = [*gys, x, h, c, *rest, *[rounded(y, BF16) for y in (want[0], *want[states:])]]
    backward = OPS["recurrent_backward"]
    attrs = backward.attrs(cell=cell, need_x=need_x)
    exact = [x if x is None or x.dtype == bool else x.astype(F32) for x in given]
    specs, want = run_numpy(backward, attrs, exact)
    got = run_native(
        backward, attrs, given, [s if i > 2 else s.with_dtype(BF16) for i, s in enumerate(specs)]
    )
    assert got is not None
    assert got[0].shape == (x.shape if need_x else (0,))
    for name, g, w in zip(backward.outputs, got, want, strict=True):
        assert_close(g, w, BF16, name)


def test_the_gradient_of_the_data_is_left_out_where_nobody_needs_it() -> None:
    rng = np.random.default_rng(0)
    x, state = nn.Variable((4, 2, 3)), nn.Variable((1, 1, 2, 5))
    x.d, state.d = rng.normal(size=x.shape), 0
    needs = {}
    for x.need_grad in (False, True):
        nn.clear_parameters()
        y = F.sum(PF.lstm(x, state, state)[0])
        y.forward(clear_no_need_grad=True)
        y.backward(clear_buffer=True)
        steps = session_of([y]).plans["train"].plan.steps
        needs[x.need_grad] = [s.attrs["need_x"] for s in steps if s.op == "recurrent_backward"]
    nn.clear_parameters()
    assert needs == {False: [False], True: [True]}


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("n, d", [(2, 1), (3, 2)])
@pytest.mark.parametrize("cell", GATES)
def test_dropout_between_layers_draws_the_numbers_of_the_definition(
    cell: str, n: int, d: int, dtype: np.dtype
) -> None:
    op, attrs = op_of(cell, n, d, 0.4)
    exact = [*inputs_of(cell, 5, 3, 4, 6, n, d, True), np.array([7, 11], np.uint64)]
    exact = [x.astype(dtype).astype(F32) if x.dtype == F32 else x for x in exact]
    given = [x.astype(dtype) if x.dtype == F32 else x.copy() for x in exact]
    specs, want = run_numpy(op, attrs, exact)
    typed = [s.with_dtype(dtype) if s.dtype == F32 else s for s in specs]
    got = run_native(op, attrs, given, typed)
    assert got is not None
    assert np.array_equal(got[-1], want[-1]) and np.array_equal(given[-1], exact[-1])
    for name, g, w in zip(op.outputs, got, want, strict=True):
        assert_close(g, w, dtype, name)

    rng = np.random.default_rng(0)
    gs = [rng.normal(size=want[0].shape), *[rng.normal(size=exact[1].shape) for _ in range(2)]]
    gs = [g.astype(F32) for g in gs]
    hidden = 3 if cell == "lstm" else 2
    c = exact[2] if cell == "lstm" else None
    inputs = [*gs[:2], gs[2] if cell == "lstm" else None, *exact[:2], c, *exact[-4:-1]]
    inputs += [want[0], *want[hidden:]]
    backward = OPS["recurrent_backward"]
    attrs = backward.attrs(cell=cell, dropout=0.4)
    specs, want = run_numpy(backward, attrs, inputs)
    inputs = [x if x is None or x.dtype != F32 else x.astype(dtype) for x in inputs]
    got = run_native(backward, attrs, inputs, [s.with_dtype(dtype) for s in specs])
    assert got is not None
    for name, g, w in zip(backward.outputs, got, want, strict=True):
        assert_close(g, w, dtype, name)
