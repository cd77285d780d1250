# SPDX-License-Identifier: Apache-2.0
"""Methods of NNabla's NdArray that look at its memory in another way; the engine uses none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nnl.core.arguments.annotations import checked, numpy_type
from nnl.core.arrays.memory_record import PLAIN, MemoryRecord
from nnl.core.arrays.shared_memory import Family
from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.settings.context import EPOCH, SPACES, STATE

if TYPE_CHECKING:
    from nnl.core.arrays.array import Host, NdArray

HOST = 1, 0  # DLPack's numbers of host memory: kind and index


class ArrayViews:
    """An array's memory under other shapes, types and protocols."""

    __slots__ = ()

    @property
    def shape(self: Any) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self.spec.shape  # type: ignore[no-any-return]

    @property
    def size(self: Any) -> int:
        return int(self.spec.size)

    @property
    def ndim(self: Any) -> int:
        return len(self.spec.shape)

    @property
    def dtype(self: Any) -> Any:
        return self.spec.dtype

    @property
    def clear_called(self: Any) -> bool:
        return not self.bufs and bool(self.record.cleared)

    @property
    def zeroing(self: Any) -> bool:
        """Whether the array is lazily zero: no memory has been written since zero()."""
        return not self.bufs and bool(self.record.fill == 0)

    @property
    def written(self: Any) -> bool:
        """Whether the array has been written or cleared; zeros read before that do not count."""
        return bool(not self.blank and not self.record.early)

    def __repr__(self: Any) -> str:
        if self.blank or self.clear_called:
            why = "not written" if self.blank else "cleared"
            return f"<NdArray{list(self.shape)} {self.spec.dtype.name}, {why}>"
        body = np.array2string(self.read("host"), threshold=20, edgeitems=2, precision=4)
        return f"<NdArray{list(self.shape)} {self.spec.dtype.name}\n{body}>"

    @property
    def strides(self: Any) -> tuple[int, ...]:
        """In elements, of a C-contiguous array."""
        out, n = [], 1
        for s in reversed(self.spec.shape):
            out.append(n)
            n *= s
        return tuple(reversed(out))

    @checked
    def size_from_axis(self: Any, axis: int = -1) -> int:
        """Product of the sizes from `axis` on; the whole size for a negative axis."""
        return int(np.prod(self.spec.shape[max(axis, 0) :], dtype=np.int64))

    def cast(self: Any, dtype: Any, ctx: Any = None) -> Host:
        """Convert the value to another dtype in place and return it as a writable numpy array.

        Arrays that are parts of the same memory (`narrow`, `view`) are converted too.
        """
        dtype = numpy_type("cast", dtype)
        STATE.interpreter.read(self)
        self.settle()
        if dtype != self.spec.dtype:
            if self.record.family is not None and self.record.own is not None:
                self.record.family.cast(dtype)
                return self.data  # type: ignore[no-any-return]
            if self.bufs or self.record.cleared:
                now = {"host": self.read("host").astype(dtype)}, PLAIN
            else:
                now = {}, MemoryRecord(self.record.fill or 0)
            self.spec = Spec.of(self.spec.shape, dtype)
            EPOCH.advance()
            self.bufs, self.record = now
        elif self.blank:
            self.zero()
        return self.data  # type: ignore[no-any-return]

    @checked
    def view(self: Any, shape: Sequence[int]) -> NdArray:
        """The same memory under another shape of the same size; one size may be -1."""
        host = self.data
        try:
            v = host.reshape(tuple(shape))
        except ValueError:
            raise ShapeError(f"view: {self.spec} does not fit the shape {tuple(shape)}") from None
        return _sharing(self, host, v)

    @checked
    def narrow(self: Any, dim: int, start: int, length: int) -> NdArray:
        """The same memory restricted to [start, start + length) along `dim`, which must be 0."""
        if dim != 0 or not 0 <= start <= start + length <= (*self.shape, 0)[0]:
            raise ShapeError(
                f"narrow: [{start}, {start + length}) of dim {dim} of {self.spec}: wanted a range "
                "inside dim 0"
            )
        host = self.data
        return _sharing(self, host, host[start : start + length])

    def copy_from(self: Any, arr: NdArray, use_current_context: bool = True) -> NdArray:
        """Copy the values of an array of the same shape, and return this one.

        Args:
            use_current_context: Convert them to this array's dtype. False: take the dtype over.
        """
        if not isinstance(arr, ArrayViews):
            raise TypeError(f"copy_from: arr is {type(arr).__name__}, wanted an NdArray")
        if arr.shape != self.shape:
            raise ShapeError(f"copy_from: arr is {arr.spec}, wanted the shape {self.shape}")
        if STATE.interpreter.assign(self, arr):
            return self  # type: ignore[no-any-return]
        if arr.blank:
            arr.read_early(f"NdArray {arr.spec}", "copy_from")
        space = next(iter(list(arr.bufs)), "host")
        source = arr.read(space)
        if not use_current_context and arr.spec is not self.spec:
            self.set_spec(arr.spec)
        buf = SPACES[space].empty(self.spec.shape, self.spec.dtype)
        buf[...] = source
        self.write(space, buf)
        return self  # type: ignore[no-any-return]

    @checked
    def get_data(self: Any, mode: str = "rw", dtype: Any = None) -> Host:
        """The value as a numpy array; mode "r" is read only, "w" need not hold the old value.

        Another dtype is that of a copy in mode "r", and else of the array from now on.
        """
        if mode not in ("r", "w", "rw"):
            raise ValueError(f"get_data: mode is {mode!r}, wanted 'r', 'w' or 'rw'")
        STATE.interpreter.read(self)
        if mode == "w" and not self.bufs:
            self.zero()
        if dtype is not None and mode != "r":
            self.cast(dtype)
        if mode != "r":
            return self.data  # type: ignore[no-any-return]
        if self.blank:
            self.read_early(f"NdArray {self.spec}", "get_data")
        host = self.read("host")
        view = host.view() if dtype is None else host.astype(numpy_type("get_data", dtype))
        view.flags.writeable = False
        return view  # type: ignore[no-any-return]

    def data_ptr(self: Any, dtype: Any, ctx: Any = None, write_only: bool = False) -> int:
        """Address of the host memory as an int, after a cast to dtype."""
        return int(self.cast(dtype).ctypes.data)

    def __dlpack__(self: Any, **kw: Any) -> Any:
        """The capsule that `torch.from_dlpack(a)` and its like ask for."""
        return self.data.__dlpack__(**kw)

    def __dlpack_device__(self: Any) -> tuple[int, int]:
        return HOST

    # ---- results written where an array lies ----

    def stay(self: Any) -> None:
        """Be written in the memory that it has now, wherever a value comes from."""
        host = self.data
        self.lasting_record().own = host
        if self.record.family is None:
            self.record.family = Family(self)

    def fit(self: Any, spec: Spec, function: str) -> bool:
        """Have another dtype or shape in the memory that others have, too; False: there is none.

        Raises:
            ShapeError: The size is another one, and it is a part of a larger array's memory.
        """
        family = self.record.family
        if family is None or (self.spec.size != spec.size and not family.is_part(self)):
            return False
        if self.spec.size != spec.size:
            raise ShapeError(
                f"{function}: outputs is {self.spec}, which shares its memory with other arrays, "
                f"and the result is {spec} now"
            )
        self.cast(spec.dtype)
        if self.spec is not spec:
            own = self.record.own
            self.become(_sharing(self, own, own.reshape(spec.shape)))
        return True

    def take_over(self: Any, result: NdArray) -> None:
        """Be a result of the same shape, and let what shares this memory have it too."""
        if not self.record.version or (self.spec is not result.spec and self.record.own is None):
            self.become(result)
            return
        if self.spec is not result.spec:
            self.cast(result.spec.dtype)
        space = next(iter(list(result.bufs)), "host")
        self.write(space, result.read(space))
        result.become(self)

    def overwrite(self: Any, value: Any) -> None:
        """Write an array or a number into the memory, in its type: others see it there."""
        own = self.record.own
        np.copyto(own, value, casting="unsafe")
        self.write("host", own)


def _sharing(self: NdArray, host: Host, part: Host) -> NdArray:
    """The array of a part of this one's memory, in which both see what is written from now on."""
    nd = self.holding(Spec.of(part.shape, part.dtype), "host", part)
    self.lasting_record().own, nd.lasting_record().own = host, part
    if self.record.family is None:
        self.record.family = Family(self)
    self.record.family.add(nd)
    return nd
