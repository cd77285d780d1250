# SPDX-License-Identifier: Apache-2.0
"""Models that PyTorch has written train to the same losses on every back end."""

from __future__ import annotations

import os
import subprocess
import warnings

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("torch")

from tests.deep500 import exported  # noqa: E402
from tests.deep500.test_contract import ROOT  # noqa: E402


@pytest.mark.long
@pytest.mark.parametrize("name", list(exported.MODELS))
def test_exported_models_train_to_the_same_loss_curve(name, tmp_path):
    """To 0.1 %: float32 sums in another order grow with every step."""
    path = str(tmp_path / f"{name}.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        exported.write(name, path)
    lr = exported.MODELS[name][2]
    curves = {b: exported.curve(path, b, lr) for b in ("torch", "nnl")}
    python = os.environ.get("NNL_TENSORFLOW_PYTHON")
    if python:
        command = [python, "-m", "tests.deep500.exported", "tensorflow", path, str(lr)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        curves["tensorflow"] = [float(v) for v in done.stdout.split()]
    wanted = curves.pop("torch")
    assert len(wanted) == exported.STEPS and len(set(wanted)) == exported.STEPS
    for losses in curves.values():
        np.testing.assert_allclose(losses, wanted, rtol=1e-3)
