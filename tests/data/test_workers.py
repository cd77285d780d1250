# SPDX-License-Identifier: Apache-2.0
"""Threads and processes that load samples: the same batches, errors with indices, a clean end."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.utils.data_iterator import (
    SimpleDataSource,
    data_iterator,
    data_iterator_concat_datasets,
    data_iterator_csv_dataset,
    data_iterator_simple,
    sample_rng,
)

WAYS = [(0, False), (1, False), (3, False), (2, True)]
ways = pytest.mark.parametrize(("num_workers", "use_multiprocessing"), WAYS)
with_workers = pytest.mark.parametrize(("num_workers", "use_multiprocessing"), WAYS[1:])


def load(i):
    time.sleep(0.001 * (i % 3))  # so that later ones are ready before
    return i, np.full((2, 2), sample_rng().rand())


def batches_of(n, of=load, size=11, batch=3, **kw):
    with data_iterator_simple(of, size, batch, **kw) as it:
        return [(*(a.tolist() for a in it.next()), it.epoch, it.position) for _ in range(n)]


@with_workers
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("use_thread", [False, True])
@pytest.mark.parametrize("batch", [1, 4, 30])
def test_batches_are_those_of_no_workers(
    num_workers, use_multiprocessing, shuffle, use_thread, batch
):
    kw = {"shuffle": shuffle, "use_thread": use_thread, "batch": batch}
    want = batches_of(9, rng=np.random.RandomState(5), **kw)
    kw |= {"num_workers": num_workers, "use_multiprocessing": use_multiprocessing}
    assert batches_of(9, rng=np.random.RandomState(5), **kw) == want
    assert want != batches_of(9, rng=np.random.RandomState(6), **kw)


@with_workers
def test_slices_caches_and_rows_of_sources_use_the_workers(
    num_workers, use_multiprocessing, tmp_path
):
    of = {"num_workers": num_workers, "use_multiprocessing": use_multiprocessing}

    def source(workers):
        kw = of if workers else {}
        return SimpleDataSource(load, 10, True, np.random.RandomState(1), **kw)

    def first(make):
        with make as it:
            return [it.next()[0].tolist() for _ in range(8)]

    for make in (
        lambda w: data_iterator(source(w), 4, np.random.RandomState(2), with_memory_cache=True),
        lambda w: data_iterator(source(w), 4, with_memory_cache=False).slice(None, 2, 1),
        lambda w: data_iterator(
            source(w), 4, with_file_cache=True, cache_dir=str(tmp_path / f"{w}{num_workers}")
        ),
        lambda w: data_iterator_concat_datasets([source(w), source(w)], 4),
    ):
        assert first(make(True)) == first(make(False))
    with source(True) as s:
        assert s.next()[0] in range(10)  # a sample and no promise


@with_workers
@pytest.mark.parametrize("with_file_cache", [False, True])
def test_rows_of_a_csv_and_their_files(num_workers, use_multiprocessing, with_file_cache, tmp_path):
    for i in range(9):
        np.save(tmp_path / f"{i}.npy", np.full((2, 2), i))
    rows = [f"{i}.npy,{i}" for i in range(9)]
    (tmp_path / "rows.csv").write_text("\n".join(["x,y", *rows, ""]))

    def first(**kw):
        kw |= {"cache_dir": str(tmp_path / f"cache{len(kw)}{num_workers}"), "shuffle": True}
        uri = str(tmp_path / "rows.csv")
        with data_iterator_csv_dataset(uri, 4, with_file_cache=with_file_cache, **kw) as it:
            return [[a.tolist() for a in it.next()] for _ in range(6)]

    workers = {"num_workers": num_workers, "use_multiprocessing": use_multiprocessing}
    assert first(**workers) == first()
    (tmp_path / "3.npy").unlink()
    uri = str(tmp_path / "rows.csv")
    with (
        data_iterator_csv_dataset(
            uri, 4, with_file_cache=False, with_memory_cache=False, **workers
        ) as it,
        pytest.raises(FileNotFoundError, match="line 5, column x: '3.npy'"),
    ):
        it.next()


class Odd(Exception):
    """Cannot be sent: its arguments are not those it is made of."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def failing(i):
    if i == 5:
        raise KeyError("no such picture")
    if i == 7:
        raise Odd("one", "two")
    return (i,)


@ways
def test_an_error_notes_the_index_and_the_next_batches_come(num_workers, use_multiprocessing):
    kw = {"num_workers": num_workers, "use_multiprocessing": use_multiprocessing}
    with data_iterator_simple(failing, 12, 2, **kw) as it:
        assert [it.next()[0].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(KeyError, match="no such picture") as e:
            it.next()
        assert e.value.__notes__ == ["while sample 5 was loaded"]
        if num_workers:
            with pytest.raises((Odd, RuntimeError), match="one and two") as e:
                it.next()
            assert e.value.__notes__ == ["while sample 7 was loaded"]
            assert it.next()[0].tolist() == [8, 9]


@with_workers
def test_the_end_of_an_epoch_and_a_rewind(num_workers, use_multiprocessing):
    kw = {"num_workers": num_workers, "use_multiprocessing": use_multiprocessing}
    with data_iterator_simple(load, 10, 4, stop_exhausted=True, **kw) as it:
        assert [b[0].tolist() for b in it] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with pytest.raises(StopIteration):
            it.next()
        it._reset()
        assert it.next()[0].tolist() == [0, 1, 2, 3]


def test_several_workers_load_at_once():
    together, first = threading.Barrier(4), threading.get_ident()

    def meet(i):
        if threading.get_ident() != first:  # which counts the variables
            together.wait(20)
        return (i,)

    with data_iterator_simple(meet, 40, 1, num_workers=4) as it:
        assert [it.next()[0].tolist() for _ in range(8)] == [[i] for i in range(8)]
        together.abort()


def draw(i):
    return os.getpid(), np.random.rand(), random.random()


def test_global_generators_begin_anew_for_each_sample_of_a_process():
    found = []
    for n in (1, 3):
        with data_iterator_simple(draw, 12, 6, num_workers=n, use_multiprocessing=True) as it:
            pid, a, b = (
                np.concatenate(c) for c in zip(*(it.next() for _ in range(2)), strict=True)
            )
        assert os.getpid() not in pid and len(set(a)) == len(set(b)) == 12
        found.append((a.tolist(), b.tolist()))
    assert found[0] == found[1]


def computing(i):
    x = nn.Variable.from_numpy_array(np.full((64, 64), i, np.float32))
    y = F.sum(F.affine(x, x))
    y.forward()
    return (y.d.copy(),)


def test_processes_work_after_the_engine_has_run_and_run_it_themselves():
    want = [64 * 64 * 64.0 * i * i for i in range(8)]
    assert float(computing(1)[0]) == want[1]
    with data_iterator_simple(computing, 8, 4, num_workers=2, use_multiprocessing=True) as it:
        assert np.concatenate([it.next()[0], it.next()[0]]).tolist() == want


def test_no_thread_and_no_process_stays():
    before = threading.active_count()
    for processes in (False, True):
        kw = {"num_workers": 3, "use_multiprocessing": processes}
        it = data_iterator_simple(load, 100, 5, **kw)
        it.next()
        it.close()
        it.close()
        assert multiprocessing.active_children() == []
        assert threading.active_count() == before
        with pytest.raises(ValueError, match="next\\(\\) after close\\(\\)"):
            it.next()


def dying(i):
    if i == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return (i,)


def test_a_killed_worker_is_an_error():
    with data_iterator_simple(dying, 10, 1, num_workers=1, use_multiprocessing=True) as it:
        with pytest.raises(BrokenProcessPool, match="terminated abruptly") as e:
            for _ in range(5):
                it.next()
        assert "was loaded" in e.value.__notes__[0]


SCRIPT = """
import os, sys
from nnl.utils.data_iterator import data_iterator_simple
it = data_iterator_simple(lambda i: (os.getpid(),), 10, 2, num_workers=2, use_multiprocessing=True)
print(*{int(p) for _ in range(9) for p in it.next()[0]}, flush=True)
os.kill(os.getpid(), 9) if sys.argv[1] == "killed" else None
"""


@pytest.mark.parametrize("how", ["killed", "left"])
def test_workers_end_with_a_parent_that_does_not_close(how):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == (-9 if how == "killed" else 0), done.stderr
    for pid in map(int, done.stdout.split()):
        for _ in range(100):
            if not os.path.exists(f"/proc/{pid}"):
                break
            time.sleep(0.1)
        else:
            state = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
            assert state == "Z"  # dead, and nobody has asked how


@pytest.mark.parametrize(
    ("kw", "error", "text"),
    [
        (
            {"num_workers": -1},
            ValueError,
            "num_workers=-1 with use_multiprocessing=False, wanted 0",
        ),
        (
            {"use_multiprocessing": True},
            ValueError,
            "num_workers=0 with use_multiprocessing=True, ",
        ),
        ({"num_workers": 5000}, ValueError, "num_workers=5000 .* wanted 0 to 1024"),
        ({"num_workers": 1.5}, TypeError, "num_workers=1.5 is not an integer"),
    ],
)
def test_numbers_of_workers(kw, error, text):
    with pytest.raises(error, match=f"data_iterator_simple: {text}"):
        data_iterator_simple(load, 4, 2, **kw)


def test_random_numbers_of_a_sample_are_for_loading_one():
    with pytest.raises(RuntimeError, match="sample_rng: no sample is being loaded by this thread"):
        sample_rng()
