# SPDX-License-Identifier: Apache-2.0
"""Data sets of a console: .csv files and the files that their cells name, each in a folder."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nnl.console.archives import unpack
from nnl.console.errors import Refused, missing
from nnl.console.pictures import png, shown, thumbnail
from nnl.console.store import Store, checked_name, new_id
from nnl.data.loader import get_file_extension, load

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff")
ARRAYS = (".npy", ".csv")
MAX_ROWS_OF_STATISTICS = 2000
MAX_CELL_FILE = 256 * 2**20
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class BuildOptions:
    """How data sets are made of folders of pictures.

    Attributes:
        width, height, channels: Of the pictures; those of the first one where they are 0.
        split: Share of the pictures that are for validation.
        classes, anchors, grid: Of the boxes of object_detection.
    """

    kind: str = "image_classification"
    width: int = 0
    height: int = 0
    channels: int = 0
    mode: str = "trimming"
    split: float = 0.0
    seed: int = 0
    classes: int = 1
    anchors: int = 5
    grid: int = 16


def _shape(source: Path, options: BuildOptions) -> Any:
    """What all pictures become."""
    from nnl.data.image import imread
    from nnl.datasets import Shape

    width, height, channels = options.width, options.height, options.channels
    if not (width and height and channels):
        found = (p for p in sorted(source.rglob("*")) if p.suffix.lower() in IMAGES)
        first = next(found, None)
        if first is None:
            raise Refused("unreadable", "the archive has no pictures", "one folder for each class")
        try:
            picture = imread(str(first))
        except ValueError as error:
            raise Refused("unreadable", f"{first.name}: {error}", None, first.name) from None
        colours = 3 if picture.ndim == 3 and picture.shape[2] >= 3 else 1
        width, height = width or picture.shape[1], height or picture.shape[0]
        channels = channels or colours
    return Shape(width, height, options.mode, channels)


class DataSets:
    """The data sets in `folder/.nnl/datasets`."""

    def __init__(self, store: Store) -> None:
        self.store, self.root = store, store.root / "datasets"
        self.root.mkdir(exist_ok=True)

    # ---- the list ----

    def all(self) -> list[dict[str, Any]]:
        rows = self.store.rows("SELECT * FROM dataset WHERE NOT deleted ORDER BY created, rowid")
        return [self._shown(row) for row in rows]

    def one(self, key: str) -> dict[str, Any]:
        return self._shown(self._row(key))

    def _row(self, key: str) -> dict[str, Any]:
        row = self.store.row("SELECT * FROM dataset WHERE id = ?", key)
        if row is None:
            raise missing("data set", key)
        return row

    def _shown(self, row: dict[str, Any]) -> dict[str, Any]:
        names = ("id", "name", "rows", "created", "sha256", "bytes")
        return {
            **{name: row[name] for name in names},
            "columns": json.loads(row["columns"]),
            "missing": not (self.root / row["csv"]).is_file(),
        }

    def path(self, key: str) -> Path:
        """The .csv file.

        Raises:
            Refused: It is gone.
        """
        path = self.root / self._row(key)["csv"]
        if not path.is_file():
            raise Refused("not_found", f"the file of the data set {key!r} is gone", None, str(path))
        return path

    def delete(self, key: str) -> None:
        """Move a data set to the trash; its files stay until the folder is tidied."""
        self._row(key)
        self.store.update("dataset", key, {"deleted": 1})
        self.store.audit("data set deleted", key)

    # ---- new ones ----

    def add(self, upload: Path, name: str) -> list[dict[str, Any]]:
        """The data sets of an uploaded file: a .csv, or a .zip with some and their files."""
        kind = os.path.splitext(name)[1].lower()
        title = checked_name(os.path.splitext(os.path.basename(name))[0] or "data")
        key = new_id()
        folder = self.root / key
        folder.mkdir()
        try:
            if kind == ".zip":
                files = unpack(upload, folder)
                tables = sorted(p for p in files if p.suffix.lower() == ".csv")
                found = [p for p in tables if self._is_table(p)]
                if not found:
                    hint = "the archive needs a .csv file whose first line names columns"
                    raise Refused("unreadable", f"{name} has no table", hint, name)
            elif kind == ".csv":
                found = [folder / "data.csv"]
                shutil.copyfile(upload, found[0])
            else:
                wanted = ".zip or .csv"
                raise Refused(
                    "unreadable", f"the extension is {kind!r}, wanted {wanted}", None, name
                )
            names = [title if len(found) == 1 else f"{title} {p.stem}" for p in found]
            return [self._register(p, n) for p, n in zip(found, names, strict=True)]
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _is_table(self, path: Path) -> bool:
        """Whether a .csv file is a table of samples, and not one of numbers."""
        try:
            with open(path, encoding="utf-8-sig", newline="") as file:
                header = next(csv.reader(file), [])
        except (UnicodeDecodeError, csv.Error):
            return False
        return any(cell and not _is_number(cell) for cell in header)

    def _register(self, path: Path, name: str) -> dict[str, Any]:
        header, rows = read_table(path)
        if not rows:
            raise Refused("unreadable", f"{name} has a header and no rows", None, name)
        root = path.parent
        for i, row in enumerate(rows):
            for cell in row:
                if not _is_number(cell):
                    _file_below(root, cell, f"{name}, row {i + 1}")
        columns = [
            describe(column, [row[i] for i in places], root)
            for column, (places, _) in variables(header).items()
            for row in rows[:1]
        ]
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        key = new_id()
        self.store.insert(
            "dataset",
            {
                "id": key,
                "name": name,
                "csv": str(path.relative_to(self.root)),
                "sha256": digest,
                "columns": json.dumps(columns),
                "rows": len(rows),
                "bytes": sum(p.stat().st_size for p in root.rglob("*") if p.is_file()),
                "created": time.time(),
            },
        )
        return self.one(key)

    def build(self, upload: Path, name: str, options: BuildOptions) -> list[dict[str, Any]]:
        """Data sets of an archive with a folder of pictures for every class, or with boxes."""
        from nnl import datasets

        title = checked_name(os.path.splitext(os.path.basename(name))[0] or "data")
        folder = self.root / new_id()
        files = ["train.csv", "valid.csv"] if options.split > 0 else ["train.csv"]
        parts = {"files": files, "share": options.split, "seed": options.seed}
        try:
            with tempfile.TemporaryDirectory(dir=self.root) as scratch:
                unpack(upload, Path(scratch))
                entries = list(Path(scratch).iterdir())
                inner = len(entries) == 1 and any(p.is_dir() for p in entries[0].glob("*"))
                source = entries[0] if inner else Path(scratch)
                shape = _shape(source, options)
                try:
                    if options.kind == "object_detection":
                        counts = options.classes, options.anchors, options.grid
                        datasets.object_detection(source, folder, shape, *counts, **parts)
                    else:
                        datasets.image_classification(source, folder, shape, **parts)
                except ValueError as error:
                    text = str(error).replace(str(source), name)
                    raise Refused("unreadable", text, None, name) from None
            names = [f"{title} {f[:-4]}" if options.split > 0 else title for f in files]
            return [self._register(folder / f, n) for f, n in zip(files, names, strict=True)]
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def sample(self, name: str) -> list[dict[str, Any]]:
        """The data sets of a sample that ships in scikit-learn, for training and validation."""
        from nnl import datasets

        if name not in datasets.SAMPLES:
            raise missing("sample", name[:60])
        folder = self.root / new_id()
        datasets.write(name, folder)
        found = sorted(folder.glob("*.csv"))
        return [self._register(p, f"{name} {p.stem}") for p in found]

    def split(
        self, key: str, parts: Sequence[float], names: Sequence[str], seed: int, by: str | None
    ) -> list[dict[str, Any]]:
        """Data sets of shares of the rows, in random order; of each value of a column alike."""
        path, row = self.path(key), self._row(key)
        header, rows = read_table(path)
        if not parts or min(parts) <= 0 or sum(parts) > 1 + 1e-9 or len(names) != len(parts):
            wanted = "shares above 0 that add up to 1 at most, and as many names"
            raise Refused("invalid", f"parts is {list(parts)}, wanted {wanted}", None, "parts")
        groups: dict[str, list[int]] = {}
        places = variables(header)
        if by is not None and by not in places:
            raise Refused("invalid", f"there is no column {by!r}", None, "stratify")
        for i, cells in enumerate(rows):
            groups.setdefault("" if by is None else cells[places[by][0][0]], []).append(i)
        rng = np.random.default_rng(seed)
        chosen: list[list[int]] = [[] for _ in parts]
        for members in groups.values():
            order = rng.permutation(members).tolist()
            cuts = np.rint(np.cumsum((0, *parts)) * len(order)).astype(int)
            for k in range(len(parts)):
                chosen[k] += order[cuts[k] : cuts[k + 1]]
        found = []
        for name, numbers in zip(names, chosen, strict=True):
            if not numbers:
                raise Refused("invalid", f"the part {name!r} has no rows", None, "parts")
            target = path.parent / f"{new_id()}.csv"
            with open(target, "w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([header, *(rows[i] for i in sorted(numbers))])
            found.append(self._register(target, f"{row['name']} {name}"))
        return found

    def write(self, name: str, columns: dict[str, Any], folder: str = "") -> dict[str, Any]:
        """A data set of arrays: pictures (rows, channels, height, width) become files."""
        root = self.root / (folder or new_id())
        root.mkdir(exist_ok=True)
        cells: list[list[str]] = []
        count = len(next(iter(columns.values())))
        for i in range(count):
            row = []
            for column, values in columns.items():
                if np.ndim(values[i]) >= 2:
                    relative = f"{column}/{i:05}.png"
                    (root / column).mkdir(exist_ok=True)
                    (root / relative).write_bytes(png(shown(values[i])))
                    row.append(relative)
                else:
                    row.append(f"{np.asarray(values[i]).reshape(-1)[0]:g}")
            cells.append(row)
        with open(root / "data.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([list(columns), *cells])
        return self._register(root / "data.csv", name)

    # ---- looking into them ----

    def rows(self, key: str, offset: int, limit: int) -> dict[str, Any]:
        header, rows = read_table(self.path(key))
        found = [
            {"index": i, "cells": [{"text": cell, "kind": kind_of(cell)} for cell in row]}
            for i, row in enumerate(rows[offset : offset + limit], offset)
        ]
        return {"header": header, "rows": found, "total": len(rows)}

    def value(self, key: str, row: int, column: str) -> Array:
        """What one cell holds, pictures from 0 to 1; of a vector all of its cells."""
        path = self.path(key)
        header, rows = read_table(path)
        places = variables(header)
        if not 0 <= row < len(rows) or column not in places:
            raise missing("cell", f"{row}/{column}")
        return read_cells([rows[row][i] for i in places[column][0]], path.parent)

    def thumb(self, key: str, row: int, column: str, size: int) -> bytes:
        return png(thumbnail(shown(self.value(key, row, column)), size))

    def statistics(self, key: str) -> dict[str, Any]:
        """Of every column; of the first rows only where there are very many."""
        path = self.path(key)
        header, rows = read_table(path)
        step = max(len(rows) // MAX_ROWS_OF_STATISTICS, 1)
        some = rows[::step]
        found = []
        for name, (places, _) in variables(header).items():
            values = [read_cells([row[i] for i in places], path.parent) for row in some]
            found.append(_statistics(name, values))
        return {"columns": found, "rows": len(rows), "looked_at": len(some)}


def _statistics(name: str, values: list[Array]) -> dict[str, Any]:
    flat = np.concatenate([v.reshape(-1) for v in values]).astype(np.float64)
    flat = flat[np.isfinite(flat)]
    single = all(v.size == 1 for v in values)
    found: dict[str, Any] = {"name": name, "type": "number" if single else "array"}
    if not flat.size:
        return {**found, "min": None, "max": None, "mean": None, "std": None, "distinct": 0,
                "histogram": None, "values": None}  # fmt: skip
    counts, edges = np.histogram(flat, 20)
    kinds = Counter(flat.tolist()) if single else Counter[float]()
    few = single and len(kinds) <= 100
    return {
        **found,
        "min": flat.min(),
        "max": flat.max(),
        "mean": flat.mean(),
        "std": flat.std(),
        "distinct": len(kinds) if single else len(np.unique(flat)),
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
        "values": [{"value": v, "count": n} for v, n in sorted(kinds.items())] if few else None,
    }


def read_table(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a .csv file.

    Raises:
        Refused: It is no such file, or a row has another number of cells.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = [(i, row) for i, row in enumerate(csv.reader(file), 1) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise Refused("unreadable", f"{path.name} is no .csv file: {error}", None) from None
    if not lines:
        raise Refused("unreadable", f"{path.name} is empty", None, path.name)
    header = lines[0][1]
    for i, row in lines[1:]:
        if len(row) != len(header):
            text = f"{path.name}, line {i} has {len(row)} cells, the header {len(header)}"
            raise Refused("unreadable", text, None, path.name)
    return header, [row for _, row in lines[1:]]


def variables(header: Sequence[str]) -> dict[str, tuple[list[int], bool]]:
    """Columns of each variable, and whether it is a vector: y__0, y__1 belong together."""
    found: dict[str, tuple[list[int], bool]] = {}
    for i, title in enumerate(header):
        if title.startswith("#"):
            continue
        name, vector, _ = title.split(":", 1)[0].partition("__")
        found.setdefault(name, ([], bool(vector)))[0].append(i)
    return found


def kind_of(cell: str) -> str:
    """What the page shows a cell as."""
    if _is_number(cell):
        return "number"
    extension = get_file_extension(cell) or ""
    return "image" if extension in IMAGES else "array" if extension in ARRAYS else "text"


def read_cells(cells: Sequence[str], root: Path) -> Array:
    """The numbers of cells: theirs, or those in the file that one names."""
    if all(_is_number(cell) for cell in cells):
        return np.array([float(cell) for cell in cells], np.float32)
    path = _file_below(root, cells[0], "")
    with open(path, "rb") as file:
        value = load(get_file_extension(cells[0]))(file, normalize=True)
    return np.asarray(value, np.float32)


def describe(name: str, cells: Sequence[str], root: Path) -> dict[str, Any]:
    """The entry of a column, from its first row."""
    value = read_cells(cells, root)
    kind = "vector" if len(cells) > 1 else kind_of(cells[0])
    return {"name": name, "type": kind, "shape": list(value.shape)}


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _file_below(root: Path, cell: str, where: str) -> Path:
    """The file that a cell names, which must be inside the data set."""
    path = (root / cell).resolve() if "\0" not in cell else root
    at = f"{where}: " if where else ""
    if not path.is_relative_to(root.resolve()):
        raise Refused(
            "unreadable", f"{at}{cell[:100]!r} leads out of the data set", None, cell[:100]
        )
    if get_file_extension(cell) not in (*IMAGES, *ARRAYS):
        text = f"{at}{cell[:100]!r} is neither a number nor a file of a known kind"
        raise Refused("unreadable", text, f"known are {', '.join((*IMAGES, *ARRAYS))}", cell[:100])
    if not path.is_file():
        raise Refused("unreadable", f"{at}there is no file {cell[:100]!r}", None, cell[:100])
    if path.stat().st_size > MAX_CELL_FILE:
        raise Refused("too_large", f"{at}{cell[:100]!r} is larger than {MAX_CELL_FILE >> 20} MiB")
    return path
