# SPDX-License-Identifier: Apache-2.0
"""Symbolic variables, their types, and the operators that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

import nnl.functions as F
import nnl.workspace as ws
from nnl.converters.onnx.file.registry import ONNX, Whole
from nnl.converters.onnx.importing import arithmetic as _arithmetic  # noqa: F401  registers
from nnl.converters.onnx.values.values import array, dtype_of, is_var, known, tagged
from nnl.core.interpreters.interpreter import EAGER
from nnl.core.ops.op import OPS
from nnl.core.settings.context import STATE, Context, using

Sizes = tuple[int | None, ...]


class Config:
    """Flags. floatX is the type of numbers with fractions: "float64" is computed as float32 unless
    floatX says "float64". All other flags may be set and change nothing."""

    def __init__(self) -> None:
        self.floatX = "float32"
        self.device = "cpu"
        self.mode, self.optimizer, self.linker = "FAST_RUN", "fast_run", "cvm"
        self.compute_test_value, self.on_unused_input = "off", "raise"
        self.exception_verbosity, self.profile, self.openmp = "low", False, True
        self.warn = SimpleNamespace()
        self.lib, self.dnn = SimpleNamespace(), SimpleNamespace(enabled="False")
        self.scan = SimpleNamespace(allow_gc=True)
        self.base_compiledir = self.compiledir = self.cxx = ""


config = Config()


def as_dtype(given: Any) -> np.dtype[Any]:
    """A type of elements, as it is computed with.

    Raises:
        TypeError: There is no such type.
    """
    dtype = np.dtype(config.floatX if given in (None, "floatX") else given)
    if dtype.kind not in "biuf":
        raise TypeError(f"theano: the type {dtype.name} cannot be computed with")
    return np.dtype(np.float32) if dtype.kind == "f" and config.floatX != "float64" else dtype


def array_of(x: Any, dtype: Any = None) -> np.ndarray[Any, Any]:
    """A constant. Numbers of Python have the smallest type that holds them, floatX if fractions."""
    made = np.asarray(x)
    if made.dtype.kind not in "biuf":
        raise TypeError(f"theano: {x!r} is no number, array or symbolic variable")
    if dtype is None:
        plain = isinstance(x, (int, float)) and not isinstance(x, (bool, np.generic))
        dtype = np.dtype(config.floatX) if plain and made.dtype.kind == "f" else made.dtype
        if plain and made.dtype.kind == "i":
            dtype = np.min_scalar_type(min(x, -x - 1))
    return made.astype(as_dtype(dtype))


def promoted(*inputs: Any) -> np.dtype[Any]:
    """The type of what is computed of several: the widest with fractions, else the widest."""
    dtypes = [np.dtype(x.dtype) for x in inputs]
    floats = [d for d in dtypes if d.kind == "f"]
    return np.result_type(*(floats or dtypes))


def fraction(x: Any) -> np.dtype[Any]:
    """The type of a function of x that has fractions."""
    dtype = np.dtype(x.dtype)
    return dtype if dtype.kind == "f" else np.dtype(config.floatX)


class Type(str):
    """The name of a type of elements, with what other dialects read of it."""

    name = property(str)
    kind = property(lambda self: np.dtype(self).kind)
    itemsize = property(lambda self: np.dtype(self).itemsize)


class TensorType:
    """Type of elements and number of axes; called, it makes a variable.

    Args:
        dtype: Type of elements.
        broadcastable: For each axis, whether its size is 1.
    """

    def __init__(self, dtype: Any, broadcastable: Iterable[bool], name: str | None = None) -> None:
        self.dtype = str(as_dtype(dtype))
        self.broadcastable = tuple([bool(b) for b in broadcastable])
        self.ndim, self.name = len(self.broadcastable), name

    def __call__(self, name: str | None = None, dtype: Any = None) -> Any:
        sizes = tuple([1 if b else None for b in self.broadcastable])
        return named(RESULT[0](ws.current(), name or "x", sizes, dtype or self.dtype), name)

    make_variable = __call__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorType) and hash(self) == hash(other)

    def __hash__(self) -> int:
        return hash((self.dtype, self.broadcastable))

    def __repr__(self) -> str:
        kinds = {0: "scalar", 1: "vector", 2: "matrix"}
        what = (
            kinds.get(self.ndim, f"{self.ndim}D")
            if not any(self.broadcastable)
            else (str(self.broadcastable))
        )
        return f"TensorType({self.dtype}, {what})"


def named(x: Any, name: str | None) -> Any:
    """x, called so."""
    if name is not None:
        x.name = name
    return x


class Variable(ws.Tensor):
    """A value that is computed when a function of it runs. Its number of axes is always known.

    Attributes:
        name: What it is called, which anybody may change; None at first.
        dtype: Type of its elements, a string.
        type, broadcastable: Its TensorType, and whether the size of each axis is 1.
        shape: Its sizes, as a vector that is computed.
        owner: What makes it: `op`, `inputs`, `outputs`; None where nothing does.
        tag: Whatever a script notes about it.
    """

    __array_priority__ = 1000
    name: Any = None
    default: Any = None  # what a function takes for it where nothing is given

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tag = SimpleNamespace()

    @property
    def dtype(self) -> Any:  # type: ignore[override]
        return self._dtype

    @dtype.setter
    def dtype(self, value: Any) -> None:
        self._dtype = Type(as_dtype(value))

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.broadcastable)

    @property
    def broadcastable(self) -> tuple[bool, ...]:
        return tuple([d == 1 for d in self.sizes or ()])

    @property
    def shape(self) -> Any:
        return made("shape", lambda x: np.array(x.shape, np.int64), [self], (self.ndim,), "int64")

    @property
    def owner(self) -> Any:
        op = self.operator
        if op is None:
            return None
        inputs = [x if isinstance(x, ws.Tensor) else constant(x) for x in op.inputs]
        return SimpleNamespace(op=op, inputs=inputs, outputs=list(op.outputs))

    def eval(self, inputs_to_values: Mapping[Any, Any] | None = None) -> Any:
        """Its value, for values of what it depends on."""
        from nnl.dialects.theano.function import function

        given = dict(inputs_to_values or {})
        return function(list(given), self, on_unused_input="ignore")(*given.values())

    def __bool__(self) -> bool:
        if self.operator is not None and self.operator.type in COMPARISONS:
            raise TypeError("Variables do not support boolean operations.")
        return True

    def __len__(self) -> int:
        raise TypeError("object of type 'TensorVariable' has no len()")

    def __iter__(self) -> Any:
        known_sizes = self.sizes or ()
        if not known_sizes or known_sizes[0] is None:
            raise TypeError(
                "TensorType does not support iteration. Maybe you are using builtins.sum instead "
                "of theano.tensor.sum? (Maybe .max?)"
            )
        return iter([self[i] for i in range(known_sizes[0])])  # type: ignore[index]

    def __repr__(self) -> str:
        return str(self.name or self.key)

    __str__ = __repr__
    __hash__ = ws.Tensor.__hash__

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


RESULT: list[Any] = [Variable]  # the class of what operators give


def of_results(cls: Any) -> Any:
    """Let operators give variables of this class."""
    RESULT[0] = cls
    return cls


COMPARISONS = ("eq", "neq", "lt", "le", "gt", "ge")
_DOUBLE: list[Any] = []


def precision() -> Any:
    """How functions compute: with floatX "float64" in double precision."""
    if config.floatX != "float64":
        return nullcontext()
    if not _DOUBLE:
        _DOUBLE.append(Context(["cpu:double"]))
    return using(context=_DOUBLE[0], target=_DOUBLE[0].target)


class Apply(ws.Operator):
    """An operator on values that are numpy arrays where they depend on sizes alone.

    Args:
        sizes, dtypes: Of the results.
        constant: Whether it gives the same whenever its inputs are the same.
        rest: As of nnl.workspace.Operator.
    """

    def __init__(
        self, type: str, compute: Callable[..., Any], inputs: Sequence[Any], sizes: Sequence[Sizes],
        dtypes: Sequence[Any], constant: bool = True,
    ) -> None:  # fmt: skip
        self.constant = constant
        given = [x if isinstance(x, ws.Tensor) else array_of(x) for x in inputs]
        space = next((x.workspace for x in given if isinstance(x, ws.Tensor)), ws.current())
        super().__init__(
            space,
            type,
            compute,
            given,
            cls=RESULT[0],
            shapes=sizes,
            dtypes=dtypes,
            count=len(sizes),
            knows=True,
        )

    @property
    def name(self) -> str:
        """What it is called."""
        return self.type

    def results(self, values: Mapping[ws.Tensor, Any]) -> list[Any]:
        """Its results. What depends on sizes alone is computed at once."""
        given = [cast(values[x], x.dtype) if isinstance(x, ws.Tensor) else x for x in self.inputs]
        folded = self.constant and not any(map(is_var, given))
        if folded and not STATE.auto_forward:
            with using(interpreter=EAGER, no_grad=True):
                results = [array(v) for v in self._made(given)]
        else:
            results = self._made(given)
            results = [array(v) for v in results] if folded else results
        return [_typed(v, t.dtype) for v, t in zip(results, self.outputs, strict=True)]

    def _made(self, given: Sequence[Any]) -> list[Any]:
        results = self.compute(*given)
        return list(results) if isinstance(results, (tuple, list)) else [results]


def cast(v: Any, dtype: Any) -> Any:
    """A value as a type; Variables hold numbers of all types as the engine's."""
    dtype = np.dtype(dtype)
    if not is_var(v):
        return np.asarray(v).astype(dtype, copy=False)
    if v.spec.dtype.kind == "b":
        v = _typed(v, bool)
    if dtype_of(v) != dtype:
        if dtype.kind == "b":
            v = F.not_equal_scalar(v, 0.0)
        elif dtype.kind in "iu" and dtype_of(v).kind == "f":
            v = F.unlink(v)
            v = F.sign(v, 0.0) * F.floor(F.abs(v))
    return tagged(v, dtype)


def _typed(v: Any, dtype: Any) -> Any:
    """A result as the type that it has: operators on integers give whole numbers."""
    if not is_var(v):
        return np.asarray(v).astype(dtype, copy=False)
    return tagged(OPS["cast"](v, dtype="float32") if v.spec.dtype.kind == "b" else v, dtype)


def handled(name: str, *values: Any, **attributes: Any) -> Any:
    """What the importer of an operator of ONNX makes of values."""
    handler: Any = ONNX.find_import(name, 10**6, "")
    return handler(Whole, SimpleNamespace(since=10**6, **attributes), *values)


def made(
    type: str, compute: Callable[..., Any], inputs: Sequence[Any], sizes: Sequence[Any], dtype: Any,
    constant: bool = True,
) -> Any:  # fmt: skip
    """The result of an operator."""
    return Apply(type, compute, inputs, [tuple(sizes)], [dtype], constant).outputs[0]


def sizes_of(x: Any) -> Sizes:
    """What is known of the sizes of a variable or constant."""
    if isinstance(x, ws.Tensor):
        if x.sizes is None:
            raise TypeError(f"theano: how many axes {x!r} has is not known")
        return x.sizes
    return np.shape(x)


def joint(*inputs: Any) -> Sizes:
    """What is known of the sizes of what several are broadcast to."""
    given = [sizes_of(x) for x in inputs]
    n = max(map(len, given))
    axes = zip(*[(1,) * (n - len(s)) + s for s in given], strict=True)
    return tuple(
        [
            1 if all(d == 1 for d in a) else next((d for d in a if d not in (1, None)), None)
            for a in axes
        ]
    )


def as_tensor_variable(x: Any, name: str | None = None, ndim: int | None = None) -> Any:
    """A variable: itself, a constant of a number or an array, or a stack of those in a list."""
    if isinstance(x, (list, tuple)) and any(isinstance(v, ws.Tensor) for v in x):
        from nnl.dialects.theano.shaping import stack

        x = stack(list(x))
    if not isinstance(x, ws.Tensor):
        x = constant(x)
    if ndim is not None and x.ndim != ndim:
        from nnl.dialects.theano.shaping import shape_padleft

        if x.ndim > ndim:
            raise ValueError(f"as_tensor_variable: {x!r} has {x.ndim} axes, wanted {ndim}")
        x = shape_padleft(x, ndim - x.ndim)
    return named(x, name)


def constant(x: Any, name: str | None = None, ndim: int | None = None, dtype: Any = None) -> Any:
    """A variable that is always the same; its array is `data`."""
    held = array_of(x, dtype)
    held = held.reshape((1,) * ((ndim or 0) - held.ndim) + held.shape)
    y = made("constant", lambda: held, [], held.shape, held.dtype)
    y.data = y.value = held
    return named(y, name)


def value_now(x: Any, what: str) -> np.ndarray[Any, Any]:
    """A value that an operator must know before it runs."""
    return np.asarray(array(x) if known(x) else ws.value_of(x, what))
