# SPDX-License-Identifier: Apache-2.0
"""The trained network as files: .nnp, .onnx and .nnlp, which take pictures as numbers 0 to 255."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from step import normalised

import nnl as nn
from nnl.models import build
from nnl.utils.load import load
from nnl.utils.save import save

TOLERANCE = 1e-3  # of scores, relative to the largest: other orders of sums


def export(options: Any, classes: int, folder: Path, pictures: np.ndarray | None) -> list[str]:
    """Write the network of the parameters that are there.

    Args:
        pictures: Compare the scores of each file on these, uint8 (B, H, W, 3); None to compare
            nothing.
    Returns:
        What was written, a line each.
    Raises:
        ValueError: A file gives other scores.
    """
    x = nn.Variable((1, 3, options.size, options.size))
    x.name = "x"
    with nn.auto_forward(False):
        y = build(options.network, normalised(x), classes, test=True)
    network = {"name": options.network, "batch_size": 1, "outputs": {"y": y}, "names": {"x": x}}
    executor = {"name": "scores", "network": options.network, "data": ["x"], "output": ["y"]}
    files = {kind: folder / f"{options.network}.{kind}" for kind in ("nnp", "onnx", "nnlp")}
    save(str(files["nnp"]), {"networks": [network], "executors": [executor]})
    nn.save_program(str(files["nnlp"]), y)
    try:
        import nnl.converters.onnx as onnx

        onnx.save(str(files["onnx"]), {"y": y}, {"x": x})
    except ModuleNotFoundError:
        files.pop("onnx")
    if pictures is None:
        return [str(path) for path in files.values()]
    images = np.ascontiguousarray(pictures.transpose(0, 3, 1, 2), np.float32)
    wanted = []
    for image in images:
        x.d = image
        y.forward(clear_buffer=True)
        wanted.append(y.d.copy())
    return [
        f"{path} gives the same scores, within {_gap(path, kind, images, wanted):.1e}"
        for kind, path in files.items()
    ]


def _gap(path: Path, kind: str, images: np.ndarray, wanted: list[np.ndarray]) -> float:
    """The largest difference of a file's scores, relative to the largest score."""
    runner = {"nnp": _nnp, "onnx": _onnx, "nnlp": _nnlp}[kind](str(path))
    largest = max(np.abs(w).max() for w in wanted)
    gaps = [np.abs(runner(i[None]) - w).max() for i, w in zip(images, wanted, strict=True)]
    gap = float(max(gaps) / largest)
    if not gap <= TOLERANCE:
        raise ValueError(f"{path}: its scores differ from the network's by {gap:.1e}")
    return gap


def _nnp(path: str) -> Callable[[np.ndarray], np.ndarray]:
    with nn.parameter_scope("", OrderedDict()):  # the network's own parameters stay
        run = load(path, batch_size=1).executors["scores"]
    (x,), (y,) = run.dataset_assign, run.output_assign

    def scores(image: np.ndarray) -> np.ndarray:
        x.variable_instance.d = image
        y.variable_instance.forward(clear_buffer=True)
        return y.variable_instance.d

    return scores


def _onnx(path: str) -> Callable[[np.ndarray], np.ndarray]:
    try:
        import onnxruntime
    except ModuleNotFoundError:
        import nnl.converters.onnx as onnx

        net = onnx.load(path)

        def scores(image: np.ndarray) -> np.ndarray:
            with nn.parameter_scope("", OrderedDict()):
                return net.run(image)[0]

        return scores
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda image: session.run(None, {"x": image})[0]


def _nnlp(path: str) -> Callable[[np.ndarray], np.ndarray]:
    programs = nn.load_program(path)
    return lambda image: next(iter(programs.run(x=image).values()))
