# SPDX-License-Identifier: Apache-2.0
"""Batches of pictures. What a sample must be, Pillow says: crop, then resize."""

from __future__ import annotations

import io
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.data.image import imread
from nnl.data.images import Images, loader, open_images
from nnl.data.images.jitter import brightened, contrasted, saturated
from nnl.data.images.order import NONE, Order
from nnl.data.images.pixels import MAX_PIXELS, read_header, render
from nnl.data.images.views import View, training_view, validation_view
from nnl.datasets import Shape, image_classification

Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")

CLASSES = ("cat", "dog", "eel")
EACH = 8


def photograph(height: int, width: int, seed: int) -> Any:
    """Slopes of colour and a little grain, as photographs have."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x * a / 40 + y * b / 40) for a, b in rng.uniform(-1, 1, (3, 2))]
    grain = rng.normal(0, 4, (height, width, 3))
    return Image.fromarray(
        np.clip(127 + 100 * np.stack(waves, -1) + grain, 0, 255).astype(np.uint8)
    )


def jpeg(picture: Any, **how: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=90, **how)
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    for c, name in enumerate(CLASSES):
        (root / name).mkdir()
        for i in range(EACH):
            picture = photograph(40 + 7 * i, 60 - 3 * i, c * EACH + i)
            picture = picture.convert("L") if i == 3 else picture  # one grey, one no JPEG
            picture.save(root / name / (f"{i}.png" if i == 5 else f"{i}.jpg"), quality=90)
        (root / name / "notes.txt").write_text("no picture")
    return root


def opened(folder: Path, **how: Any) -> Images:
    return open_images(
        str(folder), **{"batch_size": 5, "size": 16, "resize": 20, "workers": 0} | how
    )


def drained(images: Images, epoch: int, start: int = 0) -> list[tuple[Any, Any]]:
    return [(x.copy(), labels.copy()) for x, labels in images.epoch(epoch, start)]


def same(a: list[tuple[Any, Any]], b: list[tuple[Any, Any]]) -> bool:
    pairs = zip(a, b, strict=True)
    return len(a) == len(b) and all(
        np.array_equal(x, z) and np.array_equal(y, t) for (x, y), (z, t) in pairs
    )


# ---- pictures of other kinds ----


def test_pictures_of_sixteen_bits_one_bit_and_of_printers_are_read_as_they_are_seen() -> None:
    grey = np.tile(np.array([0, 128, 255, 64], np.uint8), (16, 4))
    kinds = {
        "I;16": Image.fromarray(grey.astype(np.uint16) * 257),
        "1": Image.fromarray(grey > 100).convert("1"),
        "LA": Image.fromarray(grey).convert("LA"),
    }
    for kind, picture in kinds.items():
        file, seen = io.BytesIO(), np.empty((16, 16, 3), np.uint8)
        picture.save(file, "PNG")
        render(file.getvalue(), lambda h, w: validation_view(h, w, 16, 16), True, seen)
        wanted = [0, 255, 255, 0] if kind == "1" else [0, 128, 255, 64]
        assert seen[0, :4, 0].tolist() == wanted and seen[0, :4, 2].tolist() == wanted
        read = imread(file)
        assert (read[0, :4, 0] if read.ndim == 3 else read[0, :4]).tolist() == wanted
    red = np.zeros((16, 16, 3), np.uint8)
    red[..., 0] = 200
    for mode, format in (("CMYK", "JPEG"), ("CMYK", "TIFF"), ("YCbCr", "TIFF")):
        file = io.BytesIO()
        Image.fromarray(red).convert(mode).save(file, format)
        read = imread(file)
        assert read.shape == (16, 16, 3)
        assert np.abs(read[8, 8].astype(int) - [200, 0, 0]).max() <= 4


def test_what_systems_put_beside_pictures_is_no_class_and_no_picture(tmp_path: Path) -> None:
    for name in ("cat", "dog", ".ipynb_checkpoints", "__MACOSX"):
        (tmp_path / "in" / name).mkdir(parents=True)
        for i in range(3):
            photograph(8, 8, i).save(tmp_path / "in" / name / f"{i}.png")
    for name in (".DS_Store", "cat/.DS_Store", "cat/._0.png", "dog/._9.png"):
        (tmp_path / "in" / name).write_bytes(b"\0\5\x16\7")
    found = opened(tmp_path / "in", size=8, resize=8)
    assert found.classes == ["cat", "dog"] and sum(len(y) for _, y in drained(found, 0)) > 0
    found.close()
    built = image_classification(tmp_path / "in", tmp_path / "out", Shape(8, 8))
    assert built.classes == {"cat": 3, "dog": 3} and built.skipped == []


# ---- turned pictures ----


@pytest.mark.parametrize("flag", range(10))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "CMYK"])
def test_pictures_are_turned_as_their_exif_flag_says(kind: str, flag: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = flag
    picture, file = photograph(48, 96, 5), io.BytesIO()
    name = "JPEG" if kind == "CMYK" else kind
    picture = picture.convert("CMYK") if kind == "CMYK" else picture
    picture.save(file, name, exif=exif)
    data = file.getvalue()
    with Image.open(io.BytesIO(data)) as stored:
        whole = ImageOps.exif_transpose(stored).convert("RGB")
    read = imread(io.BytesIO(data), num_channels=3)
    assert read.shape == (whole.height, whole.width, 3)
    assert np.abs(read.astype(int) - np.asarray(whole).astype(int)).max() <= 1
    assert read_header(data)[:2] == whole.size[::-1]
    for exact in (True, False):
        seen = np.empty((16, 16, 3), np.uint8)
        render(data, lambda h, w: validation_view(h, w, 16, 24), exact, seen)
        upright, same_file = np.empty_like(seen), io.BytesIO()
        whole.save(same_file, "PNG")
        render(same_file.getvalue(), lambda h, w: validation_view(h, w, 16, 24), True, upright)
        assert np.abs(seen.astype(int) - upright.astype(int)).mean() < (1.0 if exact else 6.0)


def test_a_damaged_exif_part_turns_nothing() -> None:
    data = jpeg(photograph(40, 60, 1), exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert read_header(data)[:2] == (40, 60) and imread(io.BytesIO(data)).shape == (40, 60, 3)


# ---- which pictures ----


@pytest.mark.parametrize("training", [True, False])
def test_the_ranks_cover_each_picture_once(training: bool) -> None:
    orders = [Order(24, 4, training, rank, 3, seed=1) for rank in range(3)]
    seen = [i for o in orders for n in range(o.batches) for i in o.batch(7, n).tolist()]
    assert sorted(seen) == list(range(24))


def test_ranks_have_as_many_batches_and_the_last_ones_are_filled() -> None:
    orders = [Order(10, 2, False, rank, 3, seed=0) for rank in range(3)]
    assert [o.batches for o in orders] == [2, 2, 2]
    assert [o.size for o in orders] == [4, 3, 3]
    assert orders[2].batch(0, 1).tolist() == [8, NONE]
    assert [o.batches for o in (Order(10, 2, True, r, 3, 0) for r in range(3))] == [1, 1, 1]


def test_each_epoch_and_seed_has_an_order_of_its_own() -> None:
    first = [
        Order(24, 24, True, 0, 1, seed).batch(e, 0).tolist() for seed in (0, 1) for e in (0, 1)
    ]
    assert all(sorted(order) == list(range(24)) for order in first)
    assert len({tuple(order) for order in first}) == 4


# ---- which bits ----


def test_samples_depend_on_seed_and_epoch_alone(folder: Path) -> None:
    with opened(folder) as images:
        assert (images.size, images.batches, images.classes) == (24, 4, list(CLASSES))
        epochs = [drained(images, e) for e in (0, 1)]
        assert not same(*epochs)
        assert same(drained(images, 0), epochs[0])  # again
        assert same(drained(images, 1, 2), epochs[1][2:])  # from the middle
    for workers in (1, 3):
        with opened(folder, workers=workers, prefetch=1) as images:
            iterator = images.epoch(0)
            next(iterator)
            iterator.close()  # in the middle of an epoch
            assert same(drained(images, 1, 1), epochs[1][1:])
            assert same(drained(images, 0), epochs[0])
    with opened(folder, seed=1) as images:
        assert not same(drained(images, 0), epochs[0])


def test_each_epoch_crops_a_picture_anew(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    photograph(60, 80, 0).save(tmp_path / "cat" / "a.jpg")
    with opened(tmp_path, batch_size=1) as images:
        assert not same(drained(images, 0), drained(images, 1))


def test_a_crop_is_pillows(folder: Path) -> None:
    data = jpeg(photograph(60, 90, 0), subsampling=0)
    whole = Image.open(io.BytesIO(data))
    rng = np.random.default_rng(0)
    for _ in range(20):
        view = training_view(60, 90, rng)
        out = np.empty((16, 16, 3), np.uint8)
        render(data, lambda h, w, view=view: view, True, out)
        wanted = whole.crop(view.region).resize((16, 16), Image.Resampling.BILINEAR)
        wanted = np.asarray(wanted)[:, ::-1] if view.mirrored else np.asarray(wanted)
        assert np.abs(out.astype(int) - wanted).max() <= 1


@pytest.mark.parametrize("height, width", [(40, 75), (75, 40), (16, 16), (301, 97)])
def test_the_middle_is_pillows(height: int, width: int) -> None:
    data = jpeg(photograph(height, width, 1))
    whole = Image.open(io.BytesIO(data))
    short = min(height, width)
    new = (int(20 * width / short), int(20 * height / short))
    left, top = round((new[0] - 16) / 2), round((new[1] - 16) / 2)
    resized = whole.resize(new, Image.Resampling.BILINEAR)
    wanted = np.asarray(resized.crop((left, top, left + 16, top + 16)))
    out = np.empty((16, 16, 3), np.uint8)
    render(data, lambda h, w: validation_view(h, w, 16, 20), True, out)
    assert np.abs(out.astype(int) - wanted).max() <= 1


@pytest.mark.parametrize("shrink", [2, 4, 8])
def test_quick_samples_have_the_same_geometry(shrink: int) -> None:
    pytest.importorskip("simplejpeg")
    size = 32
    side = size * shrink + 9
    data = jpeg(photograph(side + 11, side + 20, shrink))
    view = View((5, 3, 5 + side, 3 + side), (5, 3, 5 + side, 3 + side), True)
    exact, quick = (np.empty((size, size, 3), np.uint8) for _ in range(2))
    render(data, lambda h, w: view, True, exact)
    render(data, lambda h, w: view, False, quick)
    assert 0 < np.abs(exact.astype(int) - quick).mean() <= 2


def test_colours_are_changed_as_pillow_does() -> None:
    from PIL import ImageEnhance

    whole = photograph(50, 70, 5)
    for change, enhancer in (
        (brightened, ImageEnhance.Brightness),
        (contrasted, ImageEnhance.Contrast),
        (saturated, ImageEnhance.Color),
    ):
        for factor in (0.0, 0.6, 1.0, 1.4):
            wanted = np.asarray(enhancer(whole).enhance(factor)).astype(int)
            assert np.abs(change(np.asarray(whole), factor) - wanted).max() <= 1, enhancer


def test_jitter_is_random_and_leaves_the_crop(folder: Path) -> None:
    with opened(folder) as plain, opened(folder, jitter=0.4) as images:
        first, changed = drained(plain, 0), drained(images, 0)
        assert same(drained(images, 0), changed)
    pairs = zip(first, changed, strict=True)
    means = [(x.mean((1, 2, 3)) - y.mean((1, 2, 3))) for (x, _), (y, _) in pairs]
    assert np.concatenate(means).min() < -5 and np.concatenate(means).max() > 5
    x, y = first[0][0][0].astype(float), changed[0][0][0].astype(float)
    assert np.corrcoef(x.ravel(), y.ravel())[0, 1] > 0.8


def test_random_crops_have_the_areas_and_ratios_of_the_recipe() -> None:
    rng = np.random.default_rng(0)
    views = [training_view(450, 450, rng) for _ in range(2000)]
    sides = np.array([(r - left, b - top) for (left, top, r, b), _, _ in views])
    areas, ratios = sides.prod(1) / 450**2, sides[:, 0] / sides[:, 1]
    assert 0.07 < areas.min() < 0.1 and 0.95 < areas.max() <= 1
    assert 0.74 < ratios.min() < 0.76 and 1.32 < ratios.max() < 1.35
    assert abs(np.log(ratios).mean()) < 0.02
    assert all(0 <= left < r <= 450 and 0 <= top < b <= 450 for (left, top, r, b), _, _ in views)
    assert 0.45 < np.mean([view.mirrored for view in views]) < 0.55
    # in a picture of 10 x 1000 no such crop fits: the largest one in its middle
    assert training_view(10, 1000, rng).region == (493, 0, 506, 10)


# ---- damage ----


def broken(folder: Path, tmp_path: Path, contents: bytes) -> Path:
    """The folder with one more picture, of these bytes."""
    for name in CLASSES:
        (tmp_path / name).mkdir()
        for file in (folder / name).glob("[012].jpg"):
            os.link(file, tmp_path / name / file.name)
    (tmp_path / "dog" / "0a.jpg").write_bytes(contents)
    return tmp_path


def huge() -> bytes:
    """The picture of a pixel, which says it has 50,000 x 50,000."""
    data = bytearray(jpeg(photograph(1, 1, 0)))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = (50_000).to_bytes(2, "big") * 2
    return bytes(data)


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (b"", "it has 0 bytes, wanted 1 to 268435456"),
        (b"no picture", "^Pillow: its bytes are no picture of a known kind$"),
        (jpeg(photograph(40, 40, 0))[:-100], "truncated"),
        (jpeg(photograph(40, 40, 0))[:50], "Pillow: "),
        (huge(), f"50000 x 50000 pixels, at most {MAX_PIXELS} are read|exceeds limit"),
    ],
)
def test_a_damaged_picture_is_skipped_named_and_counted(
    folder: Path, tmp_path: Path, contents: bytes, reason: str, caplog: Any
) -> None:
    root = broken(folder, tmp_path, contents)
    name = str(root / "dog" / "0a.jpg")
    with opened(root, training=False, batch_size=4) as images:
        labels = np.concatenate([labels for _, labels in images.epoch(0)])[:, 0]
        assert labels.tolist() == [0, 0, 0, 1, -1, 1, 1, 2, 2, 2, -1, -1]
        assert list(images.skipped) == [name] and re.search(reason, images.skipped[name])
    with opened(root, batch_size=10) as images:
        ((x, labels),) = drained(images, 0)
        row = Order(10, 10, True, 0, 1, 0).batch(0, 0).tolist().index(4)
        assert np.array_equal(x[row], x[row - 1]) and labels[row] == labels[row - 1]
        assert list(images.skipped) == [name]


def test_a_batch_of_damage_is_an_error(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.jpg").write_bytes(b"?")
    with (
        opened(tmp_path, batch_size=1) as images,
        pytest.raises(ValueError, match="all 1 pictures of batch 0 of epoch 3 are damaged; .*a.j"),
    ):
        next(images.epoch(3))


# ---- bad arguments ----


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"engine": "gpu"}, "engine='gpu' is not one of auto, nnl"),
        ({"batch_size": 0}, r"batch_size=0 is not in \[1, "),
        ({"batch_size": 25}, "has 24 pictures for each of 1 ranks, fewer than batch_size=25"),
        ({"rank": 2, "ranks": 2}, r"rank=2 is not in \[0, 1\]"),
        ({"training": False, "resize": 15}, r"resize=15 is not in \[16, "),
        (
            {"classes": ["cat", "cow", "dog"]},
            "has other classes than the training data: it lacks 'cow' and has 'eel'",
        ),
        ({"classes": ["dog", "cat", "eel"]}, "it has them in another order"),
    ],
)
def test_open_images_says_what_is_wrong(folder: Path, how: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"open_images: .*{message}"):
        opened(folder, **how)


def test_open_images_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="open_images: path='.*none': there is no such"):
        opened(tmp_path / "none")
    with pytest.raises(ValueError, match="has no folders in it, wanted one for each class"):
        opened(tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(ValueError, match="the class 'cat' has no pictures, files ending in .jpg"):
        opened(tmp_path)
    with pytest.raises(ValueError, match='path=None, wanted a folder, or engine="synthetic"'):
        open_images(None, 4)


def test_an_epoch_from_nowhere_or_after_the_end_is_an_error(folder: Path) -> None:
    images = opened(folder)
    with pytest.raises(
        ValueError, match=r"Images.epoch: number=0, start=5; wanted .* start in \[0, 4\]"
    ):
        next(images.epoch(0, 5))
    images.close()
    images.close()
    with pytest.raises(ValueError, match="Images.epoch: the loader is closed"):
        next(images.epoch(0))


# ---- processes ----


def test_a_worker_that_dies_is_an_error(folder: Path) -> None:
    with opened(folder, workers=1) as images:
        iterator = images.epoch(0)
        next(iterator)
        worker = images._engine._workers[0].process.pid
        assert os.getsid(worker) == worker  # Ctrl-C does not reach it
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(
            RuntimeError, match=r"worker \d+ ended with -9 while it read .*pictures.*g or"
        ):
            for _ in range(20):
                drained(images, 1)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL, 1])
def test_a_program_that_ends_leaves_no_workers(folder: Path, end: int) -> None:
    program = (
        "import sys, time; from nnl.data.images import open_images\n"
        f"images = open_images({str(folder)!r}, 4, 16, workers=1)\n"
        "batches = images.epoch(0); next(batches)\n"
        "print(images._engine._workers[0].process.pid, flush=True)\n"
        + ("time.sleep(60)" if end > 1 else "1 / 0")
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        text=True,
        **dict.fromkeys(("stdout", "stderr"), subprocess.PIPE),
    ) as p:
        assert p.stdout is not None
        worker = int(p.stdout.readline())
        if end > 1:
            p.send_signal(end)
        assert p.wait() == (-end if end > 1 else 1)
    for _ in range(100):
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{worker}/stat").read_text().split()[2] == "Z":
            return  # ended; whoever inherited it has not asked yet
        time.sleep(0.05)
    raise AssertionError("the worker is still there")


def test_who_is_interrupted_gets_the_batch_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(folder, workers=1) as images:
        wanted = drained(images, 0)
        finish = images._finish

        def interrupted(batch: Any) -> Any:
            monkeypatch.setattr(images, "_finish", finish)
            raise KeyboardInterrupt

        monkeypatch.setattr(images, "_finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(images.epoch(0))
        assert same(drained(images, 0), wanted)
        assert sorted(images._free + [batch.slot for batch in images._ahead]) == [0, 1, 2]


def test_waiting_is_counted_and_input_bound_is_said(
    folder: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "WORTH_SAYING", 0.0)
    logger = logging.getLogger("nnl")
    logger.addHandler(caplog.handler)
    try:
        with opened(folder, workers=1) as images:
            batches = images.epoch(0)
            for _ in range(3):  # of 4: whoever trains may leave some
                next(batches)
            del batches
            assert images.waiting > 0
            assert re.search(
                r"input-bound: \d+ % of epoch 0 was waiting for pictures "
                r"\(nnl, workers=1, prefetch=2\)",
                caplog.text,
            )
            caplog.clear()
            for _ in images.epoch(1):
                while images.ready < 2 and images._ahead and len(images._ahead) == 2:
                    time.sleep(0.01)
                time.sleep(0.2)  # a step far longer than taking a batch, on a busy machine too
            assert "input-bound" not in caplog.text
    finally:
        logger.removeHandler(caplog.handler)


def test_synthetic_pictures_need_no_path() -> None:
    with open_images(None, 8, 16, engine="synthetic", samples=100, ranks=2) as images:
        assert (images.size, images.batches, len(images.classes)) == (50, 6, 1000)
        first = drained(images, 0)
        assert first[0][0].shape == (8, 16, 16, 3) and first[0][0].std() > 60
        assert len({int(label) for _, labels in first for label in labels[:, 0]}) > 20
        assert same(drained(images, 0, 3), first[3:])
