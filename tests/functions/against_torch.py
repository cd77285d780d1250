# SPDX-License-Identifier: Apache-2.0
"""Compare a function with PyTorch: value, gradient, and gradient of the gradient."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

torch = pytest.importorskip("torch")


def compare(f, reference, *arrays, fixed=(), rtol=1e-9, order=2):
    """Raise unless f and the reference agree in float64.

    The second order is checked by the gradient of the sum of squared gradients, by the arrays and
    by the gradient that backward starts from.

    Args:
        f, reference: From Variables, or tensors, to one or to a tuple of them.
        arrays: What is differentiated.
        fixed: Further arguments, which are not.
    """
    rng = np.random.default_rng(1)
    ts = [torch.tensor(a, requires_grad=True) for a in arrays]
    tys = several(reference(*ts, *(torch.tensor(a) for a in fixed)))
    us = [rng.normal(size=tuple(t.shape)) for t in tys]
    tus = [torch.tensor(u, requires_grad=True) for u in us]
    tgs = torch.autograd.grad(tys, ts, tus, create_graph=True)
    tggs = torch.autograd.grad(sum((g * g).sum() for g in tgs), ts + tus, allow_unused=True)
    with nn.context_scope(nn.Context(["cpu:double"])), nn.auto_forward():
        vs = [nn.Variable.from_numpy_array(a, need_grad=True) for a in arrays]
        vus = [nn.Variable.from_numpy_array(u, need_grad=True) for u in us]
        ys = several(f(*vs, *(nn.Variable.from_numpy_array(a) for a in fixed)))
        gs = nn.grad(ys, vs, vus)
        check(ys, tys, rtol)
        check(gs, tgs, rtol)
        if order == 1:
            return
        total = F.sum(gs[0] * gs[0])
        for g in gs[1:]:
            total = total + F.sum(g * g)
        check(nn.grad([total], vs + vus), tggs, rtol * 10)


def several(y):
    return list(y) if isinstance(y, (tuple, list)) else [y]


def check(got, want, rtol):
    for g, t in zip(got, want, strict=True):
        w = np.zeros(g.shape) if t is None else t.detach().numpy(force=True)
        np.testing.assert_allclose(g.d, w, rtol=rtol, atol=1e-11 + rtol * np.abs(w).max(initial=0))
