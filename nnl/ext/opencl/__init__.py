# SPDX-License-Identifier: Apache-2.0
"""The OpenCL backend: the shared kernels on any vendor's device, through pyopencl.

Importing this module needs none of them; making a context does.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.util import find_spec
from typing import Any

from nnl.core.settings.context import FLOAT_TYPES, Backend, Context
from nnl.ext.device.registry import Registry
from nnl.ext.library import Traits

# What scripts ask of a device, as nnl.ext.host_device answers for the host.
__all__ = [
    "array_classes",
    "clear_memory_cache",
    "device_synchronize",
    "get_device_count",
    "get_devices",
    "synchronize",
]

EXTRA = "pip install 'nnl[opencl]'"
DRIVER = (
    "a driver: your vendor's, or PoCL for processors "
    "(pip install pocl-binary-distribution, or apt-get install pocl-opencl-icd)"
)
TRAITS = Traits(
    places=("opencl", "host"), least_attention_bytes=1 << 62, computes_again=False,
    takes_apart=True, stores=True,
)  # fmt: skip


@cache
def found() -> tuple[Any, ...]:
    """The devices of all platforms, processors last."""
    import pyopencl as cl

    devices = []
    try:
        for platform in cl.get_platforms():
            try:
                devices += platform.get_devices()
            except cl.Error:  # a platform without a device
                continue
    except cl.Error:  # no platform
        return ()
    return tuple(sorted(devices, key=lambda d: bool(d.type & cl.device_type.CPU)))


def missing() -> list[str]:
    """What this machine lacks for a context, in words; nothing if all is there."""
    if find_spec("pyopencl") is None:
        return [f"pyopencl ({EXTRA})"]
    return [] if found() else [DRIVER]


def check(device_id: str) -> int:
    """The number of the device.

    Raises:
        NotImplementedError: Something is missing on this machine, or there is no such device.
        ValueError: device_id is not a number.
    """
    where = "get_extension_context: 'opencl'"
    if not device_id.isdecimal():
        raise ValueError(f"{where}: device_id is {device_id!r}, wanted a number as a str")
    lacks = missing()
    if lacks:
        raise NotImplementedError(
            f"{where} needs {', '.join(lacks)}; get_extension_context('cpu') runs without "
            "(documentation: opencl#installing)"
        )
    if int(device_id) >= len(found()):
        names = ", ".join(f"{i}: {d.name.strip()}" for i, d in enumerate(found()))
        raise NotImplementedError(f"{where}: device_id is {device_id}, and there are {names}")
    return int(device_id)


def setups() -> Registry:
    """What shared kernels and those of this backend register for ops."""
    importlib.import_module("nnl.ext.device.kernels")
    from nnl.ext.device.kernels.module import SETUPS

    registry = SETUPS.extended()
    from nnl.ext.opencl import products

    products.add_to(registry)
    return registry


@cache
def device_of(number: int) -> Any:
    """The device of a number, an OpenClDevice."""
    from nnl.ext.opencl.device import OpenClDevice

    return OpenClDevice(number, found()[number])


@cache
def _backend(number: int) -> Backend:
    from nnl.ext.device.library import make_backend

    return make_backend("opencl", device_of(number), TRAITS, setups)


def backends(ext_name: str, device_id: str) -> tuple[Backend, ...]:
    """The backend of a device, for the name "opencl" in a context."""
    return (_backend(check(device_id or "0")),)


def context(device_id: str = "0", type_config: str = "float") -> Context:
    """Kernels on an OpenCL device.

    Args:
        device_id: Number of the device: GPUs of all platforms first, then processors.
        type_config: "float" (float32), "double" (float64, which numpy computes on the host), "half"
            or "bfloat16" (activations and gradients stored in 16 bits).
    Raises:
        NotImplementedError: Something is missing on this machine; the text says what, and how to
            get it.
    """
    if type_config in FLOAT_TYPES:
        check(str(device_id))
    return Context(
        [f"{name}:{type_config}" for name in ("opencl", "cpu")],
        array_class="OpenClCachedArray",
        device_id=str(device_id),
    )


# ---- what scripts ask of an extension ----


def get_device_count() -> int:
    """Number of OpenCL devices; 0 without pyopencl or a driver."""
    return 0 if missing() else len(found())


def get_devices() -> list[str]:
    """The numbers of the OpenCL devices, as texts."""
    return [str(i) for i in range(get_device_count())]


def device_synchronize(device_id: str = "0") -> None:
    """Wait until a device has done all work."""
    device_of(check(str(device_id))).synchronize()


def synchronize(device_id: str = "0", **kw: Any) -> None:
    """Wait until the device `device_id` has done all work."""
    device_synchronize(device_id)


def array_classes() -> list[str]:
    """Kinds of arrays that a Context of this extension may name, the usual one first."""
    return ["OpenClCachedArray", "OpenClArray"]


def clear_memory_cache() -> None:
    """Give memory that nothing uses back to the devices."""
    if device_of.cache_info().currsize:
        for number in range(get_device_count()):
            device_of(number).memory.trim()
