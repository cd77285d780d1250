# SPDX-License-Identifier: Apache-2.0
"""MaxPool at every size, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

from nnl.converters.onnx.running.onnx_model import load  # noqa: E402

WAYS: list[dict[str, Any]] = [{"auto_pad": w} for w in ("SAME_UPPER", "SAME_LOWER", "VALID")]
WAYS += [{"ceil_mode": 0}, {"ceil_mode": 1}]


@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_max_pool_is_that_of_onnx_runtime(kernel: int, stride: int) -> None:
    info = [helper.make_tensor_value_info(k, TensorProto.FLOAT, None) for k in "xy"]
    for way in WAYS:
        how = {**way, "kernel_shape": [kernel, 2], "strides": [stride, 2]}
        node = helper.make_node("MaxPool", ["x"], ["y"], **how)
        graph = helper.make_graph([node], "g", info[:1], info[1:])
        opsets = [helper.make_opsetid("", 13)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        session, net = ort.InferenceSession(proto.SerializeToString()), load(proto)
        for size in (4, 5, 6, 7):
            x = np.random.default_rng(size).normal(size=(1, 2, size, 7)).astype(np.float32)
            if "auto_pad" in way and stride > kernel:
                continue  # ONNX Runtime refuses the negative padding that ONNX asks for
            (want,) = session.run(None, {"x": x})
            (got,) = net.run({"x": x})
            assert got.shape == want.shape, (how, size)
            np.testing.assert_array_equal(got, want, err_msg=str((how, size)))
