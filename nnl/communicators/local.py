# SPDX-License-Identifier: Apache-2.0
"""The communicator of several devices, or copies of a network, in one process."""

from __future__ import annotations

from nnl.communicators.base import Communicator, Group
from nnl.communicators.channel import Channel


class DataParallelCommunicator(Communicator):
    """Sums gradients over copies of the parameters that one process holds.

    Each copy is registered with `add_context_and_parameters`, all with the same names; then
    `allreduce` gives every copy the sum over the copies. `size` is their number. The other
    collectives are those of a single rank.

    Example:
        >>> comm = C.DataParallelCommunicator(nn.get_current_context())
        >>> comm.init()
        >>> comm.size
        1
    """

    def init(self) -> None:
        """Check the registered parameters.

        Raises:
            ValueError: Two copies have different names or shapes.
        """
        first = self._registered[0][1] if self._registered else {}
        for i, (_, params) in enumerate(self._registered):
            if {k: v.shape for k, v in params.items()} != {k: v.shape for k, v in first.items()}:
                raise ValueError(
                    f"init: the parameters of context {i} are "
                    f"{ {k: v.shape for k, v in params.items()} }, wanted those of context 0, "
                    f"{ {k: v.shape for k, v in first.items()} }"
                )
        self.size = max(len(self._registered), 1)
        self._groups = {"world": Group("world", (0,), Channel(), Channel())}

    def allreduce(self, division: bool = False, inplace: bool = False) -> None:
        """Give every copy's gradients the sum over the copies."""
        self._group("allreduce", "world")
        if not self._registered:
            raise ValueError("allreduce: no parameters, call add_context_and_parameters first")
        for key in self._registered[0][1]:
            grads = [params[key].grad for _, params in self._registered]
            if all(nd.zeroing for nd in grads):
                continue
            total = sum(nd.read("host") for nd in grads)
            total = total / len(grads) if division else total
            for nd in grads:
                nd.touch("host")[...] = total
