# SPDX-License-Identifier: Apache-2.0
"""Weights of convolutions that stay in tiles between steps, and that nobody can tell.

Whoever looks at weights, gradients or states, or writes to them, between any two steps must find
and leave what numpy's training finds; so both are trained with the same interventions.
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
from tests.graph import training
from tests.native.graphs import NUMPY
from tests.native.kernels import require_onednn
from tests.solvers.cases import CASES, FUSED, IDS

CPU = nn.Context(["cpu:float"])
STEPS = 9


@pytest.fixture(autouse=True)
def onednn() -> None:
    require_onednn()


def network(x: nn.Variable, test: bool = False) -> nn.Variable:
    """Tiled: stem2, wide, group, point, up. Not tiled: stem (3 channels), odd, depth, last."""
    h = F.tanh(PF.convolution(x, 16, (3, 3), pad=(1, 1), name="stem"))
    h = F.tanh(PF.convolution(h, 32, (3, 3), pad=(1, 1), stride=(2, 2), name="stem2"))
    h = PF.batch_normalization(h, batch_stat=not test, name="bn")
    h = F.tanh(h + PF.convolution(h, 32, (3, 3), pad=(1, 1), name="wide", with_bias=False))
    h = F.tanh(PF.convolution(h, 32, (3, 3), pad=(1, 1), group=2, name="group"))
    h = F.tanh(PF.depthwise_convolution(h, (3, 3), pad=(1, 1), name="depth"))
    h = F.tanh(PF.convolution(h, 48, (1, 1), name="point"))
    h = F.tanh(PF.deconvolution(h, 16, (2, 2), stride=(2, 2), name="up"))
    h = F.tanh(PF.convolution(h, 17, (3, 3), name="odd"))
    return PF.affine(F.global_average_pooling(PF.convolution(h, 5, (1, 1), name="last")), 3)


TILED = {f"{n}/conv/W" for n in ("stem2", "wide", "group", "point")} | {"up/deconv/W"}


def small(v: nn.Variable) -> np.ndarray:
    x = np.random.default_rng(v.size).normal(size=v.shape) * 0.1
    return x.astype(np.float32)  # other types would become the type of the array


class Training(training.Training):
    """A network, its solver, and the same data at every step."""

    def __init__(self, context: nn.Context, name: str = "Momentum", compiled: bool = False,
                 **settings: Any) -> None:  # fmt: skip
        self.context = context
        with nn.context_scope(context), nn.parameter_scope(str(id(self))):
            rng = np.random.default_rng(0)
            self.x, self.t = nn.Variable((2, 3, 8, 8)), nn.Variable((2, 3))
            self.x.d, self.t.d = rng.normal(size=self.x.shape), rng.normal(size=self.t.shape)
            self.y = network(self.x)
            self.test = network(self.x, test=True)
            self.loss = F.mean(F.squared_error(self.y, self.t))
            self.parameters = nn.get_parameters()
        for v in self.parameters.values():
            v.d = small(v)
        self.solver = getattr(S, name)(**settings)
        self.solver.set_parameters(self.parameters)

    def validate(self) -> np.ndarray:
        with nn.context_scope(self.context):
            self.test.forward(clear_buffer=True)
            return self.test.d.copy()


def compare(name: str, settings: dict[str, Any], between: Callable[[Training, int], Any]) -> None:
    """Train on numpy and on the native engine with what `between` does before each update."""
    a, b = Training(NUMPY, name, **settings), Training(CPU, name, **settings)
    for step in range(STEPS):
        seen = []
        for t in (a, b):
            t.gradients()
            seen.append(between(t, step))
            t.update()
        if seen[0] is not None:
            np.testing.assert_allclose(seen[1], seen[0], rtol=1e-3, atol=1e-4)
    same(a, b)


def same(a: Training, b: Training) -> None:
    ours, theirs = b.solver.get_states(), a.solver.get_states()
    for k, v in a.parameters.items():
        close(b.parameters[k].d, v.d, k)
        if k in theirs:
            assert ours[k].t == theirs[k].t
            for s, state in theirs[k].pstate.items():
                close(ours[k].pstate[s].d, state.d, f"{k} {s}")


def close(got: np.ndarray, want: np.ndarray, what: str) -> None:
    """On average: some solvers take whole steps in the direction of gradients that are nearly 0."""
    assert np.abs(got - want).mean() <= 2e-3 * np.abs(want).max(), what


def test_weights_gradients_and_states_are_tiled_between_steps() -> None:
    t = Training(CPU)
    for _ in range(2):
        t.gradients()
        t.update()
    for spaces in (t.spaces("data"), t.spaces("grad")):
        tiled = {k for k, v in spaces.items() if v == ["tiled"]}
        assert tiled == TILED
    for k, state in t.solver.get_states().items():
        assert list(state.pstate["m"].data.bufs) == (["tiled"] if k in TILED else ["host"])


def test_tiled_and_plain_weights_are_updated_in_one_step() -> None:
    t = Training(CPU)
    for _ in range(2):
        t.gradients()
        with nn.profile() as p:
            t.update()
        assert [e.op for e in p.events] == ["multi_update"]


@pytest.mark.parametrize("name,settings", CASES, ids=IDS)
def test_every_solver_follows_numpy(name: str, settings: dict[str, Any]) -> None:
    compare(name, settings, lambda t, step: None)


def look(t: Training, step: int) -> Any:
    v = t.parameters["wide/conv/W"]
    return np.concatenate([v.d.ravel(), v.g.ravel()]) if step % 3 == 1 else None


def write(t: Training, step: int) -> None:
    if step % 3 == 1:
        t.parameters["wide/conv/W"].d *= 0.5
        t.parameters["point/conv/W"].d = 0.25
        t.parameters["up/deconv/W"].g[0] = 0.125
        t.parameters["group/conv/W"].grad.fill(0.5)


def write_states(t: Training, step: int) -> None:
    if step == 3:
        for state in t.solver.get_states().values():
            state.pstate["m"].d = 0.01
    if step == 6:
        t.solver.set_states({"wide/conv/W": S.SolverState(
            {"m": nn.Variable.from_numpy_array(np.full((32, 32, 3, 3), 0.5, np.float32))}, 9
        )})  # fmt: skip


def change_gradients(t: Training, step: int) -> Any:
    with nn.context_scope(t.context):
        t.solver.weight_decay(0.1)
        t.solver.clip_grad_by_norm(0.05)
        t.solver.scale_grad(2.0)
        return np.array([t.solver.check_inf_or_nan_grad()])


def accumulate(t: Training, step: int) -> None:
    with nn.context_scope(t.context):
        t.loss.forward(clear_no_need_grad=True)
        t.loss.backward(clear_buffer=True)


def validate(t: Training, step: int) -> Any:
    return t.validate() if step % 2 else None


def freeze(t: Training, step: int) -> None:
    t.parameters["wide/conv/W"].need_grad = step % 4 < 2


def plain_mode(t: Training, step: int) -> None:
    """A step in which everything stays readable."""
    if step % 3 == 1:
        with nn.context_scope(t.context):
            t.solver.zero_grad()
            t.loss.forward()
            t.loss.backward()


def dynamic(t: Training, step: int) -> Any:
    w = t.parameters["stem2/conv/W"]
    with nn.context_scope(t.context), nn.auto_forward():
        y = F.convolution(nn.Variable.from_numpy_array(np.ones((1, 16, 5, 5), np.float32)), w)
        return y.d.copy()


@pytest.mark.parametrize(
    "between",
    [look, write, write_states, change_gradients, accumulate, validate, freeze, plain_mode,
     dynamic],
)  # fmt: skip
def test_interventions_between_steps(between: Callable[[Training, int], Any]) -> None:
    compare("Momentum", {"lr": 0.05}, between)


@pytest.mark.parametrize("name", ["AdamW", "Lamb"])
def test_fused_weight_decay(name: str) -> None:
    assert name in FUSED
    compare(name, {}, lambda t, step: t.solver.weight_decay(0.1) if step % 2 else None)


def test_a_numpy_array_that_somebody_keeps_sees_updates_and_is_seen() -> None:
    a, b = Training(NUMPY), Training(CPU)
    kept = {}
    for t in (a, b):
        kept[t] = t.parameters["wide/conv/W"].d, t.solver.get_states()["wide/conv/W"].pstate["m"].d
    for step in range(6):
        for t in (a, b):
            w, m = kept[t]
            if step == 3:
                w[0] += 1.0
                m[1] = 0.5
            t.gradients()
            t.update()
            assert t.parameters["wide/conv/W"].data.read("host") is w
            w[2] *= 0.5  # after the update and before the next step
        np.testing.assert_allclose(kept[b][0], kept[a][0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(kept[b][1], kept[a][1], rtol=1e-3, atol=1e-4)
    same(a, b)
    del kept, w, m
    b.gradients()
    b.update()
    assert b.spaces()["wide/conv/W"] == ["tiled"]


def test_somebody_writes_to_a_numpy_array_and_lets_it_go() -> None:
    t = Training(CPU)
    t.gradients()
    t.update()
    w = t.parameters["wide/conv/W"]
    kept = w.d
    t.gradients()
    kept[...] = 0.0
    del kept
    t.gradients()
    got = t.parameters["stem2/conv/W"].g.copy()
    w.d = 0.0
    t.gradients()
    assert np.array_equal(got, t.parameters["stem2/conv/W"].g)


def test_weights_become_tiles_in_their_own_memory() -> None:
    t = Training(CPU)
    w = t.parameters["wide/conv/W"].data
    before = w.data.ctypes.data
    t.gradients()
    assert w.bufs["tiled"].ctypes.data == before


def test_saved_and_loaded_between_steps(tmp_path: Any) -> None:
    path = str(tmp_path / "p.h5")

    def save_and_load(t: Training, step: int) -> None:
        with nn.parameter_scope(str(id(t))):
            if step == 4:
                nn.save_parameters(path)
                t.solver.save_states(str(tmp_path / "s.h5"))
            if step == 8:
                nn.load_parameters(path)
                t.solver.load_states(str(tmp_path / "s.h5"))

    compare("Adam", {}, save_and_load)


def test_two_losses_on_the_same_weights() -> None:
    both = []
    for context in (NUMPY, CPU):
        with nn.context_scope(context), nn.parameter_scope(context.backend[0]):
            x = [nn.Variable((2, 16, 6, 6)) for _ in range(2)]
            for i, v in enumerate(x):
                v.d = np.random.default_rng(i).normal(size=v.shape)
            losses = [F.mean(PF.convolution(v, 32, (3, 3), name="c") ** 2) for v in x]
            w = nn.get_parameters()["c/conv/W"]
            w.d = small(w)
            solver = S.Sgd(0.05)
            solver.set_parameters(nn.get_parameters())
            for _ in range(5):
                for loss in losses:
                    loss.forward(clear_no_need_grad=True)
                    loss.backward(clear_buffer=True)
                solver.update()
                losses[0].forward(clear_no_need_grad=True)
                solver.zero_grad()
                losses[0].backward(clear_buffer=True)
                solver.update()
                solver.zero_grad()
            both.append(w.d.copy())
    np.testing.assert_allclose(both[1], both[0], rtol=1e-4, atol=1e-5)


def test_whole_steps_keep_weights_in_tiles() -> None:
    results = []
    for context in (NUMPY, CPU):
        t = Training(context, "Adam")

        def step(t: Training = t) -> nn.Variable:
            y = network_of(t)
            y.forward(clear_no_need_grad=True)
            t.solver.zero_grad()
            y.backward(clear_buffer=True)
            t.solver.update()
            return y

        run = nn.compile(step)
        with nn.context_scope(context):
            for _ in range(STEPS):
                loss = run()
        if context is CPU:
            assert {k for k, v in t.spaces().items() if v == ["tiled"]} == TILED
        results.append([loss.d.copy(), *[v.d.copy() for v in t.parameters.values()]])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-4)


def network_of(t: Training) -> nn.Variable:
    with nn.parameter_scope(str(id(t))):
        return F.mean(F.squared_error(network(t.x), t.t))


def test_weights_that_others_read_stay_plain() -> None:
    with nn.context_scope(CPU):
        x = nn.Variable((2, 16, 6, 6))
        x.d = 1
        y = PF.convolution(x, 16, (3, 3), name="c")
        w = nn.get_parameters()["c/conv/W"]
        loss = F.mean(y**2) + F.sum(w**2)
        loss.forward(clear_no_need_grad=True)
        loss.backward(clear_buffer=True)
        assert list(w.grad.bufs) == ["host"] and list(w.data.bufs) == ["host"]


def test_a_new_shape_of_a_tiled_array_keeps_its_values() -> None:
    t = Training(CPU)
    t.gradients()
    t.update()
    w = t.parameters["wide/conv/W"]
    assert list(w.data.bufs) == ["tiled"]
    before = w.data.read("host").copy()
    w.data.bufs.pop("host")
    w.reset_shape((32 * 32, 9), force=True)
    assert np.array_equal(w.d, before.reshape(32 * 32, 9))


def test_parameters_can_go_while_the_graph_stays() -> None:
    t = Training(CPU)
    t.gradients()
    t.update()
    t.solver.clear_parameters()
    nn.clear_parameters()
    before = t.parameters["wide/conv/W"].d.copy()
    t.gradients()
    t.update()  # has no parameters
    assert np.array_equal(t.parameters["wide/conv/W"].d, before)
    assert np.isfinite(t.validate()).all()
