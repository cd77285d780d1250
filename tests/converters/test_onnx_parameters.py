# SPDX-License-Identifier: Apache-2.0
"""The weights of an imported model as parameters: names, scopes, what trains, what is shared."""

from __future__ import annotations

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

onnx = pytest.importorskip("onnx")

from nnl.converters.onnx import load  # noqa: E402
from nnl.converters.onnx.file.errors import OnnxError  # noqa: E402
from tests.converters.onnx_nodes import affine, model, node, normal  # noqa: E402


def test_weights_become_parameters_under_their_names_in_the_current_scope():
    proto, w = affine()
    net = load(proto)
    with nn.parameter_scope("imported"):
        net(nn.Variable((2, 3)))
    assert sorted(nn.get_parameters()) == ["imported/fc/b", "imported/fc/w"]
    np.testing.assert_array_equal(nn.get_parameters()["imported/fc/w"].d, w["fc/w"])


def test_a_second_call_shares_the_parameters():
    proto, _ = affine()
    net = load(proto)
    small, large = net(nn.Variable((1, 3))), net(nn.Variable((7, 3)))
    assert small.shape == (1, 4) and large.shape == (7, 4)
    nn.get_parameters()["fc/w"].d = 0
    nn.get_parameters()["fc/b"].d = 2
    nn.forward_all([small, large])
    assert (small.d == 2).all() and (large.d == 2).all()
    assert (net.run(np.ones((2, 3), np.float32))[0] == 2).all()


def test_gradients_reach_the_parameters():
    proto, _ = affine()
    x = normal(5, 3)
    loss = F.sum(load(proto)(nn.Variable.from_numpy_array(x)))
    loss.forward()
    loss.backward()
    parameters = nn.get_parameters()
    np.testing.assert_allclose(parameters["fc/b"].g, [5] * 4)
    np.testing.assert_allclose(parameters["fc/w"].g, np.tile(x.sum(0)[:, None], 4), rtol=1e-5)


def test_statistics_bounds_and_scalars_do_not_train():
    weights = {
        "s": np.ones(3, np.float32),
        "b": np.zeros(3, np.float32),
        "mean": np.zeros(3, np.float32),
        "var": np.ones(3, np.float32),
        "low": np.array([0.0], np.float32),
        "half": np.array(0.5, np.float32),
    }
    nodes = [
        node("BatchNormalization", "x,s,b,mean,var", "n"),
        node("Clip", "n,low", "c"),
        node("Mul", "c,half"),
    ]
    proto = model(nodes, weights=weights)
    load(proto)(nn.Variable((2, 3, 4, 4)))
    assert sorted(nn.get_parameters()) == ["b", "s"]
    assert sorted(nn.get_parameters(grad_only=False)) == ["b", "mean", "s", "var"]
    nn.clear_parameters()
    load(proto, trainable=lambda name, a: name == "half")(nn.Variable((2, 3, 4, 4)))
    assert sorted(nn.get_parameters()) == ["half"]


def test_names_that_are_also_scopes_get_an_underscore():
    weights = {"a": normal(3), "a/b": normal(3), "/a": normal(3)}
    nodes = [node("Add", "x,a", "p"), node("Add", "p,a/b", "q"), node("Add", "q,/a")]
    net = load(model(nodes, weights=weights))
    x = normal(2, 3)
    np.testing.assert_allclose(net.run(x)[0], x + sum(weights.values()), rtol=1e-6)
    assert sorted(nn.get_parameters()) == ["a/b", "a_", "a__"]


def test_a_run_that_fails_registers_no_parameters():
    nodes = [node("Add", "x,w", "h"), node("Reshape", "h,t")]
    weights = {"w": normal(3), "t": np.array([7, -1])}
    with pytest.raises(OnnxError, match="cannot put the shape"):
        load(model(nodes, weights=weights))(nn.Variable((2, 3)))
    assert nn.get_parameters() == {}


def test_a_model_that_meets_parameters_of_its_names_says_so(caplog, monkeypatch):
    monkeypatch.setattr(nn.logger, "propagate", True)  # so that caplog hears it
    first, second = (load(affine()[0]) for _ in range(2))
    first(nn.Variable((2, 3)))
    first(nn.Variable((4, 3)))
    with nn.parameter_scope("second"):
        second(nn.Variable((2, 3)))
    assert not caplog.records
    second(nn.Variable((2, 3)))
    assert "uses 2 parameters that the current scope has already, such as 'fc/w'" in caplog.text


def test_models_with_equal_names_do_not_share_their_weights(tmp_path):
    """As two of one training's checkpoints, or any two that PaddlePaddle has exported."""
    x = normal(2, 3)
    nets, want = [], []
    for i, shape in enumerate([(3, 4), (3, 4), (3, 5)]):
        w = normal(*shape)
        path = tmp_path / f"fold{min(i, 1)}.onnx"
        path.write_bytes(model([node("MatMul", "x,w")], weights={"w": w}).SerializeToString())
        nets.append(load(path))
        want.append(x @ w)
    for net, y in zip(nets * 2, want * 2, strict=True):
        np.testing.assert_allclose(net.run(x)[0], y, rtol=1e-5)
    names = [net.parameter_names()["w"] for net in nets]
    assert names == ["w", "fold1/w", "fold1_2/w"] and set(nn.get_parameters()) == set(names)
    again = load(tmp_path / "fold1.onnx")  # what the third was made of: one model, loaded twice
    np.testing.assert_allclose(again.run(x)[0], want[2], rtol=1e-5)
    assert again.parameter_names() == {"w": "fold1_2/w"}


def test_a_model_loaded_again_has_what_was_trained():
    """As a script does that loads it once for the graph of training and once for validation."""
    nodes, w = [node("MatMul", "x,w")], normal(3, 4)
    load(model(nodes, weights={"w": w}))(nn.Variable((2, 3)))
    nn.get_parameters()["w"].d = 2 * w
    x = normal(2, 3)
    np.testing.assert_allclose(load(model(nodes, weights={"w": w})).run(x)[0], 2 * x @ w, rtol=1e-5)
    with pytest.raises(OnnxError, match="parameter 'w' exists with the shape"):
        nn.clear_parameters()
        nn.parameter.set_parameter("w", nn.Variable((5, 6)))  # of a file that is of another model
        load(model(nodes, weights={"w": w})).run(x)
