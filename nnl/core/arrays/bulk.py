# SPDX-License-Identifier: Apache-2.0
"""What every step does to many arrays: small loops, which a library may do faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from mmap import mmap
from operator import attrgetter
from sys import getrefcount
from typing import Any

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.memory_record import PLAIN
from nnl.core.arrays.spec import Spec

GIVEN_UP = "given up: a function that was to run with it has failed"
NOTHING: dict[int, Any] = {}

WrittenIn = Sequence[tuple[NdArray, str]]  # arrays, and the memory space that each is written in
Given = Sequence[tuple[int, NdArray]]  # arrays by slot


def renewed(arrays: WrittenIn, space: str) -> list[tuple[NdArray, str]]:
    """Note that these arrays are about to be written in a space, as `touch` does; the others.

    Those are what this loop does not do: written elsewhere, or more is to be seen to.
    """
    others = []
    for pair in arrays:
        nd, record = pair[0], pair[0].record
        alone = record.own is record.views is record.work is None
        usual = pair[1] == space and len(nd.bufs) == 1 and space in nd.bufs
        if usual and alone and record.version:
            record.renew(PLAIN)
        else:
            others.append(pair)
    return others


def moved(given: Given, slots: Sequence[Any], space: str) -> list[tuple[int, NdArray]]:
    """Those of the arrays whose buffer in a space is not that of their slot."""
    return [(slot, nd) for slot, nd in given if slots[slot] is not nd.bufs.get(space, given)]


def _references_to(bufs: Mapping[str, Any], space: str) -> int:
    buf = bufs[space]
    return getrefcount(buf)


_UNHELD = _references_to({"": object()}, "")  # where only the array has one


def is_held(nd: NdArray, space: str, holders: Mapping[int, int]) -> bool:
    """Whether somebody may have an array's buffer in a space, or memory of it, besides the array
    and those that are counted by its id."""
    buf = nd.bufs[space]
    base = buf.base
    part = base is not None and not isinstance(base, mmap)  # a file's memory is nobody's else
    return part or getrefcount(buf) > _UNHELD + holders.get(id(buf), 0)


def unchanged(
    arrays: Mapping[int, NdArray], seen: Mapping[int, int], space: str, holders: Mapping[int, int]
) -> bool:
    """Whether all arrays by slot have the versions that were seen, and nobody holds one."""
    for slot, nd in arrays.items():
        if seen.get(slot) != nd.record.version or is_held(nd, space, holders):
            return False
    return True


def unlike(arrays: Sequence[NdArray], others: Sequence[NdArray]) -> list[tuple[NdArray, NdArray]]:
    """Pairs, up to the end of the shorter list, that are not the same memory."""
    return [(a, b) for a, b in zip(arrays, others, strict=False) if a.bufs is not b.bufs]


def become(arrays: Sequence[NdArray], others: Sequence[NdArray]) -> None:
    """Let arrays, up to the end of the shorter list, be the memory of others."""
    for a, b in unlike(arrays, others):
        a.become(b)


def references(items: Sequence[Any], positions: Sequence[int]) -> list[int]:
    """How often items are referred to; no more than a number to compare with another one."""
    return [getrefcount(items[i]) for i in positions]


def count(counts: dict[int, int], keys: Iterable[int], more: int) -> None:
    """Add to the counts of some keys; those without one, and those of none, are not there."""
    for key in keys:
        now = counts.get(key, 0) + more
        if now:
            counts[key] = now
        else:
            counts.pop(key, None)


def give_back(given: Sequence[NdArray], before: Mapping[int, dict[str, Any]], work: Any) -> None:
    """Give arrays this work, and some, by numbers from -2 down, buffers that they had before."""
    for nd in given:
        nd.record.work = work
    put_back(given, before)


def put_back(given: Sequence[NdArray], before: Mapping[int, dict[str, Any]]) -> None:
    """Give arrays, by numbers from -2 down, buffers that they had before."""
    for number, bufs in before.items():
        given[-2 - number].bufs.update(bufs)


def hand_over(
    given: Sequence[NdArray],
    live: Mapping[int, NdArray],
    taken: Mapping[int, tuple[int, NdArray]],
    before: Mapping[int, Any],
    work: Any,
) -> dict[int, dict[str, Any]]:
    """Let what was put off be the work of something that begins to run.

    Args:
        live, taken: As for `publish`.
        before: By numbers from -2 down, the given arrays that it writes: they have no buffers as
            long.
    Returns:
        These, for `put_back`.
    """
    for nd in given:
        nd.record.work = work
    for nd in (*live.values(), *[nd for _, nd in taken.values()]):
        if nd.record.work is not None:  # else it was overwritten
            nd.record.work = work
    buffers = {}
    for number in before:
        bufs = given[-2 - number].bufs
        buffers[number] = dict(bufs)
        bufs.clear()
    return buffers


def go_on(arrays: Sequence[NdArray], work: Any, then: Mapping[int, Any]) -> None:
    """Give arrays that have this work the next one, by ids of records; most have none."""
    for nd in arrays:
        record = nd.record
        if record.work is work:
            record.work = then.get(id(record))


def _references(made: Sequence[NdArray | None]) -> list[int]:
    """How often each of these arrays, and the memory of each, is referred to."""
    counts = []
    for i in range(len(made)):
        nd = made[i]
        counts.append(0 if nd is None else getrefcount(nd) + getrefcount(nd.bufs))
    return counts


_ALONE = _references([NdArray.unwritten(Spec.of(()))])[0]  # where only the list has it


def living(made: Sequence[NdArray | None]) -> dict[int, NdArray]:
    """{position: array} of those that somebody has besides the list, or whose memory he has."""
    held = _references(made)
    return {i: nd for i, nd in enumerate(made) if nd is not None and held[i] > _ALONE}


def publish(
    values: Mapping[int, tuple[str, Any]],
    live: Mapping[int, NdArray],
    taken: Mapping[int, tuple[int, NdArray]],
    then: Mapping[int, Any],
) -> None:
    """Give arrays whose values were put off what has been computed; those that get none say so.

    Args:
        values: {number: memory space and buffer}.
        live: Arrays by the number of their value.
        taken: Others, each with a number, whose memory may be that of somebody: a value that
            somebody else has is copied for them.
        then: {id of a record: its work from now on}.
    """
    for i, nd in live.items():
        record = nd.record
        if record.work is None:
            continue  # it was overwritten
        record.renew(PLAIN)
        if i in values:
            space, buf = values[i]
            nd.bufs[space] = buf
        else:
            record.cleared = GIVEN_UP
        record.work = then.get(id(record))
    handed = set(live)
    for number, nd in taken.values():
        record = nd.record
        if number not in values:
            record.cleared = GIVEN_UP
        else:
            space, buf = values[number]
            own = number not in handed and getattr(buf, "base", None) is None
            buf = record.take(space, buf if own else buf.copy())
            nd.bufs.clear()
            nd.bufs[space] = buf
            handed.add(number)
        record.work = then.get(id(record))


def zero_gradients(entries: Sequence[Any]) -> None:
    """Fill the gradient of each parameter of a solver with zeros, lazily.

    Args:
        entries: What a solver knows of a parameter: its `variable`, and `inputs` besides it.
    """
    for entry in entries:
        entry.variable.edge.grad.zero()


def to_update(entries: Sequence[Any]) -> list[tuple[NdArray | None, ...]]:
    """The inputs of an update for each parameter of a solver whose gradient is not lazily zero.

    Args:
        entries: As in `zero_gradients`.
    """
    found = []
    for entry in entries:
        w = entry.variable
        grad = w.edge.grad
        if not grad.zeroing:
            rest = [None if v is None else v._data for v in entry.inputs]
            found.append((w._data, grad, *rest))
    return found


def captured(outputs: Sequence[Any]) -> list[Any]:
    """Nodes that edges depend on, in the order of their creation."""
    seen: set[Any] = set()
    stack = [v.node for v in outputs if v is not None and v.node is not None]
    seen.update(stack)
    while stack:
        for v in stack.pop().inputs:
            if v is not None and v.node is not None and v.node not in seen:
                seen.add(v.node)
                stack.append(v.node)
    return sorted(seen, key=attrgetter("seq"))


def plain(nodes: Sequence[Any]) -> bool:
    """Whether gradients can go through these nodes, of dynamic mode, and all else may be freed."""
    return not (
        any([v is not None and v.persistent for n in nodes for v in n.inputs])
        or any([n.attrs.shows_inputs or n.live is None or n.saved is None for n in nodes])
    )


def keep(*kept: Any) -> None:
    """Tell that objects live as long as what refers to them, and in no circle: Python need not look
    for them again and again, which takes most of the time of learning many paths."""


class Bulk:
    """These loops; attributes, so that a library can take their place."""

    def __init__(self) -> None:
        self.renewed: Callable[..., list[tuple[NdArray, str]]] = renewed
        self.moved: Callable[..., list[tuple[int, NdArray]]] = moved
        self.is_held: Callable[..., bool] = is_held
        self.unchanged: Callable[..., bool] = unchanged
        self.unlike: Callable[..., list[tuple[NdArray, NdArray]]] = unlike
        self.become: Callable[[Sequence[NdArray], Sequence[NdArray]], None] = become
        self.references: Callable[[Sequence[Any], Sequence[int]], list[int]] = references
        self.count: Callable[[dict[int, int], Iterable[int], int], None] = count
        self.give_back: Callable[..., None] = give_back
        self.put_back: Callable[..., None] = put_back
        self.hand_over: Callable[..., dict[int, dict[str, Any]]] = hand_over
        self.go_on: Callable[..., None] = go_on
        self.living: Callable[..., dict[int, NdArray]] = living
        self.publish: Callable[..., None] = publish
        self.zero_gradients: Callable[[Sequence[Any]], None] = zero_gradients
        self.to_update: Callable[..., list[tuple[NdArray | None, ...]]] = to_update
        self.captured: Callable[[Sequence[Any]], list[Any]] = captured
        self.plain: Callable[[Sequence[Any]], bool] = plain
        self.keep: Callable[..., None] = keep

    def asked_of(self, library: Any) -> None:
        """Let a library do them."""
        for name in self.__dict__:
            setattr(self, name, getattr(library, name))


BULK = Bulk()
