# SPDX-License-Identifier: Apache-2.0
"""Small ONNX models of a few nodes."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def value(name, shape=None, code=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, code, shape)


def model(nodes, inputs=("x",), outputs=("y",), weights=None, opset=20, **kw):
    """A model whose inputs are names or ValueInfos."""
    values = [[value(n) if isinstance(n, str) else n for n in names] for names in (inputs, outputs)]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", *values, tensors)
    imports = [helper.make_opsetid("", opset), *kw.pop("domains", ())]
    kw.setdefault("ir_version", 8)
    return helper.make_model(graph, opset_imports=imports, **kw)


def node(op, inputs, outputs="y", **attributes):
    return helper.make_node(op, inputs.split(","), outputs.split(","), **attributes)


def affine(**kw):
    weights = {"fc/w": normal(3, 4), "fc/b": normal(4)}
    proto = model(
        [node("MatMul", "x,fc/w", "h"), node("Add", "h,fc/b")],
        [value("x", ("N", 3))],
        weights=weights,
        **kw,
    )
    return proto, weights
