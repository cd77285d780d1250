# SPDX-License-Identifier: Apache-2.0
"""How often a path or a block has to come before it gets a plan: where plans hardly save, late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

from nnl.core.graph.dispatch import Bound
from nnl.graph.printing.profile import cost_of

Work = tuple[Any, Bound]

# Seconds, about. They are not measured, so that a program computes the same bits every time.
PLAN = 1e-4  # to make a plan, for each call of its path
CALL, OPERATION, BYTE = 2e-6, 2e-11, 1e-10  # what a call takes by itself
SHARE = 0.3  # of that, what the plan saves
BEYOND = 0.02  # of that, what the plan of a path saves where blocks have plans


def runs_before_plan(work: Sequence[Work], shares: Iterable[float] = repeat(SHARE)) -> int:
    """How often calls run one by one: as often as a plan needs to save what it costs.

    What has come so often is expected to come as often again. So where paths hardly ever do, as in
    loops whose rounds change, plans cost no more than they could have saved.

    Args:
        work: (attributes, what is bound) of each call.
        shares: Of each call, what the plan saves of its time.
    """
    saved = sum([share * seconds(*call) for call, share in zip(work, shares, strict=False)])
    return 1 + int(len(work) * PLAN / saved)


def seconds(attrs: Any, bound: Bound) -> float:
    """What a call takes by itself, about."""
    if bound.seconds is None:
        cost = cost_of(attrs, bound.in_specs, bound.out_specs)
        bound.seconds = CALL + max(cost.flops * OPERATION, cost.bytes * BYTE)
    return bound.seconds
