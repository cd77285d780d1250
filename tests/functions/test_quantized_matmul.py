# SPDX-License-Identifier: Apache-2.0
"""Weights of 4 and 8 bits: the kernel of the native engine, and ONNX Runtime's operator."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import nnl as nn
import nnl.converters.onnx as converter
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError


def weights(rng, rows, columns, bits, size, half=np.float16):
    w = rng.integers(0, 256, (rows, columns * bits // 8), np.uint8)
    scale, offset = rng.uniform(0.5, 1, (2, rows, columns // size)).astype(half)
    return w, scale, -(2 ** (bits - 1)) * offset


def run(backend, *arrays, **attributes):
    arrays = [None if a is None else nn.NdArray.from_numpy_array(a) for a in arrays]
    with nn.context_scope(nn.Context([f"{backend}:float"])):
        return F.quantized_matmul(*arrays, **attributes).data.copy()


@pytest.mark.parametrize("rows", [1, 3, 4, 15])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size, columns", [
    (16, 256), (32, 512), (64, 256), (128, 384), (256, 512), (48, 144), (1024, 1024),
    (32, 576), (16, 48),
])  # fmt: skip
@pytest.mark.parametrize("half", [np.float16, np.float32])
def test_the_kernel_rounds_activations_as_the_definition_does(rows, bits, size, columns, half):
    """Every way through the kernel: lanes that share a group, groups of several vectors, panels."""
    rng = np.random.default_rng(size + rows)
    x = rng.normal(size=(rows, columns)).astype(np.float32)
    x[0, :size] = 0  # a group without a largest value
    w, scale, offset = weights(rng, 75, columns, bits, size, half)
    for o in (None, offset):
        for precision in (8, 32):
            given = {"bits": bits, "group_size": size, "activation_bits": precision}
            got, want = (run(backend, x, w, scale, o, **given) for backend in ("cpu", "numpy"))
            np.testing.assert_allclose(got, want, atol=3e-6 * np.abs(want).max())


def test_rounding_costs_less_than_a_hundredth():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 512)).astype(np.float32)
    w, scale, _ = weights(rng, 64, 512, 4, 32)
    codes = np.stack((w & 15, w >> 4), -1).reshape(64, 16, 32).astype(np.float64) - 8
    exact = x @ (codes * scale[:, :, None]).reshape(64, 512).T
    error = run("cpu", x, w, scale) - exact
    assert 0 < np.sqrt((error**2).mean() / (exact**2).mean()) < 0.01


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_a_row_that_is_not_finite_gives_nan_and_leaves_the_others(backend, bad):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(5, 128)).astype(np.float32)
    x[2, 70] = bad
    y = run(backend, x, *weights(rng, 3, 128, 4, 32)[:2])
    assert np.isnan(y).all(axis=1).tolist() == [False, False, True, False, False]


def test_wrong_arguments_are_named():
    x, w, scale = np.ones((2, 64), np.float32), np.ones((3, 32), np.uint8), np.ones((3, 2), "f")
    for arrays, attributes, text in (
        ((x, w, scale), {"bits": 3}, "bits is 3, wanted 4 or 8"),
        ((x, w, scale), {"group_size": 7}, "group_size is 7, wanted an even number"),
        ((x, w, scale), {"group_size": 48}, "w .* has 64 values of 4 bits in a row, wanted a mul"),
        ((x, w, scale), {"activation_bits": 16}, "activation_bits is 16, wanted 8 or 32"),
        ((x, w, scale[:, :1]), {}, r"scale .* must have the shape \(3, 2\)"),
        ((x[:, 1:], w, scale), {}, "x .* must have 64 columns"),
        ((x, w.astype("f"), scale), {}, "w is .*, wanted uint8 and 2 axes"),
    ):
        with pytest.raises((ValueError, ShapeError), match=f"quantized_matmul: {text}"):
            run("cpu", *arrays, **attributes)


def matmul_nbits(rng, columns, bits, size, zero, level, bias):
    """A model of one node, with its weights."""
    rows, blocks = 6, -(-columns // size)
    given = {
        "w": rng.integers(0, 256, (rows, blocks, size * bits // 8), np.uint8),
        "scale": rng.uniform(0.5, 1, (rows, blocks)).astype(np.float32),
        "zero": rng.integers(0, 256, (rows, -(-blocks * bits // 8)), np.uint8) if zero else None,
        "order": None,
        "bias": rng.normal(size=rows).astype(np.float32) if bias else None,
    }
    names = [name if value is not None else "" for name, value in given.items()]
    while not names[-1]:
        names.pop()
    node = helper.make_node(
        "MatMulNBits", ["x", *names], ["y"], domain="com.microsoft", K=columns, N=rows, bits=bits,
        block_size=size, accuracy_level=level,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, columns])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, rows])],
        [numpy_helper.from_array(v, k) for k, v in given.items() if v is not None],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(
    "bits, size, columns", [(4, 32, 128), (4, 16, 80), (8, 32, 96), (4, 64, 100)]
)
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("level", [0, 4])
def test_the_operator_of_onnx_runtime(bits, size, columns, zero, level, tmp_path):
    rng = np.random.default_rng(columns)
    model = matmul_nbits(rng, columns, bits, size, zero, level, bias=level == 0)
    onnx.save(model, tmp_path / "m.onnx")
    x = rng.normal(size=(2, 3, columns)).astype(np.float32)
    (want,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x})
    with nn.parameter_scope(f"{bits}-{size}-{columns}-{zero}-{level}"):
        got = converter.load(tmp_path / "m.onnx").run(x)[0]
    np.testing.assert_allclose(got, want, atol=(2e-6 if level == 0 else 1e-3) * np.abs(want).max())
