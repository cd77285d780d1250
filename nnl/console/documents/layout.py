# SPDX-License-Identifier: Apache-2.0
"""Where nodes stand: rows from top to bottom, each node below those that it reads."""

from __future__ import annotations

from nnl.console.documents.document import Net, in_order
from nnl.graph.printing.layout import placed

ROW, COLUMN = 80.0, 220.0


def arrange(net: Net) -> dict[str, tuple[float, float]]:
    """A place for each node."""
    order, stuck = in_order(net)
    into = net.into()
    above = {key: [e.source for e in into[key]] for key in net.nodes}
    found = placed((*order, *stuck), above)
    return {key: (found[key][0] * COLUMN, found[key][1] * ROW) for key in net.nodes}


def place(net: Net) -> None:
    """Let the nodes stand there."""
    for key, (x, y) in arrange(net).items():
        net.nodes[key].x, net.nodes[key].y = x, y
