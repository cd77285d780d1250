# SPDX-License-Identifier: Apache-2.0
"""Networks for inference in other formats: how long converting takes, how large files are, how far
their results are from nnl's, and how fast they run beside the native engine.

    python benchmarks/deployment.py [--networks lenet,resnet18] [--targets CSRC,NNB] [--json FILE]

A batch of one image or text on one thread. `ms` is the shortest processor time of several runs, of
nnl in the first line of a network; it is missing where TIMED has no way to run the format, and the
difference where the format's runtime is not installed. Where NNL_TENSORFLOW_PYTHON names a Python
with TensorFlow, `TFLITE of TensorFlow` is the file that its own converter makes of the network.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything starts threads

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import processor, versions

import nnl as nn
from nnl import models
from nnl.converters.csrc.names import identifier
from nnl.converters.formats import FORMATS, WriteOptions
from nnl.converters.networks.lowering import CannotLower
from nnl.converters.networks.model import Model, Network
from nnl.converters.runtimes.others import in_litert
from nnl.converters.runtimes.tensorflow import python_with_tensorflow

Row = dict[str, Any]
FLAGS = ("-std=c99", "-O3", "-march=native", "-ffp-contract=fast")


def image(maps: int, size: int) -> nn.Variable:
    """Random pixels."""
    x = np.random.default_rng(0).normal(size=(1, maps, size, size))
    return nn.Variable.from_numpy_array(x.astype(np.float32))


def text(length: int) -> nn.Variable:
    """Random tokens."""
    return nn.Variable.from_numpy_array(np.random.default_rng(0).integers(0, 1000, (1, length)))


NETWORKS: dict[str, tuple[Callable[[], nn.Variable], Callable[[nn.Variable], Any]]] = {
    "lenet": (lambda: image(1, 28), models.lenet),
    "resnet18": (lambda: image(3, 224), lambda x: models.resnet(x, depth=18, test=True)),
    "resnet50": (lambda: image(3, 224), lambda x: models.resnet(x, depth=50, test=True)),
    "mobilenet_v3": (lambda: image(3, 224), lambda x: models.mobilenet_v3(x, test=True)),
    "bert": (
        lambda: text(32),
        lambda x: models.bert(x, vocabulary=1000, width=128, layers=2, heads=2, test=True)[1],
    ),
}


class Built(Model):
    """A network that is there already, where files are converted."""

    where = "the network"

    def __init__(self, network: Network) -> None:
        self._network = network

    def network(self, batch_size: int | None = None, inference: bool = False) -> Network:
        return self._network


def built(name: str) -> Network:
    """A network with means and variances as after training: of all sizes."""
    nn.clear_parameters()
    make, network = NETWORKS[name]
    x = make()
    with nn.context_scope(nn.Context(["cpu:float"])):
        y = network(x)
    for v in nn.get_parameters(grad_only=False).values():
        if v.size > 1 and not np.ptp(v.d):
            v.d = 0.5 + np.random.default_rng(0).random(v.shape)
    return Network(name, {"x": x}, {"y": y})


def shortest(run: Callable[[], object], rounds: int) -> float:
    """Milliseconds of processor time."""
    run()
    found = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return min(found) * 1e3


def c_milliseconds(folder: Path, network: Network, rounds: int) -> float:
    """The same of a folder of C."""
    name = identifier(network.name, "network")
    (folder / "example.c").write_text(
        f"""#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <time.h>
#include "network.h"
static float x[{name}_input_x_size], y[{name}_output_y_size];
int main(void)
{{
    const float *inputs[] = {{x}};
    float *outputs[] = {{y}};
    double best = 1e9;
    if (fread(x, sizeof *x, {name}_input_x_size, stdin) != {name}_input_x_size ||
        {name}_load("weights.bin"))
        return 1;
    for (int i = 0; i < {rounds + 1}; i++) {{
        struct timespec a, b;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
        {name}_run(inputs, outputs);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
        const double ms = 1e3 * (b.tv_sec - a.tv_sec) + 1e-6 * (b.tv_nsec - a.tv_nsec);
        best = ms < best ? ms : best;
    }}
    printf("%g", best);
    return 0;
}}
"""
    )
    command = [os.environ.get("CC", "cc"), *FLAGS, "-o", "timed", "example.c", "network.c", "-lm"]
    subprocess.run(command, cwd=folder, check=True)
    x = network.inputs["x"].d.astype(np.float32).tobytes()
    timed = subprocess.run([folder / "timed"], cwd=folder, input=x, capture_output=True, check=True)
    return float(timed.stdout)


def litert_milliseconds(file: Path, network: Network, rounds: int) -> float:
    """The same of a .tflite file."""
    runtime = in_litert(str(file), file.name)
    assert runtime is not None
    values = {"x": network.inputs["x"].d}
    return shortest(lambda: runtime.run(values), rounds)


TIMED = {"CSRC": c_milliseconds, "TFLITE": litert_milliseconds}
THEIRS = """
import sys
import tensorflow as tf
converter = tf.lite.TFLiteConverter.from_saved_model(sys.argv[1])
open(sys.argv[2], "wb").write(converter.convert())
"""


def row(network: Network, target: str, want: Any, folder: Path, rounds: int) -> Row:
    """Convert a network, and run the result."""
    path = folder / f"net{(*FORMATS[target].extensions, '')[0]}"
    start = time.perf_counter()
    try:
        written(network, target, path)
    except CannotLower as error:
        return {"refused": str(error).splitlines()[1:]}
    found = {"convert s": round(time.perf_counter() - start, 2)}
    return found | looked_at(network, target, want, path, rounds)


def row_of_tensorflow(network: Network, python: str, want: Any, folder: Path, rounds: int) -> Row:
    """The same of the .tflite file that TensorFlow makes of nnl's SavedModel."""
    saved, path = folder / "saved", folder / "net.tflite"
    written(network, "SAVED_MODEL", saved)
    subprocess.run([python, "-c", THEIRS, saved, path], check=True, capture_output=True)
    return looked_at(network, "TFLITE", want, path, rounds)


def written(network: Network, target: str, path: Path) -> None:
    write = FORMATS[target].write
    assert write is not None
    write(Built(network), str(path), WriteOptions(1, weights_file=True))


def looked_at(network: Network, target: str, want: Any, path: Path, rounds: int) -> Row:
    """Size, difference and time of what a format's runtime runs."""
    files = [f for f in path.rglob("*") if f.is_file()] if path.is_dir() else [path]
    found: Row = {"MB": round(sum(f.stat().st_size for f in files) / 1e6, 2)}
    open_runtime = FORMATS[target].runtime
    runtime = None if open_runtime is None else open_runtime(str(path), target)
    if runtime is not None:
        (got,) = runtime.run({"x": network.inputs["x"].d})
        found["difference"] = float(np.abs(got.reshape(-1) - want).max() / np.abs(want).max())
    if target in TIMED and runtime is not None:
        found["ms"] = round(TIMED[target](path, network, rounds), 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--targets", default="CSRC,NNB,TFLITE,TF_PB,ONNX")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the rows there as well")
    args = parser.parse_args()
    rows: dict[str, dict[str, Row]] = {}
    columns = ("convert s", "MB", "difference", "ms")
    python = python_with_tensorflow()
    print(f"{'':34}" + "".join(f"{c:>12}" for c in columns))
    for name in args.networks.split(","):
        network = built(name)
        y = network.outputs["y"]
        rows[name] = {"nnl": {"ms": round(shortest(lambda y=y: y.forward(), args.rounds), 3)}}
        want = y.d.reshape(-1).copy()
        for target in args.targets.split(","):
            with tempfile.TemporaryDirectory() as folder:
                rows[name][target] = row(network, target, want, Path(folder), args.rounds)
            if target == "TFLITE" and python is not None:
                with tempfile.TemporaryDirectory() as folder:
                    rows[name]["TFLITE of TensorFlow"] = row_of_tensorflow(
                        network, python, want, Path(folder), args.rounds
                    )
        for target, found in rows[name].items():
            cells = [f"{found[c]:12.3g}" if c in found else f"{'':12}" for c in columns]
            print(
                f"{name + ', ' + target:34}" + "".join(cells) + " ".join(found.get("refused", []))
            )
    if args.json:
        machine = {"processor": processor(), "cores": os.cpu_count(), "versions": versions()}
        machine |= {"date": time.strftime("%Y-%m-%d"), "flags": " ".join(FLAGS)}
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
