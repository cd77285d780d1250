# SPDX-License-Identifier: Apache-2.0
"""The training script of `make train` runs, in both modes with the same result."""

import os
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "examples" / "digits" / "train.py"
WRITTEN = {"lenet.h5", "learning_curve.png", "confusion.png", "training-loss.series.txt"}


def start(out, *args):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), "--out", str(out), *args]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def run(out, *args):
    done = start(out, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def parameters(path):
    with h5py.File(path) as file:
        found = {}
        file.visititems(
            lambda name, v: found.update({name: v[()]}) if isinstance(v, h5py.Dataset) else None
        )
    return found


def test_training_runs_and_both_modes_give_the_same(tmp_path):
    texts = [run(tmp_path / "dynamic", "--epochs", "2", "--dynamic")]
    texts.append(run(tmp_path / "static", "--epochs", "2"))
    for text, mode in zip(texts, ("dynamic", "static"), strict=True):
        assert {p.name for p in (tmp_path / mode).iterdir()} == WRITTEN
        assert f"{mode} graph" in text and str(tmp_path / mode) in text
    a, b = (parameters(tmp_path / m / "lenet.h5") for m in ("dynamic", "static"))
    assert len(a) == 8
    for k in a:  # plans fuse steps, so that additions run in another order
        np.testing.assert_allclose(a[k], b[k], rtol=0, atol=2e-3, err_msg=k)
    first, second = (re.search(r"test accuracy ([\d.]+)", t).group(1) for t in texts)
    assert abs(float(first) - float(second)) < 1


def test_numbers_that_make_no_sense_are_named(tmp_path):
    for name, value in (("--epochs", "-3"), ("--batch-size", "0"), ("--learning-rate", "nan")):
        done = start(tmp_path / "out", name, value)
        assert done.returncode == 2
        assert f"{name} is {value}, wanted more than 0" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_full_training_reaches_the_promised_accuracy(tmp_path):
    text = run(tmp_path)
    assert float(re.search(r"test accuracy ([\d.]+) ?%", text).group(1)) >= 98.5
