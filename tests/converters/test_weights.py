# SPDX-License-Identifier: Apache-2.0
"""Weights of other programs: what PyTorch, safetensors and numpy write, and what is refused."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.converters.weights import load_weights, read_weights
from nnl.converters.weights.safetensors import read_safetensors


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    kinds = ("f4", "f8", "f2", "i8", "i4", "u1", "?")
    found = {f"a.{k}": rng.integers(0, 2, (3, 4)).astype(k) for k in kinds}
    return {**found, "scalar": np.float32(2).reshape(()), "empty": np.empty((0, 3), np.float32)}


def header_file(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def test_npz_gives_what_numpy_wrote(tmp_path: Path) -> None:
    for save in (np.savez, np.savez_compressed):
        save(
            tmp_path / "w.npz", columns=np.asfortranarray(np.arange(6.0).reshape(2, 3)), **arrays()
        )
        got = read_weights(tmp_path / "w.npz")
        for k, v in arrays().items():
            assert got[k].dtype == v.dtype
            np.testing.assert_array_equal(got[k], v)
        np.testing.assert_array_equal(got["columns"], np.arange(6.0).reshape(2, 3))


def test_safetensors_gives_what_the_package_wrote(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    package = pytest.importorskip("safetensors.torch")
    given = {k: torch.tensor(v) for k, v in arrays().items()}
    given["half"] = torch.randn(5, 2).to(torch.bfloat16)
    package.save_file(given, tmp_path / "w.safetensors", {"format": "pt"})
    got = read_weights(tmp_path / "w.safetensors")
    assert set(got) == set(given) and got["half"].dtype == np.float32
    for k, v in given.items():
        want = v.float() if v.dtype == torch.bfloat16 else v
        np.testing.assert_array_equal(got[k], want.numpy())


@pytest.mark.parametrize("protocol", [2, 4])
def test_state_dicts_give_what_torch_saved(tmp_path: Path, protocol: int) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
    shared = torch.arange(24.0).reshape(4, 6)
    more = {"t": shared.T, "part": shared[1:3, ::2], "bf": torch.randn(3).to(torch.bfloat16)}
    content = {"model": net.state_dict(), "epoch": 3, "name": "a", "more": more, "lr": 0.5}
    content["parameter"] = torch.nn.Parameter(torch.ones(2))
    content["kinds"] = {k: torch.tensor(v) for k, v in arrays().items()}
    torch.save(content, tmp_path / "w.pt", pickle_protocol=protocol)
    got = read_weights(tmp_path / "w.pt")
    for k, v in net.state_dict().items():
        np.testing.assert_array_equal(got[f"model.{k}"], v.numpy())
    for k in ("t", "part"):
        np.testing.assert_array_equal(got[f"more.{k}"], more[k].numpy())
    np.testing.assert_array_equal(got["more.bf"], more["bf"].float().numpy())
    np.testing.assert_array_equal(got["parameter"], np.ones(2))
    for k, v in arrays().items():
        np.testing.assert_array_equal(got[f"kinds.{k}"], v)


def test_a_torch_model_runs_here_with_a_name_map(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(108, 5)
    )
    torch.save(net.state_dict(), tmp_path / "w.pt")
    x = nn.Variable((2, 1, 8, 8))
    y = PF.affine(F.relu(PF.convolution(x, 3, (3, 3), name="c")), 5, name="f")
    names = {
        "0.weight": "c/conv/W",
        "0.bias": "c/conv/b",
        "3.weight": ("f/affine/W", np.transpose),
        "3.bias": "f/affine/b",
    }
    assert load_weights(tmp_path / "w.pt", names, only_known=True) == list(nn.get_parameters())
    x.d = np.random.default_rng(1).normal(size=x.shape)
    y.forward()
    want = net(torch.tensor(x.d).float()).detach().numpy()
    np.testing.assert_allclose(y.d, want, rtol=1e-4, atol=1e-5)


def test_names_of_the_file_become_scopes(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", **{"a.b": np.ones(2), "c": np.zeros(3)})
    assert load_weights(tmp_path / "w.npz") == ["a/b", "c"]
    assert nn.get_parameters()["a/b"].d.tolist() == [1, 1]
    assert load_weights(tmp_path / "w.npz", lambda n: None if n == "c" else "x/" + n) == ["x/a.b"]


def test_weights_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", a=np.ones(2), b=np.ones(3))
    PF.affine(nn.Variable((1, 2)), 3, name="k")
    nn.parameter.get_parameter_or_create("b", (4,))
    before = list(nn.get_parameters())
    for kwargs, message in (
        ({}, r"'b' has the shape \(3,\), the parameter 'b' \(4,\)"),
        ({"names": {"a": "a"}}, "'b': names has no entry for it: give None to leave it out"),
        ({"names": lambda n: "same"}, "'b': another array is called 'same' as well"),
        ({"names": {"a": "u", "b": "v"}, "only_known": True}, "there is no parameter 'u'"),
        ({"names": {"a": "u", "b": "u/v"}}, "'u/v' is no name, or another one's scope"),
    ):
        with pytest.raises(ValueError, match=message):
            load_weights(tmp_path / "w.npz", **kwargs)
        assert list(nn.get_parameters()) == before
    with pytest.raises(ValueError, match="w.bin has the extension '.bin', wanted one of .safete"):
        read_weights(tmp_path / "w.bin")


PARTS = {n: np.random.default_rng(i).normal(size=(3, 4)).astype("f") for i, n in enumerate("qkv")}


def test_several_arrays_go_into_one_parameter_and_one_into_several(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    np.savez(path, **PARTS, all=np.arange(24.0).reshape(6, 4))
    names = {
        ("q", "k", "v"): ("joined/W", lambda arrays: np.concatenate(arrays).T),
        ("v", "q"): ("stacked", np.stack),  # an array may have several places
        ("x", "y"): ("not/there", np.stack),
        "all": ["whole", "again", ("first", lambda a: a[:2]), ("rest", lambda a: a[1:].T)],
    }
    found = ["joined/W", "stacked", "whole", "again", "first", "rest"]
    assert load_weights(path, names) == found
    p = {n: nn.get_parameters()[n].d for n in found}
    want = np.concatenate([PARTS["q"], PARTS["k"], PARTS["v"]]).T
    np.testing.assert_array_equal(p["joined/W"], want)
    np.testing.assert_array_equal(p["stacked"][1], PARTS["q"])
    np.testing.assert_array_equal(p["rest"], np.arange(24.0).reshape(6, 4)[1:].T)
    p["whole"][:] = -1
    assert p["again"][1, 0] == p["first"][1, 0] == p["rest"][0, 0] == 4
    load_weights(path, lambda n: ["a/" + n, "b/" + n] if n != "all" else None)
    assert list(nn.get_parameters())[6:] == ["a/q", "a/k", "a/v", "b/q", "b/k", "b/v"]


@pytest.mark.parametrize("kind", ["npz", "pt", "safetensors"])
def test_parameters_do_not_share_the_memory_of_a_file(tmp_path: Path, kind: str) -> None:
    path, size = tmp_path / f"w.{kind}", (64, 64)
    if kind == "pt":
        torch = pytest.importorskip("torch")
        a = torch.zeros(size)  # tied, as an embedding and the last layer of a language model
        torch.save({"a": a, "b": a, "c": a[32:]}, path)
    elif kind == "npz":
        np.savez(path, a=np.zeros(size, np.float32))
    else:
        entry = {"dtype": "F32", "shape": size, "data_offsets": [0, 4 * 64 * 64]}
        path.write_bytes(header_file({"a": entry}, bytes(4 * 64 * 64)))
    names = {"a": ["a", "b", ("c", lambda v: v[32:])]}
    load_weights(path, None if kind == "pt" else names)
    nn.get_parameters()["a"].d[:] = 1
    assert not nn.get_parameters()["b"].d.any() and not nn.get_parameters()["c"].d.any()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({("q", "k", "v"): "W"}, "'q', 'k', 'v': 3 arrays go into 'W': give a pair of it and a fu"),
        ({("q", "k"): ("W", np.stack)}, "'v': names has no entry for it"),
        ({("q", "k", "v", "w"): ("W", np.stack)}, "'q', 'k', 'v', 'w': there is no array 'w'"),
        (
            {("q", "k", "v"): ("known", np.stack)},
            r"'q', 'k', 'v' of \(3, 4\), \(3, 4\), \(3, 4\) becomes \(3, 3, 4\), the parameter "
            r"'known' \(4, 9\)",
        ),
        (
            {"q": None, "k": None, "v": ("W", lambda a: a.reshape(5))},
            r"'v' of \(3, 4\): the function for 'W' fails: cannot reshape",
        ),
        ({"q": None, "k": None, "v": ["W", "W"]}, "'v': another array is called 'W' as well"),
        (
            {"q": ["a", ("known", np.transpose)], "k": None, "v": None},
            r"'q' of .*\(4, 3\), the para",
        ),
    ],
)
def test_what_cannot_be_taken_apart_or_together_changes_nothing(
    tmp_path: Path, names: dict, message: str
) -> None:
    np.savez(tmp_path / "w.npz", **PARTS)
    nn.parameter.get_parameter_or_create("known", (4, 9))
    with pytest.raises(ValueError, match=f"load_weights: .*w.npz: {message}"):
        load_weights(tmp_path / "w.npz", names)
    assert list(nn.get_parameters()) == ["known"]


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"1234", "f: 4 bytes are no safetensors file"),
        ((10**6).to_bytes(8, "little") + b"{}", "the header claims 1000000 bytes, the file has 2"),
        (header_file(b"{"), "f: the header is no JSON"),
        (header_file(b"[" * 100_000), "f: the header is no JSON"),
        (header_file([1]), "f: the header is no JSON object"),
        (header_file(b'{"a": 1, "a": 2}'), "the name 'a' is there twice"),
        (header_file({"a": 1}), "'a': wanted dtype, shape and data_offsets, got 1"),
        (header_file({"a": {**F32, "dtype": "F8"}}, bytes(8)), "'a': the dtype 'F8' is not"),
        (header_file({"a": {**F32, "shape": [-2]}}, bytes(8)), r"'a': its shape is \[-2\]"),
        (header_file({"a": {**F32, "shape": [2**40, 2**40]}}, bytes(8)), "no shape of an array"),
        (header_file({"a": F32}, bytes(4)), "'a': bytes 0 to 8 are not in the 4 bytes"),
        (header_file({"a": F32, "b": F32}, bytes(8)), "'b' begins at byte 0, wanted 8"),
        (header_file({"a": F32}, bytes(12)), "4 bytes behind the last array belong to none"),
    ],
)
def test_lying_safetensors_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_safetensors(np.frombuffer(data, np.uint8), "f")


class Attack:
    def __reduce__(self) -> tuple:
        return eval, ("open('attacked', 'w')",)


def torch_file(path: Path, pickled: bytes, **storages: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w/data.pkl", pickled)
        for key, data in storages.items():
            archive.writestr(f"w/data/{key}", data)
    return path


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (pickle.dumps(Attack(), 2), "data.pkl: it calls __builtin__.eval, which is no part of a t"),
        (pickle.dumps(Attack(), 4), "data.pkl: it calls builtins.eval"),
        (b"ios\nsystem\n.", r"the instruction b'i' at byte 0 is refused"),
        (b"\x80\x02}q\x00.", "no tensor"),
        (b"\x80\x02", "the pickle ends too early"),
        (b"ctorch\nload\n.", "it holds torch.load, wanted a dict of tensors or a module"),
        (b"h\x07.", "damaged: the instruction before byte 2 does not fit"),
        (b"u.", "a mark is missing"),
        (b"X\xff\xff\xff\x7f.", "the pickle ends too early"),
        (b"(K\x01K\x02tQ.", r"\(1, 2\) is no storage"),
        (b"ccollections\nOrderedDict\n(K\x01tR.", r"a call of OrderedDict\(1,\) is refused"),
    ],
)
def test_pickles_that_are_more_than_tensors_are_refused(
    tmp_path: Path, pickled: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = torch_file(tmp_path / "w.pt", pickled)
    if message == "no tensor":
        assert read_weights(path) == {}
        return
    with pytest.raises(ValueError, match=message):
        read_weights(path)
    assert not (tmp_path / "attacked").exists()


def tensor_pickle(size: int = 4, offset: int = 0, shape: int = 4, stride: int = 1) -> bytes:
    def n(v: int) -> bytes:
        return b"J" + v.to_bytes(4, "little", signed=True)

    storage = (
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000N" + n(size) + b"tQ"
    )
    body = b"(" + storage + n(offset) + n(shape) + b"\x85" + n(stride) + b"\x85\x89Ntt"
    return b"\x80\x02}X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n" + body[:-1] + b"Rs."


def test_tensors_stay_inside_their_storage(tmp_path: Path) -> None:
    data = np.arange(4, dtype=np.float32).tobytes()
    path = torch_file(tmp_path / "w.pt", tensor_pickle(), **{"0": data})
    assert read_weights(path)["a"].tolist() == [0, 1, 2, 3]
    for kwargs, message in (
        ({"offset": 1}, "element 4 of a storage with 4 elements"),
        ({"stride": 2}, "element 6 of a storage with 4 elements"),
        ({"shape": 2**30, "stride": 0}, "1073741824 elements out of a storage with 4"),
        ({"size": 2**30}, "16 bytes do not fit f4"),
        ({"stride": -1}, "damaged: -1 is no size"),
    ):
        path = torch_file(tmp_path / "w.pt", tensor_pickle(**kwargs), **{"0": data})
        with pytest.raises(ValueError, match=message):
            read_weights(path)
    with pytest.raises(ValueError, match="the file has no storage '0'"):
        read_weights(torch_file(tmp_path / "w.pt", tensor_pickle()))


def test_objects_in_npz_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", a=np.array([{}], object))
    with pytest.raises(ValueError, match="'a.npy': its dtype is object, wanted numbers"):
        read_weights(tmp_path / "w.npz")


def good_files(folder: Path) -> Iterator[Path]:
    np.savez(folder / "w.npz", **arrays())
    yield folder / "w.npz"
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    (folder / "w.safetensors").write_bytes(header_file({"a": entry}, bytes(24)))
    yield folder / "w.safetensors"
    yield torch_file(folder / "w.pt", tensor_pickle(), **{"0": bytes(16)})


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_mutated_files_load_or_give_a_value_error(tmp_path: Path, kind: int) -> None:
    path = list(good_files(tmp_path))[kind]
    good = path.read_bytes()
    rng = np.random.default_rng(kind)
    for _ in range(200):
        bad = bytearray(good)
        for _ in range(int(rng.integers(1, 5))):
            bad[int(rng.integers(len(bad)))] = int(rng.integers(256))
        if rng.random() < 0.3:
            del bad[int(rng.integers(len(bad))) :]
        path.write_bytes(bytes(bad))
        try:
            read_weights(path)
        except ValueError as error:
            assert str(path) in str(error)


def test_a_mutated_pickle_gives_a_value_error(tmp_path: Path) -> None:
    good = tensor_pickle()
    rng = np.random.default_rng(5)
    for _ in range(300):
        bad = bytearray(good)
        bad[int(rng.integers(len(bad)))] = int(rng.integers(256))
        path = torch_file(tmp_path / "w.pt", bytes(bad), **{"0": bytes(16)})
        try:
            read_weights(path)
        except ValueError as error:
            assert str(path) in str(error)


def test_memory_of_an_open_file_is_not_shared() -> None:
    file = io.BytesIO()
    np.savez(file, a=np.ones(2))
    from nnl.converters.weights.npz import read_npz

    one, two = read_npz(file, "f"), read_npz(file, "f")
    one["a"][:] = 5
    assert two["a"].tolist() == [1, 1]
