# SPDX-License-Identifier: Apache-2.0
"""Copies of float32 weights in bfloat16, written by updates and read by products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from tests.graph import training
from tests.native.kernels import require_onednn
from tests.solvers.cases import CASES, IDS

CPU = nn.Context(["cpu:bfloat16"])
NUMPY = nn.Context(["numpy:bfloat16"])
COPIED = {"a/affine/W", "b/affine/W"}  # c is small, e is read by embed as well, which is float32


@pytest.fixture(autouse=True)
def onednn() -> None:
    require_onednn()


class Training(training.Training):
    def __init__(self, context: nn.Context, solver: Any) -> None:
        self.context, self.solver = context, solver
        with nn.context_scope(context), nn.parameter_scope(str(id(self))):
            rng = np.random.default_rng(0)
            self.x, self.t = nn.Variable((8, 4)), nn.Variable((8, 16))
            self.x.d, self.t.d = rng.integers(0, 96, self.x.shape), rng.normal(size=self.t.shape)
            self.loss = self.record()
            self.parameters = nn.get_parameters()
        for k, v in self.parameters.items():
            w = np.random.default_rng(len(k)).normal(size=v.shape) / np.sqrt(v.shape[0])
            v.d = w.astype(np.float32)
        solver.set_parameters(self.parameters)

    def record(self) -> nn.Variable:
        h = PF.affine(PF.embed(self.x, 96, 192, name="e"), 128, name="a")
        h = F.relu(PF.affine(F.tanh(h), 256, name="b"))
        y = PF.affine(h, 16, name="c")
        return F.mean(F.squared_error(y, self.t))

    def check_copies(self) -> None:
        for v in self.parameters.values():
            copy = v.data.bufs.get("bfloat16")
            if copy is not None:
                want = v.data.read("host").astype(ml_dtypes.bfloat16)
                assert np.array_equal(copy.view(np.uint16), want.view(np.uint16))


@pytest.mark.parametrize("name,settings", CASES, ids=IDS)
def test_every_solver_writes_copies_equal_to_its_weights(name: str, settings: Any) -> None:
    t = Training(CPU, getattr(S, name)(**settings))
    for _ in range(3):
        t.gradients()
        t.update()
        assert {k for k, v in t.spaces().items() if v == ["bfloat16", "host"]} == COPIED
        t.check_copies()


def test_copies_lie_in_the_same_memory_at_every_step() -> None:
    t = Training(CPU, S.Adam())
    places = set()
    for _ in range(4):
        t.gradients()
        t.update()
        places.add(t.parameters["a/affine/W"].data.bufs["bfloat16"].ctypes.data)
    assert len(places) == 1


def test_products_do_not_read_the_float32_weights() -> None:
    t = Training(CPU, S.Sgd(0.1))
    t.gradients()
    t.update()
    w = t.parameters["b/affine/W"].data
    before = t.loss.d.copy()
    w.bufs["bfloat16"][...] = 0  # as nobody may
    t.gradients()
    assert t.loss.d != before and not t.parameters["a/affine/W"].g.any()


def look(t: Training, step: int) -> Any:
    v = t.parameters["b/affine/W"]
    return np.concatenate([v.d.ravel(), v.g.ravel()]) if step % 2 else None


def write(t: Training, step: int) -> None:
    if step % 2:
        t.parameters["a/affine/W"].d *= 0.5
        t.parameters["b/affine/W"].data.fill(0.1)


def decay(t: Training, step: int) -> None:
    with nn.context_scope(t.context):
        t.solver.weight_decay(0.1)


@pytest.mark.parametrize("between", [lambda t, step: None, look, write, decay])
@pytest.mark.parametrize("solver", ["Momentum", "AdamW"])
def test_training_follows_numpy(solver: str, between: Callable[[Training, int], Any]) -> None:
    a, b = (Training(c, getattr(S, solver)(0.01)) for c in (NUMPY, CPU))
    for step in range(8):
        for t in (a, b):
            t.gradients()
            between(t, step)
            t.update()
    b.check_copies()
    for k, v in a.parameters.items():
        scale = np.abs(v.d).max()
        # steps of AdamW have the size of the rate, whatever the size of the gradient
        assert np.abs(b.parameters[k].d - v.d).mean() <= 0.05 * scale, k


def test_a_numpy_array_that_somebody_keeps_is_seen() -> None:
    t = Training(CPU, S.Sgd(0.0))
    t.gradients()
    t.update()
    kept = t.parameters["b/affine/W"].d
    t.gradients()
    t.update()
    kept[...] = 0.0
    t.gradients()
    assert not t.parameters["a/affine/W"].g.any()
    kept[...] = 1.0
    del kept
    t.gradients()
    assert t.parameters["a/affine/W"].g.any()


def test_whole_steps_keep_copies() -> None:
    t = Training(CPU, S.Adam())

    def step() -> nn.Variable:
        with nn.parameter_scope(str(id(t))):
            loss = t.record()
        loss.forward(clear_no_need_grad=True)
        t.solver.zero_grad()
        loss.backward(clear_buffer=True)
        t.solver.update()
        return loss

    run = nn.compile(step)
    other = Training(CPU, S.Adam())
    with nn.context_scope(CPU):
        for _ in range(4):
            loss = run()
            other.gradients()
            other.update()
            t.check_copies()
            np.testing.assert_allclose(loss.d, other.loss.d, rtol=1e-3)
    assert {k for k, v in t.spaces().items() if "bfloat16" in v} == COPIED
