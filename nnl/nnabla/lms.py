# SPDX-License-Identifier: Apache-2.0
"""Training in less memory than a network takes.

NNabla moves arrays between the GPU and the host for that. nnl computes cheap results a second time:
nnl.memory_budget.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from nnl.core.settings.context import Context
from nnl.graph import memory_budget


class SwapInOutScheduler:
    """`with scheduler:` around a training step keeps its plan within `size` bytes if it can.

    Args:
        h_ctx, d_ctx: Contexts of host and device. Nothing is moved, so they make no difference.
        size: Bytes for all that a step computes; parameters and solver states do not count.
        prefetch_size, save_host_mem, save_host_mem_no_abort: No effect, for the same reason.
    """

    def __init__(
        self,
        h_ctx: Context,
        d_ctx: Context,
        size: float,
        prefetch_size: float | None = None,
        save_host_mem: bool = False,
        save_host_mem_no_abort: bool = False,
    ) -> None:
        self.size = int(size)
        self._budget: AbstractContextManager[None] | None = None

    def start_scheduling(self) -> None:
        """Begin a training step."""
        self._budget = memory_budget(self.size)
        self._budget.__enter__()

    def end_scheduling(self) -> None:
        """End a training step."""
        if self._budget is not None:
            self._budget.__exit__(None, None, None)
            self._budget = None

    def __enter__(self) -> SwapInOutScheduler:
        self.start_scheduling()
        return self

    def __exit__(self, *error: Any) -> None:
        self.end_scheduling()

    # None, as hooks: with one, a graph runs function by function and keeps everything.
    function_pre_hook = function_post_hook = None
    update_pre_hook = update_post_hook = None
