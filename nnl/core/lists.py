# SPDX-License-Identifier: Apache-2.0
"""What every step does to many arrays: small loops, which a library may do faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from sys import getrefcount
from typing import Any

from nnl.core.array import NdArray
from nnl.core.record import PLAIN
from nnl.core.spec import Spec

Written = Sequence[tuple[NdArray, str]]  # arrays, and the memory space that each is written in
Given = Sequence[tuple[int, NdArray]]  # arrays by slot


def renewed(arrays: Written, space: str) -> list[tuple[NdArray, str]]:
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


def unlike(arrays: Sequence[NdArray], others: Sequence[NdArray]) -> list[tuple[NdArray, NdArray]]:
    """Pairs, up to the end of the shorter list, that are not the same memory."""
    return [(a, b) for a, b in zip(arrays, others, strict=False) if a.bufs is not b.bufs]


def give_back(given: Sequence[NdArray], before: Mapping[int, dict[str, Any]], work: Any) -> None:
    """Give arrays this work, and some, by numbers from -2 down, buffers that they had before."""
    for nd in given:
        nd.record.work = work
    for number, bufs in before.items():
        given[-2 - number].bufs.update(bufs)


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


class Lists:
    """These loops; attributes, so that a library can take their place."""

    def __init__(self) -> None:
        self.renewed: Callable[..., list[tuple[NdArray, str]]] = renewed
        self.moved: Callable[..., list[tuple[int, NdArray]]] = moved
        self.unlike: Callable[..., list[tuple[NdArray, NdArray]]] = unlike
        self.give_back: Callable[..., None] = give_back
        self.living: Callable[..., dict[int, NdArray]] = living

    def asked_of(self, library: Any) -> None:
        """Let a library do them."""
        for name in self.__dict__:
            setattr(self, name, getattr(library, name))


LISTS = Lists()
