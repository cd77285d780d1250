# SPDX-License-Identifier: Apache-2.0
"""The communicator between processes, and its choice of a back end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from nnl.communicators.base import Communicator, Group
from nnl.communicators.channel import Channel
from nnl.core.settings.context import Context

BACKENDS = ("local", "shared", "mpi", "nccl")
_WORLD: list[Any] = []  # the World of this process, once it is needed

Opener = Callable[[Sequence[int]], tuple[Channel, Channel]]


def world() -> Any:
    """The World of this process; made once, by all ranks together."""
    if not _WORLD:
        from nnl.communicators.mpi import World

        _WORLD.append(World())
    return _WORLD[0]


class MultiProcessDataParallelCommunicator(Communicator):
    """Data parallel training in several processes, which mpiexec or `nnl launch` has started.

    Args:
        ctx: Context whose arrays are exchanged.

    Example:
        >>> import nnl as nn
        >>> import nnl.communicators as C
        >>> comm = C.MultiProcessDataParallelCommunicator(nn.get_current_context())
        >>> comm.init()
        >>> comm.rank, comm.size
        (0, 1)
    """

    def init(self) -> None:
        if self._groups:
            return
        wanted = os.environ.get("NNL_COMMUNICATOR", "")
        if wanted not in ("", *BACKENDS):
            raise ValueError(
                f"init: NNL_COMMUNICATOR is {wanted!r}, wanted one of {', '.join(BACKENDS)}"
            )
        backend, opener = self._choose(wanted)
        if backend != "local":
            w = world()
            w.channel.agree(f"init() of nnl {metadata.version('nnl')}")
            self.rank, self.size, self.local_rank = w.rank, w.size, w.local_rank
        self._open = opener
        ranks = range(self.size)
        self._groups["world"] = Group("world", ranks, *opener(ranks))

    def _choose(self, wanted: str) -> tuple[str, Opener]:
        """The name of a back end, and what makes the two channels of a group."""
        from nnl.communicators.mpi import started_by_mpi

        if wanted == "local" or (not wanted and not started_by_mpi()):
            return "local", lambda ranks: (Channel(), Channel())
        w = world()
        on_device = any(b.space != "host" for b in self.ctx.target.backends)
        if not wanted:
            shared = w.one_node and sys.platform == "linux"
            wanted = "nccl" if on_device else "shared" if shared else "mpi"
        elif wanted == "nccl" and not on_device:
            raise ValueError(
                f"init: NNL_COMMUNICATOR is 'nccl', but {self.ctx} computes in host memory"
            )
        elif wanted == "shared" and not w.one_node:
            raise ValueError(
                "init: NNL_COMMUNICATOR is 'shared', but the processes run on several nodes"
            )
        kind: Any
        if wanted == "nccl":
            from nnl.communicators.nccl import NcclChannel as kind
            from nnl.communicators.nccl import gpu_of
            from nnl.ext.cuda import get_device_count

            own = str(gpu_of(w, get_device_count()))
            self.ctx = Context(self.ctx.backend, self.ctx.array_class, own)
        elif wanted == "shared":
            from nnl.communicators.shared import SharedChannel as kind
        else:
            from nnl.communicators.mpi import MpiChannel as kind
        return wanted, lambda ranks: (kind(w, tuple(ranks)), kind(w, tuple(ranks)))

    def abort(self) -> None:
        if self.size > 1:
            world().abort()
        super().abort()


# ---- nnabla.utils.communicator_util ----

_CURRENT: list[Communicator] = []


def create_communicator(
    ignore_error: bool = False, extension_module: str = "cudnn", type_config: str = "float"
) -> Communicator | None:
    """Make the communicator of this process, which `current_communicator` then gives.

    Args:
        ignore_error: Go on without one where it cannot be made.
        extension_module, type_config: Of the context; see get_extension_context.
    Returns:
        None for a single process.
    Example:
        >>> C.create_communicator(ignore_error=True) is None  # no launcher has started this
        True
    """
    from nnl.communicators.mpi import started_by_mpi
    from nnl.ext import get_extension_context

    _CURRENT.clear()
    if not started_by_mpi():
        return None
    try:
        context = get_extension_context(extension_module, type_config=type_config)
        comm = MultiProcessDataParallelCommunicator(context)
        comm.init()
    except (ModuleNotFoundError, NotImplementedError, ValueError) as e:
        if not ignore_error:
            raise
        import logging

        logging.getLogger("nnl").warning("create_communicator: %s; going on without one", e)
        return None
    context.device_id = str(comm.local_rank)
    if comm.size > 1:
        _CURRENT.append(comm)
    return current_communicator()


def current_communicator() -> Communicator | None:
    """What create_communicator has made; None for a single process.

    Example:
        >>> C.current_communicator() is None
        True
    """
    return _CURRENT[0] if _CURRENT else None


def single_or_rankzero() -> bool:
    """Whether this process is the one that writes files and prints.

    Example:
        >>> C.single_or_rankzero()
        True
    """
    return not _CURRENT or _CURRENT[0].rank == 0


__all__ = [
    "MultiProcessDataParallelCommunicator",
    "create_communicator",
    "current_communicator",
    "single_or_rankzero",
    "world",
]
