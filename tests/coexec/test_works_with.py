# SPDX-License-Identifier: Apache-2.0
"""Co-executed steps with all sorts of Python, threads, interrupts, branches as functions."""

from __future__ import annotations

import _thread
import contextlib
import functools
import threading
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.data.iterator import data_iterator_simple
from tests.coexec.steps import same, variable

pytestmark = pytest.mark.usefixtures("dynamic")


def test_samples_are_made_by_functions_in_a_thread() -> None:
    def load(i: int) -> tuple[np.ndarray, np.ndarray]:
        with nn.auto_forward():  # modes are the thread's
            x = F.exp(variable(3, seed=i) * 0.5)
            return x.d.copy(), np.array([i])

    def losses(wrap: Any) -> list[np.ndarray]:
        w = nn.Variable.from_numpy_array(np.ones((1, 3), np.float32), need_grad=True)

        @wrap
        def step(x: nn.Variable) -> nn.Variable:
            loss = F.sum(F.tanh(x * w))
            w.grad.zero()
            loss.backward(clear_buffer=True)
            w.data -= w.grad * 0.1
            return loss

        with data_iterator_simple(load, 12, 4, use_thread=True) as batches:
            return [step(nn.Variable.from_numpy_array(batches.next()[0])).d for _ in range(9)]

    np.testing.assert_allclose(losses(nn.coexecute), losses(same), 1e-5)


class Noise:
    """A layer with a setting that programs change."""

    share = 0.5

    def __call__(self, x: nn.Variable) -> nn.Variable:
        return x * self.share + np.random.default_rng(len(str(self.share))).normal()


def logged(log: list[float]) -> Any:
    def decorate(f: Any) -> Any:
        @functools.wraps(f)
        def call(*args: Any, **kw: Any) -> Any:
            y = f(*args, **kw)
            log.append(float(F.sum(y).d))
            return y

        return call

    return decorate


@pytest.mark.parametrize("context", ["numpy:float", "cpu:float"])
def test_closures_generators_decorators_and_objects_stay_what_they_are(context: str) -> None:
    def values(wrap: Any) -> list[Any]:
        log: list[float] = []
        layer, total = Noise(), 0.0

        def halves(x: nn.Variable, n: int) -> Any:
            for i in range(n):
                x = functools.reduce(F.add2, [x * 0.5, layer(x)])
                yield i, x

        @logged(log)
        def net(x: nn.Variable, **options: Any) -> nn.Variable:
            parts = {i: F.tanh(y) for i, y in halves(x, options["n"])}
            return functools.reduce(F.add2, sorted(parts.values(), key=lambda y: float(y.d[0])))

        @wrap
        def step(k: int) -> nn.Variable:
            nonlocal total
            y = net(variable(3, seed=k), n=1 + k % 3)
            total += log[-1]
            layer.share = 0.25 + k / 100
            with contextlib.suppress(ZeroDivisionError):
                y = y * (1 // (k % 4))
            return y

        return [step(k).d.copy() for k in range(12)] + [np.array([*log, total, layer.share])]

    with nn.context_scope(nn.Context([context])):
        for found, wanted in zip(values(nn.coexecute), values(same), strict=True):
            np.testing.assert_allclose(found, wanted, 0 if context == "numpy:float" else 1e-5)


@pytest.mark.parametrize("context", ["numpy:float", "cpu:float"])
def test_switch_and_while_loop_are_calls_and_loops(context: str) -> None:
    w = variable(2)
    w.need_grad = True

    def step(k: int) -> nn.Variable:
        x, i = variable(2, seed=k), nn.Variable.from_numpy_array(np.array(k % 3))
        y = nn.switch(i, [lambda a: F.relu(a * w), lambda a: -a * w, F.exp], x)
        z = nn.while_loop(lambda v: F.less_scalar(F.sum(v * v), 50.0), lambda v: v * 2 + w, y)
        z, rows = nn.while_loop(
            lambda v: F.less_scalar(F.sum(v * v), 5000.0),
            lambda v: (v * 2 - w, F.sum(v)),
            z,
            max_trips=8,
        )
        loss = F.sum(z) + F.sum(rows * rows)
        w.grad.zero()
        loss.backward()
        return loss

    with nn.context_scope(nn.Context([context])):
        co = nn.coexecute(step)
        for k in range(12):
            wanted, gradient = step(k).d.copy(), w.g.copy()
            np.testing.assert_allclose(co(k).d, wanted, 1e-5)
            np.testing.assert_allclose(w.g, gradient, 1e-4)


def test_a_step_with_switch_and_while_loop_is_recorded_by_compile() -> None:
    def step(x: nn.Variable, i: nn.Variable) -> nn.Variable:
        y = nn.switch(i, [F.relu, F.exp], x)
        return nn.while_loop(lambda v: F.less_scalar(F.sum(v), 50.0), lambda v: v * 2 + 1, y)

    co, compiled = nn.coexecute(step), nn.compile(step)
    for k in range(4):
        x, i = variable(3, seed=k), nn.Variable.from_numpy_array(np.array(k % 2))
        np.testing.assert_allclose(co(x, i).d, compiled(x, i).d, 1e-5)


def test_an_interrupt_from_a_thread_ends_a_step_that_runs() -> None:
    x, state = variable(64, 64), nn.NdArray((64, 64))
    state.zero()
    steps = 0

    @nn.coexecute
    def step() -> None:
        nonlocal state, steps
        y = x * 0.1
        for _ in range(50):
            y = F.tanh(F.batch_matmul(y, x))
        state += (y * 0 + 1).data
        steps += 1

    step()
    timer = threading.Timer(0.05, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            step()
    timer.join()
    before = steps
    assert np.unique(state.data).size == 1 and state.data[0, 0] in (before, before + 1)
    step()  # nothing stays in the way
    assert steps == before + 1
