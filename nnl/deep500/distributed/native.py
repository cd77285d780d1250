# SPDX-License-Identifier: Apache-2.0
"""Distributed optimizers around those of a back end: gradients are exchanged between its backward
pass and its own optimizer, in place where its arrays can be written to. On nnl's GPU contexts NCCL
carries them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnl.deep500.distributed.communication import Communication
from nnl.deep500.optimizers import NativeOptimizer, Optimizer, Outputs


class NativeDistributed(Optimizer):
    """Base: subclasses say what is exchanged before and after the update.

    Args:
        base: An optimizer of the back end.
        communication: The ranks; all of the job if left out.
    """

    def __init__(self, base: NativeOptimizer, communication: Communication | None = None) -> None:
        super().__init__(base.network)
        self.base = base
        self.communication = communication or Communication()
        self._begun = False

    def train(self, inputs: Mapping[str, Any]) -> Outputs:
        parts = self.base.parts
        if parts.change_gradients is None or parts.change_parameters is None:
            raise NotImplementedError(
                f"{self.name}: {self.network.backend} does not give its gradients to change"
            )
        if not self._begun:
            parts.change_parameters(self.communication.copy_from_root)
            self._begun = True
        outs: Outputs = parts.run(inputs)
        parts.change_gradients(self.exchange_gradients)
        if self.updates():
            parts.update()
        if type(self).exchange_parameters is not NativeDistributed.exchange_parameters:
            parts.change_parameters(self.exchange_parameters)
        return outs

    def exchange_gradients(self, arrays: list[Any]) -> None:
        """Make the gradients what this rank updates with, in place."""
        raise NotImplementedError(f"{self.name}: implement exchange_gradients(arrays)")

    def updates(self) -> bool:
        """Whether this rank updates its parameters."""
        return True

    def exchange_parameters(self, arrays: list[Any]) -> None:
        """After the update; here nothing."""


class NativeConsistentDecentralized(NativeDistributed):
    """All-reduce of the gradients, then every rank updates: what Horovod does."""

    def exchange_gradients(self, arrays: list[Any]) -> None:
        self.communication.mean_in_place(arrays)


class NativeConsistentParameterServer(NativeDistributed):
    """Reduce to the root, which updates and broadcasts."""

    def exchange_gradients(self, arrays: list[Any]) -> None:
        self.communication.mean_at_root(arrays)

    def updates(self) -> bool:
        return self.communication.is_root

    def exchange_parameters(self, arrays: list[Any]) -> None:
        self.communication.copy_from_root(arrays)


class NativeConsistentNeighbors(NativeDistributed):
    """Means with the neighbours on a ring."""

    def exchange_gradients(self, arrays: list[Any]) -> None:
        self.communication.neighbors_mean_in_place(arrays)


NATIVE_SCHEMES: dict[str, type[NativeDistributed]] = {
    "decentralized": NativeConsistentDecentralized,
    "server": NativeConsistentParameterServer,
    "neighbors": NativeConsistentNeighbors,
}
