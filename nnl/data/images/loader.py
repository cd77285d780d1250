# SPDX-License-Identifier: Apache-2.0
"""Batches of labelled pictures, made ahead of time."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np

from nnl.data.images.order import NONE, Order
from nnl.data.images.sources import Source
from nnl.data.images.work import Array, Damage, Item

logger = logging.getLogger("nnl")

MOST_EPOCHS = 1 << 24  # of 2^40 pictures: together they are half the key of a random stream
INPUT_BOUND = 0.1  # of the time of an epoch: from this share of waiting on, it is said
WORTH_SAYING = 1.0  # seconds


class Engine(Protocol):
    """What makes samples: `slots` is (slots, batch_size, size, size, 3), uint8."""

    slots: Array

    def submit(self, slot: int, epoch: int, items: Sequence[Item]) -> list[Future[Damage]]:
        """Begin to write the samples of these items into rows of a slot."""

    def close(self) -> None:
        """Free what the engine holds."""


class _Ahead(NamedTuple):
    """A batch that is being made."""

    epoch: int
    number: int
    slot: int
    indexes: Array
    parts: list[Future[Damage]]


class Images:
    """Batches of labelled pictures: see open_images, which makes one.

    Attributes:
        classes: Names of the classes; a label is an index into them.
        size: Number of pictures of this rank in an epoch.
        batches: Number of batches of an epoch, the same on all ranks.
        engine, workers, prefetch: What makes them, and how many batches ahead.
        waiting: Seconds that batches were waited for so far.
        skipped: Names of the pictures that could not be read so far, and why.
    """

    def __init__(
        self, source: Source, engine: Engine, order: Order, name: str, workers: int
    ) -> None:
        self.engine, self.workers, self.prefetch = name, workers, len(engine.slots) - 1
        self.classes, self.batch_size = source.classes, order.batch_size
        self.size, self.batches = order.size, order.batches
        self.waiting = 0.0
        self.skipped: dict[str, str] = {}
        self._source, self._engine, self._order = source, engine, order
        self._free = list(range(len(engine.slots)))
        self._ahead: deque[_Ahead] = deque()
        self._closed = False

    @property
    def ready(self) -> int:
        """Number of batches that are made and not yet asked for."""
        return sum(all(part.done() for part in batch.parts) for batch in self._ahead)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Array, Array]]:
        """The batches `start`, `start` + 1, ... of an epoch: (pictures, labels).

        Pictures are uint8 (batch_size, size, size, 3), a view of memory that the next batch but
        `prefetch` is written to: valid until the next one is asked for. Labels are int32
        (batch_size, 1); -1 where there is no picture, only something old, which only validation
        has. In training, the picture before it in the batch replaces one that cannot be read.

        Raises:
            ValueError: The loader is closed, `start` is no batch, or all pictures of a training
                batch are damaged.
            RuntimeError: A worker has died.
        """
        if not (0 <= start <= self.batches and 0 <= number < MOST_EPOCHS):
            raise ValueError(
                f"Images.epoch: number={number}, start={start}; wanted a number in "
                f"[0, {MOST_EPOCHS - 1}] and start in [0, {self.batches}]"
            )
        begun = taken = time.perf_counter()
        waited = self.waiting
        try:
            for batch in range(start, self.batches):
                asked = time.perf_counter()
                made = self._next(number, batch)
                pictures, labels = self._finish(made)
                self._ahead.popleft()  # only now: whoever is interrupted may ask again
                taken = time.perf_counter()
                self.waiting += taken - asked
                if batch == start:  # nobody could have made it in time
                    begun, waited = taken, self.waiting
                try:
                    yield pictures, labels
                finally:
                    self._free.append(made.slot)
        finally:  # also where whoever asks takes only some of the batches
            if self._order.training:
                self._judge(number, taken - begun, self.waiting - waited)

    def _judge(self, epoch: int, seconds: float, waiting: float) -> None:
        """Say so where training would be faster with faster input."""
        if waiting > max(INPUT_BOUND * seconds, WORTH_SAYING):
            logger.warning(
                "input-bound: %.0f %% of epoch %d was waiting for pictures (%s, workers=%d, "
                "prefetch=%d)",
                *(100 * waiting / seconds, epoch, self.engine, self.workers, self.prefetch),
            )

    def _next(self, epoch: int, number: int) -> _Ahead:
        """The batch that is asked for, with those after it on their way."""
        if self._closed:
            raise ValueError("Images.epoch: the loader is closed")
        if self._ahead and self._ahead[0][:2] != (epoch, number):
            self._drop()
        if not self._ahead:
            self._submit(epoch, number)
        while self._free and self._after(self._ahead[-1]) is not None:
            self._submit(*self._after(self._ahead[-1]))
        return self._ahead[0]

    def _after(self, batch: _Ahead) -> Any:
        """(epoch, number) of the batch that will be asked for after one."""
        if batch.number + 1 < self.batches:
            return batch.epoch, batch.number + 1
        return (batch.epoch + 1, 0) if self._order.training else None

    def _submit(self, epoch: int, number: int) -> None:
        slot = self._free.pop()
        indexes = self._order.batch(epoch, number)
        items = [
            (row, index, self._source.piece(index))
            for row, index in enumerate(indexes.tolist())
            if index != NONE
        ]
        parts = self._engine.submit(slot, epoch, items)
        self._ahead.append(_Ahead(epoch, number, slot, indexes, parts))

    def _finish(self, batch: _Ahead) -> tuple[Array, Array]:
        """Wait for a batch; deal with its damaged pictures."""
        pictures, indexes = self._engine.slots[batch.slot], batch.indexes
        labels = np.where(indexes == NONE, NONE, self._source.labels[indexes]).astype(np.int32)
        bad = dict(sorted(row for part in batch.parts for row in part.result()))
        for row, reason in bad.items():
            self._skip(self._source.name(int(indexes[row])), reason)
        if self._order.training and len(bad) == len(labels):
            name, reason = self._source.name(int(indexes[0])), bad[0]
            raise ValueError(
                f"Images.epoch: all {len(bad)} pictures of batch {batch.number} of epoch "
                f"{batch.epoch} are damaged; {name}: {reason}"
            )
        for row in bad:
            if not self._order.training:
                labels[row] = NONE
                continue
            good = row
            while good in bad:
                good = (good - 1) % len(labels)
            pictures[row], labels[row] = pictures[good], labels[good]
        return pictures, labels.reshape(-1, 1)

    def _skip(self, name: str, reason: str) -> None:
        if name not in self.skipped:
            self.skipped[name] = reason
            logger.warning("skipped %s: %s", name, reason)

    def _drop(self) -> None:
        """Forget the batches that are being made, once nobody writes to them any more."""
        for batch in self._ahead:
            for part in batch.parts:
                if not part.cancel():
                    part.exception()
            self._free.append(batch.slot)
        self._ahead.clear()

    def close(self) -> None:
        """End the workers. Closing twice is allowed; batches that are held stay readable."""
        self._closed = True
        self._engine.close()

    def __enter__(self) -> Images:
        return self

    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()
