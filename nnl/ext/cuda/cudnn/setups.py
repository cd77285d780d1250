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

from nnl.ext.cuda.cudnn.assemble import Declined
from nnl.ext.cuda.cudnn.builders import BUILDERS, Builder
from nnl.ext.cuda.cudnn.cache import PlanCache, folder
from nnl.ext.cuda.cudnn.run import Engine, Plan
from nnl.ext.cuda.registry import Kernel, Operand, register

logger = logging.getLogger("nnl")

__all__ = ["ENGINES", "Engines", "front_end"]

# In pip's layout cuDNN 9.19 does not find this by itself.
PRELOADED = "libnvrtc-builtins.so.13.0"
WARM_UPS, RUNS = 3, 10  # of each plan that is timed


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
        self.made: dict[int, Engine] = {}
        self.current: Callable[[], Engine | None] = self._current

    def _current(self) -> Engine | None:
        import cupy

        if not cupy.cuda.is_available():
            return None
        index = cupy.cuda.runtime.getDevice()
        if index not in self.made:
            found = cupy.cuda.runtime.getDeviceProperties(index)
            name = f"{found['name'].decode()} {found['major']}.{found['minor']}"
            time = measure if os.environ.get("NNL_CUDNN_AUTOTUNE") == "1" else None
            self.made[index] = Engine(front_end(), name, PlanCache(folder()), time)
        return self.made[index]


ENGINES = Engines()


def measure(plan: Plan) -> float:
    """Seconds of one run on memory full of zeros: the median of several."""
    import cupy

    memory = {a.uid: cupy.zeros(a.nbytes, cupy.uint8) for a in plan.graph.operands}
    addresses = {uid: m.data.ptr for uid, m in memory.items()}
    workspace = cupy.empty(max(1, plan.workspace), cupy.uint8)
    stream = cupy.cuda.get_current_stream()
    times = []
    for _ in range(WARM_UPS + RUNS):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        plan.run(addresses, workspace.data.ptr, stream.ptr)
        end.record(stream)
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end) / 1e3)
    return float(sorted(times[WARM_UPS:])[RUNS // 2])


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
    except Declined as e:
        logger.debug("cuDNN: %s is declined: %s", name, e)
        return None


if find_spec("cudnn") is not None:
    for _name, _builder in BUILDERS.items():
        register(_name)(partial(setup, _name, _builder))
