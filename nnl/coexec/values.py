# SPDX-License-Identifier: Apache-2.0
"""Arrays whose values were put off: who wants these, and how they get them."""

from __future__ import annotations

from typing import Any

from nnl.coexec.paths import Values
from nnl.core.array import NdArray
from nnl.core.record import PLAIN

NOTHING: dict[int, Any] = {}
LOST = "given up: a function that was to run with it has failed"


def publish(
    values: Values,
    live: dict[int, NdArray],
    taken: dict[int, tuple[int, NdArray]],
    then: dict[int, Any] = NOTHING,
) -> None:
    """Give arrays their values; those that have none say so.

    Args:
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
            record.cleared = LOST
        record.work = then.get(id(record))
    handed = set(live)
    for number, nd in taken.values():
        record = nd.record
        if number not in values:
            record.cleared = LOST
        else:
            space, buf = values[number]
            own = number not in handed and getattr(buf, "base", None) is None
            buf = record.take(space, buf if own else buf.copy())
            nd.bufs.clear()
            nd.bufs[space] = buf
            handed.add(number)
        record.work = then.get(id(record))
