# SPDX-License-Identifier: Apache-2.0
"""What records the calls of a thread asks for: nnl.compile, the recorder of networks, exporters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from nnl.core.context import using

if TYPE_CHECKING:
    from nnl.core.array import NdArray
    from nnl.core.graph import Value
    from nnl.core.variable import Variable


class Tracer(Protocol):
    """Told of what a thread records while it is the thread's `STATE.tracer`."""

    def recorded(self, ys: Sequence[Variable]) -> None:
        """A function was recorded, and these are all its results."""

    def called(self, module: Any, call: Callable[[], Any]) -> Any:
        """A Module is called: return what `call` does."""


class Deferring(Tracer, Protocol):
    """A tracer under which nothing is computed: what is recorded runs later, as often as wanted.

    While it is `STATE.trace`, too, whatever reads or writes a value asks it first.

    Attributes:
        gradients: {id: array} of gradients, as far as the thread has asked for them.
        grads: {id: (array, value)} of arrays with a known value; None is zero.
    """

    gradients: dict[int, NdArray]
    grads: dict[int, tuple[NdArray, Variable | None]]

    def inputs(self, xs: Sequence[Variable | None], writes: Sequence[int]) -> list[Value | None]:
        """The edges that a function reads which is given `xs` and writes those at `writes`."""

    def effect(self, result: Variable) -> None:
        """The function that computes `result` writes its inputs, so it must run."""

    def forward(self, outputs: Sequence[Variable]) -> None: ...

    def backward(self, output: Variable, grad: Any) -> None: ...

    def gradient(self, param: Variable) -> Variable | None:
        """The gradient of a parameter at this point; None where it is zero."""

    def set_gradient(self, param: Variable, value: Variable | None) -> None: ...

    def variable(self, nd: NdArray) -> Variable:
        """An array as an input of functions."""

    def of_arrays(self, ys: Sequence[Variable]) -> None:
        """These are results of a function of arrays: their arrays may be written."""

    def made(self, nd: NdArray) -> None:
        """An array was made."""

    def outlives(self, nd: NdArray) -> None:
        """An array that was made is a parameter."""

    def check_read(self, nd: NdArray) -> None:
        """Raise ValueError if numpy may not see the array."""

    def check_write(self, nd: NdArray, what: str) -> None:
        """Raise ValueError if numpy may not write the array."""

    def fill(self, nd: NdArray, value: Any) -> bool:
        """All elements get a value; whether that was recorded."""

    def assign(self, nd: NdArray, value: NdArray) -> None:
        """An array gets the value of another."""


def tracing(tracer: Any, defers: bool = False) -> AbstractContextManager[None]:
    """Tell this tracer, and no other, of what the thread records inside the with block."""
    return using(tracer=tracer, trace=tracer if defers else None)
