# SPDX-License-Identifier: Apache-2.0
"""What the columns of reports mean, and what can be drawn of them: enough for a page to show any
report without knowing what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# what tells rows apart: text
KEYS = {
    "test": "test of ONNX",
    "backend": "back end",
    "model": "model",
    "optimizer": "optimizer",
    "scheme": "scheme",
    "ranks": "processes",
    "phase": "phase",
    "epoch": "epoch",
    "step": "step",
    "parameter": "parameter",
    "what": "measured",
}
# what was measured: text, unit
VALUES = {
    "operator": ("operator", ""),
    "status": ("result", ""),
    "reason": ("reason", ""),
    "first_s": ("first run", "s"),
    "median_s": ("median time", "s"),
    "low_s": ("median time, lower end", "s"),
    "high_s": ("median time, upper end", "s"),
    "runs": ("runs", ""),
    "bytes": ("moved", "bytes"),
    "flops": ("computed", "flop"),
    "max_error": ("largest error", ""),
    "mean_error": ("mean error", ""),
    "max_ulp": ("largest error", "ulp"),
    "mean_ulp": ("mean error", "ulp"),
    "gradient_error": ("error of the gradient", ""),
    "difference": ("largest difference", "share"),
    "samples": ("samples so far", ""),
    "train_s": ("time of training so far", "s"),
    "test_s": ("time of testing so far", "s"),
    "loss": ("loss", ""),
    "distance": ("distance from the first", ""),
    "accuracy": ("accuracy", "share"),
    "native_s": ("time without the layer", "s"),
    "deep500_s": ("time with the layer", "s"),
    "overhead_us": ("overhead of the layer", "us"),
    "low_us": ("overhead, lower end", "us"),
    "high_us": ("overhead, upper end", "us"),
    "processor_us": ("overhead, of the processor", "us"),
    "overhead": ("overhead", "share"),
    "baseline": ("overhead is over", ""),
    "first": ("first report", ""),
    "second": ("second report", ""),
    "ratio": ("second / first", ""),
}
# value: the columns of its 95 % interval
INTERVALS = {"median_s": ("low_s", "high_s"), "overhead_us": ("low_us", "high_us")}
# what can be drawn: a line or a point per row, or a bar per row, or bars that count rows
_CURVES = [("lines", x, y) for y in ("accuracy", "loss") for x in ("samples", "train_s")]
_PLOTS = {
    "op": [("counts", "backend", "status"), ("points", "flops", "median_s")],
    "network": [("bars", "phase", "median_s")],
    "optimizer": [*_CURVES, ("lines", "step", "distance")],
    "distributed": _CURVES,
    "experiments": _CURVES,
    "overhead": [("lines", "epoch", "native_s"), ("lines", "epoch", "deep500_s")],
}
_NAMES = ("backend", "model", "optimizer", "scheme", "ranks", "parameter")


def columns(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The columns of rows in their order: name, text, unit, whether it tells rows apart, and where
    there is one its interval, the names of two other columns."""
    found = []
    for name in dict.fromkeys(k for row in rows for k in row):
        text, unit = VALUES.get(name, (KEYS.get(name, name), ""))
        column = {"name": name, "text": text, "unit": unit, "key": name in KEYS}
        if name in INTERVALS:
            column["interval"] = list(INTERVALS[name])
        found.append(column)
    return found


def plots(kind: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What can be drawn of a report: form, x, y, and the columns whose values name a line."""
    names = {k for row in rows for k in row}
    return [
        {"form": form, "x": x, "y": y, "by": [n for n in _NAMES if n in names and n != x]}
        for form, x, y in _PLOTS.get(kind, [])
        if {x, y} <= names
    ]
