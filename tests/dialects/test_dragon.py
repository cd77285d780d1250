# SPDX-License-Identifier: Apache-2.0
"""Tiny-Dragon: the sample program of its paper; the same model in several dialects."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

import nnl.dialects.dragon as dragon
from nnl.workspace import Function, Workspace

# Section 4.2 of the paper, with Python 3's print.
SAMPLE = """
from dragon.core.tensor import Tensor
import dragon.core.workspace as ws
import dragon.ops as ops
import dragon.vm.theano as theano
import dragon.vm.theano.tensor as T

# declare variables
A = Tensor('A').Variable()
B = Tensor('B').Variable()

# feed A directly while keep B as a placeholder
ws.FeedTensor(A, [[1, 2, 3], [4, 5, 6]])

# define a function that wraps the computational graph
C = ops.Dot([A, B])
dA = T.grad(C, A)
f = theano.function(inputs=B, outputs=C)

# feed B once to execute
f([[7, 8], [9, 10], [11, 12]])

# fetch results
print(ws.FetchTensor(C))
print(ws.FetchTensor(dA))
"""


@pytest.fixture(autouse=True)
def workspace():
    with Workspace({}) as made:
        yield made


def test_the_sample_program(monkeypatch, capsys):
    for name, module in list(sys.modules.items()):
        if name.startswith("nnl.dialects.dragon"):
            monkeypatch.setitem(sys.modules, name.removeprefix("nnl.dialects."), module)
    exec(compile(SAMPLE, "sample", "exec"), {})
    numbers = [float(n) for n in re.findall(r"\d+", capsys.readouterr().out)]
    assert numbers == [58, 64, 139, 154, 15, 19, 23, 15, 19, 23]


def test_operators_and_names():
    x = dragon.core.tensor.Tensor("x")
    y = dragon.ops.Sum(dragon.ops.Square(x), axis=1)
    f = dragon.vm.theano.function(x, [y])
    assert f([[1, 2], [3, 4]])[0].tolist() == [5, 25] and f([[2]])[0].tolist() == [4]
    dragon.core.workspace.FeedTensor("x", [[3]])
    assert dragon.core.workspace.FetchTensor("x").tolist() == [[3]]
    assert dragon.core.workspace.HasTensor("x") and not dragon.core.workspace.HasTensor("z")
    dragon.core.workspace.ResetWorkspace()
    assert not dragon.core.workspace.HasTensor("x")


def test_one_script_in_three_dialects(workspace, tmp_path):
    """Caffe's layer, TensorFlow's relu, Theano's loss and gradients, on tensors of one workspace:
    what Theano's function updates is what the net and the session compute with."""
    import nnl.dialects.caffe as caffe
    import nnl.dialects.tensorflow as tf
    import nnl.dialects.theano as theano
    import nnl.dialects.theano.tensor as T

    (tmp_path / "part.prototxt").write_text(
        """
        name: "part"
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 } } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
                inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
        """
    )
    net = caffe.Net(str(tmp_path / "part.prototxt"), caffe.TEST)
    x, weight = net.blobs["x"], net.params["ip"][0]
    hidden = tf.nn.relu(net.blobs["ip"])
    w, y = theano.shared(np.full((5, 1), 0.5, "float32"), "w"), T.matrix("y")
    loss = T.mean((T.dot(hidden, w) - y) ** 2)
    params = [w, weight.tensor]
    grads = T.grad(loss, params)
    updates = [(p, p - 0.1 * g) for p, g in zip(params, grads, strict=True)]
    step = theano.function([x, y], loss, updates=updates)
    rng = np.random.RandomState(0)
    given = rng.normal(size=(4, 3)).astype("float32")
    wanted = np.abs(given).sum(1, keepdims=True)
    first = weight.data.copy()
    losses = [float(step(given, wanted)) for _ in range(200)]
    assert losses[-1] < 0.2 * losses[0] and np.abs(weight.data - first).max() > 0.01
    net.blobs["x"].data[...] = given
    ip = net.forward()["ip"]  # of the weights that Theano's function has left
    np.testing.assert_allclose(ip, given @ weight.data.T + net.params["ip"][1].data, rtol=1e-5)
    with tf.Session() as session:
        h, value = session.run([hidden, loss], feed_dict={x: given, y: wanted})
    np.testing.assert_allclose(h, np.maximum(ip, 0), rtol=1e-5)
    np.testing.assert_allclose(
        value, ((np.maximum(ip, 0) @ w.get_value() - wanted) ** 2).mean(), rtol=1e-4
    )
    assert {"w", "part"} <= {k.split("/")[0] for k in workspace.scope}


ALONE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if path is None and top not in sys.stdlib_module_names | {"numpy", "nnl", "nnl_ext"}:
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import numpy as np
import nnl.dialects.tensorflow as tf, nnl.dialects.theano as theano
import nnl.dialects.theano.tensor as T

w, x = theano.shared(np.ones(2, "float32")), T.vector()
theano.function([x], updates=[(w, w - 0.5 * T.grad((w * x).sum(), w))])([1, 2])
v = tf.Variable([1.0, 2.0])
step = tf.train.AdamOptimizer(0.5).minimize(tf.reduce_sum(v * v))
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(step)
    print(w.get_value().tolist(), session.run(v).round(3).tolist())
"""


def test_training_needs_numpy_and_no_other_library():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert done.stdout.split("\n")[0] == "[0.5, 0.0] [0.5, 1.5]", done.stderr[-2000:]


@pytest.mark.parametrize("bias, passes", [(False, ("prune",)), (True, True)])
def test_the_same_model_in_three_dialects(workspace, tmp_path, bias, passes):
    """tanh(x W): one program each, equal up to names and to where it was written. With a bias,
    which Theano and TensorFlow add to the product, they are equal as they run."""
    import nnl.dialects.caffe as caffe
    import nnl.dialects.tensorflow as tf
    import nnl.dialects.theano as theano
    import nnl.dialects.theano.tensor as T

    (tmp_path / "one.prototxt").write_text(
        """
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 } } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
                inner_product_param { num_output: 2 transpose: true bias_term: BIAS } }
        layer { name: "tanh" type: "TanH" bottom: "ip" top: "y" }
        """.replace("BIAS", str(bias).lower())
    )
    net = caffe.Net(str(tmp_path / "one.prototxt"), caffe.TEST)
    rng = np.random.RandomState(1)
    value, W, b = (rng.normal(size=s).astype("float32") for s in ((4, 3), (3, 2), (2,)))
    net.params["ip"][0].data[...] = W
    x, p = T.matrix("x"), tf.placeholder(tf.float32, [None, 3])
    z, t = T.dot(x, theano.shared(W, "W")), tf.matmul(p, tf.Variable(W))
    if bias:
        net.params["ip"][1].data[...] = b
        z, t = z + theano.shared(b, "b"), t + tf.Variable(b)
    z, t = T.tanh(z), tf.tanh(t)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
    texts, found = [], []
    for given, y in ((net.blobs["x"], net.blobs["y"]), (x, z), (p, t)):
        f = Function([given], [y])
        found.append(f(value)[0])
        shown = re.sub(r" *#.*", "", f.text(passes))
        pattern = r"%\d+|^[^\s:=]+(?=:f32)|(?<=, )[\w.\[\]/]+(?=[,)])"
        names = dict.fromkeys(re.findall(pattern, shown, re.M))
        for k, name in enumerate(names):
            shown = re.sub(rf"(?<![\w%]){re.escape(name)}(?!\w)", f"v{k}", shown)
        texts.append(shown)
    want = np.tanh(value @ W + b * bias)
    for got in found:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert texts[0] == texts[1] == texts[2]
