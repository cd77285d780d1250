# SPDX-License-Identifier: Apache-2.0
"""Runs a command that sees an emulated GPU: `python -m tests.cuda.emulator COMMAND...`.

CuPy, NVRTC and all of nnl are the real ones. Kernels are compiled to PTX, which is interpreted;
cuDNN's graphs are computed by numpy, cuBLAS's products in C++. Work of streams runs as late as CUDA
allows, memory is checked at every access, and host code cannot touch that of a device.

| environment variable | |
|---|---|
| `EMULATOR_ORDER` | `late` (the default), `early`, or `random:SEED` |
| `EMULATOR_DEVICES` | how many GPUs there are; 1 without it |
| `EMULATOR_PROTECT=0` | let host code touch the memory of devices |
| `EMULATOR_SPOIL=0` | let CuPy's pools hand out memory as it was left |
| `EMULATOR_POOL=0` | give each of CuPy's arrays an allocation of its own, whose ends are checked |
| `EMULATOR_CACHE` | where what is built is kept |
| `EMULATOR_CUPY` | CuPy's sources of the installed version; downloaded without it |
"""

from __future__ import annotations

import os
import sys

from tests.cuda.emulator import build


def environment() -> dict[str, str]:
    """That of this process, with the emulated GPU."""
    folder = build.build()
    made = dict(os.environ, EMULATOR_FOLDER=str(folder))
    made |= {
        "CUPY_COMPILE_WITH_PTX": "1",  # a cubin is for a GPU only
        "CUPY_ACCELERATORS": "",  # CUB calls the runtime that is linked into it
        "CUPY_CACHE_DIR": str(build.cache_folder() / "kernels"),
        "NNL_CACHE_DIR": str(folder / "cache"),
    }
    paths = {
        "LD_LIBRARY_PATH": [folder],
        "PYTHONPATH": [build.HERE / "site", build.HERE.parents[2]],
    }
    for name, first in paths.items():
        made[name] = os.pathsep.join([*map(str, first), *filter(None, [os.environ.get(name)])])
    return made


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    os.execvpe(sys.argv[1], sys.argv[1:], environment())
