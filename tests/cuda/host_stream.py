# SPDX-License-Identifier: Apache-2.0
"""Runs shared kernels on host memory: as OpenCL C by PoCL, with addresses as they are."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any

import numpy as np

from nnl.ext.device.kernels.module import Code, Geometry, Launch

# Threads and blocks in the opposite order. PoCL runs those of a block one after the other, so what
# is right by their order alone is wrong here; tests/opencl has the same kernels in the usual order.
BACKWARDS = """
#define get_local_id(d) (get_local_size(d) - 1 - get_local_id(d))
#define get_group_id(d) (get_num_groups(d) - 1 - get_group_id(d))
#define get_global_id(d) (get_global_size(d) - 1 - get_global_id(d))
"""
GEOMETRY = Geometry(parameters=1)  # CUDA's, but for what only its structures have room for


@cache
def processor() -> Any:
    """PoCL's device, whose memory is the host's; None where it is not installed."""
    try:
        from nnl.ext.opencl import found
    except ImportError:
        return None
    try:
        devices = found()
    except ImportError:
        return None
    return next((d for d in devices if "Portable" in d.platform.name), None)


class HostStream(int):
    """A stream of launches, each of which is done when the call returns."""

    @cached_property
    def queue(self) -> Any:
        import pyopencl as cl

        context = cl.Context([processor()])
        return cl.CommandQueue(context)

    @cached_property
    def kernels(self) -> dict[Code, Any]:
        return {}

    def launch(self, launch: Launch, addresses: Sequence[int | None]) -> None:
        import pyopencl as cl

        code = launch.code
        kernel = self.kernels.get(code)
        if kernel is None:
            program = cl.Program(self.queue.context, BACKWARDS + code.source("opencl"))
            # Without its passes PoCL 3.0 takes a quarter of the time, but loses what follows a
            # barrier in a kernel that may return before it.
            fast = [] if code.index and code.local else ["-cl-opt-disable"]
            kernel = cl.Kernel(program.build(["-DHAS_DOUBLE", *fast]), code.name)
            self.kernels[code] = kernel
        for k, a in enumerate(addresses):
            memory = cl.SVM((ctypes.c_char * 1).from_address(a)) if a else None
            kernel.set_arg(2 * k, memory)
            kernel.set_arg(2 * k + 1, np.uint64(0))
        if launch.rest:
            kernel.set_arg(2 * len(addresses), np.frombuffer(launch.rest, np.uint8))
        sizes = tuple(int(g) * b for g, b in zip(launch.grid, launch.block, strict=True))
        cl.enqueue_nd_range_kernel(self.queue, kernel, sizes, launch.block)
        self.queue.finish()


HOST = HostStream()


STREAMS: list[Any] = [HOST]  # the last one is where kernels of tests go


@contextmanager
def recording() -> Iterator[dict[Code, Launch]]:
    """Launch nothing, and remember what would have been."""
    found: dict[Code, Launch] = {}

    class Recorder:
        def launch(self, launch: Launch, addresses: Sequence[int | None]) -> None:
            found[launch.code] = launch

    STREAMS.append(Recorder())
    try:
        yield found
    finally:
        STREAMS.pop()
