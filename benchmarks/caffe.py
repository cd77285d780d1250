# SPDX-License-Identifier: Apache-2.0
"""Networks of Caffe beside the same networks in nnl's own style.

    python -m benchmarks.caffe [--json FILE]

Training steps (momentum, weight decay) of LeNet, CIFAR-10 quick and ResNet-18 from prototxt by
`Solver.step`, beside static graphs; building GoogLeNet; reading ResNet-50's caffemodel beside
reading its bytes. Processor time, medians of rounds in turns.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import nnl as nn
import nnl.dialects.caffe as caffe
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from benchmarks.machine import processor, versions
from nnl.converters.caffe.messages import parse_text
from nnl.models import resnet
from nnl.workspace import Workspace
from tests.dialects.caffe import networks

ROUNDS = 11
SOLVER = {"type": "SGD", "base_lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "max_iter": 1}


def lenet(x):
    h = F.max_pooling(PF.convolution(x, 20, (5, 5), name="c1"), (2, 2))
    h = F.max_pooling(PF.convolution(h, 50, (5, 5), name="c2"), (2, 2))
    return PF.affine(F.relu(PF.affine(h, 500, name="a1")), 10, name="a2")


def cifar10_quick(x):
    def conv(h, n, name):
        return PF.convolution(h, n, (5, 5), pad=(2, 2), name=name)

    def pool(f, h):
        return f(h, (3, 3), (2, 2), ignore_border=False)

    h = F.relu(pool(F.max_pooling, conv(x, 32, "c1")))
    h = pool(average, F.relu(conv(h, 32, "c2")))
    h = pool(average, F.relu(conv(h, 64, "c3")))
    return PF.affine(PF.affine(h, 64, name="a1"), 10, name="a2")


def average(h, *args, **options):
    return F.average_pooling(h, *args, including_pad=False, **options)


NETWORKS = {
    "LeNet, 64": (networks.lenet(64), (64, 1, 28, 28), lenet, 40),
    "CIFAR-10 quick, 100": (networks.cifar10_quick(100), (100, 3, 32, 32), cifar10_quick, 6),
    "ResNet-18, 8": (
        networks.resnet(18, 8, labels=True, filler='type: "msra"'),
        (8, 3, 224, 224),
        lambda x: resnet(x, 18),
        1,
    ),
}


def net_of(text):
    return parse_text("NetParameter", text, "benchmark")


def caffe_step(text, x, t):
    param = caffe.proto.caffe_pb2.SolverParameter(**SOLVER)
    param.net_param.CopyFrom(net_of(text))
    solver = caffe.get_solver(param)
    solver.net.blobs["data"].data[...], solver.net.blobs["label"].data[...] = x, t
    return lambda: solver.step(1)


def own_step(model, x, t):
    vx, vt = nn.Variable(x.shape), nn.Variable((len(x), 1))
    loss = F.mean(F.softmax_cross_entropy(model(vx), vt))
    solver = S.Momentum(0.01, 0.9)
    solver.set_parameters(nn.get_parameters())
    vx.d, vt.d = x, t[:, None]

    def step():
        loss.forward(clear_no_need_grad=True)
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        solver.weight_decay(5e-4)
        solver.update()
        return float(loss.d)  # Caffe's solver reads it as well

    return step


def in_turns(steps, times):
    """Medians of the seconds of processor time that each step takes."""
    found = {name: [] for name in steps}
    for step in steps.values():
        step()
        step()
    for _ in range(ROUNDS):
        for name, step in steps.items():
            start = time.process_time()
            for _ in range(times):
                step()
            found[name].append((time.process_time() - start) / times)
    return {name: statistics.median(each) for name, each in found.items()}


def measure():
    rng = np.random.default_rng(0)
    for name, (text, shape, model, times) in NETWORKS.items():
        x, t = rng.random(shape, np.float32), rng.integers(0, 10, shape[0])
        with Workspace({}), nn.parameter_scope("", {}):
            steps = {"caffe": caffe_step(text, x, t), "own": own_step(model, x, t)}
            each = in_turns(steps, times)
        yield name, {**each, "ratio": each["caffe"] / each["own"]}
    with Workspace({}):
        message = net_of(networks.googlenet())
        yield "build GoogLeNet", in_turns({"s": lambda: caffe.Net(message, caffe.TEST)}, 1)
    with Workspace({}), tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "resnet50.caffemodel")
        net = caffe.Net(net_of(networks.resnet(50)), caffe.TEST)
        net.save(path)
        buffer = bytearray(os.path.getsize(path))

        def read():
            with open(path, "rb", buffering=0) as file:
                file.readinto(buffer)

        each = in_turns({"copy_from": lambda: net.copy_from(path), "bytes": read}, 3)
        ratio = each["copy_from"] / each["bytes"]
        yield "load ResNet-50", {**each, "MB": len(buffer) / 1e6, "ratio": ratio}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there")
    args = parser.parse_args()
    rows = {}
    for name, row in measure():
        rows[name] = row
        print(f"{name:22}", ", ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)
    if args.json:
        found = {"processor": processor(), "versions": versions(), "rows": rows}
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
