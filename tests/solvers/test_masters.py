# SPDX-License-Identifier: Apache-2.0
"""Parameters of 16 bits that are updated in float32: their masters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.converters.nnp import solver_files  # noqa: F401  (registers the file formats)
from nnl.core.settings.context import half_type
from tests.solvers.cases import CASES, IDS, gradients, trajectory

BF16 = half_type("bfloat16")


def weight(shape: tuple[int, ...], dtype: Any) -> nn.Variable:
    value = np.random.default_rng(0).normal(size=shape).astype(dtype)
    return nn.Variable.from_numpy_array(value, need_grad=True)


@pytest.mark.parametrize("dtype", [np.float16, BF16], ids=["half", "bfloat16"])
@pytest.mark.parametrize(("name", "kw"), CASES, ids=IDS)
def test_masters_follow_the_formula_and_parameters_are_masters_rounded(
    name: str, kw: dict[str, Any], dtype: Any
) -> None:
    v = weight((3, 4), dtype)
    grads = gradients(20, 3, 4)
    wanted, _ = trajectory(name, kw, v.d.astype(np.float64), grads)
    solver = getattr(S, name)(**kw)
    solver.set_parameters({"w": v})
    for g, want in zip(grads, wanted, strict=True):
        v.g = g.astype(np.float32)
        solver.update()
        master = solver.get_states()["w"].pstate["master"].d
        assert master.dtype == np.float32 and v.d.dtype == dtype
        np.testing.assert_allclose(master, want, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(v.d, master.astype(dtype))


def test_small_steps_are_lost_without_masters() -> None:
    found = []
    for masters in (True, False):
        v = nn.Variable.from_numpy_array(np.ones(3, BF16), need_grad=True)
        solver = S.AdamW(1e-4, wd=0.0)
        solver.set_parameters({"w": v}, masters=masters)
        assert ("master" in solver.get_states()["w"].pstate) is masters
        for _ in range(100):
            v.g = np.ones(3, np.float32)
            solver.update()
        found.append(v.d.astype(np.float32))
    np.testing.assert_allclose(found[0], 0.99, atol=2**-8)
    np.testing.assert_array_equal(found[1], 1.0)


def trained(mode: str, type_config: str, dtype: Any, steps: int = 8) -> list[np.ndarray]:
    """The parameters after some steps of a small network."""
    rng = np.random.default_rng(3)
    a, b = weight((6, 5), dtype), weight((5, 1), dtype)
    bias = nn.Variable.from_numpy_array(np.zeros((1, 5), np.float32), need_grad=True)
    x = nn.Variable.from_numpy_array(rng.normal(size=(4, 6)).astype(np.float32))
    solver = S.AdamW(1e-3, wd=1e-3)
    solver.set_parameters({"a": a, "b": b, "bias": bias})

    def step(x: nn.Variable) -> nn.Variable:
        y = F.batch_matmul(F.tanh(F.batch_matmul(x, a) + bias), b)
        loss = F.mean((y - 1.0) ** 2)
        loss.forward()
        solver.zero_grad()
        loss.backward()
        solver.update()
        return loss

    context = nn.Context([f"cpu:{type_config}"])
    with nn.context_scope(context), nn.auto_forward(mode == "dynamic"):
        run = {"compiled": nn.compile, "coexecuted": nn.coexecute}.get(mode, lambda f: f)(step)
        for _ in range(steps):
            run(x)
    states = solver.get_states()
    assert "master" not in states["bias"].pstate and states["a"].t == steps
    return [states[k].pstate["master"].d.copy() for k in "ab"] + [v.d for v in (a, b, bias)]


@pytest.mark.parametrize("type_config", ["float", "bfloat16"])
@pytest.mark.parametrize("mode", ["dynamic", "compiled", "coexecuted"])
def test_every_mode_gives_what_static_graphs_give(mode: str, type_config: str) -> None:
    rounding = 1e-6 if type_config == "float" else 1e-3  # gradients are of 16 bits
    for got, want in zip(
        trained(mode, type_config, BF16), trained("static", type_config, BF16), strict=True
    ):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(
            got.astype(np.float32), want.astype(np.float32), atol=rounding, rtol=2**-7
        )


def test_a_training_step_is_that_of_torch_on_masters() -> None:
    """With products of bfloat16 weights in float32, and AdamW of PyTorch on float32 copies."""
    torch = pytest.importorskip("torch")
    v, x = weight((6, 5), BF16), np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)
    p = torch.nn.Parameter(torch.tensor(v.d.astype(np.float32)))
    optimizer = torch.optim.AdamW([p], 1e-3, weight_decay=0.3, eps=1e-8)
    solver = S.AdamW(1e-3, wd=1e-3 * 0.3, eps=1e-8)
    solver.set_parameters({"w": v})
    loss = F.mean(F.batch_matmul(nn.Variable.from_numpy_array(x), v) ** 2)
    for _ in range(20):
        loss.forward(clear_no_need_grad=True)
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        solver.update()
        rounded = p.bfloat16().float()  # the gradient is that of the rounded weights
        rounded.retain_grad()
        (torch.tensor(x) @ rounded).pow(2).mean().backward()
        p.grad = rounded.grad
        optimizer.step()
        master = solver.get_states()["w"].pstate["master"].d
        np.testing.assert_allclose(master, p.detach().numpy(), atol=2e-6)
        optimizer.zero_grad()


def test_a_master_begins_again_where_somebody_writes_the_parameter() -> None:
    v = weight((2, 3), BF16)
    solver = S.Sgd(1e-3)
    solver.set_parameters({"w": v})
    v.g = np.ones((2, 3), np.float32)
    solver.update()
    first = solver.get_states()["w"].pstate["master"].d.copy()
    v.data.data[0] = 3.0
    solver.update()
    master = solver.get_states()["w"].pstate["master"].d
    np.testing.assert_allclose(master[0], 3.0 - 1e-3, rtol=1e-6)
    np.testing.assert_allclose(master[1], first[1] - 1e-3, rtol=1e-6)


@pytest.mark.parametrize("extension", ["h5", "protobuf"])
@pytest.mark.parametrize("name", ["AdamW", "Muon"])
def test_masters_are_saved_and_a_resumed_run_is_the_same_bits(
    name: str, extension: str, tmp_path: Path
) -> None:
    def run(v: nn.Variable, solver: Any, first: int, last: int) -> None:
        for g in gradients(last, 3, 4)[first:]:
            v.g = g.astype(np.float32)
            solver.update()

    whole, v = getattr(S, name)(1e-3), weight((3, 4), BF16)
    whole.set_parameters({"w": v})
    run(v, whole, 0, 6)
    begun, w = getattr(S, name)(1e-3), weight((3, 4), BF16)
    begun.set_parameters({"w": w})
    run(w, begun, 0, 3)
    begun.save_states(str(tmp_path / f"s.{extension}"))
    resumed = getattr(S, name)(1e-3)
    resumed.set_parameters({"w": w})
    resumed.load_states(str(tmp_path / f"s.{extension}"))
    run(w, resumed, 3, 6)
    np.testing.assert_array_equal(w.d, v.d)
    found, want = (s.get_states()["w"].pstate for s in (resumed, whole))
    for key, state in want.items():
        np.testing.assert_array_equal(found[key].d, state.d)


def test_a_loss_scale_updates_masters() -> None:
    found = []
    for scaled in (False, True):
        v = weight((3, 4), np.float16)
        solver = S.AdamW(1e-3)
        solver.set_parameters({"w": v})
        scale = S.LossScale(solver, 8.0)
        for i, g in enumerate(gradients(5, 3, 4)):
            v.g = g.astype(np.float32) * (8 if scaled else 1)
            if i == 2:
                v.g = np.inf
            if scaled:
                scale.update()
                scale.set(8.0)
            elif i != 2:
                solver.update()
        found.append(solver.get_states()["w"].pstate["master"].d.copy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)
