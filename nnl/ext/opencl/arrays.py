# SPDX-License-Identifier: Apache-2.0
"""Arrays in the memory of an OpenCL device, and as much of an array module as the engine needs.

Nothing is computed here: kernels do that, and numpy for what has none, on copies in host memory.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from nnl.ext.opencl.device import OpenClDevice
    from nnl.ext.opencl.memory import Piece

CONTIGUOUS = SimpleNamespace(c_contiguous=True)


class OpenClArray:
    """A contiguous array of a device.

    Attributes:
        piece: The memory that it keeps alive; address: where in it the array begins.
    """

    __slots__ = ("device", "piece", "address", "shape", "dtype", "base", "__weakref__")
    __array_ufunc__ = None  # numpy's functions and operators do not take it
    flags = CONTIGUOUS

    def __init__(
        self,
        device: OpenClDevice,
        piece: Piece,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        base: OpenClArray | None = None,
    ) -> None:
        self.device, self.piece, self.address = device, piece, address
        self.shape, self.dtype, self.base = shape, dtype, base

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __array__(self, *args: Any, **kw: Any) -> Any:
        raise TypeError("an array of an OpenCL device becomes one of numpy by get() only")

    def get(self) -> np.ndarray[Any, Any]:
        """A copy in host memory, when all work before it is done."""
        host = np.empty(self.shape, self.dtype)
        self.device.download(self.address, host)
        return host

    def reshape(self, *shape: Any) -> OpenClArray:
        """The same memory in another shape."""
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        wanted = tuple(wanted)
        if -1 in wanted:
            rest = -math.prod(wanted)
            wanted = tuple(self.size // max(rest, 1) if n == -1 else n for n in wanted)
        if math.prod(wanted) != self.size:
            raise ValueError(f"reshape: an array of shape {self.shape} has no shape {wanted}")
        return OpenClArray(
            self.device, self.piece, self.address, wanted, self.dtype, self.base or self
        )

    def view(self) -> OpenClArray:
        """Another array of the same memory."""
        return self.reshape(self.shape)

    def copy(self) -> OpenClArray:
        made = self.device.empty(self.shape, self.dtype)
        self.device.copy(self.address, made.address, self.nbytes)
        return made

    def astype(self, dtype: Any, copy: bool = True) -> OpenClArray:
        """The values in another element type, converted on the host."""
        dtype = np.dtype(dtype)
        if dtype == self.dtype:
            return self.copy() if copy else self
        return self.device.upload(self.get().astype(dtype))

    def fill(self, value: Any) -> None:
        self.device.fill(self.address, np.array(value).astype(self.dtype).tobytes(), self.nbytes)

    def __iadd__(self, other: OpenClArray) -> OpenClArray:
        self.device.add(self, other)
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        if key is not Ellipsis:
            raise TypeError(f"an array of an OpenCL device is written whole, got the index {key!r}")
        if isinstance(value, OpenClArray):
            if (value.size, value.dtype) == (self.size, self.dtype) and value.device is self.device:
                self.device.copy(value.address, self.address, self.nbytes)
                return
            value = value.get()
        host = np.empty(self.shape, self.dtype)
        host[...] = value
        self.device.write(self.address, host)


class OpenClModule:
    """The functions of numpy that make arrays."""

    ndarray = OpenClArray
    computes = False  # definitions run on the host

    def __init__(self, device: OpenClDevice) -> None:
        self.device = device

    def empty(self, shape: Any, dtype: Any = "float32") -> OpenClArray:
        return self.device.empty(shape, dtype)

    def array(self, a: Any, dtype: Any = None, order: str = "K") -> OpenClArray:
        if isinstance(a, OpenClArray):
            return a.copy() if dtype is None else a.astype(dtype)
        return self.device.upload(np.asarray(a, dtype))

    def asarray(self, a: Any, dtype: Any = None) -> OpenClArray:
        if isinstance(a, OpenClArray):
            return a if dtype is None else a.astype(dtype, copy=False)
        return self.device.upload(np.asarray(a, dtype))
