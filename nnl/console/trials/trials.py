# SPDX-License-Identifier: Apache-2.0
"""Trials: a version of a project that is trained by a child process, and all that it records.

Each has a folder, `.nnl/trials/ID`, with what the child was given and what it writes. The events
that it appends to `out/events.jsonl` are the truth; the index only repeats them, so a server that
was killed reads on where it was.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nnl.console.data.datasets import DataSets
from nnl.console.documents.analysis import analyse
from nnl.console.documents.document import Document, merged, parse
from nnl.console.documents.training import Data, write_training
from nnl.console.errors import Refused, full_disk, missing
from nnl.console.machine import processes
from nnl.console.machine.processes import size_of
from nnl.console.machine.store import Store, checked_name, new_id
from nnl.console.trials.entries import environment, error_text, problem_said, shown
from nnl.console.trials.events import Follower
from nnl.converters.nnp.archive import read_files
from nnl.converters.nnp.parameter_files import Stored

logger = logging.getLogger("nnl")
LIVE = ("queued", "running", "suspended")
ENDED = ("finished", "failed", "interrupted")
KINDS = ("train", "evaluate", "profile")
NNL = (sys.executable, "-m", "nnl.cli.main")
_TICK_S = 0.1


class Trials:
    """The trials of a console, and the thread that starts and follows them.

    Where several processes use one folder, a server and a command say, the trials of all are
    started and followed by the one that leads: two would take each other's ends for deaths.

    Args:
        children: How many run at once.
        command: What stands before the arguments of `nnl`.
    """

    def __init__(
        self, store: Store, datasets: DataSets, children: int, command: Sequence[str] = NNL
    ) -> None:
        self.store, self.datasets, self.children, self.command = store, datasets, children, command
        self.root, self.blobs = store.part("trials"), store.part("blobs")
        self._processes: dict[str, processes.Process] = {}
        self._followers: dict[str, Follower] = {}
        self._lock = threading.RLock()
        self._end = threading.Event()
        self.changes = 0  # how often a trial has changed, so that lists know
        self._thread = threading.Thread(target=self._run, daemon=True, name="trials")

    def begin(self) -> None:
        """Start and follow trials from now on, those of an earlier server too."""
        self._thread.start()

    def close(self) -> None:
        """Stop following; trials go on."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        elsewhere = self.store.changed_elsewhere()
        while not self._end.wait(_TICK_S):
            try:
                if self.store.leads():
                    self.tick()
                elsewhere, before = self.store.changed_elsewhere(), elsewhere
                self.changes += elsewhere != before
            except Exception:  # noqa: BLE001  # the thread must go on, and the log says why not
                logger.exception("trials")
                self._end.wait(5)  # as where the disk is full: not ten times a second

    # ---- one step ----

    def tick(self) -> None:
        """Read what trials have written, notice which have ended, start those that wait."""
        with self._lock:
            running = self.store.rows("SELECT * FROM trial WHERE status = 'running'")
            for row in running:
                self._follow(row)
            free = self.children - len(
                self.store.rows("SELECT 1 FROM trial WHERE status = 'running'")
            )
            if free > 0:
                queue = self.store.rows(
                    "SELECT * FROM trial WHERE status = 'queued' AND NOT deleted "
                    "ORDER BY created LIMIT ?",
                    free,
                )
                for row in queue:
                    with self.store.change():  # meanwhile none can cancel it
                        if self._row(row["id"])["status"] == "queued":
                            self._start(row)

    def _start(self, row: dict[str, Any]) -> None:
        folder = self.folder(row["id"])
        try:
            arguments = json.loads((folder / "command.json").read_text())
            arguments += ["-r"] if row["started"] is not None else []
            process = processes.start([*self.command, *arguments], folder / "log.txt", folder)
        except (OSError, ValueError) as error:
            what = error_text(f"it cannot be started: {error}", "train it again", str(folder))
            self._changed(row["id"], status="failed", ended=time.time(), error=what)
            return
        self._processes[row["id"]] = process
        begin = processes.started_at(process.pid)
        self._changed(
            row["id"], status="running", pid=process.pid, pid_start=begin, wanted=None,
            started=row["started"] or time.time(), ended=None, error=None,
        )  # fmt: skip

    def _follow(self, row: dict[str, Any]) -> None:
        key = row["id"]
        process = self._processes.get(key)
        code = process.poll() if process is not None else None
        alive = code is None and processes.is_running(row["pid"], row["pid_start"])
        follower = self._followers.get(key)
        if follower is None:
            path = self.folder(key) / "out" / "events.jsonl"
            follower = self._followers[key] = Follower(path, row["line"], row["offset"])
        facts, metrics = follower.read()
        try:
            if facts:
                self._write(key, facts, metrics)
        except BaseException:
            self._followers.pop(key)  # to be read again
            raise
        if not alive:
            if process is not None:  # it may have ended after it was asked
                code = process.wait()
            self._ended(row, code, follower)

    def _write(self, key: str, facts: dict[str, Any], metrics: list[tuple[Any, ...]]) -> None:
        with self.store.change() as db:
            db.executemany(
                "INSERT OR REPLACE INTO metric VALUES (?, ?, ?, ?, ?)", [(key, *m) for m in metrics]
            )
            self._changed(key, **facts)

    def _ended(self, row: dict[str, Any], code: int | None, follower: Follower) -> None:
        key = row["id"]
        self._processes.pop(key, None)
        self._followers.pop(key, None)
        wanted = (self.store.row("SELECT wanted FROM trial WHERE id = ?", key) or {})["wanted"]
        if follower.end is None:  # a server before this one may have read it already
            follower = Follower(self.folder(key) / "out" / "events.jsonl", 0, 0)
            follower.read()
        end = follower.end or {}
        said = end.get("status")
        error = None
        if wanted == "cancel":
            status = "interrupted"
        elif said == "suspended" or (wanted == "suspend" and said is None and code != 0):
            status = "suspended"  # perhaps before it could say so
        elif said == "finished" or (code == 0 and row["kind"] != "train"):
            status = "finished"
        elif said == "failed" or (code is not None and code > 0):
            status, error = "failed", self._reason(key, end)
            if json.loads(error)["code"] == "disk_full":  # its last epoch is there
                status = "interrupted"
        else:
            status = "interrupted"
            error = error_text(
                "its process has died", "resume it: it continues from its last saved epoch"
            )
        self._changed(key, status=status, ended=time.time(), pid=None, eta_s=None, error=error)

    def _reason(self, key: str, end: Mapping[str, Any]) -> str:
        """Why a trial failed: what it has said itself, else the end of its log."""
        found = end.get("error")
        if isinstance(found, dict):
            return error_text(**problem_said(found))
        if end.get("reason") == "nan":
            return error_text("the loss is no number any more", "lower the learning rate")
        lines = processes.tail(self.folder(key) / "log.txt", 8000).strip().splitlines()
        for line in reversed(lines):
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if isinstance(said, dict) and "error" in said:
                return error_text(**problem_said(said))
        if shutil.disk_usage(self.root).free < 2**20:
            return json.dumps(full_disk().to_json())
        return error_text(lines[-1] if lines else "it has ended without a word", "see its log")

    def _changed(self, key: str, **values: Any) -> None:
        self.store.update("trial", key, values)
        self.changes += 1

    # ---- new ones ----

    def add(
        self,
        project: str,
        version: str | None = None,
        kind: str = "train",
        config: Mapping[str, Any] | None = None,
        weights_from: Mapping[str, Any] | None = None,
        name: str | None = None,
        dataset: str | None = None,
        document: Document | None = None,
        search: tuple[str, int] | None = None,
    ) -> dict[str, Any]:
        """A new trial, which begins as soon as a place is free.

        Args:
            version: Of the project; its present one if None.
            config: Changes of the document's configuration.
            weights_from: {"trial": id} or {"blob": id}; what the document says if None.
            dataset: What is evaluated on, instead of the validation set.
            document: Instead of the version's, of a candidate of a search.
            search: The search and the number of its candidate.
        Raises:
            Refused: The document cannot be trained, or what it needs is not there.
        """
        if kind not in KINDS:
            raise Refused("invalid", f"kind is {kind!r}, wanted one of {', '.join(KINDS)}")
        version = version or self.store.project(project)["head"]
        document = document or self.store.document(version)
        document = parse({**document.to_json(), "config": merged(document.config, config or {})})
        weights_from = weights_from or document.weights_from
        weights = self.weights(weights_from)
        key = new_id()
        folder = self.folder(key)
        (folder / "out").mkdir(parents=True)
        try:
            totals = self._prepare(kind, document, weights, folder, weights_from, dataset)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        with self.store.change():
            number = (
                1
                + self.store.rows(
                    "SELECT coalesce(max(number), 0) AS n FROM trial WHERE project = ?", project
                )[0]["n"]
            )
            self.store.insert(
                "trial",
                {
                    "id": key,
                    "project": project,
                    "number": number,
                    "name": checked_name(name) if name else f"{kind} {number}",
                    "kind": kind,
                    "status": "queued",
                    "version": version,
                    "seed": document.config["seed"],
                    "config": json.dumps(document.config),
                    "environment": json.dumps(environment()),
                    "weights_from": json.dumps(weights_from) if weights_from else None,
                    "created": time.time(),
                    "max_epoch": document.config["max_epoch"],
                    "parameters": totals["parameters"],
                    "multiply_adds": totals["multiply_adds"],
                    "search": search[0] if search else None,
                    "search_number": search[1] if search else None,
                },
            )
        self.changes += 1
        return self.one(key)

    def _prepare(
        self,
        kind: str,
        document: Document,
        weights: Sequence[Stored],
        folder: Path,
        weights_from: Mapping[str, Any] | None,
        dataset: str | None,
    ) -> dict[str, Any]:
        """Write the files of a trial's child, and the arguments that it is started with."""
        chosen = document.config["dataset"]
        train = self.data(chosen.get("train")) if kind != "evaluate" else Data("")
        valid = self.data(chosen["valid"]) if chosen.get("valid") else None
        shapes = train.shapes or (valid.shapes if valid is not None else {})
        found = analyse(document, shapes)
        source, out = folder / "network.nnp", folder / "out"
        (folder / "document.json").write_text(json.dumps(document.to_json()))
        if kind == "evaluate":
            key = dataset or chosen.get("valid")
            if key is None:
                raise Refused("invalid", "there is no data set to evaluate on", "choose one")
            write_training(document, source, Data("", self.data(key).shapes), None, weights)
            arguments = ["forward", "-c", source, "-d", self.datasets.path(key), "-o", out]
            (folder / "dataset.json").write_text(json.dumps(key))
        else:
            write_training(document, source, train, valid, weights)
            if not found["loss"]:
                text = "there is no loss to train with"
                raise Refused("invalid", text, "add a layer of Loss")
            arguments = [
                "train",
                "-c",
                source,
                "-o",
                out,
                "--events",
                out / "events.jsonl",
                "--json",
                "--every-row",
            ]
            arguments += ["--seed", document.config["seed"]]
            patience = (document.config.get("early_stop") or {}).get("epochs") or 0
            arguments += ["--patience", patience] if patience else []
            if kind == "profile":
                arguments = ["profile", "-c", source, "-o", out, "--json"]
        (folder / "command.json").write_text(json.dumps([str(a) for a in arguments]))
        return dict(found["totals"])

    def data(self, key: str | None) -> Data:
        """A data set as the writer of training files takes it."""
        if key is None:
            raise Refused(
                "invalid", "there is no data set to train with", "choose one", "config.dataset"
            )
        entry = self.datasets.one(key)
        shapes = {c["name"]: tuple(c["shape"]) for c in entry["columns"] if c["shape"] is not None}
        return Data(str(self.datasets.path(key)), shapes, entry["rows"])

    def weights(self, source: Mapping[str, Any] | None, best: bool = True) -> list[Stored]:
        """The parameters of a trial or of an imported file."""
        if not source:
            return []
        if not isinstance(source, Mapping):
            raise Refused("invalid", "weights_from is no object", None, "weights_from")
        if "trial" in source:
            key = str(source["trial"])
            self._row(key)
            path = self.trained(key, best and source.get("weights") != "last")
        else:
            name = str(source.get("blob"))
            path = self.blobs / f"{name}.h5"
            if not name.isalnum() or not path.is_file():
                raise missing("file of weights", name[:80])
        return read_files(str(path), "", "nnl").stored

    def results(self, key: str, best: bool = True) -> Path | None:
        """The file with a trial's network and weights."""
        out = self.folder(key) / "out"
        current = sorted(out.glob("results_current_*.nnp"), key=lambda p: p.stat().st_mtime)
        choice = (
            [out / "results.nnp", *current[::-1]] if best else [*current[::-1], out / "results.nnp"]
        )
        return next((p for p in choice if p.is_file()), None)

    def trained(self, key: str, best: bool = True) -> Path:
        """The file with the network and weights of a trial, or of what an evaluation is of."""
        evaluated = self.one(key)["kind"] == "evaluate"
        path = self.folder(key) / "network.nnp" if evaluated else self.results(key, best)
        if path is None or not path.is_file():
            hint = "let it finish an epoch"
            raise Refused("not_found", "this trial has no weights yet", hint, key)
        return path

    def keep_weights(self, weights: Path) -> str | None:
        """Keep a file of parameters (.h5), if there is one; returns the blob's id."""
        if not weights.is_file():
            return None
        with open(weights, "rb") as file:
            key = hashlib.file_digest(file, "sha256").hexdigest()
        os.replace(weights, self.blobs / f"{key}.h5")
        return key

    # ---- what may be done with them ----

    def cancel(self, key: str) -> dict[str, Any]:
        return self._stop(key, "cancel", ("queued", "running", "suspended"))

    def suspend(self, key: str) -> dict[str, Any]:
        return self._stop(key, "suspend", ("queued", "running"))

    def finish(self, key: str) -> dict[str, Any]:
        """End a training after this step as if it were done: it is evaluated and saved."""
        row = self._row(key)
        if row["kind"] != "train" or size_of(self.folder(key) / "out" / "events.jsonl") == 0:
            raise Refused("conflict", "this trial has not begun to train", None, key)
        return self._stop(key, "finish", ("running",), signal.SIGUSR1)

    def _stop(
        self,
        key: str,
        wanted: str,
        possible: Sequence[str],
        how: signal.Signals = signal.SIGTERM,
    ) -> dict[str, Any]:
        with self._lock, self.store.change():
            row = self._row(key)
            if row["status"] not in possible:
                raise Refused("conflict", f"this trial is {row['status']}", None, key)
            if row["status"] == "running":
                self._changed(key, wanted=wanted)
                processes.tell(row["pid"], row["pid_start"], how)
            else:
                status = "interrupted" if wanted == "cancel" else "suspended"
                self._changed(key, status=status, ended=time.time())
        return self.one(key)

    def resume(self, key: str) -> dict[str, Any]:
        """Continue a suspended or interrupted trial where it was, in its own folder."""
        with self.store.change():
            row = self._row(key)
            if row["status"] not in ("suspended", "interrupted") or row["kind"] != "train":
                raise Refused("conflict", f"this trial is {row['status']}", None, key)
            self._changed(key, status="queued", ended=None, error=None)
        return self.one(key)

    def retrain(self, key: str) -> dict[str, Any]:
        """A new trial of the same version with the same configuration."""
        row = self._row(key)
        source = json.loads(row["weights_from"]) if row["weights_from"] else None
        return self.add(
            row["project"], row["version"], row["kind"], json.loads(row["config"]), source,
            f"{row['name']} again", document=self.document(key),
        )  # fmt: skip

    def change(self, key: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Name, note, tags, pinned, locked."""
        self._row(key)
        values: dict[str, Any] = {}
        if "name" in changes:
            values["name"] = checked_name(changes["name"])
        if "note" in changes:
            values["note"] = str(changes["note"])[:20_000]
        if "tags" in changes:
            tags = changes["tags"]
            if not isinstance(tags, list) or not all(isinstance(t, str) and t for t in tags):
                raise Refused("invalid", "tags is no list of texts", None, "tags")
            values["tags"] = json.dumps(list(dict.fromkeys(t[:60] for t in tags)))
        for name in ("pinned", "locked"):
            if name in changes:
                values[name] = int(bool(changes[name]))
        if values:
            self._changed(key, **values)
        return self.one(key)

    def delete(self, key: str) -> dict[str, Any]:
        """Move to the trash; locked and running ones stay."""
        row = self._row(key)
        if row["locked"]:
            raise Refused("locked", "this trial is locked", "unlock it first", key)
        if row["status"] == "running":
            raise Refused("conflict", "this trial is running", "stop it first", key)
        status = "interrupted" if row["status"] in LIVE else row["status"]
        self._changed(key, deleted=int(time.time()), status=status)
        self.store.audit("trial deleted", key)
        return self.one(key)

    def restore(self, key: str) -> dict[str, Any]:
        """Take a trial out of the trash."""
        self._row(key)
        self._changed(key, deleted=0)
        return self.one(key)

    # ---- looking at them ----

    def folder(self, key: str) -> Path:
        return self.root / key

    def document(self, key: str) -> Document:
        """What was trained."""
        self._row(key)
        return parse(json.loads((self.folder(key) / "document.json").read_text()))

    def _row(self, key: str) -> dict[str, Any]:
        row = self.store.row("SELECT * FROM trial WHERE id = ?", key)
        if row is None:
            raise missing("trial", key)
        return row

    def one(self, key: str, whole: bool = False) -> dict[str, Any]:
        return shown(self._row(key), whole)
