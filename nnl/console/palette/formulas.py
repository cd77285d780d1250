# SPDX-License-Identifier: Apache-2.0
"""The formulas of docstrings as plain text, for the places of a page that show nothing else."""

from __future__ import annotations

import re

_SYMBOLS = dict(
    part.split(":")
    for part in """alpha:α beta:β gamma:γ delta:δ epsilon:ε theta:θ lambda:λ mu:μ pi:π sigma:σ phi:φ
    Phi:Φ sum:Σ prod:Π int:∫ infty:∞ le:≤ ge:≥ ne:≠ in:∈ sim:~ propto:∝ pm:± cdot:· times:×
    ldots:… wedge:∧ vee:∨ lfloor:⌊ rfloor:⌋ lceil:⌈ rceil:⌉ |:‖ {:{ }:}""".split()
) | {"left": "", "right": "", "!": "", "mathrm": "", "bmod": "mod"}
_HIGH = dict(zip("0123456789+-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", strict=True))
_LOW = dict(zip("0123456789+-", "₀₁₂₃₄₅₆₇₈₉₊₋", strict=True))
_TOKEN = re.compile(r"\\([A-Za-z]+|.)|(.)", re.S)


def plain(text: str) -> str:
    """A text with its formulas, $...$, and its code, `...`, as Unicode characters.

    >>> plain(r"the mean: $y = \\frac{1}{n} \\sum_i x_i^2$")
    'the mean: y = 1 / n Σ_i x_i²'
    """
    parts = text.replace("`", "").split("$")
    parts[1::2] = [_formula(part) for part in parts[1::2]]
    return "".join(parts)


def _formula(source: str) -> str:
    tokens = [(m[1], m[2]) for m in _TOKEN.finditer(source)]
    found = re.sub(r" +", " ", _sequence(tokens)).strip()
    return re.sub(r"(?<=\[) | (?=\])", "", found)


def _sequence(tokens: list[tuple[str | None, str | None]]) -> str:
    """What stands before the end of a group; takes it from the list."""
    found = ""
    while tokens:
        command, character = tokens.pop(0)
        if character == "}":
            break
        if character == "{":
            found += _sequence(tokens)
        elif character in ("_", "^"):
            found += _raised(character, _argument(tokens))
        elif character is not None:
            found += character
        elif command == "frac":
            found += f"{_whole(_argument(tokens))} / {_whole(_argument(tokens))}"
        elif command == "sqrt":
            found += f"√{_whole(_argument(tokens))}"
        elif command is not None and (command in _SYMBOLS or not command.isalpha()):
            found += _SYMBOLS.get(command, " ")  # the others are spaces
        else:  # a function, as in \log\max
            spaced = bool(tokens) and tokens[0][0] is not None
            found += f"{command} " if spaced else f"{command}"
    return found


def _argument(tokens: list[tuple[str | None, str | None]]) -> str:
    """The group that comes next, or the single token."""
    while tokens and tokens[0][1] == " ":
        tokens.pop(0)
    if tokens and tokens[0][1] == "{":
        tokens.pop(0)
        return _sequence(tokens)
    first = tokens[:1]
    del tokens[:1]
    return _sequence(first)


def _raised(mark: str, inner: str) -> str:
    small = _HIGH if mark == "^" else _LOW
    if inner and all(c in small for c in inner):
        return "".join(small[c] for c in inner)
    return f"{mark}{_whole(inner)}"


def _whole(inner: str) -> str:
    """In brackets, where it is more than a word."""
    return inner if re.fullmatch(r"\w+|…|\(.*\)", inner) else f"({inner})"
