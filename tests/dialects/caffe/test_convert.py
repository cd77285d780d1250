# SPDX-License-Identifier: Apache-2.0
"""Networks go from Caffe's files to other formats and back, and give what they gave."""

import numpy as np
import pytest

import nnl as nn
import nnl.dialects.caffe as caffe
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.cli.main import main
from nnl.converters.caffe.writer import write
from nnl.converters.formats import WriteOptions, format_of, read_model
from nnl.converters.networks.lowering import CannotLower
from nnl.converters.networks.model import Network
from nnl.workspace import Workspace
from tests.dialects.caffe import networks

ort = pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nn.seed(0)
    with Workspace({}):
        yield


def made(text):
    """Files of a network, an input, and what Caffe gives for it."""
    with open("a.prototxt", "w") as file:
        file.write(text)
    net = caffe.Net("a.prototxt", caffe.TEST)
    for layer in net.layers:
        if layer.type == "BatchNorm":
            for p, value in zip(layer.blobs, (0.5, 3, 2), strict=True):
                p.data[...] = value
    net.save("a.caffemodel")
    x = np.random.default_rng(0).normal(size=net.blobs["data"].shape).astype("f")
    return x, next(iter(net.forward(data=x).values()))


def run(name, x):
    net = caffe.Net(f"{name}.prototxt", f"{name}.caffemodel", caffe.TEST)
    return next(iter(net.forward(**{net.inputs[0]: x}).values()))


@pytest.mark.parametrize(
    "text",
    [
        networks.resnet(18, 2, 64, 10, filler='type: "msra"'),
        networks.squeezenet().replace("227", "67").replace('type: "constant"', 'type: "msra"'),
    ],
    ids=["resnet18", "squeezenet"],
)
def test_networks_go_to_other_formats_and_back(text):
    x, wanted = made(text)
    for name in ("b.nnp", "b.onnx"):
        assert main(["convert", "a.prototxt", "a.caffemodel", name, "-b", str(len(x))]) == 0
        assert main(["convert", name, "c.caffemodel", "-b", str(len(x))]) == 0
        np.testing.assert_allclose(run("c", x).reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-6)
    (y,) = ort.InferenceSession("b.onnx").run(None, {"data": x})
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-6)
    assert main(["convert", "a.prototxt", "a.caffemodel", "b.nnlp", "-b", "1"]) == 0
    (y,) = nn.load_program("b.nnlp").run(data=x[:1]).values()
    np.testing.assert_allclose(y, wanted[:1], rtol=1e-4, atol=1e-6)


def fc(x):
    return PF.affine(x, 5)


def numbers(*shape):
    return nn.Variable.from_numpy_array(np.random.default_rng(1).normal(size=shape).astype("f"))


WRITTEN = {
    "convolution": lambda x: PF.convolution(x, 6, (3, 2), pad=(1, 0), stride=(2, 1), group=2),
    "dilated": lambda x: PF.convolution(x, 6, (3, 3), dilation=(2, 1), with_bias=False),
    "deconvolution": lambda x: PF.deconvolution(x, 6, (4, 4), pad=(1, 1), stride=(2, 2), group=2),
    "pooling": lambda x: F.max_pooling(x, (3, 3), (2, 2)),
    "clipped": lambda x: F.max_pooling(x, (2, 2), ignore_border=False),
    "padded": lambda x: F.max_pooling(F.pad(x, (0, 1, 1, 2), constant_value=-1e38), (3, 3), (2, 2)),
    "average": lambda x: F.average_pooling(x, (3, 3), (2, 2), pad=(1, 1)),
    "global": lambda x: F.mean(x, (2, 3), keepdims=True),
    "mean": lambda x: F.sum(x, (2, 3)),
    "normalization": lambda x: F.relu(PF.batch_normalization(F.abs(x), batch_stat=False)),
    "affine": fc,
    "activations": lambda x: F.tanh(F.sigmoid(F.leaky_relu(F.elu(PF.prelu(x), 0.5), 0.2))),
    "more": lambda x: F.softplus(F.log(F.exp(x) * 2 + 1) ** 2),
    "bounds": lambda x: F.minimum_scalar(F.maximum_scalar(x, -0.5), 0.5),
    "softmax": lambda x: F.softmax(x, axis=1),
    "pairs": lambda x: F.maximum2(x + F.relu(x), x * F.sigmoid(x) - x),
    "joined": lambda x: F.concatenate(x, F.relu(x), axis=1),
    "cut": lambda x: F.concatenate(x[:, 1:3], x[:, :2], x[:, 2:], axis=1),
    "shapes": lambda x: F.transpose(F.reshape(x, (2, 12, -1)), (0, 2, 1)),
    "constants": lambda x: x * numbers(1, 4, 1, 1) + numbers(1, 4, 7, 1) - numbers(1, 1, 1, 6),
    "swish": F.swish,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_functions_become_layers(name):
    x = nn.Variable((2, 4, 7, 6))
    x.d = np.random.default_rng(0).normal(size=x.shape)
    scope = {}
    with nn.parameter_scope("", scope):
        y = WRITTEN[name](x)
    y.forward()
    write("w.caffemodel", Network("w", {"x": x}, {"y": y}, scope))
    np.testing.assert_allclose(run("w", x.d).reshape(y.shape), y.d, rtol=1e-4, atol=1e-5)


def test_what_caffe_does_not_have_is_listed_at_once():
    x = nn.Variable((2, 4, 7, 6))
    y = F.sort(F.sin(F.relu(x)), axis=1)
    with pytest.raises(CannotLower, match="(?s)CAFFE cannot hold.*sin.*sort"):
        write("w.caffemodel", Network("w", {"x": x}, {"y": y}, {}))


def test_a_prototxt_is_caffes_or_nnablas_by_what_is_in_it():
    made(networks.cifar10_quick(1).partition('layer { name: "accuracy"')[0])
    model, found = read_model(["a.prototxt"])
    assert found.name == "CAFFE"
    format_of("b.prototxt", None, True).write(model, "b.prototxt", WriteOptions(1))
    assert read_model(["b.prototxt"])[1].name == "NNP"
    assert read_model(["a.caffemodel"])[1].name == "CAFFE"  # its prototxt is beside it
    with pytest.raises(ValueError, match="is a .prototxt and a .caffemodel, got"):
        read_model(["other.caffemodel"])
    text = 'layer { name: "p" type: "Python" top: "y" python_param { module: "os" layer: "x" } }'
    with open("p.prototxt", "w") as file:
        file.write(text)
    with pytest.raises(ValueError, match="it is code in Python, which is not run here"):
        read_model(["p.prototxt"])
