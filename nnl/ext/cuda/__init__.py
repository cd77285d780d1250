# SPDX-License-Identifier: Apache-2.0
"""The CUDA backend: CuPy's arrays, kernels of nnl's own, cuDNN. Not yet run on a GPU.

Importing this module needs none of them; making a context does.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from functools import cache
from importlib.util import find_spec
from typing import Any

from nnl.core.settings.context import FLOAT_TYPES, Backend, Context
from nnl.ext.device.registry import Registry
from nnl.ext.library import Traits

# What scripts ask of a device, as nnl.ext.host_device answers for the host.
__all__ = [
    "StreamEventHandler",
    "array_classes",
    "clear_memory_cache",
    "device_synchronize",
    "get_device_count",
    "get_devices",
    "synchronize",
]

DRIVER = "libcuda.so.1"
EXTRA = "pip install 'nnl[cuda13]'"
TRAITS = Traits(
    places=("cuda", "cupy"),
    least_attention_bytes=0,
    computes_again=False,  # memory is large here, and its bandwidth what steps wait for
)


def missing(ext_name: str) -> list[str]:
    """What this machine lacks for a context of this name, in words; nothing if all is there."""
    lacks = []
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        lacks.append(f"NVIDIA's driver ({DRIVER} does not load)")
    if find_spec("cupy") is None:
        lacks.append(f"CuPy ({EXTRA})")
    if ext_name == "cudnn" and find_spec("cudnn") is None:
        lacks.append(f"cuDNN's front end ({EXTRA})")
    return lacks


def check(ext_name: str, device_id: str) -> int:
    """The number of the device.

    Raises:
        NotImplementedError: Something is missing on this machine, or there is no such device.
        ValueError: device_id is not a number.
    """
    where = f"get_extension_context: {ext_name!r}"
    if not device_id.isdecimal():
        raise ValueError(f"{where}: device_id is {device_id!r}, wanted a number as a str")
    lacks = missing(ext_name)
    if lacks:
        raise NotImplementedError(
            f"{where} needs {', '.join(lacks)}; get_extension_context('cpu') runs without "
            "(documentation: cuda#installing)"
        )
    count = get_device_count()
    if int(device_id) >= count:
        raise NotImplementedError(
            f"{where}: device_id is {device_id}, and this machine has {count} CUDA devices"
        )
    return int(device_id)


def setups() -> Registry:
    """What CUDA kernels and cuDNN's graphs register for ops; cuDNN is asked first."""
    importlib.import_module("nnl.ext.device.kernels")
    from nnl.ext.cuda.cudnn.setups import add_to
    from nnl.ext.device.kernels.module import SETUPS

    registry = SETUPS.extended()
    if find_spec("cudnn") is not None:
        add_to(registry)
    return registry


@cache
def _backend(number: int) -> Backend:
    from nnl.ext.cuda.device import CupyDevice
    from nnl.ext.device.library import make_backend

    return make_backend("cuda", CupyDevice(number), TRAITS, setups)


def backends(ext_name: str, device_id: str) -> tuple[Backend, ...]:
    """The backend of a device, for the names "cuda" and "cudnn" in a context."""
    return (_backend(check(ext_name, device_id or "0")),)


def context(ext_name: str = "cudnn", device_id: str = "0", type_config: str = "float") -> Context:
    """Kernels on a GPU.

    Args:
        ext_name: "cudnn", or "cuda" to do without cuDNN where its front end is not installed.
        device_id: Number of the GPU.
        type_config: "float" (float32), "double" (float64, which CuPy computes), "half" or
            "bfloat16" (activations and gradients stored in 16 bits).
    Raises:
        NotImplementedError: Something is missing on this machine; the text says what, and how to
            get it.
    """
    names = ["cudnn", "cuda"] if ext_name == "cudnn" else ["cuda"]
    if type_config in FLOAT_TYPES:
        check(ext_name, str(device_id))
    return Context(
        [f"{name}:{type_config}" for name in (*names, "cpu")],
        array_class="CudaCachedArray",
        device_id=str(device_id),
    )


# ---- what scripts ask of nnabla_ext.cuda ----


def get_device_count() -> int:
    """Number of CUDA devices; 0 without a driver or CuPy."""
    if missing("cuda"):
        return 0
    import cupy

    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:  # a driver without a device
        return 0


def get_devices() -> list[str]:
    """The numbers of the CUDA devices, as texts."""
    return [str(i) for i in range(get_device_count())]


def device_synchronize(device: str = "0") -> None:
    """Wait until a device has done all work."""
    import cupy

    check("cuda", str(device))
    with cupy.cuda.Device(int(device)):
        cupy.cuda.runtime.deviceSynchronize()


def synchronize(device_id: str = "0", **kw: Any) -> None:
    """Wait until the device `device_id` has done all work."""
    device_synchronize(device_id)


def array_classes() -> list[str]:
    """Kinds of arrays that a Context of this extension may name, the usual one first."""
    return ["CudaCachedArray", "CudaArray"]


def clear_memory_cache() -> None:
    """Give memory that nothing uses back to the device; nothing happens where none was taken."""
    if "cupy" not in sys.modules:
        return
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()


class StreamEventHandler:
    """Lets a loop on the host be at most one step ahead of the device.

    Without CUDA it does nothing, so that scripts can use it as they are.

    Args:
        device_id: Number of the GPU.
    """

    def __init__(self, device_id: int | str = 0) -> None:
        self._device_id = int(device_id)
        self._events: list[Any] = []

    def add_default_stream_event(self) -> None:
        """Mark what was given to the device up to now."""
        if missing("cuda"):
            return
        import cupy

        with cupy.cuda.Device(self._device_id):
            event = cupy.cuda.Event()
            event.record()
        self._events.append(event)

    def event_synchronize(self) -> None:
        """Wait until the device has done what the last mark stands behind."""
        if self._events:
            self._events[-1].synchronize()
            self._events.clear()
