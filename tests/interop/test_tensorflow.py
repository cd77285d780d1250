# SPDX-License-Identifier: Apache-2.0
"""Graphs that TensorFlow writes give its numbers, where NNL_TENSORFLOW_PYTHON names its Python."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.converters.formats import read_model
from nnl.converters.runtimes.tensorflow import python_with_tensorflow

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All graphs, with inputs and results."""
    python = python_with_tensorflow()
    if python is None:
        pytest.skip("TensorFlow is not installed (NNL_TENSORFLOW_PYTHON names a Python with it)")
    found = tmp_path_factory.mktemp("graphs")
    script = Path(__file__).with_name("tensorflow_graphs.py")
    done = subprocess.run([python, str(script), str(found)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return found


def check(file: Path, stored: Path) -> None:
    with np.load(stored) as arrays:
        given: dict[str, Any] = dict(arrays)
    want = given.pop("result")
    network = read_model([str(file)])[0].network(len(next(iter(given.values()))))
    values = dict(zip(network.inputs, given.values(), strict=True))
    (got,) = network.run(values if len(given) == 1 else given).values()
    assert got.shape == want.shape, file.name
    limit = 2e-5 * max(np.abs(want).max(initial=0).astype(float), 1e-6)
    np.testing.assert_allclose(got, want, rtol=0, atol=limit, err_msg=file.name)


def test_graphs_give_its_numbers(folder: Path) -> None:
    files = sorted(folder.glob("*.pb"))
    assert len(files) > 190
    for file in files:
        check(file, file.with_suffix(".npz"))


def test_saved_models_give_its_numbers(folder: Path) -> None:
    folders = [p for p in sorted(folder.iterdir()) if p.is_dir()]
    assert len(folders) == 4
    for file in folders:
        check(file, file.with_suffix(".npz"))
