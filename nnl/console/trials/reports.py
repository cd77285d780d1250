# SPDX-License-Identifier: Apache-2.0
"""Reports of `nnl bench --json` in the folder `reports`: listed, read, brought, compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nnl.console.errors import Refused, missing
from nnl.core.parameters.atomic import replacing
from nnl.deep500.columns import columns, plots
from nnl.deep500.report import Report, compare, load

MAX_BYTES = 32 * 2**20
MAX_ROWS = 200_000
_SIMPLE = (str, int, float, bool, type(None))
_Mark = tuple[str, int, int]  # a file's name, time and size


class Reports:
    """The reports of a console's folder, by their ids. Other files there are left out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "reports"
        self._known: dict[_Mark, tuple[str, Report] | None] = {}

    def all(self) -> list[dict[str, Any]]:
        """What they are about, the newest first."""
        found = [_head(key, report) for key, report in self._files().items()]
        return sorted(found, key=lambda head: head["created"], reverse=True)

    def one(self, key: str) -> dict[str, Any]:
        """A whole report."""
        report = self._report(key)
        drawings = plots(report.kind, report.rows)
        return {**_head(key, report), **_table(report.rows), "plots": drawings}

    def compared(self, first: str, second: str) -> dict[str, Any]:
        """What both have measured, with the ratio of the second to the first."""
        return _table(compare(self._report(first), self._report(second)))

    def add(self, path: Path) -> dict[str, Any]:
        """Keep a file that was brought.

        Raises:
            Refused: It is no report, or was changed after it was written.
        """
        try:
            report = read(path)
        except ValueError as error:
            text = str(error).replace(str(path), path.name)
            raise Refused("unreadable", text, "nnl bench --json writes one", path.name) from None
        self.folder.mkdir(exist_ok=True)
        key = report.id
        with replacing(self.folder / f"{key}.json") as whole:
            whole.write_bytes(path.read_bytes())
        return _head(key, report)

    def _report(self, key: str) -> Report:
        found = self._files().get(key)
        if found is None:
            raise missing("report", key[:40])
        return found

    def _files(self) -> dict[str, Report]:
        """The reports by id; a file is read again only when it has changed."""
        known: dict[_Mark, tuple[str, Report] | None] = {}
        for path in sorted(self.folder.glob("*.json")):
            if path.is_symlink() or not path.is_file():
                continue
            state = path.stat()
            mark = (path.name, state.st_mtime_ns, state.st_size)
            if mark in self._known:
                known[mark] = self._known[mark]
                continue
            try:
                report = read(path)
                known[mark] = report.id, report
            except (ValueError, OSError):
                known[mark] = None
        self._known = known
        return dict(found for found in known.values() if found is not None)


def read(path: Path) -> Report:
    """A report whose parts are what pages can show.

    Raises:
        ValueError: It is too large, is none, or holds something else.
    """
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"{path}: it has {size} bytes, wanted at most {MAX_BYTES >> 20} MiB")
    report = load(path)
    try:
        json.dumps(vars(report), ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    rows, tables = report.rows, (report.settings, report.versions, report.hardware)
    texts = (report.kind, report.created, report.ended)
    if not (
        isinstance(rows, list)
        and len(rows) <= MAX_ROWS
        and all(isinstance(row, dict) and _is_flat(row.values()) for row in rows)
        and all(isinstance(table, dict) for table in tables)
        and all(isinstance(text, str) for text in texts)
        and isinstance(report.command, list)
        and _is_flat(report.command)
    ):
        raise ValueError(f"{path}: its parts are not those of a report")
    return report


def _table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"rows": rows, "columns": columns(rows)}


def _is_flat(values: Any) -> bool:
    return all(isinstance(value, _SIMPLE) for value in values)


def _head(key: str, report: Report) -> dict[str, Any]:
    backends = dict.fromkeys(str(row["backend"]) for row in report.rows if row.get("backend"))
    return {
        "id": key,
        "kind": report.kind,
        "created": report.created,
        "ended": report.ended,
        "command": " ".join(map(str, report.command)),
        "backends": list(backends),
        "count": len(report.rows),
        "settings": report.settings,
        "versions": report.versions,
        "hardware": report.hardware,
    }
