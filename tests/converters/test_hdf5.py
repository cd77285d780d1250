# SPDX-License-Identifier: Apache-2.0
"""The reader of simple HDF5 files against h5py."""

from __future__ import annotations

import io
import math
from typing import Any

import h5py
import numpy as np
import pytest

from nnl.converters.nnp.members import ArrayLocation, Hdf5Array, Member
from nnl.converters.nnp.parameter_files import read_h5
from nnl.ext.native import library

pytestmark = pytest.mark.skipif(library() is None, reason="the native engine is not built")

MAX_DEPTH = 64  # of groups in groups
DTYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")


def member(data: bytes) -> Member:
    return Member(io.BytesIO(data), 0, len(data), "here")


def written(fill: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w", **options) as out:
        fill(out)
    return file.getvalue()


def found(data: bytes) -> dict[str, tuple[np.ndarray[Any, Any], dict[str, int]]]:
    file = member(data)
    listed = file.hdf5_arrays()
    assert listed is not None
    places = [ArrayLocation(start, np.dtype(dtype), shape) for _, dtype, shape, start, _ in listed]
    arrays = file.arrays(places)
    file.wait()
    return {a[0]: (y, a[4]) for a, y in zip(listed, arrays, strict=True)}


def test_what_h5py_writes_by_default_is_found() -> None:
    rng = np.random.default_rng(0)
    shapes = [(), (0,), (3, 0, 2), (5,), (2, 3, 4), (1, 1, 1, 7)]
    values = {
        f"{dtype}/{i}/x": (rng.normal(size=shape) * 50).astype(dtype)
        for dtype in DTYPES
        for i, shape in enumerate(shapes)
    }

    def fill(out: h5py.File) -> None:
        for i, (name, value) in enumerate(values.items()):
            out[name] = value
            out[name].attrs["need_grad"] = i % 2 == 0
            out[name].attrs["index"] = i if i % 3 else np.uint8(i)

    got = found(written(fill))
    assert got.keys() == values.keys()
    for i, (name, value) in enumerate(values.items()):
        y, attributes = got[name]
        assert y.dtype == value.dtype and y.shape == value.shape and (y == value).all(), name
        assert attributes == {"need_grad": i % 2 == 0, "index": i}


def test_groups_with_thousands_of_members_are_trees() -> None:
    names = [f"parameter_{i:05}" for i in range(3000)]

    def fill(out: h5py.File) -> None:
        for i, name in enumerate(names):
            out[f"scope/{name}"] = np.float32(i)

    got = found(written(fill))
    assert {n: float(y) for n, (y, _) in got.items()} == {
        f"scope/{n}": i for i, n in enumerate(names)
    }


@pytest.mark.parametrize(
    "fill",
    [
        lambda out: out.create_dataset("w", data=np.ones(100), chunks=(10,)),
        lambda out: out.create_dataset("w", data=np.ones(100), compression="gzip"),
        lambda out: out.create_dataset("w", data=np.ones(4, ">f4")),
        lambda out: out.create_dataset("w", (4,), "f4"),  # no numbers were ever written
        lambda out: out.create_dataset("w", data="text"),
        lambda out: out.create_dataset("w", data=np.array([True])),
        lambda out: out["w"].attrs.update(note="text") if out.update(w=1) is None else None,
        lambda out: out.update(a=np.ones(4), b=h5py.SoftLink("/a")),
        lambda out: out.create_group("/".join("g" * (MAX_DEPTH + 2))).update(w=1),
    ],
)
def test_everything_else_is_left_to_h5py(fill: Any) -> None:
    assert member(written(fill)).hdf5_arrays() is None


def test_two_names_of_one_dataset_are_left_to_h5py() -> None:
    def fill(out: h5py.File) -> None:
        out["a"] = np.ones(4)
        out["b"] = out["a"]

    data = written(fill)
    assert member(data).hdf5_arrays() is None
    with pytest.raises(ValueError, match="two names"):
        library().hdf5_arrays(data, 0, len(data))


def test_files_of_the_newest_format_are_read_by_h5py() -> None:
    def fill(out: h5py.File) -> None:
        for i, name in enumerate(("z/w", "a")):
            out[name] = np.full((2, 3), i, np.float32)
            out[name].attrs["need_grad"] = i == 0
            out[name].attrs["index"] = i

    data = written(fill, libver="latest")
    assert member(data).hdf5_arrays() is None
    stored = read_h5(member(data))
    assert [(p.name, p.need_grad, p.value[0, 0]) for p in stored] == [("z/w", True, 0), ("a", 0, 1)]


def test_damaged_files_give_what_h5py_gives_or_are_left_to_it() -> None:
    rng = np.random.default_rng(1)

    def fill(out: h5py.File) -> None:
        for i in range(6):
            out[f"g{i % 2}/w{i}"] = rng.normal(size=(i + 1, 2)).astype(np.float32)
            out[f"g{i % 2}/w{i}"].attrs["index"] = i

    good = np.frombuffer(written(fill), np.uint8)
    interesting = np.flatnonzero(good)  # the others are mostly space to grow
    accepted = 0
    for _ in range(1000):
        bad = good.copy()
        for i in rng.choice(interesting, int(rng.integers(1, 3))):
            bad[i] = rng.integers(256) if rng.random() < 0.5 else bad[i] ^ 1 << rng.integers(8)
        data = bad[: rng.integers(bad.size)] if rng.random() < 0.1 else bad
        listed = member(data.tobytes()).hdf5_arrays()
        if listed is None:
            continue
        accepted += 1
        assert all(inside(d, data.size) for d in listed)
        try:
            with h5py.File(io.BytesIO(data.tobytes()), "r") as file:
                for name, dtype, shape, start, _ in listed:
                    if name in file and isinstance(file[name], h5py.Dataset):
                        other = file[name]
                        if (other.dtype, other.shape) == (dtype, shape):
                            assert other.id.get_offset() in (None, start), name
        except (OSError, RuntimeError, KeyError, ValueError, OverflowError, TypeError):
            pass  # what h5py does not read is no oracle
    assert accepted > 100


def inside(array: Hdf5Array, size: int) -> bool:
    _, dtype, shape, start, _ = array
    return start >= 0 and start + np.dtype(dtype).itemsize * math.prod(shape) <= size


@pytest.mark.parametrize("field", [8, 13, 14, 24, 47, 64])  # version, sizes, base, end, root
def test_a_damaged_superblock_is_left_to_h5py(field: int) -> None:
    data = bytearray(written(lambda out: out.update(w=np.ones(3))))
    data[field] ^= 0xFF
    assert member(bytes(data)).hdf5_arrays() is None


def test_structures_that_overlap_do_not_multiply_the_work() -> None:
    """A tree whose children are the tree itself: as many steps as the file has bytes."""
    data = bytearray(written(lambda out: out.update(w=np.ones(3))))
    tree = data.index(b"TREE")
    data[tree + 5] = 1  # its children are trees
    data[tree + 32 : tree + 40] = tree.to_bytes(8, "little")
    assert member(bytes(data)).hdf5_arrays() is None
