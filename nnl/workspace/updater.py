# SPDX-License-Identifier: Apache-2.0
"""Updater: gradients of parameters, added up or not, and the solvers that use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nnl.core.graph.variable import Variable
from nnl.graph.recording.compile import compile
from nnl.solvers.base import Solver
from nnl.workspace.tensor import Tensor


class Updater:
    """Parameters, the tensors that are their gradients, and the solvers that update them.

    Args:
        solver: Makes a solver: one for each combination of multipliers.
        pairs: (kept tensor, tensor of its gradient).
        rates: Multiplier of the learning rate for each pair; 1 if left out.
        decays: Multiplier of weight_decay for each pair; 1 if left out.
        weight_decay: What L2 regularization adds to a gradient, times its parameter.
        accumulate: Whether gradients are added to what is there, until `apply`.
    """

    def __init__(
        self,
        solver: Callable[[], Solver],
        pairs: Sequence[tuple[Tensor, Tensor]],
        rates: Sequence[float] | None = None,
        decays: Sequence[float] | None = None,
        weight_decay: float = 0.0,
        accumulate: bool = False,
    ) -> None:
        self.pairs, self.accumulate = list(pairs), accumulate
        self.solvers: dict[tuple[float, float], Solver] = {}
        self.weight_decay = weight_decay
        groups: dict[tuple[float, float], dict[str, Variable]] = {}
        for i, (t, _) in enumerate(self.pairs):
            parameter = t.workspace.parameter(t.key)
            if parameter is None:
                raise ValueError(f"Updater: {t.name!r} is not kept by its workspace")
            kind = (1.0 if rates is None else rates[i], 1.0 if decays is None else decays[i])
            groups.setdefault(kind, {})[t.key] = parameter
        for kind, parameters in groups.items():
            self.solvers[kind] = made = solver()
            made.set_parameters(parameters)
        first = next(iter(self.solvers.values()), None)
        self.set_learning_rate(first.learning_rate() if first is not None else 0.0)
        self._apply = compile(self._record)

    def set_learning_rate(self, rate: float) -> None:
        """Use another learning rate from the next update on; multipliers come on top."""
        self.learning_rate = rate
        for (multiplier, _), solver in self.solvers.items():
            solver.set_learning_rate(rate * multiplier)

    def write(self, gradients: Sequence[Variable], update: bool) -> None:
        """Record that parameters get their gradients, and with `update` are updated."""
        for (t, _), g in zip(self.pairs, gradients, strict=True):
            parameter = t.workspace.parameter(t.key)
            assert parameter is not None
            if self.accumulate:
                parameter.grad += g.data
            else:
                parameter.grad.copy_from(g.data)
        if update:
            self._record()

    def apply(self) -> None:
        """Update parameters by the gradients that are there; sums of them begin at zero again."""
        self._apply()

    def _record(self) -> None:
        for (_, multiplier), solver in self.solvers.items():
            if self.weight_decay * multiplier:
                solver.weight_decay(self.weight_decay * multiplier)
            solver.update()
            if self.accumulate:
                solver.zero_grad()
