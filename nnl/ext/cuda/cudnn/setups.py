# SPDX-License-Identifier: Apache-2.0
"""Registers the builders as setups of the CUDA backend, where cuDNN's front end is installed."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nnl.ext.cuda.cublas import make_blas
from nnl.ext.cuda.cudnn.assemble import Declined
from nnl.ext.cuda.cudnn.builders import ABILITIES, BUILDERS, Builder
from nnl.ext.cuda.cudnn.cache import PlanCache
from nnl.ext.cuda.cudnn.lower import NotSupported
from nnl.ext.cuda.cudnn.run import Engine
from nnl.ext.device.registry import Kernel, Operand, Registry
from nnl.ext.library import cache_folder

logger = logging.getLogger("nnl")

__all__ = ["ENGINES", "Engines", "front_end"]

# In pip's layout cuDNN 9.19 does not find this by itself.
PRELOADED = "libnvrtc-builtins.so.*"
WARM_UPS = 3  # of each plan that is timed


@cache
def front_end() -> Any:
    """NVIDIA's cuDNN front end, the module.

    Raises:
        ImportError: It is not installed, or finds no cuDNN.
    """
    spec = find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for file in Path(place).glob(f"*/lib/{PRELOADED}"):
            ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    import cudnn

    return cudnn


class Engines:
    """The engine of each device, made when it is first asked for.

    Attributes:
        current: () -> the engine of the current device, or None; tests put another in place.
    """

    def __init__(self) -> None:
        self.made: dict[int, Engine | None] = {}
        self.current: Callable[[], Engine | None] = self._current

    def _current(self) -> Engine | None:
        import cupy

        if not cupy.cuda.is_available():
            return None
        index = cupy.cuda.runtime.getDevice()
        if index not in self.made:
            self.made[index] = make_engine(cupy.cuda.runtime.getDeviceProperties(index))
        return self.made[index]


ENGINES = Engines()
told: set[str] = set()  # what is said once


def make_engine(device: dict[str, Any]) -> Engine | None:
    """The engine of the current device, None where cuDNN cannot be used; the log says why.

    Args:
        device: Its properties, as CUDA's runtime calls them.
    """
    name = f"{device['name'].decode()} {device['major']}.{device['minor']}"
    name = f"{name}, {device['multiProcessorCount']} multiprocessors"
    try:
        tune = os.environ.get("NNL_CUDNN_AUTOTUNE") == "1"
        engine = Engine(front_end(), name, PlanCache(cache_folder("cudnn")), measure, tune)
        engine.handle()
        engine.blas = make_blas()
    except (ImportError, OSError, RuntimeError) as e:  # it is missing, or of another version
        logger.warning("cuDNN: it is not used, and slower kernels do its work: %s", e)
        return None
    return engine


@cache
def side_stream(device: int) -> Any:
    """A stream beside that of the steps, which may be being recorded."""
    import cupy

    return cupy.cuda.Stream(non_blocking=True)


def measure(plan: Any, runs: int) -> float:
    """Seconds of one run of a plan on memory of its own: the median of several."""
    import cupy

    stream, pool = side_stream(cupy.cuda.runtime.getDevice()), cupy.cuda.MemoryPool()
    times = []
    with cupy.cuda.using_allocator(pool.malloc), stream:
        memory = {a.uid: cupy.zeros(a.nbytes, cupy.uint8) for a in plan.graph.operands}
        addresses = {uid: m.data.ptr for uid, m in memory.items()}
        workspace = cupy.empty(max(1, plan.workspace), cupy.uint8)
        for _ in range(runs + (WARM_UPS if runs > 1 else 0)):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record(stream)
            plan.run(addresses, workspace.data.ptr, stream.ptr)
            end.record(stream)
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, end) / 1e3)
    return float(sorted(times[-runs:])[runs // 2])


def setup(
    name: str, builder: Builder, attrs: dict[str, Any], ins: list[Operand | None],
    outs: list[Operand],
) -> Kernel | None:  # fmt: skip
    """The kernel of an op; None where cuDNN cannot or should not compute it."""
    engine = ENGINES.current()
    if engine is None:
        return None
    try:
        return engine.kernel(builder(attrs, ins, outs))
    except (Declined, NotSupported) as e:
        text = f"{name} is left to other kernels: {e}"
        if text not in told:
            told.add(text)
            logger.info("cuDNN: %s", text)
        return None


def add_to(registry: Registry) -> None:
    """Register all builders."""
    for name, builder in BUILDERS.items():
        registry.register(name, abilities=ABILITIES.get(name))(partial(setup, name, builder))
