# SPDX-License-Identifier: Apache-2.0
"""What open sizes cost: a new shape, a known one, and an open program beside the closed one.

    python benchmarks/open_shapes.py [--bert LAYERS,WIDTH] [--only new|bert]

One run: ResNet-18 and a transformer of 12 layers, by turns, in C++ (through its binding)
and in Python. Times in ms but for those of known shapes, which are the difference to a closed
program, in us; of new shapes also the processor time.

Then 200 requests of 8 to 128 tokens to a BERT, in batches of 8 of nearly one length: padded to the
longest of the batch, all to 128, and the first in ONNX Runtime, where that and PyTorch are there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import nnl as nn
from nnl import models
from nnl.ext.native import library
from nnl.models.stack import Layer, Stack, Where, stack


def seconds(f, times=1):
    start = time.perf_counter()
    for _ in range(times):
        f()
    return (time.perf_counter() - start) / times


def both_seconds(f):
    """As they pass, and those of all processors."""
    start = time.perf_counter(), time.process_time()
    f()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def resnet(x):
    return models.resnet(x, 18, test=True)


def transformer(x):
    sizes = Stack(
        x.shape[2], 12, 4 * x.shape[2], (Layer(),) * 12, activation="gelu_tanh", joined=True
    )
    return stack(x, sizes, Where())


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
        new.append(both_seconds(model.prepare))
    found["cpp_new_shape_ms"] = [1e3 * t for t, _ in new]
    found["cpp_new_shape_processor_ms"] = [1e3 * t for _, t in new]
    program, fixed = nn.load_program(path), nn.load_program(closed)
    program.run(x=values[0])  # the weights are packed
    new = []
    for s in shapes[1:]:  # others: oneDNN still has the code for those of C++
        v = np.zeros((*s[:-2], s[-2] + 32, s[-1]), np.float32)
        first = both_seconds(lambda v=v: program.run(x=v))
        again = [both_seconds(lambda v=v: program.run(x=v)) for _ in range(3)]
        new.append([a - min(b) for a, b in zip(first, zip(*again, strict=True), strict=True)])
    found["python_new_shape_ms"] = [1e3 * t for t, _ in new]
    found["python_new_shape_processor_ms"] = [1e3 * t for _, t in new]
    pairs = []
    program.run(x=values[0]), fixed.run(x=values[0])
    for _ in range(15):
        pairs.append([seconds(lambda p=p: p.run(x=values[0])) for p in (program, fixed)])
    found["open_over_closed"] = statistics.median(a / b for a, b in pairs)
    found["python_known_shape_us"] = 1e6 * statistics.median(a - b for a, b in pairs)
    return found


# ---- requests of different lengths ----


def bert(layers, width):
    def net(ids, keep):
        sizes = {"layers": layers, "width": width, "heads": width // 64}
        return models.bert(ids, keep=keep, **sizes, test=True)[0]

    return net


def onnx_of_torch(layers, width, path):
    """A session of ONNX Runtime for the same layers, exported by PyTorch."""
    import onnxruntime
    import torch
    from transformers import BertConfig, BertModel

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            config = BertConfig(
                num_hidden_layers=layers, hidden_size=width, intermediate_size=4 * width,
                num_attention_heads=width // 64, attn_implementation="eager",
            )  # fmt: skip
            self.bert = BertModel(config, add_pooling_layer=False).eval()

        def forward(self, ids, keep):
            return self.bert(input_ids=ids, attention_mask=keep).last_hidden_state

    example = torch.ones((2, 9), dtype=torch.int64)
    axes = {0: "batch", 1: "tokens"}
    torch.onnx.export(
        Net(), (example, example), path, input_names=["ids", "keep"], output_names=["y"],
        dynamic_axes={"ids": axes, "keep": axes}, dynamo=False, opset_version=17,
    )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = library().threads()
    return onnxruntime.InferenceSession(path, options)


def ragged(layers, width, folder):
    rng = np.random.default_rng(0)
    requests = [rng.integers(1, 30000, n) for n in rng.integers(8, 129, 200)]
    by_length = sorted(requests, key=len)
    batches = [by_length[k : k + 8] for k in range(0, len(requests), 8)]

    def rows_of(batch, length, dtype):
        """Of one length, and which of their tokens are there."""
        ids, keep = np.zeros((2, len(batch), length), dtype)
        for k, row in enumerate(batch):
            ids[k, : len(row)], keep[k, : len(row)] = row, 1
        return ids, keep

    nn.clear_parameters()
    path, x = str(Path(folder, "bert.nnlp")), nn.Variable((1, 16))
    axes = ("batch", "tokens")
    nn.save_program(
        path, bert(layers, width), {"ids": x, "keep": nn.Variable((1, 16))},
        open={"ids": axes, "keep": axes}, ranges={"tokens": (1, 512)},
    )  # fmt: skip
    model = library().Model(path)

    def run(longest=None):
        for batch in batches:
            ids, keep = rows_of(batch, longest or len(batch[-1]), np.float32)
            model.give("ids", ids)
            model.give("keep", keep)
            model.execute()

    def run_session():
        for batch in batches:
            ids, keep = rows_of(batch, len(batch[-1]), np.int64)
            session.run(None, {"ids": ids, "keep": keep})

    ways = {"ragged": run, "padded": lambda: run(128)}
    try:
        session = onnx_of_torch(layers, width, str(Path(folder, "bert.onnx")))
        ways["onnxruntime"] = run_session
    except ImportError:
        pass
    taken = {name: [] for name in ways}
    for _ in range(3):
        for name, way in ways.items():
            taken[name].append(both_seconds(way))
    found = {"network": f"bert of {layers} layers, {width} wide", "requests": len(requests)}
    for k, unit in enumerate(("s", "processor_s")):
        found |= {f"{name}_{unit}": min(t[k] for t in times) for name, times in taken.items()}
    for name in ways:
        pairs = zip(taken["ragged"], taken[name], strict=True)
        found[f"ragged_over_{name}"] = statistics.median(a[0] / b[0] for a, b in pairs)
    del found["ragged_over_ragged"]
    return found


def main():
    pictures = [
        (1, 3, 224, 224),
        (1, 3, 192, 256),
        (2, 3, 160, 160),
        (1, 3, 320, 224),
        (1, 3, 96, 96),
    ]
    parser = argparse.ArgumentParser()
    parser.add_argument("--bert", default="12,768")
    parser.add_argument("--only", choices=("new", "bert"))
    given = parser.parse_args()
    tokens = [(1, 64, 768), (1, 80, 768), (1, 17, 768), (2, 48, 768), (1, 111, 768)]
    with tempfile.TemporaryDirectory() as folder:
        if given.only != "bert":
            axes = ("batch", None, "height", "width"), ("batch", "tokens", None)
            print(json.dumps(rows("resnet18", resnet, axes[0], pictures, folder)))
            print(json.dumps(rows("transformer", transformer, axes[1], tokens, folder)))
        if given.only != "new":
            print(json.dumps(ragged(*map(int, given.bert.split(",")), folder)))


if __name__ == "__main__":
    main()
