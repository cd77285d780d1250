# SPDX-License-Identifier: Apache-2.0
"""Small ONNX models, and what the tools of ONNX Runtime make of them in 8 bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, quantize_static

import nnl as nn
from nnl.converters.onnx import load

Arrays = Mapping[str, np.ndarray]


def model(
    nodes: list[Any], inputs: Mapping[str, Any], outputs: Mapping[str, Any], weights: Arrays,
    opset: int = 17, microsoft: bool = False,
) -> onnx.ModelProto:  # fmt: skip
    """A model of nodes.

    Args:
        inputs, outputs: Shapes by name, of floats; or pairs of an element type and a shape.
    """

    def info(name: str, what: Any) -> Any:
        kind, shape = what if isinstance(what[0], np.dtype | type) else (np.float32, what)
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape
        )

    graph = helper.make_graph(
        nodes,
        "g",
        [info(n, s) for n, s in inputs.items()],
        [info(n, s) for n, s in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    domains = [helper.make_opsetid("", opset)]
    if microsoft:
        domains.append(helper.make_opsetid("com.microsoft", 1))
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def pictures(seed: int = 0, opset: int = 17) -> onnx.ModelProto:
    """Convolutions of three kinds, pooling of three kinds, an addition, a join, a product."""
    rng, make = np.random.default_rng(seed), helper.make_node
    nodes = [
        make("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        make("Relu", ["c1"], ["r1"]),
        make("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1, 1, 1, 1], group=16),
        make("Clip", ["c2", "low", "high"], ["r2"]),
        make("Conv", ["r2", "w3"], ["c3"]),
        make("Add", ["c3", "r1"], ["a"]),
        make("Sigmoid", ["a"], ["s"]),
        make("Mul", ["a", "s"], ["m"]),
        make("LeakyRelu", ["m"], ["r3"], alpha=0.1),
        make("MaxPool", ["r3"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        make("AveragePool", ["r3"], ["p2"], kernel_shape=[2, 2], strides=[2, 2]),
        make("Concat", ["p1", "p2"], ["j"], axis=1),
        make("GlobalAveragePool", ["j"], ["g"]),
        make("Flatten", ["g"], ["f"]),
        make("Gemm", ["f", "w4", "b4"], ["y"], transB=1),
    ]
    shapes = {"w1": (16, 3, 3, 3), "w2": (16, 1, 3, 3), "w3": (16, 16, 1, 1), "w4": (10, 32)}
    weights = {n: rng.normal(scale=0.3, size=s).astype(np.float32) for n, s in shapes.items()}
    for name, size in (("b1", 16), ("b2", 16), ("b4", 10)):
        weights[name] = rng.normal(scale=0.1, size=size).astype(np.float32)
    weights |= {"low": np.float32(0).reshape(()), "high": np.float32(6).reshape(())}
    shape = (2, 3, 16, 16)
    return model(nodes, {"x": shape}, {"y": (2, 10)}, weights, opset)


class Reader(CalibrationDataReader):
    """A few random values of every input."""

    def __init__(self, proto: onnx.ModelProto, count: int = 4) -> None:
        self.rest = (values_of(proto, i) for i in range(count))

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.rest, None)


def values_of(proto: onnx.ModelProto, seed: int = 99) -> dict[str, np.ndarray]:
    rng, found = np.random.default_rng(seed), {}
    for v in proto.graph.input:
        shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
        kind = helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
        whole = kind.kind in "iu"
        high = np.iinfo(kind).max if kind.itemsize == 1 else 20
        found[v.name] = (rng.integers(0, high, shape) if whole else rng.normal(size=shape)).astype(
            kind
        )
    return found


def static(proto: onnx.ModelProto, folder: Path, **options: Any) -> onnx.ModelProto:
    """What quantize_static makes of a model."""
    source, target = folder / "m.onnx", folder / "q.onnx"
    onnx.save(proto, source)
    quantize_static(str(source), str(target), Reader(proto), **options)
    return onnx.load(target)


def both(
    proto: onnx.ModelProto, seed: int = 99, values: Arrays | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(what nnl gives, what ONNX Runtime gives) for every output."""
    values = values_of(proto, seed) if values is None else values
    data = proto.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    with nn.parameter_scope("quantized"):
        nn.clear_parameters()
        loaded = load(data)
        loaded.run(values)
        return zip(loaded.run(values), session.run(None, values), strict=True)


def extended(proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """What ONNX Runtime's own passes make of a model before it runs."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "extended.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return onnx.load(folder / "extended.onnx")
