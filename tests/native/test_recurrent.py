# SPDX-License-Identifier: Apache-2.0
"""rnn, lstm, gru and their gradient at sizes that several threads share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnl.core.op import OPS
from nnl.core.spec import Spec
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


def op_of(cell: str, n: int, d: int) -> tuple[Any, Any]:
    op = OPS["rnn" if cell in ("tanh", "relu") else cell]
    attrs = {"num_layers": n, "bidirectional": d == 2, "dropout": 0.0}
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


def test_a_dropped_layer_is_left_to_numpy() -> None:
    op, _ = op_of("lstm", 2, 1)
    attrs = op.attrs(num_layers=2, dropout=0.5)
    inputs = [*inputs_of("lstm", 3, 2, 4, 5, 2, 1, True), np.zeros(2, np.uint64)]
    specs = attrs.infer(*[None if x is None else Spec.of(x.shape, x.dtype) for x in inputs])
    assert run_native(op, attrs, inputs, list(specs)) is None
