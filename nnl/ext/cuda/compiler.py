# SPDX-License-Identifier: Apache-2.0
"""Compiling and launching shared kernels on a GPU: by NVRTC through CuPy. Not yet run on a GPU."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from nnl.ext.device.kernels.module import CUDA, Code, Dims, Launch, Loop

# (grid, block, parameters, raw stream handle)
Function = Callable[[Dims, Dims, bytes, int], None]


def compile_nvrtc(code: Code) -> Function:
    """The function on the current CuPy device; CuPy keeps the binary in its cache on disk."""
    from cupy_backends.cuda.api import driver

    raw = nvrtc_module(code.source("cuda")).get_function(code.name)

    def launch(grid: Dims, block: Dims, params: bytes, stream: int) -> None:
        memory = ctypes.create_string_buffer(params, len(params))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
        driver.launchKernel(raw.kernel.ptr, *grid, *block, 0, stream, ctypes.addressof(pointers), 0)

    return launch


@cache
def nvrtc_module(source: str) -> Any:
    """The module of a source."""
    import cupy

    return cupy.RawModule(code=source, options=("--std=c++17",))


FUNCTIONS: dict[Code, Function] = {}


class CudaStream(int):
    """The raw handle of a stream, which launches kernels: one structure, addresses first."""

    def launch(self, launch: Launch, addresses: Sequence[int | None]) -> None:
        function = launch.ready.get("cuda")
        if function is None:
            function = FUNCTIONS.get(launch.code)
            if function is None:
                function = FUNCTIONS[launch.code] = compile_nvrtc(launch.code)
            launch.ready["cuda"] = function
        grid = launch.grid
        if isinstance(grid[0], Loop) and grid[0] > CUDA.wave:
            grid = (CUDA.wave, *grid[1:])
        params = struct.pack(f"={len(addresses)}Q", *[a or 0 for a in addresses]) + launch.rest
        function(grid, launch.block, params, self)
