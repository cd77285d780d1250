# SPDX-License-Identifier: Apache-2.0
"""Weights in groups: rounded, calibrated, and layers packed as GPTQ and AWQ do."""

from __future__ import annotations

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.converters.weights.groups import calibrated, from_awq, from_gptq, rounded


def values(groups):
    arrays = [None if a is None else nn.NdArray.from_numpy_array(a) for a in groups[:3]]
    return F.dequantize_groups(*arrays, bits=groups.bits, group_size=groups.group_size).data


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("size", [32, 64, 128])
def test_rounding_is_to_the_nearest_value(bits, symmetric, size):
    rng = np.random.default_rng(0)
    w = rng.normal(size=(6, 256)).astype(np.float32)
    w[2, :size] = 0
    w[3] = np.abs(w[3]) + 5
    groups = rounded(w, bits, size, symmetric)
    error = np.abs(values(groups) - w).reshape(6, -1, size)
    scale = groups.scale.astype(np.float32)[:, :, None]
    largest = np.abs(w).max()
    assert (error <= scale / 2 + largest * 2**-10).all()  # scales and offsets are float16
    assert not values(groups)[2, :size].any()


def test_rounding_tells_what_it_cannot():
    with pytest.raises(ValueError, match="group_size is 48, wanted an even divisor of the 64"):
        rounded(np.ones((2, 64), np.float32), group_size=48)
    for bad in (np.nan, np.inf, 1e6):
        with pytest.raises(ValueError, match="not finite, or too large"):
            rounded(np.full((2, 64), bad, np.float32))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_calibration_makes_results_better_where_inputs_depend_on_each_other(bits, symmetric):
    rng = np.random.default_rng(3)
    mixed = rng.normal(size=(16, 128)) / 4 + 0.1 * np.eye(16, 128)
    x = rng.normal(size=(500, 16)) @ mixed + 0.05 * rng.normal(size=(500, 128))
    w = rng.normal(size=(24, 128)).astype(np.float32)
    errors = [
        np.linalg.norm(x @ (values(g) - w).T)
        for g in (calibrated(w, x, bits, 32, symmetric), rounded(w, bits, 32, symmetric))
    ]
    assert errors[0] < 0.6 * errors[1]


def test_calibration_tells_what_it_cannot():
    w = np.ones((2, 64), np.float32)
    with pytest.raises(ValueError, match=r"the inputs have the shape \(3, 32\), wanted \(n, 64\)"):
        calibrated(w, np.ones((3, 32)))
    with pytest.raises(ValueError, match="an input of the calibration is not finite"):
        calibrated(w, np.full((3, 64), np.nan))
    np.testing.assert_array_equal(values(calibrated(0 * w, np.zeros((3, 64)))), 0 * w)


def layer(rng, rows, columns, groups, bits):
    codes = rng.integers(0, 2**bits, (columns, rows))
    zeros = rng.integers(1, 2**bits, (groups, rows))
    scales = rng.uniform(0.5, 1, (groups, rows)).astype(np.float16)
    size = columns // groups
    want = (codes - np.repeat(zeros, size, 0)) * np.repeat(scales.astype(np.float64), size, 0)
    return codes, zeros, scales, want.T


def words(codes, axis, bits, order=None):
    """Packed one field after the other, as the layout is described."""
    count = 32 // bits
    codes = np.moveaxis(codes, axis, -1).astype(np.uint64)
    total = np.zeros((*codes.shape[:-1], codes.shape[-1] // count), np.uint64)
    for field in range(count):
        column = field if order is None else order[field]
        total |= codes[..., column::count] << np.uint64(field * bits)
    return np.moveaxis(total.astype(np.uint32).view(np.int32), -1, axis)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("added", [0, 1])
def test_gptq(bits, added):
    codes, zeros, scales, want = layer(np.random.default_rng(1), 16, 64, 2, bits)
    qweight, qzeros = words(codes, 0, bits), words(zeros - added, 1, bits)
    order = np.arange(64) // 32
    for g_idx in (None, order):
        groups = from_gptq(qweight, qzeros, scales, g_idx, bits, added)
        np.testing.assert_allclose(values(groups), want, rtol=1e-3, atol=1e-3 * np.abs(want).max())
    places = np.random.default_rng(2).permutation(64)  # desc_act: columns by their diagonal
    qweight = words(codes[places], 0, bits)
    groups = from_gptq(qweight, qzeros, scales, order[places], bits, added)
    most = 1e-3 * np.abs(want).max()
    np.testing.assert_allclose(groups.array(), want[:, places], rtol=1e-3, atol=most)
    with pytest.raises(ValueError, match="g_idx is not 32 columns for each of 2 groups"):
        from_gptq(qweight, qzeros, scales, np.zeros(64, np.int32), bits, added)
    with pytest.raises(ValueError, match="do not fit each other"):
        from_gptq(qweight, qzeros, scales[:, :8], None, bits, added)


def test_awq():
    codes, zeros, scales, want = layer(np.random.default_rng(2), 16, 64, 2, 4)
    order = (0, 2, 4, 6, 1, 3, 5, 7)  # the column that each field holds
    groups = from_awq(words(codes, 1, 4, order), words(zeros, 1, 4, order), scales)
    np.testing.assert_allclose(values(groups), want, rtol=1e-3, atol=1e-3 * np.abs(want).max())
    with pytest.raises(ValueError, match="it has 3 bits, wanted 4"):
        from_awq(words(codes, 1, 4, order), words(zeros, 1, 4, order), scales, 3)
