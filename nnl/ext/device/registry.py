# SPDX-License-Identifier: Apache-2.0
"""Kernels of a device by the name of their op: a setup takes a call, or declines it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnl.ext.library import Abilities


@dataclass(frozen=True)
class Operand:
    """An input or output of a kernel.

    Attributes:
        shape: Always in the order (N, C, spatial...).
        dtype: A numpy dtype; bfloat16 is that of ml_dtypes.
        channels_last: Whether the elements lie in memory in the order (N, spatial..., C).
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    channels_last: bool = False
    size: int = field(init=False, compare=False)
    nbytes: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", math.prod(self.shape))
        object.__setattr__(self, "nbytes", self.size * self.dtype.itemsize)


class Kernel:
    """A call that is set up: it launches work on a stream and nothing else.

    Attributes:
        workspace: Bytes of device memory that `run` may use as it likes.
    """

    workspace: int = 0

    def may_overwrite(self, out: int, input: int) -> bool:
        """Whether an output may be the memory of an input, both by position."""
        return False

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: Any
    ) -> None:
        """Launch, given device addresses (None for an input left out) and the stream.

        It does not wait for the device, allocates nothing, and may be captured in a graph.
        """
        raise NotImplementedError(f"{type(self).__name__}.run")


Setup = Callable[[dict[str, Any], list[Operand | None], list[Operand]], Kernel | None]


class Registry(dict[str, list[Setup]]):
    """The setups of a kind of device.

    Attributes:
        abilities: {op: those of its kernels}, as far as they have any.
    """

    def __init__(self) -> None:
        self.abilities: dict[str, Abilities] = {}

    def register(self, *names: str, abilities: Abilities | None = None) -> Callable[[Setup], Setup]:
        """Add a setup for ops by name; the one that was added last is asked first."""

        def add(setup: Setup) -> Setup:
            for name in names:
                self.setdefault(name, []).insert(0, setup)
                if abilities is not None:
                    self.abilities[name] = abilities
            return setup

        return add

    def extended(self) -> Registry:
        """A registry with the same setups, for more that are asked before."""
        made = Registry()
        made.update({name: list(setups) for name, setups in self.items()})
        made.abilities.update(self.abilities)
        return made

    def find(
        self,
        op: str,
        attrs: dict[str, Any],
        ins: list[Operand | None],
        outs: list[Operand],
    ) -> Kernel | None:
        """The kernel of the first setup that takes these arguments; None if all decline."""
        found = (setup(attrs, ins, outs) for setup in self.get(op, ()))
        return next((kernel for kernel in found if kernel is not None), None)
