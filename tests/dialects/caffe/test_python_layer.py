# SPDX-License-Identifier: Apache-2.0
"""Layers of Caffe that are written in Python."""

import numpy as np
import pytest

import nnl.dialects.caffe as caffe
from nnl.converters.caffe.messages import messages, parse_text
from nnl.dialects.caffe import layers as L
from nnl.dialects.caffe.proto import caffe_pb2
from nnl.workspace import Workspace


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Workspace({}):
        yield


def net_of(text, *args, **options):
    return caffe.Net(parse_text("NetParameter", text, "test"), *args, **options)


class Thrice(caffe.Layer):
    def setup(self, bottom, top):
        self.factor = float(self.param_str)

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom, top):
        top[0].data[...] = self.factor * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0]:
            bottom[0].diff[...] = self.factor * top[0].diff


class Counter(caffe.Layer):
    def setup(self, bottom, top):
        self.n = 0

    def reshape(self, bottom, top):
        top[0].reshape(2, 3)

    def forward(self, bottom, top):
        self.n += 1
        top[0].data[...] = self.n


def test_layers_in_python_compute_and_read_data():
    python = f'type: "Python" python_param {{ module: "{__name__}" layer: "%s" param_str: "3" }}'
    text = f"""layer {{ name: "d" top: "x" {python % "Counter"} }}
    layer {{ name: "a" type: "InnerProduct" bottom: "x" top: "a" inner_product_param {{
      num_output: 2 weight_filler {{ type: "constant" value: 1 }} }} }}
    layer {{ name: "t" bottom: "a" top: "b" {python % "Thrice"} }}
    layer {{ name: "loss" type: "Reduction" bottom: "b" top: "loss" loss_weight: 1 }}"""
    net = net_of(text, caffe.TRAIN)
    for n in (1, 2):
        assert net.forward()["loss"] == 3 * 3 * n * 4
        np.testing.assert_array_equal(net.blobs["x"].data, n)
    net.backward()
    np.testing.assert_array_equal(net.params["a"][0].diff, 3 * 2 * 2)
    p = messages()["SolverParameter"](base_lr=0.1, net_param=parse_text("NetParameter", text, ""))
    s = caffe.SGDSolver(p)
    s.step(2)
    np.testing.assert_allclose(s.net.params["a"][0].data, 1 - 0.1 * 3 * 2 * (1 + 2), rtol=1e-5)
    with pytest.raises(ValueError, match="is code in Python, which is not run here"):
        net_of(text, caffe.TEST, deploy=True)


class Scaled(caffe.Layer):
    """The bottom times a parameter, which begins at 3 in training and at 4 otherwise."""

    def setup(self, bottom, top):
        self.blobs.add_blob(1)
        self.blobs[0].data[...] = 3 if self.phase == caffe.TRAIN else 4

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data * self.blobs[0].data[0]

    def backward(self, top, propagate_down, bottom):
        self.blobs[0].diff[...] += (top[0].diff * bottom[0].data).sum()
        bottom[0].diff[...] = top[0].diff * self.blobs[0].data[0]


def test_a_layer_in_python_has_parameters_that_learn():
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [2, 3]})
    n.y = L.Python(n.data, module=__name__, layer="Scaled", loss_weight=1)
    net = caffe.Net(n.to_proto(), caffe.TRAIN)
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(net.forward(data=x)["y"], 3 * x)
    net.backward()
    net.backward()
    p = net.params["y"][0]
    assert p.data == 3 and p.diff == 2 * x.sum()
    p.data[...] = 5
    net.save("w.caffemodel")
    np.testing.assert_allclose(net.forward(data=x)["y"], 5 * x)
    message = n.to_proto()
    assert caffe.Net(message, caffe.TEST).forward(data=x)["y"][0, 1] == 4
    assert caffe.Net(message, "w.caffemodel", caffe.TEST).forward(data=x)["y"][0, 1] == 5
    param = caffe_pb2.SolverParameter(base_lr=0.1, max_iter=1, train_net_param=message)
    solver = caffe.get_solver(param)
    solver.net.blobs["data"].data[...] = x
    solver.step(1)
    np.testing.assert_allclose(solver.net.params["y"][0].data, 3 - 0.1 * x.sum(), rtol=1e-5)
