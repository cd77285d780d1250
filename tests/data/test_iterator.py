# SPDX-License-Identifier: Apache-2.0
"""Batches, against NNabla 1.39: literals are what it returned for the same calls.

A batch of samples 8, 4 and 7 is written "847". The data are the numbers 0 to 9, the batch size is
3, the generator RandomState(9) and cache files hold 4 samples, unless a test says otherwise.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.data.settings import settings
from nnl.utils import data_iterator as di
from nnl.utils.data_source import DataSource

IN_ORDER = "012 345 678 901 234 567 890 123 456"


class Numbers(DataSource):
    """A source as users write them: reset draws the order."""

    def __init__(self, size: int, shuffle: bool = False, rng: Any = None) -> None:
        super().__init__(shuffle=shuffle, rng=rng)
        self._size = size
        self._variables = ("x", "y")
        self.reset()

    def _get_data(self, position: int) -> tuple[Any, ...]:
        i = self._indexes[position]
        return np.array([i]), np.array(i * 10)

    def reset(self) -> None:
        everything = np.arange(self._size)
        self._indexes = self._rng.permutation(self._size) if self._shuffle else everything
        super().reset()


def load(i: int) -> tuple[Any, ...]:
    return np.array([i], np.float32), np.int32(2 * i)


def simple(size: int = 10, batch_size: int = 3, **options: Any) -> di.DataIterator:
    options.setdefault("rng", np.random.RandomState(9))
    return di.data_iterator_simple(load, size, batch_size, **options)


def batches(iterator: di.DataIterator, count: int) -> str:
    """The first variable of some batches as digits, and "s" where the iterator stops."""
    texts = []
    for _ in range(count):
        try:
            batch = iterator.next()[0]
        except StopIteration:
            return " ".join([*texts, "s"])
        texts.append("".join(str(int(value)) for value in batch.ravel()))
    return " ".join(texts)


@pytest.fixture(autouse=True)
def four_rows_per_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "file_cache_rows", 4)


@pytest.fixture
def csv_file(tmp_path: Path) -> str:
    path = tmp_path / "numbers.csv"
    path.write_text("x,y\n" + "".join(f"{i},{2 * i}\n" for i in range(10)), encoding="utf-8")
    return str(path)


SHUFFLED = {  # (source, memory cache, file cache): first nine batches
    ("simple", False, False): "847 219 306 584 749 350 186 730 426",
    ("simple", False, True): "930 156 874 256 019 374 285 674 829",
    ("simple", True, False): "847 219 306 584 721 930 659 271 834",
    ("simple", True, True): "847 219 306 584 721 930 659 271 834",
    ("custom", False, False): "627 493 501 817 304 265 989 427 530",
    ("custom", False, True): "139 056 728 465 193 084 278 472 569",
    ("custom", True, False): "847 219 306 584 721 930 654 028 173",
    ("custom", True, True): "847 219 306 584 721 930 659 561 204",
    ("csv", False, False): "627 493 501 817 304 265 989 427 530",
    ("csv", False, True): "930 156 874 256 019 374 285 674 829",
    ("csv", True, False): "847 219 306 584 721 930 659 271 834",
    ("csv", True, True): "847 219 306 584 721 930 659 271 834",
    ("concat", False, False): "243 671 920 015 840 901 573 218 623",
    ("concat", False, True): "041 138 256 729 041 318 265 907 202",
    ("concat", True, False): "792 034 112 865 079 203 411 286 509",
    ("concat", True, True): "792 034 112 865 079 203 411 286 509",
}


def make(source: str, csv_file: str, shuffle: bool, **options: Any) -> di.DataIterator:
    rng = np.random.RandomState(9)
    if source == "simple":
        return di.data_iterator_simple(load, 10, 3, shuffle=shuffle, rng=rng, **options)
    if source == "custom":
        return di.data_iterator(Numbers(10, shuffle, rng), 3, rng=rng, **options)
    if source == "csv":
        return di.data_iterator_csv_dataset(csv_file, 3, shuffle=shuffle, rng=rng, **options)
    parts = [Numbers(10), Numbers(3, True, np.random.RandomState(2))]
    return di.data_iterator_concat_datasets(parts, 3, shuffle=shuffle, rng=rng, **options)


@pytest.mark.parametrize("use_thread", [False, True])
@pytest.mark.parametrize(("source", "memory", "file"), SHUFFLED)
def test_shuffled_order_is_nnablas(
    source: str, memory: bool, file: bool, use_thread: bool, csv_file: str
) -> None:
    caches = {"with_memory_cache": memory, "with_file_cache": file}
    with make(source, csv_file, True, use_thread=use_thread, **caches) as iterator:
        assert batches(iterator, 9) == SHUFFLED[source, memory, file]


@pytest.mark.parametrize("use_thread", [False, True])
@pytest.mark.parametrize(
    ("source", "memory", "file"),
    list(itertools.product(["simple", "custom", "csv"], [False, True], [False, True])),
)
def test_last_batch_wraps_into_next_epoch(
    source: str, memory: bool, file: bool, use_thread: bool, csv_file: str
) -> None:
    caches = {"with_memory_cache": memory, "with_file_cache": file}
    with make(source, csv_file, False, use_thread=use_thread, **caches) as iterator:
        assert batches(iterator, 9) == IN_ORDER


@pytest.mark.parametrize("use_thread", [False, True])
def test_reset_begins_again(use_thread: bool) -> None:
    with simple(use_thread=use_thread) as iterator:
        assert batches(iterator, 2) == "012 345"
        iterator._reset()
        assert iterator.position == 0 and batches(iterator, 4) == "012 345 678 901"


def test_batch_may_be_larger_than_an_epoch() -> None:
    with simple(3, 8, shuffle=True, use_thread=False) as iterator:
        assert batches(iterator, 3) == "10210210 20120120 02102102"
        assert iterator.epoch == 8


@pytest.mark.parametrize("use_thread", [False, True])
def test_stop_exhausted_drops_the_partial_batch(use_thread: bool) -> None:
    with simple(stop_exhausted=True, use_thread=use_thread) as iterator:
        assert batches(iterator, 9) == "012 345 678 s"
        assert batches(iterator, 9) == "s"
        assert (iterator.position, iterator.epoch) == (9, 0)


@pytest.mark.parametrize("use_thread", [False, True])
def test_stop_exhausted_keeps_a_last_batch_that_is_full(use_thread: bool) -> None:
    with simple(6, stop_exhausted=True, use_thread=use_thread) as iterator:
        assert [batch[0].ravel().tolist() for batch in iterator] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("use_thread", [False, True])
def test_epoch_and_position_follow_the_batches_returned(use_thread: bool) -> None:
    with simple(5, 2, use_thread=use_thread) as iterator:
        seen = [(iterator.position, iterator.epoch)]
        for _ in range(6):
            iterator.next()
            seen.append((iterator.position, iterator.epoch))
    assert seen == [(0, 0), (2, 0), (4, 0), (1, 1), (3, 1), (0, 2), (2, 2)]


@pytest.mark.parametrize("use_thread", [False, True])
def test_epoch_callbacks_come_with_the_batch_that_ends_the_epoch(use_thread: bool) -> None:
    events: list[tuple[str, int]] = []
    with simple(
        5,
        2,
        use_thread=use_thread,
        epoch_begin_callbacks=[lambda e: events.append(("begin", e))],
        epoch_end_callbacks=[lambda e: events.append(("end", e))],
    ) as iterator:
        iterator.next()
        iterator.next()
        assert events == []
        iterator.next()
        assert events == [("end", 0), ("begin", 1)]
        iterator.register_epoch_begin_callback(lambda e: events.append(("begin2", e)))
        iterator.register_epoch_end_callback(lambda e: events.append(("end2", e)))
        iterator.next()
        iterator.next()
        assert events[2:] == [("end", 1), ("end2", 1), ("begin", 2), ("begin2", 2)]


def test_callbacks_run_in_the_callers_thread() -> None:
    threads = []
    with simple(2, 2, epoch_end_callbacks=[lambda _: threads.append(threading.current_thread())]):
        pass
    with simple(
        2, 2, epoch_end_callbacks=[lambda _: threads.append(threading.current_thread())]
    ) as iterator:
        iterator.next()
    assert threads == [threading.current_thread()]


def test_batch_is_a_tuple_with_the_samples_dtypes() -> None:
    with simple(batch_size=4) as iterator:
        x, y = batch = iterator.next()
        assert isinstance(batch, tuple)
        assert (x.dtype, x.shape) == (np.float32, (4, 1))
        assert (y.dtype, y.shape) == (np.int32, (4,))
        assert list(iterator.variables) == ["x0", "x1"]
        assert (iterator.size, iterator.batch_size) == (10, 4)


def test_csv_numbers_are_float64_and_float32_from_a_file_cache(csv_file: str) -> None:
    for with_file_cache, dtype in ((False, np.float64), (True, np.float32)):
        with di.data_iterator_csv_dataset(csv_file, 2, with_file_cache=with_file_cache) as iterator:
            x, y = iterator.next()
            assert (x.dtype, x.shape, y.shape) == (dtype, (2, 1), (2, 1))


@pytest.mark.parametrize("memory", [False, True])
def test_error_in_the_thread_reaches_next(memory: bool) -> None:
    def fails_at_4(i: int) -> tuple[Any, ...]:
        if i == 4:
            raise OSError("sample 4 cannot be read")
        return (np.array(i),)

    with di.data_iterator_simple(fails_at_4, 6, 2, with_memory_cache=memory) as iterator:
        iterator.next()
        iterator.next()
        with pytest.raises(OSError, match="sample 4 cannot be read"):
            iterator.next()


def test_thread_reads_one_batch_ahead() -> None:
    read = threading.Event()

    def load_and_tell(i: int) -> tuple[Any, ...]:
        if i == 3:
            read.set()
        return (np.array(i),)

    with di.data_iterator_simple(load_and_tell, 8, 2) as iterator:
        iterator.next()
        assert read.wait(timeout=10)


def test_close_ends_the_thread_and_closes_the_source() -> None:
    before = threading.active_count()
    source = Numbers(4)
    iterator = di.data_iterator(source, 2)
    iterator.next()
    iterator.close()
    iterator.close()
    assert source._closed
    assert threading.active_count() == before
    with pytest.raises(ValueError, match=r"DataIterator: next\(\) after close\(\)"):
        iterator.next()


def test_samples_of_different_shapes_are_named() -> None:
    iterator = di.data_iterator_simple(lambda i: (np.zeros(i + 1),), 4, 2)
    with iterator, pytest.raises(ValueError, match=r"x0 has samples of the shapes \[\(1,\), \(2,"):
        iterator.next()


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="DataIterator: batch_size=0 is not in .1, 2.24."):
        simple(batch_size=0)
    with pytest.raises(ValueError, match="DataIterator: data_source has no samples"):
        di.DataIterator(Numbers(0), 1)


# slices


@pytest.fixture
def whole() -> Iterator[di.DataIterator]:
    with simple(use_thread=False) as iterator:
        yield iterator


@pytest.mark.parametrize(
    ("position", "drop_last", "expected"),
    [
        (0, False, "012 301 230"),
        (1, False, "456 745 674"),
        (2, False, "678 967 896"),
        (0, True, "012 012 012"),
        (2, True, "678 678 678"),
    ],
)
def test_slice_in_order(
    whole: di.DataIterator, position: int, drop_last: bool, expected: str
) -> None:
    with whole.slice(None, 3, position, drop_last=drop_last) as part:
        assert batches(part, 3) == expected
        assert part.size == (3 if drop_last else 4)


def test_slices_of_one_source_share_each_epochs_order() -> None:
    with simple(shuffle=True, use_thread=False) as iterator:
        parts = [iterator.slice(np.random.RandomState(2), 3, p) for p in range(3)]
        assert [batches(part, 8) for part in parts] == [
            "847 284 746 730 942 794 625 578",
            "193 019 509 265 530 153 183 402",
            "306 530 185 598 018 601 091 296",
        ]
        assert [part.epoch for part in parts] == [6, 6, 6]
        for part in parts:
            part.close()


CUSTOM_SLICES = ["83 59 24 30 64 70 27 40 79", "06 17 61 58 12 35 98 15 21"]


@pytest.mark.parametrize("position", [0, 1])
def test_slice_of_a_users_source_in_a_process_of_its_own(position: int) -> None:
    rng = np.random.RandomState(1)
    source = Numbers(10, True, rng)
    with di.data_iterator(source, 2, rng=rng, use_thread=False, with_memory_cache=False) as it:
        with it.slice(np.random.RandomState(2), 3, position) as part:
            assert batches(part, 9) == CUSTOM_SLICES[position]


def test_slice_by_bounds(whole: di.DataIterator) -> None:
    with whole.slice(None, slice_start=2, slice_end=6) as part:
        assert batches(part, 3) == "234 523 452"


@pytest.mark.parametrize("with_files", [False, True])
def test_slice_with_caches(whole: di.DataIterator, with_files: bool, tmp_path: Path) -> None:
    folder = str(tmp_path / "cache") if with_files else None
    with whole.slice(None, 2, 1, use_cache=True, cache_dir=folder) as part:
        assert batches(part, 4) == "567 895 678 956"
    if with_files:
        names = sorted(p.name for p in (tmp_path / "cache").iterdir())
        assert names[:2] == ["cache_index.csv", "cache_info.csv"]
        assert names[2] == "cache_sliced_00000005_00000010_00000000_00000003.npy"


def test_slice_neither_moves_nor_closes_its_source(whole: di.DataIterator) -> None:
    assert batches(whole, 1) == "012"
    with whole.slice(None, 2, 1) as part:
        part.next()
    assert batches(whole, 1) == "345"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give num_of_slices and slice_pos, or slice_start and slice_end"),
        ({"num_of_slices": 3}, "give num_of_slices and slice_pos, or slice_start"),
        ({"num_of_slices": 3, "slice_pos": 3}, r"slice_pos=3 is not in \[0, num_of_slices=3\)"),
        ({"num_of_slices": 3, "slice_pos": -1}, r"slice_pos=-1 is not in"),
        ({"num_of_slices": 20, "slice_pos": 0, "drop_last": True}, "slice_start=0, slice_end=0"),
        ({"slice_start": 5, "slice_end": 20}, "is no range inside the 10 samples"),
        ({"slice_start": 3, "slice_end": 3}, "slice_start=3, slice_end=3 is no range"),
    ],
)
def test_bad_slices_are_refused(
    whole: di.DataIterator, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        whole.slice(None, **arguments)
