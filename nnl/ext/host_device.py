# SPDX-License-Identifier: Apache-2.0
"""What scripts ask of a device, answered for the host: one device, which is never behind."""

from __future__ import annotations

from typing import Any

__all__ = [
    "add_available_context",
    "array_classes",
    "available_contexts",
    "clear_memory_cache",
    "device_synchronize",
    "get_device_count",
    "get_devices",
    "prefer_cached_array",
    "reset_array_preference",
    "synchronize",
]

available_contexts = ["cpu"]
_CLASSES = ("CpuCachedArray", "CpuArray")
_classes = list(_CLASSES)


def add_available_context(ctx: str) -> None:
    """Note the name of a backend in `available_contexts`, which nnl does not read."""
    available_contexts.append(ctx)


def array_classes() -> list[str]:
    """Kinds of arrays that a Context of this extension may name, the preferred one first."""
    return list(_classes)


def prefer_cached_array(prefer: bool) -> None:
    """Name the cached kind first in array_classes(), or last. On the host both are the same."""
    _classes.sort(key=lambda name: ("Cached" in name) != bool(prefer))


def reset_array_preference() -> None:
    """Undo prefer_cached_array."""
    _classes[:] = _CLASSES


def get_devices() -> list[str]:
    """Numbers of the devices, as a Context takes them."""
    return ["0"]


def get_device_count() -> int:
    """Number of devices."""
    return 1


def device_synchronize(device: str = "0") -> None:
    """Wait until the device is done: the host always is."""


def synchronize(**kw: Any) -> None:
    """Wait until the device `device_id` is done: the host always is."""


def clear_memory_cache() -> None:
    """Give back memory that is kept for later arrays: on the host, none is."""
