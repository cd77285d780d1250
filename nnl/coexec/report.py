# SPDX-License-Identifier: Apache-2.0
"""What became of the steps of a co-executed program, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnl.core.origin import at

if TYPE_CHECKING:
    from nnl.coexec.paths import Call, Place


class Report:
    """Counts of the steps so far; str() of it is a text for people.

    Attributes:
        steps: How many there were.
        traces: How many of them took a path that was new, and ran call by call until it ended.
        fallbacks: What was new in those of them that came after a step without anything new.
        segments: How many pieces ran: a step is cut where something reads or writes a value.
    """

    def __init__(self) -> None:
        self.steps = self.traces = self.segments = 0
        self.fallbacks: list[str] = []
        self._settled = False  # whether a step has had nothing new
        self._new = ""  # what the present step has had that was new

    def saw(self, before: Place, new: Call) -> None:
        """A path has left those that were known."""
        self._new = self._new or cause(before, new)

    def end_step(self) -> None:
        self.steps += 1
        if self._new:
            self.traces += 1
            if self._settled:
                self.fallbacks.append(self._new)
        else:
            self._settled = True
        self._new = ""

    def __str__(self) -> str:
        lines = [
            f"{self.steps} steps in {self.segments} segments, {self.traces} traces, "
            f"{len(self.fallbacks)} fallbacks"
        ]
        return "\n".join([*lines, *[f"  {text}" for text in self.fallbacks]])


def cause(before: Place, new: Call) -> str:
    """Why a call has left the known paths, against what came there before."""
    here = at(new.op.name, new.origin)
    known = [p.calls[0] for p in before.after.values()]
    if not known:
        return f"{here} is called where the paths so far end"
    same = [c for c in known if c.op is new.op]
    if not same:
        return f"{here} is called, was {at(known[-1].op.name, known[-1].origin)}"
    for old in same:
        if old.attrs is not new.attrs:
            for name, now in new.attrs.as_dict().items():
                was = old.attrs.as_dict()[name]
                if was != now:
                    return f"{here}: {name} is {now!r}, was {was!r}"
        if old.bound is not new.bound and old.bound.in_specs != new.bound.in_specs:
            return f"{here}: inputs are {new.bound.in_specs}, were {old.bound.in_specs}"
    differing = [
        i for i, (a, b) in enumerate(zip(same[-1].numbers, new.numbers, strict=False)) if a != b
    ]
    return f"{here}: input {differing[0] if differing else 0} is another value than before"
