# SPDX-License-Identifier: Apache-2.0
"""Lists of trials, and several of them side by side."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from nnl.console.documents.diff import diff, differing
from nnl.console.errors import Refused
from nnl.console.trials.entries import shown
from nnl.console.trials.evaluation import confusion, results
from nnl.console.trials.trials import Trials

SORTED = {
    "created": "created",
    "number": "number",
    "name": "name COLLATE NOCASE",
    "best": "best_value IS NULL, best_value",
    "multiply_adds": "multiply_adds",
}
MAX_COMPARED = 50


def listed(
    trials: Trials,
    project: str | None = None,
    status: str | None = None,
    tag: str | None = None,
    q: str | None = None,
    pinned: bool | None = None,
    search: str | None = None,
    sort: str = "-created",
    offset: int = 0,
    limit: int = 200,
    sparkline: str | None = None,
    deleted: bool = False,
) -> dict[str, Any]:
    """Trials that fit, pinned ones first."""
    conditions, values = ["deleted" if deleted else "NOT deleted"], []
    for column, value in (("project", project), ("status", status), ("search", search)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    if tag is not None:
        conditions.append("EXISTS (SELECT 1 FROM json_each(tags) WHERE json_each.value = ?)")
        values.append(tag)
    if q:
        q = q[:200]
        like = "LIKE ? ESCAPE '\\'"
        tagged = f"EXISTS (SELECT 1 FROM json_each(tags) WHERE json_each.value {like})"
        conditions.append(f"(name {like} OR note {like} OR {tagged})")
        text = q.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        values += [f"%{text}%"] * 3
    if pinned is not None:
        conditions.append("pinned = ?")
        values.append(str(int(pinned)))
    column = SORTED.get(sort.removeprefix("-"))
    if column is None:
        wanted = ", ".join(SORTED)
        raise Refused("invalid", f"sort is {sort[:40]!r}, wanted one of {wanted}", None, "sort")
    order = f"{column} {'DESC' if sort.startswith('-') else 'ASC'}"
    where = " AND ".join(conditions)
    store = trials.store
    total = store.rows(f"SELECT count(*) AS n FROM trial WHERE {where}", *values)[0]["n"]
    rows = store.rows(
        f"SELECT * FROM trial WHERE {where} ORDER BY pinned DESC, {order}, number DESC "
        "LIMIT ? OFFSET ?",
        *values,
        limit,
        offset,
    )
    best = pareto(trials, {row["project"] for row in rows})
    found = [{**shown(row), "pareto": row["id"] in best} for row in rows]
    if sparkline:
        for entry in found:
            entry["sparkline"] = curve(trials, entry["id"], sparkline)
    return {"trials": found, "total": total}


def curve(trials: Trials, key: str, name: str, points: int = 40) -> list[float]:
    """The values of a metric by epochs, some of them."""
    values = [
        row["value"]
        for row in trials.store.rows(
            "SELECT value FROM metric WHERE trial = ? AND name = ? ORDER BY epoch", key, name
        )
    ]
    return values[:: max(len(values) // points, 1)]


def pareto(trials: Trials, projects: set[str]) -> set[str]:
    """Trials that no other one of their project beats in both error and multiply-adds."""
    found = set()
    for project in projects:
        rows = trials.store.rows(
            "SELECT id, best_value, multiply_adds FROM trial WHERE project = ? AND NOT deleted "
            "AND kind = 'train' AND best_value IS NOT NULL ORDER BY multiply_adds, best_value",
            project,
        )
        found |= set(front([(r["id"], r["best_value"], r["multiply_adds"]) for r in rows]))
    return found


def front(points: Sequence[tuple[Any, float, float]]) -> list[Any]:
    """Of (key, error, cost) the keys that no other one beats, the cheapest first."""
    found, least = [], float("inf")
    for key, error, _ in sorted(points, key=lambda p: (p[2], p[1])):
        if error < least:
            least = error
            found.append(key)
    return found


def compared(trials: Trials, keys: Sequence[str]) -> dict[str, Any]:
    """What differs between trials: settings, networks, metrics."""
    if not 1 <= len(keys) <= MAX_COMPARED:
        raise Refused("invalid", f"there are {len(keys)} trials, wanted 1 to {MAX_COMPARED}")
    entries = [trials.one(key, True) for key in keys]
    documents = [trials.document(key) for key in keys]
    names = dict.fromkeys(name for e in entries for name in e["last"])
    metrics = {}
    for name in names:
        values = [_metric(trials, key, name) for key in keys]
        metrics[name] = {"best": [v[0] for v in values], "last": [v[1] for v in values]}
    return {
        "trials": entries,
        "config": differing([e["config"] for e in entries]),
        "environment": differing([e["environment"] for e in entries]),
        "network": [diff(documents[0], d) for d in documents[1:]],
        "metrics": metrics,
        **_matrices(trials, keys),
    }


def _matrices(trials: Trials, keys: Sequence[str]) -> dict[str, Any]:
    """The matrices of the trials on one data set: that on which most of them were evaluated.

    "evaluated_on" is that data set, and "confusion" has None for a trial that was not evaluated
    on it, or classifies nothing.
    """
    found: list[dict[str, str]] = []  # of each trial: its latest evaluations by data set
    latest: dict[str, float] = {}
    for key in keys:
        rows = trials.store.rows(
            "SELECT id, created FROM trial WHERE kind = 'evaluate' AND status = 'finished' AND NOT "
            "deleted AND (id = ? OR json_extract(weights_from, '$.trial') = ?) ORDER BY created",
            key,
            key,
        )
        found.append({})
        for row in rows:
            data = json.loads((trials.folder(row["id"]) / "dataset.json").read_text())
            found[-1][data] = row["id"]
            latest[data] = max(latest.get(data, 0.0), row["created"])
    shared = max(latest, key=lambda d: (sum(d in f for f in found), latest[d]), default=None)
    if shared is None:
        return {"evaluated_on": None, "confusion": [None] * len(keys)}
    data = trials.datasets.one(shared)
    return {
        "evaluated_on": {"id": shared, "name": data["name"]},
        "confusion": [_confusion(trials, evaluations.get(shared)) for evaluations in found],
    }


def _confusion(trials: Trials, evaluation: str | None) -> Any:
    """The matrix of an evaluation; None if there is none."""
    try:
        return evaluation and confusion(results(trials, evaluation))
    except Refused:  # no classification, or its data set is gone
        return None


def _metric(trials: Trials, key: str, name: str) -> tuple[float | None, float | None]:
    rows = trials.store.rows(
        "SELECT value FROM metric WHERE trial = ? AND name = ? ORDER BY epoch", key, name
    )
    values = [row["value"] for row in rows]
    return (min(values), values[-1]) if values else (None, None)


def exported(trials: Trials, project: str | None, kind: str) -> str:
    """All trials with their settings and metrics, as .csv or .json."""
    entries = []
    for entry in listed(trials, project, sort="number", limit=1_000_000)["trials"]:
        row = trials.one(entry["id"], True)
        row["metrics"] = {n: _metric(trials, row["id"], n) for n in row["last"]}
        entries.append(row)
    if kind == "json":
        return json.dumps(entries, indent=1)
    plain = ("number", "id", "name", "kind", "status", "seed", "created", "started", "ended",
             "epoch", "max_epoch", "parameters", "multiply_adds", "note")  # fmt: skip
    settings = [_settings(e["config"]) for e in entries]
    columns = list(dict.fromkeys(k for s in settings for k in s))
    metrics = list(dict.fromkeys(k for e in entries for k in e["metrics"]))
    out = io.StringIO()
    writer = csv.writer(out)
    best = [f"best {m}" for m in metrics]
    titles = [*plain, "tags", *columns, *best, *(f"last {m}" for m in metrics)]
    writer.writerow([_cell(t) for t in titles])
    for e, s in zip(entries, settings, strict=True):
        values = [e["metrics"].get(m, (None, None)) for m in metrics]
        row = [e[k] for k in plain] + [" ".join(e["tags"])] + [s.get(c) for c in columns]
        row += [v[0] for v in values] + [v[1] for v in values]
        writer.writerow([_cell(v) for v in row])
    return out.getvalue()


def _cell(value: Any) -> Any:
    """A cell that no program of tables takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    one = differing([config, {}])
    return {name: values[0] for name, values in one.items()}
