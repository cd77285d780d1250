# SPDX-License-Identifier: Apache-2.0
"""Copy the weights of PyTorch networks into parameters that nnl has made."""

import numpy as np
import pytest

import nnl as nn

torch = pytest.importorskip("torch")


def layers_of_nnl():
    """Scope -> {parameter name: Variable}, in the order in which the layers were made."""
    layers = {}
    for path, v in nn.get_parameters(grad_only=False).items():
        scope, _, leaf = path.rpartition("/")
        layers.setdefault(scope, {})[leaf] = v
    return layers


def tensors_of(module):
    """nnl's parameter name -> array, for a layer of PyTorch."""
    w = module.weight.detach().numpy()
    bias = {} if module.bias is None else {"b": module.bias.detach().numpy()}
    if isinstance(module, torch.nn.Linear):
        return {"W": w.T, **bias}
    if isinstance(module, torch.nn.BatchNorm2d):
        shape = (1, -1, 1, 1)
        named = {
            "gamma": module.weight,
            "beta": module.bias,
            "mean": module.running_mean,
            "var": module.running_var,
        }
        return {k: t.detach().numpy().reshape(shape) for k, t in named.items()}
    return {"W": w, **bias}


def copy_layers(network):
    """Copy layer by layer, in the order of definition. Raise if one has other parameters."""
    theirs = [m for m in network.modules() if getattr(m, "weight", None) is not None]
    for (scope, ours), module in zip(layers_of_nnl().items(), theirs, strict=True):
        arrays = tensors_of(module)
        assert set(arrays) == set(ours), scope
        for leaf, v in ours.items():
            assert v.shape == arrays[leaf].shape, f"{scope}/{leaf}"
            v.d = arrays[leaf]


def draw_statistics(network, seed=0):
    """Give every batch normalisation scale, bias and running statistics that are not trivial."""
    generator = torch.Generator().manual_seed(seed)
    for m in network.modules():
        if isinstance(m, torch.nn.BatchNorm2d):
            for t, low in ((m.weight, 0.5), (m.bias, -0.5), (m.running_mean, -0.5)):
                t.data.uniform_(low, low + 1, generator=generator)
            m.running_var.uniform_(0.5, 2.0, generator=generator)


def assert_close(got, want, rtol):
    """Equal within rtol of the largest element."""
    want = want.detach().numpy()
    np.testing.assert_allclose(got, want, rtol=0, atol=rtol * np.abs(want).max())
