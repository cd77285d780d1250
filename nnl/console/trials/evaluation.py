# SPDX-License-Identifier: Apache-2.0
"""What a network has said of a data set: each sample, and which classes it mistakes for others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nnl.console.data.tables import kind_of, read_table, variables
from nnl.console.errors import Refused
from nnl.console.trials.trials import Trials

Array = np.ndarray[Any, Any]
MAX_CLASSES = 2000


@dataclass
class Results:
    """The table of an evaluation.

    Attributes:
        header, rows: Of the table, the columns of the data set first.
        given: How many columns are the data set's.
        outputs: What the network said, (rows, values), by name.
    """

    header: list[str]
    rows: list[list[str]]
    given: int
    outputs: dict[str, Array]
    dataset: str

    def numbers(self, name: str) -> Array | None:
        """The values of a column of the data set, if they are numbers."""
        places = variables(self.header[: self.given]).get(name, ([], False))[0]
        if not places:
            return None
        try:
            return np.array([[float(row[i]) for i in places] for row in self.rows], np.float64)
        except ValueError:
            return None


def results(trials: Trials, key: str) -> Results:
    """The results of a trial of the kind evaluate.

    Raises:
        Refused: There are none.
    """
    entry = trials.one(key)
    folder = trials.folder(key)
    path = folder / "out" / "output_result.csv"
    if entry["kind"] != "evaluate" or not path.is_file():
        raise Refused("not_found", "this trial has no results", "evaluate it first", key)
    dataset = json.loads((folder / "dataset.json").read_text())
    return read_results(path, len(read_table(trials.datasets.path(dataset))[0]), dataset)


def read_results(path: Path, given: int, dataset: str) -> Results:
    """The table that `nnl forward` has written, of a data set with so many columns."""
    header, rows = read_table(path)
    outputs = {}
    for name, (places, _) in variables(header[given:]).items():
        cells = [[row[given + i] for i in places] for row in rows]
        outputs[name] = np.stack([_numbers(c, path.parent) for c in cells])
    return Results(header, rows, given, outputs, dataset)


def _numbers(cells: list[str], root: Path) -> Array:
    if len(cells) == 1 and cells[0].endswith(".npy"):
        return np.load(root / cells[0], allow_pickle=False).reshape(-1).astype(np.float64)
    return np.array([float(c) for c in cells], np.float64)


@dataclass
class Answers:
    """What a classifier has said: labels and predictions as numbers of classes."""

    label: str
    output: str
    labels: Array
    predicted: Array
    likelihood: Array
    classes: int


def answers(found: Results, label: str | None = None, output: str | None = None) -> Answers | None:
    """The answers of a classifier; None where the task is another one.

    Without names, the output is the first one, and the label the column that it is called after.
    """
    output = output or next(iter(found.outputs), "")
    if output not in found.outputs:
        raise Refused("not_found", f"there is no output {output[:60]!r}", None, "output")
    label = label or label_of(list(variables(found.header[: found.given])), output)
    truth, said = found.numbers(label), found.outputs[output]
    if truth is None or truth.shape[1] != 1 or (truth != np.floor(truth)).any() or truth.min() < 0:
        return None
    labels = truth[:, 0].astype(int)
    if said.shape[1] == 1:
        if labels.max(initial=0) > 1 or said.min() < 0 or said.max() > 1:
            return None
        said = np.concatenate([1 - said, said], 1)
    classes = max(said.shape[1], labels.max(initial=0) + 1)
    if classes > MAX_CLASSES or labels.max(initial=0) >= said.shape[1]:
        return None
    predicted = said.argmax(1)
    likelihood = said[np.arange(len(labels)), labels]
    return Answers(label, output, labels, predicted, likelihood, classes)


def label_of(columns: Sequence[str], output: str) -> str:
    """The column that an output is called after, y for y', else the last one."""
    named = output.rstrip("'")
    return named if named in columns else columns[-1]


def confusion(found: Results, label: str | None = None, output: str | None = None) -> Any:
    """The confusion matrix, and what follows from it."""
    a = answers(found, label, output)
    if a is None:
        raise Refused("not_found", "this is no classification with whole numbers as labels")
    counts = np.zeros((a.classes, a.classes), int)
    np.add.at(counts, (a.labels, a.predicted), 1)
    right, support, said = counts.diagonal(), counts.sum(1), counts.sum(0)
    precision = right / np.maximum(said, 1)
    recall = right / np.maximum(support, 1)
    f1 = 2 * right / np.maximum(support + said, 1)
    used = (support + said) > 0
    measures = {"precision": precision, "recall": recall, "f1": f1}
    total = max(int(support.sum()), 1)
    return {
        "label": a.label,
        "output": a.output,
        "classes": [str(i) for i in range(a.classes)],
        "counts": counts.tolist(),
        "accuracy": float(right.sum() / total),
        **{name: values.tolist() for name, values in measures.items()},
        "support": support.tolist(),
        "macro": {name: float(values[used].mean()) for name, values in measures.items()},
        "weighted": {n: float((v * support).sum() / total) for n, v in measures.items()},
    }


def table(
    found: Results,
    offset: int,
    limit: int,
    cell: str | None = None,
    sort: str = "index",
    label: str | None = None,
    output: str | None = None,
) -> dict[str, Any]:
    """Samples with what was said of them.

    Args:
        cell: "label,predicted": only the samples of this cell of the matrix.
        sort: "index", "loss" or "-loss", the worst ones first.
    """
    a = answers(found, label, output)
    loss = _losses(found, a, label, output)
    chosen = np.arange(len(found.rows))
    if cell is not None:
        if a is None:
            raise Refused("not_found", "this is no classification", None, "cell")
        try:
            row, column = (int(v) for v in cell.split(","))
        except ValueError:
            text = f"cell is {cell[:40]!r}, wanted two numbers of classes"
            raise Refused("invalid", text, None, "cell") from None
        chosen = chosen[(a.labels == row) & (a.predicted == column)]
    if sort in ("loss", "-loss") and loss is not None:
        order = np.argsort(loss[chosen] * (-1 if sort == "-loss" else 1), kind="stable")
        chosen = chosen[order]
    elif sort not in ("index", "loss", "-loss"):
        raise Refused(
            "invalid", f"sort is {sort[:40]!r}, wanted index, loss or -loss", None, "sort"
        )
    rows = []
    for i in chosen[offset : offset + limit].tolist():
        cells = [{"text": c, "kind": kind_of(c)} for c in found.rows[i][: found.given]]
        said = found.outputs[output or next(iter(found.outputs))][i].tolist()
        rows.append(
            {
                "index": i,
                "cells": cells,
                "label": None if a is None else int(a.labels[i]),
                "predicted": None if a is None else int(a.predicted[i]),
                "likelihood": None if a is None else float(a.likelihood[i]),
                "loss": None if loss is None else float(loss[i]),
                "outputs": said,
            }
        )
    columns = found.header[: found.given]
    return {
        "columns": columns,
        "dataset": found.dataset,
        "rows": rows,
        "total": len(chosen),
        "output": output or next(iter(found.outputs)),
        "is_classification": a is not None,
        "mean_loss": None if loss is None else float(loss.mean()),
    }


def _losses(
    found: Results, a: Answers | None, label: str | None, output: str | None
) -> Array | None:
    """How wrong each answer is: minus the log of its likelihood, or the square of the error; None
    where no column is like the output."""
    if a is not None:
        losses: Array = -np.log(np.maximum(a.likelihood, 1e-30))
        return losses
    output = output or next(iter(found.outputs))
    label = label or label_of(list(variables(found.header[: found.given])), output)
    said, truth = found.outputs[output], found.numbers(label)
    if truth is None or truth.shape != said.shape:
        return None
    squares: Array = ((said - truth) ** 2).mean(1)
    return squares
