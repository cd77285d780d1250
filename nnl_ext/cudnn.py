# SPDX-License-Identifier: Apache-2.0
from functools import partial

from nnl.ext.cuda import (
    array_classes,
    clear_memory_cache,
    device_synchronize,
    get_device_count,
    get_devices,
    synchronize,
)
from nnl.ext.cuda import context as _context

context = partial(_context, "cudnn")

__all__ = [
    "array_classes",
    "clear_memory_cache",
    "context",
    "device_synchronize",
    "get_device_count",
    "get_devices",
    "synchronize",
]
