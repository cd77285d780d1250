# SPDX-License-Identifier: Apache-2.0
"""The thesis's experiments in small: figures 6.1 to 6.6, from digits that train in seconds.

Each figure is a picture and the rows that it was drawn from, as CSV.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nnl.deep500 import bench
from nnl.deep500.plots import draw
from nnl.deep500.report import Report
from nnl.deep500.tickers import write_csv

Row = dict[str, Any]
TRAIN, LOSS = "seconds of training", "loss"


def figures(
    folder: str | Path,
    backends: Sequence[str],
    ranks: int = 2,
    epochs: int = 8,
    samples: int | None = None,
    report: Report | None = None,
) -> tuple[Report, list[Path]]:
    """Train everything that the figures need, and draw them.

    Args:
        report: What the rows are added to.
        backends: The first one trains on several ranks, too.
        ranks: Of the distributed runs, which the thesis made on three GPUs.
    Returns:
        The report of all rows, and the pictures.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if report is None:
        report = Report("optimizer", settings={"ranks": ranks, "epochs": epochs})
    rules = ("momentum", "native:momentum", "adam", "native:adam")
    bench.optimizers_of(
        report, backends, rules, "lenet", "digits", epochs, 32, None, folder / "runs", samples
    )
    if report.ended == "interrupted":
        return report, []
    single = list(report.rows)
    schemes = ("decentralized", "server", "neighbors", "native:decentralized")
    settings = {"model": "lenet", "optimizer": "adam", "data": "digits", "epochs": epochs}
    settings |= {"batch_size": 32, "lr": None, "samples": samples}
    bench.distributed_of(report, backends[:1], schemes, [ranks], **settings)
    many = report.rows[len(single) :]
    adam = _named(single, "optimizer", lambda r: r["optimizer"].endswith("adam"))
    adam = {k: v for k, v in adam.items() if k.startswith(f"{backends[0]} ")}
    shared = _named(many, "scheme", lambda r: "epoch" in r, f" on {ranks}")
    momentum = _named(single, "optimizer", lambda r: r["optimizer"].endswith("momentum"))
    server = {k: v for k, v in shared.items() if "server" in k or "native" in k}
    wanted = [
        ("6.1", momentum, "samples", LOSS, "Momentum: readable and native"),
        ("6.2", {**adam, **shared}, "samples", LOSS, f"Adam on 1 and {ranks} ranks"),
        ("6.3", {**adam, **shared}, "train_s", LOSS, f"Adam on 1 and {ranks} ranks"),
        ("6.4", server, "train_s", LOSS, "Own schemes and native all-reduce"),
        ("6.5", {**adam, **server}, "epoch", "accuracy", "Parameter server, accuracy"),
        ("6.6", {**adam, **server}, "train_s", LOSS, "Parameter server, loss over time"),
    ]
    return report, [_figure(folder, *one) for one in wanted]


def _named(
    rows: Sequence[Row], key: str, where: Callable[[Row], bool], more: str = ""
) -> dict[str, list[Row]]:
    """Rows by "BACKEND NAME"."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.get("status") in ("done", "aborted") and where(row):
            found.setdefault(f"{row['backend']} {row[key]}{more}", []).append(row)
    return found


def _figure(
    folder: Path, number: str, tables: dict[str, list[Row]], x: str, y: str, title: str
) -> Path:
    name = f"figure_{number.replace('.', '_')}"
    rows = [{"line": k, x: r[x], y: r[y]} for k, table in tables.items() for r in table]
    write_csv(folder / f"{name}.csv", rows, ("line", x, y))
    lines = {k: ([r[x] for r in t], [r[y] for r in t]) for k, t in tables.items()}
    label = TRAIN if x == "train_s" else x
    return draw(folder / f"{name}.png", lines, label, y, f"{number} {title}")
