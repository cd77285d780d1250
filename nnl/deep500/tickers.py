# SPDX-License-Identifier: Apache-2.0
"""Tickers that present what a run has made: text, a bar, files, pictures. Each works alone."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

from nnl.core.parameters.atomic import replacing
from nnl.deep500.runner import JobSummary, Runner, Ticker

COLUMNS = ("epoch", "samples", "train_s", "test_s", "loss", "accuracy")


def rows(job: JobSummary) -> list[dict[str, Any]]:
    """A row per epoch, with samples and seconds counted from the start."""
    found, samples, train, test = [], 0, 0.0, 0.0
    for e in job.epochs:
        samples, train, test = samples + e.samples, train + e.train_s, test + e.test_s
        values = (e.epoch, samples, train, test, e.loss, e.accuracy)
        found.append(dict(zip(COLUMNS, values, strict=True)))
    return found


class AccuracyTicker(Ticker):
    """Prints loss and accuracy after every epoch."""

    def __init__(self, file: Any = None) -> None:
        self.file = file

    def after_epoch(self, job: JobSummary, runner: Runner) -> None:
        e = job.current
        text = f"epoch {e.epoch}: loss {e.loss:.4f}, accuracy {e.accuracy:.2%}"
        print(f"{text}, {e.train_s:.2f} s", file=self.file or sys.stdout)

    def after_epochs(self, job: JobSummary, runner: Runner) -> None:
        if job.reason:
            print(f"{job.ended}: {job.reason}", file=self.file or sys.stdout)


class ProgressTicker(Ticker):
    """A progress bar on the terminal, one per epoch."""

    def __init__(self, file: Any = None) -> None:
        self.file = file

    def before_training_set(self, job: JobSummary, runner: Runner) -> None:
        from tqdm import tqdm

        n = len(job.epochs)
        self.bar = tqdm(total=len(runner.train_set), desc=f"epoch {n}", file=self.file, leave=False)

    def after_optimizer_step(
        self, job: JobSummary, runner: Runner, inputs: Any, outputs: Any
    ) -> None:
        self.bar.update()

    def after_training_set(self, job: JobSummary, runner: Runner) -> None:
        self.bar.close()


class CsvTicker(Ticker):
    """Writes a row per epoch to a CSV file, at the end and when a run is ended early."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def after_epochs(self, job: JobSummary, runner: Runner) -> None:
        write_csv(self.path, rows(job), COLUMNS)


def write_csv(path: str | Path, table: list[dict[str, Any]], columns: Any = None) -> None:
    """Write rows as a CSV file; columns are those of all rows if left out."""
    names = list(columns or dict.fromkeys(k for row in table for k in row))
    with replacing(path) as whole, open(whole, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(table)


class JsonLinesTicker(Ticker):
    """Writes one JSON object per event that has news: {"event": ..., ...}. For streams too."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def _say(self, event: str, **values: Any) -> None:
        clean = {k: None if v != v else v for k, v in values.items()}  # JSON knows no nan
        self.file.write(json.dumps({"event": event, **clean}) + "\n")
        self.file.flush()

    def before_epochs(self, job: JobSummary, runner: Runner) -> None:
        self._say("before_epochs", backend=runner.network.backend, steps=len(runner.train_set))

    def after_optimizer_step(
        self, job: JobSummary, runner: Runner, inputs: Any, outputs: Any
    ) -> None:
        e = job.current
        self._say("after_optimizer_step", epoch=e.epoch, step=len(e.losses), loss=e.losses[-1])

    def after_epoch(self, job: JobSummary, runner: Runner) -> None:
        self._say("after_epoch", **rows(job)[-1])

    def after_epochs(self, job: JobSummary, runner: Runner) -> None:
        self._say("after_epochs", ended=job.ended, reason=job.reason)


class LossPlotTicker(Ticker):
    """Draws the loss of every step as a picture, at the end."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def after_epochs(self, job: JobSummary, runner: Runner) -> None:
        from nnl.deep500.plots import draw

        losses = [loss for e in job.epochs for loss in e.losses]
        draw(self.path, {"loss": (list(range(len(losses))), losses)}, "step", "loss", "Loss")
