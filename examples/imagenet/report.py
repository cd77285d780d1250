# SPDX-License-Identifier: Apache-2.0
"""What a run leaves to look at: its curves, its numbers, and a table of all runs beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nnl.core.parameters.atomic import replacing

RESULT, TABLE = "result.json", "runs.md"
COLUMNS = {
    "run": "{}",
    "network": "{}",
    "recipe": "{}",
    "epochs": "{}",
    "top1": "{:.2f} %",
    "top5": "{:.2f} %",
    "loss": "{:.4f}",
    "images_per_s": "{:.1f}",
    "waiting": "{:.1f} %",
    "hours": "{:.2f}",
}


def write(folder: Path, options: Any, progress: dict[str, Any], processes: int) -> None:
    """Write the numbers of a run and the table of runs.

    Raises:
        OSError: They cannot be written; what was there before still is.
    """
    epochs = progress["epochs"]
    best = max(epochs, key=lambda e: e["top1"])
    result = {
        "run": folder.name,
        "network": options.network,
        "recipe": options.recipe,
        "epochs": len(epochs),
        "top1": best["top1"],
        "top5": best["top5"],
        "loss": epochs[-1]["loss"],
        "images_per_s": epochs[-1]["images_per_s"],
        "waiting": epochs[-1]["waiting"],
        "hours": progress["seconds"] / 3600,
        "processes": processes,
        "options": {k: v if v is None else str(v) for k, v in vars(options).items()},
        "every_epoch": epochs,
    }
    _write(folder / RESULT, json.dumps(result, indent=1) + "\n")
    lines = [f"{step}\t{loss:.6g}\t{rate:.6g}" for step, loss, rate in progress["losses"]]
    _write(folder / "losses.tsv", "\n".join(["step\tloss\trate", *lines, ""]))
    _table(folder.parent)


def _write(path: Path, text: str) -> None:
    with replacing(path) as new:  # other runs read it for their table
        new.write_text(text, "utf-8")


def _table(folder: Path) -> None:
    """runs.md: one line for every run in this folder."""
    rows = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for path in sorted(folder.glob(f"*/{RESULT}")):
        try:
            result = json.loads(path.read_text("utf-8"))
            cells = [f.format(result[name]) for name, f in COLUMNS.items()]
        except (ValueError, KeyError, TypeError):
            continue  # another program's, or damaged
        rows.append("| " + " | ".join(cells) + " |")
    _write(folder / TABLE, "\n".join(rows) + "\n")


def curves(path: Path, options: Any, progress: dict[str, Any]) -> None:
    """Draw loss and accuracy, where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return

    figure = Figure(figsize=(9, 3.5))
    left, right = figure.subplots(1, 2)
    if progress["losses"]:
        steps, losses, _ = zip(*progress["losses"], strict=True)
        left.plot(steps, losses)
    left.set(xlabel="step", ylabel="loss", title=f"{options.network}, {options.recipe}")
    epochs = range(1, len(progress["epochs"]) + 1)
    for name in ("top1", "top5"):
        right.plot(epochs, [e[name] for e in progress["epochs"]], marker=".", label=name)
    right.set(xlabel="epoch", ylabel="accuracy in %")
    right.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
