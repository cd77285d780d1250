# SPDX-License-Identifier: Apache-2.0
"""x[key] of Variable and NdArray, as methods; nnl/core/indexing.py says what they do."""

from __future__ import annotations

from typing import Any


class Items:
    """Reading."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        """The elements that key selects, as numpy has it, copied."""
        from nnl.core.indexing import getitem

        return getitem(self, key)


class ArrayItems(Items):
    """Writing to an NdArray."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        """Overwrite the elements that key selects."""
        from nnl.core.indexing import set_array_item

        set_array_item(self, key, value)  # type: ignore[arg-type]

    def masked_fill(self, mask: Any, value: float) -> Any:
        """Overwrite the elements where mask is not zero, in place, and return this array.

        Args:
            mask: NdArray, Variable or array of a shape that stretches to this one's.
        """
        from nnl.core.indexing import fill_array

        return fill_array(self, mask, value)  # type: ignore[arg-type]

    bool_fill = masked_fill


class VariableItems(Items):
    """Writing to a Variable."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        """From now on this handle is the variable with the elements replaced that key selects."""
        from nnl.core.indexing import set_variable_item

        set_variable_item(self, key, value)  # type: ignore[arg-type]

    def masked_fill_(self, mask: Any, value: float) -> Any:
        """Replace the elements where mask is not zero, as x[mask] = value does; returns x.

        Args:
            mask: Variable, NdArray or array of a shape that stretches to this one's; in a static
                graph it is read at every forward.
        """
        from nnl.core.indexing import fill_variable

        return fill_variable(self, mask, value)  # type: ignore[arg-type]

    bool_fill_ = masked_fill_
