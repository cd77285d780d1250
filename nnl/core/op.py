# SPDX-License-Identifier: Apache-2.0
"""Op: everything the framework knows about one function, read from one decorated class."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from inspect import CO_VARARGS, Parameter, Signature, get_annotations
from typing import Any

import numpy as np

from nnl.core.context import STATE
from nnl.core.origin import at, tell

OPS: dict[str, Op] = {}
RULES: dict[str, Callable[..., Any]] = {}  # gradients for nnl.grad that users gave, by type name

_INTERNED_LIMIT = 512  # attribute objects kept per op; a changing scalar must not fill memory


class Sample:
    """One example call, from which tests are derived: input arrays and attributes.

    Args:
        inputs: Arrays by position (None for an input left out). Floats are tested in float32 and
            float64; integer arrays keep their dtype.
        grad: Which inputs are differentiable here; all floating-point ones unless given.
        order: Highest order of differentiation that holds at this point.
        attrs: Attributes by name.
    """

    def __init__(
        self,
        *inputs: Any,
        grad: tuple[bool, ...] | None = None,
        order: int = 2,
        **attrs: Any,
    ) -> None:
        self.inputs, self.grad, self.order, self.attrs = inputs, grad, order, attrs


class Cost:
    """What one call costs: floating-point operations and bytes read and written."""

    __slots__ = ("flops", "bytes")

    def __init__(self, flops: int, bytes: int) -> None:
        self.flops, self.bytes = int(flops), int(bytes)


class Onnx:
    """The ONNX node that a function corresponds to: operator, first opset, names of attributes.

    For the directions, export and import, that have no handler of their own (converters/onnx).
    """

    __slots__ = ("op_type", "since", "attrs")

    def __init__(self, op_type: str, since: int = 13, **attrs: str) -> None:
        self.op_type, self.since, self.attrs = op_type, since, attrs


class Attributes:
    """Base of the decorated classes: an interned, read-only set of attribute values.

    A definition gives typed class variables and these methods; only `infer` and one of `forward`,
    `ufunc` and `decompose` are needed for a function without gradient.

        infer(self, x, w, b=None)   input specs -> output spec, or a tuple of them. Its argument
                                    names are the input names; a default of None makes one optional,
                                    *x makes the number of inputs variable. `optional` names those
                                    that may be None though others follow.
        forward(self, xp, x, w, b, out=None)
                                    buffers -> buffer or tuple. xp is numpy or cupy. With an `out`
                                    argument the result may be written there.
        ufunc                       instead of forward: name of a function of xp that takes out.
        decompose(self, x, w, b)    instead of forward: the same in other functions.
        vjp(self, gy, *, x, y, x_spec, need)
                                    output gradients -> input gradients (None where there is none),
                                    in functions. The keyword-only names are all that it sees:
                                    inputs and outputs by name, their specs as <name>_spec, and
                                    `need`, a bool for every input.
        counts, count_of(values)    the input from whose value the attribute `count` follows, and
                                    how; static graphs ask again when their shapes have changed.
        resolve(self, x, w, b)      input specs -> {attribute: value} for those left to default.
        cost(self, x, w, b)         input specs -> Cost.
        samples(rng)                yields Sample.
        shows_inputs                True where the function only collects its inputs for the user,
                                    so that clearing leaves them readable.
    """

    shows_inputs = False
    op: Op
    values: tuple[Any, ...]
    bound: dict[Any, Any]  # (target, *specs) -> Bound
    resolved: dict[Any, Attributes]

    def as_dict(self) -> dict[str, Any]:
        """Attribute values by name."""
        return dict(zip(self.op.fields, self.values, strict=True))

    def __repr__(self) -> str:
        return f"{self.op.name}({', '.join(f'{k}={v!r}' for k, v in self.as_dict().items())})"


def _ints(value: Any) -> tuple[int, ...]:
    if isinstance(value, (int, np.integer)):
        return (int(value),)
    return tuple(operator.index(v) if not isinstance(v, np.bool_) else int(v) for v in value)


def _floats(value: Any) -> tuple[float, ...]:
    return tuple(float(v) for v in value)


def _int(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return operator.index(value)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _float(value: Any) -> float:
    if isinstance(value, str):
        raise TypeError
    return float(value)


_CONVERT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "int": (_int, "an int"),
    "float": (_float, "a float"),
    "bool": (bool, "a bool"),
    "str": (_str, "a str"),
    "tuple[int, ...]": (_ints, "a sequence of ints"),
    "tuple[float, ...]": (_floats, "a sequence of floats"),
    "object": (lambda v: v, "any object"),
}

REQUIRED = object()


class Op:
    """One function: its inputs, attributes and rules. Calling it applies it.

    Nothing is declared twice: input names come from `infer`, attributes from the class body, what
    backward keeps from the keyword-only names of `vjp`.
    """

    apply: Callable[..., Any]  # set by nnl.core.dispatch and nnl.core.random,
    stream: Callable[[int], Any]  # which this module cannot import

    def __init__(
        self,
        cls: type,
        name: str,
        outputs: tuple[str, ...],
        hidden: int,
        integer: tuple[str, ...],
        keep: tuple[str, ...],
        writes: tuple[str, ...] | Callable[[Any], tuple[str, ...]],
        view: bool,
        narrow: bool,
        wide: bool | tuple[int, ...],
        at_most: dict[str, int],
        nnp: str | None,
        onnx: Onnx | None,
        type_name: str | None = None,
    ) -> None:
        self.variadic_out = outputs[0].startswith("*")
        outputs = tuple(n.removeprefix("*") for n in outputs)
        self.name, self.outputs, self.view, self.narrow = name, outputs, view, narrow
        self.wide = tuple(range(64)) if wide is True else wide or ()
        self.visible, self.hidden, self.at_most = len(outputs) - hidden, hidden, at_most
        self.integer, self.keep, self._writes, self.nnp, self.onnx = (
            integer,
            keep,
            writes,
            nnp,
            onnx,
        )
        self.attrs_class = attrs_class = type(cls.__name__, (cls, Attributes), {"op": self})
        attrs_class.__module__, attrs_class.__doc__ = cls.__module__, cls.__doc__
        self.__doc__, self.__module__, self.__name__ = cls.__doc__, cls.__module__, name
        self.__qualname__, self.type_name = name, nnp or type_name or name
        self._read_fields(cls)
        self._read_inputs(cls)
        self._read_vjp(cls)
        self._interned: dict[tuple[Any, ...], Any] = {}
        self._raw: dict[tuple[Any, ...], Any] = {}
        self.has_resolve = hasattr(cls, "resolve")
        self.default_attrs = None if REQUIRED in self.defaults else self.intern(self.defaults)

    def _read_fields(self, cls: type) -> None:
        fields: dict[str, str] = {}
        for base in cls.__mro__[-2::-1]:  # all but object
            for field, kind in get_annotations(base).items():
                fields.pop(field, None)  # declared again: the order of the subclass counts
                # a string where annotations are postponed, else a type
                fields[field] = kind.__name__ if type(kind) is type else str(kind)
        self.fields = tuple(fields)
        self.kinds = tuple(fields.values())
        self.defaults = tuple(getattr(cls, f, REQUIRED) for f in self.fields)
        for field, kind in fields.items():
            if kind.removesuffix(" | None") not in _CONVERT:
                raise TypeError(f"op {self.name}: attribute {field} has unknown type {kind!r}")

    def _read_inputs(self, cls: Any) -> None:
        code, defaults = cls.infer.__code__, cls.infer.__defaults__ or ()
        names = code.co_varnames[1 : code.co_argcount]
        self.variadic = bool(code.co_flags & CO_VARARGS)
        if self.variadic:
            names += (code.co_varnames[code.co_argcount + code.co_kwonlyargcount],)
        self.inputs: tuple[str, ...] = names
        self.takes_rng = names[-1:] == ("rng",)
        self.required = len(names) - len(defaults)
        left_out = set(getattr(cls, "optional", ())) | set(names[self.required :])
        self.optional = frozenset(i for i, n in enumerate(names) if n in left_out)
        self.arity = -1 if self.variadic or defaults else len(names) - self.takes_rng

    def _read_vjp(self, cls: Any) -> None:
        vjp = getattr(cls, "vjp", None)
        self.has_vjp = vjp is not None
        names: Iterable[str] = self.inputs
        if vjp is not None:
            code = vjp.__code__
            n = code.co_argcount
            names = code.co_varnames[n : n + code.co_kwonlyargcount]
        self.wants_need = "need" in names
        self.spec_names = tuple(
            (n, self.inputs.index(n[:-5])) for n in names if n.endswith("_spec")
        )
        self.kept_inputs = tuple((n, self.inputs.index(n)) for n in names if n in self.inputs)
        self.kept_outputs = tuple(
            (n, self.outputs.index(n)) for n in names if n in self.outputs and n not in self.inputs
        )
        self.kept_names = tuple([n for n, _ in self.kept_inputs + self.kept_outputs])
        known = {"need", *self.inputs, *self.outputs, *(n for n, _ in self.spec_names)}
        if unknown := set(names) - known:
            raise TypeError(
                f"op {self.name}: vjp names {sorted(unknown)}, neither input nor output"
            )
        self.differentiable = self.has_vjp or hasattr(cls, "decompose")

    @property
    def writes(self) -> tuple[str, ...] | str:
        """Names of the inputs that a call writes in place; "attributes" where these tell."""
        return "attributes" if callable(self._writes) else self._writes

    def written(self, attrs: Any) -> tuple[int, ...]:
        """Positions of the inputs that a call writes in place."""
        names = self._writes(attrs) if callable(self._writes) else self._writes
        if self.takes_rng:
            names += ("rng",)
        return tuple(n if isinstance(n, int) else self.inputs.index(n) for n in names)

    def intern(self, values: tuple[Any, ...]) -> Any:
        """The attribute object for these values, in the order of `fields`; made once."""
        attrs = self._raw.get(values)
        if attrs is not None:
            return attrs
        converted = tuple(
            self._convert(f, k, v) for f, k, v in zip(self.fields, self.kinds, values, strict=True)
        )
        attrs = self._interned.get(converted)
        if attrs is None:
            attrs = self.attrs_class()
            attrs.__dict__.update(zip(self.fields, converted, strict=True))
            attrs.values, attrs.bound, attrs.resolved = converted, {}, {}
            _bounded(self._interned)[converted] = attrs
        if type(values) is tuple:
            _bounded(self._raw)[values] = attrs
        return attrs

    def _convert(self, field: str, kind: str, value: Any) -> Any:
        if value is None and kind.endswith(" | None"):
            return None
        convert, wanted = _CONVERT[kind.removesuffix(" | None")]
        try:
            converted = convert(value)
        except (TypeError, ValueError):
            raise TypeError(f"{self.name}: {field} is {value!r}, wanted {wanted}") from None
        most = self.at_most.get(field)
        if most is not None and converted > most:
            raise ValueError(f"{self.name}: {field} is {value!r}, wanted at most {most}")
        return converted

    def attrs(self, **values: Any) -> Any:
        """The attribute object for values by name, the others at their defaults."""
        full = tuple(values.pop(f, d) for f, d in zip(self.fields, self.defaults, strict=True))
        if values:
            raise TypeError(f"{self.name}() has no argument {next(iter(values))!r}")
        missing = [f for f, v in zip(self.fields, full, strict=True) if v is REQUIRED]
        if missing:
            raise TypeError(f"{self.name}() needs the argument {missing[0]!r}")
        try:
            return self.intern(full)
        except TypeError as e:
            if "unhashable" not in str(e):
                raise
        frozen = [tuple(v) if isinstance(v, (list, np.ndarray)) else v for v in full]
        typed = zip(self.fields, self.kinds, frozen, strict=True)
        return self.intern(tuple(self._convert(f, k, v) for f, k, v in typed))

    def parse(self, args: tuple[Any, ...], kw: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        """Split the arguments of a call into inputs and attributes."""
        if self.variadic:
            return args, self.attrs(**kw)
        names = self.inputs[: len(self.inputs) - self.takes_rng]
        n = len(names)
        inputs = list(args[:n]) + [None] * (n - len(args))
        for i, name in enumerate(names):
            if name in kw:
                if i < len(args):
                    raise TypeError(f"{self.name}() got two values for {name!r}")
                inputs[i] = kw.pop(name)
        for field, value in zip(self.fields, args[n:], strict=False):
            if field in kw:
                raise TypeError(f"{self.name}() got two values for {field!r}")
            kw[field] = value
        if len(args) > n + len(self.fields):
            raise TypeError(
                f"{self.name}() takes {n + len(self.fields)} arguments, got {len(args)}"
            )
        for i in range(min(self.required, n)):
            if inputs[i] is None:
                raise TypeError(f"{self.name}() needs the input {names[i]!r}")
        return tuple(inputs), self.attrs(**kw)

    def __call__(self, *args: Any, **kw: Any) -> Any:
        outputs = None
        try:
            if kw:
                kw.pop("n_outputs", None)
                outputs = kw.pop("outputs", None)
            attrs = self.default_attrs
            if kw or len(args) != self.arity or attrs is None:
                args, attrs = self.parse(args, kw)
            if self.takes_rng:
                args = (*args, self.stream(getattr(attrs, "seed", -1)))
            if self.has_resolve:
                attrs = self._resolve(attrs, args)
            y = self.apply(self, attrs, args)
        except (ValueError, TypeError) as e:
            tell(e, self.name, at(self.name, (STATE.layer, None, 0)))
            raise
        return y if outputs is None else _write_to(self, outputs, y)

    def _resolve(self, attrs: Any, inputs: tuple[Any, ...]) -> Any:
        try:
            specs = tuple([None if x is None else x.spec for x in inputs])
        except AttributeError:
            raise self.bad_input(inputs) from None
        done = attrs.resolved.get(specs)
        if done is None:
            done = self.attrs(**{**attrs.as_dict(), **attrs.resolve(*specs)})
            _bounded(attrs.resolved)[specs] = done
        return done

    def bad_input(self, inputs: tuple[Any, ...]) -> TypeError:
        """The error for an input that is neither Variable nor NdArray."""
        given = [(i, x) for i, x in enumerate(inputs) if x is not None]
        i, x = next((i, x) for i, x in given if not hasattr(x, "spec"))
        name = self.inputs[min(i, len(self.inputs) - 1)]
        return TypeError(
            f"{self.name}: {name} is {type(x).__name__}, wanted nnl.Variable or nnl.NdArray"
        )

    @property
    def __signature__(self) -> Signature:
        kind: Any = Parameter.POSITIONAL_OR_KEYWORD
        params = []
        for i, n in enumerate(self.inputs[: len(self.inputs) - self.takes_rng]):
            if self.variadic and i == len(self.inputs) - 1:
                params.append(Parameter(n, Parameter.VAR_POSITIONAL))
                kind = Parameter.KEYWORD_ONLY
            else:
                params.append(
                    Parameter(n, kind, default=None if i >= self.required else Parameter.empty)
                )
        for f, d in zip(self.fields, self.defaults, strict=True):
            params.append(Parameter(f, kind, default=Parameter.empty if d is REQUIRED else d))
        for n, d in (("n_outputs", -1), ("outputs", None)):
            params.append(Parameter(n, Parameter.KEYWORD_ONLY, default=d))
        return Signature(params)

    def __repr__(self) -> str:
        return f"<op {self.name}{self.__signature__}>"


def _bounded(table: dict[Any, Any]) -> dict[Any, Any]:
    """The table, with its oldest quarter dropped when it has become too large."""
    if len(table) >= _INTERNED_LIMIT:
        for key in list(table)[: _INTERNED_LIMIT // 4]:
            del table[key]
    return table


def _write_to(op: Op, outputs: Any, y: Any) -> Any:
    """Let the arrays of `outputs` be the memory of a call's results."""
    ys = y if isinstance(y, tuple) else (y,)
    outs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    if len(outs) != len(ys):
        raise ValueError(f"{op.name}: outputs has {len(outs)} arrays, wanted {len(ys)}")
    for out, result in zip(outs, ys, strict=True):
        nd = out.data if hasattr(out, "edge") else out
        result_nd = result.data if hasattr(result, "edge") else result
        if STATE.trace is not None:
            STATE.trace.assign(nd, result_nd)
            continue
        if result_nd.bufs or nd.spec is not result_nd.spec:
            nd.spec, nd.bufs = result_nd.spec, result_nd.bufs
        else:  # recorded only: out keeps its values until the function is executed
            result_nd.bufs = nd.bufs
    return y


def op(
    name: str,
    *,
    outputs: tuple[str, ...] = ("y",),
    hidden: int = 0,
    integer: tuple[str, ...] = (),
    keep: tuple[str, ...] = (),
    writes: tuple[str, ...] | Callable[[Any], tuple[str, ...]] = (),
    view: bool = False,
    narrow: bool = False,
    wide: bool | tuple[int, ...] = (),
    at_most: dict[str, int] | None = None,
    nnp: str | None = None,
    onnx: Onnx | None = None,
    type_name: str | None = None,
) -> Callable[[type], Op]:
    """Register the decorated class as the definition of function `name`.

    Args:
        outputs: Output names. ("*y",) stands for a variable number of outputs, and y in vjp for
            the tuple of them.
        hidden: How many of the last outputs callers do not see (what only backward needs).
        integer: Inputs that hold integers (labels, indices); floats that are whole numbers are
            converted.
        keep: Inputs whose dtype is taken as it is. All others are converted to the floating-point
            type of the context.
        writes: Inputs that a call writes in place, or a function of the attributes that says so.
        view: The output shares the memory of the first input.
        narrow: In a context that stores 16 bits, results are 16 bits wide whatever the inputs are
            (products of matrices); without it only if one of the inputs is.
        wide: Positions of the outputs that stay float32 there all the same: losses, statistics,
            long sums. True for all of them.
        at_most: {attribute: its largest value}, for numbers that say how much work is to be done
            and that no size of an array bounds.
        nnp: Type name in .nnp files, None for functions that NNabla does not have.
        onnx: ONNX operator, where the mapping is one to one.
        type_name: For an op without nnp that .nnp files know as another one, of this type.
    """

    def register(cls: type) -> Op:
        if name in OPS:
            raise ValueError(f"op {name!r} is already defined by {OPS[name].__module__}")
        OPS[name] = Op(
            cls, name, outputs, hidden, integer, keep, writes, view, narrow, wide, at_most or {},
            nnp, onnx, type_name,
        )  # fmt: skip
        return OPS[name]

    return register
