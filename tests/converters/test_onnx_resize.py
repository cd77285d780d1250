# SPDX-License-Identifier: Apache-2.0
"""Resize, most of which becomes F.interpolate, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

from nnl.converters.onnx.importing.image import as_interpolate  # noqa: E402
from nnl.converters.onnx.running.onnx_model import load  # noqa: E402

KINDS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
SCALES: list[Any] = [(2, 2), (3, 1), (1.5, 2), (0.5, 1), (4, 1)]
SIZES: list[Any] = [(8, 15), (1, 3), (7, 1), (4, 5), (1, 1)]


def model(how: dict[str, Any], scales: Any, sizes: Any, rank: int) -> Any:
    lead = [1] * (rank - 2)
    if scales:
        given = helper.make_tensor("s", TensorProto.FLOAT, [rank], [*lead, *scales])
    else:
        given = helper.make_tensor("z", TensorProto.INT64, [rank], [*(1, 2)[: rank - 2], *sizes])
    inputs = ["x", "", "s"] if scales else ["x", "", "", "z"]
    info = [helper.make_tensor_value_info(k, TensorProto.FLOAT, None) for k in "xy"]
    node = helper.make_node("Resize", inputs, ["y"], **how)
    graph = helper.make_graph([node], "g", info[:1], info[1:], [given])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [2, 4])
def test_resize_is_that_of_onnx_runtime(kind: str, rank: int) -> None:
    shape = (1, 2, 4, 5)[4 - rank :]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    roundings = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    ways = [{"mode": "nearest", "nearest_mode": r} for r in roundings] + [{"mode": "linear"}]
    for way in ways:
        how = {**way, "coordinate_transformation_mode": kind}
        for scales, sizes in [(s, None) for s in SCALES] + [(None, s) for s in SIZES]:
            proto = model(how, scales, sizes, rank)
            session = ort.InferenceSession(proto.SerializeToString())
            (want,) = session.run(None, {"x": x})
            (got,) = load(proto).run({"x": x})
            assert got.shape == want.shape, (how, scales, sizes)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=str((how, scales)))


def test_what_detectors_do_to_their_maps_is_interpolate() -> None:
    how = {"mode": "nearest", "kind": "asymmetric", "nearest_mode": "floor"}
    found = as_interpolate((1, 8, 20, 20), (1, 8, 40, 40), (1.0, 1.0, 2.0, 2.0), how)
    assert found == {"mode": "nearest"}
    assert as_interpolate((1, 8, 20, 20), (1, 8, 30, 30), (1.0, 1.0, 1.5, 1.5), how) is None
    assert as_interpolate((1, 8, 20, 20), (1, 9, 40, 40), None, how) is None
