# SPDX-License-Identifier: Apache-2.0
"""What plans and passes ask of a library of kernels, and what bindings of ops to them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from nnl.core.elementwise import is_elementwise, program_of

Specs = Sequence[tuple[tuple[int, ...], int, int] | None]  # see native_spec
PROGRAM = "fused_elementwise"  # the kernel that runs element-wise programs
FLOATS = 4  # element types below this number are floating-point ones


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

    def Plan(self, offsets: Sequence[int], arena_bytes: int) -> Any:
        """Steps to be run over slots at these offsets; negative for one that lies elsewhere."""

    def python_step(self, call: Callable[[], Any]) -> Any:
        """A kernel that calls back."""

    def array_at(self, address: int, shape: Any, dtype: Any, owner: Any) -> Any:
        """An array over memory that `owner` keeps."""


@cache
def kernel_names(lib: Any) -> frozenset[str]:
    """Ops for which a library has a kernel for some dtypes and shapes; none without a library."""
    return frozenset(lib.kernel_names()) if lib is not None else frozenset()


def knows(lib: Any, op: str) -> bool:
    """Whether a library may have a kernel for an op: one of its own, or a program to run."""
    names = kernel_names(lib)
    return op in names or (PROGRAM in names and is_elementwise(op))


def request(
    lib: Any, op: str, attrs: Mapping[str, Any], ins: Specs, outs: Specs
) -> tuple[str, dict[str, Any]] | None:
    """The name and the attributes by which to ask a library for the kernel of an op.

    Without a kernel of its own, an element-wise op is asked for as its program. None: the library
    has nothing for these arrays.
    """
    if op in kernel_names(lib):
        return op, plain_attributes(attrs)
    if len(outs) != 1 or outs[0] is None or outs[0][1] >= FLOATS:
        return None
    if any(x is None for x in ins) or not ins or ins[0][1] >= FLOATS:  # type: ignore[index]
        return None
    shapes = [x[0] for x in ins if x is not None]
    found = program_of(op, attrs, shapes)
    if found is None:
        return None
    result = len(ins) + len(found.code) // 4 - 1
    plain: dict[str, Any] = {
        "code": found.code, "constants": found.constants, "outputs": (result,),
    }  # fmt: skip
    if list(found.shapes) != shapes:
        rank = len(outs[0][0])
        plain["shapes"] = tuple([n for s in found.shapes for n in (1,) * (rank - len(s)) + s])
    return PROGRAM, plain


def plain_attributes(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attribute values by name, as far as kernels take them."""
    return {k: v for k, v in attrs.items() if is_plain(v)}


def is_plain(value: Any) -> bool:
    """Whether a value is a number, a text, None, or a sequence of numbers."""
    if isinstance(value, tuple):
        return all(isinstance(v, (int, float)) for v in value)
    return value is None or isinstance(value, (bool, int, float, str))


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
