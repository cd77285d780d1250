# SPDX-License-Identifier: Apache-2.0
"""What is made for shapes stays within a bound, and what was used last stays."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from threading import Thread
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.ops.caches import LIMITS, Kernels, Plans


@pytest.fixture(autouse=True)
def _limits() -> Iterator[None]:
    before = {kind: limit.most for kind, limit in LIMITS.items()}
    yield
    for kind, most in before.items():
        LIMITS[kind].most = most


def of_length(n: int) -> nn.Variable:
    return nn.Variable.from_numpy_array(np.arange(n, dtype=np.float32))


def test_a_compiled_function_keeps_the_plans_that_were_used_last() -> None:
    nn.set_cache_size(plans=3)
    recorded = []

    @nn.compile
    def double(x: nn.Variable) -> nn.Variable:
        recorded.append(x.size)
        return x * 2

    for n in (1, 2, 3, 1, 4, 1, 3, 2):
        np.testing.assert_array_equal(double(of_length(n)).d, 2 * np.arange(n))
    assert recorded == [1, 2, 3, 4, 2]  # 2 went for 4
    with pytest.raises(ValueError, match="set_cache_size: plans is 0, wanted 1 or more"):
        nn.set_cache_size(plans=0)
    with pytest.raises(TypeError, match="set_cache_size: kernels is 'all', wanted an int"):
        nn.set_cache_size(kernels="all")  # type: ignore[arg-type]


def test_plans_of_other_flags_take_the_place_of_their_own() -> None:
    plans = Plans()
    for k in (1, 2, 1):
        plans.put("key", lambda k=k: k)
    assert plans.find("key") == 1 and len(plans) == 1


@pytest.mark.parametrize("most", [1, 2, 7, 8])
def test_kernels_stay_within_the_bound_and_those_in_use_stay(most: int) -> None:
    nn.set_cache_size(kernels=most)
    table = Kernels()
    for k in range(50):
        table.put(k, str(k))
        if most > 3:
            assert table.find(0) == "0"  # asked for all the time
        assert table.find(k) == str(k)
        assert len(table) + len(table.older) <= most
    assert table.find(1) is None


def test_define_by_run_with_many_shapes_is_right_and_bounded() -> None:
    nn.set_cache_size(kernels=4)
    attrs = F.tanh.default_attrs
    with nn.auto_forward():
        for n in [*range(1, 40), *range(1, 40)]:
            np.testing.assert_array_equal(F.tanh(of_length(n)).d, F.tanh(of_length(n)).d)
            np.testing.assert_allclose((of_length(n) * float(n)).d, n * np.arange(n))
    assert len(attrs.bound) + len(attrs.bound.older) <= 4


def test_threads_share_small_tables() -> None:
    nn.set_cache_size(kernels=2, plans=2)
    triple, wrong = nn.compile(lambda x: x * 3), []

    def work(seed: int) -> None:
        for n in np.random.default_rng(seed).integers(1, 9, 60):
            x = nn.NdArray.from_numpy_array(np.arange(n, dtype=np.float32))
            wrong.extend([v for v in (x * float(n)).data - n * np.arange(n) if v])
            wrong.extend([v for v in triple(of_length(int(n))).d - 3 * np.arange(n) if v])

    threads = [Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_profile_tells_what_was_made_and_dropped() -> None:
    nn.set_cache_size(plans=2)
    double = nn.compile(lambda x: x * 2)
    with nn.profile() as p:
        for n in range(5):
            double(of_length(n + 1))
    assert p.caches["plans"] == (5, 3)
    assert re.search(r"\n5 plans made, 3 dropped from tables of 2 \(nnl.set_cache_size\)", str(p))


MEMORY = """
import sys
import numpy as np, nnl as nn, nnl.functions as F, nnl.parametric_functions as PF, nnl.solvers as S

def network(x):
    return F.mean(PF.affine(F.tanh(PF.affine(x, 8, base_axis=2, name="a")), 4, base_axis=2) ** 2)

def step(x):
    loss = network(x)
    solver.zero_grad()
    loss.forward(clear_no_need_grad=True)
    loss.backward(clear_buffer=True)
    solver.update()

def memory():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))

network(nn.Variable((1, 4, 4)))
solver = S.Adam(1e-3)
solver.set_parameters(nn.get_parameters())
nn.set_cache_size(plans=16, kernels=16)
run = {"compiled": nn.compile, "dynamic": lambda f: f}[sys.argv[1]](step)
nn.set_auto_forward(sys.argv[1] == "dynamic")
for n in np.random.default_rng(0).permutation(np.arange(600) % 300 + 1):
    run(nn.Variable.from_numpy_array(np.ones((2, n, 4), np.float32)))
    if n == 150:
        print(memory())
print(memory())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("mode", ["compiled", "dynamic"])
def test_memory_stays_where_it_was_with_new_shapes(mode: str) -> None:
    call: Any = [sys.executable, "-c", MEMORY, mode]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr
    first, *_, last = (int(line) for line in done.stdout.split())
    assert last < 1.2 * first
