# SPDX-License-Identifier: Apache-2.0
"""Why a step has left what was traced, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nnl.coexec.tracing.dag import Attributes, Earlier, Node, Operands, Source
from nnl.coexec.tracing.loops import Location, file_line, move

if TYPE_CHECKING:
    from nnl.coexec.tracing.trace_graph import TraceGraph


@dataclass(frozen=True)
class Cause:
    """Why a call was not found.

    Attributes:
        kind: "attribute", "op", "call site", "order", "rounds", "operand" or "end".
        where: File and line of the call, or of the last one.
        text: The cause in words, with these.
    """

    kind: str
    where: str
    text: str


def cause_of_call(
    graph: TraceGraph,
    at: Node,
    op: str,
    attrs: Attributes,
    location: Location,
    operands: Operands,
) -> Cause:
    """Why a call after that of node `at` is none that was traced."""
    where = str(location)
    node = graph.follow(at, op, attrs, location)
    if node is not None:
        return Cause("operand", where, _operand(node, operands))
    for node in at.next.get(location, ()):
        if node.op == op:
            return Cause("attribute", where, _attribute(node, attrs))
    for node in at.next.get(location, ()):
        return Cause("op", where, f"{op} is called at {where}, was {node.op}")
    known = {n.location for n in graph.body.calls() if n.location is not None}
    if location not in known:
        return Cause("call site", where, _call_site(op, location, known))
    kept, again = (0, False) if at.location is None else move(at.location, location)
    if again and graph.folded is not None and location.loops[kept] not in graph.folded:
        loop, n = location.loops[kept], at.rounds[kept] + 1
        return Cause("rounds", where, f"the loop at {loop} goes on after {n} rounds")
    return Cause("order", where, f"{op} at {where} follows {at!r} for the first time")


def cause_of_end(at: Node) -> Cause:
    """Why a step may not end after node `at`."""
    expected = next((f", {n!r} came next" for nodes in at.next.values() for n in nodes), "")
    where = "" if at.location is None else str(at.location)
    return Cause("end", where, f"the step ended earlier, after {at!r}{expected}")


def _attribute(node: Node, attrs: Attributes) -> str:
    old, new = node.attrs.as_dict(), attrs.as_dict()
    names = list(old)
    changed = [names[i] for i in node.differs(attrs) if i < len(names) and names[i] in new]
    told = [f"attribute {k} of {node.op} is {new[k]!r}, was {old[k]!r}" for k in changed]
    return f"{', '.join(told) or f'attributes of {node.op} are others'}, at {node.location}"


def _operand(node: Node, operands: Operands) -> str:
    same_number = [v for v in node.variants if len(v) == len(operands)]
    if not same_number:
        was = len(next(iter(node.variants)))
        return f"{node!r} has {len(operands)} operands, had {was}"

    def differing(variant: Operands) -> list[int]:
        return [i for i, (a, b) in enumerate(zip(variant, operands, strict=True)) if a != b]

    nearest = min(same_number, key=lambda v: len(differing(v)))
    i = differing(nearest)[0]
    return (
        f"operand {i} of {node.op} comes from {_source(operands[i])}, "
        f"came from {_source(nearest[i])}, at {node.location}"
    )


def _source(source: Source) -> str:
    node, k = source
    if node is not None:
        return f"{f'output {k} of ' if k else ''}{node!r}"
    if isinstance(k, Earlier):
        return f"an earlier round of {k.node!r}"
    return f"outside the step ({k})"


def _call_site(op: str, location: Location, known: set[Location]) -> str:
    """The innermost call that makes the location a new one."""
    shared = 0
    for other in known:
        n = 0
        for a, b in zip(reversed(location.calls), reversed(other.calls), strict=False):
            if a != b:
                break
            n += 1
        shared = max(shared, n)
    if shared in (0, len(location.calls)):
        return f"new call of {op} at {location}"
    site, where = file_line(location.calls[: len(location.calls) - shared]), str(location)
    return f"new call site {site} of {op}{'' if site == where else f' ({where})'}"
