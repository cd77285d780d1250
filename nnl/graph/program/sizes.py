# SPDX-License-Identifier: Apache-2.0
"""Open sizes of programs: names with ranges, and expressions found from examples.

An expression is a whole number, the name of a dim, (value, axis) for a size of a value of the
program, or (operator, a, b). Nobody writes one: a number is seen at several witness sizes, and the
simplest expression that gives it at all of them is taken.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import combinations, combinations_with_replacement, pairwise, product
from math import gcd, isclose, isfinite, prod
from typing import Any, NamedTuple

import numpy as np

Expression = Any  # int | str | tuple[int, int] | tuple[str, Expression, Expression]
Vector = tuple[int, ...]  # a number at each witness
Known = Sequence[tuple[Vector, Expression]]

WITNESSES = 12  # of a hundred thousand forms none fits so many numbers by chance
LARGEST = 2**31 - 1  # of a size
FAR = 2048  # the largest that is tried where a range allows it
LONG = 1 << 20  # the largest that tells which of several expressions it is
FEWEST = 4  # different numbers that say something about how they are rounded
DIVISORS = range(2, 65)
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "min": min,
    "max": max,
    "/": lambda a, b: a / b,
}


class Dim(NamedTuple):
    """An open size.

    Attributes:
        example: A size that was tried.
        least, greatest: Bounds, both allowed; None: no upper one.
        multiple: Sizes are multiples of it.
    """

    example: int
    least: int = 1
    greatest: int | None = None
    multiple: int = 1

    def check(self, name: str, size: int) -> None:
        """
        Raises:
            ValueError: It is not in the range.
        """
        if size < self.least or size > (self.greatest or LARGEST) or size % self.multiple:
            raise ValueError(f"{name} is {size}, wanted {self.wanted}")

    @property
    def wanted(self) -> str:
        """The range, for messages."""
        upper = "" if self.greatest is None else f" and at most {self.greatest}"
        steps = "" if self.multiple == 1 else f", a multiple of {self.multiple}"
        return f"at least {self.least}{upper}{steps}"


class Size(NamedTuple):
    """In the place of a number of an attribute or a shape: an expression for it."""

    expression: Expression


class Ask(NamedTuple):
    """A form that may be right: what it is at one more size tells.

    Attributes:
        x: What it is computed from, at each witness. size: The value of it that is wanted.
        otherwise: The expression, where that cannot be had.
    """

    x: Vector
    size: int
    otherwise: Expression = None


class Unexplained(ValueError):
    """A number that depends on open sizes in a way that no expression says.

    Attributes:
        ask: Sizes that would tell which of several expressions it is; empty where none fits.
    """

    def __init__(self, text: str = "", ask: Mapping[str, int] | None = None) -> None:
        super().__init__(text)
        self.ask = dict(ask or {})


def evaluate(e: Expression, names: Mapping[str, int], shape: Callable[[int], Sequence[int]]) -> Any:
    """The number that an expression is.

    Args:
        names: Sizes by the names of dims. shape: Gives the shape of a value.
    Raises:
        ValueError: It divides by 0.
    """
    if isinstance(e, (int, float)):
        return e
    if isinstance(e, str):
        return names[e]
    if len(e) == 2:
        return shape(e[0])[e[1]]
    a, b = evaluate(e[1], names, shape), evaluate(e[2], names, shape)
    if e[0] in ("/", "//") and b == 0:
        raise ValueError("a size that something is divided by is 0")
    return OPERATORS[e[0]](a, b)


def shown(e: Expression) -> str:
    """ "(height + 1)//2" """
    if not isinstance(e, tuple):
        return str(e)
    if len(e) == 2:
        return f"%{e[0]}.{e[1]}"
    a, b = (f"({shown(x)})" if isinstance(x, tuple) and len(x) == 3 else shown(x) for x in e[1:])
    if e[0] in ("min", "max"):
        return f"{e[0]}({a}, {b})"
    return f"{a}{e[0]}{b}" if e[0] in ("*", "//", "/") else f"{a} {e[0]} {b}"


# ---- witnesses ----


def witnesses(
    dims: Mapping[str, Dim], scale: int = 1, span: int = 40, count: int = WITNESSES
) -> list[dict[str, int]]:
    """Sizes to record at, in range, of each dim in an order of its own.

    Two thirds are neighbours, which tell how what is divided by up to 8 is rounded; the others lie
    apart, so that 2/3 does not pass for 5/8.

    Args:
        scale: For larger ones.
        span: Between the smallest and the largest, in multiples.
    """
    rng = random.Random(313)
    found: list[dict[str, int]] = [{} for _ in range(count)]
    for name, dim in dims.items():
        m = dim.multiple
        start = max(dim.least, 2)
        start += -start % m
        low = max(start, dim.example // 2 // m * m) * scale
        high = min(max(2 * dim.example * scale, low + span * m), dim.greatest or LARGEST)
        low = max(start, min(low, high // m * m - span * m))
        sizes = list(range(low, high + 1, m))
        if len(sizes) < 2:  # 1 may be a special size, but one size alone tells nothing
            sizes = list(range(dim.least + -dim.least % m, high + 1, m)) or [dim.example]
        begin = rng.randrange(max(len(sizes) - count, 1))
        run = sizes[begin : begin + count * 2 // 3]
        apart = [n for n in (sizes[0], sizes[-1]) if n not in run][: count - len(run)]
        rest = [n for n in sizes if n not in run and n not in apart]
        chosen = [*run, *apart]
        chosen += rng.sample(rest, min(count - len(chosen), len(rest)))
        rng.shuffle(chosen)
        for k in range(count):
            found[k][name] = chosen[k % len(chosen)]
    return found


def wider(dims: Mapping[str, Dim], sizes: Sequence[Mapping[str, int]]) -> Iterator[dict[str, int]]:
    """Sizes that confirm what those of `witnesses` say: one dim large, by turns, then all others.

    What is cut off at some size, or done otherwise from there on, would not show at small ones.
    """
    rng = random.Random(727)
    for large in (*dims, None):
        found = {}
        for name, dim in dims.items():
            seen, m = [s[name] // dim.multiple for s in sizes], dim.multiple
            most = min(dim.greatest or LARGEST, max(FAR, max(seen) * m)) // m
            found[name] = m * (most if name == large else rng.randint(min(seen), max(seen)))
        yield found


# ---- solving ----


class Solver:
    """Finds expressions for numbers, of dims and of the sizes of values.

    Args:
        names: {dim: its sizes at the witnesses}. dims: Their ranges.
    """

    def __init__(self, names: Mapping[str, Vector], dims: Mapping[str, Dim] | None = None) -> None:
        self.dims = dims or {}
        self.known: dict[Vector, Expression] = {}
        for name, vector in names.items():
            self.add(vector, name)
        self.names: Known = list(self.known.items())

    def add(self, vector: Vector, expression: Expression) -> None:
        """A number that is there when what comes next is computed."""
        if len(set(vector)) > 1:
            self.known.setdefault(vector, expression)

    def size(self, v: Vector, own: Known = ()) -> Expression:
        """The expression of a number.

        Args:
            own: Sizes of what the step reads, which explain it best.
        Raises:
            Unexplained: There is none.
        """
        if len(set(v)) == 1:
            return v[0]
        near = list({x: e for x, e in (*own, *self.names)}.items())
        for x, e in (*own, *self.known.items()):
            if x == v:
                return e
        known = list(self.known.items())
        searches = [(f, bases) for bases in (near, known) for f in (_line, _product)]
        if len(set(v)) >= FEWEST:  # of fewer numbers too much is true
            parts = [*near[:12], *_parts(near[:12])]
            searches += [(_line, parts), (_product, parts)]
            searches += [(f, bases) for bases in (near, known) for f in (_floor, _two, _bound)]
            searches.append((_two, parts))
        ask: dict[str, int] = {}
        for form, bases in [*searches, (_rounded, near), (_bounded, near)]:
            for found in form(v, bases):
                if not isinstance(found, Ask):
                    return found
                ask = ask or self._asked(found)
                if not ask and found.otherwise is not None:
                    return found.otherwise
        raise Unexplained("", ask)

    def _asked(self, ask: Ask) -> dict[str, int]:
        """A size of the dim that moves as x does, for x to be what is asked, or near that."""
        x, size = ask.x, ask.size
        first, last = x.index(min(x)), x.index(max(x))
        for names, name in self.names:
            if names[last] == max(names) and isinstance(name, str):
                dim = self.dims.get(name, Dim(1))
                moves = [(names[last] - n, x[last] - m) for n, m in zip(names, x, strict=True)]
                run, rise = (1, 1) if any(n == m > 0 for n, m in moves) else moves[first]
                n = names[last] + (size - x[last]) * run // rise
                n -= n % dim.multiple
                if dim.least <= n <= (dim.greatest or LONG) and n not in names:
                    return {name: n}
        return {}

    def factor(self, v: Sequence[float], own: Known = (), kind: Any = np.float64) -> Expression:
        """The expression of a float: a size, or a number divided by one, or by 1 where that is 0.

        Args:
            kind: The type that the numbers were rounded to.
        Raises:
            Unexplained: It is none.
        """
        if all(isfinite(y) and y == int(y) for y in v):
            with suppress(Unexplained):
                return ("*", 1.0, self.size(tuple([int(y) for y in v]), own))
        near = list({x: e for x, e in (*own, *self.names)}.items())
        tolerance = max(1e-9, 2 * float(np.finfo(kind).eps))
        for bases in (near, list(self.known.items())[:64]):
            for many in (1, 2, 3):
                for some in combinations_with_replacement(bases, many):
                    sizes = [prod(n) for n in zip(*[x for x, _ in some], strict=True)]
                    c = next((n * y for n, y in zip(sizes, v, strict=True) if n), 0)
                    pairs = list(zip(sizes, v, strict=True))
                    if not all(isclose(n * y, c, rel_tol=tolerance) for n, y in pairs if n):
                        continue
                    part = Fraction(c).limit_denominator(2**20)
                    exact = float(part.numerator), part.denominator  # 1/(8n), not (1/8)/n
                    for top, k in (exact, (c, 1)):
                        if all(kind(top / max(k * n, 1)) == y for n, y in pairs):
                            below = _times([e for _, e in some], k)
                            return ("/", top, below if all(sizes) else ("max", below, 1))
        raise Unexplained


def _times(es: Iterable[Expression], c: int = 1) -> Expression:
    found: Expression = None
    for e in es:
        found = e if found is None else ("*", found, e)
    return found if c == 1 else ("*", c, found)


def _plus(e: Expression, c: int) -> Expression:
    return e if c == 0 else ("+", e, c) if c > 0 else ("-", e, -c)


def _line(v: Vector, bases: Known) -> Iterator[Expression]:
    """a * x + c"""
    for x, e in bases:
        i = next(i for i, n in enumerate(x) if n != x[0])
        a, rest = divmod(v[i] - v[0], x[i] - x[0])
        c = v[0] - a * x[0]
        if a and not rest and all(a * n + c == y for n, y in zip(x, v, strict=True)):
            yield _plus(_times([e], a), c)


def _product(v: Vector, bases: Known) -> Iterator[Expression]:
    """c * x * y, c * x * y * z, or a product divided by a size"""
    # factors are among what divides the number at every witness, which few sizes do
    parts = [
        x[0] != 0 and not any(y % n if n else y for n, y in zip(x, v, strict=True))
        for x, _ in bases[:48]
    ]
    for many in (2, 3):
        factors = [b for b, divides in zip(bases[: 96 // many], parts, strict=False) if divides]
        for some in combinations_with_replacement(factors, many):
            sizes = [prod(n) for n in zip(*[x for x, _ in some], strict=True)]
            c, rest = divmod(v[0], sizes[0])
            if c and not rest and all(c * n == y for n, y in zip(sizes, v, strict=True)):
                yield _times([e for _, e in some], c)
    for x, top in bases[:24]:
        for y, bottom in bases[:24]:
            if 0 not in y and all(a // b == n for a, b, n in zip(x, y, v, strict=True)):
                yield ("//", top, bottom)


def _floor(v: Vector, bases: Known) -> Iterator[Expression]:
    """(a * x + c) // d; where sizes leave more than one c, as multiples do, down before up"""
    for x, e in bases:
        low, high = min(x), max(x)
        at_low, at_high = v[x.index(low)], v[x.index(high)]
        for d in DIVISORS:
            for a in range(1, 9):
                if a > 1 and len(set(v)) < 2 * FEWEST:
                    continue
                if gcd(a, d) > 1 or abs(a * (high - low) - d * (at_high - at_low)) > d:
                    continue
                least = max(d * y - a * n for n, y in zip(x, v, strict=True))
                most = min(d * y - a * n + d - 1 for n, y in zip(x, v, strict=True))
                if least <= most:
                    simple = [c for c in (0, d - 1) if least <= c <= most]
                    yield ("//", _plus(_times([e], a), [*simple, least][0]), d)


def _rounded(v: Vector, bases: Known) -> Iterator[Expression | Ask]:
    """k + g * ((x + c) // d), or that plus or minus x, for any d: pads to a multiple, windows."""
    for x, e in bases:
        low, high = min(x), max(x)
        step = gcd(*[n - low for n in x])
        for sign in (0, -1, 1):
            rest = [y - sign * n for n, y in zip(x, v, strict=True)]
            first, last = rest[x.index(low)], rest[x.index(high)]
            g = gcd(*[y - first for y in rest]) * (1 if last >= first else -1)
            w = [(y - first) // g for y in rest] if g else [0]
            most = w[x.index(high)] if g else 0
            if not most or min(w) < 0 or max(w) > most:
                continue
            if most < 2 * FEWEST:
                yield Ask(x, 13 * high // 3)  # no multiple of much
                continue
            steps = range((high - low) // (most + 1) + 1, -(-(high - low) // (most - 1)))
            fits = []
            for d in range(abs(g), abs(g) + 1) if sign else steps[: 1 << 12]:
                least = max(d * k - n for n, k in zip(x, w, strict=True))
                end = min(d * k - n + d - 1 for n, k in zip(x, w, strict=True))
                if least <= end:
                    fits.append((d, least, end))
            if len(fits) > 1:
                yield Ask(x, 10 * high // 3)  # far away they differ
            elif fits:
                d, least, end = fits[0]
                cs = [c for c in range(least + 1, end + 1) if not (low + c) % gcd(step, d)]
                # between neighbours far from the smallest, which may be special
                far = range(high, max(high - d * step, low), -step)
                edge = next(
                    (n for n in far if (n + (cs or [least])[len(cs) // 2]) % d < step), high
                )
                if cs or not {edge, edge - step} <= {*x}:
                    yield Ask(x, edge if cs or edge not in x else edge - step)
                    continue
                c, k = least % d, first + g * (least // d)
                whole = _times([("//", _plus(e, c), d)], abs(g))
                if sign:
                    whole = ("-", whole, e) if sign < 0 else ("+" if g > 0 else "-", e, whole)
                    yield _plus(whole, k)
                else:
                    yield _plus(whole, k) if g > 0 else ("-", k, whole)


def _parts(bases: Known) -> Known:
    """Halves, thirds and so on of sizes, rounded down and up."""
    found: dict[Vector, Expression] = {}
    for d in (2, 3, 4, 8, 16, 32):
        for x, e in bases:
            for c in (0, d - 1):
                part = tuple([(n + c) // d for n in x])
                if len(set(part)) > 1:
                    found.setdefault(part, ("//", _plus(e, c), d))
    return list(found.items())


def _two(v: Vector, bases: Known) -> Iterator[Expression]:
    """x + y + c or x - y + c, and sums of three"""
    for (x, e), (y, f) in combinations(bases[:48], 2):
        for sign, left, right in (("+", e, f), ("-", e, f), ("-", f, e)):
            p, q = (y, x) if left is f and sign == "-" else (x, y)
            both = [a + b if sign == "+" else a - b for a, b in zip(p, q, strict=True)]
            c = v[0] - both[0]
            if all(n + c == w for n, w in zip(both, v, strict=True)):
                yield _plus((sign, left, right), c)
    for some in combinations(bases[:24], 3):
        sizes = [sum(n) for n in zip(*[x for x, _ in some], strict=True)]
        c = v[0] - sizes[0]
        if all(n + c == y for n, y in zip(sizes, v, strict=True)):
            yield _plus(("+", ("+", some[0][1], some[1][1]), some[2][1]), c)


def _bound(v: Vector, bases: Known) -> Iterator[Expression | Ask]:
    """min(x, c), max(x, c), or of c - x; it is asked what comes just behind the bound."""
    for x, e in bases:
        for sign in (1, -1):
            for how, c in (("min", max(v)), ("max", min(v))):
                k = next((y - sign * n for n, y in zip(x, v, strict=True) if y != c), 0)
                line = [sign * n + k for n in x]
                if all(OPERATORS[how](n, c) == y for n, y in zip(line, v, strict=True)):
                    moving = e if sign > 0 else ("-", k, e)
                    found = (how, _plus(e, k) if sign > 0 else moving, c)
                    step = gcd(*[n - x[0] for n in x])
                    ways = 1 if (how == "min") == (sign > 0) else -1  # where it is c
                    edge = sign * (c - k)
                    beyond = {n for n in x if (n - edge) * ways > 0}
                    if any(abs(n - edge) <= step for n in beyond):
                        yield found
                    else:
                        near = edge + ways
                        near += (x[0] - near) % step if ways > 0 else -((near - x[0]) % step)
                        yield Ask(x, near, found if len(beyond) > 1 else None)


def _bounded(v: Vector, bases: Known) -> Iterator[Expression | Ask]:
    """max(w, c) or min(w, c) of a rounded number w; it is asked what is at both sides of c."""
    for (how, c), (x, e) in product((("max", min(v)), ("min", max(v))), bases):
        free = [k for k, y in enumerate(v) if y != c]
        part, own = tuple([v[k] for k in free]), tuple([x[k] for k in free])
        if len({*own}) < 2:
            continue
        forms = (_line, _floor, _rounded) if len({*part}) >= 2 * FEWEST else (_rounded,)
        for found in (f for form in forms for f in form(part, [(own, e)])):
            if isinstance(found, Ask):
                above = [n for n in x if n > max(own)]
                if above and found.size >= min(above):  # it is c there: between others
                    sizes = sorted({*own, min(above)})
                    gap, low = max([(high - low, low) for low, high in pairwise(sizes)])
                    found = found._replace(size=low + gap // 2)
                yield found._replace(x=x)
                continue
            whole = (how, found, c)
            values = {n: _at(whole, e, n) for n in x}
            if any(values[n] != y for n, y in zip(x, v, strict=True)):
                continue
            there, beyond = [n for n in x if values[n] == c], [n for n in x if values[n] != c]
            a, b = max(there), min(beyond)
            if a > b:
                a, b = min(there), max(beyond)
            step = gcd(*[n - a for n in x])
            while abs(b - a) > step:
                middle = a + (b - a) // step // 2 * step
                a, b = (middle, b) if _at(whole, e, middle) == c else (a, middle)
            unseen = [n for n in (a, b) if n not in values]
            yield Ask(x, unseen[0], whole) if unseen else whole


def _at(e: Expression, base: Expression, n: int) -> int:
    """The number that an expression of one size is."""
    if e == base:
        return n
    found = OPERATORS[e[0]](*[_at(x, base, n) for x in e[1:]]) if isinstance(e, tuple) else e
    return int(found)
