# SPDX-License-Identifier: Apache-2.0
"""Session: what is fetched, with what is fed, is one function, made once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import numpy as np

import nnl.workspace as ws
from nnl.core.arguments.suggest import did_you_mean
from nnl.core.parameters.parameter import parameter_scope, pop_parameter
from nnl.dialects.tensorflow.graph import SESSIONS, Leaf, Tensor, get_default_graph
from nnl.dialects.tensorflow.host import hosts
from nnl.dialects.tensorflow.operation import one_program
from nnl.dialects.tensorflow.shapes import TensorShape, merged, shown


class Summary(tuple[Any, ...]):
    """What is fetched for an event file: (kind, tag, tensor) or (kind, tag, value) each."""


class OpError(Exception):
    """What goes wrong while a session runs."""


class FailedPreconditionError(OpError):
    """A variable has no value."""


class InvalidArgumentError(OpError):
    """A value does not fit, or is missing."""


class NotFoundError(OpError):
    """A file, or a tensor in it, is missing."""


class OutOfRangeError(OpError):
    """There are no more elements."""


class CancelledError(OpError):
    """A queue is closed."""


class AbortedError(OpError):
    """A run was given up."""


class UnavailableError(OpError):
    """A machine is not there."""


class DataLossError(OpError):
    """A file is damaged."""


class Transaction(ws.Function):
    """Tensors that are computed, operations that run, and tensors that are fed: one function."""

    def __init__(self, fetches, feeds):
        operators, _ = ws.needed(fetches, feeds)
        self.asserts = [op for op in operators if op.type == "Assert"]
        checks = [op.outputs[0] for op in self.asserts]
        super().__init__(feeds, [*fetches, *checks], name="transaction")
        self.written = [t for op in self.operators for t in op.writes]
        self.used = list(dict.fromkeys([*self.leaves, *self.written]))
        self.read, done = set(self.outputs), set()
        for op in self.operators:
            self.read |= {t for t in op.tensors if t not in done}
            done |= set(op.writes)
        self.known = {t for t in feeds if t.dtype.kind == "b" and t.sizes == ()}
        self.first = ws.needed(self.known, feeds)

    def _write(self, names, *given):
        with one_program():
            return super()._write(names, *given)

    def run(self, values):
        """The fetched tensors for values of those that are fed."""
        lost = self.workspace.lost(self.used)
        for t in lost:
            fed = not isinstance(t, Tensor) and t.key in self.workspace.values
            if t in self.leaves and t in self.read and not fed:
                raise _missing(t)
        new = [t for t in lost if t in self.written]
        for t in new:
            self.workspace.keep(t, np.zeros(t.sizes or (), t.dtype), t.dtype.kind == "f")
        done = False
        try:
            made = self._computed(values, [t for t in lost if t in self.leaves and t not in new])
            done = True
        finally:
            if not done:
                with parameter_scope("", self.workspace.scope):
                    for t in new:
                        pop_parameter(t.key)
        for op in self.asserts[::-1]:
            if not made.pop():
                raise InvalidArgumentError(f"assertion failed: {op.name}: {op.message}")
        return [np.array(v, t.dtype) for t, v in zip(self.outputs, made, strict=False)]


_name = attrgetter("key")


def _transaction(targets, feeds):
    """What computes tensors; texts that are given pass by it."""
    texts = {t for t in feeds if t.dtype.kind == "O"}
    targets = [t for t in targets if t not in texts]
    return Transaction(targets, [t for t in feeds if t not in texts])


def _missing(t):
    if type(t).__name__ == "Variable":
        return FailedPreconditionError(f"Attempting to use uninitialized value {t.label}")
    sizes = (
        ""
        if t.sizes is None
        else f" and shape {shown(t.sizes)}".replace("(", "[").replace(")", "]")
    )
    return InvalidArgumentError(
        f"You must feed a value for placeholder tensor '{t.key}' with dtype {t.dtype.name}{sizes}"
    )


class Session:
    """Runs parts of a graph.

    Variables belong to the graph's workspace: sessions of one graph share them, and what another
    dialect keeps under the name of a variable is its value.

    Args:
        target, config: There is one machine; not used.
        graph: The default graph if left out.
    """

    def __init__(self, target="", graph=None, config=None):
        self.graph = get_default_graph() if graph is None else graph
        self._closed = False
        self._entered = []

    def run(self, fetches, feed_dict=None, *_, **__):
        """Compute tensors and run operations.

        Args:
            fetches: A tensor, an operation, a name of one, or lists, tuples and dicts of fetches.
            feed_dict: {tensor: value}.
        Returns:
            As fetches, with arrays in place of tensors and None in place of operations.
        Raises:
            TypeError: A fetch or a key of feed_dict is of another kind.
            ValueError: A fetch is not in this graph; a value has a shape that its tensor has not.
            FailedPreconditionError: A variable that is needed has not been initialized.
            InvalidArgumentError: A placeholder that is needed is not fed.
        """
        if self._closed:
            raise RuntimeError("Attempted to use a closed Session.")
        fed = self._fed(feed_dict or {})
        wanted = {}
        build = self._fetched(fetches, wanted)
        return build(self.values_of(wanted, fed))

    def values_of(self, wanted, fed):
        """The values of tensors by those of others, where what Python runs for it is noted."""
        feeds = sorted(fed, key=_name)
        targets = sorted(wanted, key=_name)
        key = tuple(targets), tuple(feeds)
        transactions = self.graph.transactions
        found = transactions.get(key)
        if found is None:
            with self.graph.as_default():
                found = transactions[key] = hosts(targets, feeds) or _transaction(targets, feeds)
        try:
            if isinstance(found, list):
                for op in found:
                    if op.outputs[0] not in fed:
                        op.run_in(self, fed)
                return self.values_of(wanted, fed)
            made = found.run([fed[t] for t in found.inputs])
        except FileNotFoundError as error:
            raise NotFoundError(str(error)) from error
        except (ValueError, ZeroDivisionError) as error:
            raise InvalidArgumentError(str(error)) from error
        values = dict(zip(found.outputs, made, strict=False))
        return values if len(values) >= len(targets) else {**fed, **values}

    def _fed(self, feed_dict):
        fed = {}
        for key, value in feed_dict.items():
            if isinstance(key, tuple):  # a state of a recurrent network
                fed.update(self._fed(dict(zip(key, value, strict=True))))
                continue
            t = self._tensor(key, "feed_dict key")
            if isinstance(value, ws.Tensor):
                raise TypeError(
                    "The value of a feed cannot be a tf.Tensor object. Acceptable feed values "
                    "include Python scalars, strings, lists, numpy ndarrays."
                )
            array = np.asarray(value, t.dtype)
            if t.sizes is not None and merged(t.sizes, array.shape) is False:
                raise ValueError(
                    f"Cannot feed value of shape {array.shape} for Tensor {t.name}, which has "
                    f"shape {TensorShape(t.sizes)}"
                )
            fed[t] = array
        return fed

    def _tensor(self, key, what):
        if isinstance(key, str):
            try:
                return self.graph.get_tensor_by_name(key)
            except KeyError as error:
                hint = did_you_mean(key, self.graph.workspace.tensors)
                raise ValueError(f"{what} {key!r}: {error.args[0]}{hint}") from None
        if isinstance(key, ws.Operator):
            return key.outputs[0]
        if isinstance(key, Leaf):
            return key.outputs[0]
        if not isinstance(key, ws.Tensor):
            raise TypeError(
                f"{what} {key!r} has invalid type {type(key)}, must be a string or Tensor. "
                f"(Can not convert a {type(key).__name__} into a Tensor or Operation.)"
            )
        if key.workspace is not self.graph.workspace:
            raise ValueError(f"{what} {key!r}: Tensor {key.name} is not an element of this graph.")
        return key

    def _fetched(self, fetches, wanted):
        """Notes what is needed; gives what puts the values in their places."""
        if isinstance(fetches, Summary):
            rows = [(k, tag, self._fetched(t, wanted)) for k, tag, t in fetches]
            return lambda values: Summary([(k, tag, p(values)) for k, tag, p in rows])
        if isinstance(fetches, (list, tuple)):
            parts = [self._fetched(f, wanted) for f in fetches]
            kind = type(fetches)
            if hasattr(fetches, "_fields"):
                return lambda values: kind(*[p(values) for p in parts])
            return lambda values: kind([p(values) for p in parts])
        if isinstance(fetches, Mapping):
            items = {k: self._fetched(f, wanted) for k, f in fetches.items()}
            return lambda values: {k: p(values) for k, p in items.items()}
        t = self._tensor(fetches, "Fetch argument")
        wanted[t] = True
        named = isinstance(fetches, str) and ":" not in fetches
        if isinstance(fetches, (ws.Operator, Leaf)) or named:
            return lambda values: None
        return lambda values: values[t] if values[t].ndim else values[t][()]

    def as_default(self):
        """Tensors are evaluated here, inside."""
        return _default(self)

    def close(self):
        """End it; nothing runs here any more."""
        self._closed = True

    def __enter__(self):
        self._entered.append(_default(self))
        self._entered[-1].__enter__()
        return self

    def __exit__(self, *error):
        self._entered.pop().__exit__(*error)
        self.close()


@contextmanager
def _default(session):
    SESSIONS.append(session)
    with session.graph.as_default():
        try:
            yield session
        finally:
            SESSIONS.remove(session)


class InteractiveSession(Session):
    """A session that is the default one from the beginning until it is closed."""

    def __init__(self, target="", graph=None, config=None):
        super().__init__(target, graph, config)
        SESSIONS.append(self)

    def close(self):
        """End it."""
        if self in SESSIONS:
            SESSIONS.remove(self)
        super().close()


def get_default_session():
    """The session that evaluates tensors."""
    return SESSIONS[-1] if SESSIONS else None


class ConfigProto:
    """Settings of the machine, which nnl has elsewhere: all are taken and none is used."""

    def __init__(self, **settings):
        self.gpu_options = GPUOptions()
        self.__dict__.update(settings)


class GPUOptions(ConfigProto):
    """Settings of accelerators; not used."""

    def __init__(self, **settings):
        self.__dict__.update(settings)


class RunOptions(GPUOptions):
    """Settings of a run; not used."""

    NO_TRACE, SOFTWARE_TRACE, HARDWARE_TRACE, FULL_TRACE = range(4)


class RunMetadata(GPUOptions):
    """What is noted about a run: nothing, `nnl profile` shows times."""
