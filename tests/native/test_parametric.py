# SPDX-License-Identifier: Apache-2.0
"""What C does for parametric functions is what parameter.py and annotations.py of core say."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.parametric_functions as PF
from nnl.core.arguments import annotations
from nnl.core.arguments.annotations import CHECKS, Input, checker
from nnl.core.arrays.spec import ShapeError
from nnl.core.parameters import parameter
from nnl.core.parameters.parameter import LOOKUP, SCOPE
from nnl.core.settings.context import STATE
from tests.native.kernels import require_library


@pytest.fixture(autouse=True)
def _library() -> None:
    lib = require_library()
    assert LOOKUP.in_scope is lib.in_scope and CHECKS.check is lib.usual


def in_python(f: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What f gives where Python does all of it."""
    with monkeypatch.context() as m:
        m.setattr(LOOKUP, "in_scope", parameter.in_scope)
        m.setattr(LOOKUP, "handle", parameter.handle)
        m.setattr(CHECKS, "check", annotations.usual)
        return f()


def said(v: nn.Variable | None) -> Any:
    """All that a handle says."""
    if v is None:
        return None
    e = v.edge
    flags = e.index, e.need_grad, e.persistent, e.recompute, e.name, v.sessions, v.info
    return type(v), id(v.data), id(v.grad), e.node, e.data is v.data, e.spec, flags


NAMES = ["w", "frozen", "sub/w", "sub", "none", "", "again", "bare"]
SHAPES = [None, (2, 3), [2, 3], (3, 2), (2,), (np.int64(2), 3)]
FLAGS = [(a, b) for a in (True, False) for b in (None, True, False)]


@pytest.mark.parametrize("mode", [None, nn.no_grad, nn.recompute])
def test_handles_are_those_of_python(mode: Any) -> None:
    PF.set_parameter("w", nn.Variable((2, 3), need_grad=True))
    PF.set_parameter("frozen", nn.Variable((2, 3)))
    PF.set_parameter("sub/w", nn.Variable((2,), need_grad=True))
    PF.set_parameter("again", nn.Variable((2, 3), need_grad=True) * 2)
    PF.set_parameter("bare", nn.Variable((2, 3), need_grad=True))
    for name in ("w", "frozen", "again"):
        assert PF.get_parameter(name).grad is not None  # type: ignore[union-attr]
    cases = [(n, s, *f) for n in NAMES for s in SHAPES for f in FLAGS]
    with mode() if mode else nn.parameter_scope(""):
        known = [said(LOOKUP.handle(*c)) for c in cases]
        full = [said(parameter.handle(*c)) for c in cases]
        made = [said(LOOKUP.handle(*c)) for c in cases]  # gradients are there by now
    for case, first, wanted, found in zip(cases, known, full, made, strict=True):
        assert first in (None, wanted), case
        if case[0] in ("w", "frozen", "bare") and type(case[1]) is not list:
            assert found == wanted, case
    assert any(found is not None for found in made)


def test_a_parameter_of_another_shape_is_an_error() -> None:
    PF.get_parameter_or_create("w", (2, 3))
    with pytest.raises(ShapeError, match=r"'w' exists with the shape \(2, 3\), wanted \(3, 2\)"):
        PF.get_parameter_or_create("w", (3, 2))


class Odd(OrderedDict):  # type: ignore[type-arg]
    """A scope that is no plain one."""


def where() -> Any:
    """All that a call knows of where it is."""
    return SCOPE.scope, SCOPE.path, STATE.layer, SCOPE.made


def test_calls_are_in_their_scopes(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(*args: Any, **kw: Any) -> Any:
        w = PF.get_parameter_or_create("w", (2,))
        return (id(w.data), *where()), args, kw

    bare: Any = {"a": {"f": {}}}
    odd = Odd(odd=Odd(f=Odd()))

    def found() -> Any:
        seen = []
        for name in (None, "", "a", "a/b", "/a//b/"):
            for scope, own in (("f", 1), ("f/g", 2)):
                seen.append(LOOKUP.in_scope(f, scope, own, name, (1, 2), {"x": 3}))
        with nn.parameter_scope("outer"), nn.parameter_scope("", bare):
            seen.append(LOOKUP.in_scope(f, "f", 1, "a", (), {}))
        with nn.parameter_scope("odd", odd):
            seen.append(LOOKUP.in_scope(f, "f", 1, None, (), {}))
        return [((*here[1:3], *here[3:]), args, kw) for (_, *here), args, kw in seen]

    before = where()
    found()  # makes the parameters
    wanted = in_python(found, monkeypatch)
    assert found() == wanted and where() == before


def test_calls_that_fail_leave_nothing() -> None:
    def make(name: str, then: Any = None) -> Any:
        PF.get_parameter_or_create(name, (2,))
        if then is not None:
            then()

    def fail() -> None:
        raise KeyError("by f")

    LOOKUP.in_scope(make, "f", 1, None, ("first",), {})
    before = where()
    with pytest.raises(KeyError, match="by f"):
        LOOKUP.in_scope(make, "f", 1, None, ("second", fail), {})
    inner = lambda: LOOKUP.in_scope(make, "f", 1, None, ("third",), {})  # noqa: E731
    with pytest.raises(KeyError, match="by f"):  # what a call inside has made goes as well
        LOOKUP.in_scope(lambda: (inner(), fail()), "f", 1, None, (), {})
    assert where() == before and sorted(nn.get_parameters()) == ["f/first"]
    LOOKUP.in_scope(lambda: inner(), "f", 1, None, (), {})
    assert sorted(nn.get_parameters()) == ["f/f/third", "f/first"]


def test_threads_are_in_scopes_of_their_own() -> None:
    for name in ("here", "there"):
        PF.affine(nn.Variable((2, 3)), 4, name=name)
    paths: dict[str, Any] = {}
    begun, done = threading.Event(), threading.Event()

    def there() -> None:
        with nn.parameter_scope("there"):
            begun.set()
            done.wait(10)
            LOOKUP.in_scope(lambda: paths.update(there=SCOPE.path), "affine", 1, None, (), {})

    thread = threading.Thread(target=there)
    thread.start()
    assert begun.wait(10)
    LOOKUP.in_scope(lambda: paths.update(here=SCOPE.path), "affine", 1, "here", (), {})
    done.set()
    thread.join()
    assert paths == {"here": ("here", "affine"), "there": ("there", "affine")}


def kinds(
    x: Input,
    n: int,
    m: int = 1,
    sizes: int | Sequence[int] = 1,
    kernel: Sequence[int] = (),
    pad: Sequence[int] | None = None,
    flag: bool = False,
    name: str | None = None,
    f: Callable[[Any], Any] | None = None,
    lr: float = 1.0,
    other: Any = None,
) -> None:
    """A function whose arguments are checked."""


OPTIONS = ("m", "sizes", "kernel", "pad", "flag", "name", "f", "lr", "other", "unknown")
VALUES = [
    0, 1, 2**63 - 1, 2**63, -(2**63), True, 1.0, 1.5, None, "a", (), (1, 2), (1, True), (1, 2.0),
    [1, 2], (2**63,), np.int64(3), np.bool_(True), np.array([1, 2]), len, {},
]  # fmt: skip


def test_arguments_that_stay_as_they_are_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    check, library = checker(kinds), CHECKS.check
    said: list[bool] = []

    def both(*args: Any) -> bool:
        said.append(library(*args))
        assert said[-1] is annotations.usual(*args), args[:2]
        return False  # so that all is converted

    monkeypatch.setattr(CHECKS, "check", both)
    x = nn.Variable((2,))
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((x, 1), {}), ((x.data, 1), {})]
    for value in VALUES:
        calls += [((value, 1), {}), ((x, value), {}), ((x, 1, value, value), {})]
        calls += [((x, 1), {arg: value}) for arg in OPTIONS]
    calls.append(((x,) * 12, {}))
    for args, kw in calls:
        converted = None
        try:
            converted = check(args, dict(kw))
        except TypeError:
            pass
        if said[-1]:
            assert repr(converted) == repr((args, kw))
    assert 30 < sum(said) < len(said) == len(calls)
