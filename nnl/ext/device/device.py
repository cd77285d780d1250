# SPDX-License-Identifier: Apache-2.0
"""What is asked of a device: memory, a stream, recorded graphs; and its memory as a space.

Everything else works on a `Device`, so that the tests can put another one in the place of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Protocol

import numpy as np

from nnl.core.graph.dispatch import Bound
from nnl.ext.device.arrays import ArrayModule, on_host
from nnl.ext.device.kernels.module import Geometry
from nnl.ext.library import Array, Library, Memory


class Device(Protocol):
    """One device.

    Attributes:
        name: Its memory space, "cuda:0".
        xp: Its array module.
        stream: What all work goes to, see `Stream` in kernels/module.py.
        geometry: What kernels are laid out for.
    """

    name: str
    xp: ArrayModule
    stream: Any
    geometry: Geometry

    def activate(self) -> None:
        """Let this thread's work go to this device and stream."""

    def allocate(self, nbytes: int) -> Memory: ...

    def address_of(self, array: Array) -> int: ...

    def array_at(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Memory
    ) -> Array:
        """An array over memory that `owner` keeps."""

    def pool(self) -> Any:
        """Memory for what the recorded steps of one plan need while they run.

        A recorded graph contains its addresses, so nothing else may ever get it.
        """

    def capture(self, work: Callable[[], None], pool: Any) -> Callable[[], None]:
        """Record the work as a graph; the result launches it. Raises what the work raises."""

    def synchronize(self) -> None: ...

    def mark(self) -> Any:
        """A point in the stream's time."""

    def nanoseconds(self, start: Any, end: Any) -> int:
        """Between two marks that have been passed."""


class DeviceSpace:
    """The memory of a device.

    Args:
        last: Whether what lies here is in the order (N, spatial..., C) of arrays (N, C, spatial).
    """

    def __init__(self, device: Device, library: Library, last: bool = False) -> None:
        self.device, self._library, self.last = device, library, last

    def to_host(self, buf: Array) -> np.ndarray[Any, Any]:
        self.device.activate()
        host: np.ndarray[Any, Any] = buf.get()
        return np.ascontiguousarray(np.moveaxis(host, -1, 1)) if self.last else host

    def from_host(self, array: np.ndarray[Any, Any]) -> Array:
        self.device.activate()
        host = np.moveaxis(array, 1, -1) if self.last else array
        return self.device.xp.array(host, order="C")

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        self.device.activate()
        shape = (shape[0], *shape[2:], shape[1]) if self.last else shape
        return self.device.xp.empty(shape, dtype)

    def library(self) -> Library:
        return self._library

    def synchronize(self) -> None:
        self.device.activate()
        self.device.synchronize()

    def adopt(self, bound: Bound) -> Bound:
        """A call that is bound to the host, as a call on arrays of the device."""
        made, why = copy(bound), f"{bound.backend.name} computes it"
        made.call = on_host(bound.call, self.device.xp, bound.writes, why)
        made.into, made.view, made.space = False, False, self.device.name
        return made
