# SPDX-License-Identifier: Apache-2.0
"""What open sizes cost: a new shape, a known one, and an open program beside the closed one.

    python benchmarks/open_shapes.py

One run: ResNet-18 and a transformer of 12 layers, by turns, in C++ (through its binding)
and in Python. Times in ms but for those of known shapes, which are the difference to a closed
program, in us.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import nnl as nn
import nnl.functions as F
from nnl import models
from nnl.ext.native import library
from nnl.models.transformer import feed_forward, normalized, self_attention


def seconds(f, times=1):
    start = time.perf_counter()
    for _ in range(times):
        f()
    return (time.perf_counter() - start) / times


def resnet(x):
    return models.resnet(x, 18, test=True)


def transformer(x):
    for k in range(12):
        with nn.parameter_scope(f"layer{k}"):
            x = x + self_attention(normalized(x, 1e-5, "before"), 12, None, 0.0, "attention")
            x = x + feed_forward(normalized(x, 1e-5, "after"), F.gelu, "wide")
    return x


def rows(name, net, axes, shapes, folder):
    nn.clear_parameters()
    x, path = nn.Variable(shapes[0]), str(Path(folder, f"{name}.nnlp"))
    record = seconds(lambda: nn.save_program(path, net, {"x": x}, open={"x": axes}))
    values = [np.random.default_rng(0).normal(size=s).astype(np.float32) for s in shapes]
    closed = str(Path(folder, f"{name}_closed.nnlp"))
    nn.save_program(closed, net(x), {"x": x})
    found = {"network": name, "record_ms": 1e3 * record}
    lib = library()
    model = lib.Model(path)
    new = []
    for v in values[1:]:
        model.resize("x", v.shape)
        new.append(seconds(model.prepare))
    found["cpp_new_shape_ms"] = [1e3 * t for t in new]
    program, fixed = nn.load_program(path), nn.load_program(closed)
    new = []
    for v in values[1:]:
        first = seconds(lambda v=v: program.run(x=v))
        new.append(first - min(seconds(lambda v=v: program.run(x=v)) for _ in range(3)))
    found["python_new_shape_ms"] = [1e3 * t for t in new]
    pairs = []
    program.run(x=values[0]), fixed.run(x=values[0])
    for _ in range(15):
        pairs.append([seconds(lambda p=p: p.run(x=values[0])) for p in (program, fixed)])
    found["open_over_closed"] = statistics.median(a / b for a, b in pairs)
    found["python_known_shape_us"] = 1e6 * statistics.median(a - b for a, b in pairs)
    return found


def main():
    pictures = [
        (1, 3, 224, 224),
        (1, 3, 192, 256),
        (2, 3, 160, 160),
        (1, 3, 320, 224),
        (1, 3, 96, 96),
    ]
    tokens = [(1, 64, 768), (1, 80, 768), (1, 17, 768), (2, 48, 768), (1, 111, 768)]
    with tempfile.TemporaryDirectory() as folder:
        for found in (
            rows("resnet18", resnet, ("batch", None, "height", "width"), pictures, folder),
            rows("transformer", transformer, ("batch", "tokens", None), tokens, folder),
        ):
            print(json.dumps(found))


if __name__ == "__main__":
    main()
