# SPDX-License-Identifier: Apache-2.0
"""How often a path has to come before it gets a plan: where plans hardly save, late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nnl.core.array import NdArray
from nnl.graph.profile import cost_of

if TYPE_CHECKING:
    from nnl.coexec.paths import Call

FIRST = 4  # plans that are made as soon as their paths come again

# Seconds, about. They are not measured, so that a program computes the same bits every time.
PLAN = 1e-4  # to make a plan, for each call of its path
CALL, OPERATION, BYTE = 2e-6, 2e-11, 1e-10  # what a call takes by itself
SHARE = 0.3  # of that, what the plan saves


def runs_before_plan(calls: Sequence[Call], given: Sequence[NdArray]) -> int:
    """How often a path runs call by call: as often as a plan needs to save what it costs.

    A path that has come so often is expected to come as often again. So where paths hardly ever
    do, as in loops whose rounds change, plans cost no more than they could have saved.

    Args:
        given: Arrays of the numbers from -2 down.
    """
    specs: list[Any] = []
    seconds = 0.0
    for c in calls:
        xs = [specs[n] if n >= 0 else given[-2 - n].spec if n < -1 else None for n in c.numbers]
        cost = cost_of(c.attrs, xs, c.bound.out_specs)
        seconds += CALL + max(cost.flops * OPERATION, cost.bytes * BYTE)
        specs += c.bound.out_specs
    return 1 + int(len(calls) * PLAN / (SHARE * seconds))
