# SPDX-License-Identifier: Apache-2.0
"""The machine of a benchmark: its names, versions, and what it can do at best.

python machine.py        prints one JSON object
"""

import importlib.metadata
import json
import os
import platform
import time
from pathlib import Path

import numpy as np

SIDE = 3072  # of the matrices: 58 GFLOP a product
COPIED = 1 << 28  # bytes, far beyond the caches
PACKAGES = (
    *("nnl", "numpy", "torch", "onnxruntime", "onnx"),
    *("simplejpeg", "pillow", "torchvision", "nvidia-dali-cuda130"),
)


def processor():
    """The processor's name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def best(f, n=5):
    f()
    times = []
    for _ in range(n):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return min(times)


def matmul_gflops():
    """GFLOP/s of a large product, by type; of numpy where there is no PyTorch."""
    flops = 2 * SIDE**3
    try:
        import torch
    except ImportError:
        a = np.ones((SIDE, SIDE), np.float32)
        return {"float32": flops / best(lambda: a @ a) / 1e9}
    rates = {}
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn(SIDE, SIDE).to(dtype)
        rates[str(dtype).removeprefix("torch.")] = flops / best(lambda a=a: a @ a) / 1e9
    return rates


def versions():
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), **found}


def describe():
    source = np.ones(COPIED, np.uint8)
    target = np.empty_like(source)
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": os.getloadavg()[0],
        "matmul_gflops": matmul_gflops(),
        # of one thread; bytes read and bytes written both count
        "copy_gb_s": 2 * COPIED / best(lambda: np.copyto(target, source)) / 1e9,
        "versions": versions(),
    }


if __name__ == "__main__":
    print(json.dumps(describe()))
