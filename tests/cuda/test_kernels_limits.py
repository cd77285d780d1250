# SPDX-License-Identifier: Apache-2.0
"""Launches for arrays of any size stay within what a GPU takes; nothing runs.

Every setup is asked for arrays of up to 2^31 - 1 elements in long and in flat shapes, and what it
would launch is looked at. What is larger is declined.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import nnl.ext.device.kernels  # noqa: F401  registers the setups
from nnl.ext.device.kernels.module import CUDA, SETUPS, Launch
from nnl.ext.device.registry import Kernel, Operand
from tests.cuda import kernels
from tests.cuda.host_stream import STREAMS, recording
from tests.native.kernels import BF16, F32

MOST = 2**31 - 1
I32, I64, U64 = (np.dtype(t) for t in (np.int32, np.int64, np.uint64))


def check_geometry(launch: Launch) -> None:
    """Fail if a GPU would refuse the launch."""
    grid, block = launch.grid, launch.block
    assert 0 < grid[0] < 1 << 31 and all(0 < n < 1 << 16 for n in grid[1:]), launch
    assert 0 < math.prod(block) <= CUDA.threads, launch
    assert len(launch.rest) <= 4000, launch


def launched(kernel: Kernel, ins: int, outs: int) -> None:
    """Let a kernel launch on addresses that are aligned, and on some that are not."""
    for start in (0, 2):
        with recording() as codes:
            kernel.run([4096 + start] * ins, [8192 + start] * outs, 1 << 20, STREAMS[-1])
        assert codes
        for launch in codes.values():
            check_geometry(launch)


def check(op: str, attrs: dict[str, Any], ins: list[Any], outs: list[Any]) -> None:
    """Find the kernel for arrays of (shape, dtype), and look at its launches."""

    def operand(x: Any) -> Operand | None:
        return x and Operand(x[0], np.dtype(x[1]), len(x) > 2)

    kernel = kernels.asked(op, attrs, [operand(x) for x in ins], [operand(x) for x in outs])
    assert kernel is not None, (op, ins)
    launched(kernel, len(ins), len(outs))


FLAT = [(MOST,), (1, MOST), (MOST, 1), (2**30, 1), (2**16, 2**15 - 1), (2**15 - 1, 2**16),
        (3, 2**29), (2**29, 3)]  # fmt: skip


@pytest.mark.parametrize("shape", FLAT)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_elementwise_ops_reductions_and_copies(shape: tuple[int, ...], dtype: Any) -> None:
    x, last = (shape, dtype), len(shape) - 1
    check("gelu", {}, [x], [x])
    check("cast", {}, [x], [(shape, F32)])
    check("transpose", {"axes": tuple(range(last, -1, -1))}, [x], [(shape[::-1], dtype)])
    check("dropout", {"p": 0.5}, [x, ((2,), U64)], [x, (shape, np.dtype(bool))])
    check("finite_check", {}, [x], [((2,), np.dtype(bool))])
    for name, attrs in (("rand", {"low": 0.0, "high": 1.0}), ("randn", {"mu": 0.0, "sigma": 1.0})):
        check(name, attrs, [((2,), U64)], [x])
    for axis in range(len(shape)):
        kept = (*shape[:axis], *shape[axis + 1 :])
        attrs = {"axes": (axis,), "keep_dims": False}
        check("sum", attrs, [x], [(kept, F32)])
        outs = [(kept, F32), (kept, U64)]
        check("max", {**attrs, "with_index": True}, [x], outs)
        check("pick", attrs, [x, (kept, I64)], [(kept, F32)])
        check("place", attrs, [(kept, F32), (kept, I64)], [x])
        stat = tuple(1 if a == axis else n for a, n in enumerate(shape))
        check("softmax", {"axis": axis}, [x], [x])
        check("softmax_backward", {"axis": axis}, [x, x], [x])
        one = (stat, F32)
        check("softmax_cross_entropy", {"axis": axis}, [x, (stat, I32)], [one] * 3)
        ins = [one, x, (stat, I32), one, one]
        check("softmax_cross_entropy_backward", {"axis": axis}, ins, [x])
        attrs = {"axes": (axis,), "eps": 1e-5, "decay_rate": 0.9, "batch_stat": True}
        own = tuple(n if a == axis else 1 for a, n in enumerate(shape))
        check("batch_normalization", attrs, [x] + [(own, F32)] * 4, [x, (own, F32), (own, F32)])


@pytest.mark.parametrize("shape", FLAT[1:])
@pytest.mark.parametrize("count", [1, 1000, 2**17])
def test_rows_by_index(shape: tuple[int, int], count: int) -> None:
    rows, features = shape
    if count * features < 2**31:
        index, gy = ((count,), I32), ((count, features), BF16)
        check("embed", {}, [index, (shape, BF16)], [gy])
        check("embed_backward", {"shape": shape}, [index, gy], [(shape, F32)])


IMAGES = [(2**20, 8, 14, 14), (1, 1, 46340, 46340), (1, 2**24, 8, 8), (2**26, 1, 4, 4)]


@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("last", [False, True])
def test_windows(shape: tuple[int, ...], last: bool) -> None:
    attrs = {"kernel": (2, 2), "stride": (2, 2), "pad": (0, 0), "ignore_border": True,
             "channel_last": False, "including_pad": True}  # fmt: skip
    more = (True,) if last else ()
    small = (*shape[:2], shape[2] // 2, shape[3] // 2)
    x, y, arg = (shape, BF16, *more), (small, BF16, *more), (small, np.int16, *more)
    check("average_pooling", attrs, [x], [y])
    check("average_pooling_backward", {**attrs, "shape": shape}, [y], [x])
    check("max_pooling_arg", attrs, [x], [y, arg])
    check("max_pooling_arg_backward", attrs, [y, arg], [x])
    check("to_layout", {}, [x], [(shape, BF16)])


def test_updates_of_a_few_large_and_of_many_small_parameters() -> None:
    for sizes in ([MOST], [MOST, 5, MOST], [7] * 700):
        ins: list[Any] = []
        for n in sizes:
            w = ((n,), F32)
            ins += [w, ((n,), BF16), w, w, ((), I64), ((), np.dtype(np.float64))]
        attrs = {"rule": "lamb_update", "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "wd": 0.0,
                 "gamma_l": 0.0, "gamma_u": 10.0, "bias_correction": True}  # fmt: skip
        check("multi_update", attrs, ins, [((n,), BF16) for n in sizes])


def test_what_has_more_elements_is_declined() -> None:
    x = Operand((2**16, 2**15), BF16)
    row = Operand((2**16,), F32)
    attrs = {"axes": (1,), "axis": 1, "keep_dims": False, "low": 0.0, "high": 1.0, "p": 0.5}
    state, label = Operand((2,), U64), Operand((2**16, 1), I32)
    one = Operand((2**16, 1), F32)
    for op, ins, outs in (
        ("gelu", [x], [x]), ("cast", [x], [x]), ("sum", [x], [row]), ("softmax", [x], [x]),
        ("rand", [state], [x]), ("dropout", [x, state], [x, x]),
        ("softmax_cross_entropy", [x, label], [one] * 3), ("embed", [label, x], [x]),
        ("finite_check", [x], [Operand((2,), np.dtype(bool))]),
    ):  # fmt: skip
        assert SETUPS.find(op, attrs, list(ins), list(outs)) is None, op
