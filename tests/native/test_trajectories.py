# SPDX-License-Identifier: Apache-2.0
"""Whole trainings: a hundred steps of the native engine follow numpy's, in every mode.

How far two float32 trajectories may part depends on the training, not on a constant: an error of
one rounding grows or dies out with the steps. So numpy also trains from parameters moved by 1e-6,
about ten roundings, and the native trajectory must stay as close to numpy's as those do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from tests.native.graphs import NUMPY
from tests.native.kernels import require_library

CPU = nn.Context(["cpu:float"])
STEPS = 100


def lenet(x: nn.Variable, test: bool) -> nn.Variable:
    h = F.relu(F.max_pooling(PF.convolution(x, 6, (3, 3), pad=(1, 1), name="c1"), (2, 2)))
    h = F.relu(F.max_pooling(PF.convolution(h, 8, (3, 3), name="c2"), (2, 2)), inplace=True)
    return PF.affine(F.relu(PF.affine(h, 16, name="a1")), 10, name="a2")


def resnet(x: nn.Variable, test: bool) -> nn.Variable:
    def unit(h: nn.Variable, n: int, stride: int, name: str) -> nn.Variable:
        with nn.parameter_scope(name):
            y = PF.convolution(h, n, (3, 3), pad=(1, 1), stride=(stride,) * 2, with_bias=False,
                               name="c1")  # fmt: skip
            y = F.relu(PF.batch_normalization(y, batch_stat=not test, name="b1"))
            y = PF.convolution(y, n, (3, 3), pad=(1, 1), with_bias=False, name="c2")
            y = PF.batch_normalization(y, batch_stat=not test, name="b2")
            if stride > 1:
                h = PF.convolution(h, n, (1, 1), stride=(stride,) * 2, with_bias=False, name="s")
                h = PF.batch_normalization(h, batch_stat=not test, name="b3")
            return F.relu(y + h)

    h = PF.convolution(x, 8, (3, 3), pad=(1, 1), with_bias=False, name="c")
    h = F.relu(PF.batch_normalization(h, batch_stat=not test, name="b"))
    h = unit(unit(h, 8, 1, "u1"), 16, 2, "u2")
    return PF.affine(F.global_average_pooling(h), 10, name="a")


def lstm(x: nn.Variable, test: bool) -> nn.Variable:
    n = x.shape[0]
    seq = F.transpose(F.reshape(x, (n, 8, 8)), (1, 0, 2))
    zero = F.constant(0, (1, 1, n, 12))
    y, _, _ = PF.lstm(seq, zero, zero, num_layers=1, training=not test, name="lstm")
    return PF.affine(F.slice(y, (7, 0, 0), (8, n, 12)).reshape((n, 12)), 10, name="a")


def transformer(x: nn.Variable, test: bool) -> nn.Variable:
    n, d, heads = x.shape[0], 12, 3
    h = PF.affine(F.reshape(x, (n, 8, 8)), d, base_axis=2, name="in")
    for k in range(2):
        with nn.parameter_scope(f"block{k}"):
            z = PF.layer_normalization(h, batch_axis=(0, 1), name="n1")
            parts = []
            for name in "qkv":
                # no bias: that of the keys has no effect, and Adam makes steps of its rounding
                p = PF.affine(z, d, base_axis=2, with_bias=False, name=name)
                p = F.reshape(p, (n, 8, heads, d // heads))
                parts.append(F.reshape(F.transpose(p, (0, 2, 1, 3)), (n * heads, 8, d // heads)))
            q, k_, v = parts
            a = F.softmax(F.batch_matmul(q, k_, transpose_b=True) * (d // heads) ** -0.5, axis=2)
            y = F.reshape(F.batch_matmul(a, v), (n, heads, 8, d // heads))
            y = F.reshape(F.transpose(y, (0, 2, 1, 3)), (n, 8, d))
            h = h + PF.affine(y, d, base_axis=2, name="o")
            z = PF.layer_normalization(h, batch_axis=(0, 1), name="n2")
            z = F.gelu(PF.affine(z, 2 * d, base_axis=2, name="f1"))
            h = h + PF.affine(z, d, base_axis=2, name="f2")
    return PF.affine(F.mean(h, axis=1), 10, name="out")


Network = Callable[[nn.Variable, bool], nn.Variable]
NETWORKS: dict[str, tuple[Network, Callable[[], Any]]] = {
    "lenet": (lenet, lambda: S.Adam(1e-3)),
    "resnet": (resnet, lambda: S.Momentum(0.001)),
    "lstm": (lstm, lambda: S.RMSprop(1e-3)),
    "transformer": (transformer, lambda: S.AdamW(1e-3)),
}
BATCHES = {
    n: (
        np.random.default_rng(n).normal(size=(4, n, 1, 8, 8)).astype(np.float32),
        np.random.default_rng(n).integers(0, 10, (4, n, 1)),
    )
    for n in (4, 6)
}


class Training:
    """One training; `run` returns the loss of every step, and the parameters in the end."""

    def __init__(self, network: Network, solver: Any, mode: str, moved: float = 0.0, seed: int = 0):
        self.network, self.mode = network, mode
        self.solver = solver
        nn.clear_parameters()
        self.graph(4)
        first, rng = np.random.default_rng(3), np.random.default_rng(seed)
        for v in weights():  # initial values go on where the previous training stopped
            if v.ndim > 1 and v.d.std() > 0:
                v.d = first.normal(size=v.shape) / np.prod(v.shape[1:]) ** 0.5
            v.d = (v.d * (1 + moved * rng.uniform(-1, 1, v.shape))).astype(np.float32)
        solver.set_parameters(nn.get_parameters())
        self.step = nn.compile(self._step)

    def graph(self, n: int) -> None:
        """Inputs, loss and evaluation for batches of n; parameters are shared by all graphs."""
        self.x, self.t = nn.Variable((n, 1, 8, 8)), nn.Variable((n, 1))
        if self.mode != "dynamic":
            self.loss = self.loss_of(self.x, self.t)
            self.test = self.network(self.x, True)
        else:
            with nn.auto_forward(False):
                self.test = self.network(self.x, True)
                self.network(self.x, False)  # makes the parameters

    def loss_of(self, x: nn.Variable, t: nn.Variable) -> nn.Variable:
        return F.mean(F.softmax_cross_entropy(self.network(x, False), t))

    def _step(self, x: nn.Variable, t: nn.Variable) -> nn.Variable:
        loss = self.loss_of(x, t)
        self.solver.zero_grad()
        loss.backward(clear_buffer=True)
        self.solver.weight_decay(1e-4)
        self.solver.update()
        return loss

    def one(self, k: int) -> float:
        xs, ts = BATCHES[self.x.shape[0]]
        self.x.d, self.t.d = xs[k % 4], ts[k % 4]
        if self.mode == "compiled":
            return float(self.step(self.x, self.t).d)
        if self.mode == "dynamic":
            with nn.auto_forward():
                return float(self._step(self.x, self.t).d)
        clear = self.mode == "static"
        self.loss.forward(clear_no_need_grad=clear)
        self.solver.zero_grad()
        self.loss.backward(clear_buffer=clear)
        self.solver.weight_decay(1e-4)
        self.solver.update()
        return float(self.loss.d)

    def evaluate(self) -> float:
        self.test.forward(clear_buffer=True)
        return float(np.abs(self.test.d).sum())

    def run(self, events: dict[int, Callable[[Training], Any]]) -> np.ndarray:
        out = []
        for k in range(STEPS):
            if k in events:
                events[k](self)
            out.append(self.one(k))
            if events and k % 5 == 0:
                out.append(self.evaluate())
        sums = [float(np.abs(v.d).sum()) for v in nn.get_parameters(grad_only=False).values()]
        return np.array(out + sums)


def assert_follows(name: str, mode: str, events: Any) -> None:
    require_library()
    network, solver = NETWORKS[name]

    def train(context: Any, mode: str, moved: float = 0.0, seed: int = 0) -> np.ndarray:
        with nn.context_scope(context):
            return Training(network, solver(), mode, moved, seed).run(events)

    if (name, bool(events)) not in WANT:
        want = train(NUMPY, "static")
        near = [np.abs(train(NUMPY, "static", 1e-6, s) - want) for s in (1, 2)]
        WANT[name, bool(events)] = want, np.maximum(*near)
    want, near = WANT[name, bool(events)]
    got = train(CPU, mode)
    # what a perturbation does to the worst value stands for all: single values may be lucky
    scale = np.maximum(np.abs(want), 1.0)
    allowed = 10 * float((near / scale).max()) + 1e-5
    assert allowed < 2e-2, "the training itself is too unstable to compare anything"
    assert float((np.abs(got - want) / scale).max()) <= allowed


WANT: dict[tuple[str, bool], tuple[np.ndarray, np.ndarray]] = {}
MODES = ["static", "keep", "compiled", "dynamic"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", list(NETWORKS))
def test_a_hundred_steps_follow_numpy(name: str, mode: str) -> None:
    assert_follows(name, mode, {})


def weights() -> list[nn.Variable]:
    return list(nn.get_parameters().values())


def keep_views(t: Training) -> None:
    t.views = [v.d for v in weights()]


def change_by_assignment(t: Training) -> None:
    for v in weights():
        v.d = v.d * 0.9


def change_in_place(t: Training) -> None:
    for v in weights():
        v.d[...] *= 1.05


def change_through_an_old_view(t: Training) -> None:
    for v in t.views:
        v *= 0.95


def replace_the_arrays(t: Training) -> None:
    for v in weights():
        v.data = nn.NdArray.from_numpy_array(v.d * 1.02)


def swap_the_solver(t: Training) -> None:
    t.solver = S.Nesterov(0.005)
    t.solver.set_parameters(nn.get_parameters())
    if t.mode == "compiled":
        t.step = nn.compile(t._step)


EVENTS = {
    5: change_by_assignment,
    12: change_in_place,
    18: keep_views,
    21: change_through_an_old_view,
    23: change_through_an_old_view,
    31: replace_the_arrays,
    37: change_in_place,
    45: swap_the_solver,
    56: lambda t: t.graph(6),
    61: change_by_assignment,
    73: lambda t: t.graph(4),
    77: keep_views,
    88: change_through_an_old_view,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["lenet", "resnet"])
def test_weights_batch_and_solver_change_in_between(name: str, mode: str) -> None:
    """Also after every fifth step a graph for evaluation runs, which prepares weights only once."""
    assert_follows(name, mode, EVENTS)
