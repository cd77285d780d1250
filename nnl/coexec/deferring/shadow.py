# SPDX-License-Identifier: Apache-2.0
"""Shadow mode: a path runs as its plan and call by call, and the results are compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nnl.coexec.plans.calls import NONE, Call, Values, run_now
from nnl.coexec.plans.paths import PathNode, Paths
from nnl.core.arguments.origin import at
from nnl.core.arrays.array import NdArray
from nnl.core.settings.context import SPACES
from nnl.graph.program.program import SPACE


def run_both(
    paths: Paths,
    end: PathNode,
    path: Sequence[PathNode],
    given: Sequence[NdArray],
    wanted: set[int],
    values: Values,
) -> str:
    """Do what `paths.run` does; the first call with another result than by itself, or "".

    The calls run by themselves first, on copies of the arrays that they write.
    """
    calls = [c for p in path for c in p.calls]
    written = {n for c in calls for n in c.written if n < NONE}
    copies = [_copy(nd) if -2 - i in written else nd for i, nd in enumerate(given)]
    reference: Values = {}
    run_now(calls, copies, wanted, reference)
    paths.run(end, path, given, wanted, values)
    for call, what, number in _results(calls, wanted):
        if number < 0:
            wanted_, found = copies[-2 - number].read(SPACE), given[-2 - number].read(SPACE)
        else:
            wanted_ = reference[number][1]
            space, buf = values[number]
            found = SPACES[space].to_host(buf)
        exact = not any([b.fused for c in calls for b in c.target.backends])
        largest = _difference(found, wanted_, exact)
        if largest:
            label = at(call.op.name, call.origin)
            return f"{label}: {what} differs by {largest} of its largest value"
    return ""


def _copy(nd: NdArray) -> NdArray:
    return NdArray.holding(nd.spec, SPACE, nd.read(SPACE).copy())


def _results(calls: Sequence[Call], wanted: set[int]) -> Iterator[tuple[Call, str, int]]:
    """What calls leave to be seen: (call, name, number of the array)."""
    count = 0
    for call in calls:
        outs = len(call.bound.out_specs)
        for i in range(outs):
            if count + i in wanted:
                yield call, f"output {i}", count + i
        for i in call.bound.writes:
            if call.numbers[i] < NONE:
                yield call, f"input {i}, which it writes,", call.numbers[i]
        count += outs


def _difference(found: Any, wanted: Any, exact: bool) -> str:
    """How far arrays are apart, where that is more than rounding explains; "" otherwise."""
    if exact or wanted.dtype.kind in "biu":
        if np.array_equal(found, wanted, equal_nan=wanted.dtype.kind == "f"):
            return ""
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    if (np.isfinite(a) != np.isfinite(b)).any():
        return "inf"
    finite = np.isfinite(b)
    scale = max(float(np.abs(b[finite]).max(initial=0.0)), 1e-30)
    apart = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    resolution = 0.0 if exact else 2.0**-12 if wanted.dtype.itemsize > 2 else 2.0**-4
    rounding = 0.0 if exact else resolution * 2.0**-8  # of sums that are almost 0
    return f"{apart / scale:.2g}" if apart > resolution * scale + rounding else ""
