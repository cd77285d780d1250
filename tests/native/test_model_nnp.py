# SPDX-License-Identifier: Apache-2.0
"""Executors of .nnp files in C++: what Python computes for the same file."""

import zipfile

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl import models
from nnl.utils.load import load
from nnl.utils.save import save
from tests.native.kernels import require_library


@pytest.fixture(autouse=True)
def own_parameters():
    with nn.parameter_scope("", {}) as scope:
        scope.clear()
        yield


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


def test_functions_of_training_are_refused(tmp_path):
    x = nn.Variable((2, 3))
    path = tmp_path / "a.nnp"
    saved(path, F.dropout(x), x)
    with pytest.raises(ValueError, match=r"a.nnp: .*\(Dropout\): "):
        model(path)
