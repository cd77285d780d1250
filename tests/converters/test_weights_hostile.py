# SPDX-License-Identifier: Apache-2.0
"""Files of weights that small programs wrote to take all time or memory: a ValueError, at once."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
from nnl.converters.weights import load_weights, pickle_reader, read_weights
from nnl.converters.weights.safetensors import read_safetensors
from tests.converters.test_weights import header_file, torch_file

DICT = b"ccollections\nOrderedDict\n"


def integer(n: int) -> bytes:
    return b"J" + n.to_bytes(4, "little", signed=True)


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def put(i: int) -> bytes:
    return b"r" + struct.pack("<I", i)


def get(i: int) -> bytes:
    return b"j" + struct.pack("<I", i)


def tensor(size: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    """PyTorch's description of a window on the storage "0"."""
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + b"N"
    windows = [b"(" + b"".join(map(integer, w)) + b"t" for w in (shape, strides)]
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + integer(size)
        + b"tQ"
        + integer(0)
        + b"".join(windows)
        + b"\x89NtR"
    )


# A tuple of a tuple twice of a tuple twice ...: 40 levels have 2^40 leaves.
DOUBLED = integer(1) + put(0) + b"".join(get(i) + b"\x86" + put(i + 1) for i in range(40))
DEEP = b"N" + b"\x85" * 100_000  # its hash and its repr need a stack that deep


def wide(leaf: bytes) -> bytes:
    """Dicts that hold the next one 20 times each: 20^12 ways to the leaf."""
    out = leaf + put(0)
    for i in range(12):
        out += b"}" + put(i + 1) + b"(" + b"".join(text(f"{k}") + get(i) for k in range(20)) + b"u"
    return out + b"."


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (DICT + DOUBLED + b"\x85R.", r"a call of OrderedDict\(a tuple,\) is refused"),
        (DICT + DEEP + b"R.", r"a call of OrderedDict\(a tuple,\) is refused"),
        (DOUBLED + b")R.", "a call of a tuple is refused"),
        (DOUBLED + b"Q.", r"\(a tuple, a tuple\) is no storage"),
        (DOUBLED + b"Nb.", "attributes are set of a tuple"),
        (DOUBLED + b"Na.", "items are added to a tuple"),
        (DOUBLED + b"NNs.", "items are set of a tuple"),
        (b"}" + DOUBLED + b"Ns.", "a tuple is the key of a dict, wanted a name"),
        (b"}" + DEEP + b"Ns.", "a tuple is the key of a dict, wanted a name"),
        (DEEP + text("x") + b"\x93.", "a tuple, 'x' is no name"),
        (b"ctorch\nSize\n]" + put(0) + get(0) + b"a\x85R.", "a list is no size"),
        (b"]" + put(0) + get(0) + b"a.", "dicts, lists and modules are nested more"),
        (b"ctorch\nFloatStorage\n.", "it holds torch.FloatStorage, wanted a dict of tensors"),
        (b"}" + put(0) + text("a") + get(0) + b"s.", "dicts, lists and modules are nested more"),
        (wide(b"}"), "the names have more than 1000000 characters"),
        (wide(tensor(4, (4,), (1,))), "the names have more than 1000000 characters"),
        (b"}" + text("a") + tensor(4, (2**30,) * 9999, (0,) * 9999) + b"s.", "it has 9999 axes"),
        (b"}" + text("a") + tensor(4, (0, 2**30, 2**30), (1, 1, 1)) + b"s.", "is no shape of an a"),
        (b"\x82\x01.", r"the instruction b'\\x82' at byte 0 is refused"),  # a registered extension
        (b"Pos.system\n.", r"the instruction b'P' at byte 0 is refused"),
        (DICT + b")\x81.", r"an object of collections.OrderedDict\(\) is refused"),
        (
            b"ctorch._utils\n_rebuild_qtensor\n.",
            "a tensor is made by _rebuild_qtensor, wanted plain",
        ),
        (b"(cos\nsystem\no.", r"the instruction b'o' at byte 12 is refused"),
    ],
)
def test_pickles_cannot_make_work_of_a_few_bytes(
    tmp_path: Path, pickled: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnl.converters.weights.pytorch.MAX_NAMES", 10**6)
    path = torch_file(tmp_path / "w.pt", pickled, **{"0": bytes(16)})
    with pytest.raises(ValueError, match=message) as error:
        read_weights(path)
    assert str(path) in str(error.value)


def test_many_lines_take_no_time_each() -> None:
    data = DICT * 20_000 + b"."  # 0.5 MB; a copy of the rest for each line would be 10 GB
    assert pickle_reader.read_pickle(data, "f").name == "OrderedDict"


def test_tensors_do_not_multiply_a_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = tensor(4, (4,), (1,))
    items = b"".join(text(str(i)) + one for i in range(17))
    path = torch_file(tmp_path / "w.pt", b"}(" + items + b"u.", **{"0": bytes(16)})
    assert len(read_weights(path)) == 17  # small ones may
    monkeypatch.setattr("nnl.converters.weights.pytorch.SUSPICIOUS", 100)
    with pytest.raises(ValueError, match="the tensors share storages more than 16 times"):
        read_weights(path)


def test_names_that_are_scopes_already_change_nothing(tmp_path: Path) -> None:
    nn.parameter.get_parameter_or_create("a/b", (2,))
    nn.parameter.get_parameter_or_create("z", (2,))
    for name, message in (
        ("a", "'a' is a scope that holds parameters"),
        ("a/b/c", "'b' in 'a/b' is a par"),
    ):
        np.savez(tmp_path / "w.npz", **{"first": np.ones(2), "z": np.ones(2), "name": np.ones(2)})
        names = {"first": "first", "z": "z", "name": name}
        with pytest.raises(ValueError, match=f"load_weights: .*w.npz: .*{message}"):
            load_weights(tmp_path / "w.npz", names)
        assert list(nn.get_parameters()) == ["a/b", "z"]
        assert not nn.get_parameters()["z"].d.any()


def test_expanded_tensors_are_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"e": torch.arange(3.0).expand(5, 3)}, tmp_path / "W.PT")
    assert read_weights(tmp_path / "W.PT")["e"].tolist() == [[0, 1, 2]] * 5


def entry(shape: list[int], dtype: str = "F32", size: int = 4) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (header_file({"a": entry([0, 2**62, 2**62], size=0)}), "'a': .* is no shape of an array"),
        (
            header_file({"a": entry([2**62] * 99_999)}, bytes(4)),
            "'a': it has 99999 axes, wanted at",
        ),
        (header_file({"a": entry([4], "BOOL")}, b"\0\1\2\0"), "'a': a boolean is 2, wanted 0 or 1"),
        (header_file('{"a": 1}'.encode("utf-16")), "f: the header is no JSON"),
        (
            header_file(b"{" + b",".join(b'"%d":1' % i for i in range(50_000)) + b',"49999":1}'),
            "the name '49999' is there twice",
        ),
    ],
)
def test_safetensors_cannot_make_work_of_a_few_bytes(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_safetensors(np.frombuffer(data, np.uint8), "f")


def npy(shape: str, body: bytes = bytes(4), version: bytes = b"\1\0") -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + body


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: npy("(" + "-" * 9000 + "1,)"), "'a.npy': no array: (Memory|Recursion|Parser)"),
        (lambda: npy("(" * 9000), "'a.npy': no array: "),
        (lambda: npy("(True,)"), r"'a.npy': \(True,\) is no shape of an array"),
        (lambda: npy("(-1,)"), r"'a.npy': \(-1,\) is no shape of an array"),
        (lambda: npy("(0, " + "9" * 30 + ")"), "'a.npy': .* is no shape of an array"),
        (lambda: npy("(" + "1," * 100 + ")"), "'a.npy': it has 100 axes, wanted at most 32"),
        (lambda: npy("(1,)", version=b"\x09\0"), r"no array: its version is \(9, 0\)"),
        (lambda: npy("(2,)"), r"'a.npy': 4 bytes do not fit float32 \(2,\)"),
    ],
)
def test_headers_of_npz_are_not_believed(
    tmp_path: Path, content: Callable[[], bytes], message: str
) -> None:
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.writestr("a.npy", content())
    with pytest.raises(ValueError, match=message):
        read_weights(tmp_path / "w.npz")
