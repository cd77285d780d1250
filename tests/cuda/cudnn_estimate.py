# SPDX-License-Identifier: Apache-2.0
"""What each step of a training plan costs at the least on an H200: the table in docs/cudnn.md.

    python -m tests.cuda.cudnn_estimate resnet50 bfloat16 256 [--steps | --measure]

Plans are made for a device that is not there, with the real cuDNN asked for engines, and not run.
A step takes as long as memory moves its operands once, or tensor cores multiply, and 2 us. With
--measure, for which there must be a GPU, the graphs of cuDNN and cuBLAS run one by one, and what
they take stands behind that.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl import models
from nnl.ext.cuda import TRAITS
from nnl.ext.cuda import setups as registered
from nnl.ext.cuda.cublas import Product
from nnl.ext.cuda.cudnn.cache import PlanCache
from nnl.ext.cuda.cudnn.run import CopyStep, WorkKernel
from nnl.ext.cuda.cudnn.setups import ENGINES, measure
from nnl.ext.cuda.cudnn.spec import Array, Graph
from nnl.ext.device.executor import DevicePlan
from nnl.ext.device.library import DeviceLibrary, make_backend, operand
from nnl.ext.library import cache_folder
from tests.cuda.cudnn_engines import engine, no_driver
from tests.cuda.strict_device import StrictDevice

BYTES_PER_S, FLOPS_PER_S, LAUNCH_S = 4.3e12, 790e12, 2e-6
LENGTHS = {"gpt2": 1024, "bert": 512}
RUNS = 10  # of a graph that is measured
Cost = tuple[str, float, float, Any]  # what, bytes, floating-point operations, what runs it
plans: list[tuple[str, Any]] = []  # name and kernel of all steps


class NoMemory(StrictDevice):
    """A device whose memory is addresses and nothing else."""

    def allocate(self, nbytes: int) -> Any:
        memory = type("Memory", (), {})()
        memory.address = 1 << 44
        return memory


class Library(DeviceLibrary):
    """Writes down what kernels were asked for."""

    def kernel(self, op: str, attrs: Any, ins: Any, outs: Any) -> Any:
        found = super().kernel(op, attrs, ins, outs)
        if found is not None:
            found.asked = op, [x for x in map(operand, (*ins, *outs)) if x is not None]
        return found


def add(self: Any, name: str, kernel: Any, ins: Any, outs: Any, workspace: int) -> None:
    plans.append((name, kernel))


def context(types: str, gpu: bool) -> Any:
    """Plans of this context are made, and running them does nothing."""
    if not gpu:
        no_driver()
        made = engine(PlanCache(cache_folder("cudnn")))
        ENGINES.current = lambda: made
    DevicePlan.add, DevicePlan.run = add, lambda self, begin, end: None
    from nnl.core.settings.context import BACKENDS, SPACES

    device = NoMemory("strict:9")
    backend = make_backend("estimate", device, TRAITS, registered)
    for space in (device.name, f"{device.name} channels-last"):
        if space in SPACES:
            SPACES[space]._library = Library(device, TRAITS, registered)
    BACKENDS["estimate"] = lambda device_id: (backend,)
    return nn.Context([f"estimate:{types}"])


def train(model: str, batch: int) -> None:
    length = LENGTHS.get(model)
    if length is None:
        x, t = nn.Variable((batch, 3, 224, 224)), nn.Variable((batch, 1))
        y = models.resnet(x)
    else:
        x, t = nn.Variable((batch, length)), nn.Variable((batch, length, 1))
        make = models.gpt2 if model == "gpt2" else models.bert_masked_language_model
        y = make(x, dropout=0.0)
    loss = F.mean(F.softmax_cross_entropy(y, t, axis=len(y.shape) - 1))
    solver = S.Momentum(1e-4, 0.9) if length is None else S.Adam(1e-5)
    solver.set_parameters(nn.get_parameters())
    loss.forward(clear_no_need_grad=True)
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    solver.update()


def nbytes(a: Array) -> int:
    return math.prod(a.dim) * (4 if a.dtype == "float32" else 2)


def flops(graph: Graph) -> float:
    total, arrays = 0.0, graph.by_uid
    for node in graph.nodes:
        at = {port: arrays[uid].dim for port, uid in (*node.ins, *node.outs)}
        if node.op.startswith("conv"):
            w = at.get("weight") or at.get("filter") or at["DW"]
            total += 2.0 * math.prod(at.get("Y") or at["loss"]) * math.prod(w[1:])
        elif node.op == "matmul":
            total += 2.0 * math.prod(at["C"]) * at["A"][-1]
        elif node.op.startswith("sdpa"):
            part = 1.0 if node.attr("causal") is None else 0.5
            products = 2 if node.op == "sdpa" else 5
            total += 2.0 * products * part * math.prod(at["q"]) * at["k"][2]
    return total


def costs(name: str, kernel: Any) -> Iterator[Cost]:
    """Of all launches of a step."""
    op, operands = getattr(kernel, "asked", (name, []))
    if not isinstance(kernel, WorkKernel):
        yield f"{op}: {type(kernel).__name__}", sum(x.nbytes for x in operands), 0.0, None
        return
    for step in kernel.steps:
        moved = sum(map(nbytes, step.operands))
        if isinstance(step, CopyStep):
            yield f"{op}: a copy", moved, 0.0, None
            continue
        what = " + ".join(node.op for node in step.graph.nodes)
        library = "cuBLAS" if isinstance(step, Product) else "cuDNN"
        yield f"{op}: {library}, {what}", moved, flops(step.graph), step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=("resnet50", "gpt2", "bert"))
    parser.add_argument("types", choices=("bfloat16", "half", "float"))
    parser.add_argument("batch", type=int)
    parser.add_argument("--steps", action="store_true", help="all steps, not sums over equal ones")
    parser.add_argument("--measure", action="store_true", help="also run the graphs, on a GPU")
    given = parser.parse_args()
    with nn.context_scope(context(given.types, given.measure)):
        train(given.model, given.batch)
    times, counts, took = Counter[str](), Counter[str](), Counter[str]()
    measured: dict[Graph, float] = {}
    for name, kernel in plans:
        for what, moved, multiplied, plan in costs(name, kernel):
            seconds = max(moved / BYTES_PER_S, multiplied / FLOPS_PER_S) + LAUNCH_S
            times[what] += seconds
            counts[what] += 1
            if given.steps:
                print(f"{1e6 * seconds:9.1f} us {moved / 1e6:9.1f} MB {what}")
            if given.measure and plan is not None:
                if plan.graph not in measured:
                    measured[plan.graph] = measure(plan, RUNS)
                took[what] += measured[plan.graph]
    print(f"{1e3 * sum(times.values()):.2f} ms in {sum(counts.values())} launches")
    for what, seconds in times.most_common():
        ran = f"{1e6 * took[what]:9.1f} us, {took[what] / seconds:4.1f} times" if took[what] else ""
        print(f"{1e6 * seconds:9.1f} us {ran} {counts[what]:4d} {what}")


if __name__ == "__main__":
    main()
