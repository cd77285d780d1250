# SPDX-License-Identifier: Apache-2.0
"""What depends on weights alone is computed once by plans for inference."""

from __future__ import annotations

import numpy as np

import nnl as nn
import nnl.functions as F
from nnl.core.graph.node import capture
from nnl.graph.lowering.lowering import lower, settle
from nnl.graph.plan.plan import Plan
from tests.native.kernels import require_onednn

rng = np.random.default_rng(0)


def test_weights_beside_a_fill_that_is_too_large_to_be_folded() -> None:
    require_onednn()
    with nn.context_scope(nn.Context(["cpu:float"])):
        x = nn.Variable.from_numpy_array(rng.normal(size=(4, 600)))
        w = nn.Variable.from_numpy_array(rng.normal(size=(600, 600)))
        fill = F.constant(0.5, (600, 600))
        y = F.affine(x, F.sort(F.concatenate(w, fill))) + F.cumsum(fill, axis=1)[:4, :1]
        leaves = [x.edge]
        program, binding = lower(capture([y.edge]), {y.edge.key}, inputs=leaves)
        settle(program, binding, leaves)
        plan = Plan.rest(program, binding, 0)
        for k in range(2):
            x.d = rng.normal(size=x.shape)
            w.d = w.d * (1 + k)
            plan.run()
            _, buf = plan.published(plan.slot_of[y.edge.key])
            both = np.concatenate([w.d, np.full((600, 600), 0.5)], axis=1)
            want = x.d @ np.sort(both) + 0.5
            np.testing.assert_allclose(buf, want, rtol=1e-4, atol=1e-3)
        once = [s.op for s in plan.steps if s.once]
        assert once == ["constant", "cast", "concatenate", "sort"]


def test_large_matrices_are_packed_for_products() -> None:
    require_onednn()
    with nn.context_scope(nn.Context(["cpu:float"])):
        x, w = (nn.Variable.from_numpy_array(rng.normal(size=s)) for s in ((8, 512), (512, 2048)))
        b = nn.Variable.from_numpy_array(rng.normal(size=2048))
        y = F.relu(F.affine(x, w, b))
        program, binding = lower(capture([y.edge]), {y.edge.key}, inputs=[x.edge])
        settle(program, binding, [x.edge])
        plan = Plan.rest(program, binding, 0)
        for k in range(2):
            w.d = w.d * (1 + k)
            plan.run()
            _, buf = plan.published(plan.slot_of[y.edge.key])
            np.testing.assert_allclose(buf, np.maximum(x.d @ w.d + b.d, 0), rtol=1e-3, atol=1e-3)
        assert "pack_weights" in [s.op for s in plan.steps if s.once]
