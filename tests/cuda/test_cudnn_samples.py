# SPDX-License-Identifier: Apache-2.0
"""The graphs for cuDNN against the definitions of the ops, on the ops' samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnl.core.ops.op import OPS
from nnl.ext.cuda.cudnn.builders import BUILDERS
from tests.cuda.works import Declined, run, works
from tests.native.kernels import BF16, F16, F32, assert_close, is_float, run_numpy
from tests.native.test_kernels import cases

NAMES = sorted(set(BUILDERS) & set(OPS))
# Inputs and outputs that stay float32 where data has 16 bits: parameters and statistics.
WIDE = {
    "batch_normalization": ({1, 2, 3, 4}, {1, 2}),
    "fused_batch_normalization": ({1, 2, 3, 4}, {1, 2}),
    "layer_normalization": ({1, 2}, {1, 2}),
    "normalization_backward": ({1, 2, 4, 5, 6}, {1, 2}),
    "convolution": ({1, 2}, set()),
    "convolution_fused": ({1, 2, 4}, set()),
    "convolution_weight_bias": (set(), {0, 1}),
    "batch_normalization_backward_fused": ({4, 5, 6, 7}, {1, 2}),
    "affine_fused": ({1, 2}, set()),
    "batch_matmul_bias": ({2}, set()),
    "attention": ({3}, {1}),
    "attention_backward": ({5, 6}, set()),
    "attention_packed": ({1}, {1}),
    "attention_packed_backward": ({3, 4}, set()),
    "deconvolution": ({1, 2}, set()),
    "convolution_data": ({1}, set()),
    "convolution_weight": (set(), {0}),
    "affine": ({1, 2}, set()),
    "affine_weight": (set(), {0}),
}
# Why samples are declined; what is not here is taken.
REASONS = {
    "an array is empty",
    "a group normalization",
    "neither a batch nor a layer normalization",
    "beta or gamma is left out",
    "an input is left out",
    "batch axes (2,) of 3 are not the leading ones",
    "base_axis 2 channels-last",
    "attention in float32",
    "causal_offset 1",
    "k is transposed",
    "window 4",
    "window 3",
    "window 2",
    "window 1",
    "soft_cap 2.0",
    "4 heads for 2",
    "keys that depend on the sample",
    "the mask does not tell keys apart",
    "2 and 2 matrices",
    "elu with alpha 0.3",
    "leaky_relu with alpha 0.3",
    "running statistics",
    "neither y nor beta is given",
}


def declined_or_works(*args: Any, **kw: Any) -> Any:
    try:
        return works(*args, **kw)
    except Declined as e:
        assert str(e) in REASONS, str(e)
        return []


def converted(op: Any, name: str, inputs: list[Any], specs: Any, dtype: Any) -> Any:
    """Inputs and empty outputs in the types that a context of 16 bits has."""
    base = name.removesuffix("_with_statistics")
    wide_in, wide_out = WIDE.get(base, (set(), set()))
    low = [
        x.astype(F32 if i in wide_in else dtype) if is_float(x) else x for i, x in enumerate(inputs)
    ]
    outs = [np.empty(s.shape, F32 if o in wide_out else dtype) for o, s in enumerate(specs)]
    return low, outs


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_graphs_compute_what_the_op_does(name: str, dtype: Any) -> None:
    op = OPS[name]
    taken = 0
    for attrs, inputs in cases(op):
        specs, _ = run_numpy(op, attrs, [None if x is None else x.copy() for x in inputs])
        low, outs = converted(op, name, inputs, specs, dtype)
        exact = [x.astype(np.float32) if is_float(x) else x for x in low]
        _, want = run_numpy(op, attrs, exact)
        for work in declined_or_works(name, attrs.as_dict(), low, outs):
            taken += 1
            given = [None if x is None else x.copy() for x in low]
            for g, w in zip(run(work, given, outs), want, strict=True):
                assert_close(
                    g, w, dtype, f"{attrs} {[None if x is None else x.shape for x in low]}"
                )
            for i in op.written(attrs):
                if low[i] is not None:
                    assert_close(given[i], exact[i], F32, f"{attrs}: state {op.inputs[i]}")
    assert taken or ("attention" in name and dtype == F32)


@pytest.mark.parametrize("name", NAMES)
def test_graphs_compute_the_same_channels_last(name: str) -> None:
    op = OPS[name]
    weights = {1, 2} if "convolution" in name else set()
    for attrs, inputs in cases(op):
        if attrs.as_dict().get("channel_last"):
            continue
        exact = [None if x is None else x.copy() for x in inputs]
        specs, want = run_numpy(op, attrs, exact)
        rank = max(x.ndim for x in inputs if x is not None)
        last_in = {i for i, x in enumerate(inputs) if x is not None and x.ndim == rank} - weights
        last_out = {o for o, s in enumerate(specs) if s.ndim == rank}
        if name.startswith("convolution_weight"):
            last_in, last_out = {0, 1}, set()
        if "normalization" in name:
            last_in &= {0, 3, 5} if name == "normalization_backward" else {0, 5}
            last_out = {0}
        outs = [np.empty(s.shape, F32) for s in specs]
        last = (last_in, last_out)
        try:
            found = works(name, attrs.as_dict(), inputs, outs, last)
        except Declined:
            continue
        for work in found:
            given = [None if x is None else x.copy() for x in inputs]
            for g, w in zip(run(work, given, outs, last), want, strict=True):
                assert_close(g, w, F32, f"{attrs} channels last")
