# SPDX-License-Identifier: Apache-2.0
"""What a training has written: lines of JSON, read once each, also while they are being written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_LINE = 1 << 20


def lines(path: Path, since: int = 0, offset: int = 0) -> Iterator[tuple[int, int, str]]:
    """(number, where the next one begins, text) of the complete lines of a file.

    Args:
        since: How many lines stand before `offset`.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError:
        return
    with file:
        file.seek(offset)
        while (line := file.readline(MAX_LINE)).endswith(b"\n"):
            since += 1
            offset += len(line)
            yield since, offset, line.decode("utf-8", "replace").rstrip()


def parsed(text: str) -> dict[str, Any] | None:
    """The event of a line; None for one that was cut off by a crash."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


class Follower:
    """Reads on in the file of a trial.

    Attributes:
        line, offset: How far it has read.
        end: The event run_end, once it was there.
    """

    def __init__(self, path: Path, line: int = 0, offset: int = 0) -> None:
        self.path, self.line, self.offset = path, line, offset
        self.end: dict[str, Any] | None = None

    def read(self) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
        """What is new: columns of the trial, and rows of metrics."""
        facts: dict[str, Any] = {}
        metrics: list[tuple[Any, ...]] = []
        for line, offset, text in lines(self.path, self.line, self.offset):
            self.line, self.offset = line, offset
            event = parsed(text)
            if event is not None:
                self._take(event, facts, metrics)
        if facts or metrics:
            facts |= {"line": self.line, "offset": self.offset}
        return facts, metrics

    def _take(
        self, event: dict[str, Any], facts: dict[str, Any], metrics: list[tuple[Any, ...]]
    ) -> None:
        kind = event["event"]
        if kind == "run_begin":
            self.end = None
            facts["max_epoch"] = event.get("max_epoch", 0)
        elif kind == "epoch_end":
            values = {k: v for k, v in (event.get("metrics") or {}).items() if _number(v)}
            epoch, iteration = event.get("epoch", 0), event.get("iteration", 0)
            metrics += [(name, epoch, iteration, value) for name, value in values.items()]
            facts |= {"epoch": epoch, "last": json.dumps(values), "eta_s": event.get("eta_s")}
            if event.get("best") or "best_value" in event:
                name = "valid_error" if "valid_error" in values else next(iter(values), None)
                best = event.get("best_value", values.get(name or ""))
                if name is not None and _number(best):
                    at = event.get("best_epoch", epoch)
                    facts |= {"best_name": name, "best_value": best, "best_epoch": at}
        elif kind == "run_end":
            self.end = event
            facts["eta_s"] = None


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def series(path: Path, names: set[str] | None, since: int, points: int) -> dict[str, Any]:
    """Curves of a trial, thinned so that their highest and lowest points stay.

    Returns:
        {"series": {name: {x, y, epoch}}, "line": how far the file was read}
    """
    found: dict[str, list[tuple[int, float, int]]] = {}
    last = 0
    for line, _, text in lines(path):
        last = line
        if line <= since or ('"step_after"' not in text and '"epoch_end"' not in text):
            continue
        event = parsed(text) or {"event": ""}
        values = event.get("metrics") or {}
        if event["event"] == "step_after":
            values = {"loss": event.get("loss"), "lr": event.get("lr")}
        for name, value in values.items():
            if _number(value) and (names is None or name in names):
                at = (event.get("iteration", 0), value, event.get("epoch", 0))
                found.setdefault(name, []).append(at)
    curves = {}
    for name, values in found.items():
        kept = thinned(values, points)
        x, y, epoch = zip(*kept, strict=True)
        curves[name] = {"x": list(x), "y": list(y), "epoch": list(epoch)}
    return {"series": curves, "line": last}


def thinned(points: list[tuple[int, float, int]], most: int) -> list[tuple[int, float, int]]:
    """At most about so many points: of each stretch the first, the lowest and the highest."""
    if len(points) <= most:
        return points
    size = -(-len(points) * 3 // most)
    found = []
    for i in range(0, len(points), size):
        part = points[i : i + size]
        ends = {part.index(p): p for p in (part[0], min(part, key=_y), max(part, key=_y))}
        found += [ends[k] for k in sorted(ends)]
    if found[-1] != points[-1]:
        found.append(points[-1])
    return found


def _y(point: tuple[int, float, int]) -> float:
    return point[1]
