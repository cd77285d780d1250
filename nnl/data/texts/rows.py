# SPDX-License-Identifier: Apache-2.0
"""Rows of tokens: texts one after the other, each seen by itself alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from nnl.core.arguments.annotations import checked
from nnl.data.texts.files import Files

Array = np.ndarray[Any, Any]
Lesson = Callable[[Mapping[str, Any]], tuple[Sequence[int], Sequence[bool]]]

IGNORED = -100  # the label of a position whose token is not learned


class Batch(NamedTuple):
    """Rows of tokens, each (batch_size, length), int32.

    Attributes:
        tokens: Of the texts, and 0 where a row has no more.
        labels: The token that follows each; -100 where it is not learned.
        positions: Where each stands in its text: 0, 1, 2, ...; a 0 begins a text.
    """

    tokens: Array
    labels: Array
    positions: Array


class _Place(NamedTuple):
    """Where a row begins."""

    epoch: int = 0
    sample: int = 0  # in the order of the epoch, of this rank
    token: int = 0


class Texts:
    """Batches of rows without end: see open_texts, which makes one.

    Attributes:
        samples: Number of samples of this rank in an epoch.
    """

    def __init__(
        self, files: Files, lesson: Lesson, shape: tuple[int, int], seed: int, rank: int, ranks: int
    ) -> None:
        self._files, self._lesson, self._shape = files, lesson, shape
        self.samples = len(range(rank, files.size, ranks))
        self._order = lru_cache(2)(lambda epoch: files.order(seed, epoch)[rank::ranks])
        self._facts = {"seed": seed, "rank": rank, "ranks": ranks, "size": files.size}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="nnl_texts")
        self._begin(_Place())

    def _begin(self, place: _Place) -> None:
        self._place = place
        self._ahead: Future[tuple[Batch, _Place]] = self._pool.submit(self._batch, place)

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next row begins in."""
        return self._place.epoch

    def state(self) -> dict[str, int]:
        """Where the next row begins: plain numbers, for a checkpoint."""
        return {**self._facts, **self._place._asdict()}

    def go_on(self, state: Mapping[str, int]) -> None:
        """Begin where `state` was asked for.

        Raises:
            ValueError: It is of other data, or another seed or rank.
        """
        for name, value in self._facts.items():
            if state.get(name) != value:
                raise ValueError(
                    f"Texts.go_on: {name} was {state.get(name)!r:.60}, and is {value} here"
                )
        self._begin(_Place(*(int(state[name]) for name in _Place._fields)))

    def next(self) -> Batch:
        """The next rows.

        Raises:
            ValueError: A sample is damaged, or is no lesson; the text names file and line. Or
                there are no tokens in a whole epoch.
        """
        batch, place = self._ahead.result()
        self._begin(place)
        return batch

    def __next__(self) -> Batch:
        return self.next()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def _batch(self, place: _Place) -> tuple[Batch, _Place]:
        batch = Batch(*(np.full(self._shape, n, np.int32) for n in (0, IGNORED, 0)))
        for row in zip(*batch, strict=True):
            place = self._fill(Batch(*row), place)
        return batch, place

    def _fill(self, row: Batch, place: _Place) -> _Place:
        """Write the next samples into a row; where the one after it begins."""
        used, length, begun = 0, len(row.tokens), place.epoch
        while used < length:
            tokens, learned = self._tokens(place)
            whole = not all(learned)  # an answer without its prompt teaches nothing
            rest = len(tokens) - place.token
            if whole and rest > length - used and used:
                break
            n = min(rest, length - used)
            part = slice(place.token, place.token + n)
            row.tokens[used : used + n] = tokens[part]
            row.positions[used : used + n] = np.arange(n)
            after = slice(place.token + 1, place.token + n + 1)
            labels = np.where(learned[after], tokens[after], IGNORED)
            row.labels[used : used + len(labels)] = labels
            used += n
            if n < rest and not whole:
                return place._replace(token=place.token + n)
            place = _Place(place.epoch, place.sample + 1)
            if place.sample == self.samples:
                place = _Place(place.epoch + 1)
                if not used and place.epoch > begun + 1:
                    raise ValueError("open_texts: no sample has a token")
        return place

    def _tokens(self, place: _Place) -> tuple[Array, Array]:
        index = int(self._order(place.epoch)[place.sample])
        try:
            tokens, learned = self._lesson(self._files.sample(index))
            found = np.asarray(tokens, np.int32), np.asarray(learned, bool)
            if found[0].shape != found[1].shape:
                raise ValueError(
                    f"lesson gives {len(tokens)} tokens, and says {len(learned)} times "
                    "whether one is learned"
                )
        except ValueError as e:
            raise ValueError(f"{self._files.place(index)}: {e}") from e
        return found

    def close(self) -> None:
        """Stop the thread that reads ahead. Closing twice is allowed."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Texts:
        return self

    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@checked
def open_texts(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    lesson: Lesson,
    length: int,
    batch_size: int,
    seed: int = 0,
    rank: int = 0,
    ranks: int = 1,
) -> Texts:
    """Open files of texts for training: rows that are full of them, in a new order each epoch.

    A text that a row has no room for goes on in the next one, as a text of its own. What has tokens
    that are not learned, a prompt and its answer, stays whole: it begins the next row, and what is
    longer than a row ends with it.

    Args:
        paths: Files or patterns, or addresses such as "s3://texts/*.parquet" that fsspec opens, of
            which copies are kept (nnl[urls]). `.jsonl` has an object in each line; `.parquet` a
            table, of which pyarrow reads a group of rows at once, and samples of sixteen groups are
            mixed.
        lesson: What makes tokens of a sample, and says which of them are learned; see
            `Pretrained.lesson`.
        length: Tokens of a row.
        batch_size: Rows of a batch, all of this rank's.
        seed: What decides, with the number of the epoch, the order.
        rank, ranks: Which share of each epoch this is, of how many.
    Raises:
        ValueError: A number is out of its range, or there are no samples.
        FileNotFoundError: There is no such file. ImportError: There is no pyarrow.
    Example:
        >>> from nnl.data.texts import open_texts
        >>> with open("texts.jsonl", "w") as file:
        ...     _ = file.write('{"text": "abc"}\\n{"text": "de"}\\n')
        >>> def letters(sample):
        ...     tokens = [ord(c) - 96 for c in sample["text"]]
        ...     return tokens, [True] * len(tokens)
        >>> with open_texts("texts.jsonl", letters, 6, 1) as rows:
        ...     tokens, labels, positions = rows.next()
        >>> positions.tolist()
        [[0, 1, 2, 0, 1, 0]]
    """
    for name, number, low, high in (
        ("length", length, 1, 2**24),
        ("batch_size", batch_size, 1, 2**24),
        ("ranks", ranks, 1, 2**20),
        ("rank", rank, 0, ranks - 1),
        ("seed", seed, 0, 2**63),
    ):
        if not low <= number <= high:
            raise ValueError(f"open_texts: {name}={number} is not in [{low}, {high}]")
    files = Files(paths)
    if files.size < ranks:
        raise ValueError(f"open_texts: there are {files.size} samples for {ranks} ranks")
    return Texts(files, lesson, (batch_size, length), seed, rank, ranks)
