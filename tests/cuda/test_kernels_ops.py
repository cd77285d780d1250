# SPDX-License-Identifier: Apache-2.0
"""Every shared kernel of an op against its numpy definition, on the op's own samples.

Kernels run on the host, see py; test_on_gpu.py runs them through contexts on a GPU. Here they
run from aligned arrays, then from arrays that are not aligned.
Memory that is written is full of nonsense before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import nnl.ext.device.kernels  # noqa: F401  registers the setups
from nnl.core.arrays.spec import Spec
from nnl.core.ops.op import OPS, Op
from nnl.core.settings.context import Context, using
from nnl.ext.device.kernels.module import SETUPS
from nnl.ext.library import plain_attributes
from tests.cuda import kernels
from tests.native.kernels import BF16, F16, F32, assert_close, is_float, run_numpy
from tests.native.test_kernels import cases

pytestmark = pytest.mark.usefixtures("host_compiler")
# Views are nothing to compute; padding by other than constants is left to CuPy. The loss scale is
# state, and what the op returns is the memory of an input: see test_loss_scale.py. For joined
# updates see test_kernels_update.py.
LEFT_OUT = {"identity", "unlink", "pad_backward", "follow_loss_scale", "multi_update"}
NAMES = sorted((set(SETUPS) & set(OPS)) - LEFT_OUT)
LONG = pytest.mark.long
Run = Callable[[], list[np.ndarray] | None]


class Case:
    """A sample with inputs of an element type. Inputs that an op keeps stay as they are."""

    def __init__(self, op: Op, attrs: Any, inputs: list[Any], dtype: np.dtype) -> None:
        self.op, self.attrs, self.dtype = op, attrs, dtype
        self.low = [x.astype(dtype) if self._follows(i, x) else x for i, x in enumerate(inputs)]
        self.text = f"{attrs} {[None if x is None else x.shape for x in inputs]}"

    def _follows(self, i: int, x: Any) -> bool:
        """Whether an input is of the element type: all floats but rates and scales of updates."""
        op = self.op
        kept = op.view and op.inputs[min(i, len(op.inputs) - 1)] in op.keep
        return is_float(x) and not kept

    def numpy(self) -> tuple[list[np.ndarray], list[Any]]:
        """(outputs, inputs behind the call) of the definition in float32."""
        exact = [x.astype(F32) if self._follows(i, x) else x for i, x in enumerate(self.low)]
        exact = [None if x is None else x.copy() for x in exact]
        return run_numpy(self.op, self.attrs, exact)[1], exact

    def outs(self) -> list[tuple[tuple[int, ...], Any]]:
        with using(target=Context(["numpy:float"]).target):
            wide = [
                None if x is None else Spec.of(x.shape, F32 if x.dtype == self.dtype else x.dtype)
                for x in self.low
            ]
            specs = self.op.attrs_class.infer(self.attrs, *wide)
        specs = specs if isinstance(specs, tuple) else (specs,)
        return [(s.shape, self.dtype if s.dtype.kind == "f" else s.dtype) for s in specs]

    def cuda(
        self,
        offset: int | tuple[int, ...] = 0,
        last: tuple[set[int], set[int]] = (set(), set()),
        over: dict[int, int] | None = None,
    ) -> tuple[list[np.ndarray] | None, list[Any]]:
        """(outputs, inputs behind the call) of the kernel."""
        mine = [None if x is None else x.copy() for x in self.low]
        attrs = plain_attributes(self.attrs.as_dict())
        written = self.op.written(self.attrs)
        overwrite = {0: 0} if self.op.view and written else over or {}
        found = kernels.run(
            self.op.name, attrs, mine, self.outs(), last, offset, written, overwrite
        )
        return found, mine

    def in_place(self) -> list[tuple[int, int]]:
        """(output, input) of all that a plan may give the same memory."""
        kernel = kernels.find(
            self.op.name, plain_attributes(self.attrs.as_dict()), self.low, self.outs()
        )
        return [
            (o, i)
            for o, (shape, dtype) in enumerate(self.outs())
            for i, x in enumerate(self.low)
            if kernel is not None
            and x is not None
            and x.nbytes == math.prod(shape) * np.dtype(dtype).itemsize > 0
            and i not in self.op.written(self.attrs)
            and kernel.may_overwrite(o, i)
        ]

    def last(self) -> tuple[set[int], set[int]]:
        """Positions of all arrays that have an order of their own channels-last."""
        ins = {i for i, x in enumerate(self.low) if x is not None and x.ndim > 2}
        return ins, {o for o, (shape, _) in enumerate(self.outs()) if len(shape) > 2}

    def check(self, got: list[np.ndarray], state: list[Any], what: str) -> None:
        want, exact = self.numpy()
        for g, w in zip(got, want, strict=True):
            assert_close(g, w, self.dtype, f"{self.text} {what}")
        for i in self.op.written(self.attrs):
            if exact[i] is not None:
                assert_close(state[i], exact[i], self.dtype, f"{self.text} {what}: state {i}")


@cache
def all_cases(name: str, dtype: np.dtype) -> list[Case]:
    return [Case(OPS[name], attrs, inputs, dtype) for attrs, inputs in cases(OPS[name])]


def both_ways(case: Case) -> list[tuple[list[np.ndarray] | None, list[Any], str]]:
    runs = [(*case.cuda(), "")]
    runs.append((*case.cuda(offset=1), "not aligned"))
    return runs


@pytest.mark.parametrize(
    "dtype", [F32, pytest.param(BF16, marks=LONG), pytest.param(F16, marks=LONG)], ids=str
)
@pytest.mark.parametrize("name", NAMES)
def test_kernel_equals_the_definition(name: str, dtype: np.dtype) -> None:
    ran = 0
    for case in all_cases(name, dtype):
        for got, state, what in both_ways(case):
            if got is not None:
                ran += 1
                case.check(got, state, what)
    assert ran, f"{name}: the kernel declined every sample"


@pytest.mark.parametrize("name", NAMES)
def test_kernel_computes_the_same_channels_last(name: str) -> None:
    """All arrays of rank 3 and more channels-last; a kernel may decline."""
    for case in all_cases(name, F32):
        last = case.last()
        if last[0] or last[1]:
            got, state = case.cuda(last=last)
            if got is not None:
                case.check(got, state, "channels last")


@pytest.mark.parametrize("name", NAMES)
def test_results_in_the_memory_of_inputs_are_the_same(name: str) -> None:
    """Wherever a setup allows it; with arrays that are aligned in different ways."""
    for case in all_cases(name, F32):
        pairs = case.in_place()
        for k, (o, i) in enumerate(pairs):
            got, state = case.cuda(offset=(k % 2, 0, 1), over={o: i})
            assert got is not None
            case.check(got, state, f"output {o} in input {i}")


SIXTEEN = """add2 relu gelu sum mean softmax softmax_cross_entropy batch_normalization embed
    normalization_backward max_pooling max_pooling_backward concatenate transpose adam_update
    dropout rand""".split()


@pytest.mark.parametrize("name", SIXTEEN)
def test_kernel_of_16_bits_equals_the_definition(name: str) -> None:
    """A few of the long test above, for every run of the suite."""
    case = all_cases(name, BF16)[0]
    for got, state, what in both_ways(case):
        assert got is not None
        case.check(got, state, what)
