# SPDX-License-Identifier: Apache-2.0
"""Numbers of 8 and 4 bits, and sparse ones, in files of TensorFlow Lite: what its interpreter makes
of them, nnl does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.converters.tflite.file import dense
from nnl.converters.tflite.flatbuffer import Damaged
from nnl.converters.tflite.reader import TfliteFile
from tests.converters.tflite_files import RNG, Made, agrees, interpreter, invoked, normal


def quantized(scale: float, zero: int = 0) -> dict[str, Any]:
    return {"quantization": {"scale": [scale], "zero_point": [zero]}}


def test_a_stream_in_8_bits_has_the_numbers_of_litert(tmp_path: Path) -> None:
    """What wake words are made of: a window of frames is a state, everything is int8."""
    made = Made()
    g, start = made.graph(), made.graph()
    x = g.input((1, 1, 1, 8), np.int8, **quantized(0.05, 3))
    g.op("CALL_ONCE", (), graph=1)
    handle = g.handle("window")
    old = g.op("READ_VARIABLE", [handle], g.tensor((1, 2, 1, 8), np.int8, **quantized(0.05, 3)))
    rows = g.tensor((1, 3, 1, 8), np.int8, **quantized(0.05, 3))
    g.op("CONCATENATION", [old, x], rows, axis=1)
    limits = [g.constant(v, np.int32) for v in ([0, -2, 0, 0], [1, 3, 1, 8], [1, 1, 1, 1])]
    new = g.tensor((1, 2, 1, 8), np.int8, **quantized(0.05, 3))
    g.op("STRIDED_SLICE", [rows, *limits], new, begin_mask=13, end_mask=15)
    g.op("ASSIGN_VARIABLE", [handle, new])
    weights = RNG.integers(-127, 128, (4, 3, 1, 8))
    w = g.constant(weights, np.int8, **quantized(0.01))
    bias = g.constant([10, -20, 30, 0], np.int32, **quantized(0.0005))
    y = g.tensor((1, 1, 1, 4), np.int8, **quantized(0.06, -5))
    strides = dict(padding=1, stride_w=1, stride_h=1, activation=1)
    g.op("CONV_2D", [rows, w, bias], y, version=3, **strides)
    p = g.tensor((1, 1, 1, 4), np.int8, **quantized(1 / 256, -128))
    g.outputs = [g.op("LOGISTIC", [y], p, version=2)]
    zeros = start.constant(np.full((1, 2, 1, 8), 3), np.int8, **quantized(0.05, 3))
    start.op("ASSIGN_VARIABLE", [start.handle("window"), zeros])
    path = made.save(tmp_path / "a.tflite")
    theirs, network = interpreter(path), TfliteFile(path).network()
    for _ in range(20):
        frame = RNG.integers(-128, 128, (1, 1, 1, 8))
        want = (invoked(theirs, frame)[0].astype(np.float32) + 128) / 256
        (got,) = network.run(dict.fromkeys(network.inputs, (frame - 3) * 0.05)).values()
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_weights_of_8_bits_alone_stand_for_real_numbers(tmp_path: Path) -> None:
    """As in the same file with the weights as floats. LiteRT's two kinds of kernels round what they
    read, each in another way."""
    weights, scale = RNG.integers(-127, 128, (4, 3, 3, 5)), 0.02
    paths, runs = [], [normal(1, 6, 6, 5)]
    for i in range(2):
        made = Made()
        g = made.graph()
        x = g.input((1, 6, 6, 5))
        if i:
            w = g.constant(weights * np.float32(scale))
        else:
            w = g.constant(weights, np.int8, **quantized(scale))
        y, bias = g.tensor((1, 6, 6, 4)), g.constant(normal(4) * 0)
        g.outputs = [g.op("CONV_2D", [x, w, bias], y, stride_w=1, stride_h=1, version=5)]
        paths.append(made.save(tmp_path / f"{i}.tflite"))
    hybrid, real = paths
    network = TfliteFile(hybrid).network()
    (got,) = network.run(dict.fromkeys(network.inputs, runs[0])).values()
    (want,) = invoked(interpreter(real), *runs)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    rounded = [invoked(interpreter(hybrid, reference), *runs)[0] for reference in (False, True)]
    assert all(1e-4 < np.abs(y - want).max() < 0.05 * np.ptp(want) for y in rounded)


@pytest.mark.parametrize("blocks", [False, True])
def test_sparse_weights_are_filled_up(blocks: bool, tmp_path: Path) -> None:
    w = np.zeros((4, 8), np.float32)
    kept = [(0, 1), (1, 0), (1, 1), (3, 0)] if blocks else [(0, 5), (2, 1), (2, 7), (3, 0)]
    values, rows = [], [0] * 5
    for i, j in kept:
        at = slice(4 * j, 4 * j + 4) if blocks else slice(j, j + 1)
        w[i, at] = normal(at.stop - at.start)
        values.append(w[i, at])
    rows = np.searchsorted([i for i, _ in kept], np.arange(5)).tolist()
    levels = [
        {"format": 0, "dense_size": 4},
        {
            "format": 1,
            "segments_type": 3,
            "segments": ("Vector3", {"values": rows}),
            "indices_type": 1,
            "indices": ("Vector1", {"values": [j for _, j in kept]}),
        },
    ]
    sparsity: dict[str, Any] = {"traversal_order": [0, 1], "levels": levels}
    if blocks:
        sparsity["traversal_order"] = [0, 1, 2]
        sparsity |= {"block_map": [1], "levels": [*levels, {"format": 0, "dense_size": 4}]}
    made = Made()
    g = made.graph()
    x = g.input((2, 8))
    stored = g.constant(np.concatenate(values), shape=(4, 8), sparsity=sparsity)
    full = g.op("DENSIFY", [stored], g.tensor((4, 8)))
    g.outputs = [g.op("FULLY_CONNECTED", [x, full], g.tensor((2, 4)))]
    path, x = made.save(tmp_path / "a.tflite"), normal(2, 8)
    agrees(path, [[x]])
    network = TfliteFile(path).network()
    (got,) = network.run(dict.fromkeys(network.inputs, x)).values()
    np.testing.assert_allclose(got, x @ w.T, rtol=1e-5, atol=1e-6)


def test_damaged_sparse_weights_are_told() -> None:
    def level(segments: Any, indices: Any) -> dict[str, Any]:
        read = [lambda _, v=v: {"values": v} for v in (segments, indices)]
        return {"format": 1, "dense_size": 0, "segments_type": 1, "segments": read[0],
                "indices_type": 1, "indices": read[1]}  # fmt: skip

    rows = {"format": 0, "dense_size": 2}
    good = {"traversal_order": [0, 1], "block_map": [], "levels": [rows, level([0, 1, 2], [1, 0])]}
    values = np.ones(2, np.float32)
    assert dense("w", good, values, (2, 2)).tolist() == [[0, 1], [1, 0]]
    for change, text in [
        ({"traversal_order": [0, 0]}, r"w has the sparse axes \[0, 0\], with \[2, 2\]"),
        ({"levels": [rows, level([0, 1], [1])]}, "w has 2 segments for 2 places"),
        ({"levels": [rows, level([0, 1, 3], [1, 0])]}, "w has 2 indices, wanted 3"),
        ({"levels": [rows, level([0, 1, 2], [1, 2])]}, r"w has values outside of \[2, 2\]"),
        ({"levels": [rows, level([0, 0, 1], [1])]}, "w has 2 values for 1 places"),
        ({"levels": [{**rows, "dense_size": 9}, rows]}, "w has more places than its 2 values"),
        ({"levels": [rows, {**rows, "format": 1, "segments_type": 0, "segments": None}]},
         "w has no segments"),
    ]:  # fmt: skip
        with pytest.raises(Damaged, match=text):
            dense("w", good | change, values, (2, 2))


def test_numbers_of_4_bits_and_halves_are_read(tmp_path: Path) -> None:
    made = Made()
    g = made.graph()
    x = g.input((1, 3))
    w = g.constant([0x2F, 0x0D], np.uint8, shape=(1, 3), type=17, **quantized(0.5))  # -1, 2, -3
    g.outputs = [g.op("FULLY_CONNECTED", [x, w], g.tensor((1, 1)))]
    half = g.constant([0x3F80, 0xC040, 0], np.uint16, shape=(1, 3), type=18)  # 1, -3, 0
    g.outputs.append(g.op("MUL", [x, half], g.tensor((1, 3))))
    network = TfliteFile(made.save(tmp_path / "a.tflite")).network()
    got, product = network.run(dict.fromkeys(network.inputs, np.array([[1, 10, 100]]))).values()
    assert got.tolist() == [[-0.5 + 10 - 150]] and product.tolist() == [[1, -30, 0]]
