# SPDX-License-Identifier: Apache-2.0
"""Gradients where 16 bits are stored, against those of float32 at the same points.

A gradient that looks at a result which was rounded, and compares it with a number which was not,
lets through what the function has cut off. So every floating-point attribute takes values here that
16 bits do not hold, and the input has elements on both sides next to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.ops.op import Op
from nnl.core.settings.context import Context
from tests.test_derived import PUBLIC, Case, each_sample

TYPES = {"half": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
# Of the largest element. What is let through wrongly is off by half of it or more, what a network
# of several steps rounds on the way by less.
CLOSE = {"half": 2e-2, "bfloat16": 1e-1}
BOUNDS = 0.7, 0.3  # one lies below the nearest bfloat16, and one above the nearest float16
# What is rounded before it is bent, and then lies on the other side of the bend: a sum that nearly
# cancels, in front of relu.
ILL_CONDITIONED = {"fused_convolution"}

Gradients = list[np.ndarray | None]


def gradients(case: Case, context: Context, mode: str) -> Gradients:
    """Of a weighted sum of all results by every input."""
    with nn.context_scope(context), np.errstate(all="ignore"), nn.auto_forward(mode == "dynamic"):
        xs = case.variables()

        def loss() -> nn.Variable:
            parts = []
            for k, y in enumerate(case.run(xs)):
                if y.need_grad:
                    weight = np.random.default_rng(k).choice([1.0, -1.0, 0.5], y.shape)
                    u = nn.Variable.from_numpy_array(weight.astype(np.float32))
                    parts.append(F.sum(y * u))
            return F.add_n(*parts)

        def step() -> nn.Variable:
            total = loss()
            if mode != "dynamic":
                total.forward(clear_no_need_grad=True)
            total.backward(clear_buffer=mode != "dynamic")
            return total

        nn.compile(step)() if mode == "compiled" else step()
    return [None if x is None or not x.need_grad else x.g.copy() for x in xs]


def around(value: float, dtype: np.dtype) -> np.ndarray:
    """The values of 16 bits at and next to a number and its negative."""
    nearest = np.array([value, -value], dtype).view(np.uint16)
    return np.concatenate([nearest, nearest + 1, nearest - 1]).view(dtype)


def varied(case: Case, op: Op, dtype: np.dtype) -> Iterator[tuple[dict[str, float], list[Any]]]:
    """(attributes, inputs in 16 bits) as the sample has them, then one attribute after another."""
    low = [
        a.astype(dtype) if a is not None and a.dtype.kind == "f" and name not in op.keep else a
        for a, name in zip(case.arrays, op.inputs * len(case.arrays), strict=False)
    ]
    yield {}, low
    for field, kind in zip(op.fields, op.kinds, strict=True):
        if kind.startswith("float"):
            for value in BOUNDS:
                near = list(low)
                if near and near[0] is not None and near[0].dtype == dtype:
                    near[0] = near[0].copy()
                    points = around(value, dtype)[: near[0].size]
                    near[0].reshape(-1)[: points.size] = points
                yield {field: value}, near


@pytest.mark.parametrize("config", TYPES)
@each_sample([p for p in PUBLIC if p.values[1] < 2])
def test_gradients_in_16_bits_are_those_of_float32(op: Op, i: int, config: str) -> None:
    case, dtype = Case(op, i, np.float32), TYPES[config]
    if not case.differentiable() or op.name in ILL_CONDITIONED:
        return
    if config == "half" and not any(k.startswith("float") for k in op.kinds):
        return  # where no number is compared with, bfloat16 alone tells
    attrs = case.attrs
    for changed, low in varied(case, op, dtype):
        case.attrs = {**attrs, **changed}
        case.arrays = [
            a.astype(np.float32) if a is not None and a.dtype == dtype else a for a in low
        ]
        try:
            want = gradients(case, Context(["numpy:float"]), "dynamic")
        except ValueError:  # a value that the function does not take
            continue
        case.arrays = low
        # a device of its own: what is bound here with tiny arrays must not be found by other tests
        for backend, mode in (("numpy", "dynamic"), ("cpu", "static"), ("cpu", "compiled")):
            context = Context([f"{backend}:{config}"], device_id="half")
            for k, (g, w) in enumerate(zip(gradients(case, context, mode), want, strict=True)):
                if g is None or w is None:
                    continue
                ok = np.isfinite(w) & np.isfinite(g)
                error = np.abs(g[ok].astype(np.float64) - w[ok])
                scale = max(1.0, float(np.abs(w[ok]).max(initial=0)))
                what = f"{case.attrs} by input {k}, {backend} {mode}"
                assert error.max(initial=0) <= CLOSE[config] * scale, what


@pytest.mark.parametrize("mode", ["numpy", "cpu"])
def test_clipping_by_numbers_that_16_bits_do_not_hold(mode: str) -> None:
    x = nn.Variable.from_numpy_array(
        np.array([-2, -0.71, -0.69, 0.5, 0.79, 0.81], ml_dtypes.bfloat16), need_grad=True
    )
    with nn.context_scope(Context([f"{mode}:bfloat16"])):
        y = F.sum(F.clip_by_value(x, -0.7, 0.8))
        y.forward()
        y.backward()
    assert x.g.astype(int).tolist() == [0, 0, 1, 1, 1, 0]


@pytest.mark.parametrize("config", TYPES)
def test_positions_in_an_image_are_not_rounded_to_16_bits(config: str) -> None:
    """bfloat16 knows no pixel between 256 and 258, float16 none between 2048 and 2050."""
    n = 3000
    rng = np.random.default_rng(0)
    data, u = (rng.integers(1, 9, (1, 1, 1, n)).astype(TYPES[config]) for _ in range(2))
    zero, identity = np.zeros((1, 2, 1, n)), np.eye(2, 3)[None]
    with nn.context_scope(Context([f"cpu:{config}"])), nn.auto_forward():
        for moved in (
            lambda x: F.warp_by_flow(x, variable(zero, config)),
            lambda x: F.warp_by_grid(
                x, F.affine_grid(variable(identity, config), (1, n), True), align_corners=True
            ),
        ):
            x = variable(data, config)
            y = moved(x)
            F.sum(y * variable(u, config)).backward()
            for got, want in ((y.d, data), (x.g, u)):
                difference = got.astype(np.float32) - want.astype(np.float32)
                assert np.abs(difference).max() < 0.05


def variable(a: np.ndarray, config: str) -> nn.Variable:
    return nn.Variable.from_numpy_array(a.astype(TYPES[config]), need_grad=True)
