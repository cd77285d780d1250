# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and folders of SavedModel, read back, and by TensorFlow where it is installed."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
from nnl.cli.main import main
from nnl.converters.formats import read_model
from nnl.converters.runtimes import tensorflow as worker_module
from nnl.converters.runtimes.tensorflow import TensorFlow, python_with_tensorflow
from nnl.converters.tensorflow import checkpoint, table
from nnl.converters.tensorflow.checkpoint import Checkpoint
from nnl.converters.tensorflow.messages import TensorFlowError, messages, proto_of, shape_proto
from nnl.converters.tensorflow.writing import writer
from nnl.data.crc32c import crc32c, masked
from tests.cli.test_convert import write_network
from tests.converters.tensorflow_graphs import FLOAT, Graph
from tests.converters.test_nnb import values
from tests.converters.test_tflite import built
from tests.graph.saved import normal

# ---- the parts ----


def test_checksums_are_those_of_rfc_3720() -> None:
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"123456789") == 0xE3069283
    data = np.random.default_rng(0).bytes(10_001)
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    assert crc32c(data) == register ^ 0xFFFFFFFF


def test_tables_keep_keys_and_values() -> None:
    entries = {f"key {i:05d}".encode(): bytes([i % 256]) * (i % 40) for i in range(2000)}
    assert table.read(table.write(entries)) == entries
    assert table.read(table.write({})) == {}


def with_block(rows: bytes) -> bytes:
    """A table of one block."""
    whole = bytearray(table.write({b"k": b"v"}))
    block = rows + struct.pack("<2I", 0, 1)
    out = block + b"\0" + struct.pack("<I", masked(block + b"\0"))
    index = b"\0\1\2k\0" + bytes([len(block)]) + struct.pack("<2I", 0, 1)
    top = len(out), len(index)
    out += index + b"\0" + struct.pack("<I", masked(index + b"\0"))
    return out + bytes([0, 0, *top]).ljust(40, b"\0") + bytes(whole[-8:])


def test_keys_continue_those_before() -> None:
    rows = b"\0\3\1abcx" + b"\2\1\1dy" + b"\3\2\0ef"
    assert table.read(with_block(rows)) == {b"abc": b"x", b"abd": b"y", b"abdef": b""}


def test_damaged_tables_are_refused() -> None:
    good = table.write({b"a": b"1", b"b": b"2"})
    for change, text in [
        (lambda d: d[:-1] + b"?", "no table of a checkpoint"),
        (lambda d: b"", "no table of a checkpoint"),
        (lambda d: d[:2] + b"!" + d[3:], "does not have its checksum"),
        (lambda d: d[:-48] + b"\xff" * 40 + d[-8:], "has no end"),
        (lambda d: d[:-48] + b"\xff\x7f" * 4 + d[-40:], "lies outside the file"),
    ]:
        with pytest.raises(TensorFlowError, match=text):
            table.read(change(good))  # type: ignore[no-untyped-call]
    with pytest.raises(TensorFlowError, match="longer than its block"):
        table.read(with_block(b"\1\1\0k"))


def test_checkpoints_hold_numbers_of_all_types(tmp_path: Path) -> None:
    arrays = {
        f"a/{t}": np.arange(6).reshape(2, 3).astype(t)
        for t in (
            "float32",
            "float64",
            "float16",
            "int8",
            "uint8",
            "int16",
            "int32",
            "int64",
            "bool",
        )
    }
    arrays["scalar"] = np.float32(2.5).reshape(())
    checkpoint.save(tmp_path / "c", arrays)
    found = Checkpoint(tmp_path / "c")
    assert found.names() == sorted(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found(name), array)
        assert found(name).dtype == array.dtype
    with pytest.raises(TensorFlowError, match=r"c.index: it has no tensor 'b'"):
        found("b")
    data = tmp_path / "c.data-00000-of-00001"
    data.write_bytes(bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:])
    with pytest.raises(TensorFlowError, match="'a/bool' does not have its checksum"):
        found("a/bool")
    data.write_bytes(b"")
    with pytest.raises(TensorFlowError, match=r"'a/int8' of shape \(2, 3\) does not fit its file"):
        found("a/int8")


def old_checkpoint(path: Path, name: str, array: np.ndarray[Any, Any]) -> None:
    """A checkpoint of version 1 that has a tensor in two slices."""
    first, *others = (messages()["SavedTensorSlices"]() for _ in range(3))
    meta = first.meta.tensor.add(name=name, type=1)
    meta.shape.CopyFrom(shape_proto(array.shape))
    for i, (one, rows) in enumerate(zip(others, (array[:1], array[1:]), strict=True)):
        one.data.name = name
        one.data.slice.extent.add(start=i, length=len(rows))
        one.data.slice.extent.add()
        one.data.data.float_val.extend(rows.reshape(-1).tolist())
    entries = [first, *others]
    path.write_bytes(
        table.write({bytes([i] * bool(i)): e.SerializeToString() for i, e in enumerate(entries)})
    )


def with_variables(prefix: str) -> tuple[Graph, Any, np.ndarray[Any, Any]]:
    """x @ w with a variable of version 1, and the MetaGraphDef that restores it."""
    g, w = Graph(), normal(3, 2)
    g("VariableV2", name="w", dtype=FLOAT, shape=(3, 2), shared_name="")
    g("MatMul", g.input("x", None, 3), g("Identity", "w"), name="y")
    text = np.dtype(object)
    file = g("Const", name="save/Const", value=np.array(b"model", object), dtype=text)
    names = g("Const", value=np.array([b"w"], object), dtype=text)
    found = g("RestoreV2", file, names, names, dtypes=[FLOAT])
    g("NoOp", "^" + g("Assign", "w", found), name="save/restore_all")
    meta = messages()["MetaGraphDef"](graph_def=g.proto)
    meta.saver_def.filename_tensor_name = "save/Const:0"
    meta.saver_def.restore_op_name = "save/restore_all"
    Path(f"{prefix}.meta").write_bytes(meta.SerializeToString())
    return g, meta, w


@pytest.mark.parametrize("old", [False, True])
def test_variables_get_their_values_from_a_checkpoint(old: bool, tmp_path: Path) -> None:
    prefix = tmp_path / ("a.ckpt" if old else "a")
    _, _, w = with_variables(str(prefix))
    if old:
        old_checkpoint(prefix, "w", w)
    else:
        checkpoint.save(prefix, {"w": w})
    file = str(prefix) if old else f"{prefix}.meta"
    assert main(["convert", file, str(tmp_path / "a.nnp"), "--outputs", "y", "-b", "4"]) == 0
    x = normal(4, 3)
    (y,) = read_model([str(tmp_path / "a.nnp")])[0].network().run({"x": x}).values()
    np.testing.assert_allclose(y, x @ w, rtol=1e-5)


def test_variables_without_values_are_refused(tmp_path: Path) -> None:
    g, meta, w = with_variables(str(tmp_path / "a"))
    checkpoint.save(tmp_path / "a", {"v": w})
    with pytest.raises(TensorFlowError, match="a.index: it has no tensor 'w'"):
        read_model([str(tmp_path / "a.meta")])
    meta.ClearField("saver_def")
    (tmp_path / "a.meta").write_bytes(meta.SerializeToString())
    with pytest.raises(TensorFlowError, match="it has variables, and no node that restores"):
        read_model([str(tmp_path / "a.meta")])
    (tmp_path / "f").mkdir()
    with pytest.raises(TensorFlowError, match="f is a folder without saved_model.pb"):
        read_model([str(tmp_path / "f")])


def with_states(path: Path) -> None:
    """y = 2 s, once s = s + x, n = n - x, which nobody reads, and i = i + 1 have been assigned;
    and z = x i."""
    g, text, whole = Graph(), np.dtype(object), np.dtype(np.int32)
    s, n = (g("VarHandleOp", name=k, dtype=FLOAT, shape=(2,), shared_name=k) for k in "sn")
    i = g("VarHandleOp", name="i", dtype=whole, shape=(), shared_name="i")
    step = g.function("step", ["s", "n", "x", "i"], {"r": "now:value:0", "z": "z:z:0"})
    step("AssignAddVariableOp", "i", 1, name="counted")
    step("ReadVariableOp", "i", "^counted", dtype=whole, name="count")
    step("Cast", "count:value:0", DstT=FLOAT, name="number")
    step("Mul", "x", "number:y:0", name="z")
    step("ReadVariableOp", "s", dtype=FLOAT, name="before")
    step("AddV2", "before:value:0", "x", name="sum")
    step("AssignVariableOp", "s", "sum:z:0", name="set")
    step("AssignSubVariableOp", "n", "x", name="less")
    step("ReadVariableOp", "s", "^set", dtype=FLOAT, name="now")
    step.proto.control_ret["less"] = "less"
    called = g("StatefulPartitionedCall", s, n, g.input("x", 2), i, f={"func": "step"})
    g("Mul", called, 2.0, name="y")
    g("Identity", f"{called}:1", name="z")
    file = g("Const", name="save/Const", value=np.array(b"model", object), dtype=text)
    names = g("Const", value=np.array([b"s", b"n", b"i"], object), dtype=text)
    found = g("RestoreV2", file, names, names, dtypes=[FLOAT, FLOAT, whole])
    done = [g("AssignVariableOp", v, f"{found}:{k}") for k, v in enumerate((s, n, i))]
    g("NoOp", *[f"^{d}" for d in done], name="save/restore_all")
    meta = messages()["MetaGraphDef"](graph_def=g.proto)
    meta.saver_def.filename_tensor_name = "save/Const:0"
    meta.saver_def.restore_op_name = "save/restore_all"
    path.write_bytes(meta.SerializeToString())


def test_variables_that_are_assigned_are_kept_from_run_to_run(tmp_path: Path) -> None:
    with_states(tmp_path / "a.meta")
    s, n, x = normal(2), normal(2), normal(2)
    checkpoint.save(tmp_path / "a", {"s": s, "n": n, "i": np.array(4, np.int32)})
    network = read_model([str(tmp_path / "a.meta")])[0].between(None, ["y", "z"]).network()
    for _ in range(2):
        for turn in (1, 2, 3):
            y, z = network.run({"x": x}).values()
            np.testing.assert_allclose(y, 2 * (s + turn * x), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(z, (4 + turn) * x, rtol=1e-5)
            kept = network.variables["states/n"].d
            np.testing.assert_allclose(kept, n - turn * x, rtol=1e-5, atol=1e-6)
        network.reset()
    file, path = str(tmp_path / "a.meta"), str(tmp_path / "a.nnlp")
    assert main(["convert", file, path, "--outputs", "y"]) == 0
    program = nn.load_program(path)
    for turn in (1, 2):
        np.testing.assert_allclose(program.run(x=x)["y"], 2 * (s + turn * x), rtol=1e-5, atol=1e-6)


# ---- whole models ----

WAYS = {"out.meta": writer.save_meta, "out": writer.save_folder}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["lenet", "bert"])
def test_networks_are_read_back(name: str, way: str, tmp_path: Path) -> None:
    network = built(name)
    WAYS[way](tmp_path / way, network)
    back = read_model([str(tmp_path / way)])[0].network()
    assert set(back.outputs) == {"y"}
    (got,) = back.run({k: v.d for k, v in network.inputs.items()}).values()
    (want,) = values(network)
    assert np.abs(got.reshape(-1) - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["lenet", "resnet", "bert"])
def test_networks_run_in_tensorflow(name: str, way: str, tmp_path: Path) -> None:
    python = python_with_tensorflow()
    if python is None:
        pytest.skip("TensorFlow is not installed (NNL_TENSORFLOW_PYTHON names a Python with it)")
    network, process = built(name), TensorFlow(python)
    WAYS[way](tmp_path / way, network)
    try:
        given = {k: v.d for k, v in network.inputs.items()}
        (got,) = process.run(tmp_path / way, given, ["y"])
    finally:
        process.close()
    (want,) = values(network)
    assert np.abs(got.reshape(-1) - want).max() <= 1e-5 * np.abs(want).max()


def test_the_worker_takes_the_tensorflow_that_is_installed(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("class errors: OpError = ValueError")
    worker = Path(worker_module.__file__).with_name("tensorflow_worker.py")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(worker)]
    done = subprocess.run(command, input="", env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_the_command_writes_all_forms(tmp_path: Path, capsys: Any) -> None:
    source = str(write_network(tmp_path / "m.nnp"))
    for out in ("a.meta", "b"):
        kind = ["-O", "SAVED_MODEL"] if out == "b" else []
        assert main(["convert", source, str(tmp_path / out), "-E", "0", *kind, "--verify"]) == 0
    assert {p.name for p in tmp_path.iterdir()} == {
        "m.nnp", "a.meta", "a.index", "a.data-00000-of-00001", "b",
    }  # fmt: skip
    assert main(["convert", str(tmp_path / "b"), str(tmp_path / "c.onnx")]) == 0
    capsys.readouterr()
    assert main(["convert", source, str(tmp_path / "c.ckpt")]) == 1
    assert "cannot write the extension '.ckpt'" in capsys.readouterr().err


def test_constants_of_a_message_are_read_whole() -> None:
    from nnl.converters.tensorflow.messages import array_of

    for array in (np.array([[1.5, -2]], np.float16), np.array(["a", "b"], object)):
        whole = array if array.dtype.kind != "O" else np.array([b"a", b"b"], object)
        np.testing.assert_array_equal(array_of(proto_of(whole)), whole)
    splat = messages()["TensorProto"](dtype=3, int_val=[7])
    splat.tensor_shape.CopyFrom(shape_proto((2**15, 2**14)))
    assert array_of(splat).strides == (0, 0)  # nothing is allocated
    half = messages()["TensorProto"](dtype=19, half_val=[0x3C00, 0xC000])
    half.tensor_shape.CopyFrom(shape_proto((2,)))
    np.testing.assert_array_equal(array_of(half), np.float16([1, -2]))
