# SPDX-License-Identifier: Apache-2.0
"""Runs shared kernels, laid out for CUDA, on arrays in host memory; see host_stream.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import numpy as np

from nnl.core.ops.op import OPS
from nnl.ext.cuda.compiler import CudaStream
from nnl.ext.device.kernels.module import SETUPS, laid_out_for
from nnl.ext.device.registry import Kernel, Operand
from nnl.ext.library import DTYPES, request
from tests.cuda.host_stream import GEOMETRY, STREAMS
from tests.native.kernels import from_channels_last, to_channels_last

Outs = Sequence[tuple[tuple[int, ...], Any]]


def operand(x: Any, last: bool = False) -> Operand | None:
    return None if x is None else Operand(x.shape, x.dtype, last)


def find(
    op: str,
    attrs: dict[str, Any],
    ins: list[Any],
    outs: Outs,
    last: tuple[set[int], set[int]] = (set(), set()),
) -> Kernel | None:
    """The kernel for arrays; `last`: positions of inputs and outputs that lie channels-last."""
    return asked(
        op,
        attrs,
        [operand(x, i in last[0]) for i, x in enumerate(ins)],
        [Operand(tuple(s), np.dtype(t), o in last[1]) for o, (s, t) in enumerate(outs)],
    )


class Names:
    """As much of the library as tells what it has kernels for."""

    @staticmethod
    def kernel_names() -> list[str]:
        return sorted(SETUPS)


def asked(
    op: str, attrs: dict[str, Any], ins: list[Operand | None], outs: list[Operand]
) -> Kernel | None:
    """The kernel of an op, asked for as the engine does."""
    specs = [
        [None if x is None else (x.shape, DTYPES[x.dtype.name], 0) for x in xs]
        for xs in (ins, outs)
    ]
    found = request(Names, op, attrs, *specs) if op in OPS else (op, attrs)
    with laid_out_for(GEOMETRY, op):
        return None if found is None else SETUPS.find(*found, ins, outs)


NONSENSE = 0xFF  # NaN in all floating-point types: who reads it shows it


def poisoned(shape: tuple[int, ...], dtype: Any, offset: int = 0) -> np.ndarray:
    """An array full of nonsense, `offset` elements behind a multiple of 64 bytes."""
    dtype = np.dtype(dtype)
    n = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.full(n + 128 + offset * dtype.itemsize, NONSENSE, np.uint8)
    start = -memory.ctypes.data % 64 + offset * dtype.itemsize
    return memory[start : start + n].view(dtype).reshape(shape)


def check_surroundings(y: np.ndarray) -> None:
    """Fail if bytes next to an array made by `poisoned` have changed."""
    memory = memory_of(y)
    start = y.ctypes.data - memory.ctypes.data
    assert (memory[:start] == NONSENSE).all() and (memory[start + y.nbytes :] == NONSENSE).all(), (
        "a kernel has written outside of an array"
    )


def placed(x: np.ndarray, offset: int = 0) -> np.ndarray:
    y = poisoned(x.shape, x.dtype, offset)
    y[...] = x
    return y


def execute(kernel: Kernel, ins: list[Any], outs: list[np.ndarray]) -> None:
    """Run on arrays as they lie in memory; the workspace is full of nonsense."""
    work = poisoned((-(-kernel.workspace // 2) * 2,), np.uint8)
    if GPU["module"] is not None:
        _execute_on_gpu(GPU["module"], kernel, ins, outs, work)
    else:
        kernel.run(
            [None if x is None else x.ctypes.data for x in ins],
            [y.ctypes.data for y in outs],
            work.ctypes.data,
            STREAMS[-1],
        )
    check_surroundings(work)


GPU: dict[str, Any] = {"module": None}  # CuPy while kernels run on a GPU


@contextmanager
def on_gpu(cupy: Any) -> Iterator[None]:
    """Run kernels on a GPU, on copies of the same memory with the same surroundings."""
    GPU["module"] = cupy
    try:
        yield
    finally:
        GPU["module"] = None


def memory_of(y: np.ndarray) -> np.ndarray:
    """All bytes of the memory that an array is a part of."""
    while isinstance(y.base, np.ndarray):
        y = y.base
    return y


def _execute_on_gpu(
    cupy: Any, kernel: Kernel, ins: list[Any], outs: list[np.ndarray], work: np.ndarray
) -> None:
    copies: dict[int, tuple[np.ndarray, Any]] = {}

    def address(x: Any) -> Any:
        if x is None:
            return None
        memory = memory_of(x)
        start = memory.ctypes.data % 64  # so that addresses are multiples of the same numbers
        if id(memory) not in copies:
            copy = cupy.empty(memory.nbytes + 64, np.uint8)
            copy[start : start + memory.nbytes] = cupy.asarray(memory.reshape(-1).view(np.uint8))
            copies[id(memory)] = memory, copy
        return copies[id(memory)][1].data.ptr + start + x.ctypes.data - memory.ctypes.data

    addresses = [[address(x) for x in xs] for xs in (ins, outs, [work])]
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    kernel.run(addresses[0], addresses[1], addresses[2][0], CudaStream(stream.ptr))
    stream.synchronize()
    for memory, copy in copies.values():
        start = memory.ctypes.data % 64
        memory.reshape(-1).view(np.uint8)[:] = copy[start : start + memory.nbytes].get()


def run(
    op: str,
    attrs: dict[str, Any],
    ins: list[Any],
    outs: Outs,
    last: tuple[set[int], set[int]] = (set(), set()),
    offset: int | Sequence[int] = 0,
    written: Sequence[int] = (),
    overwrite: dict[int, int] | None = None,
) -> list[np.ndarray] | None:
    """Outputs in the plain order; None if all setups decline.

    Args:
        last: Positions of inputs and outputs that lie channels-last.
        offset: How many elements arrays lie behind a multiple of 64 bytes; of several numbers, one
            after the other.
        written: Positions of inputs that hold state, which is written back into `ins`.
        overwrite: Output -> the input whose memory it takes.
    """
    kernel = find(op, attrs, ins, outs, last)
    if kernel is None:
        return None
    overwrite, turns = overwrite or {}, cycle([offset] if isinstance(offset, int) else offset)
    for o, i in overwrite.items():
        assert kernel.may_overwrite(o, i), f"{op}: output {o} may not overwrite input {i}"
    given = [
        None if x is None else placed(to_channels_last(x) if i in last[0] else x, next(turns))
        for i, x in enumerate(ins)
    ]
    before = [None if x is None else x.copy() for x in given]
    made = [poisoned(tuple(s), t, next(turns)) for s, t in outs]
    for o, i in overwrite.items():
        made[o] = given[i]
    execute(kernel, given, made)
    for x in (*given, *made):
        if x is not None:
            check_surroundings(x)
    for i, (x, y) in enumerate(zip(given, before, strict=True)):
        if i in written and x is not None:
            ins[i][...] = from_channels_last(x) if i in last[0] else x
        elif x is not None and i not in overwrite.values():
            assert x.tobytes() == y.tobytes(), f"{op}: input {i} was changed"
    return [from_channels_last(y) if o in last[1] else y for o, y in enumerate(made)]
