# SPDX-License-Identifier: Apache-2.0
"""nnl doctor: what of nnl works on this machine, and how to get the rest."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, NamedTuple

GIBIBYTE = 2**30
LEAST_FREE = 1  # gibibytes in the folder for temporary files, where caches of data sets go

# Module, package, what needs it, how to get it.
OPTIONAL = (
    ("PIL", "pillow", "pictures in data sets", "pip install 'nnl[image]'"),
    ("h5py", "h5py", ".h5 files of parameters", "pip install h5py"),
    ("google.protobuf", "protobuf", ".nnp and .nntxt files", "pip install protobuf"),
    ("onnx", "onnx", ".onnx files", "pip install 'nnl[onnx]'"),
    ("yaml", "pyyaml", "settings of .nnb files", "pip install 'nnl[nnb]'"),
    ("matplotlib", "matplotlib", "plot_series, plot_timer", "pip install 'nnl[plot]'"),
    ("graphviz", "graphviz", "draw_graph", "pip install 'nnl[plot]'"),
    ("sklearn", "scikit-learn", "nnl.datasets", "pip install scikit-learn"),
    ("fastapi", "fastapi", "nnl console", "pip install 'nnl[console]'"),
    ("mpi4py", "mpi4py", "nnl launch", "pip install 'nnl[mpi]'"),
)


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        state: "ok", "missing" (something optional) or "broken".
        hint: What to try.
    """

    name: str
    state: str
    text: str
    hint: str = ""


def add_commands(commands: Any) -> None:
    """Register the command."""
    p = commands.add_parser(
        "doctor",
        description="Looks at what nnl needs and may use here. The exit code is 1 if something "
        "that is installed does not work.",
    )
    p.add_argument("--json", action="store_true", help="as JSON")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every finding."""
    found = list(findings())
    if args.json:
        print(json.dumps([f._asdict() for f in found], indent=1))
    else:
        width = max(len(f.name) for f in found)
        for f in found:
            hint = f"; try: {f.hint}" if f.hint else ""
            print(f"{f.state:8} {f.name:{width}}  {f.text}{hint}")
    return int(any(f.state == "broken" for f in found))


def findings() -> Iterator[Finding]:
    """What was looked at."""
    import nnl

    yield Finding("nnl", "ok", f"{nnl.__version__} in {os.path.dirname(nnl.__file__)}")
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    yield Finding("python", "ok", f"{platform.python_version()} on {system}")
    yield Finding("numpy", "ok", version("numpy"))
    yield _native()
    yield _tried("training", _train)
    yield from _contexts()
    for module, package, purpose, hint in OPTIONAL:
        yield _package(module, package, purpose, hint)
    page = os.path.join(os.path.dirname(nnl.__file__), "console", "static", "index.html")
    if os.path.isfile(page):
        yield Finding("page", "ok", "of nnl console")
    else:
        hint = "with Node.js, make console in the copy of nnl's sources"
        yield Finding("page", "missing", "for nnl console: it was not built", hint)
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free / GIBIBYTE
    few = free < LEAST_FREE
    yield Finding("disk", "broken" if few else "ok", f"{free:.1f} GiB free in {folder}",
                  "set TMPDIR to a folder with more room" if few else "")  # fmt: skip


def _native() -> Finding:
    from nnl.ext.native import library

    lib = library()
    if lib is None:
        return Finding("engine", "missing", "numpy only, which is slow",
                       "NNL_NATIVE=ON pip install .")  # fmt: skip
    return Finding("engine", "ok", f"native, {lib.threads()} threads")


def _contexts() -> Iterator[Finding]:
    from nnl.ext import get_extension_context

    for name in ("cpu", "cudnn"):
        try:
            get_extension_context(name, device_id="0")
        except (NotImplementedError, ImportError, ValueError) as error:
            yield Finding(name, "missing", str(error))
        else:
            yield Finding(name, "ok", "")
    yield _opencl()


def _opencl() -> Finding:
    """The OpenCL devices with their numbers and platforms."""
    from nnl.ext import opencl

    lacks = opencl.missing()
    if lacks:
        return Finding("opencl", "missing", f"no {', '.join(lacks)}")
    devices = [
        f"{i}: {d.name.strip()} ({d.platform.name.strip()})" for i, d in enumerate(opencl.found())
    ]
    return Finding("opencl", "ok", "; ".join(devices))


def _tried(name: str, work: Callable[[], str]) -> Finding:
    try:
        return Finding(name, "ok", work())
    except (ValueError, RuntimeError, OSError, ArithmeticError) as error:
        return Finding(name, "broken", str(error), "nnl --debug doctor")


def _train() -> str:
    """A step of a small network, against its numbers by hand."""
    import numpy as np

    import nnl as nn
    import nnl.functions as F
    import nnl.solvers as S

    x = nn.Variable.from_numpy_array(np.array([[1.0, 2.0]], np.float32))
    w = nn.Variable.from_numpy_array(np.array([[1.0], [1.0]], np.float32), need_grad=True)
    solver = S.Sgd(0.5)
    solver.set_parameters({"w": w})
    loss = F.sum(F.affine(x, w))
    loss.forward()
    solver.zero_grad()
    loss.backward()
    solver.update()
    if float(loss.d) != 3.0 or not np.array_equal(w.d, [[0.5], [0.0]]):
        raise ArithmeticError(f"the loss is {float(loss.d)}, wanted 3; the weights are {w.d}")
    return "a step gives the numbers that it should"


def _package(module: str, package: str, purpose: str, hint: str) -> Finding:
    try:
        there = find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        there = False
    if not there:
        return Finding(package, "missing", f"for {purpose}", hint)
    try:
        return Finding(package, "ok", version(package))
    except PackageNotFoundError:
        return Finding(package, "ok", "")
