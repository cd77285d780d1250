# SPDX-License-Identifier: Apache-2.0
"""Processes that are forked, as data workers and web servers are, after they computed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.native.kernels import require_library

SCRIPT = """
import multiprocessing, sys, threading
import numpy as np
import nnl as nn, nnl.functions as F, nnl.parametric_functions as PF

def network(x):
    h = F.relu(PF.convolution(x, 16, (3, 3), name="c"))
    return F.sum(PF.affine(h, 256, name="f"), axis=1)

x = nn.Variable.from_numpy_array(np.ones((16, 3, 24, 24), np.float32))
y = network(x)
step = nn.compile(network)
nn.save_program("a.nnlp", {"y": network(x)}, {"x": x})
program = nn.load_program("a.nnlp")

def static():
    y.forward(clear_no_need_grad=True)
    y.backward(clear_buffer=True)
    return y.d

def dynamic():
    with nn.auto_forward():
        return network(x).d

def in_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(dynamic()))
    thread.start()
    thread.join()
    return found[0]

WAYS = [static, dynamic, in_a_thread, lambda: step(x).d, lambda: program.run(x=x.d)["y"]]

def all_ways(_):
    return [np.array(way()) for way in WAYS]

def in_children():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(all_ways, range(4))

def check(found, want):
    for ys in found:
        for got, y in zip(ys, want):
            np.testing.assert_allclose(got, y, rtol=1e-4)

before = in_children() if "before" in sys.argv else []
want = all_ways(0)
check(before, want)
nn.set_threads(3)
check([all_ways(0), *in_children()], want)

def in_a_grandchild(_):
    nn.set_threads(2)
    all_ways(0)
    multiprocessing.current_process().daemon = False
    return in_children()[0]

with multiprocessing.get_context("fork").Pool(1) as pool:
    check(pool.map(in_a_grandchild, [0]), want)
check([all_ways(0)], want)
print("done")
"""


@pytest.mark.parametrize("order", ["after", "before"])
def test_children_compute_whether_or_not_their_parent_has(order: str, tmp_path: object) -> None:
    require_library()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, order],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        cwd=str(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "done\n", done.stderr[-2000:]
