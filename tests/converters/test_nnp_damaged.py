# SPDX-License-Identifier: Apache-2.0
"""Hostile, damaged and mutated files: a ValueError, and nothing is changed."""

from __future__ import annotations

import copy
import io
import re
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

import nnl as nn
from nnl.converters.nnp import building, members
from nnl.converters.nnp.messages import messages, parse
from nnl.converters.nnp.parameter_files import set_parameter_from_proto
from nnl.converters.weights import read_weights
from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import OPS
from nnl.ext.native import library
from nnl.utils.load import load
from nnl.utils.save import save
from tests.converters.test_nnp_functions import graph
from tests.converters.test_nnp_reader import saved


def archive_of(**members: bytes) -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in members.items():
            out.writestr(name, content)
    return io.BytesIO(file.getvalue())


def test_hostile_archives_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"the member '../a.nntxt' points outside the archive"):
        load(archive_of(**{"../a.nntxt": b""}), extension=".nnp")
    with pytest.raises(ValueError, match="file: not a .nnp archive"):
        load(io.BytesIO(b"PK no"), extension=".nnp")
    monkeypatch.setattr(members, "SUSPICIOUS", 1000)
    with pytest.raises(ValueError, match="'a.h5' claims 1000000 bytes out of"):
        load(archive_of(**{"a.h5": bytes(1000000)}), extension=".nnp")
    assert building.MAX_ELEMENTS < members.SUSPICIOUS**4  # both bounds are finite


def test_hdf5_files_do_not_read_other_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(range(64)))
    with h5py.File(tmp_path / "other.h5", "w") as out:
        out["w"] = np.ones(4, np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as out:
        out.create_dataset("w", (4,), np.float32, external=[(str(tmp_path / "secret"), 0, 16)])
    with pytest.raises(ValueError, match="'w': its numbers lie in another file"):
        nn.load_parameters(tmp_path / "a.h5")
    layout = h5py.VirtualLayout((4,), np.float32)
    layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "w", (4,))
    with h5py.File(tmp_path / "b.h5", "w") as out:
        out.create_virtual_dataset("w", layout)
    with pytest.raises(ValueError, match="'w': its numbers lie in another file"):
        nn.load_parameters(tmp_path / "b.h5")
    with h5py.File(tmp_path / "c.h5", "w") as out:
        out["w"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/w")
    nn.load_parameters(tmp_path / "c.h5")
    assert nn.get_parameters(grad_only=False) == {}


def test_states_do_not_come_from_other_files(tmp_path: Path) -> None:
    solver = saved(tmp_path / "a.nnp")["solver"]
    with h5py.File(tmp_path / "other.h5", "w") as out:
        out["t"] = 1
        out["mean"] = np.ones(4, np.float32)
    with h5py.File(tmp_path / "s.h5", "w") as out:
        out["c/affine/W/t"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/t")
        out["c/affine/W/mean"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/mean")
    solver.load_states(tmp_path / "s.h5")  # it has no states of its own
    assert all((s.pstate["mean"].d != 1).any() for s in solver.get_states().values())


def test_hdf5_arrays_that_are_larger_than_the_file_are_refused() -> None:
    file = io.BytesIO()
    with h5py.File(file, "w") as out:
        out.create_dataset("w", shape=(10**12,), dtype=np.float32, chunks=(1000,))
    with pytest.raises(ValueError, match="'w' is no array of numbers, or larger than the file"):
        load(io.BytesIO(file.getvalue()), extension=".h5")
    file = io.BytesIO()
    with h5py.File(file, "w") as out:
        out["w"] = "text"
    with pytest.raises(ValueError, match="'w' is no array of numbers"):
        load(io.BytesIO(file.getvalue()), extension=".h5")


def test_broken_files_of_states_are_value_errors(tmp_path: Path) -> None:
    v = saved(tmp_path / "a.nnp")
    path = tmp_path / "s.h5"
    v["solver"].save_states(path)
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(ValueError, match="Adam.load_states: .*s.h5: not an HDF5 file of states"):
        v["solver"].load_states(path)
    path.write_bytes(good.replace(b"affine", b"aff\xffne"))
    with pytest.raises(ValueError, match="Adam.load_states: .*s.h5: not an HDF5 file of states"):
        v["solver"].load_states(path)
    with h5py.File(path, "w") as out:
        out["c/affine/W/t"] = 1
        out.create_dataset("c/affine/W/mean", (10**12,), np.float32, chunks=(1000,))
    with pytest.raises(ValueError, match="'c/affine/W': mean is no array of numbers, or larger"):
        v["solver"].load_states(path)


def test_damaged_weights_in_an_archive_are_found(tmp_path: Path) -> None:
    saved(tmp_path / "a.nnp")
    nn.clear_parameters()
    data = bytearray((tmp_path / "a.nnp").read_bytes())
    at = data.index(b"network.nntxt") + 200
    data[at] ^= 1
    with pytest.raises(ValueError, match=r"the member 'network.nntxt' is damaged \(CRC-32\)"):
        load(io.BytesIO(bytes(data)), extension=".nnp")


def test_solver_states_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "a.protobuf")
    proto = parse("NNablaProtoBuf", (tmp_path / "a.protobuf").read_bytes(), False, "test")
    proto.optimizer[0].solver.states["c/affine/W"].state_parameter["mean"].data.append(0)
    nn.clear_parameters()
    with pytest.raises(ValueError, match="optimizer 'o': .*mean of 'c/affine/W' has 25 values"):
        load(io.BytesIO(proto.SerializeToString()), extension=".protobuf")
    assert nn.get_parameters(grad_only=False) == {}


def stored_archive(name: str, content: bytes) -> bytearray:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as out:
        out.writestr(name, content)
    return bytearray(file.getvalue())


def test_stored_members_that_claim_more_than_the_file_are_refused() -> None:
    data = stored_archive("a.nntxt", b"# nothing here")
    directory = data.index(b"PK\1\2")
    for field in (20, 24):  # both sizes, so that they agree
        data[directory + field : directory + field + 4] = (10**6).to_bytes(4, "little")
    with pytest.raises(ValueError, match="'a.nntxt' claims 1000000 bytes, more than there are"):
        load(io.BytesIO(bytes(data)), extension=".nnp")
    data = stored_archive("a.nntxt", b"# nothing here")
    data[0:4] = b"PK\5\5"
    with pytest.raises(ValueError, match="'a.nntxt' does not begin where it should"):
        load(io.BytesIO(bytes(data)), extension=".nnp")


def test_many_members_do_not_add_up_to_a_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "SUSPICIOUS", 3000)
    monkeypatch.setattr(members, "MAX_RATIO", 50)
    with pytest.raises(ValueError, match="the members claim 5000 bytes out of"):
        load(archive_of(**{f"{i}.nntxt": bytes(1000) for i in range(5)}), extension=".nnp")


@pytest.mark.parametrize("kind", ["nntxt", "npz"])
def test_members_that_share_bytes_are_refused(kind: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(path := tmp_path / f"a.{kind}", "w") as out:
        out.writestr("0.nntxt", b"#" * 1000)
        first = out.filelist[0]
        for i in range(1, 50):
            again = copy.copy(first)
            again.filename = again.orig_filename = f"{i}.nntxt"
            out.filelist.append(again)
            out.NameToInfo[again.filename] = again
    with pytest.raises(ValueError, match="the members take 50000 bytes of a file of"):
        read_weights(path) if kind == "npz" else load(path.open("rb"), extension=".nnp")


def test_members_need_names_and_places() -> None:
    data = stored_archive("a", b"")
    for at in (26, data.index(b"PK\1\2") + 28):
        data[at] = 0  # the length of its name
    directory = data.index(b"PK\1\2")
    data = data[:30] + data[31 : directory + 46] + data[directory + 47 :]
    end = data.index(b"PK\5\6")
    data[end + 12] -= 1
    data[end + 16] -= 1
    with pytest.raises(ValueError, match="a member has no name"):
        load(io.BytesIO(bytes(data)), extension=".nnp")


def test_parameters_are_registered_all_or_none() -> None:
    proto = messages()["NNablaProtoBuf"]()
    for name in ("a", "/"):
        proto.parameter.add(variable_name=name, data=[1]).shape.dim.append(1)
    for read in (
        lambda: nn.load_parameters(io.BytesIO(proto.SerializeToString()), extension=".protobuf"),
        lambda: set_parameter_from_proto(proto),
    ):
        with pytest.raises(ValueError, match="wanted a name"):
            read()
        assert nn.get_parameters(grad_only=False) == {}


def test_two_names_of_one_parameter_are_refused() -> None:
    proto = messages()["NNablaProtoBuf"]()
    for name in ("a/b", "a//b"):
        proto.parameter.add(variable_name=name, data=[1]).shape.dim.append(1)
    with pytest.raises(ValueError, match="load: file: two parameters have names that differ in"):
        load(io.BytesIO(proto.SerializeToString()), extension=".protobuf")
    assert nn.get_parameters(grad_only=False) == {}


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


PARAMETER = varint(200 << 3 | 2)
NAMED_W = b"\x0a\x01w"  # variable_name


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (PARAMETER + varint(50) + NAMED_W, "field 200 at byte 0 has 50 bytes, its message ends at"),
        (PARAMETER + b"\xff" * 12, "a number at byte 0 does not end"),
        (b"\x0b", "wire type 3 at byte 0"),
        (b"\x02\x00", "field number 0 at byte 0"),
        (PARAMETER + varint(6) + varint(100 << 3 | 2) + b"\x03abc", "Error parsing message"),
    ],
)
def test_binary_parameters_that_lie_are_refused(data: bytes, message: str) -> None:
    if library() is None:
        message = "Error parsing message"
    with pytest.raises(ValueError, match=f"load: file: no NNablaProtoBuf message: {message}"):
        load(io.BytesIO(data), extension=".protobuf")
    assert nn.get_parameters(grad_only=False) == {}


@pytest.mark.parametrize("there", [0, 3, 1001])
def test_numbers_that_do_not_fit_their_shape_are_refused(there: int) -> None:
    proto = messages()["NNablaProtoBuf"]()
    proto.parameter.add(variable_name="w", data=[1] * there).shape.dim.append(1000)
    with pytest.raises(ShapeError, match=rf"'w' has {there} values for the shape \(1000,\)"):
        load(io.BytesIO(proto.SerializeToString()), extension=".protobuf")
    assert nn.get_parameters(grad_only=False) == {}


def test_a_run_that_is_no_whole_number_of_numbers_is_refused() -> None:
    run = varint(100 << 3 | 2) + varint(1001) + bytes(1001)
    with pytest.raises(ValueError, match="load: file: (a parameter has 1001 bytes|no NNablaProto)"):
        load(io.BytesIO(PARAMETER + varint(len(run)) + run), extension=".protobuf")


def test_numbers_may_be_packed_or_not_and_split() -> None:
    one = np.float32([1]).tobytes()
    two = np.float32([2, 3]).tobytes()
    shape = b"\xa2\x01\x03\x0a\x01\x03"  # dim: 3
    body = NAMED_W + shape + varint(100 << 3 | 5) + one + varint(100 << 3 | 2) + b"\x08" + two
    data = PARAMETER + varint(len(body)) + body
    want = parse("NNablaProtoBuf", data, False, "t").parameter[0]
    load(io.BytesIO(data), extension=".protobuf")
    assert nn.get_parameters(grad_only=False)["w"].d.tolist() == list(want.data) == [1, 2, 3]


def test_two_parameters_never_share_memory(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "p.h5", "w") as out:
        out["a"] = np.ones(4, np.float32)
        out["b"] = out["a"]  # a hard link: the same numbers under two names
    nn.load_parameters(tmp_path / "p.h5")
    got = nn.get_parameters(grad_only=False)
    got["a"].d[...] = 5
    assert got.get("b") is None or (got["b"].d == 1).all()


TYPED = [op for op in OPS.values() if op.nnp and hasattr(op.attrs_class, "samples")]
LIES = ("0", "-1", "-7", "1000000000", "9223372036854775807")


def test_numbers_that_lie_in_any_function_load_or_give_a_value_error() -> None:
    rng = np.random.default_rng(3)
    tried = 0
    for op in TYPED:
        inputs, outputs = graph(op, 0)
        file = io.BytesIO()
        contents = {"networks": [{"name": "n", "batch_size": 1, "names": inputs}]}
        contents["networks"][0]["outputs"] = outputs
        save(file, contents, variable_batch_size=False, extension=".nntxt")
        text = file.getvalue().decode()
        numbers = [m.span() for m in re.finditer(r"(?<=: )-?\d+(\.\d+)?(?=\n)", text)]
        for begin, end in rng.permutation(numbers)[:2]:
            bad = text[:begin] + str(rng.choice(LIES)) + text[end:]
            nn.clear_parameters()
            tried += 1
            try:
                load(io.BytesIO(bad.encode()))
            except ValueError as error:
                assert "file: " in str(error)
    assert tried > 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "kernel { dim: 1000000000 } stride { dim: 1 } pad { dim: 0 }",
            r"'f' \(MaxPooling\): max_pooling: kernel is \(1000000000,\), more than 262144 cannot",
        ),
        (
            "kernel { dim: 2 } stride { dim: 1 } pad { dim: 0 }",
            "max_pooling: an input has the size 1000000000, wanted at most 4194304 along an axis",
        ),
    ],
)
def test_work_that_would_not_end_is_refused(text: str, message: str) -> None:
    whole = (
        'network { name: "n" batch_size: 1\n'
        'variable { name: "x" type: "Buffer" shape { dim: 1 dim: 1000000000 } }\n'
        'variable { name: "y" type: "Buffer" shape { dim: 1 dim: 1 } }\n'
        'function { name: "f" type: "MaxPooling" input: "x" output: "y" '
        f"max_pooling_param {{ {text} }} }} }}"
    )
    with pytest.raises(ValueError, match=message):
        load(io.BytesIO(whole.encode()))
