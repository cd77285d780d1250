# SPDX-License-Identifier: Apache-2.0
"""Plans in several threads, the number of threads, and what an exception leaves behind."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.ops.python_function import PythonFunction
from nnl.graph.execution.session import session_of
from tests.native.kernels import require_library


def in_threads(*calls: Callable[[], Any]) -> list[BaseException | None]:
    """Run the calls at once, each in a thread; what each of them raised."""
    errors: list[BaseException | None] = [None] * len(calls)

    def run(k: int) -> None:
        try:
            calls[k]()
        except BaseException as e:
            errors[k] = e

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive()
    return errors


def network(seed: int) -> tuple[nn.Variable, nn.Variable, nn.Variable]:
    """(input, weight, output) of a graph with oneDNN's kernels, loops and a step of numpy's."""
    rng = np.random.default_rng(seed)
    x = nn.Variable.from_numpy_array(rng.normal(size=(4, 8, 24, 24)).astype(np.float32))
    w = nn.Variable.from_numpy_array(rng.normal(size=(8, 8, 3, 3)).astype(np.float32))
    w.need_grad = True
    h = F.relu(F.convolution(x, w, pad=(1, 1)))
    h = F.max_pooling(h, (2, 2))
    return x, w, F.mean(F.sin(F.prune(F.reshape(h, (4, -1)), rate=0.5)) * 3)


def test_two_graphs_run_in_two_threads_at_once() -> None:
    graphs = [network(k) for k in range(2)]
    want = []
    for _, w, y in graphs:
        y.forward(clear_no_need_grad=True)
        y.backward(clear_buffer=True)
        want.append((y.d.copy(), w.g.copy()))

    def work(k: int) -> Callable[[], None]:
        def run() -> None:
            _, w, y = graphs[k]
            for _ in range(30):
                w.grad.zero()
                y.forward(clear_no_need_grad=True)
                y.backward(clear_buffer=True)
                np.testing.assert_array_equal(y.d, want[k][0])
                np.testing.assert_allclose(w.g, want[k][1], rtol=1e-5, atol=1e-7)

        return run

    assert in_threads(work(0), work(1)) == [None, None]


def test_kernels_on_arrays_run_in_two_threads_at_once() -> None:
    """One bound kernel serves both: its handles are used by one call at a time."""
    x = nn.NdArray.from_numpy_array(np.random.default_rng(0).normal(size=(64, 128)))
    w = nn.NdArray.from_numpy_array(np.random.default_rng(1).normal(size=(128, 96)))
    want = F.affine(x, w).data.copy()

    def work() -> None:
        for _ in range(50):
            np.testing.assert_array_equal(F.affine(x, w).data, want)

    assert in_threads(work, work) == [None, None]


class Slow(PythonFunction):
    """A step that waits, so that another thread meets the plan while it runs."""

    def __init__(self, entered: threading.Event) -> None:
        super().__init__()
        self.entered = entered

    @property
    def name(self) -> str:
        return "Slow"

    def min_outputs(self) -> int:
        return 1

    def setup_impl(self, inputs: Any, outputs: Any) -> None:
        outputs[0].reset_shape(inputs[0].shape, True)

    def forward_impl(self, inputs: Any, outputs: Any) -> None:
        self.entered.set()
        time.sleep(0.3)
        outputs[0].d = inputs[0].d


def test_one_graph_in_two_threads_at_once_is_an_error() -> None:
    require_library()
    entered = threading.Event()
    x = nn.Variable.from_numpy_array(np.ones((2, 2), np.float32))
    y = Slow(entered)(x) + 1

    def meet() -> None:
        assert entered.wait(30)
        y.forward()

    first, second = in_threads(y.forward, meet)
    assert first is None
    with pytest.raises(ValueError, match="this graph is running already"):
        raise second
    y.forward()
    assert (y.d == 2).all()


def test_set_threads_holds_in_every_thread() -> None:
    lib = require_library()
    before = lib.threads()
    seen: list[int] = []

    def look() -> None:
        graph = network(5)[2]
        graph.forward()
        seen.append(lib.threads_in_a_run())

    try:
        for n in (1, 2):
            nn.set_threads(n)
            look()
            assert in_threads(look) == [None]
    finally:
        nn.set_threads(before)
    assert seen == [1, 1, 2, 2]


def test_a_plan_made_for_fewer_threads_keeps_to_them() -> None:
    """Its scratch memory has room for as many as there were."""
    lib = require_library()
    before = lib.threads()
    try:
        nn.set_threads(1)
        _, w, y = network(6)
        y.forward()
        want = y.d.copy()
        nn.set_threads(3)
        y.forward()
        y.backward()
        np.testing.assert_allclose(y.d, want, rtol=1e-6)
    finally:
        nn.set_threads(before)


@pytest.mark.parametrize("n", [0, -1])
def test_set_threads_wants_at_least_one(n: int) -> None:
    with pytest.raises(ValueError, match=f"set_threads: n is {n}, wanted 1 or more"):
        nn.set_threads(n)


class Fails(Slow):
    """A step that raises what it is told to."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(threading.Event())
        self.error: BaseException | None = error

    def forward_impl(self, inputs: Any, outputs: Any) -> None:
        if self.error is not None:
            raise self.error
        outputs[0].d = inputs[0].d


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), ZeroDivisionError()])
def test_what_a_python_step_raises_names_it_and_leaves_the_plan_usable(error: Any) -> None:
    require_library()
    x = nn.Variable.from_numpy_array(np.ones((2, 2), np.float32))
    f = Fails(error)
    y = F.exp(f(x * 2) + 1)
    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            y.forward()
        assert raised.value is error
        assert raised.value.__notes__[-1].startswith("in Slow (test_threads.py:")
    f.error = None
    y.forward()
    np.testing.assert_allclose(y.d, np.exp(3), rtol=1e-6)


def test_what_a_native_kernel_raises_names_the_step_and_leaves_the_plan_usable() -> None:
    require_library()
    i = nn.Variable.from_numpy_array(np.array([[0], [7]]))
    w = nn.Variable.from_numpy_array(np.ones((4, 3), np.float32))
    y = F.embed(i, w) * 2
    with pytest.raises(ValueError, match=r"^embed \(test_threads.py:\d+\): "):
        y.forward()
    i.d = [[1], [2]]
    y.forward()
    assert (y.d == 2).all()


def test_more_inputs_than_a_kernel_call_takes_are_left_to_numpy() -> None:
    rng = np.random.default_rng(0)
    xs = [nn.NdArray.from_numpy_array(rng.normal(size=(3, 50)).astype("f")) for _ in range(70)]
    np.testing.assert_array_equal(
        F.concatenate(*xs, axis=0).data, np.concatenate([x.data for x in xs], axis=0)
    )


@pytest.mark.parametrize("step", ["native", "python"])
def test_a_plan_frees_its_memory_with_its_graph(step: str) -> None:
    """Through C++ no collector sees a circle of references."""
    require_library()
    x = nn.Variable.from_numpy_array(np.ones((20, 30), np.float32))
    h = F.softmax(x * 2, axis=1) if step == "native" else F.prune(x * 2, rate=0.5)
    y = h * 3
    y.forward(clear_buffer=True)
    (plan,) = [p.plan for p in session_of([y]).plans.values()]
    arrays = [weakref.ref(a) for a in plan.slots if a is not None and a.shape == (20, 30)]
    assert len(arrays) > 1
    del x, h, y, plan
    gc.collect()
    assert [r() for r in arrays if r() is not None] == []


STEP_OF_A_SMALL_NETWORK = """
import os
import re
import nnl as nn, nnl.functions as F, nnl.parametric_functions as PF
x = nn.Variable((2, 3, 8, 8), need_grad=True)
x.d = 1
before = len(os.listdir("/proc/self/task"))
y = F.relu(PF.batch_normalization(PF.convolution(x, 4, (3, 3))))
loss = F.mean(PF.affine(y, 3))
for _ in range(3):
    loss.forward(clear_no_need_grad=True)
    loss.backward(clear_buffer=True)
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads as Linux does")
def test_small_convolutions_wake_no_thread() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    run = [sys.executable, "-c", STEP_OF_A_SMALL_NETWORK]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


WHAT_OPENMP_READ = """
import os
import re
from nnl.ext.native import library
library()
print([os.environ.get(name) for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="GNU OpenMP, which GCC uses")
@pytest.mark.parametrize("policy", [None, "passive"])
def test_idle_threads_spin_for_microseconds_also_where_two_have_helpers(policy: Any) -> None:
    given = {"OMP_DISPLAY_ENV": "verbose"} | ({"OMP_WAIT_POLICY": policy} if policy else {})
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {k: v for k, v in os.environ.items() if k not in names} | given
    run = [sys.executable, "-c", WHAT_OPENMP_READ]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("the engine was built with another OpenMP")
    said = dict(re.findall(r"(\w+) = '(\w+)'", done.stderr))
    assert said["OMP_WAIT_POLICY"] == ("PASSIVE" if policy else "ACTIVE")
    if policy is None:
        assert said["GOMP_SPINCOUNT"] == "1000"
    left = [policy, None if policy else "1000"]  # the policy is for GNU OpenMP alone
    assert done.stdout.strip() == str(left)
