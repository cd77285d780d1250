# SPDX-License-Identifier: Apache-2.0
"""Found by Python when it starts: puts the emulated GPU in the place of NVIDIA's libraries."""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["EMULATOR_FOLDER"])
MODULES = {
    "cupy_backends.cuda.api.runtime": FOLDER / "runtime.so",
    "cupy.cuda.thrust": Path(__file__).with_name("thrust_on_host.py"),
    "cudnn": Path(__file__).with_name("cudnn_on_host.py"),
}


class Finder(importlib.abc.MetaPathFinder):
    """Finds modules elsewhere than where they are installed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        file = MODULES.get(name)
        if file is None:
            return self._cupy() if name == "cupy" else None
        extension = importlib.machinery.ExtensionFileLoader
        loader = extension(name, str(file)) if file.suffix == ".so" else None
        return importlib.util.spec_from_file_location(name, file, loader=loader)

    def _cupy(self) -> Any:
        """CuPy itself, with another way to allocate memory."""
        spec = importlib.machinery.PathFinder.find_spec("cupy")
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_change(module: Any) -> None:
            execute(module)
            importlib.import_module("cupy_memory")

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


for _file in [FOLDER / "libcuda.so.1", *sorted(FOLDER.glob("lib*.so.[12]*"))]:
    ctypes.CDLL(str(_file), mode=ctypes.RTLD_GLOBAL)
sys.meta_path.insert(0, Finder())
