# SPDX-License-Identifier: Apache-2.0
"""Parameters in .h5, .protobuf and .nntxt files and in .nnp archives."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import nnl as nn
from nnl.converters.nnp.messages import messages
from nnl.converters.nnp.parameter_files import (
    load_parameters,
    save_parameters,
    set_parameter_from_proto,
)
from nnl.core.parameters.parameter import get_parameter_or_create

FORMATS = ["h5", "protobuf"]


def create() -> dict[str, np.ndarray]:
    """Registered parameters of several ranks, in an order that is not alphabetical."""
    rng = np.random.default_rng(0)
    values = {
        "conv1/conv/W": rng.normal(size=(2, 3, 1)).astype(np.float32),
        "bn/mean": rng.normal(size=(1, 2)).astype(np.float32),
        "a": np.array(0.25, np.float32),
        "empty": np.zeros((0, 3), np.float32),
    }
    for name, value in values.items():
        get_parameter_or_create(name, initializer=value, need_grad=name != "bn/mean")
    return values


def check(values: dict[str, np.ndarray]) -> None:
    got = nn.get_parameters(grad_only=False)
    assert set(got) == set(values)
    for name, v in got.items():
        assert v.d.dtype == np.float32 and v.d.shape == values[name].shape
        np.testing.assert_array_equal(v.d, values[name])
        assert v.need_grad == (name != "bn/mean")


@pytest.mark.parametrize("extension", FORMATS)
def test_what_is_saved_is_loaded(tmp_path: Path, extension: str) -> None:
    values, path = create(), tmp_path / f"p.{extension}"
    save_parameters(path)
    nn.clear_parameters()
    load_parameters(path)
    check(values)
    for v in nn.get_parameters(grad_only=False).values():
        v.d = np.full(v.shape, 9.0)
    load_parameters(str(path))
    check(values)


@pytest.mark.parametrize("extension", FORMATS)
def test_file_objects_work_like_paths(extension: str) -> None:
    values, file = create(), io.BytesIO()
    save_parameters(file, extension=f".{extension}")
    nn.clear_parameters()
    load_parameters(io.BytesIO(file.getvalue()), extension=f".{extension}")
    check(values)


def test_the_h5_layout_is_one_dataset_per_name_with_index_and_need_grad(tmp_path: Path) -> None:
    create()
    save_parameters(tmp_path / "p.h5")
    with h5py.File(tmp_path / "p.h5") as file:
        for i, name in enumerate(["conv1/conv/W", "bn/mean", "a", "empty"]):
            assert dict(file[name].attrs) == {"index": i, "need_grad": name != "bn/mean"}


def test_h5_keeps_dtypes(tmp_path: Path) -> None:
    for t in ("float64", "float16", "int32"):
        get_parameter_or_create(t, initializer=np.ones(2, t), need_grad=t != "int32")
    save_parameters(tmp_path / "p.h5")
    nn.clear_parameters()
    load_parameters(tmp_path / "p.h5")
    found = nn.get_parameters(grad_only=False)
    assert {k: v.d.dtype.name for k, v in found.items()} == {
        t: t for t in ("float64", "float16", "int32")
    }


def test_order_in_the_file_is_the_order_of_saving(tmp_path: Path) -> None:
    values = create()
    save_parameters(tmp_path / "p.h5")
    nn.clear_parameters()
    load_parameters(tmp_path / "p.h5")
    assert list(nn.get_parameters(grad_only=False)) == list(values)


def test_names_are_relative_to_the_current_scope(tmp_path: Path) -> None:
    create()
    with nn.parameter_scope("conv1"):
        save_parameters(tmp_path / "p.h5")
    with nn.parameter_scope("copy"):
        load_parameters(tmp_path / "p.h5")
        assert list(nn.get_parameters()) == ["conv/W"]


def test_chosen_parameters_are_saved(tmp_path: Path) -> None:
    create()
    save_parameters(tmp_path / "p.protobuf", {"only": nn.Variable((2,))})
    nn.clear_parameters()
    load_parameters(tmp_path / "p.protobuf")
    assert {k: v.shape for k, v in nn.get_parameters(grad_only=False).items()} == {"only": (2,)}


@pytest.mark.parametrize("extension", FORMATS)
def test_a_shape_that_differs_is_named_and_nothing_changes(tmp_path: Path, extension: str) -> None:
    create()
    save_parameters(tmp_path / f"p.{extension}")
    nn.clear_parameters()
    first = get_parameter_or_create("conv1/conv/W", (2, 3, 1), need_grad=False)
    get_parameter_or_create("a", (4,))
    with pytest.raises(ValueError, match=r"load_parameters: 'a' has the shape \(\) in the file"):
        load_parameters(tmp_path / f"p.{extension}")
    assert list(nn.get_parameters(grad_only=False)) == ["conv1/conv/W", "a"]
    assert not first.d.any() and "conv1/conv/W" not in nn.get_parameters()


def test_proto_is_returned_where_it_is_asked_for(tmp_path: Path) -> None:
    create()
    save_parameters(tmp_path / "p.h5")
    assert load_parameters(tmp_path / "p.h5") is None
    proto = load_parameters(tmp_path / "p.h5", needs_proto=True)
    assert [p.variable_name for p in proto.parameter] == ["conv1/conv/W", "bn/mean", "a", "empty"]
    again = load_parameters(tmp_path / "p.h5", proto=proto)
    assert again is proto and len(proto.parameter) == 8
    nn.clear_parameters()
    set_parameter_from_proto(proto)
    assert len(nn.get_parameters(grad_only=False)) == 4


def test_the_message_that_is_returned_takes_no_longer_than_reading(tmp_path: Path) -> None:
    values = np.arange(3_000_000, dtype=np.float32)
    save_parameters(tmp_path / "p.protobuf", {"w": nn.Variable.from_numpy_array(values)})
    begin = time.process_time()
    message = load_parameters(tmp_path / "p.protobuf")
    taken = time.process_time() - begin
    begin = time.process_time()
    want = messages()["Parameter"](data=values)  # number by number
    assert taken < (time.process_time() - begin) / 2
    assert message.parameter[0].data == want.data
    assert (nn.get_parameters(grad_only=False)["w"].d == values).all()


TEXT = """
network { name: "net" function { type: "Affine" affine_param { base_axis: 1 } } }
parameter { variable_name: "w" shape { dim: 1 dim: 2 } data: 1.5 data: -2 need_grad: true }
"""


def test_text_is_read_and_the_rest_of_a_network_file_skipped(tmp_path: Path) -> None:
    path = tmp_path / "net.nntxt"
    path.write_text(TEXT)
    load_parameters(path)
    np.testing.assert_array_equal(nn.get_parameters()["w"].d, [[1.5, -2]])


@pytest.mark.parametrize("extension", FORMATS)
def test_parameters_are_read_out_of_an_archive(tmp_path: Path, extension: str) -> None:
    values = create()
    save_parameters(tmp_path / f"parameter.{extension}")
    with zipfile.ZipFile(tmp_path / "net.nnp", "w") as archive:
        archive.writestr("nnp_version.txt", "0.1\n")
        archive.writestr("network.nntxt", 'network { name: "net" }')
        archive.write(tmp_path / f"parameter.{extension}", f"parameter.{extension}")
    nn.clear_parameters()
    load_parameters(tmp_path / "net.nnp")
    check(values)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("p.h5", b"junk", "load_parameters: .*p.h5: not an HDF5 file"),
        ("p.protobuf", b"\xff\xff\xff", "p.protobuf: no NNablaProtoBuf message"),
        ("p.nntxt", b"parameter {", "p.nntxt: no NNablaProtoBuf message"),
        ("p.nnp", b"junk", "p.nnp: not a .nnp archive"),
        ("p.npz", b"junk", "path is '.*p.npz' with the extension '.npz', wanted .h5, .protobuf, "),
        (
            "q.nntxt",
            b'parameter { variable_name: "w" shape { dim: 3 } data: 1 }',
            r"'w' has 1 values for the shape \(3,\)",
        ),
        (
            "q.nntxt",
            b'parameter { variable_name: "w" shape { dim: -1 dim: -1 } data: 1 }',
            r"'w' has 1 values for the shape \(-1, -1\)",
        ),
    ],
)
def test_files_that_are_wrong_are_named(
    tmp_path: Path, name: str, content: bytes, text: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=text):
        load_parameters(path)
    assert nn.get_parameters(grad_only=False) == {}


def test_only_two_formats_are_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"save_parameters: path is .*, wanted .h5 or .protobuf"):
        save_parameters(tmp_path / "p.nnp")
    with pytest.raises(ValueError, match=r"save_parameters: path is 'a file' with the extension"):
        save_parameters(io.BytesIO())


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere.h5"):
        load_parameters(tmp_path / "nowhere.h5")


@pytest.mark.parametrize("extension", FORMATS)
def test_a_failed_save_leaves_the_old_file(
    tmp_path: Path, extension: str, monkeypatch: Any
) -> None:
    create()
    path = tmp_path / f"p.{extension}"
    save_parameters(path)
    old = path.read_bytes()

    class Broken(nn.Variable):
        @property
        def need_grad(self) -> bool:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        save_parameters(path, {"ok": nn.Variable((3,)), "broken": Broken((1,))})
    assert path.read_bytes() == old and os.listdir(tmp_path) == [path.name]


KILLED = """
import os, signal, sys, nnl as nn
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
nn.save_parameters(sys.argv[1], {"w": nn.Variable((3,))})
"""


def test_a_killed_save_leaves_the_old_file(tmp_path: Path) -> None:
    create()
    path = tmp_path / "p.h5"
    save_parameters(path)
    old = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED, path], cwd=Path(nn.__file__).parents[1])
    assert done.returncode == -signal.SIGKILL and path.read_bytes() == old


@pytest.mark.parametrize("extension", [".h5", ".protobuf"])
def test_a_file_in_memory_is_read_from_its_beginning(extension: str) -> None:
    values, file = create(), io.BytesIO()
    save_parameters(file, extension=extension)
    nn.clear_parameters()
    load_parameters(file, extension=extension)
    assert list(nn.get_parameters(grad_only=False)) == list(values)


def test_a_message_that_was_cut_anywhere_is_refused(tmp_path: Path) -> None:
    create()
    path = tmp_path / "p.protobuf"
    save_parameters(path)
    whole = path.read_bytes()
    nn.clear_parameters()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"load_parameters: .*p.protobuf"):
            load_parameters(path)
        assert nn.get_parameters(grad_only=False) == {}
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"p.protobuf is empty"):
        load_parameters(path)
    path.write_bytes(whole[:-40])  # in the last parameters
    with pytest.raises(ValueError, match=r"p.protobuf is damaged: \d+ bytes of \d+ are there"):
        load_parameters(path)


def test_no_parameters_are_a_file_too(tmp_path: Path) -> None:
    for extension in FORMATS:
        save_parameters(tmp_path / f"p.{extension}")
        load_parameters(tmp_path / f"p.{extension}")
    assert nn.get_parameters(grad_only=False) == {}
