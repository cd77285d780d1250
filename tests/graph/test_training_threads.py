# SPDX-License-Identifier: Apache-2.0
"""Threads that train at the same time: each gets the bits that it gets alone."""

import sys
import threading
from functools import partial

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S


@pytest.fixture(autouse=True)
def _often_switching():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)
    nn.seed(313)


def network(x, t):
    h = PF.convolution(x, 16, (3, 3), pad=(1, 1), name="conv")
    h = F.max_pooling(F.relu(PF.batch_normalization(h, name="bn")), (2, 2))
    h = F.dropout(F.tanh(PF.affine(h, 24, name="hidden")), 0.3)
    return F.mean(F.softmax_cross_entropy(PF.affine(h, 5, name="out"), t))


def train(mode, backend, seed, steps=6):
    """Losses and parameters of a network of this thread's."""
    losses = []
    rng = np.random.default_rng(seed)
    with nn.context_scope(nn.Context([backend])), nn.parameter_scope(f"net{seed}"):
        nn.clear_parameters()
        nn.seed(seed)
        solver = S.Adam(0.01)
        x, t = nn.Variable((8, 3, 8, 8)), nn.Variable((8, 1))

        def feed():
            x.d = rng.normal(size=x.shape)
            t.d = rng.integers(0, 5, t.shape)

        def finish(loss):
            solver.set_parameters(nn.get_parameters(), reset=False, retain_state=True)
            solver.zero_grad()
            loss.forward(clear_no_need_grad=True)
            loss.backward(clear_buffer=True)
            solver.weight_decay(1e-3)
            solver.update()
            return loss

        if mode == "compiled":
            run = nn.compile(lambda x, t: finish(network(x, t)))
            network(x, t)  # makes the parameters
        elif mode == "static":
            loss = network(x, t)
        for _ in range(steps):
            feed()
            if mode == "compiled":
                losses.append(run(x, t).d.tobytes())
            elif mode == "static":
                losses.append(finish(loss).d.tobytes())
            else:
                with nn.auto_forward():
                    losses.append(finish(network(x, t)).d.tobytes())
        return losses, {k: v.d.tobytes() for k, v in nn.get_parameters(grad_only=False).items()}


def at_once(*jobs):
    """What the jobs return, each in a thread of its own that begins when all are there."""
    barrier, found = threading.Barrier(len(jobs)), [None] * len(jobs)

    def work(i, job):
        barrier.wait(30)
        try:
            found[i] = job()
        except BaseException as e:
            found[i] = e

    threads = [threading.Thread(target=work, args=(i, job)) for i, job in enumerate(jobs)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


MODES = ("dynamic", "static", "compiled")


@pytest.mark.parametrize("backend", ["cpu:float", "numpy:float"])
@pytest.mark.parametrize("modes", [(a, b) for i, a in enumerate(MODES) for b in MODES[i:]])
@pytest.mark.parametrize("count", [3, pytest.param(20, marks=pytest.mark.long)])
def test_two_threads_train_as_each_does_alone(modes, backend, count):
    for seed in range(0, 2 * count, 2):
        jobs = [partial(train, mode, backend, seed + i) for i, mode in enumerate(modes)]
        alone = [job() for job in jobs]
        assert alone[0] != alone[1]
        assert at_once(*jobs) == alone


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", ["cpu:float", "numpy:float"])
def test_a_loader_thread_calls_functions_while_another_trains(mode, backend):
    alone = train(mode, backend, 3, steps=12)
    stop, loaded = threading.Event(), []

    def load():
        """What a data loader does: functions that run at once, of images of changing sizes."""
        rng = np.random.default_rng(0)
        while not stop.is_set():
            n = int(rng.integers(4, 12))
            image = nn.NdArray.from_numpy_array(rng.uniform(size=(3, n, n)).astype(np.float32))
            scaled = F.mul_scalar(image, float(rng.uniform(1, 2)))
            with nn.auto_forward():
                v = F.random_flip(nn.Variable.from_numpy_array(scaled.data), axes=(2,))
                v = F.pad(v[:, : n // 2], (1, 1, 1, 1))
                v = v * F.rand(shape=v.shape)
            loaded.append(float(v.d.sum()))
        return len(loaded)

    def main():
        try:
            return [train(mode, backend, 3, steps=12) for _ in range(4)]
        finally:
            stop.set()

    trained, count = at_once(main, load)
    assert trained == [alone] * 4 and count > 4
    assert np.isfinite(loaded).all()


@pytest.mark.parametrize("backend", ["cpu:float", "numpy:float"])
def test_threads_share_a_compiled_function(backend):
    with nn.context_scope(nn.Context([backend])):
        step = nn.compile(lambda x, y: F.sum(F.tanh(F.affine(x, y)) * F.sort(x)))

    def use(seed):
        rng = np.random.default_rng(seed)
        out = []
        with nn.context_scope(nn.Context([backend])):
            for i in range(60):
                n = 16 if i % 2 else 24
                x = nn.Variable.from_numpy_array(rng.normal(size=(n, n)).astype(np.float32))
                y = nn.Variable.from_numpy_array(rng.normal(size=(n, n)).astype(np.float32))
                out.append(step(x, y).d.tobytes())
        return out

    alone = [use(seed) for seed in range(3)]
    for _ in range(3):
        assert at_once(*[partial(use, seed) for seed in range(3)]) == alone


@pytest.mark.parametrize("backend", ["cpu:float", "numpy:float"])
def test_threads_share_the_parameters_of_a_trained_network(backend):
    nn.seed(0)
    context = nn.Context([backend])

    def predict(seed, calls=25):
        """Graphs of this thread's over parameters that all threads use."""
        rng = np.random.default_rng(seed)
        out = []
        with nn.context_scope(context), nn.no_grad():
            for n in (2, 3):
                x = nn.Variable((n, 16, 8, 8))
                h = F.relu(PF.convolution(x, 32, (3, 3), pad=(1, 1), name="conv"))
                y = PF.affine(PF.batch_normalization(h, batch_stat=False, name="bn"), 7, name="out")
                for _ in range(calls):
                    x.d = rng.normal(size=x.shape)
                    y.forward(clear_buffer=True)
                    out.append(y.d.tobytes())
                    nn.get_parameters()["conv/conv/W"].data.read("host")
        return out

    alone = [predict(seed) for seed in range(3)]
    for _ in range(4):
        assert at_once(*[partial(predict, seed) for seed in range(3)]) == alone


def test_attributes_that_come_and_go_in_many_threads():
    """More values than an op keeps, so that threads drop the oldest ones of its table at once."""
    x = nn.NdArray.from_numpy_array(np.ones(3, np.float32))

    def call(first):
        return [float(F.mul_scalar(x, float(i)).data[0]) for i in range(first, first + 1500)]

    expected = [list(range(first, first + 1500)) for first in (0, 700, 1400)]
    assert at_once(*[partial(call, first) for first in (0, 700, 1400)]) == expected


def test_a_profile_is_of_its_thread():
    inside, done = threading.Event(), threading.Event()
    x = nn.NdArray(4)

    def profiled():
        with nn.profile() as p:
            F.relu(x)
            inside.set()
            done.wait(30)
        return {e.op for e in p.events}

    def other():
        inside.wait(30)
        y = F.sigmoid(nn.Variable((3,)))
        y.forward()
        F.tanh(x)
        done.set()

    assert at_once(profiled, other) == [{"relu"}, None]


def test_a_warning_that_is_given_once_is_given_once(caplog):
    from nnl.core.arguments.warn_once import WARNED, warn_once

    text = "of many threads"
    at_once(*[partial(warn_once, text)] * 8)
    WARNED.discard(text)
    assert [r.message for r in caplog.records].count(text) == 1
