# SPDX-License-Identifier: Apache-2.0
"""Fills what CuPy's pools hand out with bytes 0xFF, NaN in every type, in the order of the stream.

Pools give memory again without asking the device, so that what nobody has written is old values.
With EMULATOR_POOL=0 there is none, and each array has an allocation of its own, with ends that are
checked; to free one waits for the device, so that less work runs late.
"""

from __future__ import annotations

import os
from typing import Any

import cupy
from cupy.cuda import MemoryHook, runtime

MOST = 4 << 20  # bytes; workspaces are larger


class Spoil(MemoryHook):
    name = "spoil"

    def malloc_postprocess(self, *, mem_size: int, mem_ptr: int, **kw: Any) -> None:
        if mem_ptr:
            stream = cupy.cuda.get_current_stream().ptr
            runtime.memsetAsync(mem_ptr, 0xFF, min(mem_size, MOST), stream)


if os.environ.get("EMULATOR_POOL") == "0":
    cupy.cuda.set_allocator(None)
if os.environ.get("EMULATOR_SPOIL") != "0":
    Spoil().__enter__()  # for good, in the thread that imports CuPy
