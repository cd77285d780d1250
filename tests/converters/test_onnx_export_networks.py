# SPDX-License-Identifier: Apache-2.0
"""Whole networks written as ONNX and run in ONNX Runtime at other batch sizes."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF

ort = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from nnl.converters.onnx.exporting.exporter import save  # noqa: E402
from nnl.utils.nnp_graph import NnpLoader  # noqa: E402
from nnl.utils.save import save as save_nnp  # noqa: E402


@pytest.fixture(autouse=True)
def seeded() -> None:
    nn.seed(7)


def lenet(x):
    y = F.max_pooling(F.relu(PF.convolution(x, 6, (5, 3), name="conv1")), (2, 2))
    y = F.max_pooling(F.relu(PF.convolution(y, 8, (3, 3), name="conv2")), (2, 2))
    y = F.relu(PF.affine(y, 20, name="fc1"))
    return F.softmax(PF.affine(F.dropout(y, 0.5), 10, name="fc2"))


def normalized(x):
    return PF.batch_normalization(x, batch_stat=True)


def resnet(x):
    def block(x, maps, stride, name):
        with nn.parameter_scope(name):
            y = PF.convolution(x, maps, (3, 3), (1, 1), (stride,) * 2, with_bias=False, name="a")
            with nn.parameter_scope("bn_a"):
                y = F.relu(normalized(y))
            y = PF.convolution(y, maps, (3, 3), pad=(1, 1), with_bias=False, name="b")
            with nn.parameter_scope("bn_b"):
                y = normalized(y)
            if stride > 1:
                x = PF.convolution(x, maps, (1, 1), stride=(stride,) * 2, name="skip")
            return F.relu(F.add2(x, y))

    y = PF.convolution(x, 8, (7, 7), (3, 3), (2, 2), with_bias=False, name="stem")
    y = F.max_pooling(F.relu(normalized(y)), (3, 3), (2, 2), pad=(1, 1))
    for i, maps in enumerate((8, 12)):
        y = block(y, maps, 1 + (i > 0), f"block{i}a")
        y = block(y, maps, 1, f"block{i}b")
    return PF.affine(F.global_average_pooling(y), 10)


def dcgan_generator(z):
    y = F.reshape(PF.affine(z, 16 * 3 * 2, name="project"), (z.shape[0], 16, 3, 2))
    for i, maps in enumerate((8, 4)):
        y = PF.deconvolution(F.relu(y), maps, (4, 4), (1, 1), (2, 2), name=f"up{i}")
        with nn.parameter_scope(f"bn{i}"):
            y = normalized(y)
    return F.tanh(PF.deconvolution(y, 3, (3, 3), (1, 1), (2, 2), output_padding=(1, 1), name="out"))


def unet(x):
    def double(x, maps, name):
        y = F.elu(PF.convolution(x, maps, (3, 3), (1, 1), name=f"{name}1"))
        return PF.group_normalization(y, 2, name=f"{name}2")

    first = double(x, 4, "down1")
    second = double(F.average_pooling(first, (2, 2), ignore_border=False), 8, "down2")
    y = F.interpolate(second, output_size=first.shape[2:], mode="linear", align_corners=True)
    y = double(F.concatenate(first, y, axis=1), 4, "up1")
    y = F.concatenate(y, F.unpooling(second, (2, 2))[:, :, :7, :9], axis=1)
    return F.sigmoid(PF.convolution(y, 1, (1, 1), name="out"))


def mobilenet_block(x):
    y = F.relu6(PF.convolution(x, 12, (1, 1), name="expand"))
    y = F.relu6(PF.depthwise_convolution(y, (3, 3), (1, 1), (2, 2), name="depthwise"))
    gate = F.mean(y, axis=(2, 3), keepdims=True)
    gate = F.hard_sigmoid(PF.convolution(F.swish(gate), 12, (1, 1), name="gate"))
    return PF.convolution(y * gate, 4, (1, 1), name="project")


def vision_transformer(x):
    """Patches, a class token that is stretched over the batch, positions, one layer."""
    batch = x.shape[0]
    y = PF.convolution(x, 8, (4, 3), stride=(4, 3), name="patches")
    y = F.transpose(F.reshape(y, (batch, 8, -1)), (0, 2, 1))
    token = nn.parameter.get_parameter_or_create("token", (1, 1, 8), np.full((1, 1, 8), 0.3))
    y = F.concatenate(F.broadcast(token, (batch, 1, 8)), y, axis=1)
    place = np.linspace(-1, 1, y.shape[1] * 8).reshape(1, -1, 8)
    y = y + nn.parameter.get_parameter_or_create("positions", place.shape, place)
    y = F.transpose(y, (1, 0, 2))
    y = PF.transformer_encode(y, 8, 2, 16, dropout=0.1)
    return PF.affine(y[0], 3)


def transformer_layer(x):
    mask = nn.Variable.from_numpy_array(np.triu(np.full((5, 5), -1e9, np.float32), 1))
    mask.name = "mask"
    return PF.transformer_encode(x, 8, 2, 16, src_additive_mask=mask)


def language_model(words):
    """(T, B) word numbers -> (T, B, words): an LSTM of two layers from zero states."""
    steps, batch = words.shape
    x = PF.embed(words, 11, 6)
    state = F.constant(0.0, (2, 1, batch, 5))
    y, _, _ = PF.lstm(x, state, state, num_layers=2)
    return PF.affine(y, 11, base_axis=2)


def gru_cells(x):
    """Unrolled over the middle axis of (B, T, D)."""
    h = F.constant(0.0, (x.shape[0], 4))
    for t in range(x.shape[1]):
        both = F.concatenate(x[:, t], h, axis=1)
        z = F.sigmoid(PF.affine(both, 4, name="z"))
        n = F.tanh(PF.affine(both, 4, name="n"))
        h = z * h + (1 - z) * n
    return PF.layer_normalization(h)


# network, shape of one sample, axis of the batch
NETWORKS = [
    (lenet, (1, 29, 23), 0),
    (resnet, (3, 37, 31), 0),
    (dcgan_generator, (10,), 0),
    (unet, (2, 7, 9), 0),
    (mobilenet_block, (4, 9, 7), 0),
    (vision_transformer, (3, 8, 9), 0),
    (transformer_layer, (5, 8), 1),
    (language_model, (4,), 1),
    (gru_cells, (3, 5), 0),
]


def randomize(rng):
    """Running statistics and biases that show whether they are used."""
    for name, p in nn.get_parameters(grad_only=False).items():
        if name.endswith(("var", "gamma")):
            p.d = rng.uniform(0.5, 1.5, p.shape)
        elif name.endswith(("mean", "beta", "b", "bias")):
            p.d = rng.normal(size=p.shape)


def sample(network, shape, axis, batch, rng):
    full = (*shape[:axis], batch, *shape[axis:])
    if network is language_model:
        return rng.integers(0, 11, full).astype(np.float32)
    return rng.normal(size=full).astype(np.float32)


def inference(network, x):
    """The value with running statistics and without dropout, by nnl."""
    v = nn.Variable.from_numpy_array(x)
    y = network(v)

    def as_in_inference(f):
        if "batch_stat" in f.args:
            f.node.attrs = f.node.op.attrs(**{**f.node.attrs.as_dict(), "batch_stat": False})
        if f.name == "Dropout":
            f.node.attrs = f.node.op.attrs(p=0.0, seed=f.args["seed"])

    y.visit(as_in_inference)
    y.forward()
    return y.d


def session(path):
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(("built", "opset"), [(1, 18), (2, 11), (2, 13), (2, 21), (3, 26)])
@pytest.mark.parametrize("case", NETWORKS, ids=lambda c: c[0].__name__)
def test_network_runs_at_other_batch_sizes(case, built, opset, tmp_path):
    network, shape, axis = case
    rng = np.random.default_rng(3)
    x = nn.Variable.from_numpy_array(sample(network, shape, axis, built, rng))
    y = network(x)
    randomize(rng)
    save(tmp_path / "net.onnx", {"y": y}, {"x": x}, opset=opset, batch_axes={"x": axis})
    runtime = session(tmp_path / "net.onnx")
    assert runtime.get_inputs()[0].shape[axis] == "N"
    for batch in (1, 4):
        value = sample(network, shape, axis, batch, rng)
        got = runtime.run(None, {"x": value})[0]
        want = inference(network, value)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_parameters_keep_their_names_and_bytes(tmp_path):
    x = nn.Variable((2, 1, 29, 23))
    y = lenet(x)
    save(tmp_path / "net.onnx", {"y": y}, {"image": x})
    model = onnx.load(tmp_path / "net.onnx")
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    for name, p in nn.get_parameters().items():
        np.testing.assert_array_equal(stored[name], p.d)
    assert [i.name for i in model.graph.input] == ["image"]


def test_statistics_keep_their_names_in_the_shape_that_onnx_wants(tmp_path):
    x = nn.Variable((2, 3, 8, 8))
    h = PF.batch_normalization(x, name="bn")
    h.name = "normal"
    save(tmp_path / "net.onnx", {"y": F.relu(h)}, {"x": x})
    model = onnx.load(tmp_path / "net.onnx")
    node = model.graph.node[0]
    assert list(node.input) == ["x"] + [f"bn/bn/{n}" for n in ("gamma", "beta", "mean", "var")]
    assert list(node.output) == ["normal"]
    assert {tuple(t.dims) for t in model.graph.initializer} == {(3,)}


def test_the_same_network_gives_the_same_bytes(tmp_path):
    x = nn.Variable((2, 3, 37, 31))
    y = resnet(x)
    for name in ("a.onnx", "b.onnx"):
        save(tmp_path / name, y, x)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    again = resnet(x)  # recorded a second time
    save(tmp_path / "c.onnx", again, x)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "c.onnx").read_bytes()


def test_network_without_a_batch_name_has_fixed_sizes(tmp_path):
    x = nn.Variable((2, 1, 29, 23))
    save(tmp_path / "net.onnx", lenet(x), x, batch=None)
    assert session(tmp_path / "net.onnx").get_inputs()[0].shape == [2, 1, 29, 23]


def test_network_from_an_nnp_file_is_exported(tmp_path):
    x = nn.Variable((2, 1, 29, 23))
    x.name = "x"
    y = lenet(x)
    network = {"name": "net", "batch_size": 2, "outputs": {"y": y}, "names": {"x": x}}
    save_nnp(str(tmp_path / "net.nnp"), {"networks": [network]})
    value = np.random.default_rng(0).normal(size=(3, 1, 29, 23)).astype(np.float32)
    want = inference(lenet, value)
    nn.clear_parameters()
    loaded = NnpLoader(str(tmp_path / "net.nnp")).get_network("net")
    save(tmp_path / "net.onnx", loaded)
    got = session(tmp_path / "net.onnx").run(None, {"x": value})[0]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
