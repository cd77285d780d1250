# SPDX-License-Identifier: Apache-2.0
"""Where an operation is called, which loops that is in, and when a loop starts another round.

A location is the chain of calls that leads to an operation, each with the instruction it is at: the
call-id stack of Terra (supplement, section A), without rewriting the program. The loops around it
follow from the code alone. So an operation that was seen in one round is known to be in a loop.
"""

from __future__ import annotations

import dis
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CodeType, FrameType
from typing import Any

from nnl.core.arguments.origin import LOCATION, Origin, caller, is_ours, line_of

Call = tuple[CodeType, int]  # a frame: its code, and the offset of the instruction it is at

CACHE, PRECALL = dis.opmap.get("CACHE", 0), dis.opmap.get("PRECALL")
_ALWAYS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
_LEAVES = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop of the program, reached by one chain of calls.

    Attributes:
        code: What it is in.
        header: Offset of its first instruction.
    """

    code: CodeType
    header: int

    def __str__(self) -> str:
        return file_line(((self.code, self.header),))


class Location:
    """A place in the program from which operations are called. Equal ones are the same object.

    Attributes:
        calls: Outermost first; the last one calls the operation.
        loops: Those around it in all of these calls, outermost first. A function gives them when
            they are asked for, as to find them takes long.
        gradient: What stands for the calls of the gradient of one that is made here.
    """

    __slots__ = ("calls", "gradient", "_loops", "_origins")

    def __init__(
        self, calls: tuple[Call, ...], loops: Callable[[], tuple[Loop, ...]] = tuple
    ) -> None:
        self.calls, self.gradient = calls, (self, "gradient")
        self._loops: Any = loops
        self._origins: dict[tuple[str, ...], Origin] = {}

    def origin(self, layer: tuple[str, ...]) -> Origin:
        """What messages say of a call from here in a parameter scope; the same object each time."""
        found = self._origins.get(layer)
        if found is None:
            code, at = self.calls[-1] if self.calls else (None, 0)
            found = self._origins[layer] = layer, code, at
        return found

    @property
    def loops(self) -> tuple[Loop, ...]:
        if callable(self._loops):
            self._loops = self._loops()
        found: tuple[Loop, ...] = self._loops
        return found

    def __str__(self) -> str:
        return file_line(self.calls)


class Locations:
    """All locations that have been met. Code that is compiled again is the same code."""

    def __init__(self) -> None:
        self.outermost = Location(())
        self._codes: dict[tuple[CodeType, str], CodeType] = {}
        self._locations: dict[tuple[Location, int, int], Location] = {}
        self._loops: dict[tuple[Location, int, int], Loop] = {}
        self._now: dict[int, Location] = {}  # by number, see nnl.core.arguments.origin.Location

    def now(self, outermost: FrameType | None) -> Location:
        """The location of the innermost caller outside of this package."""
        number = LOCATION.now(outermost)
        found = self._now.get(number)
        if found is None:
            found = self._now[number] = self.here(caller(), outermost)
        return found

    def below(self, outer: Location, code: CodeType, at: int) -> Location:
        """The location in code that was called from another one."""
        # codes in two files may be equal
        code = self._codes.setdefault((code, code.co_filename), code)
        at = _instruction(code, at)
        known = self._locations.get((outer, id(code), at))
        if known is None:
            known = Location((*outer.calls, (code, at)), partial(self._around, outer, code, at))
            self._locations[outer, id(code), at] = known
        return known

    def _around(self, outer: Location, code: CodeType, at: int) -> tuple[Loop, ...]:
        """The loops around a location."""
        own = [
            self._loops.setdefault((outer, id(code), header), Loop(code, header))
            for header in _headers(code, at)
        ]
        return (*outer.loops, *own)

    def here(self, frame: FrameType | None, outermost: FrameType | None = None) -> Location:
        """The location of a running frame, among the calls below an outermost one.

        Args:
            outermost: The frame that the chain ends before; the whole stack if left out.
        """
        calls: list[Call] = []
        while frame is not None and frame is not outermost:
            calls.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        location = self.outermost
        for code, at in reversed(calls):
            location = self.below(location, code, at)
        return location


def file_line(calls: tuple[Call, ...]) -> str:
    """ "net.py:31": the innermost of some calls that is not in this package, else the last one."""
    users = [call for call in calls if not is_ours(call[0])]
    return line_of(((), *(users or calls)[-1])).strip("()") if calls else ""


def move(a: Location, b: Location) -> tuple[int, bool]:
    """What happens to the loops around a when the program goes on to b.

    A program that does not go forward, in the order of its instructions, within the innermost loop
    around both has started another round of that loop. Two loops around a single operation are so
    taken for one, which changes how traces merge and not what runs.

    Returns:
        How many of them, from the outermost on, go on in the same round; and whether the next one
        starts another round. All others are left, and those around b alone are entered.
    """
    shared = 0
    for x, y in zip(a.loops, b.loops, strict=False):
        if x is not y:
            break
        shared += 1
    if shared and not _forward(a.calls, b.calls):
        return shared - 1, True
    return shared, False


def _forward(a: tuple[Call, ...], b: tuple[Call, ...]) -> bool:
    for (f, i), (g, j) in zip(a, b, strict=False):
        if f is not g:
            return False  # the same instruction calls something else
        if i != j:
            return i < j
    return len(a) < len(b)


def advance(rounds: tuple[int, ...], a: Location | None, b: Location) -> tuple[int, ...]:
    """The loop counters at b, aligned with its loops, after those at a: Terra's loop-id stack."""
    kept, again = (0, False) if a is None else move(a, b)
    next_round = (rounds[kept] + 1,) if again else ()
    return rounds[:kept] + next_round + (0,) * (len(b.loops) - kept - again)


def trips(trace: Iterable[Location]) -> Iterator[tuple[Loop, int]]:
    """(loop, how many rounds it ran) each time that a trace leaves a loop."""
    last: Location | None = None
    rounds: tuple[int, ...] = ()
    for location in trace:
        if last is not None:
            kept, again = move(last, location)
            yield from ((last.loops[i], rounds[i] + 1) for i in range(kept + again, len(rounds)))
        rounds = advance(rounds, last, location)
        last = location
    if last is not None:
        yield from ((loop, n + 1) for loop, n in zip(last.loops, rounds, strict=True))


def _instruction(code: CodeType, at: int) -> int:
    """The offset of the instruction that a frame is at.

    Once an instruction has been specialised, frames say that they are somewhere inside of it. In
    Python 3.11 a call is two instructions, and the first may do it alone.
    """
    starts = _starts(code)
    return starts[bisect_right(starts, at) - 1]


@lru_cache(maxsize=4096)
def _starts(code: CodeType) -> list[int]:
    """Offsets of the instructions of some code, one for each call."""
    starts = []
    before = CACHE
    for at, opcode in enumerate(code.co_code[::2]):
        if opcode != CACHE:
            if before != PRECALL:
                starts.append(2 * at)
            before = opcode
    return starts


def _headers(code: CodeType, at: int) -> list[int]:
    """The headers of the loops around an instruction, outermost first."""
    offsets, loops = _loops_of(code)
    i = offsets.index(at)
    around = [(header, body) for header, body in loops if i in body]
    return [header for header, body in sorted(around, key=lambda loop: -len(loop[1]))]


@lru_cache(maxsize=4096)
def _loops_of(code: CodeType) -> tuple[list[int], list[tuple[int, frozenset[int]]]]:
    """Offsets of the instructions of some code, and (header, numbers of instructions) of its loops.

    The natural loop of a jump back: what reaches the jump without passing the instruction it jumps
    to. Loops with one header are one.
    """
    instructions = list(dis.get_instructions(code))
    offsets = [i.offset for i in instructions]
    number = {offset: n for n, offset in enumerate(offsets)}
    before: list[list[int]] = [[] for _ in instructions]
    back: list[tuple[int, int]] = []
    for n, i in enumerate(instructions):
        if i.opcode in dis.hasjrel or i.opcode in dis.hasjabs:
            target = number[i.argval]
            before[target].append(n)
            if target <= n and "NO_INTERRUPT" not in i.opname:  # that one waits in an await
                back.append((target, n))
        if i.opname not in _ALWAYS and i.opname not in _LEAVES and n + 1 < len(before):
            before[n + 1].append(n)
    for first, stop, handler in _handlers(code):
        before[number[handler]] += [n for n, i in enumerate(offsets) if first <= i < stop]
    loops: dict[int, frozenset[int]] = {}
    for header, jump in back:
        body, waiting = {header}, [jump]
        while waiting:
            fresh = set(waiting) - body
            body |= fresh
            waiting = [m for n in fresh for m in before[n]]
        if 0 not in body:  # else it is reached past its header: code for exceptions that goes back
            loops[header] = loops.get(header, frozenset()) | body
    return offsets, [(offsets[header], body) for header, body in loops.items()]


def _handlers(code: CodeType) -> Iterator[tuple[int, int, int]]:
    """(first offset, offset after the last one, handler) of what may raise an exception.

    Source: Objects/exception_handling_notes.txt of CPython: numbers of six bits a byte, the largest
    first; bit 6 says that another byte follows; start, size and handler count instructions.
    """
    numbers = []
    value = 0
    for byte in code.co_exceptiontable:
        value = value << 6 | byte & 63
        if not byte & 64:
            numbers.append(value)
            value = 0
    for first, size, handler, _ in zip(*[iter(numbers)] * 4, strict=True):
        yield 2 * first, 2 * (first + size), 2 * handler
