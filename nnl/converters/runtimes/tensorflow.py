# SPDX-License-Identifier: Apache-2.0
"""TensorFlow itself, where it is installed: a process that runs graphs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class TensorFlow:
    """A process that runs graphs, one after the other, until it is closed."""

    def __init__(self, python: str) -> None:
        worker = Path(__file__).with_name("tensorflow_worker.py")
        self._process = subprocess.Popen(
            [python, str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(
        self, file: str | os.PathLike[str], values: Mapping[str, Any], outputs: Sequence[str]
    ) -> list[np.ndarray[Any, Any]]:
        """The outputs of a frozen graph or a folder.

        Raises:
            ValueError: TensorFlow does not run it.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            request = {
                "file": os.fspath(file),
                "inputs": f"{folder}/in.npz",
                "result": f"{folder}/out.npz",
                "outputs": list(outputs),
            }
            np.savez(request["inputs"], **{k: np.asarray(v) for k, v in values.items()})
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            answer = json.loads(line) if line else {"error": "the process has ended"}
            if answer:
                raise ValueError(f"TensorFlow does not run {file}: {answer['error']}")
            with np.load(request["result"]) as found:
                return [found[str(i)] for i in range(len(outputs))]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def python_with_tensorflow() -> str | None:
    """The Python that has TensorFlow: NNL_TENSORFLOW_PYTHON names it, or this one has it."""
    named = os.environ.get("NNL_TENSORFLOW_PYTHON")
    return named or (sys.executable if importlib.util.find_spec("tensorflow") else None)
