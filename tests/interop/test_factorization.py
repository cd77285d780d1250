# SPDX-License-Identifier: Apache-2.0
"""Layers with factorized weights start from NNabla's factors and give its outputs."""

import numpy as np
import pytest

import nnl as nn
from nnl import parametric_functions as PF
from nnl.utils.factorization.cpd import ALS

pytestmark = pytest.mark.interop

SOLVE = """
from nnabla.utils.factorization.cpd import ALS
factors, outputs["weights"] = ALS().solve(x, rng=np.random.RandomState(1), **arguments)
for n, a in enumerate(factors):
    outputs[f"factor{n}"] = a
"""


@pytest.mark.parametrize(
    "arguments",
    [
        {"rank": 2, "max_iter": 1},
        {"rank": 2, "max_iter": 3},
        {"rank": 2},
        {"rank": 3, "stopping_criterion": 1e-2},
        {"rank": 3, "stopping_criterion": 1e-4, "lambda_reg": 0.5},
    ],
)
def test_decomposition_equals_nnabla(nnabla, arguments):
    x = 3 * np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    want = nnabla.exec(f"arguments = {arguments}\nx = inputs['x']" + SOLVE, {"x": x})
    factors, weights = ALS().solve(x, rng=np.random.RandomState(1), **arguments)
    np.testing.assert_allclose(weights, want["weights"], rtol=1e-4)
    for n, a in enumerate(factors):
        np.testing.assert_allclose(a, want[f"factor{n}"], rtol=1e-3, atol=1e-4)


RNG = """
rng = np.random.RandomState(5)
for _ in range(2):
    y = PF.cpd3_convolution(nn.Variable((2, 4, 6, 6)), 6, (3, 3), 2, rng=rng)
outputs["next"] = rng.rand()
outputs.update({n: p.d for n, p in nn.get_parameters().items()})
"""


def test_a_given_generator_is_used_as_in_nnabla(nnabla):
    got = {}
    exec(RNG, {"nn": nn, "PF": PF, "np": np, "outputs": got})
    want = nnabla.exec(RNG)
    assert list(got) == list(want)
    for n, a in want.items():
        np.testing.assert_allclose(got[n], a, rtol=1e-3, atol=1e-4, err_msg=n)


@pytest.mark.parametrize("name", ["svd_convolution", "cpd3_convolution"])
def test_layer_equals_nnabla(nnabla, name):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 4, 6, 7)).astype(np.float32)
    arguments = {"outmaps": 6, "kernel": (3, 3), "r": 2, "pad": (1, 0), "stride": (1, 2)}
    nn.clear_parameters()
    nn.seed(313)
    v = nn.Variable.from_numpy_array(x, need_grad=True)
    y = getattr(PF, name)(v, **arguments)
    v.g = 0
    start = rng.normal(size=y.shape).astype(np.float32)
    y.forward()
    y.backward(start)
    want = nnabla.parametric(name, [x], grads=[start], seed=313, **arguments)
    np.testing.assert_allclose(y.d, want.outputs[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(v.g, want.grads[0], rtol=1e-3, atol=1e-4)
    assert list(nn.get_parameters()) == list(want.parameters)
