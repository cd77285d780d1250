# SPDX-License-Identifier: Apache-2.0
"""What torch.save wrote before PyTorch 1.6, and whole modules in files old and new."""

from __future__ import annotations

import argparse
import collections
import io
import pickle
import pickletools
import re
import sys
import tarfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.converters.weights import read_weights
from nnl.converters.weights.pickle_reader import read_pickles
from nnl.converters.weights.pytorch import MAGIC
from tests.converters.test_weights import arrays

torch = pytest.importorskip("torch")


def save(content: Any, path: Path, protocol: int = 2, new: bool = False) -> None:
    torch.save(content, path, _use_new_zipfile_serialization=new, pickle_protocol=protocol)


def assert_same(got: dict[str, np.ndarray], want: dict[str, Any]) -> None:
    assert list(got) == list(want)
    for k, v in want.items():
        v = v.float() if v.dtype == torch.bfloat16 else v
        np.testing.assert_array_equal(got[k], v.detach().numpy())
        assert got[k].shape == v.shape


@pytest.mark.parametrize("protocol", [2, 4])
def test_old_files_give_what_torch_saved(tmp_path: Path, protocol: int) -> None:
    shared = torch.arange(24.0).reshape(4, 6)
    content = {k: torch.tensor(v) for k, v in arrays().items()}
    content |= {"t": shared.T, "part": shared[1:3, ::2], "e": torch.arange(3.0).expand(5, 3)}
    content |= {"bf": torch.randn(3).to(torch.bfloat16), "p": torch.nn.Parameter(torch.ones(2))}
    save({**content, "epoch": 3, "name": "a"}, tmp_path / "w.pt", protocol)
    assert_same(read_weights(tmp_path / "w.pt"), content)


@pytest.mark.parametrize("new", [False, True])
def test_tensors_in_lists_have_their_number_as_a_name(tmp_path: Path, new: bool) -> None:
    a, b, c = torch.ones(2), torch.arange(3), torch.zeros(1, 2)
    content = {"layers": [{"w": a, "n": 3}, (b, "text")], "last": {"c": [[c]]}, "none": []}
    save(content, tmp_path / "w.pt", new=new)
    assert_same(
        read_weights(tmp_path / "w.pt"), {"layers.0.w": a, "layers.1.0": b, "last.c.0.0": c}
    )
    save([a, b], tmp_path / "w.pt", new=new)
    assert_same(read_weights(tmp_path / "w.pt"), {"0": a, "1": b})


class Stored:
    """A storage in the words of old files; `view` is (its key, first element, count) or None."""

    def __init__(self, key: str, count: int, view: tuple[str, int, int] | None = None) -> None:
        self.words = ("storage", torch.FloatStorage, key, "cpu", count, view)


class Window:
    def __init__(self, stored: Stored, *layout: Any) -> None:
        self.layout = (stored, *layout)

    def __reduce__(self) -> Any:
        return torch._utils._rebuild_tensor, self.layout


class Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.words if isinstance(value, Stored) else None


def written(root: Any, keys: list[str], storages: list[np.ndarray]) -> bytes:
    """A file as PyTorch before 1.6 wrote it, from its description."""
    file = io.BytesIO()
    for part in (MAGIC, 1001, {"little_endian": True}, root, keys):
        Pickler(file, 2).dump(part)
    for values in storages:
        file.write(len(values).to_bytes(8, "little") + values.astype("<f4").tobytes())
    return file.getvalue()


def test_views_of_storages_begin_where_they_say(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    inner = Stored("k", 9, ("v", 3, 5))
    root = {"a": Window(Stored("k", 9), 1, (2, 2), (4, 1)), "b": Window(inner, 1, (2,), (2,))}
    path.write_bytes(written(root, ["k"], [np.arange(9)]))
    assert_same(read_weights(path), torch.load(path))
    assert read_weights(path)["b"].tolist() == [4, 6]


def as_python_2(data: bytes) -> bytes:
    """Pickles in a row with the byte strings that Python 2 wrote."""
    file, out, end = io.BytesIO(data), b"", 0
    for _ in range(5):
        ops = list(pickletools.genops(file))
        ends = [pos for _, _, pos in ops[1:]] + [file.tell()]
        for (op, value, pos), after in zip(ops, ends, strict=True):
            text = value.encode() if op.name == "BINUNICODE" else b""
            out += b"U" + bytes([len(text)]) + text if text else data[pos:after]
        end = file.tell()
    return out + data[end:]


def test_files_of_python_2(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    content = {"a": torch.randn(2, 3), "b": {"c": torch.arange(4)}}
    save(content, path)
    path.write_bytes(as_python_2(path.read_bytes()))
    assert_same(read_weights(path), {"a": content["a"], "b.c": content["b"]["c"]})
    pairs = [["x", Window(Stored("k", 2), 0, (2,), (1,))]]  # how its OrderedDict was written

    class Ordered:
        def __reduce__(self) -> Any:
            return collections.OrderedDict, (pairs,)

    path.write_bytes(written(Ordered(), ["k"], [np.ones(2)]))
    assert_same(read_weights(path), torch.load(path))
    path.write_bytes(GOOD.replace(b"K\x04", b"I4\n"))
    assert_same(read_weights(path), torch.load(path, weights_only=False))


def network() -> Any:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(2, 3, 3, bias=False),
        torch.nn.BatchNorm2d(3),
        torch.nn.ModuleDict({"rnn": torch.nn.LSTM(2, 3, bidirectional=True)}),
        torch.nn.TransformerEncoderLayer(4, 2, activation=torch.nn.functional.gelu),
        torch.nn.Linear(4, 4),
        torch.nn.Linear(4, 4),
    )
    net[5].weight = net[4].weight
    net.register_buffer("scratch", torch.ones(5), persistent=False)
    net.register_buffer("kept", torch.ones(5))
    net.device, net.free = torch.device("cpu"), torch.ones(3)
    return net


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("protocol", [2, 4])
def test_whole_modules_give_their_state_dict(tmp_path: Path, new: bool, protocol: int) -> None:
    net, path = network(), tmp_path / "w.pth"
    save(net, path, protocol, new)
    assert_same(read_weights(path), net.state_dict())
    args = argparse.Namespace(lr=1, dtype=torch.half, best=np.float32(0.5))
    save({"args": args, "best": np.float64(3), "net": net}, path, protocol, new)
    assert_same(read_weights(path), {f"net.{k}": v for k, v in net.state_dict().items()})
    save(argparse.Namespace(lr=1), path, protocol, new)
    with pytest.raises(ValueError, match="holds an object of argparse.Namespace, wanted a dict"):
        read_weights(path)


def test_modules_of_old_versions_name_what_computed_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thnn = types.ModuleType("torch.nn.backends.thnn")
    monkeypatch.setitem(sys.modules, "torch.nn.backends", types.ModuleType("torch.nn.backends"))
    monkeypatch.setitem(sys.modules, "torch.nn.backends.thnn", thnn)

    class Backend:
        def __reduce__(self) -> Any:
            return thnn._get_thnn_function_backend, ()

    def _get_thnn_function_backend() -> None: ...

    _get_thnn_function_backend.__module__ = thnn.__name__
    _get_thnn_function_backend.__qualname__ = "_get_thnn_function_backend"
    thnn._get_thnn_function_backend = _get_thnn_function_backend  # type: ignore[attr-defined]
    net = torch.nn.Sequential(torch.nn.Linear(2, 3))
    net._backend = Backend()
    save(net, tmp_path / "w.pt")
    assert_same(read_weights(tmp_path / "w.pt"), net.state_dict())


def tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("storages"))
    return file.getvalue()


class Attack:
    def __reduce__(self) -> Any:
        return eval, ("open('attacked', 'w')",)


ONE = {"a": Window(Stored("k", 4), 0, (4,), (1,))}
GOOD = written(ONE, ["k"], [np.arange(4)])
TWO = {**ONE, "b": Window(Stored("k", 5), 0, (4,), (1,))}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (tar(), "a tar archive, as PyTorch before 0.1.10 wrote: load and save it with a newer Py"),
        (b"no pickle", "neither a zip archive, as PyTorch 1.6 and later write, nor the row of pi"),
        (pickle.dumps({}), "neither a zip archive, as PyTorch 1.6 and later write, nor the row"),
        (pickle.dumps(Attack(), 2), "it calls __builtin__.eval, which is no part of a tensor"),
        (written({"a": Attack()}, [], []), "it calls __builtin__.eval, which is no part of a t"),
        (GOOD.replace(b"M\xe9\x03", b"M\xea\x03"), "the version is 1002, wanted 1001"),
        (written(ONE, ["k", "l"], [np.arange(4)] * 2), "the type of the storage 'l' is unknown"),
        (written(ONE, [], []), "'a': the file has no storage 'k'"),
        (written([ONE], ["k"], []), "the storage 'k' of 4 elements has 0, and 0 bytes are left"),
        (written(None, [], []), "it holds None, wanted a dict of tensors or a"),
        (written(ONE, 3, []), "the storages are 3, wanted a list of names"),
        (written(ONE, ["k"], [np.arange(3)]), "the storage 'k' of 4 elements has 3, and 12 bytes"),
        (written(TWO, ["k"], [np.arange(4)]), "the storage 'k' is described in two ways"),
        (b"\x80\x02I1x\n.", "'1x' is no integer"),
        (b"\x80\x02I" + b"9" * 2000, "the pickle ends too early"),
        (b"\x80\x02cos\nsystem\nK\x01\x85\x81.", r"an object of os.system\(1,\) is refused"),
    ],
)
def test_old_files_are_not_believed(
    tmp_path: Path, data: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "w.pt"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}: .*{message}"):
        read_weights(path)
    assert not (tmp_path / "attacked").exists()


def test_damaged_old_files_load_or_give_a_value_error(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    save(network(), path)
    good, rng = path.read_bytes(), np.random.default_rng(7)
    cuts = [int(n) for n in rng.integers(1, len(good), 100)]
    for cut in cuts:
        path.write_bytes(good[:cut])
        with pytest.raises(ValueError, match=re.escape(str(path))):
            read_weights(path)
    pickles = read_pickles(memoryview(good), 5, "f")[2]
    for _ in range(300):
        bad = bytearray(good)
        for _ in range(int(rng.integers(1, 5))):
            bad[int(rng.integers(pickles))] = int(rng.integers(256))
        path.write_bytes(bytes(bad))
        try:
            read_weights(path)
        except ValueError as error:
            assert str(path) in str(error)


def test_sizes_that_an_old_file_claims_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    many = 2**40
    claims = written({"a": Window(Stored("k", many), 0, (many,), (1,))}, ["k"], [])
    path.write_bytes(claims + many.to_bytes(8, "little") + bytes(16))
    with pytest.raises(ValueError, match=f"of {many} elements has {many}, and 16 bytes are left"):
        read_weights(path)
