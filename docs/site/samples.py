# SPDX-License-Identifier: Apache-2.0
"""Examples of functions from the samples of their definitions, where nobody has written one."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl as nn
from nnl.core.ops.op import Op, Sample

MOST_SHOWN = 16  # elements of an array that is written out
ORDINARY = 100  # elements of all inputs of a sample
ENOUGH = 24  # elements of a result that is shown


def example(op: Op) -> str:
    """A line that calls the op on its smallest sample, and shows the result or its shape."""
    sample = chosen(op)
    given = [literal(value) for value in sample.inputs]
    while given and given[-1] == "None":
        given.pop()
    given += [f"{name}={value!r}" for name, value in sample.attrs.items()]
    call = f"F.{op.name}({', '.join(given)})"
    if len(call) > 90:
        call = f"F.{op.name}(\n    " + ",\n    ".join(given) + ",\n)"
    with nn.auto_forward():
        result = op(*[variable(v) for v in sample.inputs], **sample.attrs)
    if isinstance(result, tuple):
        what = "y.d" if sum(y.size for y in result) <= ENOUGH else "y.shape"
        return f"[{what} for y in {call}]"
    return f"{call}.{'d' if result.size <= ENOUGH else 'shape'}"


def chosen(op: Op) -> Sample:
    """The first sample of ordinary size; else the smallest."""
    samples = list(op.attrs_class.samples(np.random.default_rng(0)))

    def unlike(sample: Sample) -> tuple[bool, int]:
        arrays = [np.asarray(v) for v in sample.inputs if v is not None]
        poor = any(not a.size for a in arrays) or all(a.ndim == 0 for a in arrays)
        size = sum(a.size for a in arrays)
        return poor, 0 if size <= ORDINARY else size

    return min(samples, key=unlike)


def variable(value: Any) -> Any:
    """What an input of a sample is given as."""
    if value is None:
        return None
    array = np.asarray(value)
    return nn.Variable.from_numpy_array(
        array.astype(np.float32) if array.dtype.kind == "f" else array
    )


def literal(value: Any) -> str:
    """An input of a sample as it is written: its numbers, or what draws such numbers."""
    if value is None:
        return "None"
    array = np.asarray(value)
    kind = "" if array.dtype.kind == "f" else f", {array.dtype.name!r}"
    if array.size <= MOST_SHOWN:
        return f"array({numbers(array)}{kind})"
    shape = array.shape
    if array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if low < 0:
            return f"array(rng.normal(size={shape}))"
        return f"array(rng.uniform({low:.1f}, {high:.1f}, {shape}))"
    if array.dtype.kind == "b":
        return f"array(rng.random({shape}) < 0.5{kind})"
    return f"array(rng.integers({array.min()}, {int(array.max()) + 1}, {shape}){kind})"


def numbers(array: np.ndarray[Any, Any]) -> str:
    """Nested lists of numbers with two digits after the point."""
    if array.ndim:
        return f"[{', '.join(numbers(row) for row in array)}]"
    value = array.item()
    if isinstance(value, float):
        if not np.isfinite(value):
            return {"nan": "np.nan", "inf": "np.inf"}.get(str(value), "-np.inf")
        return str(int(value)) if value == int(value) else f"{value:.2f}".rstrip("0")
    return str(value)
