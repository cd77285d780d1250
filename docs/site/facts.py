# SPDX-License-Identifier: Apache-2.0
"""What is known of functions besides their docstrings: from the schema, kernels and other pages."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import nnl.functions as F
from nnl.core.ops.op import OPS, Op
from nnl.core.ops.schema import category, entry

DOCS = Path(__file__).parent.parent
# Functions of Python around an op of another name.
AROUND = ("", "_with_statistics", "_statistics", "_with_u", "_with_gradients")


def op_of(name: str) -> Op | None:
    """The op that a function of nnl.functions is, or is made around; None for one of several."""
    function = getattr(F, name)
    if isinstance(function, Op):
        return function
    return next((OPS[name + end] for end in AROUND if name + end in OPS), None)


def category_of(name: str) -> str:
    """What palettes list a function under."""
    function = getattr(F, name)
    if isinstance(function, Op):
        return category(function)
    module = sys.modules[function.__module__]
    op = op_of(name)
    return getattr(module, "CATEGORY", "") or (category(op) if op else "Layer")


@cache
def tables(page: str) -> list[list[str]]:
    """The rows of all tables of a page, as lists of cells."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    rows = [line.strip().strip("|").split(" | ") for line in lines if line.startswith("|")]
    return [[cell.strip(" |") for cell in row] for row in rows if not row[0].startswith("---")]


@cache
def by_name(page: str) -> dict[str, list[str]]:
    """Rows of the tables of a page by the function in their first cell."""
    return {row[0].strip("`"): row[1:] for row in tables(page)}


@cache
def differences() -> list[tuple[set[str], str]]:
    """(names of functions, row in words) of the tables of differences from NNabla."""
    found = []
    for row in tables("differences.md"):
        names = set(re.findall(r"`(?:F\.|PF\.)?(\w+)", row[0]))
        parts = ["NNabla: " + row[0] if row[0] else "", "nnl: " + row[1] if row[1:] else ""]
        found.append((names, " ".join(p for p in parts if p)))
    return found


@cache
def native_kernels() -> frozenset[str] | None:
    """Names of ops with a kernel of the native engine; None where that is not built."""
    from nnl.ext.native import library

    found = library()
    return None if found is None else frozenset(found.kernel_names())


@cache
def cuda_kernels() -> frozenset[str]:
    """Names of ops with a kernel of the CUDA backend, or a graph of cuDNN."""
    import nnl.ext.device.kernels  # noqa: F401  (registers them)
    from nnl.ext.cuda.cudnn.builders import BUILDERS
    from nnl.ext.device.kernels.module import SETUPS

    return frozenset({*SETUPS, *BUILDERS})


@cache
def opencl_kernels() -> frozenset[str]:
    """Names of ops with a kernel of the OpenCL backend."""
    from nnl.ext.opencl.coverage import covered

    return frozenset(covered())


def kernels(op: Op) -> dict[str, bool | None]:
    """Which backends have a kernel of their own for an op; numpy's definition is beside them."""
    native = native_kernels()
    elementwise = entry(op)["elementwise"]
    return {
        "native": None if native is None else elementwise or op.name in native,
        "CUDA": elementwise or op.name in cuda_kernels(),
        "OpenCL": op.name in opencl_kernels(),
    }


def facts(name: str) -> dict[str, str]:
    """What the table of functions says of one, by column; "" where there is nothing."""
    op = op_of(name)
    known = entry(op) if op else None
    onnx = by_name("onnx_export.md").get(name)
    nnb, csrc, tflite = by_name("conversion.md").get(name, ["", "", ""])
    has = kernels(op) if op else {"native": False, "CUDA": False, "OpenCL": False}
    return {
        "category": category_of(name),
        "gradient": "yes" if known is None or known["differentiable"] else "no",
        "NNP": op.type_name if op else "its parts",
        "ONNX": f"{onnx[1].replace('handler', 'several')} ({onnx[0]})"
        if onnx and onnx[1:]
        else "no",
        "C++": by_name("cpp_functions.md").get(name, ["yes"])[0]
        and ("no" if name in by_name("cpp_functions.md") else "yes"),
        "C": csrc,
        "NNB": nnb,
        "TFLite, TF": tflite,
        "native": "" if has["native"] is None else "yes" if has["native"] else "its parts",
        "CUDA": "yes" if has["CUDA"] else "its parts",
        "OpenCL": "yes" if has["OpenCL"] else "on the host" if op else "its parts",
    }


def shapes(op: Op) -> str:
    """In words, the shapes of an element-wise op; "" for others, whose docstrings have them."""
    known = entry(op)
    if not known["elementwise"]:
        return ""
    if len(known["inputs"]) == 1:
        return "any; the result has the same"
    return "sizes of 1 stretch to the other's; others that differ are a ShapeError"


def dtypes(op: Op) -> str:
    """In words, what types of elements the inputs and outputs of an op have."""
    known: dict[str, Any] = entry(op)
    words = {
        "integer": "whole numbers (floats that are whole are converted)",
        "any": "of any type, which is kept",
    }
    said = [
        f"`{i['name']}` is {words[i['dtype']]}"
        for i in known["inputs"]
        if i["dtype"] != "float" and i["name"] != "rng"
    ]
    if not said:
        said = ["floating point"]
    elif any(i["dtype"] == "float" for i in known["inputs"]):
        said.append("other inputs are floating point")
    wide = [o["name"] for o in known["outputs"] if o["wide"] and not o["hidden"]]
    if wide:
        said.append("the result stays float32 in contexts of 16 bits")
    return "; ".join(said)
