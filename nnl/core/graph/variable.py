# SPDX-License-Identifier: Apache-2.0
"""Variable: the user's handle on an edge of the graph, its data and its gradient."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import USUAL, as_input, checked, flag
from nnl.core.arguments.suggest import VARIABLE, knows_elsewhere
from nnl.core.arrays.array import Host, NdArray
from nnl.core.arrays.item_methods import VariableItems
from nnl.core.arrays.operators import Operators
from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.graph.graph_methods import Handle
from nnl.core.graph.node import Copy, Value
from nnl.core.settings.context import EPOCH, STATE

Hook = Callable[[Any], None]
logger = logging.getLogger("nnl")


@knows_elsewhere(VARIABLE)
class Variable(Operators, VariableItems, Handle):
    """Data and gradient of one edge of a graph.

    Args:
        shape: Sizes; a scalar if left out.
        need_grad: Whether backward() shall write its gradient. False if left out.
        info: Anything the caller wants to keep with it.
    Example:
        >>> x = nn.Variable((2,), need_grad=True)
        >>> x.d = [1, 2]
        >>> y = F.sum(x**2)
        >>> y.forward()
        >>> y.backward()
        >>> x.g
        array([2., 4.], dtype=float32)
    """

    __slots__ = ("edge", "_data", "sessions", "info", "__weakref__")
    edge: Value
    _data: NdArray
    info: Any
    sessions: dict[Any, Any] | None  # plans of graphs that end here, kept by the executor

    def __new__(  # and no __init__: scripts derive classes that pass other arguments on
        cls,
        shape: Sequence[int] | int = (),
        need_grad: bool | None = None,
        info: Any = None,
    ) -> Variable:
        try:
            data = NdArray(shape)
        except (TypeError, ShapeError) as e:
            raise type(e)(str(e).replace("NdArray", "Variable")) from None
        v = Variable.of_edge(Value.leaf(data, bool(need_grad)), data, cls)
        v.info = info
        return v

    @staticmethod
    def of_edge(edge: Value, data: NdArray, kind: type[Variable] | None = None) -> Variable:
        """A handle on an edge, with the array that holds its data."""
        v: Variable = object.__new__(kind or Variable)
        v.edge, v._data = edge, data
        v.sessions = v.info = None
        return v

    @staticmethod
    def on(edge: Value) -> Variable:
        """A handle on an edge that exists already."""
        return Variable.of_edge(edge, edge.array)

    @staticmethod
    def from_numpy_array(data: Any, grad: Any = None, need_grad: bool | None = None) -> Variable:
        """A leaf that holds a copy of a numpy array, with its dtype."""
        nd = NdArray.from_numpy_array(data)
        v = Variable.of_edge(Value.leaf(nd, bool(need_grad)), nd)
        if grad is not None:
            v.g = grad
        return v

    # ---- data and gradient ----

    @property
    def spec(self) -> Spec:
        """Shape and dtype of the data."""
        return self._data.spec

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self._data.spec.shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._data.spec.size

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._data.spec.shape)

    def size_from_axis(self, axis: int = -1) -> int:
        """Product of the sizes from `axis` on; the whole size for a negative axis."""
        return self._data.size_from_axis(axis)  # type: ignore[no-any-return]

    @property
    def d(self) -> Host:
        """The value as a writable numpy array; zeros, with a warning, before the first forward.

        Raises:
            ValueError: It was cleared, or nnl.compile is recording.
        """
        if not self._data.bufs and self._data.blank and STATE.interpreter.has_values:
            self._data.read_early(self.edge.label, ".d")
        self._data.settle()
        try:
            return self._data.data
        except ValueError as e:
            raise ValueError(f"{self.edge.label}: {e}") from None

    @d.setter
    def d(self, value: Any) -> None:
        try:
            self._data.data = value
        except (TypeError, ShapeError) as e:
            raise type(e)(f"{self.edge.label}: {e}") from None

    @property
    def g(self) -> Host:
        """The gradient as a writable numpy array; zeros before the first backward.

        Zeros, with a warning, of a leaf whose need_grad is False.
        """
        edge = self.edge
        if edge.own_grad is None and edge.node is None and not edge.need_grad:
            logger.warning(
                "%s: .g was read, and need_grad is False: backward() gives it no gradient",
                edge.label,
            )
        return self.grad.data

    @g.setter
    def g(self, value: Any) -> None:
        self.grad.data = value

    @property
    def data(self) -> NdArray:
        """The array of the value. Assigning an NdArray shares its memory."""
        return self._data

    @data.setter
    def data(self, value: NdArray) -> None:
        self._data.share(value)

    @property
    def grad(self) -> NdArray:
        """The array of the gradient. Assigning an NdArray shares its memory."""
        grad = self.edge.grad
        STATE.interpreter.shown(grad)
        return grad

    @grad.setter
    def grad(self, value: NdArray) -> None:
        self.grad.share(value)

    # ---- flags ----

    @property
    def need_grad(self) -> bool:
        """Whether backward() computes a gradient here.

        Of a function's output it is fixed when the function is called; if an input's is set
        later, static graphs follow at their next forward. Setting it to False on an intermediate
        stops the gradient there.
        """
        return self.edge.need_grad

    @need_grad.setter
    def need_grad(self, value: bool) -> None:
        value = flag("Variable", "need_grad", value)
        if self.edge.need_grad != value:
            self.edge.need_grad = value
            EPOCH.advance()

    @property
    def persistent(self) -> bool:
        """Keep the data when clear_buffer or clear_no_need_grad would clear it."""
        return self.edge.persistent

    @persistent.setter
    def persistent(self, value: bool) -> None:
        self.edge.persistent = bool(value)
        EPOCH.advance()

    @property
    def recompute(self) -> bool:
        """Drop the data after forward and compute it again in backward."""
        return self.edge.recompute

    @recompute.setter
    def recompute(self, value: bool) -> None:
        self.edge.recompute = bool(value)
        EPOCH.advance()

    @property
    def name(self) -> str:
        """What files and drawings call it; "" unless set."""
        return self.edge.name

    @name.setter
    def name(self, value: str) -> None:
        self.edge.name = str(value)

    def apply(self, **kwargs: Any) -> Variable:
        """Set attributes by name and return self, for chaining."""
        for k, v in kwargs.items():
            setattr(self, k, v)
        return self

    # ---- graph ----

    def unlinked(self, need_grad: bool | None = None) -> Variable:
        """A leaf that shares data and gradient with this variable, cut off from its graph."""
        v = self.handle(need_grad)
        v.edge.__class__ = Copy
        return v

    get_unlinked_variable = unlinked

    def handle(self, need_grad: bool | None = None) -> Variable:
        """Another handle on this leaf, with a flag of its own."""
        mine = self.edge
        need = mine.need_grad if need_grad is None else need_grad
        if type(need) is not bool:
            need = flag("unlinked", "need_grad", need)
        edge = Value.leaf(self._data, need)
        edge.own_grad, edge.name = mine.grad, mine.name
        return Variable.of_edge(edge, self._data)

    def rewire_on(self, var: Variable) -> None:
        """Let everything that was computed from self be computed from var instead.

        Raises:
            ShapeError: The shapes differ.
        """
        if not isinstance(var, Variable):
            raise TypeError(f"rewire_on: var is {type(var).__name__}, wanted nnl.Variable")
        if var.shape != self.shape:
            raise ShapeError(f"rewire_on: var has the shape {var.shape}, wanted {self.shape}")
        self.edge.become(var.edge)
        self._data = var._data
        EPOCH.advance()

    @checked
    def reset_shape(self, shape: Sequence[int], force: bool = False) -> None:
        """Change the shape. Graphs are set up again at their next forward(); the data is dropped.

        Raises:
            ShapeError: The size changes and force is False.
        """
        spec = self._data.spec.with_shape(shape)
        if spec.size != self._data.spec.size and not force:
            raise ShapeError(
                f"reset_shape: {self._data.spec} has {self.size} elements, shape {tuple(shape)} "
                f"has {spec.size}: use force=True"
            )
        self._data.set_spec(spec)
        self.edge.spec = spec
        if self.edge.own_grad is not None:
            self.edge.own_grad.set_spec(self.edge.own_grad.spec.with_shape(shape))

    def forward(
        self,
        clear_buffer: bool = False,
        clear_no_need_grad: bool = False,
        function_pre_hook: Hook | None = None,
        function_post_hook: Hook | None = None,
    ) -> None:
        """Compute this variable and everything it depends on.

        Args:
            clear_buffer: Free every intermediate as soon as nothing in this call needs it.
            clear_no_need_grad: Free those that backward() does not need.
            function_pre_hook, function_post_hook: Called with every function around its run.
        """
        STATE.interpreter.executor.forward(
            [self], clear_buffer, clear_no_need_grad, function_pre_hook, function_post_hook
        )

    def backward(
        self,
        grad: Any = 1,
        clear_buffer: bool = False,
        communicator_callbacks: Any = None,
        function_pre_hook: Hook | None = None,
        function_post_hook: Hook | None = None,
    ) -> None:
        """Compute the gradients of everything below that needs one.

        Leaves add to the gradient they have, intermediates are overwritten.

        Args:
            grad: Start gradient: a number, an array or NdArray of this shape, or None for the
                gradient stored in `.g`.
            clear_buffer: Free intermediate data and gradients on the way.
            communicator_callbacks: One or several callbacks of communicators.
        """
        callbacks = communicator_callbacks or ()
        if not isinstance(callbacks, (list, tuple)):
            callbacks = (callbacks,)
        STATE.interpreter.executor.backward(
            self, grad, clear_buffer, callbacks, function_pre_hook, function_post_hook
        )

    # ---- Python ----

    def __eq__(self, other: object) -> bool:
        """Whether both are handles on one variable; F.equal compares the values."""
        if not isinstance(other, Variable):
            raise TypeError(
                f"Variable == {type(other).__name__}: == tells whether two handles are the same "
                "variable; use F.equal for values"
            )
        return self._data is other._data

    def __hash__(self) -> int:
        return hash(id(self._data))

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Variable cannot be pickled or copied: take a copy of its array, v.d.copy()"
        )

    def __repr__(self) -> str:
        node = self.edge.node
        parts = [str(self._data.spec)]
        if self.edge.name:
            parts.append(f"name={self.edge.name!r}")
        parts.append(f"need_grad={self.edge.need_grad}")
        if node is not None:
            parts.append(f"parent={node.op.name}")
        return f"<Variable({', '.join(parts)}) at {id(self):#x}>"


USUAL[NdArray] = USUAL[Variable] = {as_input}


def forward_all(
    variables: Sequence[Variable],
    clear_buffer: bool = False,
    clear_no_need_grad: bool = False,
    function_pre_hook: Hook | None = None,
    function_post_hook: Hook | None = None,
) -> None:
    """Compute several variables at once; what they share is computed once.

    Example:
        >>> x = array([1, 2])
        >>> h = F.exp(x)
        >>> y, z = h + 1, h * 2
        >>> nn.forward_all([y, z])
        >>> z.d - 2 * y.d
        array([-2., -2.], dtype=float32)
    """
    if (
        isinstance(variables, Variable)
        or not np.iterable(variables)
        or not all(isinstance(v, Variable) for v in variables)
    ):
        raise TypeError("forward_all: variables must be nnl.Variable, several of them")
    if len(variables):
        STATE.interpreter.executor.forward(
            list(variables), clear_buffer, clear_no_need_grad, function_pre_hook, function_post_hook
        )
