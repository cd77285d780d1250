# SPDX-License-Identifier: Apache-2.0
"""What was deleted: it can be taken back until the trash is emptied, by hand or by age."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from nnl.console.data.datasets import DataSets
from nnl.console.trials.comparing import listed
from nnl.console.trials.trials import Trials

_PARTS = {"trial": ("metric",), "project": ("version", "search"), "dataset": ()}
KEEP_S = 30 * 86400.0  # how long a server that begins leaves it


class Trash:
    """The deleted projects, trials and data sets of a console.

    Trials that are pinned or locked stay, and so do the projects that have one. Data sets stay
    while a trial or a project that is not deleted names them.
    """

    def __init__(self, trials: Trials, datasets: DataSets) -> None:
        self.store, self.trials, self.datasets = trials.store, trials, datasets

    def contents(self) -> dict[str, Any]:
        """All that is in it."""
        datasets = self.store.rows("SELECT id FROM dataset WHERE deleted ORDER BY deleted DESC")
        return {
            "projects": self.store.projects(True),
            "trials": listed(self.trials, deleted=True, limit=10_000)["trials"],
            "datasets": [self.datasets.one(row["id"]) for row in datasets],
        }

    def empty(self, older_than_s: float = 0.0) -> dict[str, int]:
        """Remove for ever what was deleted that long ago.

        Returns:
            How many of each kind are gone, and the bytes that are free now.
        """
        before = time.time() - older_than_s
        removed = {"trials": 0, "datasets": 0, "projects": 0, "bytes": 0}
        projects = self.store.rows(
            "SELECT id FROM project WHERE deleted AND deleted <= ? AND NOT EXISTS (SELECT 1 FROM "
            "trial WHERE trial.project = project.id AND (pinned OR locked OR status = 'running'))",
            before,
        )
        gone = {row["id"] for row in projects}
        trials = self.store.rows(
            "SELECT id, project FROM trial WHERE NOT pinned AND NOT locked AND status != 'running' "
            "AND ((deleted AND deleted <= ?) OR project IN (SELECT value FROM json_each(?)))",
            before,
            json.dumps(sorted(gone)),
        )
        for row in trials:
            self._remove("trial", row["id"], self.trials.folder(row["id"]), removed)
        for key in gone:
            self._remove("project", key, None, removed)
        for row in self.store.rows(
            "SELECT id, csv FROM dataset WHERE deleted AND deleted <= ?", before
        ):
            if not self._is_used(row["id"]):
                self._remove_data(row, removed)
        return removed

    def _remove(self, kind: str, key: str, folder: Path | None, removed: dict[str, int]) -> None:
        with self.store.change() as db:  # first what knows of the files, then these
            for table in _PARTS[kind]:
                db.execute(f"DELETE FROM {table} WHERE {kind} = ?", (key,))
            db.execute(f"DELETE FROM {kind} WHERE id = ?", (key,))
            if kind == "project":
                db.execute("DELETE FROM document WHERE id NOT IN (SELECT document FROM version)")
            self.store.audit(f"{kind} removed", key)
        removed[f"{kind}s"] += 1
        if folder is not None:
            removed["bytes"] += _size(folder)
            shutil.rmtree(folder, ignore_errors=True)

    def _remove_data(self, row: dict[str, Any], removed: dict[str, int]) -> None:
        """Remove a data set, and the folder that it is in with the last one of that."""
        path = self.datasets.root / row["csv"]
        folder = self.datasets.root / Path(row["csv"]).parts[0]
        self._remove("dataset", row["id"], None, removed)
        others = self.store.row(
            "SELECT 1 FROM dataset WHERE csv LIKE ? LIMIT 1", f"{folder.name}/%"
        )
        removed["bytes"] += _size(path if others else folder)
        if others:
            path.unlink(missing_ok=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)

    def _is_used(self, key: str) -> bool:
        """Whether a trial or a project that is there names a data set."""
        found = self.store.row(
            "SELECT 1 FROM trial WHERE instr(config, ?) UNION ALL SELECT 1 FROM project JOIN "
            "version ON version.id = project.head JOIN document ON document.id = version.document "
            "WHERE NOT project.deleted AND instr(document.body, ?) LIMIT 1",
            key,
            key,
        )
        return found is not None or any(
            path.read_text() == json.dumps(key)
            for path in self.trials.root.glob("*/dataset.json")  # of evaluations
        )


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(p.lstat().st_size for p in files if p.is_file())
