# SPDX-License-Identifier: Apache-2.0
"""Random graphs, forward and backward, in every mode of the native engine against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn
from tests.native.differences import derivative_error
from tests.native.graphs import NUMPY
from tests.native.kernels import require_library
from tests.native.modes import MODES, check, shrink
from tests.native.random_graphs import random_graph

FEW, MANY, BLOCK = 40, 4000, 10
FUNCTIONS = 130  # at least so many take part in the few


def check_block(first: int, modes: list[str], kind: str = "float", context: object = None) -> None:
    """Check some graphs; the first that fails is reported in its smallest form."""
    for seed in range(first, first + BLOCK):
        graph = random_graph(seed)
        if not graph.ends:
            continue
        found = check(graph, modes, kind, context)
        if found:
            mode = found.split(":")[0]
            small = graph if context is not None else shrink(graph, mode, kind)
            again = f"shrink(random_graph({seed}), {mode!r}, {kind!r})"
            pytest.fail(
                f"seed {seed}, {kind}, {found}\n{small}\n"
                f"which gives {check(small, [mode], kind, context)}\nagain: {again}"
            )


@pytest.mark.parametrize("first", range(0, FEW, BLOCK))
def test_random_graphs_agree_with_numpy_in_every_mode(first: int) -> None:
    require_library()
    check_block(first, list(MODES))


@pytest.mark.parametrize("kind", ["bfloat16", "half"])
@pytest.mark.parametrize("first", range(0, FEW // 4, BLOCK))
def test_random_graphs_in_16_bits_agree_with_numpy_in_every_mode(first: int, kind: str) -> None:
    require_library()
    check_block(first, list(MODES), kind)


@pytest.mark.parametrize("first", range(0, FEW // 4, BLOCK))
def test_modes_of_numpy_agree_with_each_other(first: int) -> None:
    check_block(first, list(MODES), context=NUMPY)


def check_derivatives(seeds: range) -> None:
    compared = 0
    for seed in seeds:
        graph = random_graph(seed)
        error = derivative_error(graph)
        compared += error is not None
        assert error is None or error < 1e-4, f"seed {seed}: {error}\n{graph}"
    assert compared > len(seeds) // 10


def test_gradients_of_random_graphs_are_derivatives() -> None:
    check_derivatives(range(3 * FEW))


@pytest.mark.long
def test_gradients_of_many_random_graphs_are_derivatives() -> None:
    check_derivatives(range(MANY))


def test_many_functions_take_part() -> None:
    calls = [c for seed in range(FEW) for c in random_graph(seed).calls]
    assert len({c.name.split(".")[-1] for c in calls}) >= FUNCTIONS


def test_a_graph_prints_as_a_program_that_records_it() -> None:
    for seed in range(30):
        graph = random_graph(seed)
        names: dict[str, Any] = {}
        exec(repr(graph), names)
        want = graph.build(graph.variables())
        got = names["ends"]
        assert [v.spec for v in got] == [want[i].spec for i in graph.ends]
        nn.seed(seed)
        nn.forward_all([want[i] for i in graph.ends])
        nn.seed(seed)
        nn.forward_all(got)
        for v, i in zip(got, graph.ends, strict=True):
            np.testing.assert_array_equal(v.d, want[i].d)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["float", "bfloat16", "half"])
@pytest.mark.parametrize("first", range(FEW, MANY, BLOCK))
def test_many_random_graphs_agree_with_numpy_in_every_mode(first: int, kind: str) -> None:
    require_library()
    check_block(first, list(MODES), kind)
