# SPDX-License-Identifier: Apache-2.0
"""Patterns of RegexFullMatch: what Python's re says, in time that does not explode."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

pytest.importorskip("onnx")

from nnl.converters.onnx.file.errors import OnnxError  # noqa: E402
from nnl.converters.onnx.importing.learning.regex import Automaton  # noqa: E402


def random_pattern(rng: np.random.Generator, depth: int = 3) -> str:
    kind = int(rng.integers(0, 8 if depth else 3))
    if kind == 0:
        return str(rng.choice(list("abc1 ")))
    if kind == 1:
        return str(
            rng.choice([".", r"\d", r"\w", r"\s", r"\W", r"\b", "^", "$", "[^ab]", "[a-c1]"])
        )
    if kind == 2:
        return "[ab]"
    if kind in (3, 4):
        return "".join(random_pattern(rng, depth - 1) for _ in range(int(rng.integers(0, 4))))
    if kind == 5:
        return f"({random_pattern(rng, depth - 1)}|{random_pattern(rng, depth - 1)})"
    sign = str(rng.choice(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "{1,2}?"]))
    return f"(?:{random_pattern(rng, depth - 1)}){sign}"


def test_patterns_match_what_re_matches() -> None:
    rng = np.random.default_rng(0)
    matched = 0
    for _ in range(1500):
        pattern = random_pattern(rng)
        flags = str(rng.choice(["", "(?i)", "(?s)", "(?m)"]))
        for _ in range(4):
            text = "".join(rng.choice(list("abcAB1 \n"), int(rng.integers(0, 6))))
            if text.endswith("\n"):
                continue  # Python's $ matches before it, RE2's does not
            want = re.fullmatch(flags + pattern, text) is not None
            assert Automaton(flags + pattern).matches(text) == want, (flags, pattern, text)
            matched += want
    assert matched > 500


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "a*a*a*a*a*a*a*a*b", "(a?){25}b"]
)
def test_patterns_do_not_search_forever(pattern: str) -> None:
    start = time.monotonic()
    assert not Automaton(pattern).matches("a" * 2000)
    assert Automaton(pattern).matches("a" * 25 + "b")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"(a)\1", "GROUPREF, which RE2's syntax lacks"),
        ("a(?=b)", "ASSERT, which RE2's syntax lacks"),
        ("(", r"the pattern '\(' is none: missing \)"),
        ("a{100}" * 300, "more than 20000 states"),
        ("((a{200}){200}){200}", "more than 20000 states"),
        ("(" + "()" * 100 + "a){20000}", "more than 20000 states"),
        ("(" * 4000 + ")" * 4000, "is none: maximum recursion"),
    ],
)
def test_patterns_that_are_none(pattern: str, message: str) -> None:
    with pytest.raises(OnnxError, match=message):
        Automaton(pattern)


def test_nothing_may_be_repeated_very_often() -> None:
    assert Automaton("(){4000000000}").matches("")
