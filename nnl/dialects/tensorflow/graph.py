# SPDX-License-Identifier: Apache-2.0
"""Graphs, tensors and operations, named as TensorFlow 1 names them."""

from __future__ import annotations

import re
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import nnl.workspace as ws
from nnl.dialects.tensorflow.shapes import TensorShape, merged, sizes_of
from nnl.workspace.tensor import PROBES


class GraphKeys:
    """Names of collections."""

    GLOBAL_VARIABLES = VARIABLES = "variables"
    LOCAL_VARIABLES = "local_variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    MOVING_AVERAGE_VARIABLES = "moving_average_variables"
    MODEL_VARIABLES = "model_variables"
    REGULARIZATION_LOSSES = "regularization_losses"
    LOSSES = "losses"
    UPDATE_OPS = "update_ops"
    SUMMARIES = "summaries"
    GLOBAL_STEP = "global_step"
    TRAIN_OP = "train_op"
    WEIGHTS, BIASES, ACTIVATIONS = "weights", "biases", "activations"


class Graph:
    """Operations and tensors by name.

    Args:
        workspace: What they are in; one of its own if left out.
    """

    def __init__(self, workspace=None):
        self.workspace = ws.Workspace({}) if workspace is None else workspace
        self.collections = {}
        self.scope = ""
        self.scopes = set()
        self.after = ()
        self.guards = ()  # of branches of cond that are written down
        self.seed = None
        self.seeds = 0
        self.variable_scopes = set()
        self.variables = {}  # of get_variable
        self.transactions = {}
        self.vars_scope = None

    @contextmanager
    def as_default(self):
        """New operations are in this graph."""
        _STACK.append(self)
        try:
            yield self
        finally:
            _STACK.pop()

    def key(self, name):
        """The key of a variable in the workspace, where nothing can be under a parameter."""
        at = name.rfind("/")
        while at > 0:
            if type(self.workspace.tensors.get(name[:at])).__name__ == "Variable":
                return f"{name[:at]}{UNDER}{name[at + 1 :]}"
            at = name.rfind("/", 0, at)
        return name

    def next_seed(self):
        """A seed for a random operation that has none of its own."""
        self.seeds += 1
        return self.seeds

    def unique(self, name):
        """A name in the present scope that no operation has."""
        if name.endswith("/"):
            return self.workspace.unique(name[:-1])
        if not re.fullmatch(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*", self.scope + name):
            raise ValueError(f"'{name}' is not a valid scope name")
        return self.workspace.unique(self.scope + name)

    @contextmanager
    def name_scope(self, name):
        """Names begin with this one, made unique; a "/" at its end says that it is whole."""
        outer = self.scope
        if not name:
            self.scope = ""
        elif name.endswith("/"):
            self.scope = name
        else:
            if not re.fullmatch(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*", outer + name):
                raise ValueError(f"'{name}' is not a valid scope name")
            full, n = outer + name, 0
            while full in self.scopes or full in self.workspace:
                n += 1
                full = f"{outer}{name}_{n}"
            self.scopes.add(full)
            self.scope = full + "/"
        try:
            yield self.scope
        finally:
            self.scope = outer

    @contextmanager
    def control_dependencies(self, inputs):
        """What is made inside runs after these operations, which run whenever it does."""
        outer = self.after
        more = [x if isinstance(x, ws.Tensor) else x.outputs[0] for x in inputs or ()]
        self.after = () if inputs is None else (*outer, *more)
        try:
            yield
        finally:
            self.after = outer

    @contextmanager
    def device(self, name):
        """Every device is the one that nnl runs on."""
        yield

    def add_to_collection(self, name, value):
        """Note a value under a name."""
        self.collections.setdefault(name, []).append(value)

    def get_collection(self, name, scope=None):
        """What is noted under a name; of a scope what that regular expression begins."""
        found = list(self.collections.get(name, ()))
        if scope is None:
            return found
        return [x for x in found if hasattr(x, "name") and re.match(scope, x.name)]

    def get_collection_ref(self, name):
        """The list itself."""
        return self.collections.setdefault(name, [])

    def get_tensor_by_name(self, name):
        """The tensor "operation:0".

        Raises:
            KeyError: There is none of this name.
        """
        found = self.workspace.tensors.get(self.key(name.removesuffix(":0")))
        if found is None:
            op, _, n = name.partition(":")
            raise KeyError(
                f"The name {name!r} refers to a Tensor which does not exist. The operation, "
                f"{op!r}, does not exist in the graph."
                if op not in self.workspace
                else f"The name {name!r} refers to a Tensor which does not exist. The operation, "
                f"{op!r}, exists but has no output {n}."
            )
        return found

    def get_operation_by_name(self, name):
        """The operation of a name."""
        if name not in self.workspace:
            raise KeyError(f"The name {name!r} refers to an Operation not in the graph.")
        return self.workspace[name].op

    def get_operations(self):
        """All operations, in the order that they were made in."""
        found = [t for t in self.workspace.tensors.values() if isinstance(t, Tensor)]
        return [t.op for t in found if t.graph is self and t.index == 0]


_STACK = []
_DEFAULTS = WeakKeyDictionary()


def get_default_graph():
    """The graph that new operations are in."""
    if _STACK:
        return _STACK[-1]
    here = ws.current()
    if here not in _DEFAULTS:
        _DEFAULTS[here] = Graph(here)
    return _DEFAULTS[here]


def reset_default_graph():
    """Forget the default graph, and the values of its variables."""
    graph = get_default_graph()
    graph.workspace.reset(
        [k for k, t in graph.workspace.tensors.items() if getattr(t, "graph", None) is graph]
    )
    graph.__init__(graph.workspace)


def in_graph(method):
    """The method of the default graph as a function."""

    def function(*args, **kwargs):
        return getattr(get_default_graph(), method)(*args, **kwargs)

    function.__name__, function.__doc__ = method, getattr(Graph, method).__doc__
    return function


add_to_collection, get_collection = in_graph("add_to_collection"), in_graph("get_collection")
get_collection_ref, device = in_graph("get_collection_ref"), in_graph("device")
control_dependencies = in_graph("control_dependencies")


@contextmanager
def name_scope(name=None, default_name=None, values=None):
    """Names of operations begin with this one."""
    with get_default_graph().name_scope(default_name if name is None else name) as scope:
        yield scope


class Names(dict):
    """Functions by name, which are attributes too."""

    def __getattr__(self, name):
        return self[name]


N = Names()  # the functions of tf, which other modules note here


UNDER = "."  # between the name of a variable and that of one that belongs to it


class Tensor(ws.Tensor):
    """A result of an operation, of which the value is not computed before a session runs."""

    __slots__ = ()
    __array_priority__ = 100

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.graph = get_default_graph()

    @property
    def name(self):
        """Name of its operation, and which of the results it is."""
        return self.label if ":" in self.label else f"{self.label}:0"

    @property
    def label(self):
        """Its name without ":0". What is under a parameter has another key in the workspace."""
        return self.__dict__.get("_label", self.key)

    @property
    def op(self):
        """What makes it."""
        return self.operator or self.__dict__.get("host") or Leaf(self)

    @property
    def shape(self):
        """Sizes of its axes."""
        return TensorShape(self.sizes)

    def get_shape(self):
        """Sizes of its axes."""
        return self.shape

    def set_shape(self, shape):
        """Say what is known about the sizes."""
        both = merged(self.sizes, sizes_of(shape))
        if both is False:
            raise ValueError(
                f"Shapes must be equal rank, but are {self.shape} and {TensorShape(shape)}"
                if self.shape.ndims != TensorShape(shape).ndims
                else f"Dimensions of {self.shape} and {TensorShape(shape)} are not compatible"
            )
        if both != self.sizes:
            self.sizes = both
            self.samples = [tuple([n if d is None else d for d in both]) for n in PROBES]

    def eval(self, feed_dict=None, session=None):
        """Its value, computed by a session."""
        return default_session(session, "eval").run(self, feed_dict)

    def __getitem__(self, key):
        return N["_getitem"](self, key)

    def __bool__(self):
        raise TypeError(
            "Using a `tf.Tensor` as a Python `bool` is not allowed. Use `if t is not None:` "
            "instead of `if t:` to test if a tensor is defined, and use TensorFlow ops such as "
            "tf.cond to execute subgraphs conditioned on the value of a tensor."
        )

    def __len__(self):
        raise TypeError(f"len is not well defined for a symbolic Tensor. ({self.name})")

    def __iter__(self):
        raise TypeError("Tensor objects are only iterable when eager execution is enabled.")

    def __repr__(self):
        kind = "Variable" if type(self).__name__ == "Variable" else "Tensor"
        return f"<tf.{kind} '{self.name}' shape={self.shape} dtype={self.dtype.name}>"


_OPERATORS = {"truediv": "divide", "sub": "subtract", "mul": "multiply", "and": "logical_and"}
_OPERATORS |= {"or": "logical_or", **{k: k for k in ("add", "floordiv", "mod", "pow", "matmul")}}
for _name, _f in _OPERATORS.items():
    setattr(Tensor, f"__{_name}__", lambda self, other, f=_f: N[f](self, other))
    setattr(Tensor, f"__r{_name}__", lambda self, other, f=_f: N[f](other, self))
for _f in ("less", "less_equal", "greater", "greater_equal"):
    _name = f"__{_f[0]}{'e' if 'equal' in _f else 't'}__"
    setattr(Tensor, _name, lambda self, other, f=_f: N[f](self, other))
for _name, _f in {"neg": "negative", "abs": "abs", "invert": "logical_not"}.items():
    setattr(Tensor, f"__{_name}__", lambda self, f=_f: N[f](self))


class Leaf:
    """The operation of a placeholder or a variable."""

    def __init__(self, tensor):
        self.outputs, self.name, self.graph = (tensor,), tensor.label, tensor.graph
        self.type = "VariableV2" if type(tensor).__name__ == "Variable" else "Placeholder"
        self.inputs = ()

    def __eq__(self, other):
        return getattr(other, "outputs", None) == self.outputs

    def __hash__(self):
        return hash(self.outputs)


SESSIONS = []


def default_session(given, what):
    if given is None and not SESSIONS:
        raise ValueError(
            f"Cannot {'evaluate tensor' if what == 'eval' else 'execute operation'} using "
            f"`{what}()`: No default session is registered. Use `with sess.as_default()` or pass "
            f"an explicit session to `{what}(session=sess)`"
        )
    return SESSIONS[-1] if given is None else given
