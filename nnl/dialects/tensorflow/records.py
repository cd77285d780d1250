# SPDX-License-Identifier: Apache-2.0
"""TFRecords: files of records, and the tf.train.Example messages in them."""

from __future__ import annotations

import gzip
import math
import mmap
import os
import zlib
from typing import Any, NamedTuple

import numpy as np

from nnl.converters.tensorflow.messages import TensorFlowError, parse
from nnl.data.record_files import framed, records
from nnl.dialects.tensorflow.data import Dataset
from nnl.dialects.tensorflow.host import HostOperation, _text, host
from nnl.dialects.tensorflow.operation import as_dtype
from nnl.dialects.tensorflow.queues import WholeFileReader
from nnl.dialects.tensorflow.session import DataLossError, InvalidArgumentError, NotFoundError
from nnl.dialects.tensorflow.shapes import sizes_of
from nnl.dialects.tensorflow.table import tensor

MESSAGES = frozenset(
    (
        "Example Features Feature BytesList FloatList Int64List SequenceExample FeatureLists "
        "FeatureList"
    ).split()
)
_UNPACKED = {"GZIP": gzip.decompress, "ZLIB": zlib.decompress}
_KINDS = {"f": "float_list", "i": "int64_list", "O": "bytes_list"}


class TFRecordCompressionType:
    """How a file is packed."""

    NONE, ZLIB, GZIP = 0, 1, 2


class TFRecordOptions:
    """How a file is packed: as a type above, or "GZIP", "ZLIB" or nothing."""

    def __init__(self, compression_type=None, **_):
        self.compression = _compression(compression_type)


def _compression(given):
    given = getattr(given, "compression", given)
    name = {None: "", 0: "", 1: "ZLIB", 2: "GZIP"}.get(given, given)
    if name and name not in _UNPACKED:
        raise ValueError(f"compression_type must be 'GZIP', 'ZLIB' or '', not {given!r}")
    return name


class TFRecordWriter:
    """A new file of records."""

    def __init__(self, path, options=None):
        self._compression = _compression(options)
        self._packed = zlib.compressobj()
        self._file = (gzip.open if self._compression == "GZIP" else open)(path, "wb")

    def write(self, record):
        """Add a record, as bytes."""
        data = framed(bytes(record))
        self._file.write(self._packed.compress(data) if self._compression == "ZLIB" else data)

    def flush(self):
        """Hand to the file what was written."""
        self._file.flush()

    def close(self):
        """End the file."""
        if self._compression == "ZLIB" and not self._file.closed:
            self._file.write(self._packed.flush())
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def tf_record_iterator(path, options=None):
    """The records of a file."""
    compression = _compression(options)
    try:
        with open(path, "rb") as file:
            if compression:
                yield from records(_UNPACKED[compression](file.read()))
            elif os.fstat(file.fileno()).st_size:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    yield from records(data)
    except FileNotFoundError:
        raise NotFoundError(f"{path}; No such file or directory") from None
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataLossError(f"{path}: {error}") from None


def TFRecordDataset(filenames, compression_type=None, buffer_size=None, num_parallel_reads=None):
    """The records of files."""
    compression = _compression(compression_type)

    def start(names):
        for name in np.reshape(names, -1):
            for record in tf_record_iterator(_text(name), compression):
                yield [record]

    return Dataset(start, np.dtype(object), [()], [tensor(filenames)])


class TFRecordReader(WholeFileReader):
    """The records of files in a queue."""

    def __init__(self, name=None, options=None):
        super().__init__(name)
        self._options = options

    def _records(self, path):
        for i, record in enumerate(tf_record_iterator(path, self._options)):
            yield f"{path}:{i}".encode(), record


# ---- tf.train.Example ----


class FixedLenFeature(NamedTuple):
    """Values of one shape."""

    shape: Any
    dtype: Any
    default_value: Any = None


class FixedLenSequenceFeature(NamedTuple):
    """Any number of values of one shape."""

    shape: Any
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None


class VarLenFeature(NamedTuple):
    """Any number of values: a SparseTensor."""

    dtype: Any


class SparseTensor(NamedTuple):
    """Values at some positions; the others are nothing."""

    indices: Any
    values: Any
    dense_shape: Any


def sparse_tensor_to_dense(sp_input, default_value=None, validate_indices=True, name=None):
    """The same values in an array that has another value elsewhere."""
    indices, values, shape = map(tensor, sp_input)

    def call(indices, values, shape):
        fill = default_value
        if fill is None:
            fill = b"" if values.dtype.kind == "O" else 0
        out = np.full(shape, fill, values.dtype)
        if indices.size and (np.any(indices < 0) or np.any(indices >= shape)):
            raise InvalidArgumentError(f"indices are outside of the shape {shape.tolist()}")
        out[tuple(indices.T)] = values
        return out

    rank = None if shape.sizes is None else shape.sizes[0]
    sizes = None if rank is None else (None,) * rank
    return host("SparseToDense", call, [indices, values, shape], values.dtype, sizes, name)


def parse_single_example(serialized, features, name=None, example_names=None):
    """The features of one Example, by their names."""
    return _parsed(serialized, features, (), name)


def parse_example(serialized, features, name=None, example_names=None):
    """The features of several Examples, each feature as one tensor."""
    return _parsed(serialized, features, (None,), name)


def _parsed(serialized, features, outer, name):
    serialized = tensor(serialized)
    outer = outer and serialized.sizes or outer
    wanted = {key: _checked(key, features[key]) for key in sorted(features)}
    dtypes, sizes = [], []
    for feature in wanted.values():
        dtype = as_dtype(feature.dtype)
        if isinstance(feature, VarLenFeature):
            rank = 1 + len(outer)
            dtypes += [np.int64, dtype, np.int64]
            sizes += [(None, rank), (None,), (rank,)]
        else:
            more = (None,) if isinstance(feature, FixedLenSequenceFeature) else ()
            dtypes.append(dtype)
            sizes.append((*outer, *more, *sizes_of(feature.shape)))

    def call(session, value):
        examples = [
            _features(x, i) for i, x in enumerate(np.asarray(value, object).reshape(-1).tolist())
        ]
        return [
            made
            for key, feature in wanted.items()
            for made in _columns(key, feature, examples, bool(outer))
        ]

    op = HostOperation("ParseExample", call, [serialized], dtypes, sizes, name)
    outputs = iter(op.outputs)
    return {
        key: SparseTensor(next(outputs), next(outputs), next(outputs))
        if isinstance(feature, VarLenFeature)
        else next(outputs)
        for key, feature in wanted.items()
    }


def _checked(key, feature):
    kinds = (FixedLenFeature, FixedLenSequenceFeature, VarLenFeature)
    if not isinstance(feature, kinds):
        raise ValueError(f"Invalid feature {key}:{feature}.")
    if as_dtype(feature.dtype) not in (np.float32, np.int64, object):
        raise ValueError(f"features[{key!r}]: dtype must be float32, int64 or string, "
                         f"not {as_dtype(feature.dtype)}")  # fmt: skip
    if not isinstance(feature, VarLenFeature):
        sizes = sizes_of(feature.shape)
        if sizes is None or None in sizes:
            raise ValueError(f"features[{key!r}]: all sizes must be known, not {feature.shape}")
    if isinstance(feature, FixedLenSequenceFeature) and not feature.allow_missing:
        raise ValueError(f"features[{key!r}]: allow_missing must be True")
    return feature


def _features(data, index):
    try:
        return parse("Example", data, "it").features.feature
    except TensorFlowError:
        raise InvalidArgumentError(
            f"Could not parse example input, value: {data[:40]!r} (number {index})"
        ) from None


def _values(key, found, dtype):
    """The values that an Example has, None if it has none."""
    kind = found[key].WhichOneof("kind") if key in found else None
    if kind is None:
        return None
    if kind != _KINDS[dtype.kind]:
        raise InvalidArgumentError(
            f"Key: {key}.  Data types don't match. Expected type: {_KINDS[dtype.kind]}, "
            f"but the example has {kind}"
        )
    return np.array(getattr(found[key], kind).value, dtype)


def _columns(key, feature, examples, batch):
    dtype = as_dtype(feature.dtype)
    rows = [_values(key, found, dtype) for found in examples]
    if isinstance(feature, VarLenFeature):
        rows = [np.empty(0, dtype) if row is None else row for row in rows]
        longest = max(map(len, rows), default=0)
        places = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
        indices = np.array(places, np.int64).reshape(-1, 2)
        shape = [len(rows), longest] if batch else [longest]
        values = np.concatenate([np.empty(0, dtype), *rows])
        return [indices if batch else indices[:, 1:], values, np.array(shape, np.int64)]
    sizes = sizes_of(feature.shape)
    count, default = math.prod(sizes), feature.default_value
    if isinstance(feature, FixedLenFeature):
        for i, row in enumerate(rows):
            if row is None:
                if default is None:
                    raise InvalidArgumentError(
                        f"Feature: {key} (data type: {dtype}) is required but could not be found."
                    )
                rows[i] = np.broadcast_to(np.asarray(default, dtype), sizes).reshape(-1)
            elif len(row) != count:
                raise InvalidArgumentError(
                    f"Key: {key}. Can't parse serialized Example: it has {len(row)} values, the "
                    f"shape {list(sizes)} has {count}"
                )
        made = np.array(rows, dtype).reshape(len(rows), *sizes)
        return [made if batch else made[0]]
    rows = [np.empty(0, dtype) if row is None else row for row in rows]
    for row in rows:
        if count == 0 or len(row) % count:
            raise InvalidArgumentError(
                f"Key: {key}. Number of values must be a multiple of {count}, not {len(row)}"
            )
    longest = max(map(len, rows), default=0)
    fill = default if default is not None else b"" if dtype.kind == "O" else 0
    made = np.full((len(rows), longest), fill, dtype)
    for out, row in zip(made, rows, strict=True):
        out[: len(row)] = row
    made = made.reshape(len(rows), longest // count, *sizes)
    return [made if batch else made[0]]
