# SPDX-License-Identifier: Apache-2.0
"""Pictures in shards and caches: the same samples as from a folder, and damage that is found."""

from __future__ import annotations

import io
import struct
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.converters.runtimes.tensorflow import python_with_tensorflow
from nnl.data.cache_files import write_lines, write_samples
from nnl.data.crc32c import masked
from nnl.data.images import open_images
from nnl.data.images.shards import shard_files

Image = pytest.importorskip("PIL.Image")

HOW: dict[str, Any] = {"batch_size": 4, "size": 16, "resize": 16, "workers": 0}
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 20, 24, 3), np.uint8)
LABELS = (0, 2, 1, 1, 0, 2)


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def drained(path: Path, **how: Any) -> Any:
    with open_images(str(path), **HOW | how) as images:
        batches = [(x.copy(), labels.copy()) for x, labels in images.epoch(0)]
        assert not images.skipped
    return (np.concatenate(column) for column in zip(*batches, strict=True))


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The samples from a folder, in which pictures are ordered by class."""
    root = tmp_path_factory.mktemp("folder")
    order = np.argsort(LABELS, kind="stable")
    for i in order.tolist():
        (root / str(LABELS[i])).mkdir(exist_ok=True)
        (root / str(LABELS[i]) / f"{i}.png").write_bytes(png(PIXELS[i]))
    x, labels = drained(root, training=False)
    back = np.argsort(order)
    return x[:6][back], labels[:6][back]


# ---- writers: tar by Python's own, records and messages by hand ----


def tar(path: Path, numbers: Any, how: int = tarfile.PAX_FORMAT, folder: str = "") -> None:
    with tarfile.open(path, "w", format=how) as file:
        for name, kind in (("folder.png", tarfile.DIRTYPE), ("link.png", tarfile.SYMTYPE)):
            other = tarfile.TarInfo(name)  # none of a picture's bytes
            other.type = kind
            file.addfile(other)
        for i in numbers:
            for name, data in ((f"{i}.png", png(PIXELS[i])), (f"{i}.cls", str(LABELS[i]).encode())):
                member = tarfile.TarInfo(folder + name)
                member.size, member.mtime = len(data), 1.5  # pax headers for the half second
                file.addfile(member, io.BytesIO(data))


def number(n: int) -> bytes:
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + number(n >> 7)


def field(n: int, content: bytes) -> bytes:
    return number(n << 3 | 2) + number(len(content)) + content


def example(**features: bytes | int) -> bytes:
    entries = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            kind = field(1, field(1, value))
        else:
            kind = field(3, field(1, number(value)))  # a list of one, packed
        entries += field(1, field(1, name.replace("__", "/").encode()) + field(2, kind))
    return field(1, entries)


def record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    checksums = struct.pack("<II", masked(length), masked(message))
    return length + checksums[:4] + message + checksums[4:]


def records(path: Path, numbers: Any, first: int = 0) -> None:
    keys = ("image__encoded", "image__class__label") if first else ("image", "label")
    path.write_bytes(
        b"".join(
            record(example(height=20, **{keys[0]: png(PIXELS[i]), keys[1]: LABELS[i] + first}))
            for i in numbers
        )
    )


def two_tars(root: Path) -> Path:
    tar(root / "a-00.tar", range(4))
    tar(root / "a-01.tar", range(4, 6), tarfile.GNU_FORMAT, folder="train/" + "long" * 30 + "/")
    return root


def tars_of_a_pattern(root: Path) -> Path:
    two_tars(root)
    return root / "a-{00..01}.tar"


def record_files(root: Path) -> Path:
    records(root / "train-00000-of-00002", range(4), first=1)
    records(root / "train-00001-of-00002", range(4, 6), first=1)
    return root


def one_record_file(root: Path) -> Path:
    records(root / "six.tfrecord", range(6))
    return root / "six.tfrecord"


def cache(root: Path, ending: str) -> Path:
    for begin, end in ((0, 4), (4, 6)):
        pictures = np.ascontiguousarray(PIXELS[begin:end].transpose(0, 3, 1, 2))
        columns = {"x": pictures, "y": np.array(LABELS[begin:end], np.int32)[:, None]}
        write_samples(str(root / f"cache_{begin:08d}_{end - 1:08d}{ending}"), columns)
    write_lines(str(root / "cache_info.csv"), ["x", "y"])
    return root


@pytest.mark.parametrize(
    "write",
    [
        two_tars,
        tars_of_a_pattern,
        record_files,
        one_record_file,
        lambda root: cache(root, ".npy"),
        lambda root: cache(root, ".h5"),
    ],
)
def test_samples_are_those_of_a_folder(
    write: Callable[[Path], Path], tmp_path: Path, wanted: Any
) -> None:
    path = write(tmp_path)
    x, labels = drained(path, training=False)
    assert np.array_equal(x[:6], wanted[0]) and np.array_equal(labels[:6], wanted[1])
    with open_images(str(path), training=False, classes=["a", "b", "c"], **HOW) as images:
        assert images.classes == ["a", "b", "c"]
    x, labels = drained(path, batch_size=6)
    assert sorted(labels[:, 0].tolist()) == sorted(LABELS)
    with pytest.raises(ValueError, match="has labels from 0 to 2, wanted 0 to 1"):
        open_images(str(path), classes=["a", "b"], **HOW)


BY_TENSORFLOW = """
import sys
import tensorflow as tf
path, *labels = sys.argv[1:]
with tf.io.TFRecordWriter(path) as writer:
    for i, label in enumerate(labels):
        png = open(f"{path}.{i}", "rb").read()
        label = tf.train.Int64List(value=[int(label)])
        features = {
            "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[png])),
            "image/class/label": tf.train.Feature(int64_list=label),
            "image/object/bbox/xmin": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5])),
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        writer.write(example.SerializeToString())
"""


def test_records_of_tensorflow_are_read(tmp_path: Path, wanted: Any) -> None:
    python = python_with_tensorflow()
    if python is None:
        pytest.skip("TensorFlow is not installed (NNL_TENSORFLOW_PYTHON names a Python with it)")
    path = tmp_path / "six.tfrecord"
    for i, pixels in enumerate(PIXELS):
        Path(f"{path}.{i}").write_bytes(png(pixels))
    numbers = [str(label + 1) for label in LABELS]
    subprocess.run([python, "-c", BY_TENSORFLOW, str(path), *numbers], check=True)
    x, labels = drained(path, training=False)
    assert np.array_equal(x[:6], wanted[0]) and np.array_equal(labels[:6], wanted[1])


def test_shards_that_are_missing_are_named(tmp_path: Path) -> None:
    two_tars(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no such folder or file: .*a-02.tar"):
        shard_files(str(tmp_path / "a-{00..02}.tar"))
    with pytest.raises(FileNotFoundError, match=r"no such folder or file: .*b.tar"):
        shard_files(str(tmp_path / "b.tar"))


# ---- damage ----


def with_byte(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: b"", "it has 0 bytes"),
        (lambda d: b"\0" * 1024, "it has no pictures"),
        (lambda d: with_byte(d, 3, 200), "the header at byte 0 has another checksum"),
        (lambda d: d[:700], "it ends within the header at byte 512"),
        (lambda d: d[:2000], "the file at byte 1024 has .* bytes, which are not there"),
        (lambda d: header("a.png", b"77777777777\0"), "has 8589934591 bytes, which are not there"),
        (lambda d: header("a.png", b"-0000000001\0"), "has -1 bytes, which are not there"),
        (lambda d: header("a.png", b"\xff" * 12), "has .* bytes, which are not there"),
        (lambda d: header("a.png", b"something  \0"), "invalid literal for int"),
        (lambda d: header("a.png", b"0" * 11 + b"\0"), "a has no label, a file that ends in .cls"),
        (lambda d: header("a.cls", b"0" * 11 + b"\0"), "invalid literal for int"),
    ],
)
def test_a_damaged_archive_is_named(
    change: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.tar"
    tar(path, range(2), tarfile.USTAR_FORMAT)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=f"open_images: .*a.tar.*{message}"):
        open_images(str(path), **HOW)


def header(name: str, size: bytes) -> bytes:
    """That of a file in an archive, with a right checksum."""
    block = bytearray(512)
    block[: len(name)] = name.encode()
    block[124:136], block[148:156], block[156] = size, b" " * 8, ord("0")
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + bytes(1024)


PAIR = {"image": b"x", "label": 0}


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "it has 0 bytes"),
        (b"\1" * 40, "the length of the record at byte 0 has another checksum"),
        (record(b"")[:10], "the length of the record at byte 0 has another checksum"),
        (record(example(**PAIR))[:-1], "record at byte 0 has .* bytes, more than are there"),
        (record(b""), "has no image/encoded with image/class/label, and no image with label"),
        (record(example(image=b"x")), "has no image/encoded with image/class/label"),
        (record(example(image=0, label=0)), "a picture or a label has another type, or no value"),
        (record(field(1, b"")[:1] + b"\x7f"), "has 127 bytes, more than are there"),
        (record(b"\xff" * 11), "the number at byte 12 does not end"),
        (record(b"\x0b"), "the field at byte 13 is of no known type"),
        (record(example(image=b"x", label=2**62)), "has labels from .*, wanted 0 to 1048575"),
    ],
)
def test_a_damaged_record_file_is_named(contents: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(contents)
    with pytest.raises(ValueError, match=f"open_images: .*a.tfrecord.*{message}"):
        open_images(str(path), **HOW)


def test_a_record_with_another_checksum_is_skipped(tmp_path: Path) -> None:
    records(tmp_path / "a.tfrecord", range(6))
    data = bytearray((tmp_path / "a.tfrecord").read_bytes())
    data[500] ^= 1  # in the pixels of the first picture
    (tmp_path / "a.tfrecord").write_bytes(data)
    with open_images(str(tmp_path), training=False, **HOW) as images:
        labels = next(images.epoch(0))[1]
        ((name, reason),) = images.skipped.items()
    assert labels[:, 0].tolist() == [-1, *LABELS[1:4]]
    assert "a.tfrecord, the picture at byte" in name
    assert reason == "its record has another checksum"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": np.zeros((2, 3, 4, 4), np.float32), "y": np.zeros(2, int)}, "'x' is float32"),
        (
            {"x": np.zeros((2, 48), np.uint8), "y": np.zeros(2, int)},
            r"'x' is uint8 \[2, 48\], wanted pictures: uint8 \(",
        ),
        ({"x": PIXELS[:2].transpose(0, 3, 1, 2), "y": np.zeros(2)}, "'y' is float64"),
    ],
)
@pytest.mark.parametrize("ending", [".npy", ".h5"])
def test_a_cache_of_something_else_is_named(
    columns: Any, message: str, ending: str, tmp_path: Path
) -> None:
    write_samples(str(tmp_path / f"cache_00000000_00000001{ending}"), columns)
    write_lines(str(tmp_path / "cache_info.csv"), columns)
    with pytest.raises(ValueError, match=f"open_images: the cache file .*{ending}: {message}"):
        open_images(str(tmp_path), **HOW)


def test_a_cache_without_labels_is_named(tmp_path: Path) -> None:
    write_samples(str(tmp_path / "cache_00000000_00000001.npy"), {"x": PIXELS})
    write_lines(str(tmp_path / "cache_info.csv"), ["x"])
    with pytest.raises(ValueError, match=r"wanted a picture and a label, it has \['x'\]"):
        open_images(str(tmp_path), **HOW)


def test_a_compressed_cache_says_what_to_do(tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as h5:
        h5.create_dataset("x", data=PIXELS.transpose(0, 3, 1, 2), compression="gzip")
        h5.create_dataset("y", data=np.array(LABELS))
    with pytest.raises(ValueError, match="'x' is in pieces or compressed; write it again as .npy"):
        open_images(str(tmp_path), **HOW)
