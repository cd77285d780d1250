# SPDX-License-Identifier: Apache-2.0
"""Two devices of one host as two ranks train as one process does with the whole batch."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.communicators.ranks import run

TRAIN = """
import json
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.ext_utils import get_extension_context

rng = np.random.default_rng(0)
X, T = rng.normal(size=(3, 8, 5)).astype(np.float32), rng.integers(0, 3, (3, 8, 1))

def train(ctx, mine, together):
    nn.clear_parameters()
    nn.seed(1)
    with nn.context_scope(ctx):
        x, t = nn.Variable(X[0, mine].shape), nn.Variable(T[0, mine].shape)
        h = F.tanh(PF.affine(x, 6, name="a"))
        loss = F.mean(F.softmax_cross_entropy(PF.affine(h, 3, name="b"), t))
        solver = S.Momentum(0.1)
        solver.set_parameters(nn.get_parameters())
        for x.d, t.d in zip(X[:, mine], T[:, mine]):
            loss.forward()
            solver.zero_grad()
            loss.backward()
            if together:
                comm.all_reduce([p.grad for p in nn.get_parameters().values()], division=True)
            solver.update()
    return nn.get_parameters()

found = train(get_extension_context("opencl", device_id=str(rank)),
              slice(4 * rank, 4 * rank + 4), True)
places = {place for p in found.values() for place in p.data.bufs}
assert f"opencl:{rank}" in places and f"opencl:{1 - rank}" not in places, places
found = {k: p.d.tolist() for k, p in found.items()}
if rank == 0:
    wanted = train(nn.Context(["numpy:float"]), slice(8), False)
    print(json.dumps([found, {k: p.d.tolist() for k, p in wanted.items()}]))
"""


@pytest.mark.long
def test_two_ranks_on_two_devices_train_as_one(tmp_path):
    """PoCL shows the processor twice where it is told so."""
    out = run(tmp_path, 2, TRAIN, 300, POCL_DEVICES="pthread pthread")
    found, wanted = json.loads(out.splitlines()[-1])
    assert found.keys() == wanted.keys() and len(wanted) == 4
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
