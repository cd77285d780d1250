# SPDX-License-Identifier: Apache-2.0
"""conv_dataset, create_..._dataset: what the data iterators read back is what was put in."""

from __future__ import annotations

import csv
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from nnl.cli.main import main
from nnl.data.image import imread, imsave
from nnl.data.iterator import data_iterator_cache, data_iterator_csv_dataset
from nnl.datasets.pictures import Shape, shaped

pytest.importorskip("PIL")


def rows_of(path: Path) -> list[list[str]]:
    with open(path, newline="") as file:
        return list(csv.reader(file))


def write_pictures(folder: Path) -> None:
    """Two classes; every picture is of one colour, wider than high."""
    for label, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for i in range(4):
            image = np.full((10, 20, 3), 40 * (4 * label + i) % 256, np.uint8)
            imsave(str(folder / name / f"{i}.png"), image)
    (folder / "empty").mkdir()
    (folder / "dog" / "notes.txt").write_text("no picture")
    (folder / "dog" / "broken.jpg").write_bytes(b"no picture")


def build(source: Path, out: Path, *more: str, code: int = 0) -> None:
    kind = "object_detection" if "-n" in more else "image_classification"
    args = ["-i", source, "-o", out, "-w", "8", "-g", "8", *more]
    assert main([f"create_{kind}_dataset", *map(str, args)]) == code


SHARED = ["-m", "trimming", "-s", "true", "-f1", "train.csv"]


def test_folders_become_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pictures(tmp_path / "in")
    parts = ["-r1", "75", "-f2", "valid.csv", "-r2", "25", "--json"]
    build(tmp_path / "in", tmp_path / "out", "-c", "3", *SHARED, *parts)
    result = json.loads(capsys.readouterr().out)
    assert result["files"] == {"train.csv": 6, "valid.csv": 2}
    assert result["classes"] == {"cat": 4, "dog": 4}
    assert [Path(p).name for p in result["skipped"]] == ["broken.jpg"]
    header, *train = rows_of(tmp_path / "out" / "train.csv")
    assert header == ["x:image", "y:label"]
    both = train + rows_of(tmp_path / "out" / "valid.csv")[1:]
    want = sorted([f"./{n}/{i}.png", str(j)] for j, n in enumerate(("cat", "dog")) for i in "0123")
    assert sorted(both) == want != both  # all of them, mixed
    with data_iterator_csv_dataset(str(tmp_path / "out" / "train.csv"), 6) as it:
        x, y = it.next()
    assert x.shape == (6, 3, 8, 8) and y.shape == (6, 1)
    for image, label, (name, _) in zip(x, y[:, 0], train, strict=True):
        value = 40 * (4 * int(label) + int(Path(name).stem)) % 256
        np.testing.assert_allclose(image, value / 255, atol=1e-6)
    build(tmp_path / "in", tmp_path / "again", "-c", "3", *SHARED, *parts)
    same = tmp_path / "again" / "train.csv"
    assert same.read_bytes() == (tmp_path / "out" / "train.csv").read_bytes()


@pytest.mark.parametrize(
    ("mode", "columns"), [("trimming", "bb"), ("padding", "0abb0"), ("resize", "aabb")]
)
def test_modes_cut_fill_and_stretch(tmp_path: Path, mode: str, columns: str) -> None:
    """A picture 32 x 16 whose quarters differ: what is left of it, and where."""
    values = {"a": 60, "b": 200, "0": 0}
    image = np.zeros((16, 32, 3), np.uint8)
    image[:, :16], image[:, 16:] = values["a"], values["b"]
    if mode == "trimming":  # the middle half is of the second colour
        image[:, 8:24] = values["b"]
    (tmp_path / "in" / "c").mkdir(parents=True)
    imsave(str(tmp_path / "in" / "c" / "p.png"), image)
    options = ["-m", mode, "-s", "false", "-f1", "a.csv", "-c", "1"]
    build(tmp_path / "in", tmp_path / "out", *options)
    found = imread(str(tmp_path / "out" / "c" / "p.png"))
    assert found.shape == (8, 8)
    if mode == "padding":
        assert (found[[0, 7]] < 30).all()
        np.testing.assert_allclose(found[4, [1, 6]], [values["a"], values["b"]], atol=3)
    else:
        want = [values[c] for c in (columns[0], columns[-1])]
        np.testing.assert_allclose(found[4, [1, 6]], want, atol=3)


def test_what_fills_up_a_picture_is_shared_as_nnabla_does() -> None:
    """Of an odd number of columns, one more on the right; a product is rounded down once."""
    image = np.full((4, 3), 9, np.uint8)
    assert shaped(image, Shape(4, 4, "padding", 1)).tolist() == [[9, 9, 9, 0]] * 4
    assert shaped(np.full((3, 49), 9, np.uint8), Shape(49, 3 * 49, "padding", 1)).shape == (147, 49)


def test_boxes_become_cells(tmp_path: Path) -> None:
    """One box in the left upper quarter, one on the right; the larger anchor is the second."""
    (tmp_path / "in" / "deep").mkdir(parents=True)
    imsave(str(tmp_path / "in" / "deep" / "p.png"), np.zeros((8, 8, 3), np.uint8))
    (tmp_path / "in" / "deep" / "p.txt").write_text("1 0.25 0.25 0.2 0.2\n0 0.75 0.5 0.4 0.8\n")
    numbers = ["-n", "2", "-a", "2", "-d", "4", "-c", "3"]
    build(tmp_path / "in", tmp_path / "out", *numbers, *SHARED)
    header, row = rows_of(tmp_path / "out" / "train.csv")
    stem = "./data/deep/p"
    assert header == ["x:image", "y:label", "r:region"]
    assert row == [f"{stem}.png", f"{stem}_label.csv", f"{stem}_region.csv"]
    labels = np.loadtxt(tmp_path / "out" / row[1], delimiter=",").reshape(2, 2, 2)
    assert labels.tolist() == [[[1, -1], [-1, -1]], [[-1, -1], [-1, 0]]]
    regions = np.loadtxt(tmp_path / "out" / row[2], delimiter=",").reshape(2, 2, 2, 4)
    want = [0.5, 0.5, np.log(0.4), np.log(0.4)]  # in cells of half the picture
    np.testing.assert_allclose(regions[0, 0, 0], want, atol=1e-6)
    np.testing.assert_allclose(regions[1, 1, 1], [0.5, 0.0, np.log(0.8), np.log(1.6)], atol=1e-6)
    assert np.count_nonzero(regions) == 7


def test_boxes_move_with_their_picture(tmp_path: Path) -> None:
    """Of a picture twice as wide as high the middle is kept, so boxes get twice as wide."""
    (tmp_path / "in").mkdir()
    imsave(str(tmp_path / "in" / "p.png"), np.zeros((8, 16, 3), np.uint8))
    (tmp_path / "in" / "p.txt").write_text("0 0.375 0.25 0.1 0.2\n")
    build(tmp_path / "in", tmp_path / "out", "-n", "1", "-a", "1", "-d", "4", "-c", "3", *SHARED)
    labels = np.loadtxt(tmp_path / "out" / "data" / "p_label.csv", delimiter=",")
    regions = np.loadtxt(tmp_path / "out" / "data" / "p_region.csv", delimiter=",")
    assert labels.tolist() == [[0, -1], [-1, -1]]
    np.testing.assert_allclose(regions[0, :4], [0.5, 0.5, np.log(0.4), np.log(0.4)], atol=1e-6)


WRONG = [
    (["-c", "2", *SHARED], "the number of channels is 2, wanted 1 or 3"),
    (["-c", "3", "-m", "cut", *SHARED[2:]], "mode is 'cut', wanted one of trimming, padding, resi"),
    (["-c", "3", *SHARED, "-f2", "b", "-r1", "50", "-r2", "60"], "are not 100 percent together"),
    (["-c", "3", *SHARED, "-n", "2", "-a", "1", "-d", "3"], "the grid's cells have 3 pixels"),
    (["-c", "3", *SHARED, "-n", "2", "-a", "1", "-d", "4"], "no picture has a box in a .txt file"),
]


@pytest.mark.parametrize(("options", "text"), WRONG)
def test_wrong_options_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], text: str
) -> None:
    write_pictures(tmp_path / "in")
    build(tmp_path / "in", tmp_path / "out", *options, code=2 if "percent" in text else 1)
    assert text in capsys.readouterr().err


def test_wrong_label_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pictures(tmp_path / "in")
    for line, text in (("0 1 2", "wanted: class x y width height"), ("7 .5 .5 .1 .1", "of 2")):
        (tmp_path / "in" / "cat" / "0.txt").write_text(line)
        numbers = ["-n", "2", "-a", "1", "-d", "4", "-c", "3"]
        build(tmp_path / "in", tmp_path / "out", *numbers, *SHARED, code=1)
        error = capsys.readouterr().err
        assert "0.txt, line 1" in error and text in error
    build(tmp_path / "none", tmp_path / "out", "-c", "3", *SHARED, code=3)
    assert f"there is no folder {tmp_path / 'none'}" in capsys.readouterr().err


def test_a_data_set_becomes_an_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pictures(tmp_path / "in")
    table = tmp_path / "in" / "d.csv"
    table.write_text("x,y\ncat/0.png,0\ndog\\1.png,1\n")
    assert main(["create_tar", str(table), str(tmp_path / "d.tar")]) == 0
    with tarfile.open(tmp_path / "d.tar") as tar:
        names = ["data/000000000000_0.png", "data/000000000001_1.png"]
        assert tar.getnames() == ["index.csv", *names]
        text = tar.extractfile("index.csv").read().decode()
        assert text.split() == ["x,y", f"{names[0]},0", f"{names[1]},1"]
        content = tar.extractfile(names[1]).read()
    assert content == (tmp_path / "in" / "dog" / "1.png").read_bytes()
    assert main(["create_tar", str(tmp_path / "d.tar"), str(tmp_path / "e.tar")]) == 1
    assert "d.tar: 'utf-8' codec can't decode" in capsys.readouterr().err
    assert main(["upload", "token", "d.csv"]) == 4
    assert "needs the service of Sony's" in capsys.readouterr().err


def test_conv_dataset_copies_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "d.csv"
    table.write_text("x__0,x__1,y\n" + "".join(f"{i},{2 * i},{i % 3}\n" for i in range(250)))
    first, second = tmp_path / "a.cache", tmp_path / "b.cache"
    assert main(["conv_dataset", str(table), str(first), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 250
    assert main(["conv_dataset", "-S", str(first), str(second)]) == 0
    for folder, mixed in ((first, False), (second, True)):
        with data_iterator_cache(str(folder), 250) as it:
            x, y = it.next()
        assert (x[:, 0] != np.arange(250)).any() == mixed
        np.testing.assert_array_equal(np.sort(x[:, 0]), np.arange(250))
        np.testing.assert_array_equal(x[:, 1], 2 * x[:, 0])
        np.testing.assert_array_equal(y[:, 0], x[:, 0] % 3)
    capsys.readouterr()
    assert main(["conv_dataset", str(table), str(first)]) == 1
    assert "try: -F replaces it" in capsys.readouterr().err
    table.write_text("x,y\n1,2\n")
    assert main(["conv_dataset", "-F", str(table), str(first)]) == 0
    assert len(list(first.glob("cache_*.npy"))) == 1 and not list(tmp_path.glob("*.new"))
    assert main(["conv_dataset", str(tmp_path / "d.txt"), str(tmp_path / "c.cache")]) == 1
    assert "is neither a .csv file nor" in capsys.readouterr().err
    assert main(["conv_dataset", str(table), str(tmp_path / "c")]) == 0  # any name, as in NNabla
    (tmp_path / "c" / "cache_info.csv").unlink()
    assert main(["conv_dataset", "-F", str(table), str(tmp_path / "c")]) == 1
    assert "has files that are no cache: -F leaves it alone" in capsys.readouterr().err
