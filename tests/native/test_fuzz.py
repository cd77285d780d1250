# SPDX-License-Identifier: Apache-2.0
"""Random graphs, forward and backward, in every mode of the native engine against numpy."""

from __future__ import annotations

import pytest

from tests.native.graphs import NUMPY
from tests.native.kernels import require_library
from tests.native.modes import MODES, check, shrink
from tests.native.random_graphs import random_graph

FEW, MANY, BLOCK = 100, 4000, 20


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
            pytest.fail(f"{found}\n{small}\nwhich gives {check(small, [mode], kind, context)}")


@pytest.mark.parametrize("first", range(0, FEW, BLOCK))
def test_random_graphs_agree_with_numpy_in_every_mode(first: int) -> None:
    require_library()
    check_block(first, list(MODES))


@pytest.mark.parametrize("kind", ["bfloat16", "half"])
@pytest.mark.parametrize("first", range(0, FEW // 2, BLOCK))
def test_random_graphs_in_16_bits_agree_with_numpy_in_every_mode(first: int, kind: str) -> None:
    require_library()
    check_block(first, list(MODES), kind)


@pytest.mark.parametrize("first", range(0, FEW, BLOCK))
def test_modes_of_numpy_agree_with_each_other(first: int) -> None:
    check_block(first, list(MODES), context=NUMPY)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["float", "bfloat16", "half"])
@pytest.mark.parametrize("first", range(FEW, MANY, BLOCK))
def test_many_random_graphs_agree_with_numpy_in_every_mode(first: int, kind: str) -> None:
    require_library()
    check_block(first, list(MODES), kind)
