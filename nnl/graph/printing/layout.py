# SPDX-License-Identifier: Apache-2.0
"""Where the nodes of a graph stand in a drawing: in rows, each below those that it reads."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def placed(order: Sequence[Key], above: Mapping[Key, Sequence[Key]]) -> dict[Key, tuple[int, int]]:
    """Column and row of each node, from 0 on: in a row below what it reads, near the middle of it.

    Args:
        order: The nodes, so that each comes after those that it reads, as far as there is such.
        above: What each reads.
    """
    rows: dict[Key, int] = {}
    users: dict[Key, list[Key]] = {key: [] for key in order}
    for key in order:
        rows[key] = 1 + max((rows.get(k, -1) for k in above[key]), default=-1)
        for k in above[key]:
            users[k].append(key)
    for key in order:  # what reads nothing stands right above what reads it
        if not above[key] and users[key]:
            rows[key] = max(0, min(rows[k] for k in users[key]) - 1)
    taken: dict[int, set[int]] = {}
    column: dict[Key, int] = {}
    # In each row what reads something comes first; what does not, as labels, stands beside it.
    for key in sorted(order, key=lambda key: (rows[key], not above[key])):
        beside = [k for user in users[key] for k in above[user]]
        columns = [column[k] for k in above[key] or beside if k in column]
        wanted = round(sum(columns) / len(columns)) if columns else 0
        used = taken.setdefault(rows[key], set())
        step = 0
        while wanted + step in used:  # 0, 1, -1, 2, -2 ...
            step = -step if step > 0 else 1 - step
        used.add(wanted + step)
        column[key] = wanted + step
    least = min(column.values(), default=0)
    return {key: (column[key] - least, rows[key]) for key in order}
