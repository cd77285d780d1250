# SPDX-License-Identifier: Apache-2.0
"""The path of a step is the one that docs/how_it_works.md lists."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import nnl as nn
import nnl.functions as F
from nnl.ext import native

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 10  # stops of a list

pytestmark = pytest.mark.skipif(native.library() is None, reason="no native engine")


def listed(what: str) -> list[tuple[str, str]]:
    """(file, function) of the list after the paragraph that begins with `what`."""
    text = (ROOT / "docs/how_it_works.md").read_text(encoding="utf-8")
    part = text[text.index(what) :].partition("\n\n")[2].partition("\n\n")[0]
    return re.findall(r"^\d+\. `(\S+)` `(\S+)`", part, re.M)


def walked(call: Callable[[], Any]) -> list[tuple[str, str]]:
    """(file, function) of nnl's lines of Python that a call passes, in order."""
    found: list[tuple[str, str]] = []

    def passed(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT / "nnl"):
            name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
            found.append((path.relative_to(ROOT).as_posix(), name))

    sys.setprofile(passed)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


@pytest.fixture
def x() -> Iterator[nn.Variable]:
    x = nn.Variable((2, 3))
    x.d = 1
    yield x


def has(found: list[tuple[str, str]], stop: tuple[str, str]) -> bool:
    """Whether a walk comes to a stop, from where it is; Python 3.10 knows no qualified names."""
    whole = {stop, (stop[0], stop[1].rpartition(".")[2])}
    while found:
        if found.pop(0) in whole:
            return True
    return False


def check(what: str, call: Callable[[], Any]) -> None:
    stops = listed(what)
    assert 3 < len(stops) <= LONGEST
    call(), call()
    found = walked(call)
    for stop in stops:
        assert has(found, stop), stop


def test_a_forward_of_a_static_graph(x: nn.Variable) -> None:
    check("`loss.forward()` of a static graph", F.relu(x * 2).forward)


def test_a_call_of_a_compiled_function(x: nn.Variable) -> None:
    f = nn.compile(lambda x: F.relu(x * 2))
    check("A call of a function that `nn.compile` has made", lambda: f(x))


def test_define_by_run_passes_no_python(x: nn.Variable) -> None:
    with nn.auto_forward():
        F.relu(x), F.relu(x)
        assert walked(lambda: F.relu(x)) == []
