# SPDX-License-Identifier: Apache-2.0
"""Element-wise functions against PyTorch: values and gradients in double precision."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

torch = pytest.importorskip("torch")
T = torch.nn.functional

REALS = (-4.0, 4.0)
UNIT = (-0.95, 0.95)
POSITIVE = (0.1, 4.0)


def unary(name, peer, domain=REALS, **attrs):
    label = "-".join([name, *(f"{k}={v}" for k, v in attrs.items())])
    return pytest.param(name, peer, domain, attrs, id=label)


UNARY = [
    unary("abs", torch.abs),
    unary("exp", torch.exp),
    unary("log", torch.log, POSITIVE),
    unary("sin", torch.sin),
    unary("cos", torch.cos),
    unary("tan", torch.tan, UNIT),
    unary("sinh", torch.sinh),
    unary("cosh", torch.cosh),
    unary("tanh", torch.tanh),
    unary("asin", torch.asin, UNIT),
    unary("acos", torch.acos, UNIT),
    unary("atan", torch.atan),
    unary("asinh", torch.asinh),
    unary("acosh", torch.acosh, (1.1, 5.0)),
    unary("atanh", torch.atanh, UNIT),
    unary("erf", torch.erf),
    unary("sinc", lambda x: torch.sinc(x / torch.pi)),
    unary("identity", lambda x: x.clone()),
    unary("relu", torch.relu),
    unary("relu6", T.relu6, (-4.0, 9.0)),
    unary("leaky_relu", lambda x: T.leaky_relu(x, 0.1)),
    unary("leaky_relu", lambda x: T.leaky_relu(x, 1.5), alpha=1.5),
    unary("leaky_relu", lambda x: T.leaky_relu(x, -0.5), alpha=-0.5),
    unary("sigmoid", torch.sigmoid),
    unary("log_sigmoid", T.logsigmoid),
    unary("swish", T.silu),
    unary("elu", T.elu),
    unary("elu", lambda x: T.elu(x, 0.3), alpha=0.3),
    unary("selu", T.selu),
    unary("gelu", lambda x: T.gelu(x, approximate="tanh")),
    unary("mish", T.mish),
    unary("hard_tanh", T.hardtanh),
    unary("hard_sigmoid", lambda x: torch.clamp(0.2 * x + 0.5, 0, 1)),
    unary("softplus", T.softplus),
    unary("softplus", lambda x: T.softplus(x, beta=2.5, threshold=100), beta=2.5),
    unary("softsign", T.softsign),
    unary("tanh_shrink", T.tanhshrink),
    unary("add_scalar", lambda x: x + 2.5, val=2.5),
    unary("mul_scalar", lambda x: x * 2.5, val=2.5),
    unary("pow_scalar", lambda x: x**2.0, val=2.0),
    unary("pow_scalar", lambda x: x**3.0, val=3.0),
    unary("pow_scalar", lambda x: x**-0.5, POSITIVE, val=-0.5),
    unary("pow_scalar", lambda x: x**1.7, POSITIVE, val=1.7),
    unary("r_sub_scalar", lambda x: 2.5 - x, val=2.5),
    unary("r_div_scalar", lambda x: 2.5 / x, POSITIVE, val=2.5),
    unary("r_pow_scalar", lambda x: 2.5**x, val=2.5),
    unary("maximum_scalar", lambda x: torch.clamp(x, min=0.5), val=0.5),
    unary("minimum_scalar", lambda x: torch.clamp(x, max=0.5), val=0.5),
    unary("crelu", lambda x: torch.cat([torch.relu(x), torch.relu(-x)], 1)),
    unary("celu", lambda x: torch.cat([T.elu(x, 0.5), T.elu(-x, 0.5)], 0), alpha=0.5, axis=0),
    unary("clip_by_value", lambda x: torch.clamp(x, -1, 2), min=-1, max=2),
    unary(
        "clip_by_norm",
        lambda x: x * 2 / torch.clamp(torch.linalg.vector_norm(x, dim=1, keepdim=True), min=2),
        clip_norm=2.0,
        axis=1,
    ),
]

BINARY = [
    ("add2", torch.add),
    ("bc_add2", torch.add),
    ("sub2", torch.sub),
    ("mul2", torch.mul),
    ("div2", torch.div),
    ("pow2", torch.pow),
    ("atan2", torch.atan2),
    ("maximum2", torch.maximum),
    ("minimum2", torch.minimum),
    ("mod2", torch.fmod),
]


def agree(function, peer, *arrays):
    """Values, first gradients and second ones (of the weighted sum of the first) are equal."""
    rng = np.random.default_rng(1)
    xs = [nn.Variable.from_numpy_array(a, need_grad=True) for a in arrays]
    ts = [torch.tensor(a, requires_grad=True) for a in arrays]
    with nn.context_scope(nn.Context(["cpu:double"])), nn.auto_forward():
        y, t = function(*xs), peer(*ts)
        np.testing.assert_allclose(y.d, t.detach().numpy(), rtol=1e-12, atol=1e-14)
        u = rng.normal(size=y.shape)
        gs = nn.grad([y], xs, [nn.Variable.from_numpy_array(u)])
        hs = torch.autograd.grad(t, ts, torch.tensor(u), create_graph=True)
        for g, h in zip(gs, hs, strict=True):
            np.testing.assert_allclose(g.d, h.detach().numpy(), rtol=1e-11, atol=1e-12)
        t2 = sum((h * h).sum() for h in hs)
        if not t2.requires_grad:
            return
        total = None
        for g in gs:
            part = F.sum(g * g)
            total = part if total is None else total + part
        seconds = torch.autograd.grad(t2, ts, allow_unused=True)
        for g, h in zip(nn.grad([total], xs), seconds, strict=True):
            want = np.zeros(g.shape) if h is None else h.numpy(force=True)
            np.testing.assert_allclose(g.d, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name,peer,domain,attrs", UNARY)
def test_function_of_one_array_equals_torch(name, peer, domain, attrs):
    x = np.random.default_rng(0).uniform(*domain, size=(5, 7))
    agree(lambda v: getattr(F, name)(v, **attrs), peer, x)


@pytest.mark.parametrize("name,peer", BINARY, ids=[n for n, _ in BINARY])
@pytest.mark.parametrize("s1", [(5, 7), (1, 7), (5, 1)])
def test_function_of_two_arrays_equals_torch(name, peer, s1):
    rng = np.random.default_rng(0)
    agree(getattr(F, name), peer, rng.uniform(0.2, 3, (5, 7)), rng.uniform(0.2, 3, s1))


def test_functions_of_many_arrays_equal_torch():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(3, 4)) for _ in range(4)]
    arrays[1][0] = 0.0
    arrays[2][0, 0] = 0.0
    agree(F.add_n, lambda *x: sum(x), *arrays)
    agree(F.mul_n, lambda a, b, c, d: a * b * c * d, *arrays)


@pytest.mark.parametrize("slopes", [(1,), (4,)])
def test_prelu_equals_torch(slopes):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(3, 4, 2)), rng.uniform(0.1, 0.9, slopes)
    agree(F.prelu, T.prelu, x, w)


def test_pow2_has_no_gradient_of_the_exponent_where_the_base_is_zero():
    x, e = np.array([0.0, 0.0, 2.0]), np.array([2.0, 1.0, 0.0])
    xs = [nn.Variable.from_numpy_array(a, need_grad=True) for a in (x, e)]
    ts = [torch.tensor(a, requires_grad=True) for a in (x, e)]
    with nn.context_scope(nn.Context(["cpu:double"])), nn.auto_forward():
        gs = nn.grad([F.pow2(*xs)], xs)
    for g, h in zip(gs, torch.autograd.grad(torch.pow(*ts).sum(), ts), strict=True):
        np.testing.assert_allclose(g.d, h.numpy())


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted_equals_torch(right):
    rng = np.random.default_rng(0)
    s = np.sort(rng.integers(0, 9, (2, 3, 8)), axis=-1).astype(np.float32)
    v = rng.integers(-1, 11, (2, 3, 5)).astype(np.float32)
    with nn.auto_forward():
        y = F.searchsorted(*map(nn.Variable.from_numpy_array, (s, v)), right=right)
    want = torch.searchsorted(torch.tensor(s), torch.tensor(v), right=right)
    np.testing.assert_array_equal(y.d, want.numpy())


def test_erf_has_the_precision_of_its_type():
    x = np.concatenate([np.linspace(-7, 7, 20001), [0.46875, 1e-30, np.inf, -np.inf]])
    for kind, dtype in (("double", np.float64), ("float", np.float32)):
        with nn.context_scope(nn.Context([f"cpu:{kind}"])), nn.auto_forward():
            y = F.erf(nn.Variable.from_numpy_array(x.astype(dtype))).d
        want = torch.erf(torch.tensor(x.astype(dtype)).double()).numpy()
        assert y.dtype == dtype
        np.testing.assert_allclose(y, want, rtol=4 * np.finfo(dtype).eps)
