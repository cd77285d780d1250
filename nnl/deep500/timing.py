# SPDX-License-Identifier: Apache-2.0
"""How long calls take, and how much longer one takes than another."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

Call = Callable[[], Any]


def clocked(call: Call) -> tuple[float, float]:
    """Seconds of one call, and of the processor in this thread."""
    start, busy = time.perf_counter(), time.thread_time()
    call()
    used = time.thread_time() - busy
    return time.perf_counter() - start, used


def first(call: Call) -> tuple[float, Any]:
    """Seconds of one call, and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def summary(seconds: Sequence[float]) -> dict[str, Any]:
    """Median and its 95 % interval by order statistics, which supposes no distribution."""
    ordered = sorted(seconds)
    n = len(ordered)
    reach = 0.98 * math.sqrt(n)  # 1.96 / 2 standard deviations of a binomial with p = 1/2
    low = max(0, math.floor(n / 2 - reach))
    high = min(n - 1, math.ceil(n / 2 + reach) - 1)
    middle = statistics.median(ordered)
    return {"median_s": middle, "low_s": ordered[low], "high_s": ordered[high], "runs": n}


Pair = tuple[tuple[float, float], tuple[float, float]]  # a plain program and what is judged


def paired(plain: Call, judged: Call, plain_first: bool) -> Pair:
    """Clock two calls one after the other, the plain one first or second."""
    if plain_first:
        return clocked(plain), clocked(judged)
    took = clocked(judged)
    return clocked(plain), took


def overhead(pairs: Sequence[Pair]) -> dict[str, Any]:
    """What the second call of pairs costs more: the median of the differences with its 95 %
    interval, also as a share of the plain call, and that of the processor in this thread, to which
    what else the machine does adds nothing."""
    wall = summary([judged[0] - plain[0] for plain, judged in pairs])
    busy = summary([judged[1] - plain[1] for plain, judged in pairs])
    return {
        "overhead_us": wall["median_s"] * 1e6,
        "low_us": wall["low_s"] * 1e6,
        "high_us": wall["high_s"] * 1e6,
        "processor_us": busy["median_s"] * 1e6,
        "overhead": wall["median_s"] / summary([plain[0] for plain, _ in pairs])["median_s"],
    }


def beside(plain: Call, judged: Call, runs: int) -> dict[str, Any]:
    """Median seconds of the second call with its 95 % interval, and its overhead over the first;
    they run in turns."""
    pairs = [paired(plain, judged, bool(i % 2)) for i in range(max(runs, 1))]
    return {**summary([took for _, (took, _) in pairs]), **overhead(pairs)}
