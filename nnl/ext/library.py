# SPDX-License-Identifier: Apache-2.0
"""What plans and passes ask of a library of kernels, and what bindings of ops to them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Specs = Sequence[tuple[tuple[int, ...], int, int] | None]  # see native_spec


@dataclass(frozen=True)
class Traits:
    """What is worth doing with a library, besides what it has kernels for.

    Attributes:
        places: What summaries call a step with a kernel, and one without.
        least_attention_bytes: Size of the weights from which on attention is one step.
        most_rows_added_to: Rows of a matrix up to which an addition joins its product.
        computes_again: Whether results of normalizations are computed again for backward instead of
            kept.
    """

    places: tuple[str, str]
    least_attention_bytes: int
    most_rows_added_to: int
    computes_again: bool


class Library(Protocol):
    """The kernels of a memory space: the module in C++, or a device's."""

    traits: Traits

    def kernel_names(self) -> list[str]:
        """Ops for which it has a kernel for some dtypes and shapes."""

    def kernel(self, op: str, attrs: Mapping[str, Any], ins: Specs, outs: Specs) -> Any:
        """The kernel of an op for these arrays; None if there is none."""

    def elementwise_names(self) -> Sequence[str]:
        """Ops that are programs for fused_elementwise."""

    def elementwise_code(
        self, op: str, attrs: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]
    ) -> Any:
        """(code, constants, shapes) of an op's program; None where it has none."""

    def Plan(self, offsets: Sequence[int], arena_bytes: int) -> Any:
        """Steps to be run over slots at these offsets; negative for one that lies elsewhere."""

    def python_step(self, call: Callable[[], Any]) -> Any:
        """A kernel that calls back."""

    def array_at(self, address: int, shape: Any, dtype: Any, owner: Any) -> Any:
        """An array over memory that `owner` keeps."""


def is_list(op: Any, attrs: Any, in_specs: tuple[Any, ...]) -> bool:
    """Whether callers of an op want a tuple, even of one array."""
    return op.variadic_out and isinstance(attrs.infer(*in_specs), tuple)


def into(call: Callable[..., Any], *bufs: Any, out: Any = None) -> Any:
    """Let a call that does not know out= take it."""
    y = call(*bufs)
    if out is None:
        return y
    out[...] = y
    return out
