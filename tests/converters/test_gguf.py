# SPDX-License-Identifier: Apache-2.0
"""GGUF files, against the package of the format's authors."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.converters.weights.gguf import FORMATS, read_gguf

BLOCKS = [f.name for f in FORMATS.values() if f.decode]


@pytest.fixture
def file(tmp_path):
    """A file with metadata of every kind and a tensor of every type, and what they hold."""
    rng = np.random.default_rng(0)
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.eps", 1e-5)
    writer.add_bool("flag", True)
    writer.add_array("tokens", ["<s>", "wörd", ""])
    writer.add_array("scores", [0.5, -1.0])
    held = {}
    for name in BLOCKS:
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        raw = rng.integers(0, 256, (5, 512 // block, size), np.uint8)
        for at in {
            "Q4_K": (0, 2),
            "Q5_K": (0, 2),
            "Q6_K": (208,),
            "Q4_1": (0, 2),
            "Q5_1": (0, 2),
        }.get(name, (0,)):  # scales that are numbers
            scale = rng.uniform(-1, 1, raw.shape[:2] + (1,)).astype(np.float16)
            raw[..., at : at + 2] = scale.view(np.uint8).reshape(*raw.shape[:2], 2)
        raw = raw.reshape(5, -1)
        writer.add_tensor(name, raw, raw_dtype=kind)
        held[name] = gguf.quants.dequantize(raw, kind)
    for dtype in (np.float32, np.float16, np.int32):
        held[np.dtype(dtype).name] = value = (8 * rng.normal(size=(2, 3, 4))).astype(dtype)
        writer.add_tensor(np.dtype(dtype).name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, held


def test_every_type_is_what_its_authors_read(file):
    path, held = file
    metadata, tensors = read_gguf(path)
    assert metadata["llama.block_count"] == 2 and metadata["flag"] is True
    assert metadata["tokens"] == ["<s>", "wörd", ""] and metadata["scores"] == [0.5, -1.0]
    assert metadata["general.architecture"] == "llama"
    assert set(tensors) == set(held)
    for name, want in held.items():
        got = tensors[name].array()
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", BLOCKS)
def test_matrices_are_multiplied_without_being_unpacked(name, file):
    path, held = file
    groups = read_gguf(path)[1][name].groups()
    x = np.random.default_rng(1).normal(size=(3, 512)).astype(np.float32)
    arrays = [None if a is None else nn.NdArray.from_numpy_array(a) for a in (x, *groups[:3])]
    given = {"bits": groups.bits, "group_size": groups.group_size}
    y = F.quantized_matmul(*arrays, **given, activation_bits=32).data
    want = x @ held[name].T
    np.testing.assert_allclose(y, want, atol=3e-4 * np.abs(want).max())


def test_tensors_that_are_no_matrix_in_blocks_have_no_groups(file):
    _, tensors = read_gguf(file[0])
    assert tensors["float32"].groups() is None


def test_a_type_that_is_not_read_is_named(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    kind = gguf.GGMLQuantizationType.Q2_K
    writer.add_tensor("w", np.zeros((2, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        ValueError, match=r"read_gguf: .*m.gguf: tensor 'w' has the type 10, which is"
    ):
        read_gguf(tmp_path / "m.gguf")


@pytest.mark.filterwarnings("ignore:invalid value")
def test_damaged_files_are_told(file, tmp_path):
    """Cut anywhere, and with any byte of the head changed: an error in words, or another value."""
    data = file[0].read_bytes()
    bad = tmp_path / "bad.gguf"
    rng = np.random.default_rng(2)
    head = data.index(b"int32") + 64
    damaged = [data[:n] for n in (0, 3, 23, 24, 100, head, len(data) - 1)]
    for at in rng.integers(0, head, 400):
        damaged.append(data[:at] + bytes([data[at] ^ (1 << rng.integers(8))]) + data[at + 1 :])
    for at in rng.integers(0, head - 8, 200):  # lengths and counts beyond all bounds
        damaged.append(data[:at] + b"\xff" * 8 + data[at + 8 :])
    refused = 0
    for blob in damaged:
        bad.write_bytes(blob)
        try:
            for tensor in read_gguf(bad)[1].values():
                tensor.array()
                tensor.groups()
        except ValueError as e:
            assert str(e).startswith("read_gguf: ")
            refused += 1
    assert refused > 100
