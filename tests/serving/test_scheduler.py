# SPDX-License-Identifier: Apache-2.0
"""Texts that are written side by side."""

from __future__ import annotations

import queue
import time

import numpy as np
import pytest

from nnl.models.generation.sampling import Sampling
from nnl.models.generation.speaking import Said
from nnl.serving.scheduler import Job, Scheduler, _Busy
from tests.serving.toy import LETTERS, Rows, Text


def job(prompt, most=4, stop=()):
    told = queue.Queue()
    said = Said(Text().decode, list(stop))

    def tell(piece, end):
        told.put((piece, end))

    made = Job(Text().encode(prompt), most, Sampling(), np.random.default_rng(0), said, tell)
    made.told = told
    return made


def written(made):
    text = ""
    while True:
        piece, end = made.told.get(timeout=10)
        text += piece
        if end:
            return text, end


@pytest.fixture
def made():
    schedulers = []

    def make(*args, **kw):
        schedulers.append(Scheduler(*args, **kw))
        return schedulers[-1]

    yield make
    for s in schedulers:
        s.close()


def test_texts_end_for_their_reasons(made):
    s = made(Rows(), [LETTERS.index("z")])
    jobs = [job("ab"), job("w", 9), job("a", 9, ["ef"]), job("abcdefghi", 1)]
    s.submit(jobs)
    assert [written(j) for j in jobs] == [
        ("cdef", "length"), ("xy", "stop"), ("bcd", "stop"), ("j", "length"),
    ]  # fmt: skip


def test_more_texts_than_rows_wait_and_all_are_written(made):
    counted = []
    s = made(Rows(3), [], 100, lambda event, n: counted.append((event, n)))
    jobs = [job(LETTERS[i % 20], 1 + i % 5) for i in range(50)]
    s.submit(jobs)
    for i, j in enumerate(jobs):
        assert written(j)[0] == LETTERS[i % 20 + 1 : i % 20 + 2 + i % 5]
    assert sum(event == "first" for event, _ in counted) == 50
    deadline = time.monotonic() + 5
    while s.load != (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert s.load == (0, 0)


def test_a_long_prompt_is_read_between_the_tokens_of_others(made):
    rows = Rows(2, 200, 4)
    s = made(rows, [])
    first = job("a", 30)
    s.submit([first])
    first.told.get(timeout=10)
    second = job("abcdefgh" * 5, 1)
    s.submit([second])
    written(second), written(first)
    pieces = [i for i, fed in enumerate(rows.fed) if any(len(r) > 1 for r in fed)]
    assert len(pieces) == 10  # 40 tokens, the last of which are a piece too
    between = [fed for fed in rows.fed[pieces[0] : pieces[-1]] if all(len(r) <= 1 for r in fed)]
    assert len(between) >= 8


def test_a_row_that_has_read_the_beginning_does_not_read_it_again(made):
    rows = Rows(2)
    s = made(rows, [])
    for prompt in ("abcdefgh", "xyxyxyxy", "abcdefgq"):
        j = job(prompt, 1)
        s.submit([j])
        written(j)
    assert sum(len(r) for fed in rows.fed for r in fed) == 8 + 8 + 1


def test_cancelled_texts_leave_their_rows(made):
    rows = Rows(1, 10**6, pause=0.005)
    s = made(rows, [])
    endless, after = job("a", 10**5), job("c", 2)
    s.submit([endless, after])
    endless.told.get(timeout=10)
    s.cancel([endless])
    assert written(after) == ("de", "length")
    waiting = job("a", 3)
    again = job("a", 10**5)
    s.submit([again, waiting])
    s.cancel([waiting, again])
    last = job("b", 1)
    s.submit([last])
    assert written(last) == ("c", "length")
    assert waiting.told.empty()


def test_the_queue_has_a_bound(made):
    s = made(Rows(1, 10**6, pause=0.01), [], 2)
    s.submit([job("a", 10**4)])
    time.sleep(0.1)
    s.submit([job("a"), job("a")])
    with pytest.raises(_Busy, match="2 texts wait already"):
        s.submit([job("a")])


def test_a_failure_ends_the_texts_and_not_the_server(made):
    rows = Rows()
    s = made(rows, [])
    rows.broken = True
    j = job("a")
    s.submit([j])
    assert written(j) == ("", "error: broken")
    rows.broken = False
    j = job("a", 2)
    s.submit([j])
    assert written(j) == ("bc", "length")


def test_prompts_that_do_not_fit_are_refused(made):
    s = made(Rows(1, 8), [])
    for prompt in ("", "abcdefgh"):
        with pytest.raises(ValueError, match=f"the prompt has {len(prompt)} tokens, wanted 1 to 7"):
            s.submit([job(prompt)])
