# SPDX-License-Identifier: Apache-2.0
"""Data sets made of folders of pictures: classes by folder, or boxes in a text file beside."""

from __future__ import annotations

import csv
import io
import logging
import os
import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnl.core.parameters.atomic import replacing
from nnl.data.image import imread, imresize, imsave
from nnl.data.images.sources import is_litter

logger = logging.getLogger("nnl")
Array = np.ndarray[Any, Any]

EXTENSIONS = (".bmp", ".jpg", ".jpeg", ".png", ".gif", ".tif", ".tiff")
MODES = ("trimming", "padding", "resize")
LUMA = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601
ROUNDS = 1000  # of k-means, at most


class Shape(NamedTuple):
    """What all pictures become.

    Attributes:
        mode: What happens to the sides of a picture of other proportions: "trimming" cuts,
            "padding" adds black, "resize" stretches.
        channels: 1 or 3.
    """

    width: int
    height: int
    mode: str = "trimming"
    channels: int = 3


class Built(NamedTuple):
    """What was made.

    Attributes:
        files: Number of rows by .csv file.
        classes: Number of pictures by class, in the order of the labels.
        skipped: Pictures that could not be read.
        anchors: Widths and heights of the boxes that stand for all, as shares of the picture.
    """

    files: dict[str, int]
    classes: dict[str, int]
    skipped: list[str]
    anchors: Array | None = None


def image_classification(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    shape: Shape,
    files: Sequence[str] = ("train.csv",),
    share: float = 0.0,
    shuffle: bool = True,
    seed: int = 0,
) -> Built:
    """Make a data set of a folder that has a folder of pictures for every class.

    Args:
        source: It; labels are numbered in the order of the folders' names.
        folder: Gets the pictures as .png files and .csv files with the columns x and y.
        files: Names of the .csv files: one, or two.
        share: Of the rows that the second file gets.
        shuffle: Mix the rows before they are shared out; equal seeds mix alike.
    Raises:
        ValueError: There are no pictures, an argument is out of range, or both folders are one.
    """
    source, folder = _folders(source, folder)
    _check(shape, files, share)
    names = sorted(d.name for d in source.iterdir() if d.is_dir() and not is_litter(d.name))
    found = {n: _pictures(source / n) for n in names}
    found = {n: pictures for n, pictures in found.items() if pictures}
    if not found:
        raise ValueError(f"{source} has no folders with pictures, one folder for every class")
    jobs = [(name, path) for name, paths in found.items() for path in paths]
    targets = [folder / name / f"{path.stem}.png" for name, path in jobs]
    _refuse_equal_names(targets)
    made, skipped = _convert([path for _, path in jobs], targets, shape)
    labels = {name: i for i, name in enumerate(found)}
    rows = [
        [os.path.join(".", name, target.name), labels[name]]
        for (name, _), target, good in zip(jobs, targets, made, strict=True)
        if good
    ]
    classes = {name: sum(r[1] == i for r in rows) for name, i in labels.items()}
    written = _share_out(folder, ["x:image", "y:label"], rows, files, share, shuffle, seed)
    return Built(written, classes, skipped)


def object_detection(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    shape: Shape,
    classes: int,
    anchors: int,
    grid: int,
    files: Sequence[str] = ("train.csv",),
    share: float = 0.0,
    shuffle: bool = True,
    seed: int = 0,
) -> Built:
    """Make a data set of pictures with boxes: lines "class x y width height" in NAME.txt.

    x and y are the middle of a box, all four shares of the picture. Boxes are told as a grid of
    cells: the label of the box whose middle is in a cell, -1 where there is none, and its place
    and size, for each of some anchors, typical boxes, the one that is the most alike.

    Args:
        classes: Number of classes.
        anchors: Number of anchors.
        grid: Pixels of a cell; divides width and height.
        source, folder, shape, files, share, shuffle, seed: As of image_classification; folders
            within source are searched too, and the columns are x, y and r.
    Raises:
        ValueError: As there; or a label file is broken or has no boxes.
    """
    source, folder = _folders(source, folder)
    _check(shape, files, share)
    if grid < 1 or shape.width % grid or shape.height % grid:
        raise ValueError(
            f"the grid's cells have {grid} pixels, which does not divide the pictures' "
            f"{shape.width} x {shape.height}"
        )
    paths = sorted(p for p in source.rglob("*") if _is_picture(p.relative_to(source), p))
    if not paths:
        raise ValueError(f"{source} has no pictures")
    boxes = [_boxes(p.with_suffix(".txt"), classes) for p in paths]
    everywhere = np.concatenate([b.reshape(-1, 5) for b in boxes])
    if not len(everywhere):
        raise ValueError(f"{source}: no picture has a box in a .txt file beside it")
    typical = _typical(everywhere[:, 3:], anchors)
    targets = [folder / "data" / p.relative_to(source).with_suffix(".png") for p in paths]
    _refuse_equal_names(targets)
    sizes: dict[Path, tuple[int, int]] = {}
    made, skipped = _convert(paths, targets, shape, sizes.__setitem__)
    rows = []
    for path, target, found, good in zip(paths, targets, boxes, made, strict=True):
        if not good:
            continue
        labels, regions = _cells(_moved(found, sizes[path], shape), shape, grid, typical)
        stem = target.with_suffix("")
        _write(f"{stem}_label.csv", labels, "%i")
        _write(f"{stem}_region.csv", regions, "%f")
        name = os.path.join(".", str(stem.relative_to(folder)))
        rows.append([f"{name}.png", f"{name}_label.csv", f"{name}_region.csv"])
    header = ["x:image", "y:label", "r:region"]
    written = _share_out(folder, header, rows, files, share, shuffle, seed)
    counts = {str(c): int((everywhere[:, 0] == c).sum()) for c in range(classes)}
    return Built(written, counts, skipped, typical)


# ---- pictures ----


def shaped(image: Array, shape: Shape) -> Array:
    """A picture (H, W) or (H, W, 3) in the shape (height, width) or (height, width, 3)."""
    height, width = image.shape[:2]
    if (width, height) != (shape.width, shape.height):
        wide, tall = _proportioned(width, height, shape)
        if shape.mode == "trimming":
            top, left = (height - tall) // 2, (width - wide) // 2
            image = image[top : height - top, left : width - left]
        elif shape.mode == "padding":
            top, left = (tall - height) // 2, (wide - width) // 2
            around = [(top, tall - height - top), (left, wide - width - left)]
            image = np.pad(image, around + [(0, 0)] * (image.ndim - 2))
        image = imresize(image, (shape.width, shape.height))
    if image.ndim == 2 and shape.channels == 3:
        image = np.stack([image] * 3, 2)
    elif image.ndim == 3 and shape.channels == 1:
        image = (image[..., :3] @ LUMA).astype(np.uint8)
    return image


def _proportioned(width: int, height: int, shape: Shape) -> tuple[int, int]:
    """The size that a picture is cut or filled up to before it is resized."""
    if shape.mode == "resize":
        return width, height
    tall = height / width > shape.height / shape.width
    if shape.mode == "trimming":  # every product rounded as NNabla does
        if tall:
            return width, int(width / shape.width * shape.height)
        return int(height / shape.height * shape.width), height
    if tall:
        return int(shape.width / shape.height * height), height
    return width, int(shape.height / shape.width * width)


def _convert(
    paths: Sequence[Path],
    targets: Sequence[Path],
    shape: Shape,
    tell_size: Callable[[Path, tuple[int, int]], None] = lambda path, size: None,
) -> tuple[list[bool], list[str]]:
    """Shape pictures; whether each could be read, and the names of those that could not."""
    from tqdm import tqdm

    def one(job: tuple[Path, Path]) -> bool:
        path, target = job
        try:
            image = imread(str(path))
            if image.ndim == 3:  # without transparency
                image = image[..., 0] if image.shape[2] == 2 else image[..., :3]
            result = shaped(image, shape)
        except (OSError, ValueError) as error:
            logger.warning("%s is left out: %s", path, error)
            return False
        tell_size(path, (image.shape[1], image.shape[0]))
        with replacing(target) as file:
            imsave(str(file), result)
        return True

    for parent in {t.parent for t in targets}:
        parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = list(zip(paths, targets, strict=True))
        made = list(tqdm(pool.map(one, jobs), total=len(jobs), unit="picture", disable=None))
    if not any(made):
        raise ValueError("none of the pictures could be read")
    return made, [str(p) for p, good in zip(paths, made, strict=True) if not good]


def _pictures(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if _is_picture(p.relative_to(folder), p))


def _is_picture(place: Path, path: Path) -> bool:
    litter = any(is_litter(part) for part in place.parts)
    return not litter and path.suffix.lower() in EXTENSIONS and path.is_file()


def _refuse_equal_names(targets: Iterable[Path]) -> None:
    seen: set[Path] = set()
    for target in targets:
        if target in seen:
            raise ValueError(f"two pictures would become {target}: rename one")
        seen.add(target)


# ---- boxes ----


def _boxes(path: Path, classes: int) -> Array:
    """(N, 5): class, middle and size of every box; none without a file."""
    found = []
    if not path.exists():
        logger.warning("there is no %s: its picture has no boxes", path)
    for i, line in enumerate(path.read_text("utf-8").splitlines() if path.exists() else [], 1):
        if not line.strip():
            continue
        try:
            values = [float(word) for word in line.split()]
        except ValueError:
            values = []
        if len(values) != 5 or not np.isfinite(values).all():
            raise ValueError(f"{path}, line {i} is {line!r}, wanted: class x y width height")
        if values[0] not in range(classes):
            raise ValueError(f"{path}, line {i}: the class is {values[0]:g}, of {classes}")
        found.append(values)
    return np.array(found, np.float64).reshape(-1, 5)


def _typical(sizes: Array, count: int) -> Array:
    """Means of the clusters of box sizes by k-means, the smallest area first."""
    if not 1 <= count <= len(sizes):
        raise ValueError(f"the number of anchors is {count}, wanted 1 to {len(sizes)}, the boxes")
    rng = np.random.RandomState(0)
    cluster = rng.randint(count, size=len(sizes))
    for _ in range(ROUNDS):
        # a cluster that has lost all its boxes gets one of them
        means = np.array(
            [
                sizes[cluster == i].mean(0) if (cluster == i).any() else sizes[i % len(sizes)]
                for i in range(count)
            ]
        )
        nearest = ((sizes[None] - means[:, None]) ** 2).sum(2).argmin(0)
        if (nearest == cluster).all():
            break
        cluster = nearest
    return means[means.prod(1).argsort()]


def _moved(boxes: Array, size: tuple[int, int], shape: Shape) -> Array:
    """Boxes as shares of the picture that was cut or filled up."""
    if size == (shape.width, shape.height):
        return boxes
    to = _proportioned(*size, shape)
    scale = np.array([size[0] / to[0], size[1] / to[1]])
    moved = boxes.copy()
    moved[:, 1:3] = (boxes[:, 1:3] - 0.5) * scale + 0.5
    moved[:, 3:5] = boxes[:, 3:5] * scale
    return moved


def _cells(boxes: Array, shape: Shape, grid: int, anchors: Array) -> tuple[Array, Array]:
    """Labels (anchors, rows, columns) and places (anchors, rows, columns, 4) of boxes.

    A place is the middle from the cell's corner, in cells, and the logarithm of the size in cells.
    """
    wide, tall = shape.width // grid, shape.height // grid
    labels = np.full((len(anchors), tall, wide), -1, int)
    regions = np.zeros((len(anchors), tall, wide, 4))
    for label, x, y, w, h in boxes:
        left, right = np.clip([x - w / 2, x + w / 2], 0, 1)
        top, bottom = np.clip([y - h / 2, y + h / 2], 0, 1)
        if right <= left or bottom <= top:
            continue
        middle = np.array([(left + right) / 2 * wide, (top + bottom) / 2 * tall])
        column, row = np.minimum(middle.astype(int), [wide - 1, tall - 1])
        center = np.array([(column + 0.5) / wide, (row + 0.5) / tall])
        box = np.array([left, top, right, bottom])
        best = int(np.argmax([_overlap(box, center, a) for a in anchors]))
        labels[best, row, column] = int(label)
        size = np.log([(right - left) * wide, (bottom - top) * tall])
        regions[best, row, column] = [*(middle - [column, row]), *size]
    return labels, regions


def _overlap(box: Array, center: Array, size: Array) -> float:
    """Intersection over union of a box and one around a point."""
    low, high = center - size / 2, center + size / 2
    common = float(np.prod(np.maximum(np.minimum(box[2:], high) - np.maximum(box[:2], low), 0)))
    return common / float(np.prod(box[2:] - box[:2]) + np.prod(size) - common)


# ---- files ----


def _folders(source: str | os.PathLike[str], folder: str | os.PathLike[str]) -> tuple[Path, Path]:
    source, folder = Path(source), Path(folder)
    if not source.is_dir():
        raise FileNotFoundError(f"there is no folder {source}")
    if source.resolve() == folder.resolve():
        raise ValueError(f"{source} is both input and output")
    folder.mkdir(parents=True, exist_ok=True)
    return source, folder


def _check(shape: Shape, files: Sequence[str], share: float) -> None:
    if shape.mode not in MODES:
        raise ValueError(f"mode is {shape.mode!r}, wanted one of {', '.join(MODES)}")
    if shape.channels not in (1, 3):
        raise ValueError(f"the number of channels is {shape.channels}, wanted 1 or 3")
    if min(shape.width, shape.height) < 1 or max(shape.width, shape.height) > 2**15:
        raise ValueError(f"the pictures' size is {shape.width} x {shape.height}, wanted 1 to 32768")
    if len(files) not in (1, 2) or len(set(files)) != len(files):
        raise ValueError(f"files are {list(files)}, wanted one name or two")
    if not 0 <= share <= 1:
        raise ValueError(f"the share of the second file is {share}, wanted 0 to 1")


def _share_out(
    folder: Path,
    header: list[str],
    rows: list[list[Any]],
    files: Sequence[str],
    share: float,
    shuffle: bool,
    seed: int,
) -> dict[str, int]:
    """Write the .csv files; the first one has what the second one has not."""
    if shuffle:
        random.Random(seed).shuffle(rows)
    first = len(rows) * round((1 - share) * 100) // 100 if len(files) == 2 else len(rows)
    written = {}
    for name, part in zip(files, (rows[:first], rows[first:]), strict=False):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *part])
        with replacing(folder / name) as file:
            file.write_text(text.getvalue(), "utf-8")
        written[name] = len(part)
    return written


def _write(path: str, values: Array, number: str) -> None:
    text = io.StringIO()
    flat = values.reshape(values.shape[0] * values.shape[1], -1)
    np.savetxt(text, flat, fmt=number, delimiter=",")
    with replacing(path) as file:
        file.write_text(text.getvalue(), "utf-8")
