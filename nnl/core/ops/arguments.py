# SPDX-License-Identifier: Apache-2.0
"""From the arguments of a call to the inputs and the attributes of an op."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import CO_VARARGS, Parameter, Signature
from sys import maxsize
from typing import Any

import numpy as np

from nnl.core.arguments.convert import (
    CONVERT,
    LARGEST_ENTRY,
    OneForAll,
    as_int,
    has_negative_zero,
    number,
    wanted_instead,
)
from nnl.core.arguments.origin import at, tell
from nnl.core.arguments.suggest import did_you_mean
from nnl.core.arrays.spec import ShapeError, Spec, TooLarge
from nnl.core.ops.caches import Kernels
from nnl.core.settings.context import STATE

ONE = ("int", "float", "int | None", "float | None")  # kinds of one number
REQUIRED = object()  # the default of an attribute that has none


def _frozen(value: Any) -> Any:
    """A list, or those in a tuple, as tuples."""
    if isinstance(value, (list, tuple)):
        return tuple([tuple(v) if isinstance(v, list) else v for v in value])
    return value


def no_memory(label: str, error: MemoryError) -> MemoryError:
    """What is raised where the results of a call do not fit."""
    return MemoryError(
        f"{label}: not enough memory for the result: {error} "
        "(documentation: guides/profiling#memory)"
    )


class Arguments:
    """The part of an op that knows what it is called with: names and kinds of its arguments."""

    name: str
    attrs_class: Any
    at_most: dict[str, int]
    _interned: Kernels
    _raw: Kernels
    _calls: Kernels

    def _read_fields(self, cls: type) -> None:
        fields: dict[str, str] = {}
        self.spatial: set[str] = set()
        for base in cls.__mro__[-2::-1]:  # all but object
            for field, kind in base.__annotations__.items():
                fields.pop(field, None)  # declared again: the order of the subclass counts
                # a string where annotations are postponed, else a type
                text = kind.__name__ if isinstance(kind, type) else str(kind)
                if "Spatial" in text:
                    self.spatial.add(field)
                    text = "tuple[int, ...]" + " | None" * text.endswith(" | None")
                fields[field] = text
        self.fields = tuple(fields)
        self.kinds = tuple(fields.values())
        self.defaults = tuple(getattr(cls, f, REQUIRED) for f in self.fields)
        for field, kind in fields.items():
            if kind.removesuffix(" | None") not in CONVERT:
                raise TypeError(f"op {self.name}: attribute {field} has unknown type {kind!r}")
        self.float_fields = tuple([i for i, k in enumerate(self.kinds) if "float" in k])

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
        self.given = maxsize if self.variadic else len(names) - self.takes_rng
        self.absent = () if self.variadic else (None,) * self.given

    def intern(self, values: tuple[Any, ...]) -> Any:
        """The attribute object for these values, in the order of `fields`; made once."""
        key = values
        for i in self.float_fields:
            v = values[i]
            if (type(v) is not float or not v) and has_negative_zero(v):
                key = (*key, i)
        attrs = self._raw.find(key)
        if attrs is not None:
            return attrs
        converted = tuple(
            self._convert(f, k, v) for f, k, v in zip(self.fields, self.kinds, values, strict=True)
        )
        exactly = converted + key[len(values) :]
        attrs = self._interned.find(exactly)
        if attrs is None:
            attrs = self.attrs_class()
            attrs.__dict__.update(zip(self.fields, converted, strict=True))
            attrs.values, attrs.bound, attrs.resolved = converted, Kernels(), Kernels()
            floats = [converted[i] for i in self.float_fields]
            attrs.has_zero = any(0.0 in v if isinstance(v, tuple) else v == 0.0 for v in floats)
            attrs = self._interned.put(exactly, attrs)
        if type(values) is tuple:
            self._raw.put(key, attrs)
        return attrs

    def _convert(self, field: str, kind: str, value: Any) -> Any:
        if value is None and kind.endswith(" | None"):
            return None
        convert, wanted = CONVERT[kind.removesuffix(" | None")]
        try:
            if field in self.spatial and not np.iterable(value):
                raise OneForAll(field, as_int(value))
            converted = convert(value)
        except OneForAll:
            raise
        except (TypeError, ValueError, RuntimeError):  # torch raises the last
            raise TypeError(f"{self.name}: {field} is {value!r}, wanted {wanted}") from None
        except OverflowError as e:
            raise ValueError(f"{self.name}: {field} is {value!r}, {e}") from None
        if field in self.spatial and max(converted, default=0) > LARGEST_ENTRY:
            raise ValueError(
                f"{self.name}: {field} is {value!r}, wanted at most {LARGEST_ENTRY} each"
            )
        most = self.at_most.get(field)
        if most is not None and converted > most:
            raise ValueError(f"{self.name}: {field} is {value!r}, wanted at most {most}")
        return converted

    def attrs(self, **values: Any) -> Any:
        """The attribute object for values by name, the others at their defaults."""
        full = tuple(values.pop(f, d) for f, d in zip(self.fields, self.defaults, strict=True))
        if values:
            name = next(iter(values))
            hint = did_you_mean(name, (*self.fields, *self.inputs))
            raise TypeError(f"{self.name}() has no argument {name!r}{hint}")
        missing = [f for f, v in zip(self.fields, full, strict=True) if v is REQUIRED]
        if missing:
            raise TypeError(f"{self.name}() needs the argument {missing[0]!r}")
        try:
            return self.intern(full)
        except TypeError as e:
            if "unhashable" not in str(e):
                raise
        ones = [number(v) if k in ONE else v for k, v in zip(self.kinds, full, strict=True)]
        plain = [v.tolist() if isinstance(v, np.ndarray) else v for v in ones]
        frozen = [tuple(v) if isinstance(v, list) else v for v in plain]
        typed = zip(self.fields, self.kinds, frozen, strict=True)
        return self.intern(tuple(self._convert(f, k, v) for f, k, v in typed))

    def parse(self, args: tuple[Any, ...], kw: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        """Split the arguments of a call into inputs and attributes.

        What a call gives besides its inputs is looked up as it is; inputs that are missing are
        found later, by bind().
        """
        key = (args[self.given :], *kw.items())
        try:
            attrs = self._calls.find(key)
        except TypeError:  # a list, perhaps
            key = (_frozen(key[0]), *[(k, _frozen(v)) for k, v in kw.items()])
            try:
                attrs = self._calls.find(key)
            except TypeError:
                return self._parse(args, kw)
        if attrs is None:
            by_name = not kw.keys().isdisjoint(self.inputs)
            inputs, attrs = self._parse(args, kw)  # now kw has what was given by position, too
            if not by_name and not has_negative_zero(attrs.values):
                self._calls.put(key, attrs)
            return inputs, attrs
        if attrs.has_zero and has_negative_zero((*args[self.given :], *kw.values())):
            return self._parse(args, kw)  # the table takes it for 0.0
        return args[: self.given] + self.absent[len(args) :], attrs

    def _parse(self, args: tuple[Any, ...], kw: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        if self.variadic:
            return args, self.attrs(**kw)
        n = self.given
        names = self.inputs[:n]
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
        self.check_given(inputs)
        try:
            return tuple(inputs), self.attrs(**kw)
        except OneForAll as e:
            raise self._one_for_all(e.args[0], e.args[1], inputs[0], kw) from None

    def _one_for_all(self, field: str, value: Any, x: Any, given: dict[str, Any]) -> TypeError:
        """The error for one int where every spatial axis of x wants its own."""
        lengths = [len(list(v)) for f, v in given.items() if f in self.spatial and np.iterable(v)]
        if not lengths:
            base = given.get("base_axis", 1) if "base_axis" in self.fields else 1
            lengths = [max(getattr(x, "ndim", 4) - as_int(base) - 1, 1)]
        wanted = wanted_instead(value, lengths[0])
        return TypeError(f"{self.name}: {field} is {value!r}, {wanted}")

    def check_given(self, given: Sequence[Any]) -> None:
        """Raise if an input that is needed is None."""
        for i, (name, x) in enumerate(zip(self.inputs, given, strict=False)):
            if x is None and i not in self.optional:
                raise TypeError(f"{self.name}() needs the input {name!r}")

    def bad_input(self, inputs: tuple[Any, ...]) -> TypeError:
        """The error for an input that is neither Variable nor NdArray."""
        given = [(i, x) for i, x in enumerate(inputs) if x is not None or self.variadic]
        i, x = next((i, x) for i, x in given if not hasattr(x, "spec"))
        name = self.inputs[min(i, len(self.inputs) - 1)]
        listed = self.variadic and isinstance(x, (list, tuple))
        hint = f": write {self.name}(*{name})" if listed else ""
        return TypeError(
            f"{self.name}: {name} is {type(x).__name__}, wanted nnl.Variable or nnl.NdArray{hint}"
        )

    def told(self, error: BaseException, args: tuple[Any, ...] = ()) -> BaseException:
        """What is raised for an error in a call with these arguments: it says which call."""
        label = at(self.name, (STATE.layer, None, 0))
        if isinstance(error, TooLarge):
            return ShapeError(f"{label}: {error}")
        if isinstance(error, MemoryError):
            return no_memory(label, error)
        if isinstance(error, (ValueError, TypeError)):
            tell(error, self.name, label)
        elif isinstance(error, AttributeError) and self.variadic and any(x is None for x in args):
            return self.bad_input(args)
        return error

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
            if d is REQUIRED and params and params[-1].default is not Parameter.empty:
                kind = Parameter.KEYWORD_ONLY  # Python has no other after a default
            params.append(Parameter(f, kind, default=Parameter.empty if d is REQUIRED else d))
        for n, d in (("n_outputs", -1), ("outputs", None)):
            if n not in self.fields:
                params.append(Parameter(n, Parameter.KEYWORD_ONLY, default=d))
        return Signature(params)


def write_to(op: Any, outputs: Any, y: Any) -> Any:
    """Write the results of a call where the arrays of `outputs` live, now or when it runs."""
    ys = y if isinstance(y, tuple) else (y,)
    outs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    if len(outs) != len(ys):
        raise ValueError(f"{op.name}: outputs has {len(outs)} arrays, wanted {len(ys)}")
    if bad := [o for o in outs if not isinstance(getattr(o, "spec", None), Spec)]:
        raise TypeError(
            f"{op.name}: outputs is {type(bad[0]).__name__}, wanted nnl.Variable or nnl.NdArray"
        )
    for out, result in zip(outs, ys, strict=True):
        nd = out.data if hasattr(out, "edge") else out
        result_nd = result.data if hasattr(result, "edge") else result
        recorded = not STATE.interpreter.has_values
        if recorded and result_nd.spec.is_float and not nd.spec.is_float:
            raise TypeError(
                f"{op.name}: outputs is {nd.spec}, and the result {result_nd.spec}: arrays "
                "keep their types in nnl.compile; cast() it before"
            )
        if STATE.interpreter.assign(nd, result_nd):
            continue
        if nd.spec.shape != result_nd.spec.shape and nd.spec.size == result_nd.spec.size:
            nd = nd.view(result_nd.spec.shape)
        if nd.spec.shape != result_nd.spec.shape:
            if nd.record.own is not None:
                raise ShapeError(
                    f"{op.name}: outputs is {nd.spec}, which shares its memory with other arrays, "
                    f"and the result is {result_nd.spec}"
                )
            nd.become(result_nd)
        elif not result_nd.blank:
            nd.take_over(result_nd)
        else:  # recorded only: out keeps its values until the function is executed
            if nd.spec is not result_nd.spec:
                nd.cast(result_nd.spec.dtype)
            nd.stay()
            result_nd.become(nd)
            result.persistent = True  # somebody reads it elsewhere
    return y
