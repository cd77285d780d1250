# SPDX-License-Identifier: Apache-2.0
"""NdArray: an array that may live in several memory spaces, copied on demand, filled lazily."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from nnl.core.annotations import shown
from nnl.core.array_views import SHARED, ArrayViews
from nnl.core.context import EPOCH, REORDERED, SPACES, STATE
from nnl.core.items import ArrayItems
from nnl.core.operators import ArrayOperators
from nnl.core.spec import ShapeError, Spec

logger = logging.getLogger("nnl")

Host = np.ndarray[Any, Any]
UNWRITTEN = "unwritten"  # a mark beside buffers: zeros that were read before anything was written
LOST = "cleared by clear_buffer or clear_no_need_grad: set persistent=True to keep it"
BY_HAND = "cleared by clear()"


class NdArray(ArrayOperators, ArrayItems, ArrayViews):
    """An array without a graph.

    Args:
        shape: Nothing (a scalar), one int, one tuple or list, or several ints.

    A new array reads as zeros. `bufs` maps a memory space to a buffer that is current; writing in
    one space drops the others. Instead of buffers it may hold one of two marks: "fill" (every
    element has this value, nothing is allocated yet) or "cleared". Empty, it was never written;
    if it is read then, it becomes zeros, marked "unwritten".
    Two arrays that share memory (`share`) share the dictionary itself; views on a device, of
    another shape, have one `Views` in theirs.
    """

    __slots__ = ("spec", "bufs", "__weakref__")
    spec: Spec
    bufs: dict[str, Any]

    def __init__(self, *shape: Any) -> None:
        if len(shape) == 1:
            shape = shape[0] if type(shape[0]) is tuple else _sizes(shape[0])
        try:
            self.spec = Spec.of(shape).checked()
        except TypeError as e:
            raise TypeError(f"NdArray: {e}") from None
        except ShapeError as e:
            raise ShapeError(f"NdArray: {e}") from None
        self.bufs = {"fill": 0}
        if STATE.trace is not None:
            STATE.trace.made(self)

    @staticmethod
    def unwritten(spec: Spec) -> NdArray:
        """An array that has a shape and no value yet: the output of a recorded function."""
        self: NdArray = object.__new__(NdArray)
        self.spec, self.bufs = spec, {}
        return self

    @staticmethod
    def holding(spec: Spec, space: str, buf: Any) -> NdArray:
        """The array of a buffer that exists already; it is not copied."""
        self: NdArray = object.__new__(NdArray)
        self.spec, self.bufs = spec, {space: buf}
        return self

    @staticmethod
    def from_numpy_array(nparr: Any) -> NdArray:
        """A copy of a numpy array; keeps its dtype."""
        try:
            a = np.asarray(nparr)
        except ValueError:  # lists of different lengths
            raise TypeError(
                f"from_numpy_array: got {shown(nparr)}, wanted an array of numbers"
            ) from None
        nd = NdArray.holding(Spec.of(a.shape, a.dtype), "host", _copy(a))
        if STATE.trace is not None:
            STATE.trace.made(nd)
        return nd

    # ---- what backends and plans use ----

    def read(self, space: str) -> Any:
        """The current value as a buffer of `space`; copied or filled there first if need be."""
        buf = self.bufs.get(space)
        return buf if buf is not None else self._sync(space)

    def write(self, space: str, buf: Any) -> None:
        """Make `buf` the only current buffer; of memory that is shared, what it holds."""
        bufs = self.bufs
        own = bufs.get(SHARED)
        bufs.clear()
        if own is not None and space == "host":
            if buf is not own:
                np.copyto(own, buf)
            bufs[space] = bufs[SHARED] = own
        else:
            bufs[space] = buf

    def touch(self, space: str) -> Any:
        """The buffer of `space`, about to be written in place: the other spaces become stale."""
        buf = self.read(space)
        if len(self.bufs) > 1:
            views = self.bufs.get("views")
            self.write(space, buf)
            if views is not None:
                views.follow(self, space, buf)
        return buf

    def _sync(self, space: str) -> Any:
        if "fill" in self.bufs:
            buf = SPACES[space].empty(self.spec.shape, self.spec.dtype)
            buf.fill(self.bufs["fill"])
            still = UNWRITTEN in self.bufs
            self.write(space, buf)
            if still:
                self.bufs[UNWRITTEN] = True
        elif not self.bufs:
            raise ValueError(
                f"{self.spec} was read before anything was written to it: run forward() first"
            )
        elif "cleared" in self.bufs:
            raise ValueError(f"{self.spec} was read after it had been {self.bufs['cleared']}")
        else:
            src, buf = list(self.bufs.items())[0]  # plans of other threads may add marks
            self.bufs[space] = SPACES[space].from_host(SPACES[src].to_host(buf))
        return self.bufs[space]

    def read_early(self, name: str, reader: str) -> None:
        """Zeros and a warning, where something is read that nothing has written yet."""
        logger.warning(
            "%s was read by %s before anything was written to it: it is taken as zeros",
            name,
            reader,
        )
        self.bufs["fill"], self.bufs[UNWRITTEN] = 0, True

    def set_spec(self, spec: Spec) -> None:
        """Change shape or dtype; the value stays if the size does. Plans are rebuilt."""
        if spec is self.spec:
            return
        same = spec.size == self.spec.size and spec.dtype == self.spec.dtype
        if same and not REORDERED.isdisjoint(self.bufs):
            self.touch("host")
        old: dict[str, Any] = self.bufs if same else {"fill": 0}
        # a dictionary of its own: arrays that shared memory keep the old spec and the old value
        whole = {SHARED, *SPACES}
        self.bufs = {s: b.reshape(spec.shape) if s in whole else b for s, b in list(old.items())}
        self.spec = spec
        EPOCH.advance()

    def share(self, other: NdArray) -> None:
        """Let both arrays be the same memory from now on."""
        if not isinstance(other, NdArray):
            raise TypeError(f"data: got {type(other).__name__}, wanted an NdArray")
        if other.spec.shape != self.spec.shape:
            raise ShapeError(f"data: got {other.spec}, wanted the shape {self.spec.shape}")
        if STATE.trace is not None and other.bufs is not self.bufs:
            STATE.trace.check_write(self, "sharing the memory of another array")
        if other.spec is not self.spec:
            self.spec = other.spec
            EPOCH.advance()
        self.bufs = other.bufs

    # ---- NNabla's NdArray ----

    @property
    def data(self) -> Host:
        """The value as a writable numpy array that shares this array's memory."""
        host: Host | None = self.bufs.get("host")
        if STATE.trace is not None:
            STATE.trace.check_read(self)
        elif host is not None and len(self.bufs) == 1:  # the usual case
            return host
        if self.bufs.get("cleared") == BY_HAND:
            self.zero()  # somebody is about to write
        if self.written:
            host = self.touch("host")
        else:
            if not self.bufs:
                self.read_early(f"NdArray {self.spec}", ".data")
            host = self.read("host")
            self.write("host", host)
            self.bufs[UNWRITTEN] = True
        return host

    @data.setter
    def data(self, value: Any) -> None:
        spec = self.spec
        if type(value) is np.ndarray:  # asked first: faster
            pass
        elif isinstance(value, (int, float, np.generic)) and not isinstance(value, bool):
            self.fill(value)
            return
        if STATE.trace is not None:
            if isinstance(value, NdArray):
                STATE.trace.assign(self, value)
                return
            STATE.trace.check_write(self, "writing a numpy array")
        a = value.data if isinstance(value, NdArray) else value
        try:
            a = np.asarray(a)
        except ValueError:  # lists of different lengths
            raise TypeError(
                f"data: got {shown(a)}, wanted a number or an array of numbers"
            ) from None
        if a.dtype.kind not in "biufV" or a.dtype.names is not None:
            raise TypeError(f"data: got {value!r}, wanted a number or an array of numbers")
        if a.shape != spec.shape:
            try:
                a = np.broadcast_to(a, spec.shape)
            except ValueError:
                raise ShapeError(
                    f"data: cannot assign an array of shape {a.shape} to {spec}"
                ) from None
        if SHARED in self.bufs:
            np.copyto(self.touch("host"), a, casting="unsafe")  # its type is that of the memory
            return
        if a.dtype is not spec.dtype and a.dtype != spec.dtype:
            spec = self.spec = Spec.of(spec.shape, a.dtype)
            EPOCH.advance()
            self.bufs = {"host": _copy(a)}
            return
        buf = self.touch("host") if "views" in self.bufs else self.bufs.get("host")
        if buf is None or not buf.flags.writeable:
            self.write("host", _copy(a))
        else:
            np.copyto(buf, a)
            if len(self.bufs) > 1:
                self.touch("host")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def size(self) -> int:
        return self.spec.size

    @property
    def ndim(self) -> int:
        return len(self.spec.shape)

    @property
    def dtype(self) -> Any:
        return self.spec.dtype.type

    def zero(self) -> None:
        """Fill with zeros, lazily."""
        self.fill(0)

    def fill(self, value: Any) -> None:
        """Fill with one value, lazily: memory is touched at the next read."""
        if STATE.trace is not None and STATE.trace.fill(self, value):
            return
        if SHARED in self.bufs:
            self.data[...] = value  # the other arrays of this memory must see it
            return
        self.bufs.clear()
        self.bufs["fill"] = value

    @property
    def zeroing(self) -> bool:
        """Whether the array is lazily zero: no memory has been written since zero()."""
        return bool(self.bufs.get("fill") == 0)

    def clear(self, why: str = BY_HAND) -> None:
        """Free the memory. What reads it before the next write raises; `.data` begins as zeros.

        Args:
            why: For messages. A plan that has cleared what it computed says so, and then `.data`
                raises, too.
        """
        self.bufs.clear()
        self.bufs["cleared"] = why

    @property
    def written(self) -> bool:
        """Whether the array has been written or cleared; zeros read before that do not count."""
        return bool(self.bufs) and UNWRITTEN not in self.bufs

    @property
    def clear_called(self) -> bool:
        return "cleared" in self.bufs

    def __repr__(self) -> str:
        mark = next((m for m in ("fill", "cleared") if m in self.bufs), None)
        if not self.bufs or mark == "cleared":
            return f"<NdArray{list(self.shape)} {self.spec.dtype.name}, {mark or 'not written'}>"
        body = np.array2string(self.read("host"), threshold=20, edgeitems=2, precision=4)
        return f"<NdArray{list(self.shape)} {self.spec.dtype.name}\n{body}>"


def _sizes(shape: Any) -> tuple[Any, ...]:
    """The sizes that were given as one argument: a sequence, or one number."""
    array = isinstance(shape, np.ndarray) and (shape.ndim > 1 or shape.dtype.kind not in "iu")
    if array or hasattr(shape, "spec"):
        what = f"numpy array {shape.dtype}{list(shape.shape)}" if array else type(shape).__name__
        raise TypeError(
            f"NdArray: shape is a {what}, wanted a sequence of ints: NdArray.from_numpy_array "
            "takes the values of an array"
        )
    return tuple(shape) if np.iterable(shape) else (shape,)


def _copy(a: Host) -> Host:
    host: Host = SPACES["host"].empty(a.shape, a.dtype)
    host[...] = a
    return host


class Zeros(NdArray):
    """Zeros that nobody writes to, which passes rely on: the gradient of an output without one."""

    __slots__ = ()
