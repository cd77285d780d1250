# SPDX-License-Identifier: Apache-2.0
"""What this process may use: memory, of which no result may take more than half, and cores."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache

from nnl.core.arrays.spec import ShapeError, Spec

_CONTAINER = "/sys/fs/cgroup/memory.max"  # bytes, or "max"


@cache
def memory_bytes() -> int:
    """Bytes of memory that this process may use: the machine's, or its container's."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # no POSIX system
        return 1 << 40
    try:
        with open(_CONTAINER) as file:
            return min(found, int(file.read()))
    except (OSError, ValueError):
        return found


def cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_sizes(name: str, specs: Iterable[Spec]) -> None:
    """Raise if a result takes more than half of the memory; a small input can ask for that."""
    for spec in specs:
        if spec.size == 0 and max(spec.shape) >= 2**31:  # numpy refuses those that overflow
            raise ShapeError(f"{name}: the result {spec} has a size of 2^31 or more")
        if spec.nbytes > memory_bytes() // 2:
            raise ShapeError(
                f"{name}: the result {spec} takes {spec.nbytes / 2**30:.4g} GiB, wanted at most "
                f"half of this machine's {memory_bytes() / 2**30:.4g} GiB of memory"
            )
