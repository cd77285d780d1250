# SPDX-License-Identifier: Apache-2.0
"""What scripts ask of a device, answered for the host: one device, which is never behind."""

from __future__ import annotations

from typing import Any

__all__ = [
    "array_classes",
    "clear_memory_cache",
    "device_synchronize",
    "get_device_count",
    "get_devices",
    "synchronize",
]


def array_classes() -> list[str]:
    """Kinds of arrays that a Context of this extension may name, the usual one first."""
    return ["CpuCachedArray", "CpuArray"]


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
