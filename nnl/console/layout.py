# SPDX-License-Identifier: Apache-2.0
"""Where nodes stand: rows from top to bottom, each node below those that it reads."""

from __future__ import annotations

from nnl.console.document import Net, in_order

ROW, COLUMN = 80.0, 220.0


def arrange(net: Net) -> dict[str, tuple[float, float]]:
    """A place for each node: in a row below what it reads, near the middle of it."""
    order, stuck = in_order(net)
    into = net.into()
    rows: dict[str, int] = {}
    for key in (*order, *stuck):
        rows[key] = 1 + max((rows.get(e.source, -1) for e in into[key]), default=-1)
    users = net.out_of()
    for key in order:  # inputs and parameters stand right above what reads them
        if not into[key] and users[key]:
            rows[key] = max(0, min(rows[e.target] for e in users[key]) - 1)
    taken: dict[int, set[int]] = {}
    column: dict[str, int] = {}
    for key in sorted((*order, *stuck), key=rows.__getitem__):
        above = [column[e.source] for e in into[key] if e.source in column]
        wanted = round(sum(above) / len(above)) if above else 0
        used = taken.setdefault(rows[key], set())
        step = 0
        while wanted + step in used:  # 0, 1, -1, 2, -2 ...
            step = -step if step > 0 else 1 - step
        used.add(wanted + step)
        column[key] = wanted + step
    least = min(column.values(), default=0)
    return {key: ((column[key] - least) * COLUMN, rows[key] * ROW) for key in net.nodes}


def place(net: Net) -> None:
    """Let the nodes stand there."""
    for key, (x, y) in arrange(net).items():
        net.nodes[key].x, net.nodes[key].y = x, y
