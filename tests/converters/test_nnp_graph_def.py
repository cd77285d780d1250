# SPDX-License-Identifier: Apache-2.0
"""nnl.graph_def: networks as data."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.graph_def as graph_def
import nnl.parametric_functions as PF
from nnl.utils.load import load
from nnl.utils.nnp_graph import NnpNetworkPass


@pytest.fixture(autouse=True)
def no_graph() -> None:
    graph_def.reset_default_graph()


def small() -> tuple[nn.Variable, nn.Variable, graph_def.ProtoGraph]:
    x = nn.Variable((4, 6))
    y = F.reshape(F.relu(PF.affine(x, 3, name="a")), (4, 3, 1))
    x.d = np.random.default_rng(0).normal(size=x.shape)
    return x, y, graph_def.create_graph_from_variable("net", y, names={"x": x, "y": y})


def test_a_graph_is_described_as_nnabla_describes_it() -> None:
    _, _, g = small()
    n = g.default_graph()
    assert list(g.networks) == ["net"] and n is g["net"] is g.get("net") and "net" in g
    assert n.inputs == ["x"] and n.outputs == ["y"] and n.name == "net"
    assert {k: (v.shape, v.type) for k, v in n.variables.items()} == {
        "x": ((4, 6), "Buffer"),
        "@net/Affine_out": ((4, 3), "Buffer"),
        "@net/ReLU_out": ((4, 3), "Buffer"),
        "y": ((4, 3, 1), "Buffer"),
    }
    assert list(n.parameters) == ["a/affine/W", "a/affine/b"] == list(g.get_parameters())
    f = n.forward_sequence()[0]
    assert (f.name, f.type, f.args) == ("@net/Affine", "Affine", {"base_axis": 1})
    assert f.inputs == ["x", "a/affine/W", "a/affine/b"] and f.outputs == ["@net/Affine_out"]
    assert list(n.functions) == ["@net/Affine", "@net/ReLU", "@net/Reshape"]
    assert list(g.as_proto().network[0].variable[0].shape.dim) == [-1, 6]
    proto = g.as_proto(include_parameter=True, variable_batch_size=False)
    assert list(proto.network[0].variable[0].shape.dim) == [4, 6] and len(proto.parameter) == 2


def test_calling_a_graph_gives_a_new_one_with_the_same_parameters() -> None:
    x, y, g = small()
    y.forward()
    for z in (g(x), g(x=x), g["net"](x)):
        z.forward()
        np.testing.assert_array_equal(z.d, y.d)
    assert g(nn.Variable((2, 6))).shape == (2, 3, 1)
    with pytest.raises(ValueError, match="network 'net': the input 'x' is missing"):
        g()
    with pytest.raises(ValueError, match="network 'net': 'z' is no input or given twice"):
        g(x, z=x)
    with pytest.raises(ValueError, match=r"network 'net' has 1 inputs \['x'\], got 2"):
        g(x, x)


@pytest.mark.parametrize("extension", [".nnp", ".nntxt", ".protobuf"])
def test_a_graph_comes_back_from_its_file(tmp_path: Path, extension: str) -> None:
    x, y, g = small()
    y.forward()
    path = tmp_path / f"g{extension}"
    executor = {"name": "e", "network": "net", "data": ["x"], "output": ["y"]}
    g.save(path, include_parameter=extension != ".nnp", executors=[executor])
    nn.clear_parameters()
    back = graph_def.load(path)
    assert list(back.executors) == ["e"] and not nn.get_parameters()
    z = back(x)
    z.forward()
    np.testing.assert_array_equal(z.d, y.d)
    assert graph_def.load(path, batch_size=3)["net"].variables["x"].shape == (3, 6)
    assert not graph_def.load(path, parameter_only=True).networks
    file = io.BytesIO()
    graph_def.save(file, [back])
    file.seek(0)
    assert list(graph_def.load(file, extension=".nnp").networks) == ["net"]
    copy = graph_def.ProtoGraph.from_proto(g.as_proto(include_parameter=True), param_scope={})
    assert list(copy.get_parameters()) == list(back.get_parameters())


def test_what_is_called_inside_graph_becomes_a_network() -> None:
    with graph_def.graph(name="foo") as g:
        a = nn.graph_def.ProtoVariable((4, 6), "inp")
        y = F.relu(PF.affine(a, 3))
    n = g["foo"]
    assert y.shape == (4, 3) and n.inputs == ["inp"] and n.outputs == ["@foo/ReLU_out"]
    assert list(n.parameters) == ["affine/W", "affine/b"]
    assert graph_def.get_default_graph() is g
    assert g(nn.Variable((2, 6))).shape == (2, 3)
    with graph_def.graph() as empty:
        pass
    assert not empty.networks
    with pytest.raises(ValueError, match="default_graph: there is no network"):
        empty.default_graph()
    graph_def.reset_default_graph()
    with pytest.raises(
        ValueError, match="get_default_graph: call functions on a nnl.ProtoVariable"
    ):
        graph_def.get_default_graph()


class Layer(nn.Module):
    def call(self, x: nn.Variable) -> nn.Variable:
        return PF.affine(x, 3, name="f")


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        self.a, self.b = Layer(), Layer()

    def call(self, x: nn.Variable) -> nn.Variable:
        return F.tanh(self.b(self.a(x)))


def test_every_call_of_a_module_is_a_network() -> None:
    """Names as NNabla 1.39 gives them, but that there two nets of one class share parameters."""
    m, k = TwoLayers(), TwoLayers()
    with graph_def.graph() as g:
        y = F.relu(k(m(nn.ProtoVariable((2, 3), "x"))))
    assert y.shape == (2, 3) and list(g.networks) == ["two_layers", "two_layers_1", "model"]
    first, second, last = g.networks.values()
    assert list(first.functions) == [
        "@two_layers/@a/Affine",
        "@two_layers/@b/Affine",
        "@two_layers/Tanh",
    ]
    assert first.inputs == ["x"] and first.outputs == second.inputs == ["@two_layers/Tanh_out"]
    assert list(first.parameters)[:2] == ["@a/f/affine/W", "@a/f/affine/b"]
    assert list(second.parameters)[0] == "@two_layers_1/@a/f/affine/W"
    assert list(last.functions) == ["ReLU"] and last.inputs == second.outputs
    x = nn.Variable.from_numpy_array(np.random.default_rng(0).normal(size=(5, 3)))
    want, got = F.relu(k(m(x))), last(second(first(x)))
    nn.forward_all([want, got])
    np.testing.assert_array_equal(got.d, want.d)
    assert np.abs(got.d).max() > 0 and not nn.get_parameters()


def test_one_network_holds_modules_and_functions_if_it_has_a_name(tmp_path: Path) -> None:
    m = TwoLayers()
    with graph_def.graph(name="whole") as g:
        F.relu(m(F.exp(nn.ProtoVariable((2, 3), "x"))))
    assert list(g.networks) == ["whole"] and g["whole"].inputs == ["x"]
    assert g["whole"].outputs == ["@whole/ReLU_out"]
    g.save(tmp_path / "g.nnp")
    x = nn.Variable.from_numpy_array(np.random.default_rng(0).normal(size=(4, 3)))
    want, got = F.relu(m(F.exp(x))), graph_def.load(tmp_path / "g.nnp")(x)
    nn.forward_all([want, got])
    np.testing.assert_array_equal(got.d, want.d)


def test_calls_outside_of_a_block_become_the_default_graph() -> None:
    m = TwoLayers()
    other = F.relu(nn.Variable((2, 3)))
    y = PF.affine(nn.ProtoVariable((8, 16), "x"), 10)
    z = m(nn.ProtoVariable((2, 3), "z"))
    F.relu(other)
    g = graph_def.get_default_graph()
    assert list(g.networks) == ["model", "two_layers"] and g is graph_def.get_default_graph()
    assert list(g["model"].functions) == ["Affine"] and g["model"].outputs == ["Affine_out"]
    assert graph_def.get_default_graph_by_variable(z) is g["two_layers"]
    assert graph_def.get_default_graph_by_variable(y) is g["model"]
    with pytest.raises(ValueError, match="get_default_graph_by_variable: no network"):
        graph_def.get_default_graph_by_variable(other)
    F.relu(y)
    assert "ReLU" in graph_def.get_default_graph()["model_1"].functions
    graph_def.reset_default_graph()
    F.relu(y)
    with pytest.raises(ValueError, match="get_default_graph: call functions on"):
        graph_def.get_default_graph()


def test_executors_name_data_and_results() -> None:
    _, _, g = small()
    entry = {"name": "e", "network": "net", "data": ["x"], "output": ["y"]}
    e = graph_def.ProtoExecutor.create_from_dict(entry, g["net"])
    assert e.network_name == "net" and [v.variable_name for v in e.proto.output_variable] == ["y"]
    parameters = [v.variable_name for v in e.as_proto().parameter_variable]
    assert parameters == ["a/affine/W", "a/affine/b"]
    assert graph_def.ProtoExecutor.from_proto(e.proto).proto is e.proto
    with pytest.raises(ValueError, match="data: the network 'net' has no variable 'q'"):
        graph_def.ProtoExecutor.create_from_dict({**entry, "data": ["q"]}, g["net"])


def test_what_is_loaded_is_also_there_as_data(tmp_path: Path) -> None:
    x, y, g = small()
    y.forward()
    g.save(tmp_path / "g.nnp")
    nn.clear_parameters()
    loaded = load(tmp_path / "g.nnp").proto_graph
    z = loaded(x)
    z.forward()
    assert list(loaded.networks) == ["net"] and loaded["net"].outputs == ["y"]
    np.testing.assert_array_equal(z.d, y.d)


def test_a_network_can_be_copied_and_changed() -> None:
    _, _, g = small()
    copy = g["net"].clone()
    change = NnpNetworkPass()
    change.remove_and_rewire("@net/ReLU")
    assert "@net/ReLU" not in copy.promote(change).functions and "@net/ReLU" in g["net"].functions
    with pytest.raises(TypeError, match="create_graph_from_variable: variables is 3"):
        graph_def.create_graph_from_variable("n", 3)


def test_executors_name_outputs_and_stay_with_the_graph(tmp_path: Path) -> None:
    """As NNabla 1.39 writes them."""
    with nn.graph_def.graph(name="net") as g:
        z = F.relu(PF.affine(nn.ProtoVariable((4, 3), name="x"), 5, name="k"))
    entry = {"name": "r", "network": "net", "data": ["x"], "output": {"y": z}}
    entry |= {"remp": {"x": "input"}, "num_evaluations": 3}
    nn.graph_def.save(tmp_path / "m.nnp", [g], executors=[entry])
    nn.graph_def.save(tmp_path / "again.nnp", g)
    for name in ("m.nnp", "again.nnp"):
        info = load(tmp_path / name, batch_size=2)
        run = info.executors["r"]
        assert set(run.dataset_assign.values()) == {"input"}
        (y,) = run.output_assign
        assert y.name == "y" and y.variable_instance.shape == (2, 5)
        assert run.num_evaluations == 3
    text = tmp_path / "m.nntxt"
    nn.graph_def.save(text, [g], executors=[{**entry, "output": {"scores": z}}])
    assert 'output_variable {\n    variable_name: "scores"' in text.read_text()
    assert 'parameter_variable {\n    variable_name: "k/affine/W"' in text.read_text()
    with pytest.raises(ValueError, match="executor 'r': there is no network 'other', only .'net'."):
        nn.graph_def.save(text, [g], executors=[{**entry, "network": "other"}])
    with pytest.raises(ValueError, match="output 'x': the network 'net' has a variable 'x' alrea"):
        nn.graph_def.save(text, [g], executors=[{**entry, "output": {"x": z}}])
    with pytest.raises(ValueError, match="output 'y': the network 'net' has no variable ''"):
        nn.graph_def.save(text, [g], executors=[{**entry, "output": {"y": nn.Variable((2,))}}])


def test_a_graph_holds_what_its_own_thread_calls() -> None:
    barrier, graphs = threading.Barrier(3), {}

    def record(name: str) -> None:
        with graph_def.graph(name) as g:
            y = nn.ProtoVariable((2, 3), "x")
            for _ in range(20):
                barrier.wait(30)
                y = getattr(F, name)(y)
        graphs[name] = [f.type for f in g.default_graph().functions.values()]

    def define_by_run() -> None:
        for _ in range(20):
            barrier.wait(30)
            with nn.auto_forward():
                F.sigmoid(nn.Variable((2,), need_grad=True))

    jobs = [(record, "relu"), (record, "tanh"), (define_by_run,)]
    threads = [threading.Thread(target=f, args=args) for f, *args in jobs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert graphs == {"relu": ["ReLU"] * 20, "tanh": ["Tanh"] * 20}
