# SPDX-License-Identifier: Apache-2.0
"""Networks of Caffe: how they are read, run, shared and written."""

import numpy as np
import pytest

import nnl as nn
import nnl.dialects.caffe as caffe
from nnl.converters.caffe.messages import messages, parse_text
from nnl.workspace import Function, Workspace, current
from tests.dialects.caffe import networks


@pytest.fixture(autouse=True)
def workspace():
    with Workspace({}):
        yield


def net_of(text, *args, **options):
    return caffe.Net(parse_text("NetParameter", text, "test"), *args, **options)


# Parameters that learn: as their papers or their first implementations say
COUNTS = {
    "lenet": (networks.lenet, 431_080),
    "cifar10_quick": (networks.cifar10_quick, 145_578),
    "googlenet": (networks.googlenet, 6_998_552),
    "resnet18": (lambda: networks.resnet(18), 11_689_512),
    "squeezenet": (networks.squeezenet, 1_248_424),
    # 4112 + 8224 of convolutions, 2592 x 256 + 256, 256 x 7 + 7
    "ga3c": (networks.ga3c, 4_112 + 8_224 + 663_808 + 1_799),
}
LARGE = {
    "resnet50": (lambda: networks.resnet(50), 25_557_032),
    "alexnet": (networks.alexnet, 60_965_224),
    "vgg16": (networks.vgg16, 138_357_544),
    # VGG-16 without its last layer, 21 classes of scores, and interpolation
    "fcn32s": (lambda: networks.fcn(32), 134_260_544 + 86_037 + 21 * 21 * 64 * 64),
    "fcn16s": (lambda: networks.fcn(16), 134_260_544 + 86_037 + 21 * 21 * (16 + 32 * 32) + 10_773),
    "fcn8s": (
        lambda: networks.fcn(8),
        134_260_544 + 86_037 + 21 * 21 * (32 + 256) + 10_773 + 5_397,
    ),
}


@pytest.mark.parametrize(
    "name", [*COUNTS, *(pytest.param(n, marks=pytest.mark.long) for n in LARGE)]
)
def test_networks_of_papers_have_the_published_number_of_parameters(name):
    build, wanted = {**COUNTS, **LARGE}[name]
    net = net_of(build(), caffe.TEST)
    assert sum(p.count for p in net.parameters if p.variable.need_grad) == wanted
    if name.startswith("fcn"):
        assert net.blobs["score"].shape == (1, 21, 64, 64)


CHAIN = """name: "chain" force_backward: true input: "x" input_shape { dim: 2 dim: 3 }
layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 4
  weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }
layer { name: "square" type: "Power" bottom: "a" top: "a" power_param { power: 2 } }
layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" inner_product_param { num_output: 1
  weight_filler { type: "xavier" } } }"""


def test_what_layers_change_in_place_is_differentiated_as_it_was():
    net = net_of(CHAIN, caffe.TRAIN)
    x = np.random.default_rng(0).normal(size=(2, 3)).astype("f")
    net.forward(x=x)
    (w, b), (v, c) = (tuple(p.data.copy() for p in net.params[k]) for k in "ab")
    h = np.maximum(x @ w.T + b, 0)
    np.testing.assert_allclose(net.blobs["a"].data, h**2, rtol=1e-5)
    net.backward(b=np.ones((2, 1)))
    np.testing.assert_allclose(net.blobs["x"].diff, (v[0] * 2 * h) @ w, rtol=1e-5)
    np.testing.assert_allclose(net.params["b"][0].diff, (h**2).sum(0, keepdims=True), rtol=1e-5)
    net.backward()
    np.testing.assert_allclose(net.params["b"][0].diff, 2 * (h**2).sum(0, keepdims=True), rtol=1e-5)
    net.clear_param_diffs()
    assert not net.params["b"][0].diff.any()


def test_ranges_of_layers_run_alone_forward_and_backward():
    net = net_of(CHAIN, caffe.TEST)
    x = np.ones((2, 3), "f")
    whole = net.forward(x=x)["b"].copy()
    net.blobs["a"].data[...] = 3
    found = net.forward(start="b")["b"]
    np.testing.assert_allclose(
        found, 3 * net.params["b"][0].data.sum() * np.ones((2, 1)), rtol=1e-5
    )
    assert set(net.forward(end="relu")) == {"a"}
    np.testing.assert_array_equal(net.forward(start="a")["b"], whole)
    net.forward()
    net.backward(start="b", end="b", b=np.ones((2, 1)))
    np.testing.assert_allclose(net.blobs["a"].diff, np.repeat(net.params["b"][0].data, 2, 0))
    with pytest.raises(ValueError, match="no layer is called 'bb'.*did you mean b"):
        net.forward(start="bb")
    with pytest.raises(ValueError, match="no input is called 'y', only x"):
        net.forward(y=x)
    with pytest.raises(ValueError, match=r"got the shape \(5,\), wanted \(2, 3\)"):
        net.forward(x=np.ones(5))


def test_inputs_take_other_shapes():
    net = net_of(networks.squeezenet(), caffe.TEST)
    net.blobs["data"].reshape(3, 3, 131, 99)
    net.reshape()
    assert net.blobs["pool10"].shape == (3, 1000, 1, 1)
    net = net_of(CHAIN, caffe.TEST)
    net.blobs["x"].reshape(5, 3)
    assert net.forward(x=np.ones((5, 3)))["b"].shape == (5, 1)
    found = net.forward_all(x=np.ones((7, 3)))["b"]
    assert found.shape == (7, 1)
    net.blobs["x"].reshape(5, 4)
    with pytest.raises(ValueError, match="Net.reshape: layer 'a'"):
        net.reshape()


RULES = """name: "rules" input: "x" input_shape { dim: 1 dim: 2 }
layer { name: "train" type: "ReLU" bottom: "x" top: "y" include { phase: TRAIN } }
layer { name: "test" type: "TanH" bottom: "x" top: "y"
  include { phase: TEST not_stage: "deploy" } }
layer { name: "deploy" type: "Sigmoid" bottom: "x" top: "y"
  include { phase: TEST stage: "deploy" } }
layer { name: "deep" type: "AbsVal" bottom: "y" top: "z" exclude { max_level: 1 } }"""


@pytest.mark.parametrize(
    "phase, level, stages, wanted",
    [
        (caffe.TRAIN, 0, [], ["train"]),
        (caffe.TEST, 0, [], ["test"]),
        (caffe.TEST, 2, ["deploy"], ["deploy", "deep"]),
    ],
)
def test_rules_of_phases_levels_and_stages(phase, level, stages, wanted):
    net = net_of(RULES, phase, level=level, stages=stages)
    assert [layer.name for layer in net.layers][1:] == wanted


def test_the_first_version_of_layers_means_the_same():
    v1 = """name: "old" input: "data" input_dim: 2 input_dim: 3 input_dim: 8 input_dim: 8
    layers { name: "c" type: CONVOLUTION bottom: "data" top: "c" blobs_lr: 1 blobs_lr: 2
      weight_decay: 1 weight_decay: 0 convolution_param { num_output: 4 kernel_size: 3 } }
    layers { name: "r" type: RELU bottom: "c" top: "c" }
    layers { name: "p" type: POOLING bottom: "c" top: "p"
      pooling_param { pool: AVE kernel_size: 3 stride: 2 } }
    layers { name: "l" type: SOFTMAX_LOSS bottom: "p" bottom: "t" }"""
    label = 'input: "t" input_dim: 2 input_dim: 1 input_dim: 3 input_dim: 3 '
    v1 = v1.replace("layers {", f"{label} layers {{", 1)
    net = net_of(v1, caffe.TRAIN)
    assert [layer.type for layer in net.layers] == [
        "Input",
        "Convolution",
        "ReLU",
        "Pooling",
        "SoftmaxWithLoss",
    ]
    assert [(p.lr_mult, p.decay_mult) for p in net.params["c"]] == [(1, 1), (2, 0)]
    assert net.blobs["p"].shape == (2, 4, 3, 3) and net.outputs == ["l"]


def test_parameters_with_names_are_shared_in_a_network():
    text = """name: "siamese" input: "a" input: "b" input_shape { dim: 2 dim: 3 }
    layer { name: "f" type: "InnerProduct" bottom: "a" top: "f" param { name: "w" }
      param { name: "b" } inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
    layer { name: "g" type: "InnerProduct" bottom: "b" top: "g" param { name: "w" }
      param { name: "b" } inner_product_param { num_output: 2 } }"""
    net = net_of(text, caffe.TEST)
    assert len(net.parameters) == 2 and net.params["f"] == net.params["g"]
    x = np.ones((2, 3), "f")
    found = net.forward(a=x, b=x)
    np.testing.assert_array_equal(found["f"], found["g"])
    with pytest.raises(ValueError, match=r"parameter 'w' is \(2, 3\) elsewhere, \(4, 3\) here"):
        net_of(text[::-1].replace("2 :tuptuo_mun", "4 :tuptuo_mun", 1)[::-1], caffe.TEST)


def test_networks_share_memory_and_tensors_with_other_functions():
    a, b = net_of(CHAIN, caffe.TEST), net_of(CHAIN, caffe.TEST)
    a.share_with(b)
    b.params["a"][0].data[...] = 1
    assert (a.params["a"][0].data == 1).all()
    assert a.params["a"][0].data.ctypes.data == b.params["a"][0].data.ctypes.data
    double = Function([a.blobs["x"]], [a.blobs["a"] + a.blobs["a"]])
    x = np.ones((2, 3), "f")
    np.testing.assert_allclose(double(x)[0], 2 * a.forward(x=x, blobs=["a"])["a"])
    current().feed("chain/x", 2 * x)
    np.testing.assert_allclose(a.forward()["b"], 4 * b.forward(x=x)["b"], rtol=1e-5)
    np.testing.assert_array_equal(current().fetch("chain/a"), a.blobs["a"].data)
    f = a.function()
    f(x)
    assert "pow_scalar" in f.text(passes=False) or "mul" in f.text(passes=False)
    other = net_of(CHAIN.replace("num_output: 4", "num_output: 5"), caffe.TEST)
    with pytest.raises(ValueError, match="layer 'a': parameter 0 has the shape"):
        a.share_with(other)


@pytest.mark.parametrize("ending", [".caffemodel", ".caffemodel.h5"])
def test_weights_are_written_and_read(ending, tmp_path):
    path = str(tmp_path / f"a{ending}")
    net = net_of(networks.lenet(2), caffe.TEST)
    net.save(path)
    x = {"data": np.random.default_rng(0).normal(size=(2, 1, 28, 28)), "label": np.zeros(2)}
    wanted = net.forward(**x)["loss"]
    found = net_of(networks.lenet(2), path, caffe.TEST)
    np.testing.assert_array_equal(found.forward(**x)["loss"], wanted)
    third = net_of(networks.lenet(2), caffe.TEST)
    third.copy_from(path)
    np.testing.assert_array_equal(third.forward(**x)["loss"], wanted)
    wide = (
        networks.lenet(2)
        .replace("num_output: 500", "num_output: 400")
        .replace("num_output: 20", "num_output: 21")
    )
    with pytest.raises(ValueError, match=r"(?s)'conv1'.*\(21, 1, 5, 5\).*'ip2'.*\(10, 400\)"):
        net_of(wide, path, caffe.TEST)
    other = net_of(wide, caffe.TEST)
    before = other.params["conv2"][0].data.copy()
    with pytest.raises(ValueError, match="(?s)'conv1'.*'ip1'"):
        other.copy_from(path)
    np.testing.assert_array_equal(other.params["conv2"][0].data, before)


def test_a_caffemodel_is_what_protobuf_reads(tmp_path):
    path = tmp_path / "a.caffemodel"
    net = net_of(networks.lenet(2), caffe.TEST)
    net.save(path)
    proto = messages()["NetParameter"]()
    proto.ParseFromString(path.read_bytes())
    found = {layer.name: layer for layer in proto.layer}
    assert list(found["ip1"].blobs[0].shape.dim) == [500, 800]
    np.testing.assert_array_equal(found["ip1"].blobs[0].data, net.params["ip1"][0].data.ravel())
    old = messages()["NetParameter"](name="old")
    layer = old.layers.add(name="ip2", type=14)
    for p in net.params["ip2"]:
        n, k = (1, *p.shape)[-2:]
        layer.blobs.add(num=1, channels=1, height=n, width=k, data=p.data.ravel())
    path.write_bytes(old.SerializeToString())
    net.params["ip2"][0].data[...] = 0
    net.copy_from(str(path))
    wanted = np.array(found["ip2"].blobs[0].data).reshape(10, 500)
    np.testing.assert_array_equal(net.params["ip2"][0].data, wanted)


def test_damaged_weights_are_refused(tmp_path):
    path = tmp_path / "a.caffemodel"
    net = net_of(networks.lenet(1), caffe.TEST)
    net.save(path)
    content, rng = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for i in range(60):
        data = bytearray(content)
        if i % 3 == 0:
            data = data[: rng.integers(len(data))]
        else:
            for _ in range(4):
                data[rng.integers(len(data) if i % 3 == 1 else 400)] = rng.integers(256)
        path.write_bytes(bytes(data))
        try:
            net.copy_from(str(path))
        except ValueError as error:
            refused += str(path) in str(error)
    assert refused > 20
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        net.copy_from(str(path))


def one(type, bottoms="x", top="y", more="", name="a"):
    given = " ".join(f'bottom: "{b}"' for b in bottoms.split())
    return f'layer {{ name: "{name}" type: "{type}" {given} top: "{top}" {more} }} '


UNKNOWN = """layer { nam: "a"
  type: "ReLU" bottom: "x" top: "y" tops { a: 1 b { c: "}" } }
  botom: "x" }"""
FC = "inner_product_param { num_output: %s }"
BAD = [
    (
        "\n" + one("RelU") + "\n" + one("Foo"),
        "(?s)unknown types.*'RelU', line 2: .*ReLU.*'Foo', line 3",
    ),
    (
        UNKNOWN,
        "(?s)line 1: LayerParameter .* 'nam'.*line 2: .*'tops'.*line 3: .*'botom': .* bottom",
    ),
    (one("ReLU", "z"), "layer 'a' .*: no layer makes bottom 'z'"),
    (
        one("ReLU", "z") + one("ReLU", "y", "z", name="b"),
        "'z' is made by layer 'b', after it or in",
    ),
    (one("ReLU", ""), "has 0 bottom blobs, wanted 1"),
    (one("ReLU") + one("ReLU", name="b"), "layer 'b' .*: top 'y' is made by layer 'a' already"),
    (one("Pooling"), r"\(1, 2\), wanted 4 axes"),
    (one("Data", ""), "reads a LevelDB.*give shapes="),
    (one("WindowData", ""), "reads what is not supported: give shapes="),
    (
        one("InnerProduct", more=FC % '2 weight_filler { type: "xavierr" }'),
        "unknown filler 'xavierr'",
    ),
    (one("InnerProduct", more=FC % 4_000_000_000), "no blob has the shape"),
    (one("Eltwise", "x x", more="eltwise_param { coeff: 1 }"), "1 coeff for 2 bottoms"),
    (one("Concat", "x x", more="concat_param { axis: 4 }"), "axis 4 is not one of 2"),
    (
        one("Python", more='python_param { module: "os" layer: "abort" }'),
        "os.abort is no class derived",
    ),
    (
        one("ReLU", more="include { phase: TEST } exclude { phase: TRAIN }"),
        "both include and exclude",
    ),
    ("layer { name: 3 }", "no NetParameter: 1:[0-9]+"),
]


@pytest.mark.parametrize("text, told", BAD)
def test_bad_networks_say_what_is_wrong(text, told, tmp_path):
    text = f'name: "bad" input: "x" input_shape {{ dim: 1 dim: 2 }} {text}'
    (tmp_path / "bad.prototxt").write_text(text)
    with pytest.raises(ValueError, match=told) as error:
        caffe.Net(tmp_path / "bad.prototxt", caffe.TEST)
    assert str(tmp_path / "bad.prototxt") in str(error.value)


def test_data_comes_from_memory_fillers_and_files(tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    text = """layer { name: "m" type: "MemoryData" top: "d" top: "l"
      memory_data_param { batch_size: 2 channels: 1 height: 1 width: 3 } }
    layer { name: "f" type: "DummyData" top: "c" top: "g" dummy_data_param { shape { dim: 4 }
      data_filler { value: 7 } data_filler { type: "gaussian" } } }
    layer { name: "s" type: "Silence" bottom: "g" }"""
    net = net_of(text, caffe.TRAIN)
    assert net.outputs == ["d", "l", "c"]
    with pytest.raises(ValueError, match="call Net.set_input_arrays"):
        net.forward()
    rows = np.arange(12, dtype="f").reshape(4, 1, 1, 3)
    net.set_input_arrays(rows, np.arange(4))
    seen = [(net.forward()["l"].copy(), net.blobs["g"].data.copy()) for _ in range(3)]
    assert [list(s[0]) for s in seen] == [[0, 1], [2, 3], [0, 1]]
    assert (net.blobs["c"].data == 7).all() and not np.array_equal(seen[0][1], seen[1][1])
    with pytest.raises(ValueError, match=r"a multiple of 2 of them"):
        net.set_input_arrays(rows[:3], np.arange(3))
    monkeypatch.chdir(tmp_path)
    for i in range(2):
        with h5py.File(f"{i}.h5", "w") as file:
            file["x"], file["y"] = np.full((3, 2), i), np.arange(3) + 3 * i
    (tmp_path / "list.txt").write_text("0.h5\n1.h5\n")
    h5 = """layer { name: "h" type: "HDF5Data" top: "x" top: "%s"
      hdf5_data_param { source: "list.txt" batch_size: 4 } }"""
    net = net_of(h5 % "y", caffe.TRAIN)
    assert [list(net.forward()["y"]) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 0, 1]]
    with pytest.raises(ValueError, match="0.h5 has no data set 'z'"):
        net_of(h5 % "z", caffe.TRAIN)


def test_batch_statistics_move_and_are_used(tmp_path):
    text = """name: "bn" force_backward: true input: "x" input_shape { dim: 4 dim: 3 dim: 2 dim: 2 }
    layer { name: "n" type: "BatchNorm" bottom: "x" top: "x"
      batch_norm_param { moving_average_fraction: 0.9 } }
    layer { name: "s" type: "Scale" bottom: "x" top: "x"
      scale_param { bias_term: true filler { value: 2 } } }"""
    net, rng = net_of(text, caffe.TRAIN), np.random.default_rng(0)
    sums = np.zeros((2, 3))
    count = 0.0
    for _ in range(3):
        x = rng.normal(1, 3, size=(4, 3, 2, 2)).astype("f")
        net.forward(x=x)
        moments = np.array([x.mean((0, 2, 3)), x.var((0, 2, 3), ddof=1)])
        sums, count = sums * 0.9 + moments, count * 0.9 + 1
    for p, wanted in zip(net.params["n"], (*sums, [count]), strict=True):
        np.testing.assert_allclose(p.data, wanted, rtol=1e-5)
    net.save(tmp_path / "bn.caffemodel")
    test = net_of(text, str(tmp_path / "bn.caffemodel"), caffe.TEST)
    mean, var = (sums / count)[:, :, None, None]
    y = test.forward(x=x)["x"]
    np.testing.assert_allclose(y, 2 * (x - mean) / np.sqrt(var + 1e-5), rtol=1e-4, atol=1e-5)


def test_fillers_have_the_published_spread():
    nn.seed(5)
    text = """layer { name: "%s" type: "DummyData" top: "%s" dummy_data_param {
      shape { dim: 40 dim: 50 dim: 3 dim: 3 } data_filler { %s } } }"""
    fillers = {
        "xavier": ('type: "xavier"', (3 / 450) ** 0.5 / 3**0.5),
        "msra": ('type: "msra" variance_norm: FAN_OUT', (2 / 360) ** 0.5),
        "gaussian": ('type: "gaussian" std: 0.3', 0.3),
        "uniform": ('type: "uniform" min: -1 max: 1', 3**-0.5),
        "average": ('type: "msra" variance_norm: AVERAGE', (2 / 405) ** 0.5),
    }
    net = net_of("".join(text % (k, k, v) for k, (v, _) in fillers.items()), caffe.TRAIN)
    for name, value in net.forward().items():
        assert value.std() == pytest.approx(fillers[name][1], rel=0.03)
        assert abs(value.mean()) < 0.02
    more = {
        "ball": 'type: "positive_unitball"',
        "sparse": 'type: "gaussian" sparse: 9',
        "linear": 'type: "bilinear"',
    }
    found = net_of("".join(text % (k, k, v) for k, v in more.items()), caffe.TRAIN).forward()
    np.testing.assert_allclose(found["ball"].reshape(40, -1).sum(1), 1, rtol=1e-5)
    assert (found["sparse"] != 0).reshape(40, -1).sum(1).mean() == pytest.approx(9, rel=0.2)
    line = np.array([0.5, 1, 0.5])
    np.testing.assert_allclose(found["linear"][0, 0], np.outer(line, line))


def test_blobs_are_tensors_of_the_other_dialects():
    import nnl.dialects.tensorflow as tf
    import nnl.dialects.theano as theano
    import nnl.dialects.theano.tensor as T

    net = net_of(CHAIN, caffe.TEST)
    x = np.random.default_rng(0).normal(size=(2, 3)).astype("f")
    wanted = net.forward(x=x)["b"].copy()
    b, w = net.blobs["b"], net.params["b"][0].tensor
    loss = T.sum(b**2)
    f = theano.function([net.blobs["x"]], [loss, theano.grad(loss, w)])
    value, gradient = f(x)
    with tf.Session() as session:
        half = session.run(b / 2.0, feed_dict={net.blobs["x"]: x})
    np.testing.assert_allclose(half, wanted / 2, rtol=1e-6)
    np.testing.assert_allclose(value, (wanted**2).sum(), rtol=1e-5)
    net.backward(b=2 * wanted)
    np.testing.assert_allclose(gradient.T, net.params["b"][0].diff, rtol=1e-5)


def test_the_mask_of_dropout_reaches_its_gradient():
    text = """name: "drop" force_backward: true input: "x" input_shape { dim: 1000 }
    layer { name: "d" type: "Dropout" bottom: "x" top: "y" dropout_param { dropout_ratio: 0.2 } }"""
    net = net_of(text, caffe.TRAIN)
    y = net.forward(x=np.ones(1000))["y"].copy()
    assert set(np.unique(y)) == {0, np.float32(1.25)} and 720 < (y > 0).sum() < 880
    net.backward(y=np.ones(1000))
    np.testing.assert_array_equal(net.blobs["x"].diff, y)
    assert (net_of(text, caffe.TEST).forward(x=np.ones(1000))["y"] == 1).all()


def test_boxes_to_begin_with_and_boxes_that_are_found():
    text = """input: "f" input: "i" input: "l" input: "c" input: "p"
    input_shape { dim: 1 dim: 2 dim: 1 dim: 1 } input_shape { dim: 1 dim: 3 dim: 10 dim: 20 }
    input_shape { dim: 1 dim: 12 } input_shape { dim: 1 dim: 6 }
    input_shape { dim: 1 dim: 2 dim: 12 }
    layer { name: "b" type: "PriorBox" bottom: "f" bottom: "i" top: "b"
      prior_box_param { min_size: 4 max_size: 9 variance: 0.1 variance: 0.1 variance: 0.2
        variance: 0.2 } }
    layer { name: "o" type: "DetectionOutput" bottom: "l" bottom: "c" bottom: "p" top: "o"
      detection_output_param { num_classes: 2 code_type: CENTER_SIZE keep_top_k: 5
        confidence_threshold: 0.1 nms_param { nms_threshold: 0.45 top_k: 10 } } }"""
    net = net_of(text, caffe.TEST)
    priors = [[0, 0, 0.4, 0.4], [0.02, 0, 0.42, 0.4], [0.6, 0.6, 0.8, 0.8]]
    prior = np.array([np.ravel(priors), np.tile([0.1, 0.1, 0.2, 0.2], 3)])
    loc = np.zeros((3, 4))
    loc[2] = 5, 0, 5 * np.log(2), 0  # moves the last one by half its width, and doubles that
    found = net.forward(
        f=np.zeros((1, 2, 1, 1)), i=np.zeros((1, 3, 10, 20)), l=loc.reshape(1, 12),
        c=[[0.1, 0.9, 0.2, 0.8, 0.3, 0.7]], p=prior[None],
    )  # fmt: skip
    wanted = [[0, 1, 0.9, 0, 0, 0.4, 0.4], [0, 1, 0.7, 0.6, 0.6, 1, 0.8]]
    np.testing.assert_allclose(found["o"], [[wanted]], rtol=1e-5, atol=1e-6)
    boxes = [[0.4, 0.3, 0.6, 0.7], [0.35, 0.2, 0.65, 0.8]]
    np.testing.assert_allclose(found["b"][0, 0], np.ravel(boxes), rtol=1e-6)
    np.testing.assert_allclose(found["b"][0, 1], np.tile([0.1, 0.1, 0.2, 0.2], 2))
    found = net.forward(c=[[1, 0, 1, 0, 1, 0]])["o"]
    assert found.shape == (1, 1, 0, 7)
