# SPDX-License-Identifier: Apache-2.0
"""Graphs for what only plans ask for: several ops in one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from nnl.core.ops.op import OPS
from nnl.ext.cuda.cudnn.builders import BUILDERS
from tests.cuda.works import Declined, operand, run, works
from tests.native.kernels import BF16, F16, F32, assert_close, run_numpy
from tests.native.test_norm import Reference

CONVOLUTION = {
    "base_axis": 1, "pad": (1, 0, 0, 2), "stride": (1, 2), "dilation": (1, 1), "group": 1,
    "channel_last": False,
}  # fmt: skip
ACTIVATIONS = {
    "identity": {}, "relu": {}, "leaky_relu": {"alpha": 0.2}, "elu": {"alpha": 1.0}, "relu6": {},
    "sigmoid": {}, "tanh": {}, "swish": {}, "hard_swish": {}, "hard_sigmoid": {}, "gelu": {},
}  # fmt: skip


def activated(name: str, x: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    if name == "identity":
        return x
    if name == "hard_swish":
        return x * np.clip(x / 6 + 0.5, 0, 1)
    return run_numpy(OPS[name], OPS[name].attrs(**attrs), [x])[1][0]


def near(dtype: Any, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def compare(
    name: str,
    attrs: dict[str, Any],
    ins: list[Any],
    wants: list[np.ndarray],
    dtypes: list[Any],
    last: Any = (set(), set()),
    tolerance: Any = None,
) -> int:
    """Every way against float32 results; returns how many there are."""
    outs = [np.empty(w.shape, d) for w, d in zip(wants, dtypes, strict=True)]
    found = works(name, attrs, ins, outs, last)
    assert found
    for work in found:
        given = [None if x is None else x.copy() for x in ins]
        for got, want in zip(run(work, given, outs, last), wants, strict=True):
            assert_close(got, want, np.dtype(tolerance or dtypes[0]), name)
    return len(found)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_convolution_with_everything_behind_it(name: str, dtype: Any) -> None:
    x, z = near(dtype, 2, 8, 6, 5), near(dtype, 2, 16, 5, 3)
    w, b, scale = near(F32, 16, 8, 3, 3) / 8, near(F32, 16), near(F32, 16, seed=1)
    padded = np.pad(x.astype(F32), ((0, 0), (0, 0), (1, 0), (0, 2)))
    op = OPS["convolution"]
    attrs = op.attrs(**{**CONVOLUTION, "pad": (0, 0)})
    y = run_numpy(op, attrs, [padded, w.astype(dtype).astype(F32), None])[1][0]
    for with_b, with_z, with_scale in itertools.product((True, False), repeat=3):
        want = y * scale.reshape(-1, 1, 1) if with_scale else y
        want = want + b.reshape(-1, 1, 1) if with_b else want
        want = want + z.astype(F32) if with_z else want
        ins = [x, w, b if with_b else None, z if with_z else None, scale if with_scale else None]
        given = {**CONVOLUTION, "activation": name, **ACTIVATIONS[name]}
        wants = [activated(name, want, ACTIVATIONS[name])]
        ways = compare("convolution_fused", given, ins, wants, [dtype], ({0, 3}, {0}))
        assert ways == (1 if name == "identity" and not (with_b or with_z or with_scale) else 2)


@pytest.mark.parametrize(
    ("attrs", "why"),
    [
        ({"packed": True}, "the weights are packed for another engine"),
        ({"activation": "elu", "alpha": 0.5}, "elu with alpha 0.5"),
        ({"activation": "softplus"}, "the activation softplus"),
    ],
)
def test_convolution_declines(attrs: dict[str, Any], why: str) -> None:
    x, w, y = near(F32, 1, 8, 4, 4), near(F32, 8, 8, 1, 1), near(F32, 1, 8, 4, 4)
    given = {**CONVOLUTION, "pad": (0, 0), "stride": (1, 1), **attrs}
    with pytest.raises(Declined, match=why):
        works("convolution_fused", given, [x, w, None, None, None], [y])


@pytest.mark.parametrize(
    ("dtypes", "why"),
    [
        ((np.float64, F32), "float64 is none of float32, float16, bfloat16"),
        ((F16, BF16), "float16 and bfloat16 are mixed"),
    ],
)
def test_types_that_are_declined(dtypes: Any, why: str) -> None:
    x, y = near(dtypes[0], 1, 8, 4, 4), near(dtypes[1], 1, 8, 4, 4)
    given = {**CONVOLUTION, "pad": (0, 0), "stride": (1, 1)}
    with pytest.raises(Declined, match=why):
        works("convolution", given, [x, near(F32, 8, 8, 1, 1), None], [y])


def test_both_gradients_of_a_convolution_with_bias() -> None:
    x, gy = near(BF16, 2, 8, 6, 5), near(BF16, 2, 16, 6, 3)
    attrs = {**CONVOLUTION, "pad": (1, 1), "shape": (16, 8, 3, 3)}
    exact = [x.astype(F32), gy.astype(F32)]
    op = OPS["convolution_weight"]
    gw = run_numpy(op, op.attrs(**attrs), exact)[1][0]
    gb = exact[1].sum((0, 2, 3))
    last = ({0, 1}, set())
    compare("convolution_weight_bias", attrs, [x, gy], [gw, gb], [F32, F32], last, BF16)


NORM = {"axes": (1,), "eps": 1e-3, "decay_rate": 0.8, "batch_stat": True}
PARAMETER = (1, 8, 1, 1)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_batch_normalization_with_relu_and_addition(dtype: Any, relu: bool, last: bool) -> None:
    x, z = near(dtype, 4, 8, 3, 3), near(dtype, 4, 8, 3, 3, seed=1)
    beta, gamma, mean = (near(F32, *PARAMETER, seed=i) for i in range(3))
    variance = near(F32, *PARAMETER, seed=4) ** 2
    name = "fused_batch_normalization" if relu else "batch_normalization"
    attrs = {**NORM, "nonlinearity": "relu"} if relu else NORM
    layout = ({0, 5}, {0}) if last else (set(), set())
    for z_ in (z, None) if relu else (None,):
        want = Reference(x, beta, gamma, z_, 1e-3, relu)
        wants = [want.y, want.mean, want.variance]
        ins = [x, beta, gamma, mean, variance, z_]
        compare(name, attrs, ins, wants, [dtype, F32, F32], layout)
        known = {**attrs, "batch_stat": False}
        y = (x.astype(F32) - mean) / np.sqrt(variance + 1e-3) * gamma + beta
        y = y if z_ is None else y + z_.astype(F32)
        wants = [np.maximum(y, 0) if relu else y, mean, variance]
        compare(name, known, ins, wants, [dtype, F32, F32], layout)


def test_batch_normalization_updates_running_statistics() -> None:
    x = near(F32, 4, 8, 3, 3)
    beta, gamma = near(F32, *PARAMETER), near(F32, *PARAMETER)
    mean, variance = near(F32, *PARAMETER, seed=3), near(F32, *PARAMETER, seed=4) ** 2
    attrs = NORM
    outs = [np.empty_like(x), np.empty(PARAMETER, F32), np.empty(PARAMETER, F32)]
    for work in works("batch_normalization", attrs, [x, beta, gamma, mean, variance], outs):
        ins = [a.copy() for a in (x, beta, gamma, mean, variance)]
        run(work, ins, outs)
        unbiased = x.var((0, 2, 3), ddof=1).reshape(PARAMETER)
        average = x.mean((0, 2, 3)).reshape(PARAMETER)
        assert np.allclose(ins[3], 0.8 * mean + 0.2 * average, atol=1e-6)
        assert np.allclose(ins[4], 0.8 * variance + 0.2 * unbiased, atol=1e-5)
        for i in range(3):
            assert np.array_equal(ins[i], (x, beta, gamma)[i])


def gradients(ref: Reference, x: np.ndarray, gy: np.ndarray) -> list[np.ndarray]:
    """gx, gbeta, ggamma, gz in float64."""
    g = np.where(ref.y > 0, gy, 0) if ref.relu else gy
    gbeta = g.sum((0, 2, 3), keepdims=True)
    ggamma = (g * ref.xhat).sum((0, 2, 3), keepdims=True)
    gx = ref.gamma * ref.inverse * (g - gbeta / ref.n - ref.xhat * ggamma / ref.n)
    return [gx, gbeta, ggamma, g]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_gradient_of_fused_batch_normalization(dtype: Any, relu: bool) -> None:
    x, z = near(dtype, 4, 8, 3, 3), near(dtype, 4, 8, 3, 3, seed=1)
    gy, gy2 = near(dtype, 4, 8, 3, 3, seed=2), near(dtype, 4, 8, 3, 3, seed=3)
    beta, gamma = near(F32, *PARAMETER), near(F32, *PARAMETER, seed=1)
    attrs = {**NORM, "activation": "relu" if relu else "identity"}
    last = ({0, 1, 2, 3}, {0, 3})
    for with_z, with_gy2, with_gz in itertools.product((False, True), repeat=3):
        ref = Reference(x, beta, gamma, z if with_z else None, 1e-3, relu)
        y = ref.y.astype(dtype)
        g = gy.astype(np.float64) + (gy2.astype(np.float64) if with_gy2 else 0)
        wants = gradients(ref, x, g)[: 4 if with_gz else 3]
        stats = [ref.mean.astype(F32), ref.variance.astype(F32)]
        ins = [gy, gy2 if with_gy2 else None, x, y if with_z else None, *stats, gamma, beta]
        types = [dtype, F32, F32, dtype][: len(wants)]
        found = compare("batch_normalization_backward_fused", attrs, ins, wants, types, last)
        assert found == (2 if relu and not (with_z or with_gy2 or with_gz) else 1)


@pytest.mark.parametrize(
    ("attrs", "ins", "why"),
    [
        ({"batch_stat": False}, {}, "running statistics"),
        ({"activation": "swish"}, {}, "the activation swish"),
        ({"axes": (1, 2)}, {}, "channels in 2 axes"),
        ({}, {6: None}, "an input is left out"),
        ({}, {4: np.ones(PARAMETER, BF16)}, "parameters or statistics are not float32"),
        ({}, {3: None, 7: None}, "neither y nor beta is given"),
    ],
)
def test_gradient_of_batch_normalization_declines(attrs: Any, ins: Any, why: str) -> None:
    x, p = near(F32, 4, 8, 3, 3), near(F32, *PARAMETER)
    given = [x, None, x, x, p, p, p, p]
    for i, value in ins.items():
        given[i] = value
    call = {**NORM, "activation": "relu", **attrs}
    with pytest.raises(Declined, match=why):
        works("batch_normalization_backward_fused", call, given, [x, p, p])


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("name", ["identity", "relu", "gelu", "tanh", "sigmoid", "swish"])
def test_affine_with_everything_behind_it(name: str, tf32: bool, dtype: Any) -> None:
    x, w, b = near(dtype, 2, 5, 12), near(F32, 12, 3, 2), near(F32, 3, 2)
    z = near(dtype, 2, 5, 3, 2)
    low = w.astype(dtype).astype(F32).reshape(12, 6)
    y = (x.astype(F32).reshape(10, 12) @ low).reshape(2, 5, 3, 2)
    attrs = {"base_axis": 2, "activation": name, "tf32": tf32}
    for with_b, with_z in itertools.product((True, False), repeat=2):
        want = y + b if with_b else y
        want = want + z.astype(F32) if with_z else want
        ins = [x, w, b if with_b else None, z if with_z else None]
        compare("affine_fused", attrs, ins, [activated(name, want, {})], [dtype])


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("swap", [False, True])
def test_a_product_with_a_bias(swap: bool, dtype: Any) -> None:
    a, bias = near(dtype, 1, 6, 12), near(F32, 1, 1, 5)
    b = near(F32, 1, 5, 12) if swap else near(F32, 1, 12, 5)
    low = b.astype(dtype).astype(F32)[0]
    want = a.astype(F32)[0] @ (low.T if swap else low) + bias[0]
    attrs = {"transpose_a": False, "transpose_b": swap}
    compare("batch_matmul_bias", attrs, [a, b, bias], [want.reshape(2, 3, 5)], [dtype])


def test_a_bias_behind_many_products_is_declined() -> None:
    a, bias = near(F32, 2, 3, 3), near(F32, 3)
    with pytest.raises(Declined, match="2 and 2 matrices"):
        attrs = {"transpose_a": False, "transpose_b": False}
        works("batch_matmul_bias", attrs, [a, a, bias], [a])


class Attention:
    """Attention and its gradients in float64, for four axes."""

    def __init__(self, q: Any, k: Any, v: Any, scale: float, mask: Any, offset: Any) -> None:
        q, k, v = (a.astype(np.float64) for a in (q, k, v))
        repeat = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, repeat, 1), np.repeat(v, repeat, 1)
        s = scale * np.einsum("bhid,bhjd->bhij", q, k)
        s = s if mask is None else s + mask.astype(np.float64)
        if offset is not None:
            i, j = np.indices(s.shape[-2:])
            s[..., j > i + offset] = -np.inf
        self.lse = np.log(np.exp(s).sum(-1))
        self.p = np.exp(s - self.lse[..., None])
        self.y = self.p @ v
        self.q, self.k, self.v, self.scale = q, k, v, scale

    def gradients(self, gy: Any) -> list[np.ndarray]:
        gy = gy.astype(np.float64)
        gp = gy @ self.v.swapaxes(-1, -2)
        gs = self.p * (gp - (gp * self.p).sum(-1, keepdims=True)) * self.scale
        by_v = self.p.swapaxes(-1, -2) @ gy
        return [gs @ self.k, gs.swapaxes(-1, -2) @ self.q, by_v]


ATTENTION_CASES = [
    ({}, None),
    ({}, (2, 1, 1, 7)),
    ({}, (1, 3, 5, 7)),
    ({"causal": True}, None),
    ({"causal": True, "causal_offset": 2}, None),
]


@pytest.mark.parametrize(("attrs", "mask"), ATTENTION_CASES, ids=str)
def test_attention_and_its_gradients(attrs: dict[str, Any], mask: Any) -> None:
    q, k, v = (near(BF16, 2, 3, n, 8, seed=n) for n in (5, 7, 7))
    m = None if mask is None else near(F32, *mask)
    offset = attrs.get("causal_offset", 0) if attrs.get("causal") else None
    want = Attention(q, k, v, 0.3, m, offset)
    given = {"scale": 0.3, **attrs}
    compare("attention", given, [q, k, v, m], [want.y, want.lse], [BF16, F32])
    compare("attention", given, [q, k, v, m], [want.y], [BF16])
    gy, y = near(BF16, 2, 3, 5, 8, seed=9), want.y.astype(BF16)
    ins = [gy, q, k, v, y, want.lse.astype(F32), m]
    compare("attention_backward", given, ins, want.gradients(gy), [BF16] * 3)


@pytest.mark.parametrize(
    ("attrs", "mask"), [({}, (2, 1, 1, 5)), ({"causal": True}, None), ({}, None)], ids=str
)
def test_attention_reads_and_writes_within_packed_arrays(attrs: Any, mask: Any) -> None:
    x, gy = near(BF16, 2, 5, 3, 4, 8), near(BF16, 2, 5, 4, 8, seed=1)
    m = None if mask is None else near(F32, *mask)
    q, k, v = (x[:, :, i].swapaxes(1, 2) for i in range(3))
    want = Attention(q, k, v, 0.3, m, 0 if attrs else None)
    given = {"scale": 0.3, **attrs}
    y = want.y.swapaxes(1, 2)
    compare("attention_packed", given, [x, m], [y, want.lse], [BF16, F32])
    compare("attention_packed", given, [x, m], [y], [BF16])
    gx = np.stack(want.gradients(gy.swapaxes(1, 2)), 2).swapaxes(1, 3)  # (B, T, 3, H, D)
    ins = [gy, x, y.astype(BF16), want.lse.astype(F32), m]
    compare("attention_packed_backward", given, ins, [gx], [BF16])


def test_attention_with_heads_in_the_first_axis() -> None:
    q, k, v = (near(BF16, 6, n, 8, seed=n) for n in (5, 7, 7))
    m = near(F32, 2, 1, 5, 7)
    want = Attention(*(a.reshape(2, 3, *a.shape[1:]) for a in (q, k, v)), 0.3, m, None)
    wants = [want.y.reshape(6, 5, 8), want.lse.reshape(6, 5)]
    compare("attention", {"scale": 0.3, "heads": 3}, [q, k, v, m], wants, [BF16, F32])


def test_attention_with_fewer_heads_of_keys() -> None:
    q, k, v = near(BF16, 2, 4, 5, 8), near(BF16, 2, 2, 7, 8), near(BF16, 2, 2, 7, 8, seed=1)
    want = Attention(q, k, v, 0.3, None, None)
    compare("attention", {"scale": 0.3}, [q, k, v], [want.y, want.lse], [BF16, F32])


@pytest.mark.parametrize(
    ("attrs", "shape", "dtype", "why"),
    [
        ({}, (2, 3, 5, 8), F32, "attention in float32"),
        ({}, (2, 3, 5, 12), BF16, "depth 12, wanted a multiple of 8 up to 128"),
        ({}, (2, 3, 5, 136), BF16, "depth 136, wanted a multiple of 8 up to 128"),
        ({"transpose_k": True}, (2, 3, 8, 8), BF16, "k is transposed"),
        ({"causal": True, "causal_offset": 1}, (2, 3, 5, 8), BF16, "causal_offset 1"),
        ({"causal": True, "window": 4}, (2, 3, 5, 8), BF16, "window 4"),
        ({"soft_cap": 30.0}, (2, 3, 5, 8), BF16, "soft_cap 30.0"),
    ],
)
def test_attention_declines(attrs: Any, shape: Any, dtype: Any, why: str) -> None:
    q = near(dtype, *shape)
    with pytest.raises(Declined, match=why):
        works("attention", {"scale": 1.0, **attrs}, [q, q, q], [q])


def test_attention_declines_keys_that_depend_on_the_sample() -> None:
    q, lengths = near(BF16, 2, 3, 5, 8), np.array([3, 5])
    with pytest.raises(Declined, match="keys that depend on the sample"):
        works("attention", {"scale": 1.0}, [q, q, q, None, lengths], [q])


def test_packed_attention_declines_what_has_no_three_parts() -> None:
    x, y = near(BF16, 2, 5, 2, 4, 8), near(BF16, 2, 5, 4, 8)
    with pytest.raises(Declined, match=r"the shape \(2, 5, 2, 4, 8\)"):
        works("attention_packed", {"scale": 1.0}, [x], [y])
    q = near(BF16, 2, 3, 5, 8)
    with pytest.raises(Declined, match="q, k, v, y and their gradients differ in type"):
        works("attention", {"scale": 1.0}, [q, q, q], [q.astype(F16)])


def test_every_builder_is_of_an_op() -> None:
    assert set(BUILDERS) <= set(OPS)
    assert operand(np.ones((1, 2, 3), F32), True).channels_last
