# SPDX-License-Identifier: Apache-2.0
"""Data sets that ship in packages: sizes, splits, and the files that `nnl train` reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nnl import datasets
from nnl.data.iterator import data_iterator_csv_dataset

sklearn = pytest.importorskip("sklearn.datasets")
PUBLISHED = {
    "digits": (1797, (1, 8, 8), 10),
    "photographs": (2 * (427 // 32) * (640 // 32), (3, 32, 32), 2),
    "iris": (150, (4,), 3),
    "wine": (178, (13,), 3),
    "breast_cancer": (569, (30,), 2),
    "diabetes": (442, (10,), 0),
}


@pytest.mark.parametrize("name", datasets.SAMPLES)
def test_sizes_classes_and_splits(name: str) -> None:
    rows, shape, classes = PUBLISHED[name]
    (x, y), (xv, yv) = datasets.arrays(name), datasets.arrays(name, train=False)
    assert len(x) + len(xv) == rows and x.shape[1:] == xv.shape[1:] == shape
    assert x.dtype == np.float32 and y.shape == (len(x), 1)
    assert abs(len(xv) / rows - 0.2) < 0.02
    assert len(datasets.SAMPLES[name].classes) == classes
    if classes:
        share = np.bincount(yv[:, 0]) / (np.bincount(y[:, 0]) + np.bincount(yv[:, 0]))
        assert y.dtype == np.int32 and np.abs(share - 0.2).max() < 0.03
    if x.ndim == 2:
        np.testing.assert_allclose(x.mean(0), 0, atol=1e-4)
        np.testing.assert_allclose(x.std(0), 1, atol=1e-4)
    else:
        assert x.min() >= 0 and x.max() <= 1


@pytest.mark.parametrize("name", ["digits", "iris", "diabetes"])
def test_files_hold_what_arrays_gives(name: str, tmp_path: Path) -> None:
    if name == "digits":
        pytest.importorskip("PIL")
    rows = datasets.write(name, tmp_path / "out")
    for part, train in (("train", True), ("valid", False)):
        x, y = datasets.arrays(name, train)
        assert rows[f"{part}.csv"] == len(x)
        path = str(tmp_path / "out" / f"{part}.csv")
        with data_iterator_csv_dataset(path, len(x)) as it:
            xs, ys = it.next()
        np.testing.assert_allclose(xs, x, atol=0.5 / 255 + 1e-6 if x.ndim == 4 else 1e-6)
        np.testing.assert_allclose(ys, y, rtol=1e-6)


def test_labels_are_those_of_scikit_learn() -> None:
    (x, y), _ = datasets.arrays("wine"), None
    whole = sklearn.load_wine()
    scaled = (whole.data - whole.data.mean(0)) / whole.data.std(0)
    nearest = ((scaled[:, None] - x[None]) ** 2).sum(2).argmin(0)
    assert (whole.target[nearest] == y[:, 0]).all()


def test_minibatches_and_wrong_names() -> None:
    with datasets.iterator("iris", 16, seed=1) as it:
        x, y = it.next()
        assert it.size == 120 and x.shape == (16, 4) and y.shape == (16, 1)
    with pytest.raises(ValueError, match="there is no data set 'mnist', wanted one of digits"):
        datasets.arrays("mnist")
