# SPDX-License-Identifier: Apache-2.0
"""One training step of one engine on a GPU, measured in a process of its own.

    python benchmarks/gpu_worker.py ENGINE ROW BATCH SECONDS

Prints one line of JSON: seconds per step (median over rounds), bytes of memory, notes. Data lie on
the device; loss scaling in float16 is dynamic on both sides; solvers are the fused ones; there is
no dropout.
"""

import json
import statistics
import sys
import time

import numpy as np
from gpu_rows import ROWS

WARM_UP, ROUNDS = 8, 7
LOSS_SCALE = 1024.0


def arrays(row, batch):
    rng = np.random.default_rng(0)
    if row.unit == "tokens":
        x = rng.integers(0, 30000, (batch, row.size))
        return x, rng.integers(0, 30000, (batch, row.size, 1))
    colors, classes = (1, 10) if row.model == "lenet" else (3, 1000)
    x = rng.normal(size=(batch, colors, row.size, row.size)).astype(np.float32)
    return x, rng.integers(0, classes, (batch, 1))


# ---- nnl ----


def nnl_step(engine, row, batch):
    """(step, wait, memory in bytes, notes), each a function."""
    import cupy

    import nnl as nn
    import nnl.functions as F
    import nnl.solvers as S
    from nnl import models
    from nnl.training.loss_scaling import DynamicLossScalingUpdater

    context = nn.ext_utils.get_extension_context("cudnn", type_config=row.types)
    nn.set_default_context(context)
    x_array, t_array = arrays(row, batch)
    x, t = nn.Variable(x_array.shape), nn.Variable(t_array.shape)
    x.d, t.d = x_array, t_array

    def loss_of(x, t):
        if row.model == "lenet":
            y = models.lenet(x)
        elif row.model == "resnet50":
            y = models.resnet(x)
        elif row.model == "gpt2":
            y = models.gpt2(x, dropout=0.0)
        else:
            y = models.bert_masked_language_model(x, dropout=0.0)
        return F.mean(F.softmax_cross_entropy(y, t, axis=len(y.shape) - 1))

    loss = loss_of(x, t)
    solver = S.Momentum(1e-4, 0.9) if row.unit == "images" else S.Adam(1e-5)
    solver.set_parameters(nn.get_parameters())
    if row.types == "half":
        step = DynamicLossScalingUpdater(solver, loss, scale=LOSS_SCALE).update
        if engine == "nnl-compile":
            step = nn.compile(step)
    elif engine == "nnl-compile":

        @nn.compile
        def step():
            y = loss_of(x, t)
            solver.zero_grad()
            y.backward()
            solver.update()
            return y

    else:

        def step():
            loss.forward(clear_no_need_grad=True)
            solver.zero_grad()
            loss.backward(clear_buffer=True)
            solver.update()

    free, total = cupy.cuda.runtime.memGetInfo()

    def memory():
        return total - cupy.cuda.runtime.memGetInfo()[0]

    def notes():
        if engine != "nnl":
            return ""
        from nnl.graph.execution.session import session_of

        plan = session_of([loss]).plans["train"].plan
        lines = plan.summary().splitlines()
        return "\n".join(lines[1 + len(plan.native_steps) :])

    stream = cupy.cuda.get_current_stream
    return step, lambda: stream().synchronize(), memory, notes


# ---- PyTorch ----


def torch_step(engine, row, batch):
    import torch
    import torch_models
    from torch.nn import functional as F

    torch.set_default_device("cuda")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    makers = {
        "lenet": torch_models.lenet,
        "resnet50": lambda: torch_models.resnet(50),
        "gpt2": torch_models.GPT2,
        "bert": torch_models.BertMaskedLanguageModel,
    }
    net = makers[row.model]()
    x, t = (torch.tensor(a) for a in arrays(row, batch))
    t = t.reshape(-1)
    if row.unit != "tokens":
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    parameters = list(net.parameters())
    if row.unit == "images":
        solver = torch.optim.SGD(parameters, 1e-4, 0.9, fused=True)
    else:
        solver = torch.optim.Adam(parameters, 1e-5, fused=True)
    half = {"float": None, "half": torch.float16, "bfloat16": torch.bfloat16}[row.types]
    scaler = torch.amp.GradScaler("cuda", LOSS_SCALE, enabled=row.types == "half")

    def loss_of(x, t):
        with torch.autocast("cuda", half or torch.bfloat16, enabled=half is not None):
            y = net(x)
            return F.cross_entropy(y.reshape(-1, y.shape[-1]), t)

    if engine == "torch-compile":
        loss_of = torch.compile(loss_of)
    elif engine == "torch-graphs":
        loss_of = torch.compile(loss_of, mode="reduce-overhead")

    def step():
        solver.zero_grad(set_to_none=True)
        scaler.scale(loss_of(x, t)).backward()
        scaler.step(solver)
        scaler.update()

    total = torch.cuda.mem_get_info()[1]
    return step, torch.cuda.synchronize, lambda: total - torch.cuda.mem_get_info()[0], str


# ---- measuring ----


def measure(step, wait, seconds):
    """Seconds per step: the median over rounds of some steps each."""
    for _ in range(WARM_UP):
        step()
    wait()
    start = time.perf_counter()
    step()
    wait()
    each = max(1, int(seconds / ROUNDS / max(time.perf_counter() - start, 1e-6)))
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(each):
            step()
        wait()
        times.append((time.perf_counter() - start) / each)
    return statistics.median(times)


def main():
    engine, row, batch, seconds = sys.argv[1], ROWS[sys.argv[2]], int(sys.argv[3]), sys.argv[4]
    make = torch_step if engine.startswith("torch") else nnl_step
    start = time.perf_counter()
    step, wait, memory, notes = make(engine, row, batch)
    took = measure(step, wait, float(seconds))
    found = {
        "seconds": took,
        "memory_bytes": memory(),
        "notes": notes(),
        "whole_s": time.perf_counter() - start,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
