# SPDX-License-Identifier: Apache-2.0
"""Structure searches: candidates are edited networks, each an ordinary trial; Optuna chooses edits.

What was tried is in the index and in `.nnl/search.db`, so a search goes on after a restart.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

from nnl.console.documents.analysis import analyse
from nnl.console.documents.document import Document
from nnl.console.documents.mutation import RULES, Edit, mutate
from nnl.console.errors import Refused, missing
from nnl.console.machine.store import Store, new_id
from nnl.console.trials.comparing import front
from nnl.console.trials.trials import ENDED, Trials

logger = logging.getLogger("nnl")
DEFAULTS: dict[str, Any] = {
    "method": "nsga2",
    "objectives": ["error", "multiply_adds"],
    "rules": None,
    "edits": 4,
    "attempts": 50,
    "hours": 1.0,
    "jobs": 1,
    "max_epoch": None,
    "multiply_adds": None,
    "early_stop": True,
    "seed": 0,
}
METHODS = ("nsga2", "tpe", "random")
NONE = "-"
WARM_UP = 3  # candidates that are trained to their end before any is stopped early
GIVE_UP = 200  # rejected ones in a row, after which no more are thought of
REJECTED_AT_ONCE = 5  # in one step, so that stopping a search does not wait for long
_TICK_S = 0.2


class Searches:
    """The searches of a console; one thread drives them all, in the process that leads."""

    def __init__(self, store: Store, trials: Trials) -> None:
        self.store, self.trials = store, trials
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="searches")
        self._studies: dict[str, Any] = {}
        self._lock = threading.RLock()

    def begin(self) -> None:
        """Drive searches from now on, those of an earlier server too."""
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def _run(self) -> None:
        while not self._end.wait(_TICK_S):
            if not self.store.leads():
                continue
            for row in self.store.rows("SELECT * FROM search WHERE status = 'running'"):
                try:
                    self.step(row["id"])
                except Exception as error:  # noqa: BLE001  # the other searches go on
                    logger.exception("search %s", row["id"])
                    self._change(row["id"], status="failed", ended=time.time())
                    self.store.audit(f"search failed: {error}"[:500], row["id"])

    # ---- what the page asks ----

    def add(self, project: str, version: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a search."""
        version = version or self.store.project(project)["head"]
        document = self.store.document(version)
        checked = checked_settings(settings)
        self.trials.data(document.config["dataset"].get("train"))
        if not document.config["dataset"].get("valid"):
            raise Refused("invalid", "there is no validation set to compare candidates on")
        found = analyse(document, self._columns(document))
        if not found["trainable"]:
            raise Refused("invalid", "the network cannot be trained", "repair it in the editor")
        key = new_id()
        self.store.insert(
            "search",
            {
                "id": key,
                "project": project,
                "version": version,
                "settings": json.dumps(checked),
                "status": "running",
                "created": time.time(),
            },
        )
        return self.one(key)

    def all(self, project: str | None = None) -> list[dict[str, Any]]:
        where, values = ("WHERE project = ?", [project]) if project else ("", [])
        rows = self.store.rows(f"SELECT id FROM search {where} ORDER BY created DESC", *values)
        return [self.one(row["id"]) for row in rows]

    def _row(self, key: str) -> dict[str, Any]:
        row = self.store.row("SELECT * FROM search WHERE id = ?", key)
        if row is None:
            raise missing("search", key)
        return row

    def one(self, key: str) -> dict[str, Any]:
        row = self._row(key)
        candidates = json.loads(row["candidates"])
        measured = [c for c in candidates if c["error"] is not None]
        best = min(measured, key=lambda c: c["error"], default=None)
        return {
            **{n: row[n] for n in ("id", "project", "version", "status", "created", "ended")},
            "settings": json.loads(row["settings"]),
            "attempts": sum(c["status"] != "rejected" for c in candidates),
            "rejected": sum(c["status"] == "rejected" for c in candidates),
            "best": best and {"error": best["error"], "trial": best["trial"]},
        }

    def front(self, key: str) -> dict[str, Any]:
        """All candidates, and the numbers of those that no other one beats."""
        candidates = self.candidates(key)
        ended = [c for c in candidates if c["status"] == "finished" and c["error"] is not None]
        points = [(c["number"], c["error"], c["multiply_adds"]) for c in ended]
        base = next((c for c in candidates if not c["edits"] and c["trial"]), None)
        return {"candidates": candidates, "front": front(points), "base": base}

    def candidates(self, key: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._row(key)["candidates"])
        return found

    def open(self, key: str, number: int) -> dict[str, Any]:
        """The document of a candidate, with its weights if it has some."""
        found = next((c for c in self.candidates(key) if c["number"] == number), None)
        if found is None or found["trial"] is None:
            raise missing("candidate", str(number))
        document = self.trials.document(found["trial"])
        if self.trials.results(found["trial"]):
            document.weights_from = {"trial": found["trial"]}
        return {"document": document.to_json()}

    def cancel(self, key: str) -> dict[str, Any]:
        with self._lock:
            row = self._row(key)
            if row["status"] != "running":
                raise Refused("conflict", f"this search is {row['status']}", None, key)
            self._change(key, status="cancelled", ended=time.time())
            self._stop_all(key, self.candidates(key))
        return self.one(key)

    def resume(self, key: str) -> dict[str, Any]:
        """Go on with a search that was stopped: its trainings where they were, then new ones."""
        with self._lock, self.store.change():
            row = self._row(key)
            if row["status"] not in ("cancelled", "failed"):
                raise Refused("conflict", f"this search is {row['status']}", None, key)
            stopped = row["stopped_s"] + time.time() - row["ended"]  # which its hours do not count
            self._change(key, status="running", ended=None, stopped_s=stopped)
        return self.one(key)

    def _stop_all(self, key: str, candidates: list[dict[str, Any]]) -> None:
        """End the trainings of a search; those that were not hopeless wait for it to go on."""
        for c in candidates:
            if c["status"] == "running":
                c["waits"] = not c["reason"]
                self._stop(c["trial"])
        self._change(key, candidates=json.dumps(candidates))

    def _stop(self, trial: str) -> None:
        try:
            self.trials.cancel(trial)
        except Refused:
            pass  # it has just ended

    def _change(self, key: str, **values: Any) -> None:
        self.store.update("search", key, values)

    def _columns(self, document: Document) -> dict[str, tuple[int, ...]]:
        chosen = document.config["dataset"].get("train")
        return dict(self.trials.data(chosen).shapes)

    # ---- one step ----

    def step(self, key: str) -> None:
        """Look at the candidates that run, and begin new ones where there is room."""
        with self._lock:
            row = self._row(key)
            if row["status"] != "running":
                return
            settings, candidates = json.loads(row["settings"]), self.candidates(key)
            before = json.dumps(candidates)
            study = self._study(key, settings)
            for c in candidates:
                if c["status"] == "running":
                    self._follow(c, candidates, study, settings)
            running = sum(c["status"] == "running" for c in candidates)
            begun = sum(c["status"] != "rejected" for c in candidates)
            seconds = time.time() - row["created"] - row["stopped_s"]
            over = seconds > settings["hours"] * 3600
            last = candidates[-GIVE_UP:]
            stuck = len(last) == GIVE_UP and all(c["status"] == "rejected" for c in last)
            over, left = over or begun >= settings["attempts"] or stuck, REJECTED_AT_ONCE
            while not over and running < settings["jobs"] and begun < settings["attempts"] and left:
                c = self._new(row, settings, candidates, study)
                candidates.append(c)
                if c["status"] != "rejected":
                    running, begun = running + 1, begun + 1
                else:
                    left -= 1
            with self.store.change():
                if json.dumps(candidates) != before:
                    self._change(key, candidates=json.dumps(candidates))
                cancelled = self._row(key)["status"] != "running"  # by another process, meanwhile
                if over and not running and not cancelled:
                    self._change(key, status="finished", ended=time.time())
                if cancelled:
                    self._stop_all(key, candidates)

    def _study(self, key: str, settings: Mapping[str, Any]) -> Any:
        """The study of a search, which remembers what was tried."""
        if key not in self._studies:
            import optuna

            optuna.logging.set_verbosity(optuna.logging.WARNING)
            # after a restart a sampler must not draw the same numbers again
            seed = settings["seed"] + len(self.candidates(key))
            samplers: dict[str, Any] = {
                "nsga2": lambda: optuna.samplers.NSGAIISampler(population_size=10, seed=seed),
                "tpe": lambda: optuna.samplers.TPESampler(seed=seed),
                "random": lambda: optuna.samplers.RandomSampler(seed=seed),
            }
            new = not self.candidates(key)
            study = optuna.create_study(
                storage=f"sqlite:///{self.store.root / 'search.db'}",
                study_name=key,
                directions=["minimize"] * len(settings["objectives"]),
                sampler=samplers[settings["method"]](),
                load_if_exists=True,
            )
            if new and not study.trials:  # the network itself comes first
                names = [f"rule{i}" for i in range(settings["edits"])]
                study.enqueue_trial({name: NONE for name in names})
            self._studies[key] = study
        return self._studies[key]

    def _new(
        self,
        row: Mapping[str, Any],
        settings: Mapping[str, Any],
        candidates: list[dict[str, Any]],
        study: Any,
    ) -> dict[str, Any]:
        """The next candidate, begun or rejected."""
        import optuna

        asked = study.ask()
        rules = [NONE, *(settings["rules"] or RULES)]
        edits = []
        for i in range(settings["edits"]):
            rule = asked.suggest_categorical(f"rule{i}", rules)
            place = asked.suggest_float(f"place{i}", 0, 1)
            option = asked.suggest_float(f"option{i}", 0, 1)
            if rule != NONE:
                edits.append(Edit(rule, place, option))
        base = self.store.document(row["version"])
        base.weights_from = None  # all candidates begin alike
        columns = self._columns(base)
        document, done = mutate(base, edits, columns)
        found = analyse(document, columns)
        totals = found["totals"]
        entry = {
            "number": asked.number,
            "trial": None,
            "error": None,
            "multiply_adds": totals["multiply_adds"],
            "parameters": totals["parameters"],
            "status": "running",
            "edits": done,
            "reason": None,
            "key": document.key(),
        }
        low, high = settings["multiply_adds"] or (None, None)
        cost = totals["multiply_adds"]
        wrong = [p for p in found["problems"] if p["severity"] == "error"]
        if wrong:
            entry["reason"] = wrong[0]["message"]
        elif cost < (low or 0) or (high is not None and cost > high):
            entry["reason"] = "its multiply-adds are out of the range"
        elif any(c["key"] == entry["key"] for c in candidates):
            entry["reason"] = "the same network was tried before"
        if entry["reason"] is not None:
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
            return {**entry, "status": "rejected"}
        config = {} if settings["max_epoch"] is None else {"max_epoch": settings["max_epoch"]}
        trial = self.trials.add(
            row["project"],
            row["version"],
            "train",
            config,
            name=f"candidate {asked.number}",
            document=document,
            search=(row["id"], asked.number),
        )
        return {**entry, "trial": trial["id"]}

    def _follow(
        self,
        c: dict[str, Any],
        candidates: list[dict[str, Any]],
        study: Any,
        settings: Mapping[str, Any],
    ) -> None:
        import optuna

        entry = self.trials.one(c["trial"])
        if c.get("waits"):
            deleted = "SELECT 1 FROM trial WHERE id = ? AND deleted"
            ended = entry["status"] in ENDED or entry["status"] == "suspended"
            c["waits"] = not ended  # its process is about to end, as it was told
            if entry["status"] in ("interrupted", "suspended"):
                if self.store.row(deleted, c["trial"]) is None:
                    self.trials.resume(c["trial"])
                    return
            elif not ended:
                return
        if entry["best"] is not None:
            c["error"] = entry["best"]["value"]
        if entry["status"] == "finished" and c["error"] is not None:
            c["status"] = "finished"
            values = {"error": c["error"], "multiply_adds": c["multiply_adds"]}
            study.tell(c["number"], [values[name] for name in settings["objectives"]])
        elif entry["status"] in ENDED:
            c["status"] = "pruned" if c["reason"] else "failed"
            error = entry["error"] or {}
            c["reason"] = c["reason"] or error.get("message")
            study.tell(c["number"], state=optuna.trial.TrialState.FAIL)
        elif (
            settings["early_stop"]
            and not c["reason"]
            and self._hopeless(c, candidates, "multiply_adds" in settings["objectives"])
        ):
            c["reason"] = "worse than half of the earlier ones that cost no more, at this epoch"
            self._stop(c["trial"])

    def _hopeless(
        self, c: Mapping[str, Any], candidates: list[dict[str, Any]], costs: bool
    ) -> bool:
        """Whether it is behind the median of those that are done, in the middle of its training.

        Args:
            costs: Whether multiply-adds count: a cheaper network may be worse than dearer ones.
        """
        own = self._curve(c["trial"])
        others = [
            self._curve(o["trial"])
            for o in candidates
            if o["status"] == "finished" and (not costs or o["multiply_adds"] <= c["multiply_adds"])
        ]
        entry = self.trials.one(c["trial"])
        if len(others) < WARM_UP or len(own) < max(entry["max_epoch"] // 2, 1):
            return False
        at = [min(o[: len(own)]) for o in others if len(o) >= len(own)]
        return len(at) >= WARM_UP and min(own) > median(at)

    def _curve(self, trial: str) -> list[float]:
        rows = self.store.rows(
            "SELECT metric.value FROM metric JOIN trial ON trial.id = metric.trial "
            "AND metric.name = coalesce(trial.best_name, 'valid_error') WHERE metric.trial = ? "
            "ORDER BY metric.epoch",
            trial,
        )
        return [row["value"] for row in rows]


def checked_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with their defaults, or a Refused that names the one that is wrong."""
    found = {**DEFAULTS, **given}
    checks = {
        "method": (found["method"] in METHODS, f"one of {', '.join(METHODS)}"),
        "objectives": (
            found["objectives"] in (["error", "multiply_adds"], ["error"]),
            "['error', 'multiply_adds'] or ['error']",
        ),
        "rules": (
            found["rules"] is None
            or (isinstance(found["rules"], list) and set(found["rules"]) <= set(RULES)
                and bool(found["rules"])),
            f"some of {', '.join(RULES)}",
        ),
        "edits": (_between(found["edits"], 1, 20), "1 to 20"),
        "attempts": (_between(found["attempts"], 1, 10_000), "1 to 10000"),
        "jobs": (_between(found["jobs"], 1, 64), "1 to 64"),
        "seed": (_between(found["seed"], 0, 2**31), "a whole number"),
        "max_epoch": (
            found["max_epoch"] is None or _between(found["max_epoch"], 1, 10**6),
            "null or a number of epochs",
        ),
        "hours": (
            isinstance(found["hours"], (int, float)) and 0 < found["hours"] <= 10_000,
            "a number of hours",
        ),
        "early_stop": (isinstance(found["early_stop"], bool), "true or false"),
        "multiply_adds": (_is_range(found["multiply_adds"]), "[least, most]"),
    }  # fmt: skip
    for name in given:
        if name not in checks:
            raise Refused("invalid", f"there is no setting {name[:40]!r}", None, name)
    for name, (right, wanted) in checks.items():
        if not right:
            text = f"{name} is {str(found[name])[:60]}, wanted {wanted}"
            raise Refused("invalid", text, None, name)
    return found


def _between(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _is_range(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, list) or len(value) != 2:
        return False
    low, high = value
    wholes = all(v is None or (type(v) is int and v >= 0) for v in value)
    return wholes and (low is None or high is None or high >= low)
