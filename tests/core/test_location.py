# SPDX-License-Identifier: Apache-2.0
"""Where a program is, as a number: in Python, and by the native engine where it is there."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nnl.core.arguments.origin import LOCATION, PASSED, _location, starts
from nnl.ext import native

WAYS = {"python": _location}
if native.library() is not None:
    WAYS["native"] = LOCATION.now

Now = Callable[..., int]


@pytest.fixture(params=WAYS.values(), ids=WAYS)
def now(request: pytest.FixtureRequest) -> Now:
    return request.param  # type: ignore[no-any-return]


def test_one_place_has_one_number_and_two_have_two(now: Now) -> None:
    def here() -> int:
        return now()

    loop = [here() for _ in range(5)]
    while len(loop) < 8:
        loop.append(loop[0] if len(loop) < 5 else here())
    assert len(set(loop[:5])) == 1 and len(set(loop[5:])) == 1 and loop[0] != loop[5]
    one, other = here(), here()  # two calls in one line
    assert one != other
    assert now() != one and 0 <= one < 2**64


def test_what_calls_counts_and_not_only_where_the_call_is(now: Now) -> None:
    def inner() -> int:
        return now()

    def outer() -> int:
        return inner()

    by_two_ways = [outer(), outer()]
    assert by_two_ways[0] != by_two_ways[1]


def test_lambdas_decorators_and_generators_are_code_like_any_other(now: Now) -> None:
    def decorated(f: Callable[[], int]) -> Callable[[], int]:
        @functools.wraps(f)
        def wrapper() -> int:
            return f()

        return wrapper

    @decorated
    def first() -> int:
        return now()

    @decorated
    def second() -> int:
        return now()

    assert len({f() for f in (first, second)}) == 2
    assert len({f() for f in (lambda: now(), lambda: now())}) == 2
    assert len({f() for f in [lambda: now() for _ in range(3)]}) == 1  # one code, three functions

    def places() -> Iterator[int]:
        yield now()
        for _ in range(3):
            yield now()

    found = [*places()]
    assert found[1] == found[2] == found[3] != found[0]
    by_builtin = sorted([0, 1], key=lambda _: now())  # through a function in C
    assert by_builtin == [0, 1]


def test_recursion_differs_by_depth(now: Now) -> None:
    def down(n: int) -> list[int]:
        found = [now()]
        return found + down(n - 1) if n else found

    def twice(n: int) -> list[list[int]]:
        return [down(n) for _ in range(2)]

    one, other = twice(5)
    assert one == other and len(set(one)) == 6


def test_frames_beyond_the_stop_and_those_passed_through_do_not_count(now: Now) -> None:
    def inner(stop: Any) -> int:
        return now(stop)

    def layer(stop: Any) -> int:
        return inner(stop)

    def through(stop: Any) -> int:
        return inner(stop)

    def step() -> list[int]:
        frame = sys._getframe()
        return [f(frame) for f in (layer, through, inner)]

    PASSED.add(through.__code__)
    try:
        found = step()
    finally:
        PASSED.remove(through.__code__)
    assert step() == found  # which code is passed through is asked once
    assert found[1] == found[2] != found[0]
    with pytest.raises(TypeError, match="location: stop is int, wanted a frame or None"):
        WAYS.get("native", wrong_stop)(3)


def wrong_stop(stop: object) -> None:
    raise TypeError("location: stop is int, wanted a frame or None")


def test_exceptions_leave_nothing_behind(now: Now) -> None:
    def fails(n: int) -> int:
        if n:
            return fails(n - 1)
        now()
        raise ValueError

    def here() -> int:
        return now()

    found = []
    for i in range(3):
        if i == 1:
            with pytest.raises(ValueError):
                fails(10)
        found.append(here())
    assert len(set(found)) == 1
    frame = sys._getframe()
    before = sys.getrefcount(frame), sys.getrefcount(frame.f_code)
    for _ in range(1000):
        now(), now(frame), now(None)
    assert (sys.getrefcount(frame), sys.getrefcount(frame.f_code)) == before


def test_specialised_instructions_stay_where_they_were(now: Now) -> None:
    """Python replaces instructions that run often; each of these calls has several forms."""

    class Layer:
        def __getitem__(self, i: int) -> int:
            return now()

        @property
        def place(self) -> int:
            return now()

        def __call__(self, x: int) -> int:
            return now()

        def method(self, x: int = 3) -> int:
            return now()

    def places() -> Iterator[int]:
        while True:
            yield now()

    def anything(*args: int, **kw: int) -> int:
        return now()

    def calls(layer: Layer, generator: Iterator[int]) -> list[int]:
        return [
            layer[0], layer.place, layer(1), layer.method(), next(generator), anything(*[1], k=2),
            max([0], key=lambda x: layer(x)), next(x for x in generator),
        ]  # fmt: skip

    layer, generator = Layer(), places()
    found = [calls(layer, generator) for _ in range(100)]
    assert all(f[:6] == found[0][:6] for f in found) and len(set(found[0])) == 8


def test_the_first_instructions_of_a_call_in_the_source_stand_for_all() -> None:
    code = compile("f(x)(y)\nz", "", "exec")
    found = starts(code)
    assert len(found) * 2 == len(code.co_code) and found[0] == 0
    places = [*code.co_positions()]
    assert all(places[i] == places[start] for i, start in enumerate(found))
    assert len(set(found)) == len([i for i, p in enumerate(places) if i == 0 or p != places[i - 1]])
