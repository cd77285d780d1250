# SPDX-License-Identifier: Apache-2.0
"""The steps of a training, one by one, for tests that look at the arrays between them."""

from __future__ import annotations

from typing import Any

import nnl as nn


class Training:
    """A loss, its parameters and their solver in a context; a subclass makes them."""

    context: nn.Context
    loss: nn.Variable
    parameters: dict[str, nn.Variable]
    solver: Any

    def gradients(self) -> None:
        with nn.context_scope(self.context):
            self.loss.forward(clear_no_need_grad=True)
            self.solver.zero_grad()
            self.loss.backward(clear_buffer=True)

    def update(self) -> None:
        with nn.context_scope(self.context):
            self.solver.update()

    def spaces(self, of: str = "data") -> dict[str, list[str]]:
        """Where each parameter, or its gradient, has a current buffer."""
        return {k: sorted(getattr(v, of).bufs) for k, v in self.parameters.items()}
