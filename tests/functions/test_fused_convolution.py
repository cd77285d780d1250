# SPDX-License-Identifier: Apache-2.0
"""fused_convolution against PyTorch, its running statistics, and what it refuses."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

V = nn.Variable.from_numpy_array


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(3, 4, 6, 5)), rng.normal(size=(6, 2, 3, 2))
    beta, gamma, mean = rng.normal(size=(3, 1, 6, 1, 1))
    return x, w, beta, gamma, mean, rng.uniform(0.5, 2, (1, 6, 1, 1)), rng.normal(size=(3, 6, 6, 6))


@pytest.mark.parametrize("batch_stat", [True, False])
@pytest.mark.parametrize("nonlinearity,args", [("identity", ()), ("elu", (0.7,)), ("sigmoid", ())])
def test_is_the_chain_of_its_steps(batch_stat, nonlinearity, args):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    T = torch.nn.functional
    x, w, beta, gamma, mean, variance, z = inputs()

    def f(x, w, beta, gamma, z, mean, variance):
        return F.fused_convolution(
            x, w, None, beta, gamma, mean, variance, z, pad=(1, 1), group=2, eps=1e-3,
            batch_stat=batch_stat, nonlinearity=nonlinearity, nonlinearity_args=args,
        )  # fmt: skip

    def reference(x, w, beta, gamma, z, mean, variance):
        h = T.conv2d(x, w, padding=1, groups=2)
        h = T.batch_norm(
            h, mean.ravel(), variance.ravel(), gamma.ravel(), beta.ravel(), batch_stat, 0.1, 1e-3
        )
        functions = {"identity": lambda v: v, "elu": lambda v: T.elu(v, 0.7)}
        return functions.get(nonlinearity, torch.sigmoid)(h + z)

    compare(f, reference, x, w, beta, gamma, z, fixed=(mean, variance), rtol=1e-7)


def test_running_statistics_are_updated_once_by_forward_and_not_by_backward():
    arrays = inputs()
    x, w, beta, gamma, mean, variance, _ = map(V, arrays)
    x.need_grad = True
    y = F.fused_convolution(x, w, None, beta, gamma, mean, variance, pad=(1, 1), group=2)
    np.testing.assert_array_equal(mean.d, arrays[4])
    y.forward()
    with nn.auto_forward():
        h = F.convolution(V(arrays[0]), V(arrays[1]), pad=(1, 1), group=2).d
    want = 0.9 * arrays[4] + 0.1 * h.mean((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(mean.d, want, rtol=1e-4, atol=1e-5)
    want = 0.9 * arrays[5] + 0.1 * h.var((0, 2, 3), ddof=1, keepdims=True)
    np.testing.assert_allclose(variance.d, want, rtol=1e-4)
    after = mean.d.copy(), variance.d.copy()
    y.backward()
    np.testing.assert_array_equal(mean.d, after[0])
    np.testing.assert_array_equal(variance.d, after[1])


def test_pads_the_two_ends_of_an_axis_differently():
    x, w = (V(a) for a in inputs()[:2])
    with nn.auto_forward():
        y = F.fused_convolution(
            x, w, pad=(2, 0, 1, 3), pad_mode="reflect", group=2, nonlinearity="relu"
        )
        h = F.pad(x, (2, 0, 1, 3), mode="reflect")
        want = F.relu(F.convolution(h, w, group=2))
    np.testing.assert_allclose(y.d, want.d, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "change,at,text",
    [
        ({4: None}, {}, "mean left out, wanted all or none of beta, gamma, mean and variance"),
        ({2: None, 5: None}, {}, "beta and variance left out"),
        ({6: np.zeros((3, 6, 6, 1))}, {}, r"z float32\[3, 6, 6, 1\] must have the shape of"),
        ({}, {"nonlinearity": "gelu"}, "nonlinearity is 'gelu', wanted one of"),
        ({}, {"nonlinearity": "elu"}, r"nonlinearity_args is \(\), wanted 1 values for 'elu'"),
        ({}, {"nonlinearity_args": (1.0,)}, r"nonlinearity_args is \(1.0,\), wanted 0 values"),
        ({}, {"pad": (1, 1, 1)}, r"pad \(1, 1, 1\) has 3 entries, .* takes 2 or 4"),
        ({}, {"group": 1}, "convolution: x .* has 4 channels"),
        ({2: np.zeros((1, 5, 1, 1))}, {}, "batch_normalization: beta"),
        ({}, {"pad_mode": "mirror"}, "pad: mode is 'mirror'"),
    ],
)
def test_errors_name_what_came_and_what_was_wanted(change, at, text):
    arrays = [change.get(i, a) for i, a in enumerate(inputs())]
    x, w, *rest = (None if a is None else V(a) for a in arrays)
    with pytest.raises(ValueError, match=f"^fused_convolution: .*{text}"):
        F.fused_convolution(x, w, None, *rest, **{"pad": (1, 1), "group": 2, **at})
