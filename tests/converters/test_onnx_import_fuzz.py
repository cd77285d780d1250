# SPDX-License-Identifier: Apache-2.0
"""Damaged files end in an OnnxError or run; they never crash, hang or raise anything else."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest

import nnl as nn

pytest.importorskip("onnx")

from nnl.converters.onnx import load, report  # noqa: E402
from nnl.converters.onnx.errors import OnnxError  # noqa: E402

LONGEST = 20.0  # seconds for one file, on a machine with other work


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """The bytes with a few of them flipped, removed, repeated or replaced."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(0, len(out)))
        kind = rng.integers(0, 5)
        if kind == 0:
            out[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1:
            out[at] = int(rng.choice([0, 1, 127, 128, 255]))
        elif kind == 2:
            del out[at : at + int(rng.integers(1, 9))]
        elif kind == 3:
            out[at:at] = out[at : at + int(rng.integers(1, 17))]
        else:
            del out[at:]
        if not out:
            break
    return bytes(out)


def check(files: list[tuple[str, bytes, list]], count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outcomes = {"error": 0, "ran": 0}
    for i in range(count):
        name, data, inputs = files[int(rng.integers(0, len(files)))]
        damaged = mutated(data, rng)
        start = time.monotonic()
        nn.clear_parameters()
        try:
            with np.errstate(all="ignore"):
                load(damaged).run(*inputs)
            outcomes["ran"] += 1
        except OnnxError:
            outcomes["error"] += 1
        except Exception as e:
            raise AssertionError(f"{name}, mutation {i} of seed {seed}: {e!r}") from e
        assert time.monotonic() - start < LONGEST, (name, i, seed)
    assert min(outcomes.values()) > count // 50, outcomes


def files(kind: str, step: int) -> list[tuple[str, bytes, list]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(report.cases(kind))[::step]
    return [(c.name, c.model.SerializeToString(), c.data[0][0]) for c in found if c.data]


@pytest.fixture(autouse=True)
def no_parameters():
    yield
    nn.clear_parameters()


def test_mutated_networks_end_in_an_error_or_run():
    check(files("pytorch-converted", 9), 250, seed=0)
    check(files("simple", 1), 150, seed=1)


@pytest.mark.long
def test_mutated_operators_end_in_an_error_or_run():
    check(files("node", 3), 6000, seed=2)
