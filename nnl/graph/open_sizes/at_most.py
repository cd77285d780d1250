# SPDX-License-Identifier: Apache-2.0
"""at_most: results of which values say how many rows there are, in arrays of a greatest size."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nnl.core.arrays.spec import ShapeError, Spec, check_axis
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.core.settings.context import STATE
from nnl.graph.control_flow.programs import check_variables

CATEGORY = "Control flow"
Array = np.ndarray[Any, Any]


@op("at_most", integer=("count",))
class _AtMost:
    """$y = x$, of which only the first `count` entries along an axis are a result."""

    axis: int = 0

    def resolve(self, x: Spec, count: Spec) -> dict[str, int]:
        return {"axis": check_axis("at_most", self.axis, x)}

    def infer(self, x: Spec, count: Spec) -> Spec:
        if count != Spec.of((), np.int64):
            raise ShapeError(f"at_most: count is {count}, wanted one number of int64")
        return x

    def forward(self, xp: Any, x: Any, count: Any) -> Any:
        return x.copy()

    def vjp(self, gy: Any) -> Any:
        return gy, None

    def cost(self, x: Spec, count: Spec) -> Cost:
        return Cost(0, 2 * x.nbytes)

    def samples(rng: Any) -> Any:  # noqa: N805
        yield Sample(rng.normal(size=(3, 2)), np.array(2), grad=(True, False))


class Counted(NamedTuple):
    """What an output of at_most is made of."""

    x: Value
    number: Value
    axis: int


def at_most(x: Variable, count: Variable, axis: int = 0) -> Variable:
    """Of x the first `count` entries along an axis, a number that values decide.

    Shapes of graphs are known before they run, so a result whose rows values choose is an array
    of the greatest size that it may have, with its rows first. Where this function gives an output
    of a program, whoever runs that gets the rows that there are: in Python, and in C++ after run().
    Functions that read its result read all of x; in dynamic mode (`nnl.auto_forward`) it is the
    slice.

    Args:
        x: An array.
        count: One number, from 0 to the size of x along the axis.
    Raises:
        ShapeError: count is several numbers. ValueError: In a run, count is out of range.

    Example:
        >>> import numpy as np
        >>> import nnl as nn
        >>> import nnl.functions as F
        >>> x = nn.Variable((4,))
        >>> positive = F.greater_scalar(x, 0)
        >>> order = F.sort(positive, reverse=True, only_index=True)  # of equals the first is first
        >>> y = nn.at_most(F.gather(x, order), F.sum(positive))
        >>> nn.save_program("positive.nnlp", {"y": y}, {"x": x})
        >>> nn.load_program("positive.nnlp").run(x=[3, -1, 0, 5])["y"]
        array([3., 5.], dtype=float32)
    """
    check_variables("at_most", (x, count))
    if count.size != 1:
        raise ShapeError(f"at_most: count is {count.spec}, wanted one number")
    if STATE.auto_forward:
        axis = check_axis("at_most", axis, x.spec)
        y: Variable = x[(slice(None),) * axis + (slice(0, int(count.d.item())),)]
        return y
    number = OPS["reshape"](OPS["cast"](count, dtype="int64"), shape=())
    return OPS["at_most"](x, number, axis=axis)  # type: ignore[no-any-return]


def counted(y: Value) -> Counted | None:
    """What a result of at_most is made of; None for any other."""
    if y.node is None or y.node.op.name != "at_most":
        return None
    x, count = y.node.inputs
    if x is None or count is None or count.node is None:  # at_most() computes it
        return None
    return Counted(x, count, y.node.attrs.axis)


def rows_of(what: str, array: Array, count: Any, axis: int) -> Array:
    """The entries that there are.

    Raises:
        ValueError: More than the array has, or fewer than none.
    """
    n = int(count)
    if not 0 <= n <= array.shape[axis]:
        raise ValueError(f"{what}: at_most: count holds {n}, wanted 0 to {array.shape[axis]}")
    return array[(slice(None),) * axis + (slice(0, n),)]
