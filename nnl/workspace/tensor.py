# SPDX-License-Identifier: Apache-2.0
"""Tensors, the operators that make them, and their gradients."""

from __future__ import annotations

import heapq
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import nnl.functions as F
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import Spec
from nnl.core.differentiation.grad import grad
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.switches import auto_forward

if TYPE_CHECKING:
    from nnl.workspace.workspace import Workspace

Shape = tuple[int | None, ...]

# Sizes that stand for open axes when the shape of a result is asked for: an axis that comes out
# different is open. Large, with many divisors, so that strides and pooling leave something.
PROBES = (192, 384)


class _NeedsValue(Exception):
    """An operator must know the value of an input, not only its shape, to be written down."""

    def __init__(self, what: str, value: Variable) -> None:
        super().__init__(what)
        self.what, self.value = what, value


def value_of(x: Any, what: str) -> np.ndarray[Any, Any]:
    """What an operator needs to know before anything is computed: a shape, an axis, a count.

    Args:
        x: What the operator's `compute` was given.
        what: The argument, for messages.
    """
    if isinstance(x, Variable):
        raise _NeedsValue(what, x)
    return np.asarray(x)


class Known:
    """A fed value that programs depend on, by its bytes."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.key = (array.shape, array.dtype.str, array.tobytes())

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Known) and self.key == other.key


class Tensor:
    """The name of a value.

    Attributes:
        key: Its name in the workspace, unique there.
        name: What it is called where it was made; a dialect may have its own rules for that.
        sizes: None where an axis may be of any size; None where not even their number is known.
        shape: The same, in a dialect as that shows it.
        operator, index: What makes it, and which of its results it is; None where nothing does.
    """

    __slots__ = ("workspace", "key", "sizes", "dtype", "operator", "index", "samples", "__dict__")

    def __init__(
        self,
        workspace: Workspace,
        name: str,
        shape: Iterable[int | None] | None = None,
        dtype: Any = np.float32,
        operator: Operator | None = None,
        index: int = 0,
    ) -> None:
        self.workspace, self.operator, self.index = workspace, operator, index
        self.sizes: Shape | None = None if shape is None else tuple(shape)
        self.dtype = np.dtype(dtype)
        self.key = workspace.add(name, self)
        # what shapes of results are found with: per probe a shape, a known value, or nothing
        self.samples: list[Any] = [None, None]
        if self.sizes is not None:
            self.samples = [tuple(n if d is None else d for d in self.sizes) for n in PROBES]

    @property
    def name(self) -> str:
        """What it is called."""
        return self.key

    @property
    def shape(self) -> Any:
        """Sizes of its axes."""
        return self.sizes

    @property
    def ndim(self) -> Any:
        """Number of axes; None where it is not known."""
        return None if self.sizes is None else len(self.sizes)

    @property
    def is_fixed(self) -> bool:
        """Whether all its sizes are known, and its value depends on no others."""
        a, b = self.samples
        known = isinstance(a, np.ndarray)
        open_ = self.sizes is None or None in self.sizes
        return not open_ and (not known or np.array_equal(a, b))

    @property
    def kept(self) -> bool:
        """Whether the workspace keeps its value from run to run."""
        return self.operator is None and self.workspace.parameter(self.key) is not None

    def make(self, type: str, compute: Callable[..., Any], *inputs: Any, **options: Any) -> Tensor:
        """The result of an operator on this and other tensors, of this tensor's class."""
        made = Operator(
            self.workspace, type, compute, (self, *inputs), cls=self.__class__, **options
        )
        return made.outputs[0]

    def __add__(self, other: Any) -> Tensor:
        return self.make("add", _arithmetic(operator.add), other, knows=True)

    def __radd__(self, other: Any) -> Tensor:
        return self + other

    def __sub__(self, other: Any) -> Tensor:
        return self.make("sub", _arithmetic(operator.sub), other, knows=True)

    def __rsub__(self, other: Any) -> Tensor:
        return -self + other

    def __mul__(self, other: Any) -> Tensor:
        return self.make("mul", _arithmetic(operator.mul), other, knows=True)

    def __rmul__(self, other: Any) -> Tensor:
        return self * other

    def __truediv__(self, other: Any) -> Tensor:
        return self.make("div", _arithmetic(operator.truediv), other, knows=True)

    def __rtruediv__(self, other: Any) -> Tensor:
        return self.make("div", _arithmetic(lambda x, y: y / x), other, knows=True)

    def __pow__(self, other: Any) -> Tensor:
        return self.make("pow", _arithmetic(operator.pow), other, knows=True)

    def __rpow__(self, other: Any) -> Tensor:
        return self.make("pow", _arithmetic(lambda x, y: y**x), other, knows=True)

    def __neg__(self) -> Tensor:
        return self.make("neg", operator.neg, knows=True)

    def __repr__(self) -> str:
        sizes = (
            "?"
            if self.sizes is None
            else ", ".join("?" if d is None else str(d) for d in self.sizes)
        )
        return f"<{type(self).__name__} {self.name!r} {np.dtype(self.dtype).name}[{sizes}]>"


def _arithmetic(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def compute(x: Any, y: Any) -> Any:
        if isinstance(x, Variable) and isinstance(y, np.ndarray):
            y = Variable.from_numpy_array(y)
        elif isinstance(y, Variable) and isinstance(x, np.ndarray):
            x = Variable.from_numpy_array(x)
        return f(x, y)

    return compute


class Operator:
    """One call of a function on tensors.

    Args:
        type: Name of the function, for people.
        compute: f(*values, **arguments) -> value or several, of Variables in a graph that is being
            written down. What depends on shapes alone may be numpy arrays, given and returned.
        inputs: Tensors, and what is no tensor: numbers, arrays.
        arguments: More, by name.
        name: Of its first result; the others' names end in :1, :2, ...
        cls: Class of its results.
        shapes, dtypes: Of the results, where the caller knows better than a probe.
        count: How many results there are.
        knows: Whether `compute` takes numpy arrays as they are: what depends on shapes alone, and
            fed values that shapes depend on. Others get them as Variables.
        writes: Kept tensors whose next values its first results are. Of all that may run, what
            writes runs last; what runs after it reads the new values, gradients with respect to
            them and outputs of a Function the old ones.
        after: Tensors that are computed before it, and whenever it is.
    Attributes:
        constant: Whether it gives the same whenever its inputs are the same.
        anchor: The name under which a run alone leaves what its gradient needs.
        number: Operators run in the order in which they were made.
    Raises:
        ValueError: The shapes of the inputs, all known, do not fit the function.
    """

    numbers = itertools.count()
    constant = True
    wrt: tuple[Tensor, ...] = ()  # of gradients: what they are with respect to

    def __init__(
        self,
        workspace: Workspace,
        type: str,
        compute: Callable[..., Any],
        inputs: Sequence[Any],
        arguments: Mapping[str, Any] | None = None,
        name: str | None = None,
        cls: Callable[..., Tensor] = Tensor,
        shapes: Sequence[Shape | None] | None = None,
        dtypes: Sequence[Any] | None = None,
        count: int = 1,
        knows: bool = False,
        writes: Iterable[Tensor] = (),
        after: Iterable[Tensor] = (),
    ) -> None:
        self.knows, self.writes, self.after = knows, tuple(writes), tuple(after)
        self.workspace, self.type, self.compute = workspace, type, compute
        self.inputs, self.arguments = tuple(inputs), dict(arguments or {})
        self.number = next(self.numbers)
        if shapes is not None and dtypes is not None and None not in shapes:
            found = [(s, d, None) for s, d in zip(shapes, dtypes, strict=True)]
        else:
            found = self._probe(count)
        name = workspace.unique(name or type)
        self.outputs: tuple[Tensor, ...] = ()
        for i in range(count):
            shape, dtype, samples = found[i]
            given = shapes is not None and shapes[i] is not None
            out = cls(
                workspace,
                name if i == 0 else f"{name}:{i}",
                shapes[i] if given and shapes is not None else shape,
                dtypes[i] if dtypes is not None else dtype,
                self,
                i,
            )
            if not given:
                out.samples = samples
            self.outputs += (out,)
        self.anchor = self.outputs[0].key

    @property
    def tensors(self) -> list[Tensor]:
        """Its inputs that are tensors."""
        return [x for x in self.inputs if isinstance(x, Tensor)]

    def infer_again(self) -> None:
        """Let the shapes of its results follow those of its inputs, which have changed.

        Raises:
            ValueError: The inputs do not fit the function any more.
        """
        found = self._probe(len(self.outputs))
        for out, (shape, _, samples) in zip(self.outputs, found, strict=True):
            out.sizes, out.samples = shape, samples

    def results(self, values: Mapping[Tensor, Any]) -> list[Any]:
        """Write it down: the values of its results of those of its inputs."""
        given = [values[x] if isinstance(x, Tensor) else x for x in self.inputs]
        if not self.knows:
            given = [
                Variable.from_numpy_array(v)
                if isinstance(x, Tensor) and isinstance(v, np.ndarray)
                else v
                for x, v in zip(self.inputs, given, strict=True)
            ]
        made = self.compute(*given, **self.arguments)
        return list(made) if isinstance(made, (tuple, list)) else [made]

    def _probe(self, count: int) -> list[tuple[Shape | None, Any, list[Any]]]:
        """Shapes and types of the results, found by writing it down at two sizes."""
        runs: list[list[Any] | None] = []
        for probe in range(len(PROBES)):
            if probe and all(x.is_fixed for x in self.tensors):
                runs.append(runs[0])  # nothing is open
            else:
                runs.append(self._at([x.samples[probe] for x in self.tensors]))
        if None in runs:
            # of any axes at all one size may tell how many the results have
            ranks = [x.samples[0] for x in self.tensors]
            if all(isinstance(s, tuple) for s in ranks) and any(
                None in (x.sizes or ()) for x in self.tensors
            ):
                tried = self._at([(4,) * len(s) for s in ranks])
                if tried is not None:
                    return [
                        (
                            (None,) * len(r.shape),
                            r.dtype,
                            [tuple([n] * len(r.shape)) for n in PROBES],
                        )
                        for r in tried
                    ]
            return [(None, np.float32, [None, None])] * count
        results: list[tuple[Shape | None, Any, list[Any]]] = []
        for a, b in zip(*runs, strict=True):
            if len(a.shape) != len(b.shape):
                results.append((None, a.dtype, [None, None]))
                continue
            shape = tuple(m if m == n else None for m, n in zip(a.shape, b.shape, strict=True))
            samples = [r if isinstance(r, np.ndarray) else tuple(r.shape) for r in (a, b)]
            results.append((shape, a.dtype, samples))
        return results

    def _at(self, samples: Sequence[Any]) -> list[Any] | None:
        if any(s is None for s in samples):
            return None
        values: dict[Tensor, Any] = {}
        for x, s in zip(self.tensors, samples, strict=True):
            values[x] = s if isinstance(s, np.ndarray) else _blank(s, x.dtype)
        fixed = all(x.is_fixed for x in self.tensors)
        try:
            with auto_forward(False):
                made = self.results(values)
        except _NeedsValue:
            return None
        except (ValueError, TypeError, IndexError) as error:
            if fixed:
                raise type(error)(f"{self.type}: {error}") from error
            return None
        return [v.spec if isinstance(v, Variable) else np.asarray(v) for v in made]


def _blank(shape: Sequence[int], dtype: Any) -> Variable:
    data = NdArray.unwritten(Spec.of(shape, dtype))
    return Variable.of_edge(Value.leaf(data, data.spec.dtype.kind == "f"), data)


def fed(tensor: Tensor, value: Any, where: str) -> np.ndarray[Any, Any]:
    """A value for a tensor as an array of its type.

    Raises:
        ValueError: It is none, or has a shape that the tensor cannot have.
    """
    try:
        array = np.asarray(value, tensor.dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{where}: {tensor.name!r}: {error}") from None
    shape = tensor.sizes
    if shape is not None and (
        len(shape) != array.ndim
        or any(d not in (None, n) for d, n in zip(shape, array.shape, strict=True))
    ):
        raise ValueError(f"{where}: {tensor.name!r} got shape {array.shape}, wanted {shape}")
    return array


def gradients(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    starts: Sequence[Tensor] | None = None,
    **options: Any,
) -> list[Tensor]:
    """The gradients of the sum of outputs with respect to inputs, as tensors.

    Args:
        starts: Gradients of the outputs; ones if left out.
        options: cls of the results.
    """
    made = Operator(
        outputs[0].workspace,
        "gradients",
        partial(gradient_values, len(outputs), len(inputs)),
        (*outputs, *inputs, *(starts or ())),
        shapes=[x.sizes for x in inputs],
        dtypes=[x.dtype for x in inputs],
        count=len(inputs),
        **options,
    )
    made.wrt = tuple(inputs)
    return list(made.outputs)


def gradient_values(outputs: int, inputs: int, *values: Any) -> list[Variable]:
    """The gradients of so many values with respect to the next ones, begun with those after them.

    A start of another shape is broadcast to that of its output.
    """
    every = [v if isinstance(v, Variable) else Variable.from_numpy_array(v) for v in values]
    ys, xs, starts = every[:outputs], every[outputs : outputs + inputs], every[outputs + inputs :]
    pairs = zip(starts, ys, strict=bool(starts))
    starts = [g if g.shape == y.shape else F.broadcast(g, y.shape) for g, y in pairs]
    return grad(ys, xs, starts or None)


def needed(
    targets: Iterable[Tensor],
    inputs: Iterable[Tensor] = (),
    givens: Mapping[Tensor, Any] | None = None,
) -> tuple[list[Operator], set[Tensor]]:
    """The operators that targets need, in the order they were made in, and what nothing makes.

    Args:
        inputs: Tensors that are given: what makes them is not needed.
        givens: {tensor: what takes its place}.
    """
    stop, givens = set(inputs), givens or {}
    operators: dict[Operator, None] = {}
    leaves: set[Tensor] = set()
    seen: set[Tensor] = set()
    todo = list(targets)
    while todo:
        t = todo.pop()
        if t in seen or t in stop:
            continue
        seen.add(t)
        if t in givens:
            todo += [givens[t]] if isinstance(givens[t], Tensor) else []
        elif t.operator is None:
            leaves.add(t)
        elif t.operator not in operators:
            operators[t.operator] = None
            todo += [*t.operator.tensors, *t.operator.after]
    order = sorted(operators, key=lambda op: op.number)
    if givens or any(op.writes or op.after for op in order):
        order = _after_their_inputs(order, stop, givens)
    return order, leaves


def _after_their_inputs(
    operators: Sequence[Operator], stop: set[Tensor], givens: Mapping[Tensor, Any]
) -> list[Operator]:
    """Operators in the order of their numbers, those that write last, each after its inputs."""
    waits: dict[Operator, int] = {}
    readers: dict[Operator, list[Operator]] = {op: [] for op in operators}
    for op in operators:
        taken = [t if t in stop else givens.get(t, t) for t in (*op.tensors, *op.after)]
        found = {t.operator for t in taken if isinstance(t, Tensor) and t not in stop}
        makers = [m for m in found if m is not None and m in readers]
        waits[op] = len(makers)
        for maker in makers:
            readers[maker].append(op)
    ready = [(bool(op.writes), op.number, op) for op in operators if not waits[op]]
    heapq.heapify(ready)
    order = []
    while ready:
        *_, op = heapq.heappop(ready)
        order.append(op)
        for reader in readers[op]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, (bool(reader.writes), reader.number, reader))
    if len(order) < len(operators):
        raise ValueError("Function: givens make a tensor depend on itself")
    return order
