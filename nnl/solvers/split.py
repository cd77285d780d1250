# SPDX-License-Identifier: Apache-2.0
"""Updates of parameters by several ranks, each of which has the states of one piece of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import Spec
from nnl.core.interpreters.context import STATE
from nnl.core.interpreters.dispatch import bind, execute
from nnl.core.ops.describe import Alone
from nnl.core.ops.op import OPS, Cost, Sample, op


def _written(attrs: Any) -> tuple[int, ...]:
    return tuple(attrs.rule.op.written(attrs.rule))


def piece(w: Any, comm: Any, group: str) -> tuple[int, slice]:
    """The size of the pieces of an array, and which elements are this rank's."""
    ranks = comm.find_group(group)
    each, place = -(-w.size // len(ranks)), ranks.index(comm.rank)
    return each, slice(min(place * each, w.size), min((place + 1) * each, w.size))


def flat(xp: Any, a: Any) -> Any:
    """All elements one after the other: a view, unless the array lies otherwise."""
    return xp.ascontiguousarray(a).reshape(-1)


@op("split_step", keep=("arrays",), writes=_written, view=True)
class split_step:
    r"""This rank's piece of one step of a solver's rule; gather_pieces brings the others.

    The elements of w and g, one after the other, are cut into pieces, the last ones shorter, and
    the rule gets one of them. It must not depend on others'.

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
        own = piece(w, self.comm, self.group)[1]
        whole = flat(xp, w)
        states = [a[: own.stop - own.start] if a is not None and a.ndim else a for a in rest]
        given = [whole[own], flat(xp, g)[own], *states]
        rule: Any = self.rule
        if xp is np:  # by the kernel of the context
            arrays_of = [None if a is None else NdArray.holding(_spec(a), "host", a) for a in given]
            specs = tuple([None if a is None else a.spec for a in arrays_of])
            execute(bind(rule.op, rule, STATE.target, specs), arrays_of)
        else:
            rule.forward(xp, *given)
        if not xp.shares_memory(whole, w):
            w[...] = whole.reshape(w.shape)
        return w

    def cost(self, *arrays):
        return Cost(6 * arrays[0].size, sum(2 * a.nbytes for a in arrays if a is not None))

    def samples(rng):
        rule = OPS["momentum_update"].attrs(momentum=0.5)
        w, g, m = (rng.normal(size=(2, 3)) for _ in range(3))
        arrays = w, g, m.reshape(-1), np.array(3), np.array(0.1)
        yield Sample(*arrays, rule=rule, comm=Alone(), grad=(False,) * 5)


def _spec(a: Any) -> Spec:
    return Spec.of(a.shape, a.dtype)


def _all(attrs: Any) -> tuple[int, ...]:
    return tuple(range(attrs.count))


@op("gather_pieces", outputs=("*y",), keep=("w",), writes=_all)
class gather_pieces:
    """Give every rank of a group the pieces of arrays that the others have computed, at once.

    Args:
        w: The arrays, cut as by split_step; written.
        count: Their number. comm, group: The communicator, and the name of a group of it.
    """

    count: int
    comm: object
    group: str = "world"

    def infer(self, *w):
        return tuple([a.with_shape((0,)) for a in w])

    def forward(self, xp, *w):
        for dtype in dict.fromkeys([a.dtype for a in w]):
            some = [a for a in w if a.dtype == dtype]
            cuts = [piece(a, self.comm, self.group) for a in some]
            n, total = len(self.comm.find_group(self.group)), sum(each for each, _ in cuts)
            mine, rows = xp.zeros(total, dtype), xp.empty((n, total), dtype)
            at = 0
            for a, (each, own) in zip(some, cuts, strict=True):
                mine[at : at + own.stop - own.start] = flat(xp, a)[own]
                at += each
            self.comm.gather(xp, mine, self.group, rows)
            at = 0
            for a, (each, _) in zip(some, cuts, strict=True):
                a[...] = rows[:, at : at + each].reshape(-1)[: a.size].reshape(a.shape)
                at += each
        return tuple([xp.empty(0, a.dtype) for a in w])

    def cost(self, *w):
        return Cost(0, sum(3 * a.nbytes for a in w))

    def samples(rng):
        arrays = [rng.normal(size=s) for s in ((2, 3), (4,))]
        yield Sample(*arrays, count=2, comm=Alone(), grad=(False, False))
