# SPDX-License-Identifier: Apache-2.0
"""What all tests share: the passes over a program must leave one that can run."""

import gc
import signal
from collections.abc import Iterator

import pytest

import nnl as nn
from nnl.ext.library import Library
from nnl.graph import passes
from nnl.graph.program.program import Program, verify


def verified(program: Program, lib: Library) -> None:
    """The last pass; tests/graph looks after each of them, which takes a quarter of the time."""
    verify(program)


passes.PASSES.append(verified)
# Nothing dies while tests are collected, and the garbage collector looks at all of them again.
gc.disable()
# A shell lets programs in the background ignore interrupts, and these what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_parameters() -> Iterator[None]:
    """A test finds no parameters, and leaves none."""
    nn.clear_parameters()
    yield
    nn.clear_parameters()


def pytest_collection_finish() -> None:
    """Tests live to the end: the garbage collector need not look at all of them every time."""
    gc.freeze()
    gc.enable()
