# SPDX-License-Identifier: Apache-2.0
"""What others run a file with, where it is installed: for comparing the file with its source."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

logger = logging.getLogger("nnl")

Values = Mapping[str, Any]


class Runtime(NamedTuple):
    """Something that runs one file.

    Attributes:
        name: What people call it.
        run: Arrays of the inputs in their order -> arrays of the outputs in theirs; flat where the
            runtime knows no shapes.
    """

    name: str
    run: Callable[[Values], Sequence[Any]]


def renamed(values: Values, names: Sequence[str], file: str) -> Values:
    """The values under the names of a file's inputs: the same, or in the same order."""
    if len(values) != len(names):
        raise ValueError(f"--verify: {file} has the inputs {list(names)}, not {list(values)}")
    if set(values) == set(names):
        return values
    return dict(zip(names, values.values(), strict=True))


def in_onnxruntime(file: str, name: str) -> Runtime | None:
    """ONNX Runtime with a file; None where it is not installed or lacks an operator.

    Args:
        file, name: Where the file is, and what messages call it.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return None
    errors = onnxruntime.capi.onnxruntime_pybind11_state
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except (errors.NotImplemented, errors.Fail) as error:
        logger.warning("--verify reads %s itself, as ONNX Runtime cannot: %s", name, error)
        return None
    except (errors.InvalidGraph, errors.InvalidProtobuf, errors.InvalidArgument) as error:
        raise ValueError(f"--verify: ONNX Runtime does not read {name}: {error}") from error
    inputs = {i.name: _DTYPES.get(i.type, np.float32) for i in session.get_inputs()}

    def run(values: Values) -> Sequence[Any]:
        given = renamed(values, list(inputs), name)
        feeds = {n: np.asarray(given[n], dtype) for n, dtype in inputs.items()}
        try:
            outputs: list[Any] = session.run(None, feeds)
        except (errors.RuntimeException, errors.Fail, errors.InvalidArgument) as error:
            raise ValueError(f"--verify: ONNX Runtime does not run {name}: {error}") from error
        return outputs

    return Runtime("ONNX Runtime", run)


_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(bool)": np.bool_,
    **{f"tensor({sign}int{n})": f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64)},
}


def in_litert(file: str, name: str, threads: int = 1) -> Runtime | None:
    """The interpreter of TensorFlow Lite with a file; None where it is not installed."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ModuleNotFoundError:
        return None
    try:
        interpreter = Interpreter(file, num_threads=threads)
        interpreter.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"--verify: LiteRT does not read {name}: {error}") from error
    inputs = {t["name"]: t for t in interpreter.get_input_details()}

    def run(values: Values) -> Sequence[Any]:
        given = renamed(values, list(inputs), name)
        for key, value in given.items():
            if -1 in inputs[key]["shape_signature"]:
                interpreter.resize_tensor_input(inputs[key]["index"], np.shape(value))
        interpreter.allocate_tensors()
        for key, value in given.items():
            t = inputs[key]
            scale, zero = t["quantization"]
            if scale:
                limits = np.iinfo(t["dtype"])
                value = np.clip(np.rint(value / scale) + zero, limits.min, limits.max)
            interpreter.set_tensor(t["index"], np.asarray(value, t["dtype"]))
        interpreter.invoke()
        found = []
        for t in interpreter.get_output_details():
            y, (scale, zero) = interpreter.get_tensor(t["index"]), t["quantization"]
            found.append((y.astype(np.float32) - zero) * scale if scale else y)
        return found

    return Runtime("LiteRT", run)


def in_nnablart(file: str, name: str) -> Runtime | None:
    """NNabla's C runtime with a file; None where its program is not installed.

    The program is found by NNL_NNABLART, or as `nnablart` on PATH.
    """
    from nnl.converters.nnb.reader import ends
    from nnl.converters.nnb.types import numbers, stored

    program = os.environ.get("NNL_NNABLART") or shutil.which("nnablart")
    if not program:
        return None

    inputs, outputs = ends(file)

    def run(values: Values) -> Sequence[Any]:
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            for i, (value, kind) in enumerate(zip(values.values(), inputs, strict=True)):
                (folder / f"in{i}.bin").write_bytes(stored(value, kind))
            given = [folder / f"in{i}.bin" for i in range(len(inputs))]
            command = [program, "infer", file, *given, folder / "out"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                said = (done.stdout + done.stderr).strip()
                raise ValueError(f"--verify: {program} does not run {name}: {said}")
            raw = [(folder / f"out_{i}.bin").read_bytes() for i in range(len(outputs))]
        return [numbers(r, kind) for r, kind in zip(raw, outputs, strict=True)]

    return Runtime("NNabla's C runtime", run)


def in_tensorflow(file: str, name: str) -> Runtime | None:
    """TensorFlow with a graph; None where it is not installed.

    NNL_TENSORFLOW_PYTHON names a Python that has it, else this one is asked.
    """
    from nnl.converters.runtimes.tensorflow import TensorFlow, python_with_tensorflow
    from nnl.converters.tensorflow.saved import load_any

    python = python_with_tensorflow()
    if python is None:
        return None
    graph = load_any(file)
    inputs = {info.name: info.dtype for info in graph.infos}

    def run(values: Values) -> Sequence[Any]:
        given = renamed(values, list(inputs), name)
        tensorflow = TensorFlow(python)
        try:
            feeds = {n: np.asarray(given[n], dtype) for n, dtype in inputs.items()}
            return tensorflow.run(file, feeds, graph.outputs)
        finally:
            tensorflow.close()

    return Runtime("TensorFlow", run)
