# SPDX-License-Identifier: Apache-2.0
"""tf.data: elements that each run of a session takes the next of."""

from __future__ import annotations

import itertools

import numpy as np

import nnl.workspace as ws
from nnl.core.ops import random
from nnl.dialects.tensorflow.control import flatten, packed
from nnl.dialects.tensorflow.graph import get_default_graph
from nnl.dialects.tensorflow.host import HostOperation, _text
from nnl.dialects.tensorflow.operation import as_dtype, convert
from nnl.dialects.tensorflow.session import (
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    Session,
)
from nnl.dialects.tensorflow.shapes import TensorShape, in_both, sizes_of
from nnl.dialects.tensorflow.table import tensor


def _arrays(structure):
    """Lists are arrays here, where tuples and dicts are structures."""
    if isinstance(structure, dict):
        return {k: _arrays(v) for k, v in structure.items()}
    if isinstance(structure, tuple):
        parts = [_arrays(v) for v in structure]
        return type(structure)(*parts) if hasattr(structure, "_fields") else tuple(parts)
    return convert(structure)


def stacked(elements):
    return [np.stack([*map(_array, column)]) for column in zip(*elements, strict=True)]


def _array(x):
    """A value, texts as objects: numpy's own type for them drops zeros at the end."""
    return np.asarray(x, object if isinstance(x, (bytes, str)) else None)


class Dataset:
    """Elements, each a structure of tensors.

    Args:
        start: f(*values of inputs) -> the elements, each as a list of arrays.
        output_types: Their types, in their structure.
        sizes: Those of each tensor.
        inputs: Tensors that are computed when an iterator is initialized.
    """

    def __init__(self, start, output_types, sizes, inputs=()):
        self._start, self.output_types = start, output_types
        self._sizes, self._inputs = list(sizes), tuple(inputs)

    @property
    def output_shapes(self):
        """Their shapes, in their structure."""
        return packed(self.output_types, map(TensorShape, self._sizes))

    def _then(self, change, *arguments, types=None, sizes=None):
        """The elements that `change` makes of an iterator of these, by the values of arguments."""
        own, given = len(self._inputs), [tensor(x) for x in arguments if isinstance(x, ws.Tensor)]

        def start(*values):
            more = iter(values[own:])
            found = [
                next(more).item() if isinstance(x, ws.Tensor) else getattr(x, "value", x)
                for x in arguments
            ]
            return change(lambda: self._start(*values[:own]), *found)

        types = self.output_types if types is None else types
        sizes = self._sizes if sizes is None else sizes
        return Dataset(start, types, sizes, (*self._inputs, *given))

    # ---- sources ----

    @staticmethod
    def from_tensors(tensors):
        """One element."""
        structure = _arrays(tensors)
        flat = [tensor(x) for x in flatten(structure)]
        types = packed(structure, [x.dtype for x in flat])
        return Dataset(lambda *v: iter([list(v)]), types, [x.sizes for x in flat], flat)

    @staticmethod
    def from_tensor_slices(tensors):
        """The parts of tensors along their first axes."""
        structure = _arrays(tensors)
        flat = [tensor(x) for x in flatten(structure)]
        sizes = [None if x.sizes is None else x.sizes[1:] for x in flat]
        types = packed(structure, [x.dtype for x in flat])

        def start(*values):
            return (list(parts) for parts in zip(*values, strict=True))

        return Dataset(start, types, sizes, flat)

    @staticmethod
    def from_generator(generator, output_types, output_shapes=None, args=None):
        """What a generator gives."""
        types = [as_dtype(t) for t in flatten(output_types)]
        shapes = [None] * len(types) if output_shapes is None else shapes_in(output_shapes)

        def start(*values):
            for element in generator(*values):
                parts = flatten(_like(output_types, element))
                yield [np.asarray(v, t) for v, t in zip(parts, types, strict=True)]

        inputs = [tensor(x) for x in args or ()]
        return Dataset(start, packed(output_types, types), shapes, inputs)

    @staticmethod
    def range(*args):
        """Numbers, as int64."""
        return Dataset(
            lambda *v: ([np.int64(i)] for i in range(*map(int, v))),
            np.dtype(np.int64), [()], [tensor(x) for x in args],
        )  # fmt: skip

    @staticmethod
    def zip(datasets):
        """The elements of several, side by side."""
        flat = flatten(datasets)
        ends = [0, *itertools.accumulate(len(d._inputs) for d in flat)]

        def start(*values):
            each = [d._start(*values[a:b]) for d, a, b in zip(flat, ends, ends[1:], strict=False)]
            return ([x for part in parts for x in part] for parts in zip(*each, strict=False))

        types = packed(datasets, [d.output_types for d in flat])
        sizes = [s for d in flat for s in d._sizes]
        return Dataset(start, types, sizes, [x for d in flat for x in d._inputs])

    # ---- what comes after ----

    def repeat(self, count=None):
        """The same again and again."""

        def change(again, count):
            turns = itertools.repeat(0) if count in (None, -1) else range(count)
            for _ in turns:
                empty = True
                for empty, x in enumerate(again()):  # noqa: B007
                    yield x
                if empty is True:
                    return

        return self._then(change, count)

    def shuffle(self, buffer_size, seed=None, reshuffle_each_iteration=True):
        """In another order, out of a buffer."""
        _check("buffer_size", buffer_size)
        drawn = None if seed is None else np.random.RandomState(seed)

        def change(again, size):
            rng = random.prng if drawn is None else drawn
            if seed is not None and not reshuffle_each_iteration:
                rng = np.random.RandomState(seed)
            held = []
            for x in again():
                held.append(x)
                if len(held) >= size:
                    yield held.pop(rng.randint(len(held)))
            rng.shuffle(held)
            yield from held

        return self._then(change, buffer_size)

    def batch(self, batch_size, drop_remainder=False):
        """Several elements as one."""
        return self._batched(batch_size, drop_remainder, stacked, self._sizes)

    def _batched(self, count, whole, joined, sizes):
        if _is_sparse(self.output_types):
            raise NotImplementedError("batch: SparseTensor: make it dense first (sparse.to_dense)")
        _check("batch_size", count)

        def change(again, count):
            _check("batch_size", count)
            found = again()
            while held := list(itertools.islice(found, int(count))):
                if len(held) == count or not whole:
                    yield joined(held)

        n = int(count) if whole and not isinstance(count, ws.Tensor) else None
        return self._then(change, count, sizes=[None if s is None else (n, *s) for s in sizes])

    def padded_batch(self, batch_size, padded_shapes=None, padding_values=None,
                     drop_remainder=False):  # fmt: skip
        """Several elements as one, filled up to one shape."""
        shapes = self._sizes if padded_shapes is None else shapes_in(padded_shapes)
        fills = [None] * len(shapes)
        if padding_values is not None:
            fills = flatten(padding_values)

        def joined(held):
            columns = []
            for column, shape, fill in zip(zip(*held, strict=True), shapes, fills, strict=True):
                column = [*map(_array, column)]
                most = np.max([np.shape(x) for x in column], axis=0)
                full = [m if d in (None, -1) else d for m, d in zip(most, shape, strict=True)]
                kind = column[0].dtype
                empty = b"" if kind.kind == "O" else 0
                out = np.full((len(column), *full), empty if fill is None else fill, kind)
                for i, x in enumerate(column):
                    if np.any(np.shape(x) > np.array(full)):
                        raise ValueError(
                            f"padded_batch: an element of shape {np.shape(x)} is larger than "
                            f"{tuple(full)}"
                        )
                    out[(i, *map(slice, np.shape(x)))] = x[()]
                columns.append(out)
            return columns

        sizes = [tuple(None if d == -1 else d for d in s) for s in shapes]
        return self._batched(batch_size, drop_remainder, joined, sizes)

    def map(self, map_func, num_parallel_calls=None, **_):
        """A function of each element."""
        call, types, sizes = self._function(map_func)
        return self._then(lambda again: map(call, again()), types=types, sizes=sizes)

    def flat_map(self, map_func):
        """The elements of the datasets that a function makes of each element."""
        graph = get_default_graph()
        given, made = self._traced(map_func)

        def change(again):
            session = Session(graph=graph)
            for x in again():
                fed = dict(zip(given, x, strict=True))
                values = session.values_of(made._inputs, fed)
                yield from made._start(*[values[t] for t in made._inputs])

        return self._then(change, types=made.output_types, sizes=made._sizes)

    def interleave(self, map_func, cycle_length=1, block_length=1, num_parallel_calls=None):
        """As flat_map, of one element after the other."""
        return self.flat_map(map_func)

    def filter(self, predicate):
        """Those for which a function is true."""
        call, _, _ = self._function(predicate)
        return self._then(lambda again: (x for x in again() if call(x)[0]))

    def _traced(self, function):
        graph = get_default_graph()
        with graph.name_scope("element"), graph.control_dependencies(None):
            flat = [
                HostOperation("Element", _nothing, (), [t], [s]).outputs[0]
                for t, s in zip(flatten(self.output_types), self._sizes, strict=True)
            ]
            whole = packed(self.output_types, flat)
            many = isinstance(whole, tuple)
            return flat, function(*whole) if many else function(whole)

    def _function(self, function):
        graph = get_default_graph()
        given, made = self._traced(function)
        made = tuple(made) if isinstance(made, list) else made
        out = [tensor(x) for x in flatten(made)]
        session = Session(graph=graph)

        def call(element):
            fed = {t: np.asarray(v, t.dtype) for t, v in zip(given, element, strict=True)}
            values = session.values_of(out, fed)
            return [values[t] for t in out]

        return call, packed(made, [t.dtype for t in out]), [t.sizes for t in out]

    def take(self, count):
        """The first ones; all for -1."""
        return self._then(lambda a, n: itertools.islice(a(), None if n < 0 else n), count)

    def skip(self, count):
        """All but the first ones; none for -1."""
        return self._then(lambda a, n: iter(()) if n < 0 else itertools.islice(a(), n, None), count)

    def shard(self, num_shards, index):
        """Every num_shards-th one."""
        _check("num_shards", num_shards)
        if not isinstance(index, ws.Tensor) and not 0 <= index < num_shards:
            raise InvalidArgumentError(f"index must be between 0 and {num_shards - 1}, not {index}")
        return self._then(lambda a, n, i: itertools.islice(a(), i, None, n), num_shards, index)

    def concatenate(self, dataset):
        """These, then others."""
        own = len(self._inputs)

        def start(*values):
            return itertools.chain(self._start(*values[:own]), dataset._start(*values[own:]))

        sizes = [in_both(a, b) for a, b in zip(self._sizes, dataset._sizes, strict=True)]
        return Dataset(start, self.output_types, sizes, (*self._inputs, *dataset._inputs))

    def prefetch(self, buffer_size):
        """The same: an element is made when it is asked for."""
        return self

    def cache(self, filename=""):
        """The same, held in memory."""
        held = []

        def change(again):
            if held:
                return iter(held[0])
            return _noting(again(), held)

        return self._then(change)

    def apply(self, transformation_func):
        """What a function of datasets makes of this one."""
        return transformation_func(self)

    # ---- iterators ----

    def make_one_shot_iterator(self):
        """An iterator that goes through it once, from the first run on."""
        return Iterator(self.output_types, self._sizes, self, once=True)

    def make_initializable_iterator(self, shared_name=None):
        """An iterator that begins whenever its initializer runs."""
        return Iterator(self.output_types, self._sizes, self)


def _check(name, count):
    if not isinstance(count, ws.Tensor) and count < 1:
        raise InvalidArgumentError(f"{name} must be greater than zero, not {count}")


def _is_sparse(structure):
    if isinstance(structure, dict):
        return any(map(_is_sparse, structure.values()))
    named = getattr(structure, "_fields", ())[:1] == ("indices",)
    return named or (isinstance(structure, tuple) and any(map(_is_sparse, structure)))


def _nothing(session):
    raise AssertionError("elements are given")


def _noting(elements, held):
    found = []
    for x in elements:
        found.append(x)
        yield x
    held.append(found)


def shapes_in(structure):
    """Shapes in a structure, where lists and tuples of numbers are shapes too."""
    if structure is None or isinstance(structure, TensorShape):
        return [sizes_of(structure)]
    if isinstance(structure, dict):
        return [s for k in sorted(structure) for s in shapes_in(structure[k])]
    if all(x is None or isinstance(x, (int, np.integer)) for x in structure):
        return [tuple(structure)]
    return [s for part in structure for s in shapes_in(part)]


def _like(structure, value):
    """A value whose lists are arrays, where a structure has tuples and dicts."""
    if isinstance(structure, dict):
        return {k: _like(structure[k], value[k]) for k in structure}
    if isinstance(structure, (tuple, list)):
        return tuple([_like(s, v) for s, v in zip(structure, value, strict=True)])
    return np.asarray(value, as_dtype(structure))


HANDLES = {}


class Iterator:
    """What goes through a dataset."""

    def __init__(self, types, sizes, dataset=None, once=False):
        self.output_types, self._sizes = types, list(sizes)
        self._dataset, self._once, self._elements = dataset, once, None
        self._initializer = None if dataset is None or once else self.make_initializer(dataset)

    @staticmethod
    def from_structure(output_types, output_shapes=None):
        """An iterator that datasets of one structure may be given to."""
        count = len(flatten(output_types))
        sizes = [None] * count if output_shapes is None else shapes_in(output_shapes)
        types = [as_dtype(t) for t in flatten(output_types)]
        return Iterator(packed(output_types, types), sizes)

    @staticmethod
    def from_string_handle(string_handle, output_types, output_shapes=None):
        """The iterator whose handle is fed."""
        made = Iterator.from_structure(output_types, output_shapes)
        made._handle = tensor(string_handle)
        return made

    _handle = None

    def string_handle(self, name=None):
        """A text that stands for this iterator."""
        key = f"iterator {id(self)}".encode()
        HANDLES[key] = self
        return tensor(np.array(key, object))

    @property
    def output_shapes(self):
        """The shapes of an element."""
        return packed(self.output_types, map(TensorShape, self._sizes))

    @property
    def initializer(self):
        """The operation that begins."""
        if self._initializer is None:
            raise ValueError("Iterator does not have an initializer.")
        return self._initializer

    def make_initializer(self, dataset, name=None):
        """The operation that begins to go through a dataset."""

        def begin(session, *values):
            self._elements = dataset._start(*values)

        with get_default_graph().control_dependencies(None):
            return HostOperation("MakeIterator", begin, dataset._inputs, name=name)

    def get_next(self, name=None):
        """The tensors of the next element, the same for all of one run."""
        inputs = [] if self._handle is None else [self._handle]
        types = [as_dtype(t) for t in flatten(self.output_types)]
        op = HostOperation(
            "IteratorGetNext", self._next, inputs, types, self._sizes, name or "IteratorGetNext"
        )
        return packed(self.output_types, op.outputs)

    def _next(self, session, handle=None):
        if handle is not None:
            return HANDLES[handle.item()]._next(session)
        if self._elements is None:
            if not self._once:
                raise FailedPreconditionError(
                    "GetNext() failed because the iterator has not been initialized. Ensure that "
                    "you have run the initializer operation for this iterator before getting the "
                    "next element."
                )
            values = session.values_of(self._dataset._inputs, {})
            self._elements = self._dataset._start(*[values[t] for t in self._dataset._inputs])
        try:
            return next(self._elements)
        except StopIteration:
            raise OutOfRangeError("End of sequence") from None


def lines_of(path, skip=0):
    with open(path, "rb") as file:
        for line in itertools.islice(file, skip, None):
            yield line.rstrip(b"\r\n")


def TextLineDataset(filenames, *_, **__):
    """The lines of files."""

    def start(names):
        return ([line] for name in np.reshape(names, -1) for line in lines_of(_text(name)))

    return Dataset(start, np.dtype(object), [()], [tensor(filenames)])
