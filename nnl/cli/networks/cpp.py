# SPDX-License-Identifier: Apache-2.0
"""nnl cpp-flags: where C++ programs find the library that nnl was installed with."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any


def add_commands(commands: Any) -> None:
    """Register the command."""
    p = commands.add_parser(
        "cpp-flags",
        description="g++ -std=c++17 main.cpp $(nnl cpp-flags) -o main",
    )
    p.add_argument(
        "--prefix", action="store_true", help="only its folder, for CMAKE_PREFIX_PATH of CMake"
    )
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print them."""
    prefix = folder()
    library = prefix / "lib"
    flags = f"-I{prefix / 'include'} -L{library} -lnnl -Wl,-rpath,{library}"
    print(prefix if args.prefix else flags)
    return 0


def folder() -> Path:
    """The folder with `include` and `lib`: beside the extension module, which needs them too.

    Raises:
        ModuleNotFoundError: nnl was installed without them.
    """
    spec = importlib.util.find_spec("nnl.ext.native._native")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "nnl was installed without its native engine; NNL_NATIVE=ON pip install . "
            "installs it, or says why it cannot be built "
            "(documentation: start/install#from-the-source)"
        )
    return Path(spec.origin).parents[2] / "cpp"
