# SPDX-License-Identifier: Apache-2.0
"""Operators of older versions, and the settings that importers get wrong, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

import nnl as nn

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from nnl.converters.onnx import load  # noqa: E402

RNG = np.random.default_rng(3)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def check(opset, op, inputs, outputs=1, rtol=1e-5, **attributes):
    """One node, with arrays that are inputs (floats) or initializers (anything else)."""
    nn.clear_parameters()
    names = ["" if a is None else f"i{k}" for k, a in enumerate(inputs)]
    feeds, weights = {}, []
    for name, a in zip(names, inputs, strict=True):
        if a is None:
            continue
        if a.dtype == np.float32 and a.ndim:
            feeds[name] = a
        else:
            weights.append(numpy_helper.from_array(a, name))
    graph = helper.make_graph(
        [helper.make_node(op, names, [f"o{k}" for k in range(outputs)], **attributes)],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in feeds.items()],
        [onnx.ValueInfoProto(name=f"o{k}") for k in range(outputs)],
        weights,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6 if opset < 15 else 9
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    wanted = session.run(None, feeds)
    for y, w in zip(load(model).run(**feeds), wanted, strict=True):
        assert y.dtype == w.dtype
        np.testing.assert_allclose(y, w, rtol=rtol, atol=rtol)


def ints(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("op", ("Softmax", "LogSoftmax", "Hardmax"))
@pytest.mark.parametrize(("opset", "axis"), ((11, 1), (11, 2), (11, -1), (9, 1), (13, 1), (13, -1)))
def test_softmax_flattens_before_version_13(op, opset, axis):
    check(opset, op, [normal(2, 3, 4, 5)], axis=axis)


def test_attributes_that_became_inputs():
    x = normal(3, 4, 5)
    check(7, "Clip", [x], min=-0.5, max=0.25)
    check(7, "Clip", [x], max=0.25)
    check(11, "Clip", [x, None, np.array(0.25, np.float32)])
    check(8, "Pad", [x], pads=[0, 1, 2, 1, 0, 3], value=1.5)
    check(11, "Pad", [x, ints(0, 1, 2, 1, 0, -3)])
    check(9, "Slice", [x], starts=[1, -3], ends=[100, -1], axes=[2, 1])
    check(10, "Slice", [x, ints(-1, 3), ints(-100, 0), ints(1, 2), ints(-1, -2)])
    check(8, "Squeeze", [normal(1, 3, 1)], axes=[0])
    check(8, "Squeeze", [normal(1, 3, 1)])
    check(13, "Squeeze", [normal(1, 3, 1), ints(-1)])
    check(8, "Unsqueeze", [x], axes=[0, 4])
    check(13, "Unsqueeze", [x, ints(-1, 0)])
    check(8, "Split", [x], outputs=2, axis=1, split=[1, 3])
    check(8, "Split", [x], outputs=2, axis=1)
    check(18, "Split", [x], outputs=2, axis=2, num_outputs=2)
    check(8, "ReduceSum", [x], axes=[0, 2], keepdims=0)
    check(13, "ReduceSum", [x, ints(0, 2)])
    check(13, "ReduceMean", [x], axes=[-1])
    check(18, "ReduceMean", [x, ints(-1)], keepdims=0)
    check(10, "TopK", [x, ints(2)], outputs=2, axis=1)
    check(7, "Dropout", [x], ratio=0.9)


@pytest.mark.parametrize("auto_pad", ("SAME_UPPER", "SAME_LOWER", "VALID"))
@pytest.mark.parametrize("size", (7, 10))
def test_automatic_padding(auto_pad, size):
    x = normal(2, 3, size, size + 1)
    window = {"strides": [2, 3], "auto_pad": auto_pad}
    check(11, "Conv", [x, normal(4, 3, 2, 4)], **window, rtol=1e-4)
    check(11, "MaxPool", [x], kernel_shape=[4, 3], **window)
    check(11, "AveragePool", [x], kernel_shape=[4, 3], **window)


def test_padding_that_differs_at_the_two_ends():
    x = normal(2, 4, 9, 7)
    window = {"pads": [0, 2, 1, 0], "strides": [2, 1], "kernel_shape": [3, 3]}
    check(11, "Conv", [x, normal(6, 2, 3, 3), normal(6)], group=2, dilations=[1, 2], **window)
    check(11, "MaxPool", [x], **window)
    check(11, "AveragePool", [x], count_include_pad=0, **window)
    check(11, "AveragePool", [x], count_include_pad=1, **window)
    check(11, "LpPool", [x], p=3, **window)
    check(11, "ConvTranspose", [x, normal(4, 3, 3, 3), normal(6)], group=2, **window, rtol=1e-4)
    check(11, "ConvTranspose", [x, normal(4, 3, 3, 3)], output_padding=[1, 0], **window, rtol=1e-4)


@pytest.mark.parametrize("size", (6, 7, 8, 9))
def test_the_last_window_of_ceil_mode(size):
    x = normal(1, 2, size, size + 2)
    window = {"kernel_shape": [3, 2], "strides": [3, 3], "pads": [1, 0, 1, 1], "ceil_mode": 1}
    check(12, "MaxPool", [x], outputs=2, **window)
    check(12, "MaxPool", [x], **{**window, "pads": [1, 0, 1, 0]}, dilations=[1, 2])
    check(19, "AveragePool", [x], count_include_pad=0, **window)


@pytest.mark.parametrize(
    "kind", ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
)
@pytest.mark.parametrize("mode", ("nearest", "linear", "cubic"))
def test_resize_coordinates(mode, kind):
    x, sizes = normal(1, 2, 5, 7), ints(1, 2, 9, 4)
    how = {"mode": mode, "coordinate_transformation_mode": kind}
    if mode == "nearest":
        how["nearest_mode"] = "floor"
    check(13, "Resize", [x, None, None, sizes], **how, rtol=1e-4)
    scales = np.array([1, 1, 2, 3], np.float32)
    nodes = [
        helper.make_node("Constant", [], ["s"], value=numpy_helper.from_array(scales)),
        helper.make_node("Resize", ["x", "", "s"], ["y"], **how),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [onnx.ValueInfoProto(name="y")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    np.testing.assert_allclose(load(proto).run(x)[0], session.run(None, {"x": x})[0], atol=1e-4)


def test_matrix_products_of_every_rank():
    for a, b in (((3,), (3,)), ((3,), (2, 3, 4)), ((2, 3, 4), (4,)), ((5, 1, 2, 3), (4, 3, 2))):
        check(13, "MatMul", [normal(*a), normal(*b)])
    for flags in ({}, {"transA": 1}, {"transB": 1, "alpha": 0.5, "beta": 2.0}):
        a = normal(4, 3) if flags.get("transA") else normal(3, 4)
        b = normal(5, 4) if flags.get("transB") else normal(4, 5)
        for c in (None, normal(5), normal(3, 1), normal(1)):
            check(13, "Gemm", [a, b] if c is None else [a, b, c], **flags)


@pytest.mark.parametrize("op", ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Less"))
def test_broadcasting_of_scalars_and_ranks(op):
    for shapes in (((), (2, 3)), ((3,), (2, 1)), ((2, 3), (4, 1, 1)), ((1, 1, 1), (2,))):
        check(13, op, [np.abs(np.asarray(normal(*s), np.float32)) for s in shapes])


def test_prelu_broadcasts_its_slope():
    check(13, "PRelu", [normal(2, 3, 4), normal(3, 1)])


@pytest.mark.parametrize("direction", ("forward", "reverse", "bidirectional"))
@pytest.mark.parametrize("lengths", (None, (5, 2, 3)))
@pytest.mark.parametrize(("op", "gates"), (("RNN", 1), ("LSTM", 4), ("GRU", 3)))
def test_recurrent_layers(op, gates, direction, lengths):
    d = 2 if direction == "bidirectional" else 1
    x, w, r = normal(5, 3, 2), normal(d, gates * 4, 2), normal(d, gates * 4, 4)
    b, h = normal(d, 2 * gates * 4), normal(d, 3, 4)
    n = None if lengths is None else np.array(lengths, np.int32)
    inputs = [x, w, r, b, n, h]
    settings = [{}, {"clip": 0.3}]
    if op == "LSTM":
        inputs.append(normal(d, 3, 4))
        check(14, op, [*inputs, normal(d, 12)], 3, 1e-4, hidden_size=4, direction=direction)
    if op == "GRU":
        settings.append({"linear_before_reset": 1})
    for more in settings:
        check(14, op, inputs, 3 if op == "LSTM" else 2, 1e-4, hidden_size=4, direction=direction,
              **more)  # fmt: skip


def test_normalisation_of_old_versions():
    x = normal(2, 3, 4, 5)
    parts = [normal(3), normal(3), normal(3), np.abs(normal(3)) + 0.5]
    for opset in (7, 9, 14, 15):
        check(opset, "BatchNormalization", [x, *parts], epsilon=1e-3, rtol=1e-4)
    check(7, "InstanceNormalization", [x, *parts[:2]], rtol=1e-4)
    check(13, "LRN", [x], size=3, alpha=0.5, beta=0.6, bias=1.5, rtol=1e-4)
    check(17, "LayerNormalization", [x, normal(5), normal(5)], outputs=3, rtol=1e-4)
    check(17, "LayerNormalization", [x, normal(4, 5)], axis=2, rtol=1e-4)


@pytest.mark.parametrize("mode", ("linear", "nearest", "cubic"))
@pytest.mark.parametrize("padding_mode", ("zeros", "border", "reflection"))
@pytest.mark.parametrize("align_corners", (0, 1))
def test_grid_sample(mode, padding_mode, align_corners):
    x, grid = normal(2, 3, 5, 6), 1.5 * normal(2, 4, 7, 2)
    how = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    check(20, "GridSample", [x, grid], **how, rtol=1e-4)


def test_boxes():
    x = normal(2, 3, 8, 9)
    rois = np.array([[0, 0, 7, 6], [1.2, 2.5, 5, 7.9], [3, 3, 3.2, 3.1]], np.float32)
    batch = ints(0, 1, 1)
    for mode in ("avg", "max"):
        for kind in ("half_pixel", "output_half_pixel"):
            for ratio in (0, 2):
                how = {"mode": mode, "coordinate_transformation_mode": kind}
                how |= {"sampling_ratio": ratio, "output_height": 3, "output_width": 2}
                check(16, "RoiAlign", [x, rois, batch], spatial_scale=0.9, rtol=1e-4, **how)
    rows = np.concatenate([batch[:, None].astype(np.float32), rois], 1)
    check(11, "MaxRoiPool", [x, rows], pooled_shape=[3, 2], spatial_scale=1.0)
