# SPDX-License-Identifier: Apache-2.0
"""Arrays whose values were put off: who wants these, and how they get them."""

from __future__ import annotations

from sys import getrefcount

from nnl.coexec.paths import Values
from nnl.core.array import NdArray
from nnl.core.record import PLAIN
from nnl.core.spec import Spec

LOST = "given up: a function that was to run with it has failed"


def references(made: list[NdArray | None]) -> list[int]:
    """How often each of these arrays, and the memory of each, is referred to."""
    counts = []
    for i in range(len(made)):
        nd = made[i]
        counts.append(0 if nd is None else getrefcount(nd) + getrefcount(nd.bufs))
    return counts


ALONE = references([NdArray.unwritten(Spec.of(()))])[0]  # where only the list has it


def publish(
    values: Values,
    made: list[NdArray | None],
    live: set[int],
    taken: dict[int, tuple[int, NdArray]],
) -> None:
    """Give arrays their values; those that have none say so."""
    for i in live:
        nd = made[i]
        assert nd is not None
        record = nd.record
        if record.work is None:
            continue  # it was overwritten
        record.work = None
        record.renew(PLAIN)
        if i in values:
            space, buf = values[i]
            nd.bufs[space] = buf
        else:
            record.cleared = LOST
    handed = set(live)
    for number, nd in taken.values():
        nd.record.work = None
        if number not in values:
            nd.record.cleared = LOST
            continue
        space, buf = values[number]
        own = number not in handed and getattr(buf, "base", None) is None
        nd.write(space, buf if own else buf.copy())
        handed.add(number)
