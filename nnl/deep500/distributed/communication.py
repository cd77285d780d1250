# SPDX-License-Identifier: Apache-2.0
"""What ranks say to each other: the thesis's table 5.6 over nnl's communicators.

Collectives are those of the communicator, with its checks and its back ends; messages from one rank
to another go through MPI.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnl.communicators import MultiProcessDataParallelCommunicator
from nnl.communicators.multi_process import world
from nnl.core.arrays.array import NdArray
from nnl.core.settings.context import Context
from nnl.ext import get_extension_context

ROOT = 0


class Communication:
    """The ranks of a job; one rank where the process was started alone.

    Args:
        context: Whose arrays the native schemes exchange: on a GPU NCCL carries them.
    """

    def __init__(self, context: Context | None = None) -> None:
        self.communicator = MultiProcessDataParallelCommunicator(
            context or get_extension_context("cpu")
        )
        self.communicator.init()
        self.rank, self.size = self.communicator.rank, self.communicator.size
        self.is_root = self.rank == ROOT
        self._mpi: Any = None

    @property
    def mpi(self) -> Any:
        """MPI's communicator for messages between two ranks."""
        if self._mpi is None:
            if self.size == 1:
                raise ValueError("there is one rank, and nobody to send to or to wait for")
            self._mpi = world().comm
        return self._mpi

    # ---- collectives: every rank calls them ----

    def sync_all(self, tensor: Any, mean: bool = False) -> Any:
        """The sum over all ranks, or their mean, on all ranks."""
        nd = NdArray.from_numpy_array(np.array(tensor))
        self.communicator.all_reduce(nd, division=mean)
        return nd.data

    def sync_all_with_root(self, tensor: Any) -> Any:
        """The root's array, on all ranks."""
        nd = NdArray.from_numpy_array(np.array(tensor))
        self.communicator.bcast(nd, ROOT)
        return nd.data

    def reduce_at_root(self, tensor: Any, mean: bool = False) -> Any:
        """The sum or mean over all ranks on the root, zeros on the others."""
        nd = NdArray.from_numpy_array(np.array(tensor))
        self.communicator.reduce(nd, ROOT, division=mean)
        return nd.data if self.is_root else np.zeros_like(nd.data)

    def all_gather(self, tensor: Any) -> Any:
        """Every rank's array, as rows (ranks, ...) on all ranks."""
        own = NdArray.from_numpy_array(np.array(tensor))
        rows = [NdArray.from_numpy_array(np.zeros_like(own.data)) for _ in range(self.size)]
        self.communicator.all_gather(own, rows)
        return np.stack([nd.data for nd in rows])

    def reduce_scatter(self, rows: Any) -> Any:
        """The sum over all ranks of the row (ranks, ...) that has this rank's number."""
        parts = [NdArray.from_numpy_array(np.array(r)) for r in rows]
        out = NdArray.from_numpy_array(np.zeros_like(parts[0].data))
        self.communicator.reduce_scatter(parts, out)
        return out.data

    def gather_at_ps(self, tensor: Any) -> list[Any] | None:
        """Every rank's array on the root, its own among them; None on the others."""
        if self.size == 1:
            return [np.array(tensor)]
        if not self.is_root:
            self.send_to_root(tensor, 0)
            return None
        with world().watched("gather_at_ps"):
            others = [self.mpi.recv(source=r, tag=0) for r in range(1, self.size)]
        return [np.array(tensor), *others]

    def reduce_from_neighbors(self, tensor: Any, mean: bool = True) -> Any:
        """The mean, or the sum, over this rank and its neighbours on the ring.

        Each neighbour counts once: with two ranks there is one, with one rank none.
        """
        around = sorted({(self.rank + d) % self.size for d in (-1, 1)} - {self.rank})
        total = np.array(tensor)
        if around:
            with world().watched("reduce_from_neighbors"):
                sent = [self.mpi.isend(np.asarray(tensor), r, 1) for r in around]
                for r in around:
                    total = total + self.mpi.recv(source=r, tag=1)
                for request in sent:
                    request.wait()
        return total / (len(around) + 1) if mean else total

    # ---- messages ----

    def send(self, tensor: Any, dest: int, tag: int) -> None:
        """Send an array to a rank."""
        with world().watched(f"send to rank {dest}"):
            self.mpi.send(np.asarray(tensor), dest, tag)

    def receive(self, source: int, tag: int) -> Any:
        """Wait for an array of a rank."""
        with world().watched(f"receive from rank {source}"):
            return self.mpi.recv(source=source, tag=tag)

    def send_to_root(self, tensor: Any, tag: int = 0) -> None:
        """Send an array to rank 0."""
        self.send(tensor, ROOT, tag)

    def send_to_specific_slave(self, tensor: Any, dest: int, tag: int = 0) -> None:
        """Send an array from the root to a rank."""
        self.send(tensor, dest, tag)

    def wait_for_any_slave(self) -> tuple[Any, int, int]:
        """On the root: the next array that arrives, its tag, and the rank that has sent it."""
        status = world().MPI.Status()
        value = self.mpi.recv(source=world().MPI.ANY_SOURCE, status=status)
        return value, status.Get_tag(), status.Get_source()

    def wait_for_root(self) -> tuple[Any, int]:
        """The next array of the root, and its tag."""
        status = world().MPI.Status()
        with world().watched("wait_for_root"):
            value = self.mpi.recv(source=ROOT, status=status)
        return value, status.Get_tag()

    # ---- arrays of back ends, in place ----

    def mean_in_place(self, arrays: Sequence[Any]) -> None:
        """Replace arrays - numpy's, or nnl's on any device - by their means over the ranks."""
        self._in_place(arrays, lambda own: self.communicator.all_reduce(own, division=True))

    def mean_at_root(self, arrays: Sequence[Any]) -> None:
        """As mean_in_place(), but only the root gets the means."""
        self._in_place(arrays, lambda own: self.communicator.reduce(own, ROOT, division=True))

    def copy_from_root(self, arrays: Sequence[Any]) -> None:
        """Replace arrays by the root's."""
        self._in_place(arrays, lambda own: self.communicator.bcast(own, ROOT))

    def _in_place(self, arrays: Sequence[Any], collective: Callable[[list[NdArray]], None]) -> None:
        """Let one call change all arrays, numpy's by way of copies."""
        own = [
            a if isinstance(a, NdArray) else NdArray.from_numpy_array(np.array(a)) for a in arrays
        ]
        collective(own)
        for a, nd in zip(arrays, own, strict=True):
            if a is not nd:
                a[...] = nd.data

    def neighbors_mean_in_place(self, arrays: Sequence[Any]) -> None:
        """Replace arrays by the means over this rank and its neighbours."""
        for a in arrays:
            host = a.data if isinstance(a, NdArray) else a
            host[...] = self.reduce_from_neighbors(host)
