# SPDX-License-Identifier: Apache-2.0
"""Pictures of what CSV files hold; needs matplotlib."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

AXES = (
    ("samples", "accuracy"),
    ("train_s", "accuracy"),
    ("samples", "loss"),
    ("train_s", "loss"),
)
TEXTS = {"samples": "samples", "train_s": "seconds of training", "accuracy": "accuracy"}


def draw(
    path: str | Path,
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x_label: str,
    y_label: str,
    title: str,
) -> Path:
    """Draw lines {label: (x, y)} into a picture.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("plots need matplotlib: pip install 'nnl[plot]'") from error
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes: Any = figure.add_subplot()
    for label, (x, y) in lines.items():
        axes.plot(x, y, label=label, marker="o" if len(x) < 40 else "")
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    axes.grid(alpha=0.3)
    if lines:
        axes.legend(fontsize="small")
    figure.savefig(path)
    return Path(path)


def generate_plots(
    folder: str | Path, where: Callable[[str], bool] | None = None, title: str = "plots"
) -> list[Path]:
    """Four pictures of the CSV files of a folder, written beside them: samples and seconds against
    accuracy and loss.

    Args:
        where: Says of a file's name whether it is drawn.
        title: Of the pictures, and the beginning of their names.
    Raises:
        FileNotFoundError: No CSV file is wanted.
    """
    folder = Path(folder)
    files = [f for f in sorted(folder.glob("*.csv")) if where is None or where(f.name)]
    if not files:
        raise FileNotFoundError(f"generate_plots: there is no such CSV file in {folder}")
    tables = {}
    for f in files:
        with open(f, newline="", encoding="utf-8") as file:
            tables[f.stem] = list(csv.DictReader(file))
    made = []
    for x, y in AXES:
        lines = {
            name: ([float(r[x]) for r in table], [float(r[y]) for r in table])
            for name, table in tables.items()
            if table and x in table[0] and y in table[0]
        }
        path = folder / f"{title}_{x.removesuffix('_s')}_{y}.png"
        made.append(draw(path, lines, TEXTS[x], TEXTS.get(y, y), title))
    return made
