# SPDX-License-Identifier: Apache-2.0
"""Co-executed random programs compute what they compute without it."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import nnl as nn
from tests.coexec.random_programs import WAYS, compare, outcome, run_long


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Programs read gradients that nothing has written, which is told each time."""
    caplog.set_level(logging.ERROR, "nnl")


def plain(f: Any) -> Any:
    return f


def check(seed: int, context: str, exact: bool) -> None:
    wanted = outcome(seed, 9, plain, context)
    found = outcome(seed, 9, nn.coexecute, context)
    assert len(found) == len(wanted)
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        where = f"program {seed}, value {i}"
        if exact:
            np.testing.assert_array_equal(a, b, where)
        else:  # fused functions round otherwise, and Adam divides by small numbers
            np.testing.assert_allclose(a, b, 1e-2, 1e-2, err_msg=where)


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_random_programs_are_equal_bit_by_bit_with_numpy(first: int) -> None:
    for seed in range(first, first + 20):
        check(seed, "numpy:float", True)


def remembers(f: Any, **how: Any) -> Any:
    return nn.coexecute(f, reproducible=True, **how)


def runs_ahead(f: Any) -> Any:
    return remembers(f, ahead=1)


def speculates(f: Any) -> Any:
    return remembers(f, speculate=True)


def forgets(f: Any) -> Any:
    """Every step is the first one, as after a restart."""
    return lambda k: remembers(f)(k)


@pytest.mark.parametrize(
    "first", [0, *[pytest.param(n, marks=pytest.mark.long) for n in range(20, 1000, 20)]]
)
def test_bits_of_reproducible_steps_do_not_depend_on_the_steps_before(first: int) -> None:
    for seed in range(first, first + 20):
        wraps = forgets, remembers, runs_ahead, speculates
        wanted, *others = [outcome(seed, 9, wrap, "cpu:float") for wrap in wraps]
        for found in others:
            assert len(found) == len(wanted)
            for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
                np.testing.assert_array_equal(a, b, f"program {seed}, value {i}")


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_programs_are_equal_up_to_rounding(first: int) -> None:
    for seed in range(first, first + 20):
        check(seed, "cpu:float", False)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 21000, 1000))
def test_many_random_programs_are_equal_bit_by_bit_with_numpy(first: int) -> None:
    for seed in range(first, first + 1000):
        check(seed, "numpy:float", True)


def test_the_command_compares_programs_and_runs_one_for_long(capsys: Any) -> None:
    found = compare(30, 12, list(WAYS))
    assert found["programs"] == 12 and found["ahead"] > 5 and found["speculated"] > 10
    run_long(300)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" steps")[0] for line in lines[:10]] == [str(30 * i) for i in range(1, 11)]
