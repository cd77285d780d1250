# SPDX-License-Identifier: Apache-2.0
"""What the engine itself costs: microseconds per operation, import time, a LeNet training step.

    python benchmarks/overhead.py [--json FILE]

Every peer that is installed is measured in the same run: PyTorch in this environment, NNabla 1.39
in the environment of `make interop`. Numbers are medians of rounds that alternate between the
engines, so that a busy moment of the machine hits all of them.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

LENGTH = 100  # operations in the chain
ROUNDS = 11

# The same text runs under nnl and NNabla; {nn} is the package. Prints one JSON object.
SCRIPT = """
import json, sys, time
import numpy as np
import {nn} as nn, {nn}.functions as F, {nn}.parametric_functions as PF, {nn}.solvers as S

def best(f, n):
    f()
    t = time.perf_counter()
    for _ in range(n):
        f()
    return (time.perf_counter() - t) / n

def chain():
    h = a
    for _ in range({length}):
        h = F.add2(h, b)
    return h

a, b = nn.Variable((4, 4), need_grad=True), nn.Variable((4, 4))
a.d = b.d = 0.01
out = {{}}

def dynamic_forward():
    with nn.auto_forward():
        return chain()

def dynamic_both():
    a.grad.zero()
    dynamic_forward().backward(clear_buffer=True)

static = chain()

def static_forward():
    static.forward(clear_no_need_grad=True)

def static_both():
    a.grad.zero()
    static.forward(clear_no_need_grad=True)
    static.backward(clear_buffer=True)

for name in ("dynamic_forward", "dynamic_both", "static_forward", "static_both"):
    out[name] = best(globals()[name], 30) / {length} * 1e6

def lenet(x):
    h = PF.convolution(x, 16, (5, 5), name="conv1")
    h = F.relu(F.max_pooling(h, (2, 2)))
    h = PF.convolution(h, 16, (5, 5), name="conv2")
    h = F.relu(F.max_pooling(h, (2, 2)))
    h = F.relu(PF.affine(h, 50, name="affine3"))
    return PF.affine(h, 10, name="affine4")

x, t = nn.Variable((64, 1, 28, 28)), nn.Variable((64, 1))
x.d = np.random.RandomState(0).rand(*x.shape)
t.d = np.random.RandomState(1).randint(0, 10, t.shape)
loss = F.mean(F.softmax_cross_entropy(lenet(x), t))
solver = S.Adam(1e-3)
solver.set_parameters(nn.get_parameters())

def lenet_static():
    loss.forward(clear_no_need_grad=True)
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    solver.update()

def lenet_dynamic():
    with nn.auto_forward():
        y = F.mean(F.softmax_cross_entropy(lenet(x), t))
    solver.zero_grad()
    y.backward(clear_buffer=True)
    solver.update()

out["lenet_static"] = best(lenet_static, 10) * 1e3
out["lenet_dynamic"] = best(lenet_dynamic, 10) * 1e3
if hasattr(nn, "compile"):
    def step():
        y = F.mean(F.softmax_cross_entropy(lenet(x), t))
        solver.zero_grad()
        y.backward()
        solver.update()
        return y
    out["lenet_compiled"] = best(nn.compile(step), 10) * 1e3
print(json.dumps(out))
"""

TORCH = """
import json, time
import torch
from torch import nn

def best(f, n):
    f()
    t = time.perf_counter()
    for _ in range(n):
        f()
    return (time.perf_counter() - t) / n

a, b = torch.full((4, 4), 0.01, requires_grad=True), torch.full((4, 4), 0.01)
out = {{}}

def chain():
    h = a
    for _ in range({length}):
        h = h + b
    return h

def both():
    a.grad = None
    chain().sum().backward()

out["dynamic_forward"] = best(chain, 30) / {length} * 1e6
out["dynamic_both"] = best(both, 30) / {length} * 1e6
model = nn.Sequential(
    nn.Conv2d(1, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(16, 16, 5), nn.MaxPool2d(2),
    nn.ReLU(), nn.Flatten(), nn.Linear(256, 50), nn.ReLU(), nn.Linear(50, 10))
solver = torch.optim.Adam(model.parameters(), 1e-3)
x, t = torch.rand(64, 1, 28, 28), torch.randint(0, 10, (64,))

def step():
    solver.zero_grad()
    nn.functional.cross_entropy(model(x), t).backward()
    solver.step()

out["lenet_dynamic"] = best(step, 10) * 1e3
print(json.dumps(out))
"""

ROWS = {
    "dynamic_forward": "100-op chain (4,4), dynamic, forward, us per op",
    "dynamic_both": "100-op chain (4,4), dynamic, forward and backward, us per op",
    "static_forward": "100-op chain (4,4), static, forward, us per op",
    "static_both": "100-op chain (4,4), static, forward and backward, us per op",
    "lenet_dynamic": "LeNet batch 64 training step, Adam, dynamic, ms",
    "lenet_static": "LeNet batch 64 training step, Adam, static, ms",
    "lenet_compiled": "LeNet batch 64 training step, Adam, nnl.compile, ms",
    "import": "import, s",
}


def engines():
    """Name -> (python, script, import statement) of nnl and every peer that can be had."""
    root = Path(__file__).resolve().parent.parent
    found = {"nnl": (sys.executable, SCRIPT.format(nn="nnl", length=LENGTH), "import nnl")}
    interop = os.environ.get("NNL_INTEROP_PYTHON", str(root / ".venv-interop/bin/python"))
    if Path(interop).exists():
        script = SCRIPT.format(nn="nnabla", length=LENGTH)
        found["NNabla 1.39"] = (interop, script, "import nnabla")
    probe = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True)
    if probe.returncode == 0:
        found["PyTorch"] = (sys.executable, TORCH.format(length=LENGTH), "import torch")
    return found


def run(python, code):
    """Output of a script in a process of its own, and its wall time in seconds."""
    start = time.perf_counter()
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{python} failed:\n{done.stderr}")
    return done.stdout, time.perf_counter() - start


def processor():
    """The processor's name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def measure():
    found = engines()
    seen = {name: {row: [] for row in ROWS} for name in found}
    for i in range(ROUNDS):
        print(f"round {i + 1} of {ROUNDS}", file=sys.stderr)
        for name, (python, script, statement) in found.items():
            out, _ = run(python, script)
            for row, value in json.loads(out.splitlines()[-1]).items():
                seen[name][row].append(value)
            code = (
                f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
            )
            seen[name]["import"].append(float(run(python, code)[0].splitlines()[-1]))
    return {
        name: {row: statistics.median(v) for row, v in rows.items() if v}
        for name, rows in seen.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    args = parser.parse_args()
    results = measure()
    width = max(len(text) for text in ROWS.values())
    print(f"{'':{width}} " + "".join(f"{name:>14}" for name in results))
    for row, text in ROWS.items():
        cells = [f"{r[row]:14.3f}" if row in r else f"{'-':>14}" for r in results.values()]
        print(f"{text:{width}} {''.join(cells)}")
    if args.json:
        machine = {
            "processor": processor(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "date": time.strftime("%Y-%m-%d"),
            "rounds": ROUNDS,
            "peers": [n for n in results if n != "nnl"],
        }
        args.json.write_text(json.dumps({"machine": machine, "median": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
