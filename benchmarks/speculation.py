# SPDX-License-Identifier: Apache-2.0
"""Training steps with Python in the middle, co-executed: put off, ahead, and speculated.

    python benchmarks/speculation.py [--only lenet] [--work 0,2,10] [--steps 60]

The Python stands between the network and the loss, and the loss is read at the end of each step.
Medians in ms of steps that take turns in blocks of ten.
"""

import argparse
import statistics
import time

import numpy as np

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models.gpt2 import gpt2
from nnl.models.lenet import lenet
from nnl.models.resnet import resnet

SMALL = dict(vocabulary=1000, width=128, layers=4, heads=4, dropout=0.0)
WAYS = {"put off": {"ahead": 0}, "ahead": {"ahead": 1}, "speculated": {"speculate": True}}


def pictures(batch, colors, size, classes):
    rng = np.random.default_rng(0)
    while True:
        yield (
            rng.normal(size=(batch, colors, size, size)).astype(np.float32),
            rng.integers(0, classes, (batch, 1)),
        )


def texts(batch, length, words):
    rng = np.random.default_rng(0)
    while True:
        yield rng.integers(0, words, (batch, length)), rng.integers(0, words, (batch, length, 1))


ROWS = {  # network, data, solver
    "lenet": (lenet, lambda: pictures(64, 1, 28, 10), lambda: S.Adam(1e-4)),
    "gpt2": (lambda x: gpt2(x, **SMALL), lambda: texts(4, 64, 1000), lambda: S.Adam(1e-4)),
    "resnet18": (
        lambda x: resnet(x, 18),
        lambda: pictures(4, 3, 224, 1000),
        lambda: S.Momentum(1e-4, 0.9),
    ),
}


def busy(ms):
    """Python that counts, for so long."""
    end = time.perf_counter() + ms * 1e-3
    while time.perf_counter() < end:
        sum(range(100))


def build(name, way, ms):
    """(function that trains one step, its report)."""
    network, data, solver = ROWS[name]
    solver, batches, scope = solver(), data(), f"{name} {way} {ms}"

    def step(x, t):
        with nn.parameter_scope(scope):
            y = network(x)
            busy(ms)
            loss = F.mean(F.softmax_cross_entropy(y, t, axis=len(y.shape) - 1))
            if not solver.get_parameters():
                solver.set_parameters(nn.get_parameters())
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        solver.update()
        return loss

    f = nn.coexecute(step, **WAYS[way])

    def train():
        x, t = (nn.Variable.from_numpy_array(a) for a in next(batches))
        start = time.perf_counter()
        float(f(x, t).d)
        return (time.perf_counter() - start) * 1e3

    return train, f.report()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(ROWS), help="rows, with commas")
    parser.add_argument("--work", default="0,2,10", help="ms of Python in a step, with commas")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    nn.set_auto_forward(True)
    print("ms of Python  " + "  ".join(f"{way:>10}" for way in WAYS))
    for name in args.only.split(","):
        for ms in map(float, args.work.split(",")):
            nn.clear_parameters()
            built = {way: build(name, way, ms) for way in WAYS}
            times = {way: [] for way in WAYS}
            for _ in range(max(2, args.steps // 10)):
                for way, (train, _) in built.items():
                    times[way] += [train() for _ in range(10)][3:]
            medians = [statistics.median(t[7:]) for t in times.values()]
            report = built["speculated"][1]
            print(
                f"{name:8} {ms:4g}  " + "  ".join(f"{m:10.2f}" for m in medians),
                f"  {report.speculated} speculated, {report.cancelled} in vain, "
                f"{report.checkpointed / max(1, report.speculated) / 1e6:.2f} MB copied a step",
                flush=True,
            )


if __name__ == "__main__":
    main()
