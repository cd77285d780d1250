# SPDX-License-Identifier: Apache-2.0
"""The index of a console's folder: projects, versions, trials and data sets, in SQLite.

What trials have measured is in their own files; the index can be made again from these.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

from nnl.console.documents.document import Document, parse
from nnl.console.errors import Refused, missing
from nnl.core.parameters.atomic import try_lock

# What brings an index of version i to i + 1.
MIGRATIONS = (
    """
    CREATE TABLE project (id TEXT PRIMARY KEY, name TEXT NOT NULL, created REAL NOT NULL,
        changed REAL NOT NULL, head TEXT, deleted INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE document (id TEXT PRIMARY KEY, body TEXT NOT NULL);
    CREATE TABLE version (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
        project TEXT NOT NULL REFERENCES project, parent TEXT, document TEXT NOT NULL,
        created REAL NOT NULL, note TEXT NOT NULL DEFAULT '');
    CREATE INDEX version_project ON version (project, number);
    CREATE TABLE trial (id TEXT PRIMARY KEY, project TEXT NOT NULL, number INTEGER NOT NULL,
        name TEXT NOT NULL, kind TEXT NOT NULL, status TEXT NOT NULL, version TEXT,
        seed INTEGER NOT NULL DEFAULT 0, config TEXT NOT NULL DEFAULT '{}',
        environment TEXT NOT NULL DEFAULT '{}', weights_from TEXT, pid INTEGER, pid_start REAL,
        created REAL NOT NULL, started REAL, ended REAL, epoch INTEGER NOT NULL DEFAULT 0,
        max_epoch INTEGER NOT NULL DEFAULT 0, eta_s REAL, parameters INTEGER NOT NULL DEFAULT 0,
        multiply_adds INTEGER NOT NULL DEFAULT 0, best_name TEXT, best_value REAL,
        best_epoch INTEGER, last TEXT NOT NULL DEFAULT '{}', note TEXT NOT NULL DEFAULT '',
        tags TEXT NOT NULL DEFAULT '[]', pinned INTEGER NOT NULL DEFAULT 0,
        locked INTEGER NOT NULL DEFAULT 0, deleted INTEGER NOT NULL DEFAULT 0, search TEXT,
        search_number INTEGER, error TEXT, wanted TEXT, line INTEGER NOT NULL DEFAULT 0,
        offset INTEGER NOT NULL DEFAULT 0);
    CREATE INDEX trial_project ON trial (project, created);
    CREATE TABLE metric (trial TEXT NOT NULL, name TEXT NOT NULL, epoch INTEGER NOT NULL,
        iteration INTEGER NOT NULL, value REAL, PRIMARY KEY (trial, name, epoch)) WITHOUT ROWID;
    CREATE TABLE dataset (id TEXT PRIMARY KEY, name TEXT NOT NULL, csv TEXT NOT NULL,
        sha256 TEXT NOT NULL, columns TEXT NOT NULL, rows INTEGER NOT NULL, bytes INTEGER NOT NULL,
        created REAL NOT NULL, deleted INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE search (id TEXT PRIMARY KEY, project TEXT NOT NULL, version TEXT NOT NULL,
        settings TEXT NOT NULL, status TEXT NOT NULL, created REAL NOT NULL, ended REAL,
        candidates TEXT NOT NULL DEFAULT '[]');
    CREATE TABLE plugin_run (id TEXT PRIMARY KEY, plugin TEXT NOT NULL, sha256 TEXT NOT NULL,
        arguments TEXT NOT NULL, trial TEXT, status TEXT NOT NULL, created REAL NOT NULL,
        ended REAL, error TEXT);
    CREATE TABLE trust (plugin TEXT PRIMARY KEY, sha256 TEXT NOT NULL, at REAL NOT NULL);
    CREATE TABLE audit (at REAL NOT NULL, what TEXT NOT NULL, id TEXT NOT NULL);
    """,
    """
    ALTER TABLE plugin_run ADD COLUMN server INTEGER;
    ALTER TABLE plugin_run ADD COLUMN server_start REAL;
    """,
    "ALTER TABLE search ADD COLUMN stopped_s REAL NOT NULL DEFAULT 0",
)
MAX_NAME = 200


def is_writable(folder: Path) -> bool:
    """Whether a console's folder may be written, or made where there is none."""
    root = folder / ".nnl"
    path = next(p for p in (root, folder, *folder.resolve().parents) if p.exists())
    files = [f for f in (root / "console.db", root / "leader") if f.exists()]
    return all(os.access(p, os.W_OK) for p in (path, *files))


def new_id() -> str:
    """An id that nothing has."""
    return secrets.token_hex(6)


class Store:
    """The index in `folder/.nnl/console.db`. Safe to use from several threads and processes.

    Attributes:
        writable: Whether the folder may be written. Of one that may not, this is a copy of its
            index as it was.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / ".nnl"
        self.writable = is_writable(folder)
        self._lock = RLock()
        self._leads, self._leader = False, -1
        self._copy = None if self.writable else tempfile.TemporaryDirectory(prefix="nnl_console_")
        path = self.root / "console.db"
        if self._copy is None:
            self.root.mkdir(parents=True, exist_ok=True)
            self._leader = os.open(self.root / "leader", os.O_CREAT | os.O_RDWR, 0o600)
        elif not path.exists():
            raise PermissionError(f"{folder} cannot be written, and has nothing to show")
        else:  # with what was not yet written back: SQLite reads no such index in place
            for file in self.root.glob("console.db*"):
                if not file.name.endswith("-shm"):
                    shutil.copyfile(file, Path(self._copy.name) / file.name)
            path = Path(self._copy.name) / "console.db"
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._shows_only = False
        self._migrate()
        self._shows_only = not self.writable

    def _migrate(self) -> None:
        with self.change() as db:  # of two processes one waits, and finds it done
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > len(MIGRATIONS):
                raise ValueError(
                    f"{self.root}: its index is of version {version}, this nnl knows "
                    f"{len(MIGRATIONS)}: use a newer one"
                )
            for i in range(version, len(MIGRATIONS)):
                for statement in MIGRATIONS[i].split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {i + 1}")

    def close(self) -> None:
        with self._lock:
            self._db.close()
            if self._leader >= 0:
                os.close(self._leader)  # another process may lead now
                self._leader = -1
            if self._copy is not None:
                self._copy.cleanup()

    def part(self, name: str) -> Path:
        """A folder beside the index, made if there is none."""
        path = self.root / name
        if self.writable:
            path.mkdir(exist_ok=True)
        return path

    def leads(self) -> bool:
        """Whether this process runs the trials and searches of the folder. Of several that use it
        the first one does, and when that ends, another."""
        with self._lock:
            if not self._leads and self._leader >= 0:
                self._leads = try_lock(self._leader) is not False
            return self._leads

    def changed_elsewhere(self) -> int:
        """A number that is another one after another process has changed something."""
        with self._lock:
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    # ---- the database ----

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it, or nothing.

        Raises:
            Refused: The folder cannot be written.
        """
        if self._shows_only:
            raise Refused("read_only", f"{self.folder} cannot be written: nothing can be changed")
        with self._lock:
            nested = self._db.in_transaction
            if not nested:
                self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                if not nested and self._db.in_transaction:  # a full disk has ended it
                    self._db.execute("ROLLBACK")
                raise
            if not nested:
                self._db.execute("COMMIT")

    def rows(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The rows of a query."""
        with self._lock:
            return [dict(row) for row in self._db.execute(sql, values)]

    def row(self, sql: str, *values: Any) -> dict[str, Any] | None:
        """The first row of a query."""
        found = self.rows(sql, *values)
        return found[0] if found else None

    def insert(self, table: str, values: Mapping[str, Any]) -> None:
        """A new row."""
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        with self.change() as db:
            db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))

    def update(self, table: str, key: str, values: Mapping[str, Any]) -> None:
        """Change the row with this id."""
        sets = ", ".join(f"{name} = ?" for name in values)
        with self.change() as db:
            db.execute(f"UPDATE {table} SET {sets} WHERE id = ?", (*values.values(), key))

    def audit(self, what: str, key: str) -> None:
        """Write down that something was changed which may matter later."""
        with self.change() as db:
            db.execute("INSERT INTO audit VALUES (?, ?, ?)", (time.time(), what, key))

    # ---- projects ----

    def projects(self, deleted: bool = False) -> list[dict[str, Any]]:
        """All projects, the one changed last first."""
        return self.rows(f"{_PROJECTS} WHERE (deleted > 0) = ? ORDER BY changed DESC", int(deleted))

    def project(self, key: str) -> dict[str, Any]:
        """One project, which may be in the trash."""
        found = self.row(f"{_PROJECTS} WHERE id = ?", key)
        if found is None:
            raise missing("project", key)
        return found

    def add_project(self, name: str, document: Document) -> dict[str, Any]:
        """A new project with its first version."""
        key, now = new_id(), time.time()
        with self.change():
            self.insert(
                "project",
                {"id": key, "name": checked_name(name), "created": now, "changed": now},
            )
            self._add_version(key, None, document, "")
            self.audit("project made", key)
        return self.project(key)

    def rename_project(self, key: str, name: str) -> dict[str, Any]:
        self.project(key)
        self.update("project", key, {"name": checked_name(name), "changed": time.time()})
        return self.project(key)

    def delete_project(self, key: str, deleted: bool = True) -> None:
        """Move a project to the trash, or out of it."""
        self.project(key)
        self.update(
            "project", key, {"deleted": int(deleted and time.time()), "changed": time.time()}
        )
        self.audit("project deleted" if deleted else "project restored", key)

    # ---- versions ----

    def versions(self, project: str) -> list[dict[str, Any]]:
        """The versions of a project, newest first."""
        self.project(project)
        return self.rows(
            "SELECT id, parent, created, note, (SELECT count(*) FROM trial WHERE trial.version = "
            "version.id AND NOT trial.deleted) AS trials FROM version WHERE project = ? "
            "ORDER BY number DESC",
            project,
        )

    def version(self, key: str) -> dict[str, Any]:
        found = self.row("SELECT id, project, parent, created, note FROM version WHERE id = ?", key)
        if found is None:
            raise missing("version", key)
        return found

    def document(self, version: str) -> Document:
        """What a version holds."""
        found = self.row(
            "SELECT body FROM document JOIN version ON version.document = document.id "
            "WHERE version.id = ?",
            version,
        )
        if found is None:
            raise missing("version", version)
        return parse(json.loads(found["body"]))

    def save(
        self, project: str, head: str | None, document: Document, note: str = ""
    ) -> tuple[dict[str, Any], bool]:
        """A new version after `head`; returns it, and whether it is new.

        Raises:
            Refused: Another version was saved meanwhile; nothing is changed.
        """
        with self.change():
            present = self.project(project)["head"]
            if head != present:
                raise Refused(
                    "conflict",
                    "this project was saved somewhere else meanwhile",
                    "look at what changed there, then save again or load it",
                    present,
                    412,
                )
            if head is not None and self.document(head).key() == document.key():
                return self.version(head), False
            return self._add_version(project, head, document, note), True

    def revert(self, project: str, head: str | None, version: str) -> dict[str, Any]:
        """A new version that equals an old one: history never shrinks."""
        old = self.version(version)
        if old["project"] != project:
            raise missing("version", version)
        return self.save(project, head, self.document(version), f"back to {version[:8]}")[0]

    def _add_version(
        self, project: str, parent: str | None, document: Document, note: str
    ) -> dict[str, Any]:
        content, now = document.key(), time.time()
        count = self.rows("SELECT count(*) AS n FROM version WHERE project = ?", project)[0]["n"]
        text = f"{project} {parent} {content} {count}"
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        with self.change() as db:
            body = json.dumps(document.to_json())
            db.execute("INSERT OR IGNORE INTO document VALUES (?, ?)", (content, body))
            self.insert(
                "version",
                {
                    "id": key,
                    "project": project,
                    "parent": parent,
                    "document": content,
                    "created": now,
                    "note": note[:2000],
                },
            )
            self.update("project", project, {"head": key, "changed": now})
        return self.version(key)


_PROJECTS = (
    "SELECT id, name, created, changed, head, deleted, (SELECT count(*) FROM trial WHERE "
    "trial.project = project.id AND NOT trial.deleted) AS trials FROM project"
)


def checked_name(name: Any) -> str:
    """The name of a project or trial, or a Refused."""
    if not isinstance(name, str) or not 0 < len(name.strip()) <= MAX_NAME:
        raise Refused("invalid", f"the name is {str(name)[:60]!r}, wanted 1 to {MAX_NAME} letters")
    return name.strip()
