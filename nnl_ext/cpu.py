# SPDX-License-Identifier: Apache-2.0
from nnl.ext.host_device import (
    array_classes,
    clear_memory_cache,
    device_synchronize,
    get_device_count,
    get_devices,
    synchronize,
)
from nnl.ext.native import context

__all__ = [
    "array_classes",
    "clear_memory_cache",
    "context",
    "device_synchronize",
    "get_device_count",
    "get_devices",
    "synchronize",
]
