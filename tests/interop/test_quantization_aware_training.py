# SPDX-License-Identifier: Apache-2.0
"""A training through QATScheduler is the same in NNabla and in nnl, step by step."""

import numpy as np
import pytest

import nnl as nn
from nnl import functions as F
from nnl import parametric_functions as PF
from nnl import solvers as S
from nnl.utils import qnn

pytestmark = pytest.mark.interop

SCRIPT = """
import importlib
qnn = importlib.import_module(nn.__name__ + ".utils.qnn")

def residual(x, test):
    h = PF.convolution(x, 4, (3, 3), pad=(1, 1), name="c1", with_bias=False)
    h = F.relu(PF.batch_normalization(h, batch_stat=not test, name="b1"))
    k = PF.convolution(h, 4, (3, 3), pad=(1, 1), name="c2")
    k = PF.batch_normalization(k, batch_stat=not test, name="b2")
    h = F.average_pooling(F.relu(k + h), (2, 2))
    return PF.affine(h, 3, name="a")

def chain(x, test):
    h = PF.batch_normalization(x, batch_stat=not test, name="b0")
    h = F.relu(PF.convolution(h, 4, (3, 3), name="c1"))
    h = PF.deconvolution(h, 4, (2, 2), name="d1")
    h = F.tanh(PF.batch_normalization(h, batch_stat=not test, name="b1"))
    return PF.affine(PF.affine(h, 5, name="a1"), 3, name="a2")

def branches(x, test):
    h = F.relu(PF.convolution(x, 4, (3, 3), pad=(1, 1), name="c1"))
    k = PF.convolution(h, 3, (3, 3), pad=(1, 1), name="c2")
    h = F.concatenate(h, F.sigmoid(k), axis=1)
    h = F.max_pooling(PF.convolution(h, 4, (1, 1), name="c3"), (2, 2))
    return PF.affine(h, 3, name="a")

rng = np.random.RandomState(5)
x, t, vx = nn.Variable((4, 2, 6, 6)), nn.Variable((4, 1)), nn.Variable((4, 2, 6, 6))
network = {"residual": residual, "chain": chain, "branches": branches}[NETWORK]
pred, vpred = network(x, False), network(vx, True)
loss = F.mean(F.softmax_cross_entropy(pred, t))
solver = S.Momentum(0.1)
solver.set_parameters(nn.get_parameters())
config = qnn.QATConfig()
config.ext_name = "cpu"
config.niter_to_recording, config.niter_to_training = 2, 5
config.learning_rate_scale = 1.0  # NNabla multiplies by it once for every network
for key, value in SETTINGS.items():
    if key == "recorder_position":
        value = qnn.QATConfig.RecorderPosition[value]
    elif key.startswith("recorder"):
        value = getattr(qnn, value + "RecorderCallback")
    elif key == "pow2":
        value = qnn.QATConfig.RoundingMethod[value]
    setattr(config, key, value)
scheduler = qnn.QATScheduler(config=config, solver=solver)
scheduler(pred)
scheduler(vpred, training=False)
vx.d = rng.normal(size=vx.shape)
for step in range(8):
    scheduler.step()
    x.d, t.d = rng.normal(size=x.shape), rng.randint(0, 3, size=t.shape)
    loss.forward()
    solver.zero_grad()
    loss.backward()
    solver.update()
    vpred.forward()
    types = []
    vpred.visit(lambda f: types.append(f.info.type_name))
    outputs[f"types {step}"] = sorted(types)
    outputs[f"loss {step}"], outputs[f"y {step}"] = loss.d.copy(), vpred.d.copy()
for name, p in nn.get_parameters(grad_only=False).items():
    if "scale-" in name and p.d > 1e-20:  # those that are used
        outputs[name] = p.d.copy()
"""

WHOLE = {"skip_inputs_layers": [], "skip_outputs_layers": []}
FOLD = {"bn_folding": True, "bn_self_folding": True}
CASES = {
    "default": ("residual", {}),
    "folded": ("residual", FOLD),
    "whole": ("residual", {**WHOLE, **FOLD}),
    "exact scales": ("residual", {**WHOLE, **FOLD, "pow2": "NOTROUND", "narrow_range": True}),
    "no bias": ("residual", {**WHOLE, **FOLD, "skip_bias": True}),
    "some layers": ("residual", {"bn_folding": True, "record_layers": ["Convolution", "ReLU"]}),
    "largest": (
        "residual",
        {**FOLD, "recorder_activation": "AbsMax", "recorder_weight": "AbsMax", "pow2": "CEIL"},
    ),
    "averages": (
        "residual",
        {**FOLD, "recorder_activation": "MinMaxMva", "recorder_weight": "MaxMax", "pow2": "FLOOR"},
    ),
    "both sides": ("chain", {**WHOLE, "bn_self_folding": True, "recorder_position": "BOTH"}),
    "chain": ("chain", {"bn_self_folding": True}),
    "branches": ("branches", WHOLE),
}


@pytest.mark.parametrize("case", CASES)
def test_training_with_simulated_quantization_equals_nnabla(nnabla, case):
    network, settings = CASES[case]
    script = f"NETWORK, SETTINGS = {network!r}, {settings!r}\n" + SCRIPT
    want = nnabla.exec(script)
    outputs = {}
    nn.clear_parameters()
    nn.seed(313)
    names = {"nn": nn, "F": F, "PF": PF, "S": S, "np": np, "inputs": {}, "outputs": outputs}
    exec(compile(script, "<script>", "exec"), names)
    unused = {k for k in set(want) ^ set(outputs) if k.endswith("scale-b")}  # of skipped biases
    assert set(want) - unused == set(outputs) - unused
    for key in set(want) - unused:
        got = np.array(outputs[key])
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, want[key], rtol=1e-3, atol=1e-5, err_msg=key)
        else:
            assert got.tolist() == want[key].tolist(), key


READ = """
from nnabla.utils.nnp_graph import NnpLoader
net = NnpLoader(PATH).get_network("net", batch_size=2)
net.inputs["x0"].d = inputs["x"]
net.outputs["y0"].forward()
outputs["y"] = net.outputs["y0"].d
"""


def test_nnabla_reads_what_the_scheduler_saves(nnabla, tmp_path):
    x = nn.Variable.from_numpy_array(np.random.default_rng(0).normal(size=(2, 3, 6, 6)))

    def network():
        h = PF.batch_normalization(PF.convolution(x, 4, (3, 3), name="c1"), batch_stat=False)
        return PF.affine(PF.convolution(F.relu(h), 4, (3, 3), name="c2"), 2, name="a")

    y, vy = network(), network()
    c = qnn.QATConfig()
    c.bn_folding, c.niter_to_training = True, 2
    c.recorder_activation = qnn.AbsMaxRecorderCallback
    c.skip_inputs_layers = c.skip_outputs_layers = []
    scheduler = qnn.QATScheduler(c)
    scheduler(y)
    scheduler(vy, training=False)
    for _ in range(3):
        scheduler.step()
        nn.forward_all([y, vy])
    path = str(tmp_path / "q.nnp")
    scheduler.save(path, x, batch_size=2)
    want = nnabla.exec(f"PATH = {path!r}\n" + READ, {"x": x.d})
    np.testing.assert_allclose(vy.d, want["y"], rtol=1e-4, atol=1e-5)
