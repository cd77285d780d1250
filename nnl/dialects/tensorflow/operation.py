# SPDX-License-Identifier: Apache-2.0
"""Operations, made of what the importers of graphs make of nodes, and values that they take."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

import nnl.workspace as ws
from nnl.converters.onnx.values.values import _NeedsNumber, array, dtype_of, is_var, tagged, var
from nnl.converters.tensorflow import importer as _importer  # noqa: F401  registers importers
from nnl.converters.tensorflow.graph import Library
from nnl.converters.tensorflow.interpreter import HANDLERS, Interpreter
from nnl.converters.tensorflow.messages import code_of_dtype, dtype_of_code
from nnl.core.interpreters.interpreter import EAGER
from nnl.core.interpreters.switches import auto_forward
from nnl.core.ops.op import OPS
from nnl.core.settings.context import using
from nnl.dialects.tensorflow.graph import Tensor, default_session, get_default_graph
from nnl.dialects.tensorflow.shapes import READS_NUMBERS, RULES, TensorShape, _Misfit, sizes_of
from nnl.functions import identity
from nnl.workspace.tensor import _blank, _NeedsValue

EVERY = np.array([], np.int32)  # all axes of a tensor of which the number is not known


class Call:
    """What an importer asks of a node."""

    def __init__(self, op, attributes):
        self.op = self.name = self.label = op
        self.attributes = attributes

    def attr(self, name, default=None):
        """An attribute."""
        return self.attributes.get(name, default)

    def __call__(self, *values):
        """The importer's results for values."""
        values = tuple([np.arange(len(values[0].shape)) if v is EVERY else v for v in values])
        return HANDLERS[self.op](_context(), self, *values)


class _Context(Interpreter):
    """An importer's interpreter whose arrays stay constants."""

    def __init__(self):
        super().__init__(Library(SimpleNamespace(function=())))

    def parameter(self, node, name, value, need_grad=True):
        """The value itself."""
        return var(value)


CONTEXTS = []


def _context():
    return CONTEXTS[-1] if CONTEXTS else _Context()


@contextmanager
def one_program():
    """What is written down inside is one program: images keep the axes that they are held with."""
    CONTEXTS.append(_Context())
    try:
        yield
    finally:
        CONTEXTS.pop()


class _Found:
    def __init__(self, x):
        self.shape, self.dtype = tuple(x.shape), dtype_of(x)


class Operation(ws.Operator):
    """An operator of a graph.

    Args:
        constant: Whether it always gives the same for the same values.
        otherwise: The type of the results where no probe finds it; that of the first tensor.
        rest: As of nnl.workspace.Operator.
    """

    def __init__(
        self, type, compute, inputs=(), name=None, constant=True, otherwise=None, after=(),
        cls=Tensor, **options,
    ):  # fmt: skip
        graph = self.graph = get_default_graph()
        self.constant = constant
        self._dtypes = options.get("dtypes")
        full = graph.unique(name or type)
        sizes = [x.sizes if isinstance(x, ws.Tensor) else np.shape(x) for x in inputs]
        rule, found = RULES.get(type), None
        try:
            if rule in READS_NUMBERS:
                found = rule(*sizes[:-1], _numbers(inputs[-1]))
            elif rule is not None:
                found = rule(*sizes, *_turned(compute))
            self._full = full
            super().__init__(
                graph.workspace,
                type,
                compute,
                inputs,
                name=full,
                cls=cls,
                knows=True,
                after=(*graph.after, *after),
                **options,
            )
        except _Misfit as error:
            raise ValueError(misfit(error, full, type, sizes)) from None
        out = self.outputs[0]
        if found is not None:
            Tensor.set_shape(out, found)
        if out.sizes is None and self._dtypes is None and (self.tensors or otherwise):
            for t in self.outputs:
                t.dtype = np.dtype(otherwise or self.tensors[0].dtype)

    @property
    def name(self):
        """Its name."""
        return self.outputs[0].key

    def run(self, feed_dict=None, session=None):
        """Run it in a session."""
        default_session(session, "run").run(self, feed_dict)

    @property
    def control_inputs(self):
        """Operations that run before it."""
        return [t.operator for t in self.after]

    def results(self, values):
        """Its results; what depends on constants alone is computed at once."""
        given = [_as(values[x], x.dtype) if isinstance(x, ws.Tensor) else x for x in self.inputs]
        if self.constant and not any(map(is_var, given)):
            with using(interpreter=EAGER, no_grad=True):
                made = self.compute(*given, **self.arguments)
                made = list(made) if isinstance(made, (tuple, list)) else [made]
                made = [array(y) if is_var(y) else np.asarray(y) for y in made]
        else:
            try:
                made = self.compute(*given, **self.arguments)
            except _NeedsNumber as error:
                for x, v in zip(self.inputs, given, strict=True):
                    if is_var(v) and v.edge.key == error.value.edge.key:
                        raise _NeedsValue(f"an argument of {self.type}", values[x]) from None
                raise
            made = list(made) if isinstance(made, (tuple, list)) else [made]
        dtypes = self._dtypes or [None] * len(made)
        return [v if t is None else _as(v, t) for v, t in zip(made, dtypes, strict=False)]

    def _at(self, samples):
        if any(s is None for s in samples):
            return None
        values = {}
        for x, s in zip(self.tensors, samples, strict=True):
            held = np.float32 if x.dtype.kind == "b" else x.dtype
            values[x] = s if isinstance(s, np.ndarray) else tagged(_blank(s, held), x.dtype)
        fixed = all(x.is_fixed for x in self.tensors)
        try:
            with auto_forward(False), one_program():
                made = self.results(values)
        except _NeedsValue:
            return None
        except (ValueError, TypeError, IndexError) as error:
            if fixed:
                sizes = [x.sizes if isinstance(x, ws.Tensor) else np.shape(x) for x in self.inputs]
                raise ValueError(misfit(error, self._full, self.type, sizes)) from error
            return None
        return [v if isinstance(v, np.ndarray) else _Found(v) for v in made]


def _numbers(x):
    """The numbers of a vector that are known now, None for each other."""
    if not isinstance(x, ws.Tensor):
        return np.reshape(x, -1).tolist()
    if x.operator is not None and x.operator.type == "Pack":
        parts = [_numbers(p) for p in x.operator.inputs]
        return [p[0] if p else None for p in parts]
    first, second = x.samples
    same = isinstance(first, np.ndarray) and np.array_equal(first, second)
    return _numbers(first) if same else None


def _turned(compute):
    """What a rule of shapes must know of attributes."""
    if not isinstance(compute, Call):
        return ()
    a = compute.attributes
    if compute.op == "MatMul":
        return bool(a.get("transpose_a")), bool(a.get("transpose_b"))
    return (True,) if str(a.get("data_format", "")).startswith("NC") else ()


def misfit(error, name, type, sizes):
    """A message about an operation that cannot be made."""
    shapes = ", ".join(
        "<unknown>" if s is None else f"[{','.join('?' if d is None else str(d) for d in s)}]"
        for s in sizes
    )
    return f"{error} for '{name}' (op: '{type}') with input shapes: {shapes}."


def _as(v, dtype):
    """A value as a type: truth is held as numbers."""
    if not is_var(v):
        return np.asarray(v).astype(dtype, copy=False)
    if v.spec.dtype.kind == "b":
        v = OPS["cast"](v, dtype="float32")
    return tagged(v, dtype)


_TRUTH = set(
    "Equal NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr LogicalNot IsNan "
    "IsInf IsFinite All Any".split()
)


def handled(type, *inputs, name=None, count=None, **attributes):
    """The result, or the list of `count` results, of an operation that importers know."""
    codes = [attributes[k] for k in ("DstT", "output_type", "out_type", "T") if k in attributes]
    otherwise = np.bool_ if type in _TRUTH else dtype_of_code(codes[0]) if codes else None
    first = next((x for x in inputs if hasattr(x, "dtype")), None)
    if first is not None and first.dtype.kind != "O":
        attributes.setdefault("T", code_of_dtype(first.dtype))
    how = {"count": count or 1, "otherwise": otherwise}
    made = Operation(type, Call(type, attributes), inputs, name, **how)
    return made.outputs[0] if count is None else list(made.outputs)


def made(type, compute, *inputs, name=None, **options):
    """The first result of an operation that a function of values computes."""
    return Operation(type, compute, inputs, name, **options).outputs[0]


# ---- values ----


def as_dtype(given):
    """A type: of numpy, or as TensorFlow calls it."""
    names = {"float": "float32", "double": "float64", "half": "float16", "string": "object"}
    if given is float or given is int:
        return np.dtype("float32" if given is float else "int32")
    if isinstance(given, str):
        given = names.get(given, given).removesuffix("_ref")
    return np.dtype(given)


def array_of(value, dtype=None):
    """A constant: of Python's numbers with TensorFlow's types."""
    if isinstance(value, TensorShape):
        value = value.as_list()
    given = np.asarray(value)
    if given.dtype.kind in "US":
        given = np.array(value, object)  # numpy's own type drops zeros at the end
    if dtype is None:
        plain = not isinstance(value, (np.ndarray, np.generic))
        if plain and given.dtype.kind in "fi":
            return given.astype(np.float32 if given.dtype.kind == "f" else np.int32)
        return given
    want = as_dtype(dtype)
    if want.kind in "iu" and given.dtype.kind == "f" and not isinstance(value, np.ndarray):
        raise TypeError(f"Expected {want.name}, but got {value!r} of type 'float'.")
    return given.astype(want)


def convert(value, dtype=None, name=None):
    """A tensor as it is, anything else as an array.

    Raises:
        ValueError: It is a tensor of another type.
    """
    if isinstance(value, ws.Tensor):
        if dtype is not None and as_dtype(dtype) != value.dtype:
            raise ValueError(
                f"Tensor conversion requested dtype {as_dtype(dtype).name} for Tensor with dtype "
                f"{value.dtype.name}: {value!r}"
            )
        return value
    if isinstance(value, (list, tuple)) and _has_tensor(value):
        parts = [convert(v, dtype) for v in value]
        kind = next((p.dtype for p in parts if isinstance(p, ws.Tensor)), None)
        return handled("Pack", *[convert(p, kind) for p in parts], name=name or "packed", axis=0)
    return array_of(value, dtype)


def _has_tensor(value):
    if isinstance(value, (list, tuple)):
        return any(map(_has_tensor, value))
    return isinstance(value, ws.Tensor)


def constant(value, dtype=None, shape=None, name="Const", verify_shape=False):
    """A tensor that is always the same."""
    held = array_of(value, dtype)
    if shape is not None:
        held = _filled(held, sizes_of(shape))
    return made("Const", lambda: held, name=name)


def _filled(held, sizes):
    count = int(np.prod(sizes))
    if held.size > count or not held.size:
        raise ValueError(
            f"Too many elements provided. Needed at most {count}, but received {held.size}"
        )
    flat = np.concatenate([held.reshape(-1), np.repeat(held.reshape(-1)[-1:], count - held.size)])
    return flat.reshape(sizes)


def convert_to_tensor(value, dtype=None, name=None, preferred_dtype=None):
    """A tensor: itself, or a constant."""
    found = convert(value, dtype)
    return found if isinstance(found, ws.Tensor) else constant(found, name=name or "Const")


def placeholder(dtype, shape=None, name=None):
    """A tensor that is fed.

    Args:
        shape: Sizes, None where any will do; None for any shape at all.
    """
    graph = get_default_graph()
    full = graph.unique(name or "Placeholder")
    return Tensor(graph.workspace, full, sizes_of(shape), as_dtype(dtype))


def placeholder_with_default(input, shape, name=None):
    """A tensor that may be fed, and else is `input`."""
    x = convert_to_tensor(input)
    return made(
        "PlaceholderWithDefault",
        lambda v: identity(v) if is_var(v) else v,
        x,
        name=name,
        shapes=[sizes_of(shape)],
        dtypes=[x.dtype],
    )
