# SPDX-License-Identifier: Apache-2.0
from urllib.error import URLError

import pytest

from nnl.utils.data_source_loader import download
from nnl.utils.download import get_data_home


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.setenv("NNL_DATA_HOME", str(tmp_path / "home"))
    (tmp_path / "some data.bin").write_bytes(b"one")
    return (tmp_path / "some data.bin").as_uri()


def test_a_file_is_fetched_once_and_kept(url, tmp_path):
    with download(url) as file:
        assert file.read() == b"one"
    (tmp_path / "some data.bin").write_bytes(b"two")
    with download(url) as file:
        assert file.read() == b"one"
    with download(url, allow_overwrite=True) as file:
        assert file.read() == b"two"
    assert [p.name for p in (tmp_path / "home").iterdir()] == ["some data.bin"]
    assert get_data_home() == str(tmp_path / "home")


def test_it_goes_where_it_is_told(url, tmp_path):
    assert download(url, tmp_path / "here", open_file=False) is None
    assert (tmp_path / "here").read_bytes() == b"one"


def test_a_failed_download_leaves_the_old_file(url, tmp_path):
    (tmp_path / "here").write_bytes(b"old")
    with pytest.raises(URLError):
        download(url + "x", tmp_path / "here", allow_overwrite=True)
    assert (tmp_path / "here").read_bytes() == b"old"
    assert not list(tmp_path.glob(".*"))


def test_an_address_without_a_file_is_refused():
    with pytest.raises(ValueError, match=r"download: url 'https://example.org/' names no file"):
        download("https://example.org/")
