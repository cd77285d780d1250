# SPDX-License-Identifier: Apache-2.0
"""NdArray: an array that may live in several memory spaces, copied on demand, filled lazily."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import numbers
from nnl.core.arguments.convert import held_as
from nnl.core.arrays.item_methods import ArrayItems
from nnl.core.arrays.memory_record import BY_HAND, EARLY, PLAIN, ZERO, MemoryRecord
from nnl.core.arrays.nnabla_views import ArrayViews
from nnl.core.arrays.operators import ArrayOperators
from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.settings.context import EPOCH, REORDERED, SPACES, STATE

logger = logging.getLogger("nnl")

Host = np.ndarray[Any, Any]


class NdArray(ArrayOperators, ArrayItems, ArrayViews):
    """An array without a graph.

    Args:
        shape: Nothing (a scalar), one int, one tuple or list, or several ints.

    A new array reads as zeros. `bufs` maps a memory space to a buffer that is current; writing in
    one space drops the others. Without buffers, `record` says what there is: one value for every
    element, for which nothing is allocated yet, or nothing any more. Without that, the array was
    never written. Arrays that share memory (`become`) share both.

    Example:
        >>> a = nn.NdArray.from_numpy_array(np.array([1.0, 2.0]))
        >>> (a * 3).data
        array([3., 6.], dtype=float32)
    """

    __slots__ = ("spec", "bufs", "record", "__weakref__")
    spec: Spec
    bufs: dict[str, Any]
    record: MemoryRecord

    def __init__(self, *shape: Any) -> None:
        if len(shape) == 1:
            shape = shape[0] if type(shape[0]) is tuple else _sizes(shape[0])
        try:
            self.spec = Spec.of(shape).checked()
        except TypeError as e:
            raise TypeError(f"NdArray: {e}") from None
        except ShapeError as e:
            raise ShapeError(f"NdArray: {e}") from None
        self.bufs, self.record = {}, ZERO
        STATE.interpreter.made(self)

    @staticmethod
    def unwritten(spec: Spec) -> NdArray:
        """An array that has a shape and no value yet: the output of a recorded function."""
        self: NdArray = object.__new__(NdArray)
        self.spec, self.bufs, self.record = spec, {}, PLAIN
        return self

    @staticmethod
    def holding(spec: Spec, space: str, buf: Any) -> NdArray:
        """The array of a buffer that exists already; it is not copied."""
        self: NdArray = object.__new__(NdArray)
        self.spec, self.bufs, self.record = spec, {space: buf}, PLAIN
        return self

    @staticmethod
    def from_numpy_array(nparr: Any) -> NdArray:
        """A copy of a numpy array; keeps its dtype."""
        a = numbers("from_numpy_array", nparr, "an array of numbers")
        nd = NdArray.holding(Spec.of(a.shape, a.dtype), "host", _copy(a))
        STATE.interpreter.made(nd)
        return nd

    # ---- what backends and plans use ----

    def read(self, space: str) -> Any:
        """The current value as a buffer of `space`; copied or filled there first if need be."""
        buf = self.bufs.get(space)
        return buf if buf is not None else self._sync(space)

    def write(self, space: str, buf: Any) -> None:
        """Make `buf` the only current buffer; of memory that is shared, what it holds."""
        bufs = self.bufs
        if self.record.version:
            self.settle()
            if self.record.family is not None:
                space, buf = self.record.family.written(self, space, buf)
            buf = self.record.take(space, buf)
        else:
            self.record = PLAIN
        bufs[space] = buf  # first of all: an interrupt must not leave nothing
        if len(bufs) > 1:
            for other in [s for s in bufs if s != space]:
                del bufs[other]

    def settle(self) -> None:
        """Let what was put off read and write the memory now, before somebody else does."""
        work = self.record.work  # asked once: another thread may finish it
        if work is not None:
            work.settle(self)

    def touch(self, space: str) -> Any:
        """The buffer of `space`, about to be written in place: the other spaces become stale.

        Raises:
            NotImplementedError: It is not the host, where the memory of other arrays is that they
                have a part in.
        """
        if self.record.family is not None:
            self.record.family.check_in_place(self, space)
        buf = self.read(space)
        if self.record is not PLAIN or len(self.bufs) > 1:
            views = self.record.views
            self.write(space, buf)
            if views is not None:
                views.follow(self, space, buf)
        return buf

    def _sync(self, space: str) -> Any:
        record = self.record
        work = record.work
        if work is not None and not self.bufs:
            work.fetch(self)
            return self.read(space)
        if self.bufs:
            src, buf = list(self.bufs.items())[0]  # another thread may add a copy
            buf = SPACES[space].from_host(SPACES[src].to_host(buf))
        elif record.fill is not None:
            buf = SPACES[space].empty(self.spec.shape, self.spec.dtype)
            buf.fill(record.fill)
        elif record.cleared:
            raise ValueError(f"{self.spec} was read after it had been {record.cleared}")
        else:
            raise ValueError(
                f"{self.spec} was read before anything was written to it: run forward() first"
            )
        self.bufs[space] = buf
        return buf

    def read_early(self, name: str, reader: str) -> None:
        """Zeros and a warning, where something is read that nothing has written yet."""
        logger.warning(
            "%s was read by %s before anything was written to it: it is taken as zeros; a static "
            "graph has values after forward() "
            "(documentation: guides/sharp_bits#xd-outside-of-auto_forward-is-not-computed-yet)",
            name,
            reader,
        )
        self.hold(EARLY)

    def set_spec(self, spec: Spec) -> None:
        """Change shape or dtype; the value stays if the size does. Plans are rebuilt."""
        if spec is self.spec:
            return
        self.settle()
        same = spec.size == self.spec.size and spec.dtype == self.spec.dtype
        if same and not REORDERED.isdisjoint(self.bufs):
            self.touch("host")
        # of its own: arrays that shared memory keep the old spec and the old value
        bufs = list(self.bufs.items()) if same else []
        self.bufs = {s: b.reshape(spec.shape) for s, b in bufs}
        self.record = self.record if same else ZERO
        if self.record.version:
            own = None if self.record.own is None else self.bufs["host"]
            self.record = replace(self.record, own=own)
        self.spec = spec
        EPOCH.advance()

    def share(self, other: NdArray) -> None:
        """Let both arrays be the same memory from now on."""
        if not isinstance(other, NdArray):
            raise TypeError(f"data: got {type(other).__name__}, wanted an NdArray")
        if other.spec.shape != self.spec.shape:
            raise ShapeError(f"data: got {other.spec}, wanted the shape {self.spec.shape}")
        if other.bufs is not self.bufs:
            STATE.interpreter.write(self, "sharing the memory of another array")
        if other.spec is not self.spec:
            EPOCH.advance()
        self.become(other)

    def become(self, other: NdArray) -> None:
        """Be the memory of another array, whatever is written to either from now on."""
        self.record.give_up(self)
        self.spec, self.bufs, self.record = other.spec, other.bufs, other.lasting_record()
        if self.record.family is not None:
            self.record.family.add(self)

    def lasting_record(self) -> MemoryRecord:
        """The record, to share it or to note something in it."""
        self.record = self.record.lasting()
        return self.record

    def hold(self, record: MemoryRecord) -> None:
        """Hold no buffer but what this says."""
        self.record.let_go(self)
        self.bufs.clear()
        if self.record.version:
            self.record.say(record)
        else:
            self.record = record

    # ---- NNabla's NdArray ----

    @property
    def data(self) -> Host:
        """The value as a writable numpy array that shares this array's memory."""
        host: Host | None = self.bufs.get("host")
        STATE.interpreter.read(self)
        if host is not None and self.record is PLAIN and len(self.bufs) == 1:  # the usual case
            return host
        if self.blank:
            self.read_early(f"NdArray {self.spec}", ".data")
        early = not self.written
        if not self.bufs and self.record.cleared == BY_HAND.cleared:
            self.zero()  # somebody is about to write
        host = self.touch("host")
        if early:
            self.lasting_record().early = True
        return host

    @data.setter
    def data(self, value: Any) -> None:
        spec = self.spec
        if type(value) is np.ndarray:  # asked first: faster
            pass
        elif isinstance(value, (int, float, np.generic)) and not isinstance(value, bool):
            self.fill(value)
            return
        a = value
        if isinstance(value, NdArray):
            if STATE.interpreter.assign(self, value):
                return
            a = value.data
        STATE.interpreter.write(self, "writing a numpy array")
        if type(a) is not np.ndarray or (a.dtype is not spec.dtype and held_as(a.dtype) != a.dtype):
            a = numbers("data", a, "a number or an array of numbers")
        if a.shape != spec.shape:
            try:
                a = np.broadcast_to(a, spec.shape)
            except ValueError:
                hint = ": write a[:, None] for the array a" if (*a.shape, 1) == spec.shape else ""
                raise ShapeError(
                    f"data: cannot assign an array of shape {a.shape} to {spec}{hint}"
                ) from None
        self.settle()
        if self.record.own is not None:
            return self.overwrite(a)
        if a.dtype is not spec.dtype and a.dtype != spec.dtype:
            spec = self.spec = Spec.of(spec.shape, a.dtype)
            EPOCH.advance()
            self.bufs, self.record = {"host": _copy(a)}, PLAIN
            return
        linked = self.record.views is not None
        buf = self.touch("host") if linked else self.bufs.get("host")
        if buf is None or not buf.flags.writeable:
            self.write("host", _copy(a))
        else:
            np.copyto(buf, a)
            if self.record is not PLAIN or len(self.bufs) > 1:
                self.touch("host")

    def zero(self) -> None:
        """Fill with zeros, lazily."""
        self.fill(0)

    def fill(self, value: Any) -> None:
        """Fill with one value, lazily: memory is touched at the next read."""
        if STATE.interpreter.fill(self, value):
            return
        if self.record.own is not None:
            self.settle()
            return self.overwrite(value)
        self.hold(ZERO if type(value) is int and value == 0 else MemoryRecord(value))

    def clear(self) -> None:
        """Free the memory. What reads it before the next write raises; `.data` begins as zeros.

        Where other arrays are parts of the memory, nothing can be freed, and zeros are written.

        Raises:
            ValueError: It is itself a part of another array's memory.
        """
        if self.record.family is None or not self.record.family.clear(self):
            self.hold(BY_HAND)

    @property
    def blank(self) -> bool:
        """Whether nothing was ever written."""
        record = self.record
        return not self.bufs and record.fill is None and not record.cleared and record.work is None


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
