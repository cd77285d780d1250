# SPDX-License-Identifier: Apache-2.0
"""Networks in 8 bits beside the same in floats, and both beside ONNX Runtime, on one thread.

    python benchmarks/int8.py [--models resnet50,mobilenet_v3,bert] [--rounds N] [--json FILE]
    python benchmarks/int8.py --epochs 30  # accuracies of a network that is trained before

Weights are random. The file in 8 bits is made by ONNX Runtime's quantize_static (QDQ, uint8 values,
a scale for each map; one for each layer of BERT, where it takes no others), and both engines run
that file. `ours` is what `nn.quantize` makes of the same network. Every round calls all of them by
turns, each once before it is timed, and counts the time of the processor; ratios are medians of the
ratios of a round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

import nnl as nn
import nnl.functions as F
import nnl.models as M
import nnl.solvers as S
from nnl.converters.csrc import writer as csrc_writer
from nnl.converters.networks.model import Network
from nnl.converters.onnx import load, save
from nnl.converters.runtimes.compiled_c import compiled
from nnl.converters.runtimes.others import in_litert
from nnl.converters.tflite import writer as tflite_writer
from nnl.models.bert import bert

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "digits"))
from data import load_digits_28x28  # noqa: E402

RNG = np.random.default_rng(0)
MODELS = ("resnet50", "mobilenet_v3", "bert")


def network(name: str) -> tuple[nn.Variable, nn.Variable]:
    """Input and output, with weights that keep numbers in range."""
    nn.clear_parameters()
    nn.seed(0)
    if name == "bert":
        x = nn.Variable((1, 128))
        return x, bert(x, test=True)[0]
    x = nn.Variable((1, 3, 224, 224))
    y = M.resnet(x, 50, test=True) if name == "resnet50" else M.mobilenet_v3(x, test=True)
    for key, v in nn.get_parameters(grad_only=False).items():
        if key.endswith("var"):
            v.d = RNG.uniform(0.5, 1.5, v.shape)
        if key.endswith("mean"):
            v.d = 0.1 * RNG.normal(size=v.shape)
    return x, y


def sample(name: str, kind: Any) -> Any:
    if name == "bert":
        return RNG.integers(0, 30000, (1, 128)).astype(kind)
    return RNG.normal(size=(1, 3, 224, 224)).astype(kind)


class Reader(CalibrationDataReader):
    def __init__(self, samples: list[Any]) -> None:
        self.rest: Iterator[Any] = iter([{"x": s} for s in samples])

    def get_next(self) -> Any:
        return next(self.rest, None)


def session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def measure(name: str, rounds: int, folder: Path) -> dict[str, Any]:
    x, y = network(name)
    plain, ready, small = (folder / f"{name}{end}.onnx" for end in ("", "_ready", "_int8"))
    save(plain, y, {"x": x}, batch=None)
    kind = onnx.load(plain).graph.input[0].type.tensor_type.elem_type
    samples = [sample(name, onnx.helper.tensor_dtype_to_np_dtype(kind)) for _ in range(4)]
    quant_pre_process(plain, ready, skip_symbolic_shape=True)
    quantize_static(
        ready, small, Reader(samples), quant_format=QuantFormat.QDQ, per_channel=name != "bert",
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    net = nn.quantize({"y": y}, np.concatenate(samples), {"x": x})
    nn.save_program(folder / "own.nnlp", net.outputs, net.inputs)
    own = nn.load_program(folder / "own.nnlp")
    nn.clear_parameters()
    value = sample(name, samples[0].dtype)
    theirs, theirs8 = session(plain), session(small)
    with nn.parameter_scope(name):
        ours, ours8 = load(plain), load(small)
        runs: dict[str, Callable[[], Any]] = {
            "nnl int8": lambda: ours8.run(value)[0],
            "ORT int8": lambda: theirs8.run(None, {"x": value})[0],
            "nnl float": lambda: ours.run(value)[0],
            "ORT float": lambda: theirs.run(None, {"x": value})[0],
            "ours": lambda: own.run(x=value)["y"],
        }
        found = {key: run() for key, run in runs.items()}
        times: dict[str, list[float]] = {key: [] for key in runs}
        for _ in range(rounds):
            for key, run in runs.items():
                run()
                start = time.process_time()
                run()
                times[key].append(time.process_time() - start)
    largest = float(np.abs(found["ORT float"]).max())

    def ratio(a: str, b: str) -> float:
        return statistics.median(p / q for p, q in zip(times[a], times[b], strict=True))

    return {
        "model": name,
        "ms": {key: round(1e3 * statistics.median(t), 2) for key, t in times.items()},
        "int8 by ORT int8": round(ratio("nnl int8", "ORT int8"), 3),
        "int8 by float": round(ratio("nnl int8", "nnl float"), 3),
        "ours by ORT int8": round(ratio("ours", "ORT int8"), 3),
        "off ORT int8": float(np.abs(found["nnl int8"] - found["ORT int8"]).max()) / largest,
        "int8 off float": float(np.abs(found["nnl int8"] - found["nnl float"]).max()) / largest,
        "ours off float": float(np.abs(found["ours"] - found["nnl float"]).max()) / largest,
    }


BATCH = 32


def colours(images: Any) -> Any:
    """Images of 32 x 32 pixels, three times."""
    return np.repeat(np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2))), 3, 1)


def train(images: Any, labels: Any, epochs: int) -> None:
    x, t = nn.Variable((BATCH, *images.shape[1:])), nn.Variable((BATCH, 1))
    loss = F.mean(F.softmax_cross_entropy(M.mobilenet_v3(x, "small", 10), t))
    solver = S.Adam(1e-3)
    solver.set_parameters(nn.get_parameters())
    rng, steps = np.random.default_rng(0), len(images) // BATCH
    for epoch in range(epochs):
        solver.set_learning_rate(1e-3 * 0.5 * (1 + np.cos(np.pi * epoch / epochs)))
        for at in np.split(rng.permutation(len(images))[: steps * BATCH], steps):
            x.d, t.d = images[at], labels[at]
            solver.zero_grad()
            loss.forward()
            loss.backward()
            solver.update()


def accuracies(epochs: int) -> None:
    """What 8 bits cost: a small MobileNetV3 is trained on handwritten digits, quantized in the ways
    of `nn.quantize`, and written as .tflite and as C, with ranges from 200 images of the training
    set; on the test set."""
    nn.seed(0)
    images, labels, others, truth = load_digits_28x28()
    images, others = colours(images), colours(others)
    train(images, labels, epochs)
    x = nn.Variable((1, *images.shape[1:]))
    trained = Network("digits", {"x": x}, {"y": M.mobilenet_v3(x, "small", 10, True)})
    want = np.array([trained.run({"x": image[None]})["y"].argmax() for image in others])
    print(f"float, by nnl: {(want == truth[:, 0]).mean():.2%}")
    for method in ("min_max", "percentile", "entropy"):
        net = nn.quantize(trained, images[:200], method=method)
        got = np.array([net.run({"x": image[None]})["y"].argmax() for image in others])
        print(f"8 bits, {method}: {(got == truth[:, 0]).mean():.2%}")
    with tempfile.TemporaryDirectory() as folder:
        for save, run in ((tflite_writer.save, in_litert), (csrc_writer.save, compiled)):
            file = f"{folder}/digits{'.tflite' if run is in_litert else ''}"
            save(file, trained, samples={"x": images[:200]})
            runtime = run(file, file)
            if runtime is not None:
                got = [np.argmax(runtime.run({"x": image[None]})[0]) for image in others]
                print(f"8 bits, by {runtime.name}: {(got == truth[:, 0]).mean():.2%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    nn.logger.setLevel("ERROR")
    if args.epochs:
        return accuracies(args.epochs)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models.split(","):
            rows.append(measure(name, args.rounds, Path(folder)))
            print(json.dumps(rows[-1], indent=1), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
