# SPDX-License-Identifier: Apache-2.0
"""Files of weights: .caffemodel, .caffemodel.h5, and single blobs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nnl.converters.caffe.messages import messages, parse_text, upgraded
from nnl.converters.nnp.members import ArrayLocation, whole
from nnl.converters.nnp.wire import MOST, varint
from nnl.core.parameters.atomic import replacing

Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]
WEIGHTS = (".caffemodel", ".caffemodel.h5")  # how such files end
_PATHS = ((100, 7, 5), (2, 6, 5))  # layer, blobs, data; and those of the first version
_LAYER, _BLOBS, _SHAPE, _DATA = 100, 7, 7, 5
_LENGTH = 2  # wire type of protobuf
LONG = 2**20  # bytes: more than that is weights


def parse_binary(name: str, content: bytes, where: str) -> Any:
    """A message from its binary form.

    Raises:
        ValueError: It is no such message.
    """
    from google.protobuf.message import DecodeError

    message = messages()[name]()
    try:
        message.ParseFromString(content)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{where}: no {name}: {error}") from None
    return message


def read_net(source: Any) -> tuple[Any, str, str]:
    """(a NetParameter, upgraded; its text, if it has one; what to call it in messages)."""
    if hasattr(source, "DESCRIPTOR"):
        net, text, where = messages()["NetParameter"](), "", source.name or "NetParameter"
        net.CopyFrom(source)
        return upgraded(net), text, where
    where = os.fspath(source)
    with open(where, "rb") as file:
        content = file.read()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return upgraded(parse_binary("NetParameter", content, where)), "", where
    return upgraded(parse_text("NetParameter", text, where)), text, where


def shape_of(blob: Any) -> Sizes:
    """The shape that a BlobProto has: of four sizes in old files."""
    if blob.HasField("shape"):
        return tuple(blob.shape.dim)
    return (blob.num, blob.channels, blob.height, blob.width)


def fits(stored: Sizes, wanted: Sizes) -> bool:
    """Whether weights of a file are of a parameter's shape; old files have ones in front."""
    return stored == wanted or (
        len(stored) == 4 and len(wanted) < 4 and stored == (1,) * (4 - len(wanted)) + wanted
    )


def values_of(blob: Any, where: str) -> Array:
    """The numbers of a BlobProto."""
    data: Any = blob.double_data if len(blob.double_data) else blob.data
    shape = shape_of(blob)
    if min(shape, default=0) < 0 or len(data) != math.prod(shape):
        raise ValueError(f"{where}: {len(data)} numbers for the shape {shape}")
    return np.array(data, np.float32).reshape(shape)


Shapes = Mapping[str, Sequence[Sizes]]  # of the parameters of layers


def read_weights(
    path: str, into: Callable[[Shapes], Mapping[tuple[str, int], Array]] = lambda shapes: {}
) -> dict[str, list[Array]]:
    """{layer: its arrays} of a .caffemodel, or of one in HDF5.

    The numbers are read into the arrays themselves; no size is believed before the file has been
    found to hold it.

    Args:
        into: Shapes of what the file has -> contiguous arrays that are filled, by layer and number.
            It is called when nothing can be wrong with the file any more.
    Raises:
        ValueError: The file is damaged; OSError: it cannot be read.
    """
    if is_hdf5(path):
        found = _read_hdf5(path)
        into({name: [a.shape for a in arrays] for name, arrays in found.items()})
        return found
    with open(path, "rb", buffering=0) as file:
        member = whole(file, path)
        try:
            content, runs = member.split_message(_PATHS[0])
            if len(content) > LONG and not runs:
                content, runs = member.split_message(_PATHS[1])
        except ValueError as error:
            raise ValueError(f"{path}: no NetParameter: {error}") from None
        net = parse_binary("NetParameter", content, path)
        places, owners, found, rest = [], [], {}, iter(runs.values())
        for layer in list(net.layer) or list(net.layers):
            where = f"{path}: layer {layer.name!r}"
            arrays: list[Any] = []
            for blob in layer.blobs:
                shape = shape_of(blob)
                # what was split off is in the order of the file
                run = None if len(blob.data) or len(blob.double_data) else next(rest, None)
                if run is None:
                    arrays.append(values_of(blob, where))
                    continue
                if min(shape, default=0) < 0 or run[1] - run[0] != 4 * math.prod(shape):
                    raise ValueError(f"{where}: {run[1] - run[0]} bytes for the shape {shape}")
                owners.append((layer.name, len(arrays)))
                arrays.append(len(places))
                places.append(ArrayLocation(run[0], np.dtype("<f4"), shape))
            if arrays:
                found[layer.name] = arrays
        shapes = {
            n: [places[a].shape if isinstance(a, int) else a.shape for a in v]
            for n, v in found.items()
        }
        given = into(shapes)
        read = member.arrays(places, {i: given[k] for i, k in enumerate(owners) if k in given})
        member.wait()
    return {n: [read[a] if isinstance(a, int) else a for a in v] for n, v in found.items()}


def is_hdf5(path: str) -> bool:
    """Whether a file is one of HDF5, by its first bytes; by its name if it is empty."""
    with open(path, "rb") as file:
        first = file.read(8)
    return first == b"\x89HDF\r\n\x1a\n" or (path.endswith(".h5") and not first)


def _read_hdf5(path: str) -> dict[str, list[Array]]:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            return {
                name: [np.asarray(group[str(i)], np.float32) for i in range(len(group))]
                for name, group in file["data"].items()
                if len(group)
            }
    except (OSError, KeyError) as error:
        raise ValueError(f"{path}: no weights of Caffe: {error}") from None


def read_blob(path: str, where: str) -> Array:
    """The array of a .binaryproto file.

    Raises:
        ValueError: It is not there, or damaged.
    """
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise ValueError(f"{where}: {error}") from None
    return values_of(parse_binary("BlobProto", content, path), path)


def write_whole(path: str, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file that is there once all of it is."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        for part in parts:
            file.write(part)


def blob_parts(array: Array) -> list[bytes | memoryview]:
    """A BlobProto of an array."""
    shape = messages()["BlobShape"](dim=array.shape).SerializeToString()
    data = np.ascontiguousarray(array, "<f4").reshape(-1).view(np.uint8)
    head = varint(_SHAPE << 3 | _LENGTH) + varint(len(shape)) + shape
    return [head + varint(_DATA << 3 | _LENGTH) + varint(len(data)), data.data]


def nested(number: int, parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """A field that is a message, in parts."""
    return [varint(number << 3 | _LENGTH) + varint(sum(map(len, parts))), *parts]


def write_weights(path: str, net: Any, arrays: Mapping[str, Sequence[Array]]) -> None:
    """Write a NetParameter with the arrays of its layers.

    Raises:
        ValueError: They take more bytes than a protobuf message may have.
    """
    if path.endswith(".h5"):
        return write_hdf5(path, arrays)
    size = sum(4 * a.size for v in arrays.values() for a in v)
    if size > MOST:
        raise ValueError(f"{path}: {size} bytes of weights are too many: .caffemodel.h5 holds them")

    def parts() -> Iterator[bytes | memoryview]:
        head = messages()["NetParameter"]()
        head.CopyFrom(net)
        head.ClearField("layer")
        yield head.SerializeToString()
        for layer in net.layer:
            body: list[bytes | memoryview] = [layer.SerializeToString()]
            for a in arrays.get(layer.name, ()):
                body += nested(_BLOBS, blob_parts(a))
            yield from nested(_LAYER, body)

    write_whole(path, parts())


def write_hdf5(path: str, arrays: Mapping[str, Sequence[Array]]) -> None:
    """Write the arrays of layers as Caffe's HDF5 files have them."""
    import h5py

    with replacing(path) as temporary, h5py.File(temporary, "w") as file:
        for name, values in arrays.items():
            group = file.create_group(f"data/{name}")
            for i, a in enumerate(values):
                group[str(i)] = a
