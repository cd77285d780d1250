# SPDX-License-Identifier: Apache-2.0
"""Regular expressions in time linear in the text.

ONNX means RE2's syntax, which has no back references. Python's `re` reads it but searches by trial,
so that a pattern such as (a+)+b may never end. Here its parse tree becomes an automaton
whose states are followed all at once.
Source: Thompson, Regular expression search algorithm, CACM 11(6), 1968.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import numpy as np

from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.values.values import check_size

MAX_STATES = 20_000  # of an automaton: counted repeats multiply them
MAX_STEPS = 2 * 10**7  # states times characters
_CLASSES = {
    codes.CATEGORY_DIGIT: re.compile(r"\d"),
    codes.CATEGORY_NOT_DIGIT: re.compile(r"\D"),
    codes.CATEGORY_SPACE: re.compile(r"\s"),
    codes.CATEGORY_NOT_SPACE: re.compile(r"\S"),
    codes.CATEGORY_WORD: re.compile(r"\w"),
    codes.CATEGORY_NOT_WORD: re.compile(r"\W"),
}


class Automaton:
    """What a pattern becomes; state 0 is the end.

    Attributes:
        tests: Of a state: which characters it takes, or None if it takes none.
        places: Of a state that takes none: whether one may pass between two characters, or None.
        following: Of a state: the next ones.
    Raises:
        OnnxError: It is not a pattern, needs a construct that RE2 lacks, or too many states.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern, self.items = pattern, 0
        self.tests: list[Callable[[str], bool] | None] = [None]
        self.places: list[Callable[[str, str], bool] | None] = [None]
        self.following: list[list[int]] = [[]]
        try:
            tree = parser.parse(pattern)
        except (re.error, RecursionError, OverflowError) as e:
            raise OnnxError(f"the pattern {pattern[:100]!r} is none: {e}") from None
        self.start = self._sequence(tree, 0, tree.state.flags)

    def matches(self, text: str) -> bool:
        """Whether the whole text is one that the pattern describes."""
        now = self._reached([self.start], "", text[:1])
        for i, c in enumerate(text):
            taken = [n for s in now if (t := self.tests[s]) and t(c) for n in self.following[s]]
            now = self._reached(taken, c, text[i + 1 : i + 2])
            if not now:
                return False
        return 0 in now

    def found(self, text: str) -> list[tuple[int, int]]:
        """Where the longest matches begin and end, from left to right; none is empty."""
        places, at = [], 0
        while at < len(text):
            now = self._reached([self.start], text[at - 1 : at] if at else "", text[at])
            end = at
            for i in range(at, len(text)):
                c = text[i]
                taken = [n for s in now if (t := self.tests[s]) and t(c) for n in self.following[s]]
                now = self._reached(taken, c, text[i + 1 : i + 2])
                if not now:
                    break
                end = i + 1 if 0 in now else end
            places += [(at, end)] if end > at else []
            at = max(end, at + 1)
        return places

    def _reached(self, states: Iterable[int], before: str, after: str) -> set[int]:
        """The states that one gets to without a further character."""
        found: set[int] = set()
        todo = list(states)
        while todo:
            s = todo.pop()
            if s not in found:
                found.add(s)
                place = self.places[s]
                if self.tests[s] is None and (place is None or place(before, after)):
                    todo += self.following[s]
        return found

    def _state(self, following: list[int], test: Any = None, place: Any = None) -> int:
        if len(self.tests) >= MAX_STATES:
            raise self._too_large()
        self.tests.append(test)
        self.places.append(place)
        self.following.append(following)
        return len(self.tests) - 1

    def _too_large(self) -> OnnxError:
        return OnnxError(f"the pattern {self.pattern[:100]!r} has more than {MAX_STATES} states")

    def _sequence(self, items: Any, end: int, flags: int) -> int:
        for code, argument in reversed(list(items)):
            end = self._item(code, argument, end, flags)
        return end

    def _item(self, code: Any, argument: Any, end: int, flags: int) -> int:
        """The state from which this construct leads to `end`."""
        self.items += 1
        if self.items > 10 * MAX_STATES:
            raise self._too_large()
        if code in (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN):
            return self._state([end], _taking(code, argument, flags))
        if code is codes.BRANCH:
            return self._state([self._sequence(b, end, flags) for b in argument[1]])
        if code is codes.SUBPATTERN:
            _, add, remove, inside = argument
            return self._sequence(inside, end, (flags | add) & ~remove)
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            least, most, inside = argument
            if most is codes.MAXREPEAT:
                loop = self._state([end])
                self.following[loop].append(self._sequence(inside, loop, flags))
                end = loop
            else:
                last = end
                for _ in range(most - least):
                    end = self._state([last, self._sequence(inside, end, flags)])
            for _ in range(least):
                end, last = self._sequence(inside, end, flags), end
                if end == last:  # nothing, however often
                    break
            return end
        if code is codes.AT:
            return self._state([end], place=_place(argument, flags))
        raise OnnxError(f"the pattern {self.pattern[:100]!r} has {code}, which RE2's syntax lacks")


def _taking(code: Any, argument: Any, flags: int) -> Callable[[str], bool]:
    """Whether a character is one of those that the construct takes."""
    if code is codes.ANY:
        return lambda c: bool(flags & re.DOTALL) or c != "\n"
    items = argument if code is codes.IN else [(codes.LITERAL, argument)]
    negated = code is codes.NOT_LITERAL or items[0][0] is codes.NEGATE

    def one(c: str) -> bool:
        for kind, value in items:
            if kind is codes.LITERAL and ord(c) == value:
                return True
            if kind is codes.RANGE and value[0] <= ord(c) <= value[1]:
                return True
            if kind is codes.CATEGORY and _CLASSES[value].match(c):
                return True
        return False

    if flags & re.IGNORECASE:
        return lambda c: any(map(one, _cases(c))) != negated
    return lambda c: one(c) != negated


def _cases(c: str) -> Iterator[str]:
    yield c
    yield from (other for other in (c.lower(), c.upper()) if len(other) == 1)


def _place(kind: Any, flags: int) -> Callable[[str, str], bool]:
    """Whether one may pass between two characters, "" beyond the text."""
    lines = bool(flags & re.MULTILINE)

    def is_word(c: str) -> bool:
        return c != "" and _CLASSES[codes.CATEGORY_WORD].match(c) is not None

    if kind in (codes.AT_BEGINNING, codes.AT_BEGINNING_STRING):
        many = lines and kind is codes.AT_BEGINNING
        return lambda before, after: before == "" or (many and before == "\n")
    if kind in (codes.AT_END, codes.AT_END_STRING):
        many = lines and kind is codes.AT_END
        return lambda before, after: after == "" or (many and after == "\n")
    boundary = kind is codes.AT_BOUNDARY
    return lambda before, after: (is_word(before) != is_word(after)) == boundary


@lru_cache(maxsize=64)
def automaton(pattern: str) -> Automaton:
    """The automaton of a pattern."""
    return Automaton(pattern)


@onnx_import("RegexFullMatch")
def regex_full_match(ctx: Any, node: Any, x: Any) -> Any:
    """Whether each string as a whole matches a pattern."""
    found = _for_texts(node.pattern or "", x)
    flat = [found.matches(s) for s in x.reshape(-1)]
    return np.array(flat, bool).reshape(x.shape)


def _for_texts(pattern: str, x: Any) -> Automaton:
    """The automaton of a pattern, if these strings are not too long for it."""
    if len(pattern) > 10_000:
        raise OnnxError("the pattern has more than 10000 characters")
    found = automaton(pattern)
    if len(found.tests) * sum(map(len, x.reshape(-1))) > MAX_STEPS:
        raise OnnxError(f"the strings are too long for a pattern of {len(found.tests)} states")
    return found


@onnx_import("Tokenizer", domain="com.microsoft")
def tokenizer(ctx: Any, node: Any, x: Any) -> Any:
    """The parts of strings along a new last axis, filled up with a value.

    They are what matches `tokenexp`, or lies between matches of `separators`; characters where that
    is one empty string.
    """
    given = node.attributes
    expression, separators = given.get("tokenexp"), given.get("separators") or ()
    if bool(expression) == bool(separators):
        raise OnnxError("has tokenexp and separators, or neither, wanted one of them")
    patterns = [_for_texts(p, x) for p in ((expression,) if expression else separators) if p]
    least, mark = given.get("mincharnum", 1), given.get("mark", 0)

    def parts(text: str) -> list[str]:
        places = sorted(place for p in patterns for place in p.found(text))
        if expression:
            found = [text[a:b] for a, b in places]
        elif patterns:
            ends = [0, *[e for place in places for e in place], len(text)]
            found = [text[a:b] for a, b in zip(ends[::2], ends[1::2], strict=True)]
        else:
            found = list(text)
        found = [f for f in found if len(f) >= max(least, 1)]
        return ["\x02", *found, "\x03"] if mark else found

    rows = [parts(s) for s in x.reshape(-1)]
    most = max(map(len, rows), default=0)
    check_size([len(rows), most], 8)
    y = np.full((len(rows), most), given.get("pad_value", ""), object)
    for row, found in zip(y, rows, strict=True):
        row[: len(found)] = found
    return y.reshape(*x.shape, most)
