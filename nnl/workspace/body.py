# SPDX-License-Identifier: Apache-2.0
"""Body: a part of a graph that a loop writes down again and again, with other values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import nnl.functions as F
from nnl.core.graph.variable import Variable
from nnl.workspace.tensor import Operator, Tensor, needed


class Body:
    """What makes some tensors of others that each turn of a loop gives.

    Args:
        given: Tensors whose values each turn gives.
        results: Tensors that it makes.
        since: What neither depends on `given`, nor draws at random by an operator with this number
            or a later one, is computed once, around the loop.
    Attributes:
        operators: What each turn computes.
        around: Tensors that it takes from around it.
        wrt: Those of these that gradients inside are with respect to.
        constant: Whether it gives the same for the same values.
    """

    def __init__(self, given: Sequence[Tensor], results: Sequence[Tensor], since: int) -> None:
        self.given, self.results = list(given), list(results)
        inside = set(given)
        self.operators: list[Operator] = []
        for op in needed(results, given)[0]:
            if any(x in inside for x in op.tensors) or (not op.constant and op.number >= since):
                self.operators.append(op)
                inside.update(op.outputs)
        read = [x for op in self.operators for x in op.tensors] + self.results
        self.around = [x for x in dict.fromkeys(read) if x not in inside]
        self._wrt = {x for op in self.operators for x in op.wrt}
        self.wrt = tuple([x for x in self.around if x in self._wrt])
        self.constant = all(op.constant for op in self.operators)

    def __call__(self, given: Sequence[Any], around: Sequence[Any]) -> list[Any]:
        """The results for values of `given` and of what is around."""
        values = dict(zip([*self.given, *self.around], [*given, *around], strict=True))
        for t in self.given:
            values[t] = self._ready(t, values[t])
        for op in self.operators:
            for t, v in zip(op.outputs, op.results(values), strict=True):
                values[t] = self._ready(t, v)
        return [values[t] for t in self.results]

    def _ready(self, t: Tensor, v: Any) -> Any:
        return differentiable(v) if t in self._wrt else v


def differentiable(v: Any) -> Variable:
    """A value that gradients are with respect to: a result that nothing takes apart again."""
    made = F.identity(v if isinstance(v, Variable) else Variable.from_numpy_array(v))
    made.need_grad = True
    return made
