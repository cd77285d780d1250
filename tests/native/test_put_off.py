# SPDX-License-Identifier: Apache-2.0
"""What C does for calls and gradients of co-executed steps is what nnl/coexec says in Python."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.core.arrays.array import NdArray
from nnl.core.graph.node import Node
from nnl.core.settings.context import STATE
from tests.coexec.steps import variable
from tests.native.kernels import require_library

deferred = importlib.import_module("nnl.coexec.deferring.deferred_step")
backward = importlib.import_module("nnl.coexec.deferring.backward")
METHODS = ("_numbers", "calls", "backward")


@pytest.fixture(autouse=True)
def dynamic() -> Iterator[None]:
    require_library()
    with nn.auto_forward():
        double = nn.coexecute(lambda x: x * 2)
        for _ in range(2):
            double(variable(2))  # C comes with the first call that it may put off
        assert not any(inspect.isfunction(getattr(deferred.DeferredStep, m)) for m in METHODS)
        assert not inspect.isfunction(backward.become)
        yield


def as_written(module: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A copy of a module, with the functions that C has replaced in it."""
    at = spec_from_file_location(f"as_written_{module.__name__}", module.__file__)
    assert at is not None and at.loader is not None
    copy = module_from_spec(at)
    monkeypatch.setitem(sys.modules, at.name, copy)
    at.loader.exec_module(copy)
    return copy


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step is put off already."""
    monkeypatch.setattr("nnl.coexec.policy.watch.OFTEN", 0)


@contextmanager
def in_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All of it as it is written in Python."""
    written = as_written(deferred, monkeypatch).DeferredStep
    with monkeypatch.context() as m:
        for name in METHODS:
            m.setattr(deferred.DeferredStep, name, getattr(written, name))
        m.setattr(backward, "become", as_written(backward, monkeypatch).become)
        yield


def said(nd: NdArray, now: Any) -> Any:
    """What the record of an array says of a step."""
    r = nd.record
    mine = (r.number, r.work is now) if r.work is not None else None
    return nd.spec, mine, r.fill, r.cleared, sorted(nd.bufs)


def state(others: list[NdArray]) -> Any:
    """What a step has put off so far."""
    now = STATE.interpreter.deferred
    parameters = list(nn.get_parameters().values())
    arrays = [*others, *[nd for v in parameters for nd in (v.data, v.grad)]]
    return (
        [(p.name, p.visits) for p in now.path],
        [None if nd is None else said(nd, now) for nd in now.made],
        [said(nd, now) for nd in now.given],
        {number: sorted(bufs) for number, bufs in now.before.items()},
        sorted(number for number, _ in now.taken.values()),
        [said(nd, now) for nd in arrays],
    )


def net(x: nn.Variable, k: int) -> nn.Variable:
    h = F.relu(PF.affine(x, 4, name="a"))
    if k % 4 == 1:  # one parameter twice
        h = F.relu(PF.affine(h, 4, name="b") + PF.affine(h * 2, 4, name="b"))
    else:
        h = PF.affine(h, 4, name="b")
    return F.mean(h**2)


def train(way: str) -> list[Any]:
    """What steps put off, after each of their calls, and what they leave."""
    nn.clear_parameters()
    nn.seed(3)
    x, seen = variable(3, 4), []
    net(x, 0)
    solver = S.Momentum(0.1)
    solver.set_parameters(nn.get_parameters())
    states = [v.data for s in solver.get_states().values() for v in s.pstate.values()]
    w, alike = nn.get_parameters()["a/affine/b"], nn.Variable((4,), need_grad=True)
    alike.data = w.data

    def step(k: int) -> nn.Variable:
        loss = net(x, k)
        if way == "gradients are one":  # or are two, of two leaves of the same memory
            alike.grad.zero()
            loss = loss + F.mean(w * (w.unlinked(need_grad=True) if k % 2 else alike))
        seen.append(state(states))
        if way != "gradients add up" or k % 3 == 0:
            solver.zero_grad()
        if way == "a part is zero" and k % 2:
            nn.get_parameters()["b/affine/b"].grad.fill(0.0)
        if way == "a gradient is held":
            seen.append(nn.get_parameters()["a/affine/W"].g.tolist())
        seen.append(state(states))
        loss.backward(2.5 if way == "scaled" else 1, clear_buffer=way != "keeps")
        seen.append(state(states))
        if way == "twice":
            other = net(x, k + 1)
            other.backward(clear_buffer=True)
            seen.append(state(states))
        solver.update()
        seen.append(state(states))
        return loss

    co = nn.coexecute(step, ahead=int(way == "ahead"))
    every = {"changes": [k // 5 for k in range(10)], "gradients are one": [3, 3, 2] * 4}
    for k in every.get(way, [*[0] * 6, 6, 7, 8, 9]):
        seen.append(co(k))
    seen = [v.d.tolist() if isinstance(v, nn.Variable) else v for v in seen]
    return [*seen, *[v.d.tolist() for v in nn.get_parameters().values()], co.report().plans]


WAYS = ["usual", "scaled", "keeps", "ahead", "twice", "changes"]
WAYS += ["gradients add up", "gradients are one", "a part is zero", "a gradient is held"]


@pytest.mark.parametrize("way", WAYS)
def test_steps_put_off_what_they_do_in_python(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = train(way)
    with in_python(monkeypatch):
        wanted = train(way)
    assert len(found) == len(wanted)
    for at, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert a == b, at


def test_known_passes_and_updates_ask_nothing_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("Python was asked")

    nn.clear_parameters()
    x = variable(3, 4)
    loss = net(x, 0)
    solver = S.Momentum(0.1)
    solver.set_parameters(nn.get_parameters())

    @partial(nn.coexecute, ahead=0)
    def step() -> None:
        loss = net(x, 0)
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        solver.update()

    monkeypatch.setattr(Node, "rewired", False)  # by another test
    for _ in range(3):
        step()
    monkeypatch.setattr(backward, "_again", never)
    monkeypatch.setattr(backward, "become", never)
    monkeypatch.setattr(deferred.DeferredStep, "_together", never)
    for _ in range(3):
        step()
    assert np.isfinite(loss.d).all()
