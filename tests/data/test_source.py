# SPDX-License-Identifier: Apache-2.0
"""Data sources one by one, against NNabla 1.39: orders are what it returned for the same calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.data.settings import settings
from nnl.utils.create_cache import CreateCache
from nnl.utils.data_iterator import data_iterator_cache
from nnl.utils.data_source import (
    DataSource,
    DataSourceWithFileCache,
    DataSourceWithFileCacheError,
    DataSourceWithMemoryCache,
    SlicedDataSource,
)
from nnl.utils.data_source_implements import (
    CacheDataSource,
    CachePrefetcher,
    CacheReaderWithPrefetch,
    ConcatDataSource,
    CsvDataSource,
    SimpleDataSource,
)


def load(i: int) -> tuple[Any, ...]:
    return np.array([i, i + 1], np.uint8), np.array(i * 1.0)


def simple(size: int = 10, **options: Any) -> SimpleDataSource:
    return SimpleDataSource(load, size, **options)


def numbers(source: DataSource, count: int) -> list[int]:
    return [int(np.ravel(source.next()[0])[0]) for _ in range(count)]


@pytest.fixture(autouse=True)
def four_rows_per_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "file_cache_rows", 4)


def write_csv(folder: Path, text: str) -> str:
    path = folder / "data.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


# base, simple, sliced, concatenated


def test_default_generator_is_randomstate_313() -> None:
    expected = np.random.RandomState(313).permutation(10).tolist()
    assert numbers(simple(shuffle=True), 10) == expected == [5, 3, 2, 4, 0, 6, 1, 9, 7, 8]


def test_simple_keeps_its_order_until_apply_order() -> None:
    source = simple(shuffle=True)
    first = numbers(source, 10)
    source.reset()
    assert numbers(source, 10) == first
    source.apply_order()
    source.reset()
    assert numbers(source, 10) != first


def test_simple_names_variables_by_position() -> None:
    source = simple()
    assert (list(source.variables), source.size, source.position) == (["x0", "x1"], 10, 0)


def test_simple_refuses_bad_arguments() -> None:
    with pytest.raises(TypeError, match="SimpleDataSource: load_func is a int, a function wanted"):
        SimpleDataSource(3, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="load_func returned a int for sample 0, a tuple"):
        SimpleDataSource(lambda i: i, 3)
    with pytest.raises(TypeError, match="SimpleDataSource: num_examples=3.5 is not an integer"):
        SimpleDataSource(load, 3.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="SimpleDataSource: num_examples=0: there are no samples"):
        SimpleDataSource(load, 0)


def test_slice_that_lags_too_far_is_told_so() -> None:
    source = simple(shuffle=True)
    fast, slow = SlicedDataSource(source, slice_end=5), SlicedDataSource(source, slice_start=5)
    for _ in range(20):
        fast.apply_order()
    fast.next()
    with pytest.raises(ValueError, match="epoch 0 was asked for after epoch 20; slices of one"):
        slow.next()


def test_slice_reads_its_part_and_leaves_the_source_in_place() -> None:
    source = simple()
    source.next()
    part = SlicedDataSource(source, slice_start=2, slice_end=8)
    part.reset()
    assert numbers(part, 6) == [2, 3, 4, 5, 6, 7]
    assert source.position == 1


def test_slice_outside_the_source_is_refused() -> None:
    with pytest.raises(ValueError, match="slice_start=5, slice_end=20 is no range inside the 10"):
        SlicedDataSource(simple(), slice_start=5, slice_end=20)


def test_concat_shuffles_over_all_sources(tmp_path: Path) -> None:
    big = CsvDataSource(write_csv(tmp_path, "x,y\n" + "".join(f"{i},0\n" for i in range(10))))
    small = CsvDataSource(write_csv(tmp_path, "x,y\n1,3\n4,6\n"))
    source = ConcatDataSource([big, small], shuffle=True, rng=np.random.RandomState(3))
    source.reset()
    assert numbers(source, 12) == [3, 4, 1, 2, 9, 8, 4, 0, 6, 7, 5, 1]
    assert source.size == 12


def test_concat_refuses_nothing_and_unlike_sources() -> None:
    with pytest.raises(ValueError, match="ConcatDataSource: data_source_list is empty"):
        ConcatDataSource([])
    other = SimpleDataSource(lambda i: (i,), 3)
    with pytest.raises(ValueError, match=r"source 1 has the variables \('x0',\), source 0 has"):
        ConcatDataSource([simple(), other])


def test_base_says_what_to_define() -> None:
    with pytest.raises(NotImplementedError, match=r"DataSource: define _get_data\(position\)"):
        DataSource().next()


def test_context_manager_closes() -> None:
    with simple() as source:
        assert not source._closed
    assert source._closed


# memory cache


def test_memory_cache_reads_each_sample_once() -> None:
    read = []
    source = SimpleDataSource(lambda i: (read.append(i), (np.array(i),))[1], 4)
    cache = DataSourceWithMemoryCache(source)
    read.clear()
    for _ in range(3):
        cache.reset()
        numbers(cache, 4)
    assert read == [0, 1, 2, 3]


def test_memory_cache_shuffles_from_the_third_epoch_on() -> None:
    inner = simple(shuffle=True, rng=np.random.RandomState(5))
    cache = DataSourceWithMemoryCache(inner, shuffle=True, rng=np.random.RandomState(6))
    cache.reset()
    assert numbers(cache, 4) == [9, 5, 2, 4]
    cache.reset()
    assert numbers(cache, 10) == [9, 5, 2, 4, 7, 1, 0, 8, 6, 3]
    cache.reset()
    assert numbers(cache, 3) == [6, 5, 8]
    cache.reset()
    assert numbers(cache, 10) == [1, 4, 2, 9, 6, 8, 0, 7, 3, 5]
    assert cache.order == [5, 3, 2, 0, 8, 7, 6, 4, 9, 1]


def test_data_too_large_for_memory_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "memory_cache_bytes", 99)  # a sample is 10 bytes
    inner = simple(shuffle=True, rng=np.random.RandomState(5))
    cache = DataSourceWithMemoryCache(inner, shuffle=True)
    epochs = []
    for _ in range(2):
        epochs.append(numbers(cache, 10))
        cache.reset()
        cache.apply_order()
    assert epochs[0] == [9, 5, 2, 4, 7, 1, 0, 8, 6, 3]
    assert sorted(epochs[1]) == list(range(10)) and epochs[1] != epochs[0]


# file caches


def test_npy_cache_files_are_byte_for_byte_nnablas(tmp_path: Path) -> None:
    with DataSourceWithFileCache(simple(), str(tmp_path)):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "cache_00000000_00000003.npy",
        "cache_00000004_00000007.npy",
        "cache_00000008_00000009.npy",
        "cache_index.csv",
        "cache_info.csv",
    ]
    index = "cache_00000000_00000003.npy,4\ncache_00000004_00000007.npy,4\n"
    assert (tmp_path / "cache_index.csv").read_text() == index + "cache_00000008_00000009.npy,2\n"
    assert (tmp_path / "cache_info.csv").read_text() == "x0\nx1\n"
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, 'shape': (4, 2), }"
    content = (tmp_path / "cache_00000000_00000003.npy").read_bytes()
    assert content.startswith(header)
    assert content[128:136] == b"\x00\x01\x01\x02\x02\x03\x03\x04"
    assert content[136:].startswith(b"\x93NUMPY\x01\x00v\x00{'descr': '<f8'")


def test_h5_cache_has_a_data_set_per_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h5py = pytest.importorskip("h5py")
    monkeypatch.setattr(settings, "cache_file_format", ".h5")
    with DataSourceWithFileCache(simple(), str(tmp_path)):
        pass
    assert not (tmp_path / "cache_info.csv").exists()
    with h5py.File(tmp_path / "cache_00000008_00000009.h5") as file:
        assert {k: v[...].tolist() for k, v in file.items()} == {
            "x0": [[8, 9], [9, 10]],
            "x1": [8.0, 9.0],
        }
    (tmp_path / "cache_index.csv").unlink()  # not needed for .h5
    with CacheDataSource(str(tmp_path)) as source:
        assert numbers(source, 10) == list(range(10))


def test_unknown_cache_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "cache_file_format", ".zip")
    with pytest.raises(ValueError, match="settings.cache_file_format='.zip' is not one of"):
        DataSourceWithFileCache(simple())


def test_temporary_cache_is_removed_by_close() -> None:
    source = DataSourceWithFileCache(simple())
    folder = Path(source._cache_dir)
    assert folder.is_dir()
    source.close()
    assert not folder.exists()


def test_numbers_and_lists_are_cached_as_float32_and_arrays_as_they_are() -> None:
    values = ([1, 2], 3, 2.5, np.float64(1), np.arange(2.0), np.array([1, 2], np.uint16))
    with DataSourceWithFileCache(SimpleDataSource(lambda i: values, 3)) as source:
        dtypes = [value.dtype.name for value in source.next()]
    assert dtypes == ["float32"] * 4 + ["float64", "uint16"]


def test_samples_of_different_shapes_cannot_be_cached(tmp_path: Path) -> None:
    source = SimpleDataSource(lambda i: (np.zeros(1 + (i > 4)),), 8)
    with pytest.raises(
        DataSourceWithFileCacheError, match=r"x0 of sample 5 has the shape \(2,\), of sample 4"
    ):
        DataSourceWithFileCache(source, str(tmp_path))
    assert not list(tmp_path.glob("*.tmp")) and not (tmp_path / "cache_index.csv").exists()


def test_file_cache_shuffles_files_and_rows_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "file_cache_rows", 7)
    rng = np.random.RandomState(6)
    with DataSourceWithFileCache(simple(25), shuffle=True, rng=rng) as source:
        source.reset()
        assert source.order[:11] == [3, 1, 6, 0, 5, 2, 4, 24, 22, 23, 21]
        assert numbers(source, 25) == source.order
        source.reset()
        assert source.order[:7] == [3, 2, 5, 4, 0, 6, 1]
        assert numbers(source, 25) == source.order


@pytest.fixture
def cache(tmp_path: Path) -> str:
    folder = str(tmp_path / "cache")
    with DataSourceWithFileCache(simple(), folder):
        return folder


def test_cache_order_is_nnablas(cache: str) -> None:
    with CacheDataSource(cache, shuffle=True, rng=np.random.RandomState(3)) as source:
        epochs = []
        for _ in range(3):
            epochs.append(numbers(source, 10))
            source.reset()
    assert epochs == [
        [7, 6, 4, 5, 3, 2, 1, 0, 8, 9],
        [2, 0, 3, 1, 7, 4, 6, 5, 9, 8],
        [8, 9, 5, 7, 4, 6, 3, 0, 2, 1],
    ]


def test_cache_normalizes_uint8_only(cache: str) -> None:
    with CacheDataSource(cache, normalize=True) as source:
        source.next()
        x, y = source.next()
    assert x.dtype == np.float32
    assert x.tolist() == [0.003921568859368563, 0.007843137718737125]
    assert (y.dtype, float(y)) == (np.float64, 1.0)


def test_cache_iterator_reads_both_epochs(cache: str) -> None:
    with data_iterator_cache(cache, 4, normalize=False) as iterator:
        seen = [iterator.next()[0][:, 0].tolist() for _ in range(3)]
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]


def test_cache_without_names_or_files_is_refused(cache: str, tmp_path: Path) -> None:
    (Path(cache) / "cache_info.csv").unlink()
    with pytest.raises(FileNotFoundError, match="has .npy files but no cache_info.csv with the"):
        CacheDataSource(cache)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty holds no cache file"):
        CacheDataSource(str(tmp_path / "empty"))


def test_error_in_a_reading_thread_reaches_next(cache: str) -> None:
    (Path(cache) / "cache_00000004_00000007.npy").write_bytes(b"broken")
    with CacheDataSource(cache) as source:
        numbers(source, 4)
        with pytest.raises(ValueError, match="begins with no description of an array"):
            source.next()


def test_cache_with_python_objects_is_not_unpickled(cache: str) -> None:
    np.save(Path(cache) / "cache_00000000_00000003.npy", np.array([{}], object), allow_pickle=True)
    with CacheDataSource(cache) as source:
        with pytest.raises(ValueError, match="array of object .*, wanted numbers"):
            source.next()


def test_prefetchers_read_what_was_requested(cache: str) -> None:
    prefetcher = CachePrefetcher(cache, ["x0", "x1"])
    prefetcher.request("cache_00000004_00000007.npy")
    assert prefetcher.check_if_hit("cache_00000004_00000007.npy")
    assert prefetcher.read()["x1"].tolist() == [4, 5, 6, 7]
    with pytest.raises(ValueError, match=r"CachePrefetcher: read\(\) without a request\(\)"):
        prefetcher.read()
    prefetcher.close()
    reader = CacheReaderWithPrefetch(cache, 2, ["x0", "x1"])
    first, last = "cache_00000000_00000003.npy", "cache_00000008_00000009.npy"
    assert reader.open_and_prefetch_cache(first, [last])["x1"].tolist() == [0, 1, 2, 3]
    assert reader.open_and_prefetch_cache(last, [])["x1"].tolist() == [8, 9]
    reader.close()


# .csv


def test_csv_order_is_nnablas(tmp_path: Path) -> None:
    path = write_csv(tmp_path, "x\n" + "".join(f"{i}\n" for i in range(10)))
    source = CsvDataSource(path, shuffle=True, rng=np.random.RandomState(3))
    source.reset()
    assert source.order == [3, 8, 2, 1, 9, 4, 0, 6, 7, 5]
    assert numbers(source, 10) == source.order


@pytest.mark.parametrize(
    ("text", "variables", "first"),
    [
        ("x__0:f,x__1:g,y\n1.5,2,3\n", ("x", "y"), ([1.5, 2.0], [3.0])),
        ("x__1,y:label,x__0\n1,2,3\n", ("x", "y"), ([1.0, 3.0], [2.0])),
        ("x,# comment,y\n1,hello,3\n", ("x", "y"), ([1.0], [3.0])),
        ("\ufeffx,y\n1,3\n", ("x", "y"), ([1.0], [3.0])),
        ("x,y\n1,2\n\n4,5\n", ("x", "y"), ([1.0], [2.0])),
    ],
)
def test_csv_header(tmp_path: Path, text: str, variables: Any, first: Any) -> None:
    source = CsvDataSource(write_csv(tmp_path, text))
    assert source.variables == variables
    assert source.next() == first


def test_csv_cells_name_files_relative_to_it(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.arange(6.0).reshape(2, 3))
    (tmp_path / "m.csv").write_text("1,2\n3,4.5\n")
    x, y = CsvDataSource(write_csv(tmp_path, "x,y\nv.npy,m.csv\n")).next()
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert y.tolist() == [[1, 2], [3, 4.5]]


def test_csv_refuses_bad_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="data.csv, line 3 has 1 cells, the header 2"):
        CsvDataSource(write_csv(tmp_path, "x,y\n1,2\n4\n"))
    with pytest.raises(ValueError, match="data.csv has no header"):
        CsvDataSource(write_csv(tmp_path, ""))
    source = CsvDataSource(write_csv(tmp_path, "x\nabc\n"))
    with pytest.raises(ValueError, match="'abc' is neither a number nor a file name"):
        source.next()


def test_create_cache_copies_a_csv(tmp_path: Path) -> None:
    path = write_csv(tmp_path, "x,y\n" + "".join(f"{i},{2 * i}\n" for i in range(6)))
    CreateCache(path).create(str(tmp_path / "out"))
    with CacheDataSource(str(tmp_path / "out")) as source:
        assert list(source.variables) == ["x", "y"]
        assert numbers(source, 6) == [0, 1, 2, 3, 4, 5]


def test_a_csv_file_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x:image,y\n\n")
    with pytest.raises(ValueError, match=r"CsvDataSource: .*a.csv has a header and no rows"):
        CsvDataSource(str(tmp_path / "a.csv"))


def test_files_in_a_table_that_are_damaged_are_named(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("x,y\na.npy,1\n")
    (tmp_path / "a.npy").write_bytes(
        b"\x93NUMPY\x01\x00\x46\x00"
        + b"{'descr': '<f4', 'fortran_order': False, 'shape': (10**12,), }".ljust(70)
    )
    with CsvDataSource(str(tmp_path / "d.csv")) as source:
        with pytest.raises(ValueError, match="d.csv, line 2, column x: 'a.npy': it begins"):
            source.next()
    np.save(tmp_path / "a.npy", np.ones(4))
    data = (tmp_path / "a.npy").read_bytes().replace(b"(4,), }     ", b"(400000000,)")
    (tmp_path / "a.npy").write_bytes(data)
    with CsvDataSource(str(tmp_path / "d.csv")) as source:
        with pytest.raises(
            ValueError, match="line 2, column x: 'a.npy': .*(larger than the 32|no descr)"
        ):
            source.next()


def test_an_index_of_a_cache_that_lies_is_refused(cache: str) -> None:
    index = Path(cache) / "cache_index.csv"
    index.write_text(index.read_text().replace(",4", ",40000000000"))
    with pytest.raises(ValueError, match=r"cache_index.csv: .* is too small for 40000000000"):
        CacheDataSource(cache)


def test_caches_keep_the_table_and_the_order_that_they_were_made_of(tmp_path: Path) -> None:
    """The order is that of NNabla 1.39."""
    text = "x:a,y\n1,2\n3,4\n5,6\n"
    (tmp_path / "d.csv").write_text(text)
    CreateCache(str(tmp_path / "d.csv"), shuffle=True).create(str(tmp_path / "c"))
    assert (tmp_path / "c" / "original.csv").read_text() == text
    assert (tmp_path / "c" / "order.csv").read_text().split() == ["0,1", "1,2", "2,0"]


def test_a_function_may_return_one_array_with_a_row_for_each_variable() -> None:
    with SimpleDataSource(lambda i: np.arange(3) + i, 5) as source:
        assert list(source.variables) == ["x0", "x1", "x2"]
        source.next()
        assert np.array(source.next()).tolist() == [1, 2, 3]
    with pytest.raises(TypeError, match="load_func returned a ndarray for sample 0"):
        SimpleDataSource(lambda i: np.array(i), 5)
