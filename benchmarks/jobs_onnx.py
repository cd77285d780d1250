# SPDX-License-Identifier: Apache-2.0
"""Forward passes of ONNX Runtime, on files that PyTorch writes in a process of its own."""

import subprocess
import sys
import tempfile
from pathlib import Path

import jobs_nnl
import numpy as np
import onnxruntime


def build(engine, row):
    """The function that runs one step."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        script = Path(__file__).with_name("jobs_torch.py")
        # the row's name and --quick are this process's own arguments
        command = [sys.executable, str(script), sys.argv[2], str(path), *sys.argv[3:]]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise RuntimeError(f"export to ONNX failed: {lines[-1] if lines else ''}")
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = jobs_nnl.arrays(row)[0].astype(np.float32)
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: x})
