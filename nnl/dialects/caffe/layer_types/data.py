# SPDX-License-Identifier: Apache-2.0
"""Layers whose tops are given: fed, filled, or read from files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.converters.caffe.messages import messages
from nnl.core.arguments.suggest import did_you_mean
from nnl.core.ops import random
from nnl.dialects.caffe.fillers import fill
from nnl.dialects.caffe.layer import MANY, Blob, Layer, builds

Array = np.ndarray[Any, Any]


@builds("Input", bottoms=0, tops=(1, MANY))
def input_layer(layer: Layer) -> None:
    shapes = layer.message.input_param.shape
    if len(shapes) not in (1, len(layer.message.top)):
        raise layer.fail(f"{len(shapes)} shapes for {len(layer.message.top)} tops")
    for i in range(len(layer.message.top)):
        layer.input(shapes[i if len(shapes) > 1 else 0].dim)


@builds("WindowData", "AnnotatedData", "VideoData", bottoms=0, tops=(1, MANY))
def files(layer: Layer) -> None:
    raise layer.fail(
        "it reads what is not supported: give shapes={top: sizes} to Net or Solver and feed its "
        "tops, or use Data, ImageData, HDF5Data, MemoryData or a Python layer"
    )


@builds("DummyData", bottoms=0, tops=(1, MANY))
def dummy_data(layer: Layer) -> None:
    p, n = layer.message.dummy_data_param, len(layer.message.top)
    shapes = [list(s.dim) for s in p.shape] or [
        list(s) for s in zip(p.num, p.channels, p.height, p.width, strict=False)
    ]
    fillers = list(p.data_filler) or [messages()["FillerParameter"]()]
    if len(shapes) not in (1, n) or len(fillers) not in (1, n):
        raise layer.fail(f"{len(shapes)} shapes and {len(fillers)} data_filler for {n} tops")
    made = []
    for i in range(n):
        top = layer.input(shapes[i if len(shapes) > 1 else 0])
        made.append((top, fillers[i if len(fillers) > 1 else 0]))

    def source() -> list[Array]:
        # constants are not filled again, so that what was written into them stays
        return [
            layer.net.value(top).data
            if f.type == "constant" and top.key in layer.net.workspace.values
            else fill(top.sizes, f, str(layer))
            for top, f in made
        ]

    layer.source = source


class Rows:
    """Arrays with one number of rows, given out batch by batch, around and around."""

    def __init__(self, size: int, shuffle: bool = False) -> None:
        self.size, self.shuffle, self.at = size, shuffle, 0
        self.order: Array = np.arange(0)
        self.arrays: list[Array] = []

    def set(self, arrays: Sequence[Array]) -> None:
        """Take other arrays, from their beginning."""
        self.arrays, self.at = list(arrays), 0
        self.order = np.arange(len(self.arrays[0]))

    def __call__(self) -> list[Array]:
        n = len(self.order)
        taken = []
        while len(taken) < self.size:
            if self.at == 0 and self.shuffle:
                random.prng.shuffle(self.order)
            part = self.order[self.at : self.at + self.size - len(taken)]
            self.at = (self.at + len(part)) % n
            taken += list(part)
        return [a[taken] for a in self.arrays]


@builds("MemoryData", bottoms=0, tops=2)
def memory_data(layer: Layer) -> None:
    p = layer.message.memory_data_param
    shape = (p.batch_size, p.channels, p.height, p.width)
    if min(shape) < 1:
        raise layer.fail(f"batch_size, channels, height and width are {shape}, wanted at least 1")
    layer.input(shape), layer.input(shape[:1])
    rows = Rows(p.batch_size)

    def source() -> list[Array]:
        if not rows.arrays:
            raise layer.fail("it has no data: call Net.set_input_arrays(data, labels)")
        return rows()

    layer.source, layer.net.memory = source, (*layer.net.memory, (rows, shape))


@builds("HDF5Data", bottoms=0, tops=(1, MANY))
def hdf5_data(layer: Layer) -> None:
    p = layer.message.hdf5_data_param
    if p.batch_size < 1:
        raise layer.fail("batch_size is 0, wanted at least 1")
    try:
        with open(layer.net.path(p.source), encoding="utf-8") as file:
            names = [line.strip() for line in file if line.strip()]
    except OSError as error:
        raise layer.fail(f"source: {error}") from None
    if not names:
        raise layer.fail(f"source {p.source} names no files")
    parts = [_read(layer, name, list(layer.message.top)) for name in names]
    arrays = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    if not len(arrays[0]):
        raise layer.fail(f"the files of {p.source} have no rows")
    for a in arrays:
        layer.input((p.batch_size, *a.shape[1:]))
    rows = Rows(p.batch_size, p.shuffle)
    rows.set(arrays)
    layer.source = rows


def _read(layer: Layer, name: str, tops: list[str]) -> list[Array]:
    import h5py

    path = layer.net.path(name)
    if not os.path.exists(path):
        raise layer.fail(f"{name}: there is no such file")
    try:
        with h5py.File(path, "r") as file:
            for top in tops:
                if top not in file:
                    raise layer.fail(f"{name} has no data set {top!r}{did_you_mean(top, file)}")
            found = [np.asarray(file[top], np.float32) for top in tops]
    except OSError as error:
        raise layer.fail(f"{name}: {error}") from None
    if len({len(a) for a in found}) > 1:
        raise layer.fail(f"{name}: data sets have {[len(a) for a in found]} rows")
    return found


def feed(top: Blob, array: Any, where: str) -> None:
    """Set the value of an input.

    Raises:
        ValueError: The array has another shape.
    """
    a = np.asarray(array, np.float32)
    if a.shape != top.sizes:
        if a.size != top.count:
            raise ValueError(f"{where}: {top.name!r} got the shape {a.shape}, wanted {top.shape}")
        a = a.reshape(top.shape)
    top.workspace.feed(top, a)
