# SPDX-License-Identifier: Apache-2.0
"""Executors of .nnp files in C++: what Python computes for the same file."""

import io
import re
import zipfile

import numpy as np
import pytest
from google.protobuf import text_format

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl import models
from nnl.converters.nnp.messages import parse
from nnl.utils.load import load
from nnl.utils.save import save
from tests.converters import loop_networks
from tests.converters.test_nnp_functions import CASES, graph
from tests.native.kernels import require_library


def saved(path, y, x, **more):
    network = {"name": "net", "batch_size": x.shape[0], "outputs": {"y": y}, "names": {"x": x}}
    executor = {"name": "run", "network": "net", "data": ["x"], "output": ["y"]}
    save(str(path), {"networks": [network], "executors": [executor]}, **more)


def model(path, program=""):
    lib = require_library()
    return lib.Model(lib.ModelFile(str(path)), program)


def tokens(shape):
    return nn.Variable.from_numpy_array(np.arange(np.prod(shape)).reshape(shape) % 40)


def small(x):
    h = F.average_pooling(F.elu(PF.convolution(x, 6, (3, 3), pad=(1, 1), group=2)), (2, 2))
    h = F.leaky_relu(PF.batch_normalization(h, batch_stat=False), 0.3) * 2 - 1
    h = F.concatenate(h, F.swish(h), F.tanh(h) ** 2, axis=1)
    h = F.reshape(F.mean(h, axis=(2, 3)), (2, 18)) + F.constant(0.5, (2, 18))
    return F.log_softmax(F.transpose(PF.affine(h, 5), (1, 0)), axis=0)


NETWORKS = {
    "small": lambda: (small, nn.Variable((2, 4, 8, 8))),
    "lenet": lambda: (models.lenet, nn.Variable((2, 1, 28, 28))),
    "resnet18": lambda: (
        lambda x: models.resnet(x, depth=18, num_classes=10, test=True),
        nn.Variable((1, 3, 64, 64)),
    ),
    "mobilenet_v3": lambda: (
        lambda x: models.mobilenet_v3(x, num_classes=10, test=True),
        nn.Variable((1, 3, 64, 64)),
    ),
    "embed": lambda: (lambda x: F.sum(PF.embed(x, 40, 8), axis=1), tokens((2, 6))),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_give_what_python_gives(name, tmp_path):
    network, x = NETWORKS[name]()
    path = tmp_path / "net.nnp"
    y = network(x)
    if name != "embed":
        x.d = np.random.default_rng(0).normal(size=x.shape)
    saved(path, y, x)
    y.forward()
    m = model(path)
    got = m.run({"x": np.ascontiguousarray(x.d, np.float32)})
    assert list(got) == ["y"]
    found = np.frombuffer(got["y"], np.float32).reshape(y.shape)
    np.testing.assert_allclose(found, y.d, rtol=1e-4, atol=1e-5 * np.abs(y.d).max())
    assert set(m.file.parameters) == set(nn.get_parameters(grad_only=False))
    (loaded,) = load(str(path)).executors.values()
    assert [v.variable_instance.shape for v in loaded.output_assign] == [y.shape]


def test_a_file_without_executors_has_its_networks(tmp_path):
    x = nn.Variable((2, 3))
    network = {"name": "net", "batch_size": 2, "outputs": {"z": F.relu(x)}, "names": {"x": x}}
    save(str(tmp_path / "a.nnp"), {"networks": [network]})
    got = model(tmp_path / "a.nnp", "net").run({"x": np.float32([[-1, 0, 1], [2, -2, 3]])})
    assert np.frombuffer(got["z"], np.float32).tolist() == [0, 0, 1, 2, 0, 3]


def edited(path, *changes):
    """Replace text in the network of an archive."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            for old, new in changes if name.endswith(".nntxt") else ():
                assert old.encode() in content, (old, content)
                content = content.replace(old.encode(), new.encode())
            archive.writestr(name, content)


@pytest.mark.parametrize(
    "old,new,text",
    [
        ('"Affine"', '"Affin"', r"network 'net': function .* \(Affin\): C\+\+ has no rule for"),
        ("dim: 4", "dim: 5", "which has another shape in the file|weight|bias"),
        ("dim: 4", "dim: -7", "the shape of '.*' is impossible"),
        ('network_name: "net"', 'network_name: "x"', "there is no network 'x'"),
        ('variable_name: "y"', 'variable_name: "q"', "no function computes the output 'q'"),
        ("base_axis: 1", "base_axis: 9", "base_axis"),
        ('output: "y"', 'output: "x"', "no function computes the output 'y'"),
    ],
)
def test_what_is_wrong_names_the_function(old, new, text, tmp_path):
    x = nn.Variable((2, 3))
    path = tmp_path / "a.nnp"
    saved(path, PF.affine(x, 4, name="fc"), x)
    edited(path, (old, new))
    with pytest.raises(ValueError, match=f"a.nnp: .*({text})"):
        model(path)


def test_functions_draw_the_numbers_of_their_seed(tmp_path):
    x = nn.Variable.from_numpy_array(np.ones((2, 300), np.float32))
    y = F.dropout(x, 0.4, seed=7) + F.rand(low=2.0, high=3.0, shape=(2, 300), seed=3)
    path = tmp_path / "a.nnp"
    saved(path, y, x)
    m = model(path)
    for _ in range(2):
        y.forward()
        assert m.run({"x": x.d})["y"] == y.d.tobytes()


def test_dropout_drops(tmp_path):
    """As in NNabla, whose files do not tell training from inference."""
    x = nn.Variable((10, 1000))
    path = tmp_path / "a.nnp"
    saved(path, F.dropout(x, 0.25), x)
    m = model(path)
    runs = [np.frombuffer(m.run({"x": np.ones(x.shape, "f")})["y"], "f") for _ in range(2)]
    assert (runs[0] != runs[1]).any()
    for y in runs:
        assert set(y.tolist()) == {0.0, float(np.float32(1 / 0.75))}
        assert abs((y == 0).mean() - 0.25) < 0.03


@pytest.mark.parametrize("left_out", [{"no_bias": True}, {"no_scale": True}])
def test_inputs_may_be_left_out(left_out, tmp_path):
    x = nn.Variable((2, 3, 4, 4))
    x.d = np.random.default_rng(0).normal(size=x.shape)
    y = PF.batch_normalization(x, batch_stat=False, **left_out)
    for k, p in enumerate(nn.get_parameters(grad_only=False).values()):
        p.d = np.random.default_rng(k).uniform(1, 2, p.shape)
    saved(tmp_path / "a.nnp", y, x)
    y.forward()
    found = np.frombuffer(model(tmp_path / "a.nnp").run({"x": np.float32(x.d)})["y"], np.float32)
    np.testing.assert_allclose(found.reshape(y.shape), y.d, rtol=1e-5, atol=1e-6)


def with_loops(text, path):
    """A file of a network whose loops Python unrolls, with random parameters."""
    (network,) = load(io.BytesIO(text.encode())).networks.values()
    rng = np.random.default_rng(0)
    for p in nn.get_parameters().values():
        p.d = rng.normal(size=p.shape)
    message = parse("NNablaProtoBuf", text.encode(), True, "text")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("network.nntxt", text_format.MessageToString(message))
        if nn.get_parameters():
            nn.save_parameters(path.with_suffix(".h5"))
            archive.write(path.with_suffix(".h5"), "parameter.h5")
    return network


@pytest.mark.parametrize("name", loop_networks.NETWORKS)
def test_loops_are_unrolled(name, tmp_path):
    network = with_loops(loop_networks.NETWORKS[name], tmp_path / "a.nnp")
    rng, values = np.random.default_rng(1), {}
    for k, v in network.inputs.items():
        v.variable_instance.d = values[k] = rng.normal(size=v.shape).astype(np.float32)
    ((k, y),) = network.outputs.items()
    y.variable_instance.forward()
    got = np.frombuffer(model(tmp_path / "a.nnp").run(values)[k], np.float32)
    np.testing.assert_allclose(got.reshape(y.shape), y.variable_instance.d, 1e-4, 1e-5)


REPEAT = loop_networks.NETWORKS["repeat"]


@pytest.mark.parametrize(
    "old,new,text",
    [
        ("times: 3", "times: 0", "the loop 'R' has 0 iterations"),
        ("times: 3", "times: 999999999", "its loops unroll to too many functions"),
        ('input: "s"', 'input: "q"', r"\(Affine\): there is no variable 'q'"),
        ('input: "e"', 'input: "h"', "the variable 'h' of the loop 'R' is read outside it"),
        ('input: "e"', 'input: "s"', "the variable 's' of the loop 'R' is read outside it"),
        ('input: "x" input: "h"', 'input: "x"', "it has 1 inputs and 1 outputs, wanted 2 and 1"),
    ],
)
def test_broken_loops_are_told(old, new, text, tmp_path):
    with_loops(REPEAT, tmp_path / "a.nnp")
    message = parse("NNablaProtoBuf", REPEAT.replace(old, new).encode(), True, "text")
    with zipfile.ZipFile(tmp_path / "a.nnp", "w") as archive:
        archive.writestr("network.nntxt", text_format.MessageToString(message))
    with pytest.raises(ValueError, match=f"a.nnp: network 'n': .*{text}"):
        model(tmp_path / "a.nnp")


@pytest.mark.parametrize("most", [1, pytest.param(99, marks=pytest.mark.long)])
def test_samples_give_what_python_gives_or_are_refused(most, tmp_path):
    """Of all functions; what a network is given is float32 here."""
    ran, refused = set(), {}
    for op, i in [p.values for p in CASES if p.values[1] < most]:
        inputs, outputs = graph(op, i)
        network = {"name": "n", "batch_size": 1, "names": inputs, "outputs": outputs}
        save(str(tmp_path / "a.nnp"), {"networks": [network]}, variable_batch_size=False)
        values = {k: np.array(x.d, np.float32, order="C") for k, x in inputs.items()}
        nn.forward_all(list(outputs.values()))
        try:
            got = model(tmp_path / "a.nnp").run(values)
        except ValueError as e:
            refused.setdefault(op.name, str(e))
            continue
        for k, y in outputs.items():
            found = np.frombuffer(got[k], y.d.dtype).reshape(y.shape)
            np.testing.assert_allclose(found, y.d, 1e-4, 1e-5, err_msg=f"{op.name}-{i}")
        ran.add(op.name)
    assert len(ran) > 160
    for name, error in refused.items():
        assert re.search("no (kernel|rule)|attribute 'count' is missing|wanted unsigned", error), (
            name
        )
