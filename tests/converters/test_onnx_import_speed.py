# SPDX-License-Identifier: Apache-2.0
"""How long loading takes, on the ResNet-50 of the onnx package with 100 MB of weights."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import nnl as nn

onnx = pytest.importorskip("onnx")

from nnl.converters.onnx import load, read, report  # noqa: E402

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    light = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
    path = tmp_path_factory.mktemp("resnet") / "resnet50.onnx"
    onnx.save(report.randomised(onnx.load(light), "resnet"), path)
    yield path
    nn.clear_parameters()


def least(f, times=5):
    """Shortest of several runs, in seconds of this process."""
    durations = []
    for _ in range(times):
        start = time.process_time()
        f()
        durations.append(time.process_time() - start)
    return min(durations)


def test_reading_a_model_takes_little_more_than_reading_its_bytes(file):
    assert file.stat().st_size > 100e6
    as_bytes = least(lambda: np.fromfile(file, np.uint8))
    assert least(lambda: read(file)) < 2 * as_bytes + 0.02


def test_a_resnet_50_is_imported_in_a_second(file):
    def run():
        nn.clear_parameters()
        load(file)(nn.Variable((1, 3, 224, 224)))

    assert least(run) < 1.0
