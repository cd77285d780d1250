# SPDX-License-Identifier: Apache-2.0
"""Networks as .nnb files, run by NNabla's C runtime."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.converters.model import Network


def runtime() -> str:
    """The program `nnablart`, by NNL_NNABLART or on PATH; skips the test without it."""
    found = os.environ.get("NNL_NNABLART") or shutil.which("nnablart")
    if not found:
        pytest.skip("nnablart, NNabla's C runtime, is not installed (NNL_NNABLART names it)")
    return found


def infer(file: Path, network: Network, dtype: Any = np.float32) -> list[np.ndarray[Any, Any]]:
    """What the runtime computes for the values of the network's inputs, flat."""
    program, folder = runtime(), file.parent
    inputs = []
    for k, v in enumerate(network.inputs.values()):
        inputs.append(folder / f"in{k}.bin")
        inputs[-1].write_bytes(v.d.astype(dtype).tobytes())
    done = subprocess.run(
        [program, "infer", file, *inputs, folder / "out"], capture_output=True, text=True
    )
    assert not done.returncode, done.stdout + done.stderr
    outputs = [folder / f"out_{k}.bin" for k in range(len(network.outputs))]
    return [np.fromfile(path, dtype) for path in outputs]
