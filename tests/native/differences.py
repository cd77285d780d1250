# SPDX-License-Identifier: Apache-2.0
"""Gradients of random graphs against central differences, an oracle without any backend."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl as nn
from nnl.core.ops.op import OPS
from tests.native.graphs import Graph

STEPS = 1e-5, 1e-6
AWAY = 3e-3  # from the samples' own values, some of which are where a function has a corner
DOUBLE = nn.Context(["numpy:double"])

# Whose gradient is no derivative on purpose, or not there.
NO_DERIVATIVE = {op.name for op in OPS.values() if op.inputs and not op.differentiable} | set(
    "round floor ceil sign unlink sink assign prune top_k_grad binarize binary_sigmoid binary_tanh "
    "clip_grad_by_norm clip_grad_by_value fixed_point_quantize pow2_quantize min_max_quantize "
    "quantize_linear binary_connect_affine binary_connect_convolution binary_weight_affine "
    "binary_weight_convolution inq_affine inq_convolution "
    "spectral_norm batch_cholesky".split()  # of a fixed vector; of a symmetric matrix
)


def derivative_error(graph: Graph) -> float | None:
    """Difference, of the larger, of <gradient, v> and a central difference along a direction v.

    None where there is nothing to compare: a function without a true gradient, or differences of
    two step sizes that differ, as beside a jump or where numbers cancel.
    """
    names = {c.name.rpartition(".")[2] for c in graph.calls}
    if names & NO_DERIVATIVE or any("stop" in c.marks for c in graph.calls):
        return None
    rng = np.random.default_rng([graph.seed, 3])
    directions = [rng.normal(size=x.array.shape) if x.need_grad else None for x in graph.leaves]

    def loss(step: float) -> tuple[Any, Any]:
        nn.seed(graph.seed)
        leaves = [
            nn.Variable.from_numpy_array(
                x.array if x.array.dtype.kind != "f" else x.array.astype(np.float64),
                need_grad=x.need_grad,
            )
            for x in graph.leaves
        ]
        for v, d in zip(leaves, directions, strict=True):
            if d is not None:
                v.d = v.d + (AWAY + step) * d
        total = graph.loss(graph.build(leaves))
        total.forward()
        return total, leaves

    with nn.context_scope(DOUBLE), np.errstate(all="ignore"):
        total, leaves = loss(0.0)
        if not total.need_grad:
            return None
        total.backward()
        exact = sum(
            float((v.g * d).sum()) for v, d in zip(leaves, directions, strict=True) if d is not None
        )
        coarse, fine = [(float(loss(h)[0].d) - float(loss(-h)[0].d)) / (2 * h) for h in STEPS]
    scale = max(1.0, abs(fine), abs(coarse), abs(float(total.d)))
    if not abs(coarse - fine) <= 1e-5 * scale:
        return None
    return abs(exact - fine) / scale
