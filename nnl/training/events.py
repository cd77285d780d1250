# SPDX-License-Identifier: Apache-2.0
"""Who is told of a training: a file of events, and the lines and bars that people read."""

from __future__ import annotations

import json
import logging
import math
import time
from pathlib import Path
from typing import Any, TextIO

from nnl.core.parameters.atomic import replacing

logger = logging.getLogger("nnl")

FLUSH_S = 0.1  # lines wait no longer on their way to the file
SIGN_OF_LIFE_S = 1.0  # events that carry no result are not written more often
WITHOUT_RESULT = ("step_before", "infer_before", "infer_after")
FLUSHED = ("run_begin", "epoch_end", "run_end")


class EventFile:
    """Writes every event as one line of JSON: its name, the time, and its facts."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.flushed, self.written = 0.0, 0.0

    def __call__(self, event: str, **facts: Any) -> None:
        now = time.time()
        if event in WITHOUT_RESULT:
            if now - self.written < SIGN_OF_LIFE_S:
                return
            self.written = now
        self.file.write(self._line(event, now, facts))
        if now - self.flushed > FLUSH_S or event in FLUSHED:
            self.file.flush()
            self.flushed = now

    @staticmethod
    def _line(event: str, now: float, facts: dict[str, Any]) -> str:
        if event == "step_after" and math.isfinite(facts["loss"]):
            # there are many of these, and json takes longer
            f = facts
            return (
                f'{{"event": "step_after", "t": {now:.4f}, "epoch": {f["epoch"]}, "iteration": '
                f'{f["iteration"]}, "loss": {f["loss"]!r}, "lr": {f["lr"]!r}, "seconds": '
                f"{f['seconds']:.6f}}}\n"
            )
        line = {"event": event, "t": round(now, 4), **facts}
        try:
            return json.dumps(line, allow_nan=False) + "\n"
        except ValueError:
            return json.dumps(_without_nan(line)) + "\n"


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Lines:
    """NNabla's line for every epoch, its progress.txt, and a bar where a terminal shows one.

    Args:
        folder: Of progress.txt.
        bar: Show a bar; with None, where standard error is a terminal.
    """

    def __init__(self, folder: Path, bar: bool | None = None) -> None:
        self.file, self.wanted, self.bar = folder / "progress.txt", bar, None
        self.max_epoch = self.per_epoch = self.batches = 0
        self.sum, self.steps = 0.0, 0
        self.written = 0.0
        self.handlers = {
            "run_begin": self._run_begin,
            "step_after": self._step_after,
            "test_begin": self._test_begin,
            "infer_after": self._infer_after,
            "epoch_end": self._epoch_end,
            "run_end": self._run_end,
        }

    def __call__(self, event: str, **facts: Any) -> None:
        if event in self.handlers:
            self.handlers[event](**facts)

    def _run_begin(self, max_epoch: int, iterations_per_epoch: int, resumed: Any, **_: Any) -> None:
        from tqdm import tqdm

        self.max_epoch, self.per_epoch = max_epoch, iterations_per_epoch
        begin = resumed["iteration"] if resumed else 0
        disable = None if self.wanted is None else not self.wanted
        total = max_epoch * iterations_per_epoch
        self.bar = tqdm(total=total, initial=begin, unit="step", disable=disable)
        if resumed:
            logger.info("resumed after epoch %d, iteration %d", resumed["epoch"], begin)
        self._progress(None, 0.0)

    def _step_after(self, iteration: int, loss: float, **_: Any) -> None:
        self.sum, self.steps = self.sum + loss, self.steps + 1
        if self.bar is not None and not self.bar.disable:
            self.bar.update()
        now = time.monotonic()
        if now - self.written > SIGN_OF_LIFE_S:
            done = iteration % self.per_epoch / self.per_epoch
            self._progress(f"Training : cost={self.sum / self.steps:0.6f}", done)
            self.sum, self.steps = 0.0, 0

    def _test_begin(self, batches: int, **_: Any) -> None:
        self.batches = batches

    def _infer_after(self, monitor: str, batch: int, **_: Any) -> None:
        if time.monotonic() - self.written > SIGN_OF_LIFE_S:
            self._progress(f'Evaluating "{monitor}"', batch / self.batches)

    def _epoch_end(
        self, epoch: int, metrics: dict[str, float], elapsed: float, eta_s: float, **_: Any
    ) -> None:
        cost, *errors = metrics.items()
        text = ", ".join(f"{name}={value:.6f}" for name, value in errors)
        text = f" {{{text}}}" if text else ""
        self._say(
            f"epoch {epoch} of {self.max_epoch} cost={cost[1]:.6f} {text} "
            f"time=({elapsed:.1f}s /{elapsed + eta_s:.1f}s)"
        )

    def _run_end(self, **_: Any) -> None:
        if self.bar is not None:
            self.bar.close()
        self._progress(None, 0.0)

    def _say(self, text: str) -> None:
        if self.bar is not None:
            self.bar.clear()
        logger.info(text)

    def _progress(self, state: str | None, done: float) -> None:
        self.written = time.monotonic()
        with replacing(self.file) as file:
            file.write_text("" if state is None else f"{state} ({done * 100:3.2f}%)", "utf-8")
