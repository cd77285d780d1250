# SPDX-License-Identifier: Apache-2.0
"""Shards and texts at addresses, through fsspec's stores in memory and on disk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from nnl.data.images import open_images
from nnl.data.texts import open_texts
from nnl.data.texts.files import Files
from nnl.data.urls import local_files
from tests.data.test_image_shards import two_tars

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("NNL_DATA_HOME", str(tmp_path / "home"))
    found = fsspec.filesystem("memory")
    found.store.clear()
    return found


def test_shards_at_an_address_are_the_local_ones(store: Any, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    two_tars(tmp_path / "here")
    for file in sorted((tmp_path / "here").iterdir()):
        store.pipe(f"/pictures/{file.name}", file.read_bytes())

    def batches(path: str, **share: int) -> list[Any]:
        with open_images(path, batch_size=1, size=8, seed=3, workers=1, **share) as pictures:
            return [(x.tolist(), t.tolist()) for x, t in pictures.epoch(1)]

    want = batches(str(tmp_path / "here"))
    assert len(want) == 6
    for path in ("memory://pictures/*.tar", "memory://pictures/a-{00..01}.tar"):
        assert batches(path) == want
    # the order does not depend on the number of ranks: each has every second one of it
    assert [batches("memory://pictures/*.tar", rank=r, ranks=2)[0] for r in (0, 1)] == want[:2]
    store.pipe("/pictures/a-00.tar", b"of another day")
    assert batches("memory://pictures/*.tar") == want  # what was fetched stays
    kept = sorted(p.name[17:] for p in (tmp_path / "home" / "fetched").iterdir())
    assert kept == ["a-00.tar", "a-01.tar"]


def test_texts_at_an_address(store: Any) -> None:
    for k in range(3):
        store.pipe(f"/texts/{k}.jsonl", b'{"text": "%d"}\n' % k)
    files = Files(["memory://texts/*.jsonl", "memory://texts/0.jsonl"])
    assert [files.sample(i)["text"] for i in range(files.size)] == ["0", "1", "2", "0"]
    for path in ("memory://texts/9.jsonl", "memory://texts/9*.jsonl"):
        with pytest.raises(FileNotFoundError, match="open_texts: there is no file memory:"):
            open_texts(path, lambda s: ([], []), 4, 1)


def test_what_fsspec_lacks_is_said(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = r"open_images: {}://a.tar takes fsspec: pip install 'nnl\[urls\]': "
    with pytest.raises(ImportError, match=text.format("strange") + "Protocol not known"):
        open_images("strange://a.tar", 1, 8)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ImportError, match=text.format("s3")):
        open_images("s3://a.tar", 1, 8)
    assert local_files("open_texts", "here.jsonl") == ["here.jsonl"]


def test_a_fetch_that_fails_leaves_nothing(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.pipe("/texts/0.jsonl", b"{}\n")

    def broken(name: str, target: str) -> None:
        Path(target).write_bytes(b"{")
        raise OSError("the line went dead")

    monkeypatch.setattr(type(store), "get_file", lambda self, *a: broken(*a))
    with pytest.raises(OSError, match="the line went dead"):
        local_files("open_texts", "memory://texts/0.jsonl")
    assert list((tmp_path / "home" / "fetched").iterdir()) == []
