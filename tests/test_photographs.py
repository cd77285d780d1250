# SPDX-License-Identifier: Apache-2.0
"""The real pictures of the ImageNet example, made of photographs that packages bring along."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("skimage")
pytest.importorskip("sklearn")

from examples.imagenet import photographs  # noqa: E402  (after the check for the photographs)
from nnl.data.images import open_images  # noqa: E402


def test_a_data_set_is_made_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photographs, "TRAINING", 3)
    monkeypatch.setattr(photographs, "VALIDATION", 2)
    for copy in ("a", "b"):
        photographs.make(tmp_path / copy)
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*.jpg"))
    assert len(files) == 10 * (3 + 2) + 1
    assert all(
        (tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files
    )

    how = {"batch_size": 31, "size": 32, "resize": 36, "workers": 0}
    with open_images(str(tmp_path / "a" / "train"), **how) as images:
        ((x, labels),) = images.epoch(0)
        assert np.bincount(labels[:, 0]).size == 10 and x.std() > 30
        assert [Path(name).name for name in images.skipped] == ["damaged.jpg"]
        classes = images.classes
    val = str(tmp_path / "a" / "val")
    with open_images(val, training=False, classes=classes, **how) as images:
        assert [labels[:20, 0].tolist() for _, labels in images.epoch(0)] == [
            [label for label in range(10) for _ in range(2)]
        ]
    license = (tmp_path / "a" / "LICENSE.txt").read_text(encoding="utf-8")
    assert all(name in license for name in classes)
