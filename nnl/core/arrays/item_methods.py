# SPDX-License-Identifier: Apache-2.0
"""x[key] of Variable and NdArray, as methods; nnl/core/ops/indexing.py says what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DOES: dict[str, Callable[..., Any]] = {}  # what nnl/core/ops/indexing.py puts here


class Items:
    """Reading."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        """The elements that key selects, as numpy has it, copied."""
        return DOES["getitem"](self, key)


class ArrayItems(Items):
    """Writing to an NdArray."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        """Overwrite the elements that key selects."""
        DOES["set_array_item"](self, key, value)

    def masked_fill(self, mask: Any, value: float) -> Any:
        """Overwrite the elements where mask is not zero, in place, and return this array.

        Args:
            mask: NdArray, Variable or array of a shape that stretches to this one's.
        """
        return DOES["fill_array"](self, mask, value)

    bool_fill = masked_fill


class VariableItems(Items):
    """Writing to a Variable."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        """From now on this handle is the variable with the elements replaced that key selects."""
        DOES["set_variable_item"](self, key, value)

    def masked_fill_(self, mask: Any, value: float) -> Any:
        """Replace the elements where mask is not zero, as x[mask] = value does; returns x.

        Args:
            mask: Variable, NdArray or array of a shape that stretches to this one's; in a static
                graph it is read at every forward.
        """
        return DOES["fill_variable"](self, mask, value)

    bool_fill_ = masked_fill_
