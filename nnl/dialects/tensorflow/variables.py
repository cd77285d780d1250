# SPDX-License-Identifier: Apache-2.0
"""Variables, what they begin with, and scopes that share them by name."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

import numpy as np

import nnl.functions as F
import nnl.workspace as ws
from nnl.converters.onnx.values.values import dtype_of, is_var, tagged, var
from nnl.core.ops.op import OPS
from nnl.dialects.tensorflow.arrays import fixed
from nnl.dialects.tensorflow.graph import GraphKeys, Tensor, get_default_graph
from nnl.dialects.tensorflow.initializers import INITIALIZERS
from nnl.dialects.tensorflow.operation import Operation, as_dtype, convert, handled, made, misfit
from nnl.dialects.tensorflow.shapes import _Misfit, same, shown, sizes_of
from nnl.dialects.tensorflow.table import N, defined, tensor

# ---- variables ----


class Variable(Tensor):
    """A tensor that keeps its value from run to run, from when its initializer has run.

    Args:
        initial_value: A tensor, an array, or a function that gives one.
        trainable: Whether optimizers change it where no variables are named.
        collections: Names of collections it is in; "variables" if left out.
    """

    __slots__ = ()

    def __init__(self, initial_value=None, trainable=True, collections=None, validate_shape=True,
                 caching_device=None, name=None, variable_def=None, dtype=None, **_):  # fmt: skip
        graph = get_default_graph()
        full = graph.unique(name or "Variable")
        if initial_value is None:
            raise ValueError("initial_value must be specified.")
        with graph.control_dependencies(None), graph.name_scope(full + "/"):
            value = initial_value() if callable(initial_value) else initial_value
            value = tensor(convert(value, dtype))
            if validate_shape and value.sizes is None:
                raise ValueError(f"initial_value must have a shape specified: {value!r}")
            key = graph.key(full)
            super().__init__(graph.workspace, key, value.sizes, value.dtype)
            self._label = full + self.key[len(key) :]
            self.initial_value, self.trainable = value, trainable
            guards, graph.guards = graph.guards, ()
            self.initializer = self.assign(value, name="Assign").operator
            graph.guards = guards
        keys = [GraphKeys.GLOBAL_VARIABLES] if collections is None else list(collections)
        if trainable and GraphKeys.TRAINABLE_VARIABLES not in keys:
            keys.append(GraphKeys.TRAINABLE_VARIABLES)
        for key in keys:
            graph.add_to_collection(key, self)

    def _write(self, op, name, inputs, compute):
        """An operation that gives the variable a value; in a branch of cond if that is taken."""
        guards = get_default_graph().guards
        held = np.dtype(np.float32) if self.dtype.kind == "b" else self.dtype

        def new(*values):
            y = compute(*values[: len(inputs)])
            y = y if is_var(y) else var(np.asarray(y, self.dtype))
            y = y if y.spec.dtype == held else OPS["cast"](y, dtype=held.name)
            for before, flag, (_, wanted) in zip(
                values[len(inputs) :: 2], values[len(inputs) + 1 :: 2], guards, strict=True
            ):
                y = choose(flag, y, before) if wanted else choose(flag, before, y)
            return fixed(y)

        more = [x for p, _ in guards for x in (self, p)]
        how = {"constant": False, "shapes": [self.sizes], "dtypes": [self.dtype]}
        return made(op, new, *inputs, *more, name=name, writes=[self], **how)

    def assign(self, value, use_locking=False, name=None):
        """The operation that sets the value, which is its result."""
        value = convert(value, self.dtype)
        theirs = value.sizes if isinstance(value, ws.Tensor) else value.shape
        try:
            same(self.sizes, theirs)
        except _Misfit as error:
            where = f"{self.label}/Assign"
            raise ValueError(misfit(error, where, "Assign", [self.sizes, theirs])) from None
        return self._write("Assign", name, [value], lambda v: v)

    def _add(self, op, delta, name, f):
        def compute(v, d):
            v, d = var(v), var(d)
            return f(v, d if d.shape == v.shape else F.broadcast(d, v.shape))

        return self._write(op, name, [self, convert(delta, self.dtype)], compute)

    def assign_add(self, delta, use_locking=False, name=None):
        """The operation that adds to the value."""
        return self._add("AssignAdd", delta, name, F.add2)

    def assign_sub(self, delta, use_locking=False, name=None):
        """The operation that subtracts from the value."""
        return self._add("AssignSub", delta, name, F.sub2)

    def load(self, value, session=None):
        """Set the value now."""
        self.workspace.keep(self, np.zeros(self.sizes or (), self.dtype), self.dtype.kind == "f")
        self.workspace.feed(self, value)

    def value(self):
        """The value, as a tensor."""
        return self

    def read_value(self):
        """The value as it is where this is made."""
        return N.identity(self, "read")

    initialized_value = value


def choose(condition, x, y):
    """x if a condition holds, else y."""
    if not is_var(condition):
        return x if bool(np.asarray(condition)) else y
    kind, x, y = dtype_of(x), var(x), var(y)
    mask = F.broadcast(F.reshape(condition, (1,) * x.ndim), x.shape)
    return tagged(F.where(mask, x, y), kind)


def _scatter(op):
    def function(ref, indices, updates, use_locking=True, name=None):
        at = N.expand_dims(tensor(indices), -1)
        return ref.assign(handled(op, ref, at, tensor(updates, ref.dtype)), name=name)

    return function


# fmt: off
ASSIGN = defined({
    "assign": lambda ref, value, validate_shape=None, use_locking=None, name=None: ref.assign(
        value, name=name),
    "assign_add": lambda ref, value, use_locking=None, name=None: ref.assign_add(value, name=name),
    "assign_sub": lambda ref, value, use_locking=None, name=None: ref.assign_sub(value, name=name),
    "scatter_update": _scatter("TensorScatterUpdate"),
    "scatter_add": _scatter("TensorScatterAdd"),
})
# fmt: on


# ---- variables by name ----

AUTO_REUSE = "reuse, or make"


class VariableScope:
    """What get_variable uses inside: a beginning of names, whether to reuse, defaults."""

    def __init__(self, name, reuse=False, **defaults):
        self.name, self.reuse, self.defaults = name, reuse, defaults

    original_name_scope = property(lambda self: f"{self.name}/" if self.name else "")
    initializer = property(lambda self: self.defaults.get("initializer"))

    def reuse_variables(self):
        """From here on variables are those that exist."""
        self.reuse = True

    def set_initializer(self, initializer):
        """What new variables begin with."""
        self.defaults["initializer"] = initializer

    def get_collection(self, name):
        """What is in a collection under this scope."""
        return get_default_graph().get_collection(name, f"{self.name}/" if self.name else None)


def get_variable_scope():
    """The scope that variables are in now."""
    graph = get_default_graph()
    if graph.vars_scope is None:
        graph.vars_scope = VariableScope("")
    return graph.vars_scope


@contextmanager
def variable_scope(name_or_scope, default_name=None, values=None, initializer=None,
                   regularizer=None, reuse=None, dtype=None, auxiliary_name_scope=True,
                   custom_getter=None, **_):  # fmt: skip
    """get_variable has names that begin with this one, and what is said here as defaults."""
    graph, outer = get_default_graph(), get_variable_scope()
    prefix = f"{outer.name}/" if outer.name else ""
    if isinstance(name_or_scope, VariableScope):
        full, base = name_or_scope.name, name_or_scope
    else:
        name, base, n = name_or_scope or default_name, outer, 0
        if name is None:
            raise TypeError("If default_name is None then name_or_scope is required")
        while name_or_scope is None and prefix + name in graph.variable_scopes:
            n += 1
            name = f"{default_name}_{n}"
        full = prefix + name
    graph.variable_scopes.add(full)
    given = {"initializer": initializer, "regularizer": regularizer, "dtype": dtype,
             "custom_getter": custom_getter}  # fmt: skip
    defaults = {**base.defaults, **{k: v for k, v in given.items() if v is not None}}
    graph.vars_scope = VariableScope(full, reuse or base.reuse, **defaults)
    short = full.rpartition("/")[2]
    try:
        with graph.name_scope(short if auxiliary_name_scope and short else graph.scope or None):
            yield graph.vars_scope
    finally:
        graph.vars_scope = outer
        graph.variable_scopes = {n for n in graph.variable_scopes if not n.startswith(f"{full}/")}


def get_variable(name, shape=None, dtype=None, initializer=None, regularizer=None, trainable=True,
                 collections=None, **options):  # fmt: skip
    """The variable of a name in the present scope: a new one, or with reuse the one that exists.

    Raises:
        ValueError: It exists and is not reused, does not exist and is, or has another shape.
    """
    graph, scope = get_default_graph(), get_variable_scope()
    getter = scope.defaults.get("custom_getter")
    if getter is not None and not options.get("_inside"):
        inner = partial(get_variable, _inside=True)
        return getter(inner, name, shape=shape, dtype=dtype, initializer=initializer,
                      regularizer=regularizer, trainable=trainable,
                      collections=collections)  # fmt: skip
    full = f"{scope.name}/{name}" if scope.name else name
    found = graph.variables.get(full)
    if found is not None:
        if not scope.reuse:
            raise ValueError(
                f"Variable {full} already exists, disallowed. Did you mean to set reuse=True or "
                "reuse=tf.AUTO_REUSE in VarScope?"
            )
        if shape is not None and not found.shape.is_compatible_with(shape):
            raise ValueError(
                f"Trying to share variable {full}, but specified shape {shown(sizes_of(shape))} "
                f"and found shape {found.shape}."
            )
        return found
    if scope.reuse and scope.reuse is not AUTO_REUSE:
        raise ValueError(
            f"Variable {full} does not exist, or was not created with tf.get_variable(). Did you "
            "mean to set reuse=tf.AUTO_REUSE in VarScope?"
        )
    kind = as_dtype(dtype or scope.defaults.get("dtype") or np.float32)
    begin = initializer if initializer is not None else scope.initializer
    if begin is None:
        begin = INITIALIZERS["glorot_uniform" if kind.kind == "f" else "zeros"]()
    start = begin
    if callable(begin):
        sizes = sizes_of(shape)
        if sizes is None or None in sizes:
            raise ValueError(
                f"Shape of a new variable ({full}) must be fully defined, but instead was {shape}."
            )
        start, dtype = partial(begin, list(sizes), dtype=kind), None
    with graph.name_scope(None):
        made = graph.variables[full] = Variable(
            start, trainable, collections, name=full, dtype=dtype
        )
        rule = regularizer if regularizer is not None else scope.defaults.get("regularizer")
        if rule is not None:
            with graph.name_scope(full + "/Regularizer/"):
                loss = rule(made)
            if loss is not None:
                graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)
    return made


def _collection(key):
    return lambda scope=None: get_default_graph().get_collection(key, scope)


global_variables = all_variables = _collection(GraphKeys.GLOBAL_VARIABLES)
local_variables = _collection(GraphKeys.LOCAL_VARIABLES)
trainable_variables = _collection(GraphKeys.TRAINABLE_VARIABLES)
moving_average_variables = _collection(GraphKeys.MOVING_AVERAGE_VARIABLES)


def group(*inputs, name=None):
    """An operation that runs others."""
    flat = [x for i in inputs for x in (i if isinstance(i, (list, tuple)) else [i])]
    after = [x if isinstance(x, ws.Tensor) else x.outputs[0] for x in flat]
    return Operation("NoOp", lambda: np.zeros(()), (), name or "group_deps", after=after)


def no_op(name=None):
    """An operation that does nothing."""
    return group(name=name or "NoOp")


def variables_initializer(var_list, name="init"):
    """The operation that gives variables their first values."""
    return group(*[v.initializer for v in var_list], name=name)


def global_variables_initializer():
    """The operation that gives all variables so far their first values."""
    return variables_initializer(global_variables())


initialize_all_variables = global_variables_initializer


def local_variables_initializer():
    """The operation that gives local variables their first values."""
    return variables_initializer(local_variables(), "init_local")


initialize_variables, initialize_local_variables = (
    variables_initializer, local_variables_initializer,
)  # fmt: skip


def report_uninitialized_variables(var_list=None, name=None):
    """Names of variables without a value, when this is made."""
    those = global_variables() if var_list is None else var_list
    return tensor(np.array([v.label.encode() for v in those if not v.kept], object))


def set_random_seed(seed):
    """Random operations made from here on give the same in every process."""
    get_default_graph().seed = seed
