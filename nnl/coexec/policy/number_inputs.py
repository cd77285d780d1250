# SPDX-License-Identifier: Apache-2.0
"""Functions of an array and a number that varies: the number becomes an input."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import Spec
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import Op
from nnl.core.settings.context import STATE
from nnl.graph.program.program import SPACE

# Functions of an array and a number, and the same of two arrays.
WITH_INPUT = {
    "add_scalar": "add2",
    "mul_scalar": "mul2",
    "r_sub_scalar": "sub2",
    "r_div_scalar": "div2",
    "maximum_scalar": "maximum2",
    "minimum_scalar": "minimum2",
    "greater_scalar": "greater",
    "greater_equal_scalar": "greater_equal",
    "less_scalar": "less",
    "less_equal_scalar": "less_equal",
}


def as_inputs(op: Op, attrs: Any, x: Any) -> tuple[Any, Any]:
    """The inputs of the function of two arrays that does what one of an array and a number does."""
    dtype = STATE.target.float_dtype
    number = np.full((1,) * len(x.shape), attrs.val, dtype)
    nd = NdArray.holding(Spec.of(number.shape, dtype), SPACE, number)
    y = nd if isinstance(x, NdArray) else Variable.of_edge(Value.leaf(nd), nd)
    return (y, x) if op.name.startswith("r_") else (x, y)
