# SPDX-License-Identifier: Apache-2.0
"""Layers that read pictures: Data from LMDB, ImageData from files; what transform_param does."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from nnl.converters.caffe.messages import enum_name, messages
from nnl.converters.caffe.weights import parse_binary, read_blob
from nnl.core.ops import random
from nnl.data.image import imread
from nnl.dialects.caffe.io import datum_to_array
from nnl.dialects.caffe.layer import Layer, builds

Array = np.ndarray[Any, Any]
# a picture (channels, height, width), blue first as OpenCV reads it, and its label
Pair = tuple[Array, float]


class Transform:
    """What a layer does to a picture: cut a part out, mirror, subtract a mean, multiply.

    The part is anywhere in training, else in the middle; every second picture is mirrored.
    """

    def __init__(self, layer: Layer, old: Any) -> None:
        p = messages()["TransformationParameter"]()
        for field in ("scale", "mean_file", "crop_size", "mirror"):  # of files before 2014
            if old.HasField(field):
                setattr(p, field, getattr(old, field))
        p.MergeFrom(layer.message.transform_param)
        if p.mean_file and p.mean_value:
            raise layer.fail(
                "transform_param has both mean_file and mean_value, wanted one of them"
            )
        self.layer, self.param = layer, p
        self.mean: Array | None = None
        if p.mean_file:
            mean = read_blob(layer.net.path(p.mean_file), f"{layer}: mean_file")
            self.mean = mean.reshape(mean.shape[-3:])
        elif p.mean_value:
            self.mean = np.asarray(p.mean_value, np.float32)[:, None, None]

    def shape(self, picture: Array) -> tuple[int, ...]:
        """The shape that such a picture has afterwards."""
        c, h, w = picture.shape
        n = self.param.crop_size
        if n > min(h, w):
            raise self.layer.fail(f"crop_size is {n}, its pictures are {h} x {w}")
        if self.mean is not None:
            full, of = picture.shape, self.mean.shape
            if of not in ((1, 1, 1), (c, 1, 1)) and of != full:
                raise self.layer.fail(f"its mean has the shape {of}, its pictures {full}")
        return (c, n or h, n or w)

    def __call__(self, picture: Array, out: Array) -> None:
        p, (_, h, w) = self.param, out.shape
        i, j = picture.shape[1] - h, picture.shape[2] - w
        train = p.crop_size and not self.layer.test
        i, j = (random.prng.randint(n + 1) if train else n // 2 for n in (i, j))
        out[...] = picture[:, i : i + h, j : j + w]
        if self.mean is not None:
            whole = self.mean.shape[1:] == (1, 1)
            out -= self.mean if whole else self.mean[:, i : i + h, j : j + w]
        out *= np.float32(p.scale)
        if p.mirror and random.prng.randint(2):
            out[...] = out[:, :, ::-1].copy()


def _batches(layer: Layer, old: Any, pairs: Iterator[Pair]) -> None:
    """Let the layer give out pictures and labels, so many at a time."""
    if old.batch_size < 1:
        raise layer.fail("batch_size is 0, wanted at least 1")
    transform = Transform(layer, old)
    for _ in range(random.prng.randint(max(1, old.rand_skip))):
        next(pairs)
    first = next(pairs)
    wanted = transform.shape(first[0])
    waiting = [first]
    layer.input((old.batch_size, *wanted))
    if len(layer.message.top) > 1:
        layer.input((old.batch_size,))

    def source() -> list[Array]:
        x = np.empty((old.batch_size, *wanted), np.float32)
        labels = np.empty(old.batch_size, np.float32)
        for row in range(old.batch_size):
            picture, labels[row] = waiting.pop() if waiting else next(pairs)
            if transform.shape(picture) != wanted:
                raise layer.fail(
                    f"a picture has the shape {picture.shape}, the first gave {wanted}: set "
                    "new_height and new_width, or crop_size"
                )
            transform(picture, x[row])
        return [x, labels][: len(layer.tops)]

    layer.source = source


def _decoded(file: Any, color: bool, size: tuple[int, int] | None = None) -> Array:
    x = imread(file, grayscale=not color, size=size, num_channels=3 if color else 1)
    return x.transpose(2, 0, 1)[::-1]


@builds("Data", bottoms=0, tops=(1, 2))
def data(layer: Layer) -> None:
    p = layer.message.data_param
    if enum_name(p, "backend") != "LMDB":
        raise layer.fail(
            "it reads a LevelDB, which is not supported: convert it to LMDB and say backend: LMDB, "
            "or give shapes={top: sizes} to Net or Solver and feed its tops"
        )
    _batches(layer, p, _records(layer, p))


class _Database:
    """An LMDB that is open for as long as a layer reads it; lmdb opens a file once only."""

    def __init__(self, path: str) -> None:
        import lmdb

        folder = os.path.isdir(path)
        self.environment = lmdb.open(path, readonly=True, lock=False, subdir=folder)
        pages = self.environment.info()["last_pgno"] + 1
        file = os.path.join(path, "data.mdb") if folder else path
        if pages * self.environment.stat()["psize"] > os.path.getsize(file):
            # reading what is not there would end the process
            raise lmdb.CorruptedError("the file is shorter than its pages")

    def __del__(self) -> None:
        if hasattr(self, "environment"):
            self.environment.close()


_OPEN: WeakValueDictionary[str, _Database] = WeakValueDictionary()


def _records(layer: Layer, p: Any) -> Iterator[Pair]:
    """The pairs of a database in the order of their keys, around and around."""
    try:
        import lmdb
    except ImportError:
        raise layer.fail(
            "it reads an LMDB, which needs the package lmdb (pip install 'nnl[caffe]'); or give "
            "shapes={top: sizes} to Net or Solver and feed its tops"
        ) from None
    path = os.path.realpath(layer.net.path(p.source))
    if not os.path.exists(path):
        raise layer.fail(f"source {p.source!r}: there is no such database")
    try:
        database = _OPEN.get(path) or _Database(path)
    except lmdb.Error as error:
        raise layer.fail(f"source {p.source!r}: {error}") from None
    _OPEN[path] = database
    color = layer.message.transform_param.force_color or p.force_encoded_color

    def pairs() -> Iterator[Pair]:
        while True:
            count = 0
            with database.environment.begin() as transaction:
                for key, value in transaction.cursor():
                    where = f"{layer}: {p.source}, record {key!r}"
                    yield _pair(value, color, where)
                    count += 1
            if not count:
                raise layer.fail(f"source {p.source!r} has no records")

    return pairs()


def _pair(value: bytes, color: bool, where: str) -> Pair:
    datum = parse_binary("Datum", value, where)
    try:
        if not datum.encoded:
            return datum_to_array(datum), datum.label
        return _decoded(io.BytesIO(datum.data), color or datum.channels != 1), datum.label
    except (ValueError, OSError) as error:
        raise ValueError(f"{where}: {error}") from None


@builds("ImageData", bottoms=0, tops=(1, 2))
def image_data(layer: Layer) -> None:
    p = layer.message.image_data_param
    if (p.new_height == 0) != (p.new_width == 0):
        raise layer.fail("new_height and new_width are set together, or not at all")
    size = (p.new_width, p.new_height) if p.new_width else None
    try:
        with open(layer.net.path(p.source), encoding="utf-8") as file:
            rows = [line.rsplit(None, 1) for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise layer.fail(f"source: {error}") from None
    listed = [(i, row[0], _number(row[-1])) for i, row in enumerate(rows, 1)]
    for i, name, label in listed:
        if len(rows[i - 1]) != 2 or not math.isfinite(label):
            raise layer.fail(f"{p.source}, line {i}: wanted a path and a label, got {name!r}")
    if not listed:
        raise layer.fail(f"source {p.source} names no files")

    def pairs() -> Iterator[Pair]:
        order = np.arange(len(listed))
        while True:
            if p.shuffle:
                random.prng.shuffle(order)
            for k in order:
                i, name, label = listed[k]
                try:
                    x = _decoded(layer.net.path(p.root_folder + name), p.is_color, size)
                except (OSError, ValueError) as error:
                    raise layer.fail(f"{p.source}, line {i}: {name}: {error}") from None
                yield x, label

    _batches(layer, p, pairs())


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
