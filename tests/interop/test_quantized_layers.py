# SPDX-License-Identifier: Apache-2.0
"""Quantized layers and incremental quantization over several steps do what NNabla's do."""

import numpy as np
import pytest

import nnl as nn
from nnl import functions as F
from nnl import parametric_functions as PF

pytestmark = pytest.mark.interop

# Weights are tripled between two executions: fixed ones have to come back.
STEPS = """\
x = nn.Variable.from_numpy_array(inputs["x"]).apply(need_grad=True)
w = nn.Variable.from_numpy_array(inputs["w"]).apply(need_grad=True)
i = nn.Variable.from_numpy_array(inputs["i"])
f = F.inq_convolution if convolution else F.inq_affine
y = f(x, w, i, num_bits=bits, inq_iterations=iterations)
for k in range(6):
    x.g, w.g = 0, 0
    y.forward()
    y.backward()
    for name, a in (("y", y.d), ("w", w.d), ("i", i.d), ("gx", x.g), ("gw", w.g)):
        outputs[f"{name}{k}"] = a.copy()
    w.d = w.d * 2.9
    if k == 0:
        i.d = inputs["i2"]
"""


@pytest.mark.parametrize("convolution", [False, True])
@pytest.mark.parametrize("bits", [3, 4, 5])
@pytest.mark.parametrize("iterations", [(), (0,), (2, 4), (0, 1), (1, 3, 4)])
def test_incremental_quantization_equals_nnabla(nnabla, iterations, bits, convolution):
    rng = np.random.default_rng(0)
    shapes = ((2, 3, 5, 5), (4, 3, 2, 2)) if convolution else ((3, 6), (6, 5))
    x, w = (rng.normal(size=s).astype(np.float32) for s in shapes)
    inputs = {"x": x, "w": w, "i": (rng.random(w.shape) < 0.2).astype(np.float32)}
    inputs["i2"] = (rng.random(w.shape) < 0.2).astype(np.float32)
    head = f"bits, iterations, convolution = {bits}, {iterations}, {convolution}\n"
    want = nnabla.exec(head + STEPS, inputs)
    got = {}
    exec(head + STEPS, {"nn": nn, "F": F, "inputs": inputs, "outputs": got})
    assert list(got) == list(want)
    for name, a in want.items():
        np.testing.assert_allclose(got[name], a, rtol=1e-4, atol=1e-4, err_msg=name)


AFFINE = ([(4, 6)], {"n_outmaps": 5})
CONVOLUTION = ([(2, 4, 6, 6)], {"outmaps": 6, "kernel": (3, 3), "pad": (1, 1)})
LAYERS = {
    f"{name}_{kind}": (*layer, more)
    for name, more in {
        "binary_connect": {},
        "binary_weight": {"quantize_zero_to": -1.0},
        "inq": {"inq_iterations": [0]},
        "fixed_point_quantized": {"n_w": 3},
        "pow2_quantized": {"with_zero_w": True, "n_w": 4, "m_w": -1},
        "pruned": {"rate_w": 0.55},
        "min_max_quantized": {"ql_max_w": 15, "w_min_max": True, "qr_max_b_init": None},
    }.items()
    for kind, layer in (("affine", AFFINE), ("convolution", CONVOLUTION))
}


@pytest.mark.parametrize("name", list(LAYERS))
def test_layer_equals_nnabla(nnabla, name):
    shapes, arguments, more = LAYERS[name]
    arguments = {**arguments, **more}
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(np.float32) for s in shapes]
    nn.clear_parameters()
    nn.seed(313)
    xs = [nn.Variable.from_numpy_array(a, need_grad=True) for a in arrays]
    y = getattr(PF, name)(*xs, **arguments)
    for v in (*xs, *nn.get_parameters().values()):
        v.g = 0
    start = rng.normal(size=y.shape).astype(np.float32)
    y.forward()
    y.backward(start)
    want = nnabla.parametric(name, arrays, grads=[start], seed=313, **arguments)
    np.testing.assert_allclose(y.d, want.outputs[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(xs[0].g, want.grads[0], rtol=1e-4, atol=1e-4)
    mine = nn.get_parameters(grad_only=False)
    assert list(mine) == list(want.parameters)
    for n, p in want.parameters.items():
        np.testing.assert_allclose(mine[n].d, p.value, rtol=1e-5, atol=1e-6, err_msg=n)
        if p.grad is not None and p.need_grad:
            np.testing.assert_allclose(mine[n].g, p.grad, rtol=1e-4, atol=1e-4, err_msg=n)
