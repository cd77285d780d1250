# SPDX-License-Identifier: Apache-2.0
"""Data sets of a console: .csv files and the files that their cells name, each in a folder."""

from __future__ import annotations

import csv
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from nnl.console.data.pictures import png, shown, thumbnail
from nnl.console.data.tables import Array, described, kind_of, read_cells, read_table, variables
from nnl.console.data.uploads import BuildOptions
from nnl.console.errors import Refused, missing
from nnl.console.machine.sandbox import apart
from nnl.console.machine.store import Store, checked_name, new_id


class DataSets:
    """The data sets in `folder/.nnl/datasets`."""

    def __init__(self, store: Store) -> None:
        self.store, self.root = store, store.part("datasets")

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
            name = self._row(key)["name"]
            hint = "upload it again and choose it in the configuration, or put the file back"
            raise Refused(
                "not_found", f"the file of the data set {name!r} is gone", hint, str(path)
            )
        return path

    def delete(self, key: str) -> None:
        """Move a data set to the trash; its files stay until that is emptied."""
        self._row(key)
        self.store.update("dataset", key, {"deleted": int(time.time())})
        self.store.audit("data set deleted", key)

    def restore(self, key: str) -> dict[str, Any]:
        """Take a data set out of the trash."""
        self._row(key)
        self.store.update("dataset", key, {"deleted": 0})
        return self.one(key)

    # ---- new ones ----

    def add(self, upload: Path, name: str) -> list[dict[str, Any]]:
        """The data sets of an uploaded file: a .csv, or a .zip with some and their files."""
        found: list[dict[str, Any]] = self._received("tables", upload, name)["datasets"]
        return found

    def build(self, upload: Path, name: str, options: BuildOptions) -> dict[str, Any]:
        """Data sets of an archive with a folder of pictures for every class, or with boxes.

        Returns:
            "datasets", and "left_out": the names of the pictures that could not be read.
        """
        return self._received("pictures", upload, name, options=asdict(options))

    def _received(self, task: str, upload: Path, name: str, **more: Any) -> dict[str, Any]:
        folder = self.root / new_id()
        folder.mkdir()
        try:
            found = apart(task, upload, name, folder=str(folder), name=name, **more)
            with self.store.change():
                sets = [self._insert(folder / entry["csv"], entry) for entry in found["datasets"]]
            return {**found, "datasets": sets}
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _register(self, path: Path, name: str) -> dict[str, Any]:
        return self._insert(path, described(path, name))

    def _insert(self, path: Path, entry: dict[str, Any]) -> dict[str, Any]:
        key = new_id()
        self.store.insert(
            "dataset",
            {
                "id": key,
                "name": checked_name(entry["name"]),
                "csv": str(path.relative_to(self.root)),
                "sha256": entry["sha256"],
                "columns": json.dumps(entry["columns"]),
                "rows": entry["rows"],
                "bytes": entry["bytes"],
                "created": time.time(),
            },
        )
        return self.one(key)

    def sample(self, name: str) -> list[dict[str, Any]]:
        """The data sets of a sample that ships in scikit-learn, for training and validation; made
        once."""
        from nnl import datasets

        if name not in datasets.SAMPLES:
            raise missing("sample", name[:60])
        known = {d["name"]: d for d in self.all() if not d["missing"]}
        made = [known.get(f"{name} {part}") for part in ("train", "valid")]
        if all(made):
            return [d for d in made if d is not None]
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
        """Of every column; of some rows only where there are very many, or large ones."""
        found: dict[str, Any] = apart("statistics", self.path(key), self.one(key)["name"])
        return found
