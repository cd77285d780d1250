# SPDX-License-Identifier: Apache-2.0
"""Data sets that ship in scikit-learn: nothing is downloaded, and every split is the same."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnl.core.parameters.atomic import replacing
from nnl.data.image import imsave
from nnl.data.iterator import DataIterator, data_iterator_simple

Array = np.ndarray[Any, Any]

PATCH = 32  # pixels of the pieces of photographs
VALID_SHARE = 0.2


class Sample(NamedTuple):
    """What a data set is.

    Attributes:
        title, source: For people.
        kind: "image", or "table" for rows of numbers.
        classes: Names of the classes by label; none if the target is a number.
        columns: Names of the numbers of a row; none of images.
    """

    title: str
    source: str
    kind: str
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


SAMPLES = {
    "digits": Sample(
        "Handwritten digits, 8 x 8",
        "Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI 1998",
        "image",
        tuple("0123456789"),
    ),
    "photographs": Sample(
        f"Pieces of two photographs, {PATCH} x {PATCH} in colour: a temple or a flower",
        "china.jpg and flower.jpg of scikit-learn, CC BY",
        "image",
        ("china", "flower"),
    ),
    "iris": Sample(
        "Three kinds of iris by four lengths",
        "Fisher, The use of multiple measurements in taxonomic problems, 1936",
        "table",
        ("setosa", "versicolor", "virginica"),
        ("sepal length", "sepal width", "petal length", "petal width"),
    ),
    "wine": Sample(
        "Three growers of wine by thirteen measurements",
        "Aeberhard and Forina, Wine, UCI 1991",
        "table",
        ("class 0", "class 1", "class 2"),
    ),
    "breast_cancer": Sample(
        "Malignant or benign by thirty measurements",
        "Wolberg, Mangasarian, Street and Street, Breast Cancer Wisconsin, UCI 1993",
        "table",
        ("malignant", "benign"),
    ),
    "diabetes": Sample(
        "Progress of a disease after a year by ten measurements, target and measurements scaled",
        "Efron, Hastie, Johnstone and Tibshirani, Least Angle Regression, 2004",
        "table",
    ),
}


def arrays(name: str, train: bool = True) -> tuple[Array, Array]:
    """Inputs and targets of the training part, or of the fifth that is held back.

    Returns:
        x float32: images (N, C, H, W) in [0, 1], or rows (N, D), every column with mean 0 and
        deviation 1 over the training part. y (N, 1): labels as int32, or float32.
    Raises:
        ValueError: There is no such data set. ModuleNotFoundError: scikit-learn is missing.
    """
    x, y = _whole(name)
    held = _held_back(y, bool(SAMPLES[name].classes))
    if SAMPLES[name].kind == "table":
        x = _scaled(x, x[~held])
    if not SAMPLES[name].classes:
        y = _scaled(y, y[~held])
    part = ~held if train else held
    return x[part], y[part]


def iterator(
    name: str, batch_size: int, train: bool = True, shuffle: bool = True, seed: int = 313
) -> DataIterator:
    """Minibatches of the variables x and y, without end.

    >>> with iterator("iris", 10) as batches:
    ...     x, y = batches.next()
    >>> x.shape, y.shape
    ((10, 4), (10, 1))
    """
    x, y = arrays(name, train)
    rng = np.random.RandomState(seed)
    return data_iterator_simple(lambda i: (x[i], y[i]), len(x), batch_size, shuffle, rng)


def write(name: str, folder: str | os.PathLike[str]) -> dict[str, int]:
    """Write train.csv and valid.csv, with images as .png files, as `nnl train` reads them.

    Args:
        folder: Made if missing.
    Returns:
        The number of rows by file.
    """
    rows = {}
    Path(folder).mkdir(parents=True, exist_ok=True)
    for part, train in (("train", True), ("valid", False)):
        x, y = arrays(name, train)
        sample = SAMPLES[name]
        table = io.StringIO()
        out = csv.writer(table, lineterminator="\n")
        titles = ["x:image"] if sample.kind == "image" else _titles(name, x)
        out.writerow([*titles, "y:label" if sample.classes else "y"])
        for i, (value, target) in enumerate(zip(x, y[:, 0].tolist(), strict=True)):
            picture = sample.kind == "image"
            cells = [_picture(Path(folder), part, i, value)] if picture else value.tolist()
            out.writerow([*cells, target])
        path = Path(folder) / f"{part}.csv"
        with replacing(path) as file:
            file.write_text(table.getvalue(), "utf-8")
        rows[path.name] = len(x)
    return rows


def _titles(name: str, x: Array) -> list[str]:
    names = SAMPLES[name].columns or [f"{i}" for i in range(x.shape[1])]
    return [f"x__{i}:{title}" for i, title in enumerate(names)]


def _picture(folder: Path, part: str, index: int, value: Array) -> str:
    path = f"{part}/{index}.png"
    (folder / part).mkdir(exist_ok=True)
    pixels = np.round(value * 255).astype(np.uint8)
    imsave(str(folder / path), pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    return path


def _whole(name: str) -> tuple[Array, Array]:
    if name not in SAMPLES:
        raise ValueError(f"there is no data set {name!r}, wanted one of {', '.join(SAMPLES)}")
    try:
        import sklearn.datasets as sets
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the data set {name!r} comes with scikit-learn; try: pip install scikit-learn"
        ) from error
    if name == "photographs":
        return _pieces(sets.load_sample_images().images)
    found = getattr(sets, f"load_{name}")()
    y = found.target.reshape(-1, 1)
    if name == "digits":
        return (found.images / 16).astype(np.float32)[:, None], y.astype(np.int32)
    kind = np.int32 if SAMPLES[name].classes else np.float32
    return found.data.astype(np.float32), y.astype(kind)


def _pieces(images: list[Array]) -> tuple[Array, Array]:
    """Every whole square of the photographs, with the photograph's number as its label."""
    x, y = [], []
    for label, image in enumerate(images):
        for top in range(0, image.shape[0] - PATCH + 1, PATCH):
            for left in range(0, image.shape[1] - PATCH + 1, PATCH):
                x.append(image[top : top + PATCH, left : left + PATCH].transpose(2, 0, 1))
                y.append([label])
    return np.stack(x).astype(np.float32) / np.float32(255), np.array(y, np.int32)


def _held_back(y: Array, by_class: bool) -> Array:
    """A mask of a fifth of the rows, of every class alike."""
    rng = np.random.RandomState(0)
    mask = np.zeros(len(y), bool)
    groups = [y[:, 0] == c for c in np.unique(y)] if by_class else [np.ones(len(y), bool)]
    for group in groups:
        rows = rng.permutation(np.flatnonzero(group))
        mask[rows[: round(VALID_SHARE * len(rows))]] = True
    return mask


def _scaled(values: Array, train: Array) -> Array:
    scaled: Array = ((values - train.mean(0)) / train.std(0)).astype(np.float32)
    return scaled
