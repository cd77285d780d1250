# SPDX-License-Identifier: Apache-2.0
"""What scripts of pycaffe use around networks: NetSpec, io, caffe_pb2, Classifier, names, modes."""

import numpy as np
import pytest

import nnl as nn
import nnl.dialects.caffe as caffe
from nnl.converters.caffe.messages import parse_text
from nnl.dialects.caffe import layers as L
from nnl.dialects.caffe import params as P
from nnl.dialects.caffe.proto import caffe_pb2
from nnl.workspace import Workspace


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Workspace({}):
        yield


def spec():
    n = caffe.NetSpec()
    shapes = [{"dim": [5, 1, 28, 28]}, {"dim": [5]}]
    n.data, n.label = L.DummyData(shape=shapes, transform_param={"scale": 0.5}, ntop=2)
    n.conv1 = L.Convolution(
        n.data,
        kernel_size=5,
        num_output=2,
        weight_filler={"type": "xavier"},
        param=[{"lr_mult": 2}],
    )
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.AVE)
    n.relu = L.ReLU(n.pool1, in_place=True)
    n["ip"] = L.InnerProduct(n.relu, num_output=10)
    n.loss = L.SoftmaxWithLoss(n.ip, n["label"], loss_weight=2, include={"phase": caffe.TRAIN})
    n.silence = L.Silence(n.label, ntop=0)
    return n


def test_a_net_spec_may_be_deep():
    x = L.Input(shape={"dim": [1, 3]})
    for _ in range(1500):
        x = L.ReLU(x)
    layers = x.to_proto().layer
    assert len(layers) == 1501 and [layers[-1].name, *layers[-1].bottom] == ["ReLU1500", "ReLU1499"]


# what the NetSpec of pycaffe (package caffe-ssd 0.1) writes for the same lines
WANTED = """
layer { name: "data" type: "DummyData" top: "data" top: "label" transform_param { scale: 0.5 }
  dummy_data_param { shape { dim: 5 dim: 1 dim: 28 dim: 28 } shape { dim: 5 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" param { lr_mult: 2 }
  convolution_param { num_output: 2 kernel_size: 5 weight_filler { type: "xavier" } } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { pool: AVE kernel_size: 2 stride: 2 } }
layer { name: "relu" type: "ReLU" bottom: "pool1" top: "pool1" }
layer { name: "ip" type: "InnerProduct" bottom: "pool1" top: "ip"
  inner_product_param { num_output: 10 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss"
  loss_weight: 2 include { phase: TRAIN } }
layer { name: "silence" type: "Silence" bottom: "label" }
"""


def test_a_network_written_in_python():
    net = spec().to_proto()
    assert net == parse_text("NetParameter", WANTED, "wanted")
    with open("net.prototxt", "w") as file:
        file.write(str(net))
    built = caffe.Net("net.prototxt", caffe.TRAIN)
    assert built.forward()["loss"] == pytest.approx(np.log(10), abs=1e-5)
    assert list(built.layer_dict) == built._layer_names == list(spec().keys())[:1] + [
        "conv1", "pool1", "relu", "ip", "loss", "silence",
    ]  # fmt: skip
    assert built.bottom_names["loss"] == ["ip", "label"]
    assert built.top_names["data"] == ["data", "label"]
    assert built.blob_loss_weights["loss"] == 2 and not built.blob_loss_weights["ip"]


def test_layers_without_names_get_them_by_type_and_number():
    data, label = L.Data(source="x", backend=P.Data.LMDB, batch_size=4, ntop=2)
    a = L.Convolution(data, kernel_size=[3, 5], num_output=2, name="first")
    b = L.ReLU(L.Convolution(a, kernel_size=3, num_output=2, pad=1), in_place=True)
    c = L.Deconvolution(b, num_output=2, kernel_size=2)
    found = caffe.to_proto(L.SoftmaxWithLoss(c, label), L.Accuracy(c, label, top_k=3))
    assert [(m.name, list(m.top)) for m in found.layer] == [
        ("Data1", ["Data1", "Data2"]),
        ("first", ["Convolution1"]),
        ("Convolution2", ["Convolution2"]),
        ("ReLU1", ["Convolution2"]),
        ("Deconvolution1", ["Deconvolution1"]),
        ("SoftmaxWithLoss1", ["SoftmaxWithLoss1"]),
        ("Accuracy1", ["Accuracy1"]),
    ]
    assert found.layer[0].data_param.backend == caffe_pb2.DataParameter.LMDB == 1
    assert list(found.layer[4].convolution_param.kernel_size) == [2]
    assert len(a.to_proto().layer) == 2


MISTAKES = [
    (lambda n: L.Convolution(n.data, kernelsize=5), ValueError, "Convolution: kernelsize=5: Conv"),
    (lambda n: L.ReLU(n.data, weight_filler={"typ": 1}), ValueError, "no field 'weight_filler'"),
    (lambda n: L.Scale(n.data, filler={"typ": 1}), ValueError, "Filler.* 'typ': did you mean type"),
    (lambda n: L.Input(shape=[1, 2]), TypeError, r"Input: shape=\[1, 2\]: "),
    (lambda n: L.InnerProduct(n.data, num_output="x"), TypeError, "InnerProduct: num_output='x': "),
    (lambda n: L.Conv(n.data), AttributeError, "there is no layer 'Conv': did you mean"),
    (lambda n: P.Pool, AttributeError, "no 'PoolParameter': did you mean PoolingParameter"),
    (lambda n: setattr(n, "d", L.Data(ntop=2)), TypeError, "NetSpec.d is tuple, wanted a top of"),
    (lambda n: caffe.to_proto(n.data, 3), TypeError, "to_proto: argument 1 is 3, wanted a top of"),
    (lambda n: n.dat, AttributeError, "NetSpec: no blob is called 'dat': did you mean data"),
    (lambda n: L.Silence((n.data,), ntop=0), TypeError, "Silence: bottom 0 is tuple, wanted a top"),
]


@pytest.mark.parametrize(("write", "kind", "message"), MISTAKES)
def test_what_cannot_be_written(write, kind, message):
    with pytest.raises(kind, match=message):
        write(spec())


def test_messages_and_their_enums():
    solver = caffe_pb2.SolverParameter(solver_mode=caffe_pb2.SolverParameter.GPU)
    assert solver.solver_mode == 1 and caffe_pb2.TEST == caffe.TEST
    assert caffe.proto.caffe_pb2.PoolingParameter.STOCHASTIC == 2


def transformer():
    t = caffe.io.Transformer({"data": (1, 3, 4, 5)})
    t.set_transpose("data", (2, 0, 1))
    t.set_channel_swap("data", (2, 1, 0))
    t.set_raw_scale("data", 255)
    t.set_mean("data", np.array([1.0, 2.0, 3.0]))
    t.set_input_scale("data", 0.5)
    return t


def test_pictures_become_inputs_and_come_back():
    x = np.random.RandomState(0).rand(4, 5, 3)
    y = transformer().preprocess("data", x)
    want = (x.transpose(2, 0, 1)[::-1] * 255 - np.reshape([1, 2, 3], (3, 1, 1))) * 0.5
    np.testing.assert_allclose(y, want, rtol=1e-5)
    np.testing.assert_allclose(transformer().deprocess("data", y[None]), x, rtol=1e-4)
    assert transformer().preprocess("data", np.ones((9, 2, 3))).shape == (3, 4, 5)


def test_wrong_settings_of_a_transformer():
    t = transformer()
    for call, message in (
        (
            lambda: t.set_raw_scale("dat", 1),
            "set_raw_scale: no input is called 'dat': did you mean",
        ),
        (lambda: t.set_transpose("data", (0, 1)), r"order is \(0, 1\), wanted an order of 3 axes"),
        (lambda: t.set_channel_swap("data", (1, 2)), "wanted an order of 3 channels"),
        (lambda: t.set_mean("data", np.ones(4)), r"shape \(4,\), wanted \(3, 4, 5\) or \(3,\)"),
        (lambda: caffe.io.resize_image(np.ones((2, 2, 1)), (3, 3), 3), "interp_order is 3"),
        (lambda: caffe.io.oversample(np.ones((1, 2, 2, 3)), (3, 3)), r"at least \(3, 3\)"),
        (lambda: caffe.io.array_to_datum(np.ones((2, 2))), r"\(2, 2\), wanted \(channels, height"),
        (lambda: caffe.io.datum_to_array(caffe_pb2.Datum(channels=1, height=2, width=2)), "0 numb"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_sizes_of_pictures_change_as_in_scikit_image():
    transform = pytest.importorskip("skimage.transform")
    im = np.random.RandomState(1).rand(9, 13, 3).astype(np.float32)
    for size in ((20, 17), (5, 6)):
        for order in (0, 1):
            want = transform.resize(im, size, order=order, mode="edge", anti_aliasing=False)
            np.testing.assert_allclose(caffe.io.resize_image(im, size, order), want, atol=1e-6)


def test_pictures_of_files():
    from PIL import Image

    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3) * 10
    Image.fromarray(pixels).save("a.png")
    np.testing.assert_allclose(caffe.io.load_image("a.png"), pixels / 255.0, rtol=1e-6)
    grey = caffe.io.load_image("a.png", color=False)
    assert grey.shape == (2, 4, 1) and 0 <= grey.min() < grey.max() <= 1


def test_ten_parts_of_a_picture():
    x = np.arange(4 * 5 * 2.0).reshape(1, 4, 5, 2)
    found = caffe.io.oversample(x, (3, 3))
    assert found.shape == (10, 3, 3, 2)
    for part, (i, j) in zip(found, [(0, 0), (0, 2), (1, 0), (1, 2), (0, 1)], strict=False):
        np.testing.assert_array_equal(part, x[0, i : i + 3, j : j + 3])
    np.testing.assert_array_equal(found[5:], found[:5, :, ::-1])


def test_arrays_as_messages():
    a = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    blob = caffe.io.array_to_blobproto(a, a + 1)
    np.testing.assert_array_equal(caffe.io.blobproto_to_array(blob), a)
    np.testing.assert_array_equal(caffe.io.blobproto_to_array(blob, return_diff=True), a + 1)
    old = caffe_pb2.BlobProto(data=range(6), num=1, channels=1, height=2, width=3)
    assert caffe.io.blobproto_to_array(old).shape == (1, 1, 2, 3)
    assert caffe.io.blobproto_to_array(caffe_pb2.BlobProto(data=[123])) == 123
    with pytest.raises(ValueError, match="blobproto_to_array: 6 numbers for the shape"):
        caffe.io.blobproto_to_array(caffe_pb2.BlobProto(data=range(6)))
    for array in (a, a.astype(np.uint8)):
        datum = caffe.io.array_to_datum(array, 7)
        assert datum.label == 7
        np.testing.assert_array_equal(caffe.io.datum_to_array(datum), array)


def test_a_classifier_means_over_the_parts_of_pictures():
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [4, 3, 4, 4]})
    n.prob = L.Pooling(n.data, global_pooling=True, pool=P.Pooling.AVE)
    net = caffe.Net(n.to_proto(), caffe.TEST)
    net.save("w.caffemodel")
    with open("net.prototxt", "w") as file:
        file.write(str(n.to_proto()))
    model = caffe.Classifier(
        "net.prototxt", "w.caffemodel", (6, 6), np.zeros(3), 0.5, 2, channel_swap=(2, 1, 0)
    )
    images = [np.random.RandomState(i).rand(6, 6, 3) for i in range(2)]
    for oversample in (True, False):
        rows = (
            caffe.io.oversample(images, (4, 4)).reshape(2, 10, 16, 3)
            if oversample
            else np.stack(images)[:, None, 1:5, 1:5].reshape(2, 1, 16, 3)
        )
        want = rows.mean((1, 2))[:, ::-1]
        found = model.predict(images, oversample)
        np.testing.assert_allclose(found.reshape(2, 3), want, rtol=1e-5)


def test_an_update_by_gradients_that_were_set():
    param = caffe_pb2.SolverParameter(base_lr=0.01, momentum=0.9, type="SGD", max_iter=1)
    param.net_param.CopyFrom(spec().to_proto())
    solver = caffe.get_solver(param)
    p = solver.net.params["ip"][0]
    p.data[...], p.diff[...] = 0, 1
    solver.apply_update()
    np.testing.assert_allclose(p.data, -0.01, rtol=1e-6)
    assert solver.iter == 0


def test_the_mode_is_a_context(monkeypatch):
    before, asked = nn.get_current_context(), []

    def context(name, device_id):
        asked.append((name, device_id))
        return before

    monkeypatch.setattr(caffe, "_extension", context)
    caffe.set_device(1)
    assert not asked
    caffe.set_mode_gpu()
    caffe.set_device(2)
    caffe.set_mode_cpu()
    caffe.set_mode_cpu()
    caffe.set_device(0)
    assert asked == [("cudnn", "1"), ("cudnn", "2")] and nn.get_current_context() is before


def test_a_part_goes_back_from_the_gradients_that_are_there():
    net = caffe.Net(spec().to_proto(), caffe.TRAIN)
    net.forward()
    net.blobs["ip"].diff[...] = 1
    net.backward(start="ip", end="ip")
    want = net.params["ip"][0].data.sum(0)
    found = net.blobs["pool1"].diff.reshape(5, -1)
    np.testing.assert_allclose(found, np.tile(want, (5, 1)), rtol=1e-5, atol=1e-6)


def test_weights_in_hdf5_and_files_without_an_ending():
    net, other = (caffe.Net(spec().to_proto(), caffe.TRAIN) for _ in range(2))
    net.save_hdf5("weights")
    other.load_hdf5("weights")
    net.save("binary")
    third = caffe.Net(spec().to_proto(), caffe.TRAIN, weights="binary")
    for name, blobs in net.params.items():
        for i, p in enumerate(blobs):
            np.testing.assert_array_equal(other.params[name][i].data, p.data)
            np.testing.assert_array_equal(third.params[name][i].data, p.data)
