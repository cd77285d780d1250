# SPDX-License-Identifier: Apache-2.0
"""Queues, and what fills them and reads them: tf.train.batch and what is around it."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager

import numpy as np

import nnl.workspace as ws
from nnl.core.ops import random
from nnl.dialects.tensorflow.control import flatten, packed
from nnl.dialects.tensorflow.data import lines_of, shapes_in, stacked
from nnl.dialects.tensorflow.host import HostOperation, _text
from nnl.dialects.tensorflow.operation import as_dtype
from nnl.dialects.tensorflow.session import CancelledError, OutOfRangeError
from nnl.dialects.tensorflow.table import tensor


class FIFOQueue:
    """Elements that wait. What a runner puts in is put in when somebody waits for it."""

    def __init__(self, capacity, dtypes, shapes=None, names=None, shared_name=None,
                 name="fifo_queue"):  # fmt: skip
        self.dtypes = [
            as_dtype(t) for t in (dtypes if isinstance(dtypes, (list, tuple)) else [dtypes])
        ]
        self.shapes = [None] * len(self.dtypes) if shapes is None else shapes_in(shapes)
        self.name, self._capacity, self._least = name, capacity, 0
        self._held, self._closed, self._runners = deque(), False, deque()

    def enqueue(self, vals, name=None):
        """The operation that puts in one element."""
        return self._put(vals, lambda values: [values])

    def enqueue_many(self, vals, name=None):
        """The operation that puts in elements, which are the parts along first axes."""
        return self._put(vals, lambda values: [list(v) for v in zip(*values, strict=True)])

    def _put(self, vals, parts):
        flat = vals if isinstance(vals, (list, tuple)) else [vals]
        inputs = [tensor(v, t) if not isinstance(v, ws.Tensor) else v
                  for v, t in zip(flat, self.dtypes, strict=True)]  # fmt: skip

        def call(session, *values):
            if self._closed:
                raise CancelledError(f"Queue '{self.name}' is already closed.")
            self._held += parts(values)

        return HostOperation(f"{self.name}_enqueue", call, inputs)

    def dequeue(self, name=None):
        """The next element."""
        return self._taken(self.shapes, lambda session: self.next(session))

    def dequeue_many(self, n, name=None):
        """Elements as one."""
        shapes = [None if s is None else (n, *s) for s in self.shapes]
        return self._taken(shapes, lambda session: stacked([self.next(session) for _ in range(n)]))

    def _taken(self, shapes, call):
        op = HostOperation(f"{self.name}_Dequeue", call, (), self.dtypes, shapes)
        return list(op.outputs) if len(self.dtypes) > 1 else op.outputs[0]

    def next(self, session):
        """The values of an element that is taken out."""
        while len(self._held) <= self._least and self._runners and not self._closed:
            op = self._runners[0]
            self._runners.rotate(-1)
            try:
                session.run(op)
            except (OutOfRangeError, CancelledError):
                self._runners.remove(op)
        if not self._held:
            raise OutOfRangeError(
                f"{self.name}: it is {'closed and ' if self._closed else ''}empty, and nothing "
                "puts elements in"
            )
        return self._pick()

    def _pick(self):
        return self._held.popleft()

    def size(self, name=None):
        """How many wait."""
        return HostOperation(f"{self.name}_Size", lambda _: [len(self._held)]).outputs[0]

    def close(self, cancel_pending_enqueues=False, name=None):
        """The operation after which nothing is put in."""

        def call(session):
            self._closed = True

        return HostOperation(f"{self.name}_Close", call)


QueueBase = FIFOQueue


class RandomShuffleQueue(FIFOQueue):
    """Elements that are taken out in any order."""

    def __init__(self, capacity, min_after_dequeue, dtypes, shapes=None, names=None, seed=None,
                 shared_name=None, name="random_shuffle_queue"):  # fmt: skip
        super().__init__(capacity, dtypes, shapes, name=name)
        self._least = min_after_dequeue
        self._rng = None if seed is None else np.random.RandomState(seed)

    def _pick(self):
        i = (self._rng or random.prng).randint(len(self._held))
        self._held[i], self._held[-1] = self._held[-1], self._held[i]
        return self._held.pop()


class _Producer(FIFOQueue):
    """The parts of tensors along their first axes, again and again."""

    def __init__(self, tensors, num_epochs, shuffle, seed):
        self._inputs = [tensor(x) for x in tensors]
        shapes = [None if x.sizes is None else x.sizes[1:] for x in self._inputs]
        super().__init__(0, [x.dtype for x in self._inputs], shapes, name="input_producer")
        self._left, self._shuffle = num_epochs, shuffle
        self._rng = None if seed is None else np.random.RandomState(seed)

    def next(self, session):
        if not self._held and self._left != 0:
            self._left = None if self._left is None else self._left - 1
            values = session.values_of(self._inputs, {})
            rows = [list(v) for v in zip(*[values[x] for x in self._inputs], strict=True)]
            if self._shuffle:
                (self._rng or random.prng).shuffle(rows)
            self._held += rows
        return super().next(session)


def input_producer(input_tensor, element_shape=None, num_epochs=None, shuffle=True, seed=None,
                   capacity=32, **_):  # fmt: skip
    """A queue of the parts of a tensor."""
    return _Producer([input_tensor], num_epochs, shuffle, seed)


def string_input_producer(
    string_tensor, num_epochs=None, shuffle=True, seed=None, capacity=32, **_
):
    """A queue of texts, such as names of files."""
    return input_producer(string_tensor, None, num_epochs, shuffle, seed)


def range_input_producer(limit, num_epochs=None, shuffle=True, seed=None, capacity=32, **_):
    """A queue of the numbers below a limit."""
    return input_producer(np.arange(limit, dtype=np.int32), None, num_epochs, shuffle, seed)


def slice_input_producer(tensor_list, num_epochs=None, shuffle=True, seed=None, capacity=32, **_):
    """One part of each of several tensors."""
    found = _Producer(tensor_list, num_epochs, shuffle, seed).dequeue()
    return found if isinstance(found, list) else [found]


def batch(tensors, batch_size, num_threads=1, capacity=32, enqueue_many=False, shapes=None,
          dynamic_pad=False, allow_smaller_final_batch=False, **_):  # fmt: skip
    """Several elements as one: tensors are computed again for each."""
    return _batched(tensors, batch_size, enqueue_many, shapes, allow_smaller_final_batch)


def shuffle_batch(tensors, batch_size, capacity, min_after_dequeue, num_threads=1, seed=None,
                  enqueue_many=False, shapes=None, allow_smaller_final_batch=False,
                  **_):  # fmt: skip
    """Several elements as one, taken in any order out of those that wait."""
    rng = random.prng if seed is None else np.random.RandomState(seed)
    return _batched(
        tensors, batch_size, enqueue_many, shapes, allow_smaller_final_batch, min_after_dequeue, rng
    )


def _batched(structure, count, many, shapes, smaller, least=0, rng=None):
    flat = [tensor(x) for x in flatten(structure)]
    sizes = [None if x.sizes is None else x.sizes[1:] if many else x.sizes for x in flat]
    sizes = sizes if shapes is None else shapes_in(shapes)
    held = []

    def call(session):
        ended = False
        while len(held) < count + least and not ended:
            try:
                values = session.values_of(flat, {})
            except OutOfRangeError:
                ended = True
            else:
                row = [values[t] for t in flat]
                held.extend(zip(*row, strict=True) if many else [row])
        if len(held) < (1 if smaller else count):
            raise OutOfRangeError(f"batch: {len(held)} elements are left, wanted {count}")
        taken = [
            held.pop(rng.randint(len(held)) if rng else 0) for _ in range(min(count, len(held)))
        ]
        return stacked(taken)

    n = None if smaller else count
    sizes = [None if s is None else (n, *s) for s in sizes]
    op = HostOperation("batch", call, (), [x.dtype for x in flat], sizes)
    one = isinstance(structure, (list, tuple)) and len(structure) == 1
    return op.outputs[0] if one else packed(structure, op.outputs)


# ---- readers ----


class WholeFileReader:
    """Files, each as one text."""

    def __init__(self, name=None):
        self._waiting = iter(())

    def _records(self, path):
        with open(path, "rb") as file:
            yield path.encode(), file.read()

    def read(self, queue, name=None):
        """The name of the next record, and the record."""

        def call(session):
            while True:
                for found in self._waiting:
                    return list(found)
                path = _text(queue.next(session)[0])
                self._waiting = self._records(path)

        op = HostOperation("ReaderRead", call, (), [object, object], [(), ()], name)
        return op.outputs


class TextLineReader(WholeFileReader):
    """The lines of files."""

    def __init__(self, skip_header_lines=0, name=None):
        super().__init__(name)
        self._skip = skip_header_lines

    def _records(self, path):
        for i, line in enumerate(lines_of(path, self._skip or 0), 1 + (self._skip or 0)):
            yield f"{path}:{i}".encode(), line


# ---- what starts and ends threads: elements are made when they are asked for, without any ----


class Coordinator:
    """Whether to go on."""

    def __init__(self, clean_stop_exception_types=None):
        self._stop, self._error = False, None
        self.joined = False

    def should_stop(self):
        """Whether somebody asked to end."""
        return self._stop

    def request_stop(self, ex=None):
        """Ask all to end, because of an error if one is given."""
        self._stop = True
        if ex is not None and not isinstance(ex, OutOfRangeError):
            self._error = self._error or ex

    def clear_stop(self):
        """Go on."""
        self._stop, self._error = False, None

    @contextmanager
    def stop_on_exception(self):
        """An error inside ends all."""
        try:
            yield
        except Exception as error:
            self.request_stop(error)

    def wait_for_stop(self, timeout=None):
        """Whether somebody asked to end."""
        return self._stop

    def join(self, threads=None, stop_grace_period_secs=120, ignore_live_threads=False):
        """Wait for threads, and raise what ended them."""
        for thread in threads or ():
            thread.join(stop_grace_period_secs)
        self.joined = True
        if self._error is not None:
            raise self._error


class QueueRunner:
    """Operations that put elements into a queue when some are asked for."""

    def __init__(self, queue=None, enqueue_ops=None, *_, **__):
        self.queue, self.enqueue_ops = queue, list(dict.fromkeys(enqueue_ops or ()))

    def create_threads(self, sess, coord=None, daemon=False, start=False):
        """Begin to put elements in. There are no threads."""
        self.queue._runners.extend(op for op in self.enqueue_ops if op not in self.queue._runners)
        return []


def add_queue_runner(qr, collection="queue_runners"):
    """Note a runner that start_queue_runners starts."""
    qr.create_threads(None)


def start_queue_runners(sess=None, coord=None, daemon=True, start=True, collection=None):
    """Nothing waits to be started: elements are made when they are asked for."""
    return []
