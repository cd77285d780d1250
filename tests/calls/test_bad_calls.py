# SPDX-License-Identifier: Apache-2.0
"""Wrong calls of everything public end in a clear error: no crash, no hang, no endless memory."""

from __future__ import annotations

import numpy as np
import pytest

import nnl as nn
from tests.calls.bad_calls import findings
from tests.calls.clear_text import unclear
from tests.calls.good_calls import Maker, makers

FEW, MANY, BLOCK = 1200, 30000, 400


def check(first: int, last: int) -> None:
    found = list(findings(first, last))
    _, errors = found.pop()
    assert int(errors) > (last - first) // 3, "most calls are wrong"
    if found:
        lines = "\n".join(f"{seed}: {text}" for seed, text in found)
        pytest.fail(f"{lines}\nagain: python -m tests.calls.bad_calls SEED SEED+1")


@pytest.mark.parametrize("first", range(0, FEW, BLOCK))
def test_wrong_calls_end_in_a_clear_error(first: int) -> None:
    pytest.importorskip("torch")
    check(first, first + BLOCK)


@pytest.mark.long
@pytest.mark.parametrize("first", range(FEW, MANY, BLOCK))
def test_many_wrong_calls_end_in_a_clear_error(first: int) -> None:
    pytest.importorskip("torch")
    check(first, first + BLOCK)


@pytest.mark.parametrize("name,make", makers().items())
def test_the_calls_that_are_spoilt_work_as_they_are(name: str, make: Maker) -> None:
    with nn.auto_forward(), np.errstate(all="ignore"):
        for seed in range(3):
            call = make(np.random.default_rng(seed))
            call.function(*call.args, **call.kw)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (TypeError("f: n is 'a', wanted an int"), ""),
        (ValueError("f: got 'a', wanted a number"), ""),
        (TypeError("f() got an unexpected keyword argument 'm'"), ""),
        (MemoryError(), ""),
        (TypeError("unsupported operand type(s) for *: 'int' and 'str'"), "says 'unsupported"),
        (AttributeError("f: n is 'a'"), "raises AttributeError"),
        (RuntimeError("std::bad_cast"), "raises RuntimeError"),
        (ValueError("f: n: vector::_M_default_append"), "says 'vector::'"),
        (ValueError("g: n is 'a'"), "does not name the function, f"),
        (ValueError("f: wrong"), "names neither an argument nor what came"),
        (ValueError(""), "no text"),
        (ValueError("f: n " + "a" * 600), "605 characters"),
        (TypeError("inner() takes 2 positional arguments but 3 were given"), "speaks of inner"),
    ],
)
def test_the_rule_for_texts(error: Exception, why: str) -> None:
    assert unclear(error, ["f"], ["n"], ["a"]).startswith(why)
    assert bool(unclear(error, ["f"], ["n"], ["a"])) == bool(why)
