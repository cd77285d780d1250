# SPDX-License-Identifier: Apache-2.0
"""LeNet's step on an OpenCL device beside the CPU's engine, what kernels take to compile, and the
device's own limits: a plain copy and a plain product.

    python benchmarks/opencl.py [--steps 10] [--batch-size 64]

Times are seconds of the processor where the device is one: other work beside it counts less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.ext.opencl import device_of
from nnl.ext_utils import get_extension_context


def step_of(ctx: nn.Context, batch: int) -> Callable[[], float]:
    """A training step of LeNet on random images, which returns the loss."""
    nn.clear_parameters()
    nn.seed(1)
    rng = np.random.default_rng(0)
    with nn.context_scope(ctx):
        x, t = nn.Variable((batch, 1, 28, 28)), nn.Variable((batch, 1))
        h = F.relu(F.max_pooling(PF.convolution(x, 16, (5, 5), name="c1"), (2, 2)))
        h = F.relu(F.max_pooling(PF.convolution(h, 16, (5, 5), name="c2"), (2, 2)))
        h = PF.affine(F.relu(PF.affine(h, 50, name="a3")), 10, name="a4")
        loss = F.mean(F.softmax_cross_entropy(h, t))
        solver = S.Adam(1e-3)
        solver.set_parameters(nn.get_parameters())

    def step() -> float:
        with nn.context_scope(ctx):
            x.d, t.d = rng.normal(size=x.shape), rng.integers(0, 10, t.shape)
            loss.forward(clear_no_need_grad=True)
            solver.zero_grad()
            loss.backward(clear_buffer=True)
            solver.update()
            return float(loss.d)

    return step


def seconds(work: Callable[[], Any], clock: Callable[[], float], count: int = 1) -> float:
    """What one of `count` calls takes."""
    start = clock()
    for _ in range(count):
        work()
    return (clock() - start) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    device = device_of(0)
    clock = time.process_time if device.on_host else time.perf_counter
    print(device.info)

    n = 1 << 22
    a, b = device.empty((n,), np.float32), device.empty((n,), np.float32)

    def copy() -> None:
        device.copy(a.address, b.address, 4 * n)
        device.synchronize()

    copy()
    print(f"copy     {8 * n / seconds(copy, clock, 10) / 1e9:7.1f} GB/s")
    with nn.context_scope(get_extension_context("opencl")), nn.auto_forward():
        x, w = (nn.Variable.from_numpy_array(np.ones((512, 512), np.float32)) for _ in range(2))

        def product() -> None:
            F.affine(x, w)
            device.synchronize()

        product()
        print(f"product  {2 * 512**3 / seconds(product, clock, 10) / 1e9:7.1f} Gflop/s")
    for name in ("cpu", "opencl"):
        step = step_of(get_extension_context(name), args.batch_size)
        first = seconds(step, clock) + seconds(step, clock)
        print(f"{name:8} {seconds(step, clock, args.steps) * 1e3:7.1f} ms a step, "
              f"{first:.2f} s the first two")  # fmt: skip


if __name__ == "__main__":
    main()
