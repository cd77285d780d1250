# SPDX-License-Identifier: Apache-2.0
"""Processes that train together what one would train alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.settings.context import Context


class Team:
    """The processes of a job of MPI, each of which does its share of every minibatch.

    Gradients are averaged over the shares. Where the loss is a mean over samples, what is trained
    is so what one process trains, up to rounding; batch normalization sees its share alone, and
    its running statistics are averaged after every epoch.

    Args:
        context: In which arrays are exchanged.
    """

    def __init__(self, context: Context) -> None:
        from nnl.communicators import MultiProcessDataParallelCommunicator

        self.comm = MultiProcessDataParallelCommunicator(context)
        self.comm.init()
        self.rank, self.size = self.comm.rank, self.comm.size

    def share(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The rows of a minibatch that are this process's."""
        each = len(array) // self.size
        return array[self.rank * each : (self.rank + 1) * each]

    def average(self, arrays: Sequence[NdArray]) -> None:
        """Replace arrays by their means over the processes."""
        if arrays:
            self.comm.all_reduce(list(arrays), division=True)

    def sums(self, *numbers: float) -> list[float]:
        """The sums of numbers over the processes."""
        array = NdArray.from_numpy_array(np.array(numbers, np.float64))
        self.comm.all_reduce(array)
        return [float(n) for n in array.read("host")]
