# SPDX-License-Identifier: Apache-2.0
"""The rule for the text of an error that a wrong call raises."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

import nnl as nn

KINDS = (TypeError, ValueError, NotImplementedError, IndexError, KeyError, MemoryError)
LONGEST = 600  # characters

# What only somebody who reads the sources understands, or what numpy, Python and C++ say.
INNER = re.compile(
    r"std::|vector::|nanobind|ml_dtypes|<locals>|_interned|\bself\.|0x[0-9a-f]{6}"
    r"|object has no attribute|object is not (iterable|subscriptable|callable)|unhashable"
    r"|could not broadcast|operands could not|cannot be interpreted|unsupported operand"
    r"|not supported between|too many values|not enough values|tuple index|list index"
    r"|index out of range|setting an array|invalid literal|could not convert"
    r"|Maximum allowed|maximum supported|too large to convert|must be real number|argument must be"
    r"|arg 1|does not match format|truth value|ufunc|Python int too|size-1 arrays|0-dimensional"
    r"|zero-size array|reduction operation|axes don't match|cannot reshape|bad operand"
    r"|positional argument(s)? but|Cannot cast|Cannot interpret|no kernel|division by zero"
    r"|shape mismatch|matmul: Input operand|array is too big|unterminated|bad_alloc"
)
# Python's own texts for arguments that are missing or too many are clear if they name the function.
PYTHON = re.compile(
    r"(\w+)\(\) (got (an unexpected|multiple values for|some)|takes \d|takes from \d|missing \d"
    r"|takes no arguments)"
)
# What Python says where neither side of an operator takes the other.
PLAIN_OPERATOR = re.compile(
    r"^unsupported operand type\(s\) for \S+( or pow\(\))?: '[\w.]+' and '[\w.]+'$"
    r"|multiply sequence by non-int of type"
)


def unclear(error: BaseException, names: list[str], arguments: list[str], values: Any) -> str:
    """What is wrong with the text of an error; empty if nothing is.

    It has one of the types that a wrong call may raise; it names the function, and an argument or
    what came; it is short, and speaks of nothing that the caller has not written.

    Args:
        names: Of the function; one has to be in the text.
        arguments: Names of its arguments.
        values: What was given.
    """
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if not isinstance(error, KINDS):
        return f"raises {type(error).__name__}"
    if isinstance(error, MemoryError):
        return ""  # the call makes sense on a larger machine
    if not text:
        return "no text"
    if len(text) > LONGEST:
        return f"{len(text)} characters"
    if python := PYTHON.search(text):
        return "" if python[1] in [*names, "__init__", "__new__"] else f"speaks of {python[1]}()"
    if PLAIN_OPERATOR.search(text) and "Variable" in names:
        return ""
    if found := INNER.search(text):
        return f"says {found[0]!r}"
    if not any(re.search(rf"(?<!\w){re.escape(n)}(?!\w)", text) for n in names):
        return f"does not name the function, {names[0]}"
    arguments = [
        *arguments,
        "result",
        "inputs",
        "array",
        *("initial value" for a in arguments if "init" in a),
    ]
    named = any(re.search(rf"(?<!\w){re.escape(a)}(?!\w)", text) for a in arguments)
    if not named and not any(t in text for v in values for t in descriptions(v)):
        return "names neither an argument nor what came"
    return ""


def descriptions(value: Any) -> list[str]:
    """Texts that tell the user which value is meant."""
    out = [type(value).__name__]
    if isinstance(value, (nn.Variable, nn.NdArray)):
        spec = value.data.spec if isinstance(value, nn.Variable) else value.spec
        out += [str(spec), str(spec.shape), f"nnl.{type(value).__name__}"]
    elif isinstance(value, np.ndarray):
        out += [str(value.shape), str(value.dtype), "numpy array"]
    elif not callable(value) and len(repr(value)) < 80:
        out.append(repr(value))
    if isinstance(value, (tuple, list)):
        out += [d for v in value for d in descriptions(v)]
    return out
