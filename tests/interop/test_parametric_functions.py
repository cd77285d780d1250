# SPDX-License-Identifier: Apache-2.0
"""Parametric functions give NNabla's first values, outputs and gradients."""

import numpy as np
import pytest

import nnl as nn
from nnl import functions as F
from nnl import parametric_functions as PF

pytestmark = pytest.mark.interop

LAYERS = {
    "lstm_cell": ([(2, 3), (2, 4), (2, 4)], {"state_size": 4}),
    "lstm": ([(5, 2, 3), (2, 1, 2, 4), (2, 1, 2, 4)], {"num_layers": 2}),
    "affine": ([(2, 3, 4)], {"n_outmaps": [5, 2], "base_axis": 2}),
    "svd_affine": ([(2, 12)], {"n_outmaps": 5, "r": 3}),
    "convolution": ([(2, 4, 6, 6)], {"outmaps": 6, "kernel": (3, 3), "group": 2, "pad": (1, 1)}),
    "deconvolution": ([(2, 4, 4, 4)], {"outmaps": 6, "kernel": (3, 3), "stride": (2, 2)}),
    "depthwise_convolution": ([(2, 4, 6, 6)], {"kernel": (3, 3), "multiplier": 2}),
    "batch_normalization": ([(4, 3, 5)], {}),
    "fused_batch_normalization": ([(4, 3, 5), (4, 3, 5)], {}),
    "layer_normalization": ([(4, 3, 5)], {"batch_axis": [0, 1]}),
    "instance_normalization": ([(4, 3, 5, 2)], {}),
    "group_normalization": ([(4, 6, 5, 2)], {"num_groups": 3}),
    "prelu": ([(4, 3, 5)], {"shared": False}),
    "spectral_norm": ([(4, 3, 2)], {"dim": 1, "itr": 3}),
    "weight_normalization": ([(4, 3, 2)], {"dim": 1}),
    "multi_head_attention": (
        [(3, 2, 6), (4, 2, 5), (4, 2, 8)],
        {"num_heads": 2, "out_dim": 7, "add_attn_bias": True},
    ),
    "transformer_encode": (
        [(3, 2, 6)],
        {"embed_dim": 6, "num_heads": 2, "dim_feedforward": 5, "dropout": 0.0},
    ),
    "transformer_decode": (
        [(3, 2, 6), (4, 2, 6)],
        {"embed_dim": 6, "num_heads": 2, "dim_feedforward": 5, "dropout": 0.0},
    ),
    "transformer": (
        [(3, 2, 6), (4, 2, 6)],
        {
            "embed_dim": 6,
            "num_heads": 2,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "dim_feedforward": 5,
            "dropout": 0.0,
        },
    ),
}


@pytest.mark.parametrize("name", list(LAYERS))
def test_parametric_function_equals_nnabla(nnabla, name):
    """Same first values, bit for bit; same outputs, gradients and running statistics."""
    shapes, options = LAYERS[name]
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(np.float32) for s in shapes]
    nn.clear_parameters()
    nn.seed(313)
    xs = [nn.Variable.from_numpy_array(a, need_grad=True) for a in arrays]
    ys = getattr(PF, name)(*xs, **options)
    ys = list(ys) if isinstance(ys, (tuple, list)) else [ys]
    parameters = nn.get_parameters(grad_only=False)
    first = {k: p.d.copy() for k, p in parameters.items()}
    for p in parameters.values():
        p.grad.zero()
    starts = [rng.normal(size=y.shape).astype(np.float32) for y in ys]
    parts = [F.sum(y * nn.Variable.from_numpy_array(u)) for y, u in zip(ys, starts, strict=True)]
    loss = parts[0]
    for part in parts[1:]:
        loss = loss + part
    nn.forward_all([*ys, loss])
    loss.backward()
    want = nnabla.parametric(name, arrays, grads=starts, seed=313, **options)

    for y, w in zip(ys, want.outputs, strict=True):
        np.testing.assert_allclose(y.d, w, rtol=1e-4, atol=1e-5)
    for x, w in zip(xs, want.grads, strict=True):
        np.testing.assert_allclose(x.g, w, rtol=1e-3, atol=1e-4)
    assert list(parameters) == list(want.parameters)
    for key, p in parameters.items():
        w = want.parameters[key]
        np.testing.assert_array_equal(first[key], w.first, err_msg=key)
        assert p.need_grad == w.need_grad
        np.testing.assert_allclose(p.d, w.value, rtol=1e-5, atol=1e-6, err_msg=key)
        if w.need_grad:
            np.testing.assert_allclose(p.g, w.grad, rtol=1e-3, atol=1e-4, err_msg=key)
