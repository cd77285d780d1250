# SPDX-License-Identifier: Apache-2.0
"""Op: everything the framework knows about one function, read from one decorated class."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from nnl.core.arrays.spec import Spec
from nnl.core.ops.arguments import REQUIRED, Arguments, write_to
from nnl.core.ops.caches import Kernels
from nnl.core.ops.describe import Cost, Onnx, Sample
from nnl.core.ops.random import stream
from nnl.core.settings.context import STATE
from nnl.core.settings.registry import OPS

__all__ = ["OPS", "Attributes", "Cost", "Onnx", "Op", "Sample", "op"]


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
        decompose(self, x, w, b)    instead of forward: the same in other functions, which plans
                                    run in its place where `in_parts` is True.
        portable(self, x, w, b)     beside forward: the same in other functions, for libraries that
                                    have no kernel; what it writes, later ones must read.
        vjp(self, gy, *, x, y, x_spec, need)
                                    output gradients -> input gradients (None where there is none),
                                    in functions. The keyword-only names are all that it sees:
                                    inputs and outputs by name, their specs as <name>_spec, and
                                    `need`, a bool for every input.
        counts, count_of(values)    the input from whose value the attribute `count` follows, and
                                    how; static graphs ask again when their shapes have changed.
        takes(self, x, w, b)        input specs -> those that the function wants instead.
        resolve(self, x, w, b)      input specs -> {attribute: value} for those left to default.
        cost(self, x, w, b)         input specs -> Cost.
        samples(rng)                yields Sample.
        shows_inputs                True where the function only collects its inputs for the user,
                                    so that clearing leaves them readable.
        follows_order, extends, zeros
                                    see nnl.core.ops.schema, which tells them as data.
    """

    __slots__ = ("values", "bound", "resolved", "has_zero")
    shows_inputs = in_parts = False
    op: Op
    infer: Callable[..., Spec | tuple[Spec, ...]]
    values: tuple[Any, ...]
    bound: Kernels  # (target, *specs) -> Bound
    resolved: Kernels

    def as_dict(self) -> dict[str, Any]:
        """Attribute values by name."""
        return dict(zip(self.op.fields, self.values, strict=True))

    def __repr__(self) -> str:
        return f"{self.op.name}({', '.join(f'{k}={v!r}' for k, v in self.as_dict().items())})"


class Op(Arguments):
    """One function: its inputs, attributes and rules. Calling it applies it.

    Nothing is declared twice: input names come from `infer`, attributes from the class body, what
    backward keeps from the keyword-only names of `vjp`.
    """

    __slots__ = ("arity", "given", "default_attrs", "_calls", "takes_rng", "has_resolve",
        "differentiable", "inputs", "outputs", "visible", "variadic", "variadic_out", "kept_inputs",
        "kept_outputs", "name")  # read by calls in C  # fmt: skip

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
        self.integer, self.keep, self._writes = integer, keep, writes
        self.nnp, self.onnx = nnp, onnx
        self.attrs_class = attrs_class = type(cls.__name__, (cls, Attributes), {"op": self})
        attrs_class.__module__, attrs_class.__doc__ = cls.__module__, cls.__doc__
        self.__doc__, self.__module__, self.__name__ = cls.__doc__, cls.__module__, name
        self.__qualname__, self.type_name = name, nnp or type_name or name
        self._read_fields(cls)
        self._read_inputs(cls)
        self._read_vjp(cls)
        self._interned, self._raw, self._calls = Kernels(), Kernels(), Kernels()
        self.has_resolve = hasattr(cls, "resolve")
        self.given_defaults = {
            f: d for f, d in zip(self.fields, self.defaults, strict=True) if d is not REQUIRED
        }
        self.default_attrs = None if REQUIRED in self.defaults else self.intern(self.defaults)

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

    def call(self, *args: Any, **kw: Any) -> Any:
        """Apply the op: what a call of it means."""
        outputs = None
        try:
            if kw:
                kw.pop("n_outputs", None)
                outputs = kw.pop("outputs", None)
            attrs = self.default_attrs
            if kw or len(args) != self.arity or attrs is None:
                args, attrs = self.parse(args, kw)
            if self.takes_rng:
                args = (*args, stream(getattr(attrs, "seed", -1)))
            if self.has_resolve:
                attrs = self._resolve(attrs, args)
            y = STATE.interpreter.apply(self, attrs, args)
        except Exception as e:
            if (told := self.told(e, args)) is e:
                raise
            raise told from None
        return y if outputs is None else write_to(self, outputs, y)

    __call__ = call

    def _resolve(self, attrs: Any, inputs: tuple[Any, ...]) -> Any:
        try:
            specs = tuple([None if x is None else x.spec for x in inputs])
        except AttributeError:
            raise self.bad_input(inputs) from None
        done = attrs.resolved.find(specs)
        if done is None:
            if None in specs[: self.required] and not self.variadic:
                self.check_given(specs)
            done = self.attrs(**{**attrs.as_dict(), **attrs.resolve(*specs)})
            attrs.resolved.put(specs, done)
        return done

    def __repr__(self) -> str:
        return f"<op {self.name}{self.__signature__}>"


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


def call_by(method: Any) -> None:
    """Let calls of ops be a library's method, which does what `Op.call` does, faster."""
    Op.__call__ = method  # type: ignore[method-assign]
