# SPDX-License-Identifier: Apache-2.0
"""Every op on its samples with axes of size 0 and 1: it computes, natively the same as in numpy, or
says in its own words why not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.ops.op import Op
from nnl.core.settings.context import Context
from tests.native.kernels import F32, assert_close
from tests.test_derived import CASES, Case, each_sample

NUMPY, NATIVE = (Context([f"{backend}:float"], device_id="small") for backend in ("numpy", "cpu"))
Arrays = list[np.ndarray | None]


def resized(x: np.ndarray, axis: int, size: int) -> np.ndarray:
    return np.ascontiguousarray(np.take(x, range(size), axis))


def fitting(inputs: Arrays) -> Iterator[Arrays]:
    """All axes of one size, in whichever inputs, so that shapes go on to belong together."""
    for size in (0, 1):
        for old in sorted({n for x in inputs if x is not None for n in x.shape if n > size}):
            changed = list(inputs)
            for i, x in enumerate(inputs):
                for axis in range(0 if x is None else x.ndim):
                    if x.shape[axis] == old:
                        changed[i] = resized(changed[i], axis, size)
            yield changed


def single(inputs: Arrays) -> Iterator[Arrays]:
    """One axis of one input."""
    for i, x in enumerate(inputs):
        for axis in range(0 if x is None else x.ndim):
            for size in (0, 1):
                if x.shape[axis] > size:
                    yield [*inputs[:i], resized(x, axis, size), *inputs[i + 1 :]]


def call(case: Case, context: Context) -> Any:
    """Results and gradients, or the error."""
    with nn.context_scope(context), nn.auto_forward(), np.errstate(all="ignore"):
        xs = case.variables()
        try:
            ys = case.run(xs)
            values = [y.d.copy() for y in ys]
            assert [v.shape for v in values] == [y.shape for y in ys]
            ends = [F.sum(y) for y in ys if y.need_grad and case.op.nnp]
            if ends:
                F.add_n(*ends).backward()
        except (ValueError, TypeError, NotImplementedError) as e:
            return e
        return values + [x.g.copy() for x in xs if x is not None and x.need_grad and ends]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@each_sample(CASES)
def test_axes_of_0_and_1(op: Op, i: int) -> None:
    case = Case(op, i, np.float32)
    given = case.arrays
    # Internal ops trust the rules that call them: their inputs belong together. Where they do not,
    # numpy says so, or a kernel that looks because a file may ask for it.
    changes = single(given) if op.nnp and i == 0 else ()
    for case.arrays in [*fitting(given), *changes]:
        shapes = [None if x is None else x.shape for x in case.arrays]
        what = f"{case.attrs} {shapes}"
        try:
            want = call(case, NUMPY)
        except (IndexError, AssertionError):
            assert not op.nnp, what
            continue
        if isinstance(want, Exception) and not op.nnp:
            continue
        got = call(case, NATIVE)
        if isinstance(got, ValueError) and not op.nnp:
            assert str(got).startswith(f"{op.name}: "), f"{what}: {got}"
            continue
        if isinstance(want, Exception) or isinstance(got, Exception):
            assert type(got) is type(want), f"{what}: {got!r}, in numpy {want!r}"
            text = str(want)
            assert text.startswith((f"{op.name}:", f"{op.name}(")), f"{what}: {text}"
            continue
        for g, w in zip(got, want, strict=True):
            assert_close(g, w, F32, what)
