# SPDX-License-Identifier: Apache-2.0
"""Lists of samples as other people, programs and systems write them."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.data.image import imsave
from nnl.data.iterator import data_iterator_csv_dataset
from nnl.data.loader import get_file_extension, load_csv, load_image
from nnl.data.source_csv import CreateCache, CsvDataSource


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a colour and a grey picture, and an array."""
    (tmp_path / "im").mkdir()
    colours = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    imsave(tmp_path / "im" / "colour.png", colours)
    imsave(tmp_path / "im" / "grey.png", colours[:, :, 0])
    np.save(tmp_path / "im" / "a.npy", np.arange(3.0))
    return tmp_path


def listed(folder: Path, content: str | bytes, **options: Any) -> CsvDataSource:
    data = content if isinstance(content, bytes) else content.encode()
    (folder / "l.csv").write_bytes(data)
    return CsvDataSource(str(folder / "l.csv"), **options)


@pytest.mark.parametrize(
    "text",
    [
        "x,y\nim/a.npy,1\n",
        "x, y\n im/a.npy , 1\n",
        'x, y\n "im/a.npy", 1\n',
        "x,y\nim\\a.npy,1\n",
        "x;y\r\nim\\a.npy;1\r\n",
        "x\ty\nim/a.npy\t1\n",
        "\n\nx,y\n\nim/a.npy,1\n\n",
        "sep=;\nx;y\nim/a.npy;1\n",
        "x,y,,\nim/a.npy,1,,\n",
        "\ufeffx;y\nim/a.npy;1\n",
    ],
)
def test_blanks_backslashes_and_other_dividers_are_read(folder: Path, text: str) -> None:
    source = listed(folder, text)
    assert source.variables == ("x", "y")
    x, y = source.next()
    assert x.tolist() == [0, 1, 2] and y == [1.0]


def test_a_name_with_a_backslash_of_its_own_is_kept(folder: Path) -> None:
    np.save(folder / "im\\a.npy", np.ones(1))
    assert listed(folder, "x\nim\\a.npy\n").next()[0].tolist() == [1.0]


@pytest.mark.parametrize("name", ["a#1.npy", "a?b.npy", "100%.npy", "花.npy", "a b.npy"])
def test_any_name_of_a_file_is_read(folder: Path, name: str) -> None:
    np.save(folder / name, np.ones(2))
    assert listed(folder, f"x\n{name}\n").next()[0].tolist() == [1, 1]
    assert get_file_extension("http://example.com/a.PNG?size=1#top") == ".png"


def test_accents_are_found_as_either_system_writes_them(folder: Path) -> None:
    for form, other in (("NFC", "NFD"), ("NFD", "NFC")):
        np.save(folder / unicodedata.normalize(form, f"é{form}.npy"), np.ones(2))
        name = unicodedata.normalize(other, f"é{form}.npy")
        assert listed(folder, f"x\n{name}\n").next()[0].tolist() == [1, 1]


@pytest.mark.parametrize("encoding", ["cp932", "shift_jis", "euc_jp", "utf-16"])
def test_lists_in_other_encodings(folder: Path, encoding: str) -> None:
    np.save(folder / "表.npy", np.ones(2))
    data = "x:画像,y:ラベル\n表.npy,1\n".encode(encoding)
    given = None if encoding == "utf-16" else encoding  # it begins with a mark
    assert listed(folder, data, encoding=given).next()[0].tolist() == [1, 1]
    options = {"encoding": given, "with_file_cache": True}
    with data_iterator_csv_dataset(str(folder / "l.csv"), 1, **options) as batches:
        assert batches.next()[0].tolist() == [[1, 1]]
    CreateCache(str(folder / "l.csv"), encoding=given).create(str(folder / "cache"))
    assert "表.npy" in (folder / "cache" / "original.csv").read_text("utf-8")


def test_another_encoding_is_named_with_what_to_do(folder: Path) -> None:
    data = "x,y\n1,2\n表.npy,1\n".encode("cp932")
    with pytest.raises(ValueError, match=r'l.csv, line 3 is not UTF-8: .* encoding="cp932" for Sh'):
        listed(folder, data)
    with pytest.raises(ValueError, match=r"l.csv, line 3 is not ascii: give its encoding"):
        listed(folder, data, encoding="ascii")
    with pytest.raises(ValueError, match="there is no encoding 'sjs'; cp932 is Shift JIS"):
        listed(folder, data, encoding="sjs")
    with pytest.raises(ValueError, match="l.csv is no .csv file: it has zero bytes"):
        listed(folder, b"PK\x03\x04\0\0")


@pytest.mark.parametrize(
    ("cell", "kind", "message"),
    [
        ("im/nothere.png", FileNotFoundError, "there is no such file"),
        ("im/A.npy", FileNotFoundError, "did you mean a.npy"),
        ("no/a.npy", FileNotFoundError, "there is no such file, nor its folder"),
        (r"C:\data\a.png", FileNotFoundError, "a place on a disk of Windows: names begin at"),
        ("im.npy", IsADirectoryError, "Is a directory"),
        ("a.xyz", ValueError, "no loader for the extension '.xyz'; there are .bmp"),
        ("cat", ValueError, "is neither a number nor a file name: write classes as numbers from 0"),
        ('"0,5"', ValueError, "neither a number nor a file name: numbers have points here, 0.5"),
        ('""', ValueError, "the cell is empty"),
        ("1.2.3", ValueError, "is neither a number nor a file name"),
    ],
)
def test_messages_name_file_row_and_column(
    folder: Path, cell: str, kind: type[Exception], message: str
) -> None:
    (folder / "im.npy").mkdir()
    source = listed(folder, f"x:first,y\n1,2\n\n3,{cell}\n")
    source.next()
    written = re.escape(repr(cell.strip('"')))
    with pytest.raises(kind, match=rf"l.csv, line 4, column y: {written}.*{message}"):
        source.next()


def test_messages_of_whole_rows_name_the_file(folder: Path) -> None:
    with pytest.raises(ValueError, match="l.csv, line 3 has 3 cells, the header 2"):
        listed(folder, "\nx;y\n1;2;3\n")
    (folder / "im" / "long.npy").write_bytes((folder / "im" / "a.npy").read_bytes())
    np.save(folder / "im" / "long.npy", np.arange(5.0))
    listed(folder, "x\nim/a.npy\nim/long.npy\n")
    with pytest.raises(ValueError, match=r"x of .*l.csv, line 3 has the shape \(5,\), of .*line 2"):
        data_iterator_csv_dataset(str(folder / "l.csv"), 1)


def test_grey_and_colour_pictures_say_what_to_set(folder: Path) -> None:
    source = listed(folder, "x,y\nim/colour.png,0\nim/grey.png,1\n")
    source.next()
    with pytest.raises(
        ValueError,
        match=r"line 3, column x: 'im/grey.png' has 1 channels, that of line 2, column x: "
        r"'im/colour.png' 3: channels=1 or 3 converts",
    ):
        source.next()
    for channels in (1, 3, 4):
        options = {"channels": channels, "normalize": False}
        with data_iterator_csv_dataset(str(folder / "l.csv"), 2, **options) as batches:
            x = batches.next()[0]
        assert x.shape == (2, channels, 2, 2)
        assert x[1, 0].tolist() == [[0, 3], [6, 9]]
    with pytest.raises(ValueError, match="channels=2 is not one of 1, 3, 4"):
        listed(folder, "x\n1\n", channels=2)
    with pytest.raises(ValueError, match="has 1 channels, .* wants 3: channels=3 converts it"):
        load_image(folder / "im" / "grey.png", (3, 2, 2))
    assert load_image(folder / "im" / "grey.png", (3, 2, 2), channels=3).shape == (3, 2, 2)


def test_tables_of_numbers_with_other_dividers(folder: Path) -> None:
    for text in ("1,2\n3,4\n", "1;2\n3;4\n", "1\t2\n3\t4\n", " 1, 2\n 3, 4\n"):
        (folder / "n.csv").write_text(text)
        assert load_csv(folder / "n.csv").tolist() == [[1, 2], [3, 4]]
    (folder / "n.csv").write_text("0,5;1\n")
    with pytest.raises(ValueError, match="load_csv: '0,5' is no number: numbers have points"):
        load_csv(folder / "n.csv")


@pytest.mark.parametrize("header", ["x:left,x:right,y", "x,y,x", "x:a;x:b;y"])
def test_two_columns_of_one_name_are_refused(folder: Path, header: str) -> None:
    row = "1;2;0" if ";" in header else "1,2,0"
    with pytest.raises(ValueError, match=r"l\.csv: 2 columns of the header are 'x': those of a v"):
        listed(folder, f"{header}\n{row}\n")
    source = listed(folder, "x__0:left,x__1:right,y\n1,2,0\n")
    assert source.next() == ([1.0, 2.0], [0.0])
