# SPDX-License-Identifier: Apache-2.0
"""Networks that NNabla made and saved, in every format: the results are those of NNabla itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.converters.formats import FORMATS, WriteOptions
from nnl.converters.networks.lowering import CannotLower
from nnl.converters.runtimes.others import renamed
from tests.converters.test_nnb import fields
from tests.interop.bridge import Nnabla
from tests.interop.here import IMPORTS

pytestmark = pytest.mark.interop

# Each defines what y is of x, in inference. `norm` is a batch normalization by known numbers.
NETWORKS = {
    "lenet": """
x = nn.Variable((2, 1, 28, 28))
h = F.relu(F.max_pooling(PF.convolution(x, 16, (5, 5), name='c1'), (2, 2)))
h = F.relu(F.max_pooling(PF.convolution(h, 16, (5, 5), name='c2'), (2, 2)))
y = F.softmax(PF.affine(F.relu(PF.affine(h, 50, name='a1')), 10, name='a2'))
""",
    "resnet": """
def unit(h, maps, stride, name):
    with nn.parameter_scope(name):
        r = norm(PF.convolution(h, maps, (3, 3), (1, 1), (stride,) * 2, with_bias=False, name='c1'))
        r = norm(PF.convolution(F.relu(r), maps, (3, 3), (1, 1), with_bias=False, name='c2'), 'n2')
        if h.shape != r.shape:
            h = norm(PF.convolution(h, maps, (1, 1), stride=(stride,) * 2, name='s'), 'ns')
        return F.relu(h + r)
x = nn.Variable((2, 3, 32, 32))
h = norm(PF.convolution(x, 8, (7, 7), (3, 3), (2, 2), with_bias=False))
h = F.max_pooling(F.relu(h), (3, 3), (2, 2), pad=(1, 1))
h = unit(unit(h, 8, 1, 'u1'), 12, 2, 'u2')
y = PF.affine(F.average_pooling(h, h.shape[2:]), 10)
""",
    "mobilenet": """
def hard_sigmoid(h):
    return F.relu6(h + 3.0) / 6.0
def hard_swish(h):
    return h * hard_sigmoid(h)
x = nn.Variable((2, 3, 24, 24))
h = hard_swish(norm(PF.convolution(x, 8, (3, 3), (1, 1), (2, 2), with_bias=False, name='first')))
for i, kernel in enumerate((3, 5)):
    with nn.parameter_scope(str(i)):
        r = F.relu6(norm(PF.convolution(h, 24, (1, 1), name='up')))
        r = PF.depthwise_convolution(r, (kernel,) * 2, (kernel // 2,) * 2, (i + 1,) * 2, name='d')
        r = hard_swish(norm(r, 'n2'))
        s = F.relu(PF.convolution(F.mean(r, (2, 3), keepdims=True), 6, (1, 1), name='s1'))
        r = r * hard_sigmoid(PF.convolution(s, 24, (1, 1), name='s2'))
        r = PF.convolution(r, 8, (1, 1), name='down')
        h = h + r if i == 0 else r
y = PF.affine(F.global_average_pooling(h), 10)
""",
    "unet": """
def twice(h, maps, name):
    with nn.parameter_scope(name):
        h = F.relu(norm(PF.convolution(h, maps, (3, 3), (1, 1), name='c1')))
        return F.elu(PF.convolution(h, maps, (3, 3), (1, 1), name='c2'))
x = nn.Variable((2, 1, 16, 16))
a = twice(x, 4, 'a')
b = twice(F.max_pooling(a, (2, 2)), 6, 'b')
c = twice(F.average_pooling(b, (2, 2)), 8, 'c')
h = F.concatenate(PF.deconvolution(c, 6, (2, 2), stride=(2, 2), name='up1'), b, axis=1)
h = F.concatenate(F.interpolate(twice(h, 6, 'd'), scale=(2, 2), mode='linear'), a, axis=1)
y = F.sigmoid(PF.convolution(twice(h, 4, 'e'), 1, (1, 1), name='last'))
""",
    "lstm": """
x = nn.Variable((2, 7, 5))
steps = F.transpose(x, (1, 0, 2))
zeros = F.constant(0, (1, 2, 2, 6))
h, _, _ = PF.lstm(steps, zeros, zeros, bidirectional=True)
h, _ = PF.gru(h, F.constant(0, (1, 1, 2, 4)))
y = PF.affine(F.slice(h, (6, 0, 0), (7, 2, 4), (1, 1, 1)), 3, base_axis=2)
""",
    "text": """
x = nn.Variable((2, 9))
h = F.sin(F.transpose(PF.embed(x, 2, 8, name='words'), (0, 2, 1)))
parts = []
for kernel in (2, 3):
    r = F.relu(PF.convolution(h, 6, (kernel,), name='c%d' % kernel))
    parts.append(F.max(r, axis=2))
y = F.log_softmax(PF.affine(F.concatenate(*parts, axis=1), 4))
""",
    "generator": """
x = nn.Variable((2, 6))
h = F.reshape(PF.affine(x, 8 * 4 * 4), (2, 8, 4, 4))
h = F.relu(norm(h))
h = PF.deconvolution(h, 6, (4, 4), (1, 1), (2, 2), with_bias=False, name='d1')
h = F.leaky_relu(PF.instance_normalization(h), 0.2)
y = F.tanh(PF.deconvolution(h, 3, (4, 4), (1, 1), (2, 2), name='d2'))
""",
    "transformer": """
def heads(h, name):
    h = F.reshape(PF.affine(h, 8, base_axis=2, name=name), (2, 5, 2, 4))
    return F.transpose(h, (0, 2, 1, 3))
x = nn.Variable((2, 5, 8))
n = PF.layer_normalization(x, batch_axis=(0, 1), name='n1')
a = F.batch_matmul(heads(n, 'q'), heads(n, 'k'), transpose_b=True) / 2.0
a = F.where(F.greater_equal_scalar(a, -9.0), a, F.constant(-9.0, a.shape))
a = F.batch_matmul(F.softmax(a, axis=3), heads(n, 'v'))
h = x + PF.affine(F.reshape(F.transpose(a, (0, 2, 1, 3)), (2, 5, 8)), 8, base_axis=2, name='o')
n = PF.layer_normalization(h, batch_axis=(0, 1), name='n2')
y = h + PF.affine(F.gelu(PF.affine(n, 16, base_axis=2, name='f1')), 8, base_axis=2, name='f2')
""",
    "autoencoder": """
x = nn.Variable((2, 1, 8, 8))
h = F.selu(PF.affine(x, 20, name='e1'))
h = PF.prelu(PF.affine(h, 5, name='e2'))
h = F.swish(PF.affine(F.softplus(h), 20, name='d1'))
y = F.reshape(F.sigmoid(PF.affine(h, 64, name='d2')), x.shape)
""",
    "detector": """
x = nn.Variable((2, 3, 16, 16))
h = F.leaky_relu(norm(PF.convolution(x, 8, (3, 3), (1, 1), (2, 2), name='c1')), 0.1)
h = F.leaky_relu(PF.convolution(F.pad(h, (1, 1, 1, 1)), 8, (3, 3), group=2, name='c2'), 0.1)
heads = []
for i, f in enumerate((h, F.max_pooling(h, (2, 2)))):
    r = PF.convolution(f, 14, (1, 1), name='h%d' % i)
    r = F.reshape(F.transpose(r, (0, 2, 3, 1)), (2, -1, 7))
    n = r.shape[1]
    at = F.sigmoid(F.slice(r, (0, 0, 0), (2, n, 2)))
    size = F.exp(F.minimum_scalar(F.slice(r, (0, 0, 2), (2, n, 4)), 4.0))
    scores = F.softmax(F.slice(r, (0, 0, 4), (2, n, 7)), axis=2)
    heads.append(F.concatenate(at - size * 0.5, at + size * 0.5, scores, axis=2))
y = F.concatenate(*heads, axis=1)
""",
}

NORM = """
def norm(h, name='n'):
    return PF.batch_normalization(h, batch_stat=False, name=name)
"""
SAVE = """
rng = np.random.RandomState(0)
for k, v in nn.get_parameters(grad_only=False).items():
    noise = rng.normal(size=v.shape) * 0.2
    v.d = v.d + (np.abs(noise) if k.endswith('var') else noise)
x.d = rng.randint(0, 2, x.shape) if INTEGERS else rng.normal(size=x.shape)
y.forward()
outputs['x'], outputs['y'] = x.d.copy(), y.d.copy()
save(PATH, {'networks': [{'name': 'n', 'batch_size': 2, 'outputs': {'y': y}, 'names': {'x': x}}],
            'executors': [{'name': 'e', 'network': 'n', 'data': ['x'], 'output': ['y']}]},
     variable_batch_size=False)
"""
REFUSED = {("text", "NNB"): ["embed in @n/Embed: ", "sin in @n/Sin: "]}
# Caffe has few layers and two files a network: tests/converters has tests of its own for it.
TARGETS = [name for name, f in FORMATS.items() if f.write and name not in ("NNLP", "CAFFE")]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_nnabla_computes_the_same_everywhere(
    nnabla: Nnabla, tmp_path: Path, name: str
) -> None:
    source = tmp_path / "net.nnp"
    values = f"PATH, INTEGERS = {str(source)!r}, {name == 'text'}\n"
    text = IMPORTS + values + NORM + NETWORKS[name] + SAVE
    found = nnabla.exec(text)
    read = FORMATS["NNP"].read
    assert read is not None
    model = read([str(source)])
    for target in TARGETS:
        form, path = FORMATS[target], str(tmp_path / f"to{target}")
        path += "".join(form.extensions[:1])
        assert form.write is not None
        try:
            form.write(model, path, WriteOptions(batch_size=2))
        except CannotLower as error:
            pairs = zip(error.problems, REFUSED[name, target], strict=True)
            assert all(problem.startswith(wanted) for problem, wanted in pairs), error.problems
            assert not Path(path).exists()
            continue
        assert (name, target) not in REFUSED
        got = _result(form, path, found["x"])
        scale = np.abs(found["y"]).max()
        np.testing.assert_allclose(
            got.reshape(found["y"].shape), found["y"], rtol=0, atol=1e-5 * scale, err_msg=target
        )


def _result(form: Any, path: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What a file's own runtime computes, where it is installed; else what nnl reads in it."""
    runtime = form.runtime(path, form.name) if form.runtime else None
    if runtime is None:
        network = form.read([path]).network(2, inference=True)
        (y,) = network.run(renamed({"x": x}, list(network.inputs), form.name)).values()
    else:
        (y,) = runtime.run({"x": x})
    return np.asarray(y)


CONVERT = """
import os, subprocess, sys
command = os.path.join(os.path.dirname(sys.executable), 'nnabla_cli')
subprocess.run([command, 'convert', '--api', '44', PATH, PATH + '.nnb'], check=True,
               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""


# what its runtime has
@pytest.mark.parametrize("name", ["lenet", "resnet", "mobilenet", "detector"])
def test_nnb_is_not_larger_than_that_of_nnabla(nnabla: Nnabla, tmp_path: Path, name: str) -> None:
    source, ours = tmp_path / "net.nnp", tmp_path / "ours.nnb"
    values = f"PATH, INTEGERS = {str(source)!r}, False\n"
    nnabla.exec(IMPORTS + values + NORM + NETWORKS[name] + SAVE + CONVERT)
    nnp, nnb = FORMATS["NNP"], FORMATS["NNB"]
    assert nnp.read is not None and nnb.write is not None
    nnb.write(nnp.read([str(source)]), str(ours), WriteOptions(level=44))
    theirs = tmp_path / "net.nnp.nnb"
    assert ours.stat().st_size <= theirs.stat().st_size
    assert sum(fields(ours)["buffers"]) <= sum(fields(theirs)["buffers"])
