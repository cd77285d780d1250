# SPDX-License-Identifier: Apache-2.0
"""Communication as operators of a graph, with gradients, for every back end that trains.

Every rank has the same graph around them and runs it in step. Ranks that a result does not belong
to get zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.deep500.distributed.communication import Communication
from nnl.deep500.operation import Operation

_WORLD: list[Communication] = []


def ranks() -> Communication:
    """The ranks of the job; connected when the first operator runs."""
    if not _WORLD:
        _WORLD.append(Communication())
    return _WORLD[0]


class Collective(Operation, abstract=True):
    """Base of the operators here."""

    domain = "deep500"


class AllReduce(Collective):
    """The sum over all ranks on all ranks."""

    def forward(self, x: Any) -> Any:
        return ranks().sync_all(x)

    def backward(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        return ranks().sync_all(grads[0])


class AllReduceMean(Collective):
    """The mean over all ranks on all ranks."""

    def forward(self, x: Any) -> Any:
        return ranks().sync_all(x, mean=True)

    def backward(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        return ranks().sync_all(grads[0], mean=True)


class Broadcast(Collective):
    """The root's array on all ranks."""

    def forward(self, x: Any) -> Any:
        return ranks().sync_all_with_root(x)

    def backward(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        return ranks().reduce_at_root(grads[0])


class Reduce(Collective):
    """The sum over all ranks on the root."""

    def forward(self, x: Any) -> Any:
        return ranks().reduce_at_root(x)

    def backward(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        return ranks().sync_all_with_root(grads[0])


class ReduceToMean(Collective):
    """The mean over all ranks on the root."""

    def forward(self, x: Any) -> Any:
        return ranks().reduce_at_root(x, mean=True)

    def backward(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        return ranks().sync_all_with_root(grads[0]) / ranks().size


class AllGather(Collective):
    """All ranks' arrays as rows of a new first axis, on all ranks."""

    def forward(self, x: Any) -> Any:
        return ranks().all_gather(x)

    def backward(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        return ranks().reduce_scatter(grads[0])

    def output_shapes(self, *shapes: tuple[int, ...]) -> Any:
        return [(ranks().size, *shapes[0])]


class Gather(AllGather):
    """As AllGather, on the root."""

    def forward(self, x: Any) -> Any:
        rows = ranks().gather_at_ps(x)
        return np.zeros((ranks().size, *x.shape), x.dtype) if rows is None else np.stack(rows)

    def backward(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        return ranks().sync_all_with_root(grads[0])[ranks().rank]


class ReduceScatter(Collective):
    """Of rows, one per rank: the sum over all ranks of the row with this rank's number."""

    def forward(self, x: Any) -> Any:
        return ranks().reduce_scatter(x)

    def backward(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        return ranks().all_gather(grads[0])

    def output_shapes(self, *shapes: tuple[int, ...]) -> Any:
        return [shapes[0][1:]]


class Send(Collective):
    """Sends its input to rank `dest` and passes it on; its gradient is joined by the receiver's."""

    dest: int = 0
    tag: int = 0

    def forward(self, x: Any) -> Any:
        ranks().send(x, self.dest, 2 * self.tag + 100)
        return x

    def backward(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        return grads[0] + ranks().receive(self.dest, 2 * self.tag + 101)


class Recv(Collective):
    """What rank `source` sends; the input only tells the shape. The gradient goes to the sender."""

    source: int = 0
    tag: int = 0

    def forward(self, x: Any) -> Any:
        return ranks().receive(self.source, 2 * self.tag + 100)

    def backward(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        ranks().send(grads[0], self.source, 2 * self.tag + 101)
        return None
