# SPDX-License-Identifier: Apache-2.0
"""States: reading, setting, saving, loading, resuming."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.solvers as S
from nnl.converters.nnp import solver_files  # noqa: F401  (registers the file formats)
from nnl.converters.nnp.messages import messages
from tests.solvers.cases import CASES, IDS, gradients

SHAPES: dict[str, tuple[int, ...]] = {"conv/W": (2, 3), "b": (), "empty": (0, 2)}


def start(name: str, kw: dict[str, Any]) -> tuple[Any, dict[str, nn.Variable]]:
    rng = np.random.default_rng(0)
    weights = {
        k: nn.Variable.from_numpy_array(rng.normal(size=s).astype(np.float32))
        for k, s in SHAPES.items()
    }
    solver = getattr(S, name)(**kw)
    solver.set_parameters(weights)
    return solver, weights


def steps(solver: Any, weights: dict[str, nn.Variable], first: int, last: int) -> None:
    for v in weights.values():
        for g in gradients(last, *v.shape)[first:]:
            solver.zero_grad()
            v.g = g.astype(np.float32)
            solver.update()


@pytest.mark.parametrize("extension", ["h5", "protobuf"])
@pytest.mark.parametrize(("name", "kw"), CASES, ids=IDS)
def test_a_resumed_run_equals_an_uninterrupted_one(
    tmp_path: Path, name: str, kw: dict[str, Any], extension: str
) -> None:
    whole, wanted = start(name, kw)
    steps(whole, wanted, 0, 6)
    first, weights = start(name, kw)
    steps(first, weights, 0, 3)
    path = str(tmp_path / f"s.{extension}")
    first.save_states(path)
    second = getattr(S, name)(**kw)
    second.set_parameters(weights)
    second.load_states(path)
    steps(second, weights, 3, 6)
    for k, v in weights.items():
        np.testing.assert_array_equal(v.d, wanted[k].d)
    assert {k: s.t for k, s in second.get_states().items()} == dict.fromkeys(SHAPES, 6)


def test_get_states_gives_live_arrays_and_t_of_now() -> None:
    solver, weights = start("Adam", {})
    before = solver.get_states()["b"]
    steps(solver, weights, 0, 1)
    assert before.t == 0 and solver.get_states()["b"].t == 1
    assert before.pstate["mean"].d == solver.get_states()["b"].pstate["mean"].d != 0


def test_set_states_shares_arrays() -> None:
    one, weights = start("Adam", {})
    steps(one, weights, 0, 2)
    two, others = start("Adam", {})
    steps(two, others, 0, 1)
    two.set_states({"b": one.get_states()["b"]})
    one.get_states()["b"].pstate["mean"].d = 77
    states = two.get_states()
    assert states["b"].t == 2 and states["b"].pstate["mean"].d == 77 and states["conv/W"].t == 1
    steps(two, others, 2, 3)
    assert one.get_states()["b"].pstate["mean"].d == states["b"].pstate["mean"].d != 77


def test_states_may_be_parts_of_one_array() -> None:
    """A solver of one long parameter, whose arrays have those of the single ones as parts."""
    single, weights = start("Adam", {})
    wanted, others = start("Adam", {})
    grads = np.random.default_rng(1).normal(size=(3, 7)).astype(np.float32)
    for solver, mine, n in ((single, weights, 2), (wanted, others, 3)):
        for g in grads[:n]:
            mine["conv/W"].g, mine["b"].g = g[:6].reshape(2, 3), g[6]
            solver.update()
    del weights["empty"]
    old, at = single.get_states(), 0
    long = nn.Variable((7,), need_grad=True)
    state = {name: nn.Variable(long.shape) for name in single.states}
    for key, v in weights.items():
        for mine, whole in [(v, long), *((old[key].pstate[n], state[n]) for n in state)]:
            part = whole.data.narrow(0, at, v.size).view(v.shape)
            part.copy_from(mine.data)
            mine.data = part
        v.grad = long.grad.narrow(0, at, v.size).view(v.shape)
        at += v.size
    packed = S.Adam()
    packed.set_parameters({"all": long})
    packed.set_states({"all": S.SolverState(state, 2)})
    weights["conv/W"].g, weights["b"].g = grads[2, :6].reshape(2, 3), grads[2, 6]
    packed.update()
    for key, v in weights.items():
        np.testing.assert_array_equal(v.d, others[key].d)
        for name, want in wanted.get_states()[key].pstate.items():
            np.testing.assert_array_equal(old[key].pstate[name].d, want.d)


def test_states_that_do_not_fit_are_named_and_change_nothing() -> None:
    solver, weights = start("Momentum", {})
    steps(solver, weights, 0, 2)
    good = S.SolverState({"m": nn.Variable((2, 3))}, 9)
    bad: list[tuple[str, S.SolverState, str]] = [
        ("other", good, "Momentum.set_states: 'other' is no parameter of this solver"),
        ("b", S.SolverState({"v": nn.Variable(())}, 1), r"'b' has the states \['v'\], wanted"),
        ("b", S.SolverState({"m": nn.Variable((1,))}, 1), r"m of 'b' has the shape \(1,\), wanted"),
        ("b", S.SolverState({"m": nn.Variable(())}, -1), "t of 'b' is -1, wanted a number >= 0"),
    ]
    for key, state, text in bad:
        with pytest.raises(ValueError, match=text):
            solver.set_states({"conv/W": good, key: state})
    assert solver.get_states()["conv/W"].t == 2 and solver.get_states()["b"].t == 2


def test_states_of_another_solver_do_not_load(tmp_path: Path) -> None:
    path = str(tmp_path / "s.h5")
    start("Adam", {})[0].save_states(path)
    with pytest.raises(ValueError, match=r"Sgd.set_states: 'b' has the states \['mean', 'var'\]"):
        start("Sgd", {})[0].load_states(path)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    solver, _ = start("Adam", {})
    with pytest.raises(ValueError, match=r"Adam.save_states: path is 's.npz', wanted the"):
        solver.save_states("s.npz")
    with pytest.raises(ValueError, match=r"Adam.save_states: path is 's.nntxt', wanted the ext"):
        solver.save_states("s.nntxt")
    path = tmp_path / "s.protobuf"
    path.write_bytes(b"\xff\xff\xff")
    with pytest.raises(ValueError, match="Adam.load_states: .*s.protobuf: no Optimizer message"):
        solver.load_states(str(path))


def test_a_message_whose_values_do_not_fill_its_shape_is_refused() -> None:
    solver, _ = start("Momentum", {})
    optimizer = messages()["Optimizer"]()
    solver.set_states_to_protobuf(optimizer)
    optimizer.solver.states["conv/W"].state_parameter["m"].shape.dim[0] = 3
    with pytest.raises(ValueError, match=r"m of 'conv/W' has 6 values for the shape \(3, 3\)"):
        solver.set_states_from_protobuf(optimizer)


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: Any) -> None:
    solver, weights = start("Adam", {})
    path = tmp_path / "s.h5"
    solver.save_states(str(path))
    old = path.read_bytes()
    steps(solver, weights, 0, 1)

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        solver.save_states(str(path))
    assert path.read_bytes() == old and os.listdir(tmp_path) == ["s.h5"]
