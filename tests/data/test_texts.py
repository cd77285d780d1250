# SPDX-License-Identifier: Apache-2.0
"""Files of texts as rows: what is in them, orders, shares, going on, damage."""

import json
import sys

import numpy as np
import pytest

from nnl.data.texts import open_texts
from nnl.data.texts.files import MIXED, Files


def lesson(sample):
    """Numbers: all of "text" is learned, or what follows "prompt"."""
    prompt, answer = sample.get("prompt", []), sample.get("answer", sample.get("text", []))
    return prompt + answer, [False] * len(prompt) + [True] * len(answer)


def write(path, samples):
    path.write_text("".join(json.dumps(s) + "\n" for s in samples))
    return str(path)


def numbered(path, *lengths):
    """Text i has the tokens 100 i + 1, 100 i + 2, ..."""
    return write(
        path, [{"text": [100 * i + j + 1 for j in range(n)]} for i, n in enumerate(lengths)]
    )


def rows_of(path, count, *size, **more):
    with open_texts(path, lesson, *size, **more) as rows:
        return [rows.next() for _ in range(count)]


def texts_in(batches):
    """The texts of rows: what follows each position 0, with the label of the last token."""
    found = []
    for b in batches:
        for tokens, labels, positions in zip(*(x.tolist() for x in b), strict=True):
            for t, label, p in zip(tokens, labels, positions, strict=True):
                if t and not p:
                    found.append([t])
                elif t:
                    found[-1].append(t)
                assert label in (t + 1, -100)
    return found


def test_rows_are_full_of_texts_that_go_on(tmp_path):
    path = numbered(tmp_path / "a.jsonl", 5)
    first, second = rows_of(path, 2, 4, 1)
    assert [x.tolist() for x in first] == [[[1, 2, 3, 4]], [[2, 3, 4, 5]], [[0, 1, 2, 3]]]
    assert second.tokens.tolist() == [[5, 1, 2, 3]]
    assert second.labels.tolist() == [[-100, 2, 3, 4]]  # 5 ends its text
    assert second.positions.tolist() == [[0, 0, 1, 2]]
    assert all(x.dtype == np.int32 for x in first)


def test_an_answer_stays_behind_its_prompt(tmp_path):
    samples = [{"prompt": [1, 2, 3], "answer": [4, 5]}]
    (batch,) = rows_of(write(tmp_path / "a.jsonl", samples), 1, 8, 2)
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 5, 0, 0, 0]] * 2
    assert batch.labels.tolist() == [[-100, -100, 4, 5, -100, -100, -100, -100]] * 2
    samples = [{"prompt": [1, 2], "answer": [3, 4, 5, 6]}]  # longer than a row
    (batch,) = rows_of(write(tmp_path / "a.jsonl", samples), 1, 3, 2)
    assert batch.tokens.tolist() == [[1, 2, 3]] * 2
    assert batch.labels.tolist() == [[-100, 3, 4]] * 2


def test_each_epoch_has_every_text_once_in_another_order(tmp_path):
    path = numbered(tmp_path / "a.jsonl", *[3] * 40)
    batches = rows_of(path, 6, 10, 4)  # two epochs
    found = [t[0] // 100 for t in texts_in(batches) if t[0] % 100 == 1]
    assert sorted(found[:40]) == sorted(found[40:80]) == list(range(40))
    assert found[:40] != found[40:80] and found[:40] != list(range(40))
    again, other = rows_of(path, 6, 10, 4), rows_of(path, 6, 10, 4, seed=1)
    assert all((a.tokens == b.tokens).all() for a, b in zip(batches, again, strict=True))
    assert any((a.tokens != b.tokens).any() for a, b in zip(batches, other, strict=True))


def test_ranks_share_an_epoch(tmp_path):
    path = numbered(tmp_path / "a.jsonl", *[2] * 9)
    found = []
    for rank, own in ((0, 5), (1, 4)):
        batches = rows_of(path, own, 2, 1, rank=rank, ranks=2)
        found += [int(b.tokens[0, 0]) // 100 for b in batches]
    assert sorted(found) == list(range(9))


def test_what_goes_on_is_what_would_have_come(tmp_path):
    rng = np.random.default_rng(0)
    path = numbered(tmp_path / "a.jsonl", *rng.integers(1, 30, 50))
    with open_texts(path, lesson, 16, 3) as rows:
        want, states = [], []
        for _ in range(25):  # more than an epoch
            states.append(json.loads(json.dumps(rows.state())))
            want.append(rows.next())
        assert rows.epoch == 1
    for i in (0, 1, 7, 24):
        with open_texts(path, lesson, 16, 3) as rows:
            rows.next()
            rows.go_on(states[i])
            for batch in want[i:]:
                for a, b in zip(rows.next(), batch, strict=True):
                    np.testing.assert_array_equal(a, b)


def test_a_state_of_other_data_is_refused(tmp_path):
    path = numbered(tmp_path / "a.jsonl", 3, 3)
    with open_texts(path, lesson, 4, 1) as rows:
        state = rows.state()
    with open_texts(path, lesson, 4, 1, seed=2) as rows:
        with pytest.raises(ValueError, match="Texts.go_on: seed was 0, and is 2 here"):
            rows.go_on(state)


def test_several_files_and_patterns(tmp_path):
    for i, n in enumerate((2, 0, 3)):
        numbered(tmp_path / f"{i}.jsonl", *[1] * n)
    files = Files(str(tmp_path / "*.jsonl"))
    assert files.size == 5 and files.place(3) == f"{tmp_path / '2.jsonl'}, line 2"
    assert [files.sample(i) for i in (1, 4)] == [{"text": [101]}, {"text": [201]}]
    assert sorted(files.order(0, 0)) == list(range(5))


def test_blocks_are_mixed_a_few_at_a_time(tmp_path):
    for i in range(2 * MIXED):
        numbered(tmp_path / f"{i:02}.jsonl", *[1] * 5)
    files = Files(str(tmp_path / "*.jsonl"))
    order = files.order(0, 0)
    first, second = (set(half // 5) for half in np.split(order, 2))
    assert sorted(order) == list(range(10 * MIXED)) and not first & second
    assert len(set(order[:10] // 5)) > 3


def test_lines_of_all_systems(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": [1]}\r\n\r\n\n{"text": [2]}')
    files = Files(path)
    assert [files.sample(i)["text"] for i in range(files.size)] == [[1], [2]]
    assert files.place(1).endswith("a.jsonl, line 4")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b'{"text": ', "a.jsonl, line 2: this is no JSON: Expecting value"),
        (b'{"text": "\xff"}', "a.jsonl, line 2: this is no JSON: 'utf-8' codec can't decode"),
        (b"[" * 100_000, "a.jsonl, line 2: this is no JSON: maximum recursion"),
        (b'["text"]', "a.jsonl, line 2: this is list, wanted an object"),
        (b'{"text": [1, 2, "x"]}', "a.jsonl, line 2: invalid literal"),
        (b'{"prompt": [[1]], "answer": [[2, 3]]}', "a.jsonl, line 2: .*inhomogeneous"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, line, named):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": [1]}\n' + line + b"\n")
    with open_texts(path, lesson, 4, 1) as rows, pytest.raises(ValueError, match=named):
        rows.next()


def test_what_cannot_be_opened_is_named(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "a.txt").write_text("text")
    for name, named in (
        ("a.txt", "a.txt is none of .jsonl, .parquet"),
        ("empty.jsonl", "there are no samples in .*empty.jsonl"),
    ):
        with pytest.raises(ValueError, match=named):
            open_texts(tmp_path / name, lesson, 4, 1)
    with pytest.raises(FileNotFoundError, match="none.jsonl"):
        open_texts(tmp_path / "none.jsonl", lesson, 4, 1)
    path = numbered(tmp_path / "a.jsonl", 3)
    for wrong, named in (
        ({"rank": 1}, r"open_texts: rank=1 is not in \[0, 0\]"),
        ({"ranks": 2}, "open_texts: there are 1 samples for 2 ranks"),
        ({"seed": -1}, "open_texts: seed=-1"),
    ):
        with pytest.raises(ValueError, match=named):
            open_texts(path, lesson, 4, 1, **wrong)
    with open_texts(path, lambda sample: ([1, 2], [True]), 4, 1) as rows:
        with pytest.raises(ValueError, match="line 1: lesson gives 2 tokens, and says 1 times"):
            rows.next()
    write(tmp_path / "a.jsonl", [{"text": []}, {"text": []}])
    with open_texts(path, lesson, 4, 1) as rows:
        with pytest.raises(ValueError, match="open_texts: no sample has a token"):
            rows.next()


def test_a_table_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"is read by pyarrow: pip install 'nnl\[parquet\]'"):
        Files(tmp_path / "a.parquet")


@pytest.mark.long
def test_tables_give_what_lines_give(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    samples = [{"text": [i + 1, i + 2]} for i in range(50)]
    samples += [{"prompt": [i + 1], "answer": [i + 2]} for i in range(7)]
    parquet.write_table(
        arrow.Table.from_pylist(samples[:50]), tmp_path / "a.parquet", row_group_size=7
    )
    parquet.write_table(arrow.Table.from_pylist(samples[50:]), tmp_path / "b.parquet")
    files = Files([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    assert [files.sample(i) for i in range(files.size)] == samples
    assert files.place(51).endswith("b.parquet, row 2")
    assert sorted(files.order(3, 1)) == list(range(57))
    parquet.write_table(
        arrow.Table.from_pylist([{"text": None, "messages": [{"role": "user", "content": "ß"}]}]),
        tmp_path / "c.parquet",
    )
    talk = {"messages": [{"role": "user", "content": "ß"}]}
    assert Files(tmp_path / "c.parquet").sample(0) == talk
    good = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "d.parquet").write_bytes(good[: len(good) // 2])
    with pytest.raises(ValueError, match=r"d.parquet is no file of Parquet's form"):
        Files(tmp_path / "d.parquet")
    (tmp_path / "d.parquet").write_bytes(good[:4] + b"\xff" * 60 + good[64:])
    with open_texts(tmp_path / "d.parquet", lesson, 200, 1) as rows:
        with pytest.raises(ValueError, match=r"d.parquet, row \d: the file is damaged"):
            rows.next()
