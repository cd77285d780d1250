# SPDX-License-Identifier: Apache-2.0
"""Normalizations at sizes and in orders that the samples do not have, and the fused kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import Spec
from nnl.core.ops.op import OPS, Op
from nnl.ext.library import native_spec
from tests.native.kernels import (
    BF16,
    F16,
    F32,
    TOLERANCE,
    assert_close,
    from_channels_last,
    require_library,
    run_native,
    run_numpy,
    to_channels_last,
)

BACKWARD = "batch_normalization_backward_fused"


def run(
    name: str,
    attrs: dict[str, Any],
    inputs: list[Any],
    outs: list[tuple[tuple[int, ...], Any]],
    last: bool = False,
    overwrite: dict[int, int] | None = None,
) -> list[np.ndarray]:
    """Outputs of a kernel; arrays of rank 4 lie channels-last if `last`.

    Args:
        outs: Shape and dtype of each output.
        overwrite: Output -> the input whose memory it takes.
    """
    lib = require_library()
    given = [to_channels_last(x) if last and x is not None and x.ndim == 4 else x for x in inputs]
    kernel = lib.array_kernel(
        name,
        attrs,
        [native_spec(None if x is None else Spec.of(x.shape, x.dtype), last) for x in inputs],
        [native_spec(Spec.of(shape, np.dtype(d)), last) for shape, d in outs],
        [np.dtype(d) for _, d in outs],
    )
    assert kernel is not None
    memory = [np.empty(shape, d) for shape, d in outs]
    for o, i in (overwrite or {}).items():
        memory[o] = given[i]
    kernel(*given, out=memory if len(memory) > 1 else memory[0])
    for i, x in enumerate(inputs):
        if x is not None and given[i] is not x and i not in (overwrite or {}).values():
            x[...] = from_channels_last(given[i])
    return [from_channels_last(y) if last and y.ndim == 4 else y for y in memory]


class Reference:
    """act(batch_normalization(x) + z) and its gradients, in float64."""

    def __init__(self, x: Any, beta: Any, gamma: Any, z: Any, eps: float, relu: bool) -> None:
        x, beta, gamma = (a.astype(np.float64) for a in (x, beta, gamma))
        self.n, self.gamma, self.relu = x.size // x.shape[1], gamma, relu
        self.mean = x.mean((0, 2, 3), keepdims=True)
        self.variance = x.var((0, 2, 3), keepdims=True)
        self.inverse = 1 / np.sqrt(self.variance + eps)
        self.xhat = (x - self.mean) * self.inverse
        self.y = self.xhat * gamma + beta + (0 if z is None else z.astype(np.float64))
        if relu:
            self.y = np.maximum(self.y, 0)

    def gradients(self, gy: Any, y: Any) -> list[Any]:
        g = gy.astype(np.float64) * (y > 0 if self.relu else 1)
        gbeta = g.sum((0, 2, 3), keepdims=True)
        ggamma = (g * self.xhat).sum((0, 2, 3), keepdims=True)
        gx = self.gamma * self.inverse * (g - gbeta / self.n - self.xhat * ggamma / self.n)
        return [gx, gbeta, ggamma, g]


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "relu, residual", [(False, False), (True, False), (True, True)], ids=["", "relu", "z, relu"]
)
@pytest.mark.parametrize("shape", [(4, 67, 9, 11), (2, 16, 40, 41), (3, 5, 7, 3), (2, 3, 31, 30)])
def test_fused_batch_normalization_and_its_gradient(
    dtype: Any, last: bool, relu: bool, residual: bool, shape: Any
) -> None:
    rng = np.random.default_rng(0)
    c = (1, shape[1], 1, 1)
    x = (rng.normal(size=shape) * 2 + 1).astype(dtype)
    z = rng.normal(size=shape).astype(dtype) if residual else None
    gy, gy2 = rng.normal(size=(2, *shape)).astype(dtype)
    beta, gamma = rng.normal(size=(2, *c)).astype(F32)
    mean, variance = np.zeros(c, F32), np.ones(c, F32)
    act = "relu" if relu else "identity"
    name = "fused_batch_normalization" if relu else "batch_normalization"
    attrs = {"axes": (1,), "decay_rate": 0.75, "eps": 1e-3, "batch_stat": True}
    forward = attrs | {"nonlinearity": "relu"} if relu else attrs
    y, bm, bv = run(
        name, forward, [x, beta, gamma, mean, variance, z], [(shape, dtype), (c, F32), (c, F32)],
        last,
    )  # fmt: skip
    want = Reference(x, beta, gamma, z, 1e-3, relu)
    assert_close(y, want.y, dtype, "y")
    assert_close(bm, want.mean, F32, "mean")
    assert_close(bv, want.variance, F32, "variance")
    assert_close(mean, 0.25 * want.mean, F32, "running mean")
    unbiased = want.variance * want.n / (want.n - 1)
    assert_close(variance, 0.75 + 0.25 * unbiased, F32, "running variance")

    outs = [(shape, dtype), (c, F32), (c, F32), (shape, dtype)]
    inputs = [gy, gy2 if residual else None, x, y if residual else None, bm, bv, gamma, beta]
    incoming = gy.astype(F32) + (gy2.astype(F32) if residual else 0)
    expected = want.gradients(incoming, y.astype(F32) if residual else want.y)
    got = run(BACKWARD, attrs | {"activation": act}, inputs, outs if residual else outs[:3], last)
    near = 1e-3 if relu and not residual else 0  # a mask that rounding may turn
    for a, b, what in zip(got, expected, ("gx", "gbeta", "ggamma", "gz"), strict=False):
        scale = max(1.0, float(np.abs(b).max()))
        error = np.abs(a.astype(np.float64) - b) / scale
        assert np.mean(error > TOLERANCE[dtype]) <= near, what
    if residual:
        again = run(BACKWARD, attrs | {"activation": act}, inputs, outs, last, {0: 2, 3: 0})
        for a, b in zip(again, got, strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("last", [False, True])
def test_a_large_mean_costs_no_accuracy(last: bool) -> None:
    rng = np.random.default_rng(1)
    shape, c = (4, 24, 33, 35), (1, 24, 1, 1)
    x = (rng.normal(size=shape) + 1e3).astype(F32)
    x[0, 0, 0, 0] = 1e5  # an outlier among the pixels that guess the mean
    ones, zeros = np.ones(c, F32), np.zeros(c, F32)
    attrs = {"axes": (1,), "decay_rate": 0.9, "eps": 1e-5, "batch_stat": True}
    outs = [(shape, F32), (c, F32), (c, F32)]
    y, mean, variance = run("batch_normalization", attrs, [x, zeros, ones, None, None], outs, last)
    want = Reference(x, zeros, ones, None, 1e-5, False)
    assert_close(y, want.y, F32, "y")
    np.testing.assert_allclose(variance, want.variance, rtol=1e-4)
    np.testing.assert_allclose(mean, want.mean, rtol=1e-6)
    gy = rng.normal(size=shape).astype(F32)
    attrs["activation"] = "identity"
    got = run(BACKWARD, attrs, [gy, None, x, None, mean, variance, ones, zeros], outs, last)
    for a, b in zip(got, want.gradients(gy, want.y), strict=False):
        # the mean that comes in is rounded to float32: 3e-5 standard deviations
        np.testing.assert_allclose(a, b, atol=1e-4 * max(1.0, float(np.abs(b).max())))


def kept(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n if i in axes else 1 for i, n in enumerate(shape))


def definitions() -> list[Any]:
    """(op, attributes, shape of x, shape of beta and gamma)."""
    image, text = (3, 48, 17, 13), (7, 33, 129)
    return [
        ("batch_normalization", {"axes": (1,)}, (517, 33), (1, 33)),
        ("batch_normalization", {"axes": (0, 2)}, (5, 40, 6, 30), (5, 1, 6, 1)),
        ("layer_normalization", {"batch_axis": (0, 1)}, text, (1, 1, 129)),
        ("layer_normalization", {"batch_axis": (0,)}, text, (1, 33, 129)),
        ("layer_normalization", {"batch_axis": (2,)}, text, (7, 33, 1)),
        ("layer_normalization", {"batch_axis": (0,)}, image, (1, 48, 17, 13)),
        ("instance_normalization", {"channel_axis": 1}, image, (1, 48, 1, 1)),
        ("instance_normalization", {"channel_axis": 1}, image, (3, 48, 1, 1)),
        ("instance_normalization", {"channel_axis": 2, "batch_axis": (0,)}, text, (1, 1, 129)),
        ("group_normalization", {"num_groups": 6}, image, (1, 48, 1, 1)),
        ("group_normalization", {"num_groups": 3, "channel_axis": 3, "batch_axis": (0,)},
         (2, 30, 9, 48), (1, 1, 1, 48)),
        ("tensor_normalization", {"axes": (0, 3)}, image, (3, 1, 1, 13)),
        ("tensor_normalization", {"axes": ()}, image, (1, 1, 1, 1)),
        ("weight_standardization", {"channel_axis": 0}, (40, 30, 3, 3), None),
        ("weight_standardization", {"channel_axis": 1}, (40, 30, 3, 3), None),
    ]  # fmt: skip


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name, values, shape, parameter", definitions())
def test_normalizations_equal_numpy_at_larger_sizes(
    name: str, values: dict[str, Any], shape: Any, parameter: Any, last: bool
) -> None:
    op = OPS[name]
    rng = np.random.default_rng(2)
    x = (rng.normal(size=shape) * 3 + 2).astype(F32)
    inputs: list[Any] = [x]
    if parameter is not None:
        inputs += [rng.normal(size=parameter).astype(F32) for _ in range(2)]
    if name == "batch_normalization":
        inputs += [np.zeros(parameter, F32), np.ones(parameter, F32)]
    attrs = op.attrs(**values)
    if last and x.ndim < 3:
        return
    compare(op, attrs, inputs, last)
    if name == "batch_normalization":
        compare(op, op.attrs(**values, batch_stat=False), inputs, last)


def compare(op: Op, attrs: Any, inputs: list[Any], last: bool) -> list[np.ndarray]:
    specs, want = run_numpy(op, attrs, [None if x is None else x.copy() for x in inputs])
    lasts = (
        {i for i, x in enumerate(inputs) if last and x is not None and x.ndim > 2},
        {o for o, s in enumerate(specs) if last and s.ndim > 2},
    )
    got = run_native(op, attrs, inputs, specs, lasts)
    assert got is not None
    for g, w in zip(got, want, strict=True):
        assert_close(g, w, F32, f"{attrs}")
    return want


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "shape, axes, parameter",
    [
        ((515, 33), (0,), (1, 33)),
        ((300, 129), (1,), (1, 129)),
        ((7, 33, 129), (2,), (1, 1, 129)),
        ((3, 48, 17, 13), (0, 2, 3), (1, 48, 1, 1)),
        ((3, 48, 17, 13), (2, 3), (1, 48, 1, 1)),
        ((3, 48, 17, 13), (1, 2, 3), (1, 48, 17, 13)),
        ((3, 6, 8, 17, 13), (2, 3, 4), (1, 6, 8, 1, 1)),
        ((3, 6, 8, 17, 13), (1, 2), None),
    ],
)
def test_gradients_equal_numpy_at_larger_sizes(
    shape: Any, axes: Any, parameter: Any, last: bool
) -> None:
    rng = np.random.default_rng(3)
    stat = kept(shape, tuple(i for i in range(len(shape)) if i not in axes))
    gy, x = rng.normal(size=(2, *shape)).astype(F32)
    gm, gv, m = rng.normal(size=(3, *stat)).astype(F32)
    v = rng.uniform(0.5, 2, stat).astype(F32)
    op = OPS["normalization_backward"]
    attrs = op.attrs(axes=axes, eps=1e-3, parameter=parameter)
    gamma = None if parameter is None else rng.normal(size=parameter).astype(F32)
    compare(op, attrs, [gy, gm, gv, x, m, v, gamma], last and len(shape) > 2)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("channels", "groups"), [(24, 4), (48, 48), (130, 2), (6, 1)])
def test_gradients_of_groups(channels: int, groups: int, last: bool) -> None:
    rng = np.random.default_rng(4)
    shape, stat, p = (3, channels, 17, 13), (3, groups, 1, 1), (1, channels, 1, 1)
    gy, x = rng.normal(size=(2, *shape)).astype(F32)
    gm, gv, m = rng.normal(size=(3, *stat)).astype(F32)
    v, gamma = rng.uniform(0.5, 2, stat).astype(F32), rng.normal(size=p).astype(F32)
    op = OPS["normalization_backward"]
    attrs = op.attrs(axes=(2, 3), eps=1e-3, parameter=p, groups=groups, channel_axis=1)
    specs, want = run_numpy(op, attrs, [gy, gm, gv, x, m, v, gamma])
    places = ({0, 3}, {0}) if last else (set(), set())
    got = run_native(op, attrs, [gy, gm, gv, x, m, v, gamma], specs, places)
    assert got is not None
    for g, w in zip(got, want, strict=True):
        assert_close(g, w, F32, "groups")


@pytest.mark.parametrize("shape", [(0, 3, 2, 2), (2, 0, 2, 2), (2, 3, 0, 2)])
def test_empty_arrays(shape: Any) -> None:
    c = (1, shape[1], 1, 1)
    x, p = np.zeros(shape, F32), np.ones(c, F32)
    mean, variance = np.full(c, 2, F32), np.full(c, 3, F32)
    compare(OPS["batch_normalization"], OPS["batch_normalization"].attrs(),
            [x, p, p, mean, variance], False)  # fmt: skip
    assert np.all(mean == 2) and np.all(variance == 3)


def test_relu_keeps_nan_as_numpy_does() -> None:
    x = np.random.default_rng(4).normal(size=(2, 20, 5, 5)).astype(F32)
    x[0, 3, 1, 1] = np.nan
    p = np.ones((1, 20, 1, 1), F32)
    y = run(
        "fused_batch_normalization",
        {"axes": (1,), "decay_rate": 0.9, "eps": 1e-5, "batch_stat": True, "nonlinearity": "relu"},
        [x, p, p, None, None, None], [(x.shape, F32), (p.shape, F32), (p.shape, F32)], True,
    )[0]  # fmt: skip
    assert np.isnan(y[:, 3]).all()
    assert np.isfinite(np.delete(y, 3, 1)).all()


def test_mixed_element_types() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(3, 20, 9, 9))
    p = np.ones((1, 20, 1, 1))
    op = OPS["batch_normalization"]
    inputs = [x.astype(BF16), p.astype(F16), p.astype(F32), None, None]
    exact = [None if a is None else a.astype(F32) for a in inputs]
    specs, want = run_numpy(op, op.attrs(), exact)
    outs = [specs[0].with_dtype(F16), specs[1].with_dtype(BF16), specs[2]]
    got = run_native(op, op.attrs(), inputs, outs)
    assert got is not None
    for g, w, d in zip(got, want, (F16, BF16, F32), strict=True):
        assert_close(g, w, d, "mixed")


class Alike:
    """The communicator of two processes with the same batch."""

    size = 2

    def sum(self, arrays, group, of=""):
        for a in arrays:
            a *= 2


@pytest.mark.parametrize("kind,tolerance", [("float", 2e-4), ("bfloat16", 3e-2)])
@pytest.mark.parametrize("auto", [False, True])
def test_synchronised_normalization_runs_in_kernels_but_for_its_messages(kind, tolerance, auto):
    """To a few rounding errors also where a mean is a hundred times the deviation."""
    require_library()
    rng = np.random.default_rng(1)
    x_, gy = rng.normal(size=(2, 6, 16, 5, 5))
    x_ += np.linspace(-3, 3, 16)[:, None, None]
    if kind == "float":
        x_[:, 3] += 100
    with nn.context_scope(nn.Context([f"cpu:{kind}"])), nn.auto_forward(auto), nn.profile() as p:
        x = nn.Variable.from_numpy_array(x_, need_grad=True)
        beta, gamma = (
            nn.Variable.from_numpy_array(np.full((1, 16, 1, 1), c), need_grad=True) for c in (1, 2)
        )
        means = [nn.Variable.from_numpy_array(np.zeros((1, 16, 1, 1))) for _ in range(2)]
        h = F.relu(F.sync_batch_normalization(x, beta, gamma, *means, Alike(), eps=0.0))
        loss = F.sum(h * nn.Variable.from_numpy_array(gy))
        if not auto:
            loss.forward(clear_no_need_grad=True)
        loss.backward(clear_buffer=True)
    (mean, variance), axes = (f(x_, (0, 2, 3), keepdims=True) for f in (np.mean, np.var)), (0, 2, 3)
    xhat = (x_ - mean) / np.sqrt(variance)
    g = gy * (2 * xhat + 1 > 0)
    want = [np.sum(g, axes, keepdims=True), np.sum(g * xhat, axes, keepdims=True)]
    averages = [np.mean(a, axes, keepdims=True) for a in (g, g * xhat)]
    gx = 2 / np.sqrt(variance) * (g - averages[0] - xhat * averages[1])
    n = 2 * 6 * 25
    for got, value in (
        (loss.d, np.sum(g * (2 * xhat + 1))), (x.g, gx), (beta.g, want[0]), (gamma.g, want[1]),
        (means[0].d, 0.1 * mean), (means[1].d, 0.1 * variance * n / (n - 1)),
    ):  # fmt: skip
        np.testing.assert_allclose(got, value, rtol=0, atol=tolerance * max(1, np.abs(value).max()))
    if not auto:
        where = [{e.op for e in p.events if e.where == w} for w in ("numpy", "native")]
        assert where[0] == {"combine_moments", "all_reduce"}
        assert {"batch_moments", "normalization_sums"} <= where[1]
