# SPDX-License-Identifier: Apache-2.0
"""DALI as the engine: the samples of ours, and the same care for damage."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.data.images import open_images
from tests.data.test_images import broken, folder, jpeg, photograph

__all__ = ["folder"]  # a fixture


def test_without_dali_it_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(ModuleNotFoundError, match='engine="dali" needs the package nvidia-dali'):
        open_images(str(folder), 4, engine="dali")


@pytest.mark.parametrize("training", [True, False])
def test_samples_are_those_of_our_engine(folder: Path, training: bool) -> None:
    pytest.importorskip("nvidia.dali")
    how: dict[str, Any] = {"batch_size": 8, "size": 32, "resize": 40, "training": training}
    ours = open_images(str(folder), **how, exact=True, workers=0)
    with open_images(str(folder), **how, engine="dali", workers=1) as dalis:
        for (x, labels), (y, others) in zip(ours.epoch(1), dalis.epoch(1), strict=True):
            assert np.array_equal(labels, others)
            difference = np.abs(x.astype(int) - y)
            # a decoder that skips what is not seen knows no colours beside it
            assert difference.mean() <= 0.5 and np.percentile(difference, 99) <= 4


def test_damaged_pictures_are_skipped(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali")
    root = broken(folder, tmp_path, jpeg(photograph(60, 60, 0))[:-300])
    (root / "eel" / "0a.jpg").write_bytes(b"")
    how: dict[str, Any] = {"batch_size": 11, "size": 16, "resize": 16, "training": False}
    with open_images(str(root), **how, engine="dali", workers=1) as images:
        for epoch in range(2):
            ((x, labels),) = images.epoch(epoch)
            assert labels[:, 0].tolist() == [0, 0, 0, 1, -1, 1, 1, 2, -1, 2, 2]
    with open_images(str(root), **how, exact=True, workers=0) as ours:
        ((y, _),) = ours.epoch(0)
        good = labels[:, 0] >= 0
        assert np.abs(x[good].astype(int) - y[good]).mean() <= 0.5
        assert set(images.skipped) == set(ours.skipped)
