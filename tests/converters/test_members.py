# SPDX-License-Identifier: Apache-2.0
"""Reading members of archives: checksums, many places at once, in the background."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
from nnl.converters.nnp import members as module
from nnl.converters.nnp.members import ArrayLocation, Member, crc32, members
from nnl.utils.load import load
from nnl.utils.save import save


@pytest.fixture(params=["with the native engine", "without it"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 1000)
    if request.param == "without it":
        monkeypatch.setattr(module, "library", lambda: None)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 255, 256, 1000, 4096, 100003])
def test_the_checksum_is_that_of_zlib(size: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, size + 3).astype(np.uint8)
    for start in range(3):
        part = data.data[start : start + size]
        assert crc32(part) == zlib.crc32(part)
        assert crc32(part, 12345) == zlib.crc32(part, 12345)


def test_arrays_get_what_lies_in_their_places(tmp_path: Path, way: None) -> None:
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, 50_000).astype(np.uint8).tobytes()
    (tmp_path / "file").write_bytes(b"before" + data + b"behind")
    places = [
        ArrayLocation(30_001, np.dtype("<f4"), (50, 3)),  # at an odd address, and not in order
        ArrayLocation(8, np.dtype("<i8"), (2,)),
        ArrayLocation(24, np.dtype("<f8"), (0, 3)),
        ArrayLocation(5000, np.dtype("u1"), (20_000,)),
        ArrayLocation(49_999, np.dtype("u1"), ()),
    ]
    with open(tmp_path / "file", "rb", buffering=0) as opened:
        file = Member(opened, 6, len(data), "here", zlib.crc32(data))
        arrays = file.arrays(places)
    file.wait()
    for (start, dtype, shape), y in zip(places, arrays, strict=True):
        want = np.frombuffer(data, dtype, int(np.prod(shape)), start).reshape(shape)
        assert y.tobytes() == want.tobytes() and y.shape == shape and y.flags.writeable
        assert y.flags.aligned


@pytest.mark.parametrize("at", [0, 31_000, 49_999])
def test_a_flipped_bit_anywhere_is_an_error(tmp_path: Path, way: None, at: int) -> None:
    data = bytearray(np.random.default_rng(0).integers(0, 256, 50_000).astype(np.uint8).tobytes())
    checksum = zlib.crc32(data)
    data[at] ^= 16
    (tmp_path / "file").write_bytes(data)
    for use in ("read", "arrays", "verify"):
        with open(tmp_path / "file", "rb", buffering=0) as opened:
            file = Member(opened, 0, len(data), "here", checksum)
            with pytest.raises(ValueError, match=r"here is damaged \(CRC-32\)"):
                if use == "arrays":
                    file.arrays([ArrayLocation(30_000, np.dtype("<f4"), (2000,))])
                    file.wait()
                else:
                    getattr(file, use)()


def test_a_file_that_was_cut_after_it_was_opened_is_an_error(tmp_path: Path, way: None) -> None:
    (tmp_path / "file").write_bytes(bytes(5000))
    with open(tmp_path / "file", "rb", buffering=0) as opened:
        file = Member(opened, 0, 5003, "here")
        with pytest.raises(ValueError, match="here ends 3 bytes too early"):
            file.arrays([ArrayLocation(3, np.dtype("<f4"), (1250,))])
            file.wait()


def weights_file(path: Path, kind: str) -> bytes:
    """A .nnp of one layer, and the bytes of its weights."""
    x = nn.Variable((2, 300))
    y = nn.functions.affine(x, nn.parameter.get_parameter_or_create("w", (300, 10)))
    value = np.random.default_rng(0).normal(size=(300, 10)).astype(np.float32)
    nn.get_parameters()["w"].d = value
    net = {"name": "n", "batch_size": 2, "outputs": {"y": y}, "names": {"x": x}}
    save(path, {"networks": [net]}, parameter_format=kind)
    nn.clear_parameters()
    return value.tobytes()


@pytest.mark.parametrize("kind", [".h5", ".protobuf"])
@pytest.mark.parametrize("read", [load, nn.load_parameters])
def test_damaged_weights_change_nothing(tmp_path: Path, way: None, kind: str, read: Any) -> None:
    path = tmp_path / "a.nnp"
    value = weights_file(path, kind)
    good = path.read_bytes()
    read(path)
    assert nn.get_parameters(grad_only=False)["w"].d.tobytes() == value
    nn.clear_parameters()
    at = good.index(value) + 5000
    path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    with pytest.raises(ValueError, match=rf"'parameter\{kind}' is damaged \(CRC-32\)"):
        read(path)
    assert nn.get_parameters(grad_only=False) == {}


def test_damaged_members_that_nobody_reads_are_found(tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("nnp_version.txt", "0.1")
    data = file.getvalue().replace(b"0.1", b"0.2", 1)
    with pytest.raises(ValueError, match=r"x: the member 'nnp_version.txt' is damaged \(CRC-32\)"):
        list(members(io.BytesIO(data), "x"))


def test_damaged_structure_is_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.nnp"
    weights_file(path, ".protobuf")
    data = bytearray(path.read_bytes())
    with open(path, "rb", buffering=0) as file:
        (member,) = (m for name, m in members(file, "x") if name == "parameter.protobuf")
    data[member.start] = 0xFF  # its first tag
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"'parameter.protobuf' is damaged \(CRC-32\)"):
        load(path)


def test_weights_of_saved_archives_are_aligned(tmp_path: Path) -> None:
    path = tmp_path / "a.nnp"
    value = weights_file(path, ".h5")
    assert path.read_bytes().index(value) % 64 == 0
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
