# SPDX-License-Identifier: Apache-2.0
"""The update of a parameter by several ranks, each of which has the states of one piece of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.ops.describe import Alone
from nnl.core.ops.op import OPS, Cost, Sample, op


def _written(attrs: Any) -> tuple[int, ...]:
    return tuple(attrs.rule.op.written(attrs.rule))


@op("split_step", keep=("arrays",), writes=_written, view=True)
class split_step:
    r"""One step of a solver's rule, of which each rank of a group does an equal piece.

    The elements of w and g, one after the other, are cut into pieces, the last ones shorter; each
    rank gives the rule its own, and gathers those of the others. It must not depend on others'.

    Args:
        arrays: The inputs of the rule; the states have rank 1 and the size of a piece.
        rule: The attributes of the rule.
        comm, group: The communicator, and the name of a group of it.
    Source: Rajbhandari et al., ZeRO, arXiv:1910.02054, section 5.1.
    """

    rule: object
    comm: object
    group: str = "world"

    def infer(self, *arrays):
        return arrays[0]

    def forward(self, xp, *arrays):
        w, g, *rest = arrays
        ranks = self.comm.find_group(self.group)
        n, place = len(ranks), ranks.index(self.comm.rank)
        piece = -(-w.size // n)
        flat = xp.ascontiguousarray(w).reshape(-1)  # w itself, as a rule
        own = slice(min(place * piece, w.size), min((place + 1) * piece, w.size))
        m = own.stop - own.start
        states = [a[:m] if a is not None and a.ndim else a for a in rest]
        mine = flat[own]
        rule: Any = self.rule
        rule.forward(xp, mine, xp.ascontiguousarray(g).reshape(-1)[own], *states)
        even = n * piece == w.size
        if not even:
            mine = xp.concatenate([mine, xp.zeros(piece - m, w.dtype)])
        rows = flat.reshape(n, piece) if even else xp.empty((n, piece), w.dtype)
        self.comm.gather(xp, mine, self.group, rows)
        if not even or flat.base is not w:
            w[...] = rows.reshape(-1)[: w.size].reshape(w.shape)
        return w

    def cost(self, *arrays):
        return Cost(6 * arrays[0].size, sum(2 * a.nbytes for a in arrays if a is not None))

    def samples(rng):
        rule = OPS["momentum_update"].attrs(momentum=0.5)
        w, g, m = (rng.normal(size=(2, 3)) for _ in range(3))
        arrays = w, g, m.reshape(-1), np.array(3), np.array(0.1)
        yield Sample(*arrays, rule=rule, comm=Alone(), grad=(False,) * 5)
