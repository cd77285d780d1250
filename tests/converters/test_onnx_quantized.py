# SPDX-License-Identifier: Apache-2.0
"""Models in 8 bits give what ONNX Runtime gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
from onnxruntime.quantization import QuantFormat, QuantType

from nnl.converters.onnx import OnnxError, load
from nnl.core.graph.node import capture
from nnl.core.graph.variable import Variable
from nnl.ext.native import library
from nnl.graph.plan.plan import Plan
from tests.converters import quantized_models as models

BYTES = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}


def steps_apart(proto: Any) -> float:
    """How many steps of the last scale the results of a model are from those of ONNX Runtime."""
    scales = [n.input[1] for n in proto.graph.node if n.op_type == "DequantizeLinear"]
    last = next(t for t in proto.graph.initializer if t.name == scales[-1])
    (got, want), *_ = models.both(proto)
    assert np.ptp(want) > 0
    return float(np.abs(got - want).max() / models.numpy_helper.to_array(last))


@pytest.mark.parametrize("opset", [11, 13, 17, 21])
@pytest.mark.parametrize(
    "activation, weight, per_channel",
    [("uint8", "int8", True), ("uint8", "int8", False), ("int8", "int8", True),
     ("uint8", "uint8", False), ("uint8", "uint8", True)],
)  # fmt: skip
def test_qdq_models(
    tmp_path: Path, opset: int, activation: str, weight: str, per_channel: bool
) -> None:
    if per_channel and opset < 13:
        return  # which QuantizeLinear does not have
    proto = models.static(
        models.pictures(opset=opset), tmp_path, quant_format=QuantFormat.QDQ,
        activation_type=BYTES[activation], weight_type=BYTES[weight], per_channel=per_channel,
    )  # fmt: skip
    assert steps_apart(proto) < 1.01


@pytest.mark.skipif(library() is None, reason="plans of numpy compute with floats")
def test_qdq_models_are_plans_of_8_bits(tmp_path: Path) -> None:
    proto = models.static(models.pictures(), tmp_path, per_channel=True)
    x = Variable((2, 3, 16, 16))
    x.d = 0
    y = load(proto)(x)
    plan = Plan(capture([y.edge]), kept={y.edge.key})
    ops = [s.op for s in plan.steps if s.op.startswith("quantized")]
    pairs = ["quantized_pair"] * 2
    assert ops == ["quantized_convolution"] * 3 + [*pairs, "quantized_affine"]
    floats = [s for s in plan.steps for o in s.outs if plan.program.slots[o].spec.is_float]
    assert {s.op for s in floats if not s.once} <= {
        "dequantize_linear", "average_pooling", "mean", "fused_elementwise", "to_layout", "cast",
    }  # fmt: skip


@pytest.mark.parametrize(
    "activation, weight, per_channel",
    [("uint8", "int8", True), ("int8", "int8", False), ("uint8", "uint8", False)],
)
def test_models_of_quantized_operators(
    tmp_path: Path, activation: str, weight: str, per_channel: bool
) -> None:
    proto = models.static(
        models.pictures(opset=13), tmp_path, quant_format=QuantFormat.QOperator,
        activation_type=BYTES[activation], weight_type=BYTES[weight], per_channel=per_channel,
    )  # fmt: skip
    found = {n.op_type for n in proto.graph.node}
    assert found >= {
        "QLinearConv", "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu",
        "QLinearAveragePool", "QLinearConcat", "QLinearGlobalAveragePool", "QGemm",
    }  # fmt: skip
    assert steps_apart(proto) < 1.01


def texts() -> Any:
    """Rows of a table, an LSTM, a product with weights and one of two values."""
    rng, make = np.random.default_rng(0), models.helper.make_node
    nodes = [
        make("Gather", ["table", "ids"], ["e"]),
        make("Transpose", ["e"], ["t"], perm=[1, 0, 2]),
        make("LSTM", ["t", "w", "r", "b"], ["h", "", ""], hidden_size=8, direction="bidirectional"),
        make("Transpose", ["h"], ["h1"], perm=[2, 0, 1, 3]),
        make("Reshape", ["h1", "shape"], ["h2"]),
        make("MatMul", ["h2", "w1"], ["m"]),
        make("Add", ["m", "b1"], ["a"]),
        make("Transpose", ["a"], ["a1"], perm=[0, 2, 1]),
        make("MatMul", ["a", "a1"], ["s"]),
        make("Softmax", ["s"], ["p"], axis=-1),
        make("MatMul", ["p", "a"], ["y"]),
    ]
    shapes = {"table": (20, 12), "w": (2, 32, 12), "r": (2, 32, 8), "b": (2, 64), "w1": (16, 24),
              "b1": (24,)}  # fmt: skip
    weights = {n: rng.normal(scale=0.4, size=s).astype(np.float32) for n, s in shapes.items()}
    weights["shape"] = np.array([2, 5, 16])
    return models.model(nodes, {"ids": (np.int64, (2, 5))}, {"y": (2, 5, 24)}, weights)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("weight", ["int8", "uint8"])
def test_models_quantized_as_they_run(tmp_path: Path, weight: str, per_channel: bool) -> None:
    from onnxruntime.quantization import quantize_dynamic

    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    models.onnx.save(texts(), source)
    options = {"MatMulConstBOnly": True} if per_channel else {}
    quantize_dynamic(
        source, target, weight_type=BYTES[weight], per_channel=per_channel, extra_options=options
    )
    proto = models.onnx.load(target)
    found = {n.op_type for n in proto.graph.node}
    assert found >= {"DynamicQuantizeLSTM", "MatMulInteger", "DynamicQuantizeLinear"}
    ((got, want),) = models.both(proto)
    assert np.abs(got - want).max() < 0.03 * np.abs(want).max()  # states are floats here
    if library() is not None:
        ids = Variable((2, 5))
        y = load(proto)(ids)
        plan = Plan(capture([y.edge]), kept={y.edge.key})
        many_zeros = weight == "uint8" and per_channel  # which kernels do not take
        assert [s.op for s in plan.steps].count("quantized_affine") == 1 - many_zeros


def test_what_the_runtime_makes_of_models_before_it_runs(tmp_path: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    made = models.extended(models.pictures(), tmp_path)
    assert "FusedConv" in {n.op_type for n in made.graph.node}
    ((got, want),) = models.both(made)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    models.onnx.save(texts(), tmp_path / "m.onnx")
    quantize_dynamic(tmp_path / "m.onnx", tmp_path / "q.onnx", op_types_to_quantize=["MatMul"])
    made = models.extended(models.onnx.load(tmp_path / "q.onnx"), tmp_path)
    assert {n.op_type for n in made.graph.node} & {"DynamicQuantizeMatMul", "MatMulIntegerToFloat"}
    ((got, want),) = models.both(made)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def optimized(batch: int = 2, length: int = 5) -> Any:
    """A layer of a text model, as the optimizer leaves it."""
    rng, make = np.random.default_rng(5), models.helper.make_node
    there = {"domain": "com.microsoft"}
    nodes = [
        make(
            "EmbedLayerNormalization",
            ["ids", "", "words", "places", "", "g", "b", "mask"],
            ["e", "lengths"],
            **there,
        ),
        make("Attention", ["e", "qkv", "qkv_b", "lengths"], ["a"], num_heads=4, **there),
        make("MatMul", ["a", "w1"], ["a1"]),
        make("SkipLayerNormalization", ["a1", "e", "g", "b", "b1"], ["s"], **there),
        make("MatMul", ["s", "w2"], ["m"]),
        make("BiasGelu", ["m", "b2"], ["u"], **there),
        make("MatMul", ["u", "w3"], ["v"]),
        make("SkipLayerNormalization", ["v", "s", "g", "b"], ["y"], **there),
    ]
    shapes = {"words": (20, 32), "places": (8, 32), "g": (32,), "b": (32,), "qkv": (32, 96),
              "qkv_b": (96,), "w1": (32, 32), "b1": (32,), "w2": (32, 64), "b2": (64,),
              "w3": (64, 32)}  # fmt: skip
    weights = {n: rng.normal(scale=0.3, size=s).astype(np.float32) for n, s in shapes.items()}
    given = {"ids": (np.int32, (batch, length)), "mask": (np.int32, (batch, length))}
    return models.model(nodes, given, {"y": (batch, length, 32)}, weights, microsoft=True)


@pytest.mark.parametrize("per_channel", [False, True])
def test_quantized_text_models_of_the_optimizer(tmp_path: Path, per_channel: bool) -> None:
    from onnxruntime.quantization import quantize_dynamic

    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    models.onnx.save(optimized(), source)
    kind = {"DefaultTensorType": models.onnx.TensorProto.FLOAT}
    quantize_dynamic(
        source, target, weight_type=QuantType.QInt8, per_channel=per_channel, extra_options=kind
    )
    proto = models.onnx.load(target)
    found = {n.op_type for n in proto.graph.node}
    assert found >= {"QAttention", "QEmbedLayerNormalization", "MatMulInteger", "BiasGelu"}
    values = models.values_of(proto)
    values["mask"] = (np.arange(5) < [[5], [3]]).astype(np.int32)
    ((got, want),) = models.both(proto, values=values)
    # a number that is rounded the other way changes all that come after it
    assert np.abs(got - want).max() < 0.02 * np.abs(want).max()


def one(
    op: str, *inputs: Any, outputs: Any = (np.float32,), microsoft: bool = True, **attributes: Any
) -> Any:  # fmt: skip
    """A model of one node.

    Args:
        inputs: Shapes of what is given, or pairs of a type and a shape; arrays of what it holds;
            None for what is left out.
        outputs: Their types.
    """
    given, weights, names = {}, {}, []
    for i, x in enumerate(inputs):
        names.append("" if x is None else f"x{i}")
        if isinstance(x, np.ndarray):
            weights[f"x{i}"] = x
        elif x is not None:
            given[f"x{i}"] = x
    made = {f"y{i}": (kind, None) for i, kind in enumerate(outputs)}
    domain = {"domain": "com.microsoft"} if microsoft else {}
    node = models.helper.make_node(op, names, list(made), **domain, **attributes)
    return models.model([node], given, made, weights, microsoft=True)


rng = np.random.default_rng(3)


def floats(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def number(x: float) -> np.ndarray:
    return np.array(x, np.float32)


def whole(*shape: int, dtype: Any = np.int8) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def zero(x: int, dtype: Any = np.uint8) -> np.ndarray:
    return np.array(x, dtype)


MASK = np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], np.int32)
EARLIER = np.stack([np.tri(5, dtype=np.int32)] * 2)
LENGTHS = np.array([4, 3], np.int32)
HEADS = {"num_heads": 4}
CASES = {
    "dynamic matmul": lambda: one(
        "DynamicQuantizeMatMul", (3, 4, 16), whole(16, 8), number(0.02), None, floats(8)
    ),
    "dynamic matmul, scales of columns": lambda: one(
        "DynamicQuantizeMatMul", (4, 16), whole(16, 8, dtype=np.uint8),
        rng.uniform(0.01, 0.02, 8).astype(np.float32), np.full(8, 120, np.uint8),
    ),
    "matmul to float": lambda: one(
        "MatMulIntegerToFloat", (np.uint8, (4, 16)), whole(16, 8), number(0.02),
        number(0.01), zero(120), zero(3, np.int8), (8,),
    ),
    "fused matmul": lambda: one("FusedMatMul", (2, 4, 16), (2, 8, 16), transB=1, alpha=0.25),
    "fused matmul, turned": lambda: one("FusedMatMul", (2, 16, 4), (2, 16, 8), transA=1),
    "fused gemm": lambda: one(
        "FusedGemm", (4, 16), floats(16, 8), floats(8), activation="LeakyRelu",
        activation_alpha=0.2,
    ),
    "fused convolution": lambda: one(
        "FusedConv", (1, 3, 8, 8), floats(4, 3, 3, 3), floats(4), (1, 4, 6, 6), activation="Relu"
    ),
    "fused convolution, clipped": lambda: one(
        "FusedConv", (1, 3, 8, 8), floats(4, 3, 3, 3), activation="Clip",
        activation_params=[-1.0, 1.0],
    ),
    "gelu": lambda: one("Gelu", (4, 16)),
    "fast gelu": lambda: one("FastGelu", (4, 16), floats(16)),
    "bias gelu": lambda: one("BiasGelu", (4, 16), floats(16)),
    "quick gelu": lambda: one("QuickGelu", (4, 16), alpha=1.5),
    "skip": lambda: one(
        "SkipLayerNormalization", (2, 5, 16), (2, 5, 16), floats(16), floats(16), floats(16)
    ),
    "skip, simplified": lambda: one(
        "SkipSimplifiedLayerNormalization", (2, 5, 16), (2, 5, 16), floats(16)
    ),
    "simplified": lambda: one(
        "SimplifiedLayerNormalization", (2, 5, 16), floats(16), microsoft=False, axis=-1
    ),
    "embedding": lambda: one(
        "EmbedLayerNormalization", (np.int32, (2, 5)), (np.int32, (2, 5)), floats(20, 16),
        floats(8, 16), floats(20, 16), floats(16), floats(16), outputs=(np.float32, np.int32),
    ),
    "attention": lambda: one("Attention", (2, 5, 16), floats(16, 48), floats(48), **HEADS),
    "attention, causal": lambda: one(
        "Attention", (2, 5, 16), floats(16, 48), floats(48), unidirectional=1, **HEADS
    ),
    "attention, mask": lambda: one(
        "Attention", (2, 5, 16), floats(16, 48), floats(48), MASK, **HEADS
    ),
    "attention, lengths": lambda: one(
        "Attention", (2, 5, 16), floats(16, 48), floats(48), LENGTHS, **HEADS
    ),
    "attention, mask of queries": lambda: one(
        "Attention", (2, 5, 16), floats(16, 48), floats(48), EARLIER,
        **HEADS,
    ),
    "attention, past": lambda: one(
        "Attention", (2, 1, 16), floats(16, 48), floats(48), None, (2, 2, 4, 3, 4),
        outputs=[np.float32] * 2,
        **HEADS,
    ),
    "attention, added": lambda: one(
        "Attention", (2, 5, 16), floats(16, 48), floats(48), None, None, (1, 4, 5, 5), **HEADS
    ),
    "multi-head": lambda: one(
        "MultiHeadAttention", (2, 5, 16), (2, 7, 16), (2, 7, 16), floats(48), **HEADS
    ),
    "multi-head, mask": lambda: one(
        "MultiHeadAttention", (2, 5, 16), (2, 5, 16), (2, 5, 16), None, MASK, **HEADS
    ),
    "multi-head, past": lambda: one(
        "MultiHeadAttention", (2, 1, 16), (2, 1, 16), (2, 1, 16), None, None, None, (2, 4, 3, 4),
        (2, 4, 3, 4), outputs=[np.float32] * 3, **HEADS,
    ),
    "quantized attention": lambda: one(
        "QAttention", (np.uint8, (2, 5, 16)), whole(16, 48), (48,), number(0.02),
        number(0.01), None, zero(120), zero(0, np.int8), **HEADS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CASES))
def test_operators_of_the_optimizer(name: str) -> None:
    for i, (got, want) in enumerate(models.both(CASES[name]())):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4, err_msg=f"output {i}")


QUANTIZED = {
    "softmax": lambda: one(
        "QLinearSoftmax", (np.int8, (4, 6)), number(0.02), zero(3, np.int8), number(1 / 256),
        zero(-128, np.int8), axis=-1, opset=13, outputs=[np.int8],
    ),
    "where": lambda: one(
        "QLinearWhere", rng.random((4, 6)) < 0.5, (np.int8, (4, 6)), number(0.02), zero(3, np.int8),
        whole(4, 6), number(0.03), zero(-2, np.int8), number(0.04), zero(1, np.int8),
        outputs=[np.int8],
    ),
    "average, channels last": lambda: one(
        "QLinearAveragePool", (np.int8, (1, 6, 6, 4)), number(0.02), zero(3, np.int8), number(0.02),
        zero(3, np.int8), kernel_shape=[2, 2], strides=[2, 2], channels_last=1, outputs=[np.int8],
    ),
    "gemm to floats": lambda: one(
        "QGemm", (np.uint8, (4, 16)), number(0.02), zero(120), whole(16, 8), number(0.01),
        zero(0, np.int8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(QUANTIZED))
def test_quantized_operators_of_arrays(name: str) -> None:
    ((got, want),) = models.both(QUANTIZED[name]())
    assert got.dtype == want.dtype
    assert np.abs(got.astype(np.float64) - want).max() <= 1 and len(np.unique(want)) > 9


def around(x: Any, scale: np.ndarray, zero: np.ndarray, other: Any = None, **axis: int) -> Any:
    make = models.helper.make_node
    nodes = [
        make("QuantizeLinear", ["x", "s", "z"], ["q"], **axis),
        make("DequantizeLinear", ["q", "s", "z2"], ["y"], name="back", **axis),
    ]
    weights = {"s": scale, "z": zero, "z2": zero if other is None else other}
    return models.model(nodes, {"x": x}, {"y": x}, weights)


BAD = {
    "negative scale": (lambda: around((2, 3), number(-0.5), zero(0)),
                       "QuantizeLinear 'q': .*y_scale holds -0.5, wanted finite numbers above 0"),
    "scale that is no number": (lambda: around((2, 3), number(np.nan), zero(0)), "holds nan"),
    "too many scales": (
        lambda: around((2, 3), np.full(4, 0.5, np.float32), np.zeros(4, np.uint8), axis=1),
        "QuantizeLinear 'q': .*4 scales or zero points for 3 values along axis 1",
    ),
    "an axis that is not there": (
        lambda: around((2, 3), np.full(3, 0.5, np.float32), np.zeros(3, np.uint8), axis=4),
        "QuantizeLinear 'q': .*axis of the scale is 4, outside",
    ),
    "a zero point of another type": (
        lambda: around((2, 3), number(0.5), zero(200), np.array(-3, np.int8)),
        "DequantizeLinear 'back': .*x_zero_point is int8, wanted uint8 as the values are",
    ),
    "scale of a quantized operator": (
        lambda: one("QLinearSigmoid", (np.int8, (4, 6)), number(0), zero(3, np.int8),
                    number(0.1), zero(3, np.int8), outputs=[np.int8]),
        "com.microsoft.QLinearSigmoid 'y0': .*scale holds 0, wanted",
    ),
    "an operator of somebody else": (
        lambda: one("QLinearSquare", (4, 6)), "com.microsoft.QLinearSquare .node com.microsoft",
    ),
    "too few inputs": (
        lambda: one("QLinearAdd", (np.int8, (4, 6)), number(0.1), zero(3, np.int8)),
        "com.microsoft.QLinearAdd 'y0': .*has 3 inputs, wanted 8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_scales_zero_points_and_operators_are_told(name: str) -> None:
    proto, text = BAD[name][0](), BAD[name][1]
    with pytest.raises(OnnxError, match=text):
        load(proto.SerializeToString()).run(models.values_of(proto))
