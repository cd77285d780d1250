# SPDX-License-Identifier: Apache-2.0
"""Distributed optimizers: any readable optimizer, wrapped.

    optimizer = ConsistentDecentralized(Momentum(network, lr=0.1))

Every rank has its own network and its own part of the data. One's own scheme is a subclass with
`train`, over the Communication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnl.deep500.distributed.communication import ROOT, Communication
from nnl.deep500.optimizers import Optimizer, Outputs, ThreeStepOptimizer

DONE = 1 << 14  # the tag of a rank that has finished; parameters have their numbers


class DistributedOptimizer(Optimizer):
    """Base: all ranks begin with the root's parameters.

    Args:
        base: The optimizer of one process.
        communication: The ranks; all of the job if left out.
    """

    def __init__(
        self, base: ThreeStepOptimizer, communication: Communication | None = None
    ) -> None:
        super().__init__(base.network)
        self.base = base
        self.communication = communication or Communication()
        if self.communication.size > 1:
            self._copy_from_root()

    def _copy_from_root(self) -> None:
        for name in self.network.parameters():
            (value,) = self.network.fetch([name])
            self.network.feed(name, self.communication.sync_all_with_root(value))

    @property
    def _prepares(self) -> bool:
        return type(self.base).prepare_param is not ThreeStepOptimizer.prepare_param


class ConsistentDecentralized(DistributedOptimizer):
    """Every rank updates with the mean gradient of all: parameters stay the same on all ranks."""

    def train(self, inputs: Mapping[str, Any]) -> Outputs:
        self.base.prepare()
        outs = self.network.inference_and_backprop(inputs)
        for name, gradient in self.network.gradient():
            (grad,) = self.network.fetch([gradient])
            self.base.update(name, self.communication.sync_all(grad, mean=True))
        return outs


class ConsistentParameterServer(DistributedOptimizer):
    """The root gathers all gradients, its own among them, updates with their mean, and sends the
    parameters to all."""

    def train(self, inputs: Mapping[str, Any]) -> Outputs:
        root = self.communication.is_root
        if root:
            self.base.prepare()
        if self._prepares:
            self._copy_from_root()
        outs = self.network.inference_and_backprop(inputs)
        for name, gradient in self.network.gradient():
            gathered = self.communication.gather_at_ps(self.network.fetch([gradient])[0])
            if gathered is not None:
                self.base.update(name, np.mean(gathered, 0, dtype=gathered[0].dtype))
        self._copy_from_root()
        return outs


class ConsistentNeighbors(DistributedOptimizer):
    """Every rank updates with the mean gradient of itself and its neighbours on a ring: less to
    send, and parameters that part where there are more than three ranks."""

    def train(self, inputs: Mapping[str, Any]) -> Outputs:
        self.base.prepare()
        outs = self.network.inference_and_backprop(inputs)
        for name, gradient in self.network.gradient():
            (grad,) = self.network.fetch([gradient])
            self.base.update(name, self.communication.reduce_from_neighbors(grad))
        return outs


class InconsistentParameterServer(DistributedOptimizer):
    """The root only serves: every gradient that arrives changes a parameter at once and the new one
    goes back, so no rank that trains waits for another.

        optimizer.run(lambda: runner.run(epochs))

    calls the function on the ranks that train, and serves on the root until all have finished. A
    process that is alone trains as the wrapped optimizer does.
    """

    def run(self, training: Callable[[], Any]) -> Any:
        """Train or serve; gives what the function gives, and on the root the ranks whose gradients
        came, in their order."""
        c = self.communication
        if c.size == 1:
            return training()
        if c.is_root:
            return self.serve()
        try:
            return training()
        finally:
            c.send_to_root(np.zeros(0), DONE)

    def serve(self) -> list[int]:
        """Answer until every other rank has finished."""
        names = self.network.parameters()
        working, served = self.communication.size - 1, []
        while working:
            grad, tag, rank = self.communication.wait_for_any_slave()
            if tag == DONE:
                working -= 1
                continue
            if tag == 0:  # a step of this rank begins
                self.base.new_input()
                served.append(rank)
            name = names[tag]
            if self._prepares:
                prepared = self.base.prepare_param(name, self.network.fetch([name])[0])
                self.network.feed(name, prepared)
            self.base.update(name, grad)
            self.communication.send_to_specific_slave(self.network.fetch([name])[0], rank, tag)
        return served

    def train(self, inputs: Mapping[str, Any]) -> Outputs:
        c = self.communication
        if c.size == 1:
            return self.base.train(inputs)
        if c.rank == ROOT:
            raise ValueError("InconsistentParameterServer: the root serves; call run(training)")
        outs = self.network.inference_and_backprop(inputs)
        for tag, (name, gradient) in enumerate(self.network.gradient()):
            # one after the other: two ranks that both send large arrays would wait for ever
            c.send_to_root(self.network.fetch([gradient])[0], tag)
            self.network.feed(name, c.wait_for_root()[0])
        return outs


SCHEMES: dict[str, type[DistributedOptimizer]] = {
    "decentralized": ConsistentDecentralized,
    "server": ConsistentParameterServer,
    "neighbors": ConsistentNeighbors,
    "async-server": InconsistentParameterServer,
}
