# SPDX-License-Identifier: Apache-2.0
"""Plugins: scripts of this package or of the folder `plugins`, and their runs as child processes.

Those in the folder are listed, and run only after somebody has trusted what they are now.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnl.console.data.datasets import DataSets
from nnl.console.data.tables import read_table, variables
from nnl.console.errors import Refused, missing
from nnl.console.machine import processes
from nnl.console.machine.store import Store, new_id
from nnl.console.palette.forms import Field, Form, argument, read_form
from nnl.console.trials.trials import Trials

SHIPPED = Path(__file__).parents[1] / "plugins"
TIME_LIMIT_S = 1800.0
MAX_SOURCE = 2**20
MAX_RUNNING = 4
MAX_FILE = 2**28  # bytes of what it prints, and of each file that it writes
MAX_PIXELS = 2**25  # of a picture that a page shows; larger ones are there to download
_KINDS = {".png": "image", ".csv": "csv", ".json": "text", ".txt": "text"}


class Plugins:
    """The plugins of a console."""

    def __init__(self, store: Store, datasets: DataSets, trials: Trials) -> None:
        self.store, self.datasets, self.trials = store, datasets, trials
        self.folder = store.folder / "plugins"
        self.root = store.part("runs")
        self._running: dict[str, processes.Process] = {}
        self._stopped: set[str] = set()
        self._lock = threading.RLock()

    # ---- the list ----

    def _paths(self) -> dict[str, tuple[Path, bool]]:
        """Scripts by id, and whether this package brings them; those of the folder cannot take the
        place of these."""
        found = {}
        if self.folder.is_dir():
            for path in sorted(self.folder.glob("*.py")):
                if not path.name.startswith("_") and not path.is_symlink():
                    found[path.stem] = (path, False)
        for path in sorted(SHIPPED.glob("*.py")):
            if not path.name.startswith("_"):
                found[path.stem] = (path, True)
        return found

    def all(self) -> list[dict[str, Any]]:
        return [self.one(key) for key in sorted(self._paths())]

    def one(self, key: str) -> dict[str, Any]:
        path, shipped = self._path(key)
        digest = _digest(path)
        row = self.store.row("SELECT sha256 FROM trust WHERE plugin = ?", key)
        entry = {
            "id": key,
            "title": key.replace("_", " ").capitalize(),
            "file": path.name,
            "shipped": shipped,
            "sha256": digest,
            "trusted": shipped or (row is not None and row["sha256"] == digest),
        }
        try:
            form = read_form(_source(path))
        except ValueError as error:
            return {**entry, "doc": "", "scope": "network", "error": str(error)}
        name = re.split(r"[:\n]", form.doc)[0]  # as it is written there: Grad-CAM
        if re.sub(r"\W", "", name).lower() == key.replace("_", ""):
            entry["title"] = name
        return {**entry, "doc": form.doc, "scope": form.scope, "error": None}

    def _path(self, key: str) -> tuple[Path, bool]:
        found = self._paths().get(key)
        if found is None:
            raise missing("plugin", key)
        return found

    def form(self, key: str) -> Form:
        path, _ = self._path(key)
        try:
            return read_form(_source(path))
        except ValueError as error:
            raise Refused("unreadable", f"{path.name}: {error}", None, path.name) from None

    def trust(self, key: str, sha256: str) -> dict[str, Any]:
        """Allow what a plugin is now; a file that changes is asked about again."""
        if _digest(self._path(key)[0]) != sha256:
            raise Refused("conflict", "the file has changed meanwhile", "look at it again", key)
        with self.store.change() as db:
            db.execute("INSERT OR REPLACE INTO trust VALUES (?, ?, ?)", (key, sha256, time.time()))
        self.store.audit("plugin trusted", key)
        return self.one(key)

    # ---- runs ----

    def run(
        self,
        key: str,
        given: Mapping[str, Any],
        trial: str | None = None,
        row: int | None = None,
    ) -> dict[str, Any]:
        """Start a plugin with what its form was filled with.

        Args:
            given: Values by names of fields. A csv is the id of a data set, a model that of a
                trial, an image DATASET/ROW/COLUMN; no value is taken as a path of this machine.
            trial, row: What fills fields of the kinds model, csv and row that are not given.
        """
        entry = self.one(key)
        if not entry["trusted"]:
            raise Refused("untrusted", f"{entry['file']} may not run yet", "allow it first", key)
        with self._lock:
            self._look()
            if len(self._running) >= MAX_RUNNING:
                raise Refused("busy", f"{MAX_RUNNING} plugins are running", "wait for one to end")
            form = self.form(key)
            path, _ = self._path(key)
            run = new_id()
            folder = self.root / run
            (folder / "out").mkdir(parents=True)
            words: list[str] = []
            unknown = set(given) - {f.name for f in form.fields}
            if unknown:
                raise Refused("invalid", f"there is no field {sorted(unknown)[0][:40]!r}")
            for f in form.fields:
                value = self._value(f, given.get(f.name), trial, row)
                if value is None or value == "":
                    if f.required:
                        raise Refused("invalid", f"{f.name} is not given", None, f.name)
                    continue
                try:
                    words += argument(f, value)
                except ValueError as error:
                    raise Refused("invalid", str(error), None, f.name) from None
            copy = folder / path.name  # what was trusted runs, whatever is saved meanwhile
            copy.write_text(_source(path), encoding="utf-8")
            if _digest(copy) != entry["sha256"]:
                raise Refused("conflict", "the file has changed meanwhile", None, key)
            command = [sys.executable, str(copy), *words]
            process = processes.start(command, folder / "log.txt", folder / "out", MAX_FILE)
            self._running[run] = process
            self.store.insert(
                "plugin_run",
                {
                    "id": run,
                    "plugin": key,
                    "sha256": entry["sha256"],
                    "arguments": json.dumps(dict(given)),
                    "trial": trial,
                    "status": "running",
                    "created": time.time(),
                    "server": os.getpid(),
                    "server_start": processes.started_at(os.getpid()),
                },
            )
        return self.result(run)

    def _value(self, f: Field, value: Any, trial: str | None, row: int | None) -> Any:
        """The value of a field as the plugin gets it: files by what the console has."""
        if f.kind == "model":
            key = value if isinstance(value, str) and value else trial
            return str(self.trials.trained(key)) if key else None
        if f.kind == "csv" and not f.name.startswith("out"):
            key = value if isinstance(value, str) and value else self._dataset(f, trial)
            return str(self.datasets.path(key)) if key else None
        if f.kind == "row":
            return row if value is None else value
        if f.kind == "image" and not f.name.startswith("out"):
            return self._image(value) if value else None
        if f.kind in ("image", "csv", "dir", "file") or f.name.startswith("out"):
            return _inside(f, f.default if value is None else value)
        return f.default if value is None else value

    def _dataset(self, f: Field, trial: str | None) -> str | None:
        """The data set of a trial: that of the training for a field that is called so."""
        if trial is None:
            return None
        chosen = self.trials.one(trial, True)["config"]["dataset"]
        evaluated = self.trials.folder(trial) / "dataset.json"
        if "train" in f.name:
            return chosen.get("train")
        if evaluated.is_file():
            return str(json.loads(evaluated.read_text()))
        return chosen.get("valid") or chosen.get("train")

    def _image(self, value: Any) -> str:
        """The file of a cell, named DATASET/ROW/COLUMN."""
        try:
            key, number, column = str(value).split("/", 2)
            path = self.datasets.path(key)
            header, rows = read_table(path)
            cell = rows[int(number)][variables(header)[column][0][0]]
        except (ValueError, LookupError):
            raise missing("image", str(value)[:80]) from None
        return str(path.parent / cell)

    # ---- what has become of them ----

    def _look(self) -> None:
        """Notice which runs have ended, and end those that take too long."""
        with self._lock:
            for row in self.store.rows("SELECT * FROM plugin_run WHERE status = 'running'"):
                process = self._running.get(row["id"])
                if process is None and processes.is_running(row["server"], row["server_start"]):
                    continue  # another process of the folder waits for it
                code = process.poll() if process is not None else -1
                if code is None and time.time() - row["created"] < TIME_LIMIT_S:
                    continue
                error = None
                if process is not None and code is None:
                    _kill(process)
                    error = f"it has taken longer than {TIME_LIMIT_S / 60:.0f} minutes"
                elif process is None:
                    error = "the server was started again while it ran"
                elif code != 0:
                    path = self.root / row["id"] / "log.txt"
                    log = processes.tail(path, 4000).strip()
                    error = log.splitlines()[-1] if log else f"it has ended with code {code}"
                    if code is not None and code < 0:  # it could not say why itself
                        names = {s.value: s.name for s in signal.Signals}  # not of all numbers
                        error = f"it was ended by the signal {names.get(-code, -code)}"
                    if processes.size_of(path) >= MAX_FILE:
                        error = f"it has printed more than {MAX_FILE / 2**20:.0f} MiB"
                    if row["id"] in self._stopped:
                        error = "it was stopped"
                self._running.pop(row["id"], None)
                status = "finished" if error is None else "failed"
                values = {"status": status, "ended": time.time(), "error": error}
                self.store.update("plugin_run", row["id"], values)

    def result(self, run: str) -> dict[str, Any]:
        """A run, with what it has written so far."""
        self._look()
        row = self.store.row("SELECT * FROM plugin_run WHERE id = ?", run)
        if row is None:
            raise missing("run", run)
        folder = self.root / run
        files = sorted(p for p in (folder / "out").rglob("*") if p.is_file() and not p.is_symlink())
        artifacts = [
            {
                "id": str(p.relative_to(folder / "out")),
                "name": p.name,
                "kind": _kind(p),
                "bytes": p.stat().st_size,
            }
            for p in files[:1000]
        ]
        names = ("id", "plugin", "trial", "status", "created", "ended")
        error = row["error"]
        return {
            **{n: row[n] for n in names},
            "args": json.loads(row["arguments"]),
            "log": processes.tail(folder / "log.txt", 40_000),
            "artifacts": artifacts,
            "error": error and Refused("failed", error).to_json(),
        }

    def artifact(self, run: str, name: str) -> Path:
        """A file that a run has written."""
        root = (self.root / run / "out").resolve()
        path = (root / name).resolve() if "\0" not in name else root
        if not run.isalnum() or not path.is_relative_to(root) or not path.is_file():
            raise missing("artifact", name[:100])
        return path

    def cancel(self, run: str) -> dict[str, Any]:
        with self._lock:
            process = self._running.get(run)
            if process is not None:
                self._stopped.add(run)
                _kill(process)
                process.wait(10)
        return self.result(run)


def _kind(path: Path) -> str:
    """How a page shows a file."""
    kind = _KINDS.get(path.suffix, "file")
    if kind == "image":
        with open(path, "rb") as file:
            head = file.read(24)  # signature, length and name of the first chunk, width, height
        width, height = (int.from_bytes(head[i : i + 4], "big") for i in (16, 20))
        return kind if 0 < width * height <= MAX_PIXELS else "file"
    return kind


def _kill(process: processes.Process) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)  # what it has started too
    except ProcessLookupError:
        pass


def _inside(f: Field, value: Any) -> Any:
    """A name of a file that the plugin writes into its own folder."""
    if not isinstance(value, str) or not value:
        return value
    path = Path(value)
    if path.is_absolute() or ".." in path.parts:
        raise Refused("invalid", f"{f.name} is {value[:60]!r}, wanted a plain name", None, f.name)
    return value


def _source(path: Path) -> str:
    if path.stat().st_size > MAX_SOURCE:
        raise ValueError(f"it is longer than {MAX_SOURCE} bytes")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is no text: {error}") from None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
