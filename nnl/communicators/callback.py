# SPDX-License-Identifier: Apache-2.0
"""Gradients in one flat buffer, reduced in buckets while backward goes on."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import numpy as np

from nnl.communicators.channel import ALIGN, CommunicatorError
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import Spec
from nnl.core.ops.op import OPS
from nnl.core.settings.context import STATE


class Bucket:
    """Neighbours in the flat buffer that are reduced together.

    Attributes:
        arrays: The gradients. homes: their places, in the shapes of the gradients.
        flat: All of it in one dimension, with what lies between the places.
        waiting: How many gradients are still to come in this backward.
    """

    def __init__(self, arrays: list[NdArray], homes: list[Any], flat: Any, text: str) -> None:
        self.arrays, self.homes, self.flat, self.text = arrays, homes, flat, text
        self.waiting = len(arrays)


class CommunicatorBackwardCallback:
    """What backward() calls so that gradients are summed over the ranks as they come.

    All gradients have places in one flat buffer, in the order in which the first rank's first
    backward produced them; a plan writes them there. Neighbours of one dtype form buckets of at
    least pack_size elements. A bucket is reduced, by a thread, when it and all before it are
    complete: so every rank reduces the same buckets in the same order, whatever order its gradients
    come in.

    Made by `Communicator.all_reduce_callback`.

    Example:
        >>> comm = C.MultiProcessDataParallelCommunicator(nn.get_current_context())
        >>> comm.init()
        >>> w = nn.Variable((2,), need_grad=True)
        >>> w.d = 1
        >>> F.sum(w**2).backward(communicator_callbacks=comm.all_reduce_callback([w.grad], 1 << 20))
    """

    def __init__(
        self,
        comm: Any,
        group: Any,
        arrays: Sequence[NdArray],
        pack_size: int,
        division: bool,
        scale: float,
    ) -> None:
        self.comm, self.group, self.pack_size = comm, group, pack_size
        self.division, self.scale = division, scale
        unique = {id(nd): nd for nd in arrays}  # a parameter given twice is reduced once
        self.arrays = list(unique.values())
        self.alone = group.background.size == 1  # nothing to exchange, so no need to hurry
        self.buckets: list[Bucket] = []
        self.bucket_of: dict[int, tuple[Bucket, Any]] = {}
        self.jobs: list[Callable[[], list[bool]]] = []
        self.started = 0  # buckets that have been handed over
        self.specs: list[Spec] = []
        self.failed: CommunicatorError | None = None  # after that, no more buckets

    # ---- what backward() calls ----

    def begin(self, order: Sequence[tuple[NdArray, Spec]]) -> None:
        """A backward starts that will produce these gradients, in this order."""
        if self.alone:
            return
        self.failed = None
        self.group.background.awaited_by = get_ident()
        coming = {id(nd): spec for nd, spec in order}
        # what is there keeps its dtype when a gradient is added to it
        specs = [coming.get(id(nd), nd.spec) if nd.zeroing else nd.spec for nd in self.arrays]
        if specs != self.specs:
            self._lay_out([nd for nd, _ in order], specs)
        self.jobs, self.started = [], 0
        for bucket in self.buckets:
            bucket.waiting = len(bucket.arrays)

    def home(self, nd: NdArray, spec: Spec) -> Any:
        """The place of a gradient in the flat buffer; None if it has none."""
        _, home = self.bucket_of.get(id(nd), (None, None))
        return home if home is not None and home.dtype == spec.dtype else None

    def ready(self, nd: NdArray) -> None:
        """The gradient is complete. It may be changed from now on, until finish() returns."""
        bucket, home = self.bucket_of.get(id(nd), (None, None))
        if bucket is None:
            return
        self._bring_home(nd, home)
        bucket.waiting -= 1
        while self.started < len(self.buckets) and not self.buckets[self.started].waiting:
            if self.group.background.threaded:
                self.group.background.awaited_by = 0
            self.jobs.append(self._hand_over(self.started))
            self.started += 1

    def finish(self) -> None:
        """Reduce what is left and wait for everything.

        Raises:
            CommunicatorError: The ranks do not agree.
        """
        if self.alone:
            for nd in self.arrays:
                if self.scale != 1.0 and not nd.zeroing:
                    buf = nd.touch(self.comm.space)
                    buf *= self.scale
            return
        if [nd.spec for nd in self.arrays] != self.specs:  # a dynamic graph has just shown them
            for job in self.jobs:
                job()
            self.begin([(nd, nd.spec) for nd in reversed(self.arrays)])
        for bucket in self.buckets[self.started :]:
            for nd, home in zip(bucket.arrays, bucket.homes, strict=True):
                self._bring_home(nd, home)
        self.group.background.awaited_by = get_ident()
        for i in range(self.started, len(self.buckets)):
            self.jobs.append(self._hand_over(i))
        done = [job() for job in self.jobs]
        self.group.background.settle()
        self.jobs, self.started = [], 0
        for bucket, zero in zip(self.buckets, done, strict=True):
            for nd, home, z in zip(bucket.arrays, bucket.homes, zero, strict=True):
                buf = nd.bufs.get(self.comm.space)
                if not z and buf is not None and not buf.flags.c_contiguous:
                    nd.touch(self.comm.space)[...] = home  # another array's column, say
                elif not z:
                    nd.write(self.comm.space, home)

    def record(self) -> None:
        """nnl.compile is recording: let the reduction be a step of its plan."""
        record_all_reduce(self.comm, self.arrays, self.division, self.group.name, self.scale)

    # ---- the flat buffer ----

    def _lay_out(self, order: Sequence[NdArray], specs: list[Spec]) -> None:
        spec_of = {id(nd): spec for nd, spec in zip(self.arrays, specs, strict=True)}
        place_of = {id(nd): i for i, nd in enumerate(self.arrays)}
        first = list(dict.fromkeys(place_of[id(nd)] for nd in order if id(nd) in place_of))
        rest = [i for i in reversed(range(len(specs))) if i not in {*first}]
        # that of the first rank: where others use other parameters, theirs are another one
        mine = np.array([*first, *rest], np.int32).tobytes()
        text = f"all_reduce_callback(order of {describe(specs)})"
        answers = self.group.background.agree(text, mine)
        runs: list[list[NdArray]] = []
        size = self.pack_size
        for nd in [self.arrays[i] for i in np.frombuffer(answers[0], np.int32)]:
            spec = spec_of[id(nd)]
            if size >= self.pack_size or spec_of[id(runs[-1][-1])].dtype != spec.dtype:
                runs.append([])
                size = 0
            runs[-1].append(nd)
            size += spec.size
        nbytes = sum([_padded(s.nbytes) for s in specs])
        memory = self.group.background.allocate(nbytes, "all_reduce_callback")
        self.buckets, self.bucket_of, at = [], {}, 0
        for run in runs:
            homes, start = [], at
            for nd in run:
                spec = spec_of[id(nd)]
                place = memory[at : at + spec.nbytes].view(spec.dtype).reshape(spec.shape)
                homes.append(place)
                at += _padded(spec.nbytes)
            flat = memory[start:at].view(spec.dtype)
            flat[...] = 0
            bucket = Bucket(run, homes, flat, describe([spec_of[id(nd)] for nd in run]))
            self.buckets.append(bucket)
            self.bucket_of.update({id(nd): (bucket, h) for nd, h in zip(run, homes, strict=True)})
        self.specs = specs

    def _bring_home(self, nd: NdArray, home: Any) -> None:
        """Let the flat buffer have the value of a gradient."""
        if nd.zeroing:
            home[...] = 0
            return
        buf = nd.read(self.comm.space)
        if buf is not home:
            home[...] = buf

    def _zeros(self, bucket: Bucket) -> bytes:
        return bytes([nd.zeroing for nd in bucket.arrays])

    # ---- the reduction ----

    def _hand_over(self, i: int) -> Callable[[], list[bool]]:
        """Start the reduction of a bucket; what gives its result."""
        zero = self._zeros(self.buckets[i])
        if not self.group.background.threaded:
            done = self._reduce(i, zero)
            return lambda: done
        if self.comm.worker is None:
            from concurrent.futures import ThreadPoolExecutor

            self.comm.worker = ThreadPoolExecutor(1, thread_name_prefix="nnl-communicator")
        result: Callable[[], list[bool]] = self.comm.worker.submit(self._reduce, i, zero).result
        return result

    def _reduce(self, i: int, zero: bytes) -> list[bool]:
        """Sum one bucket over the ranks; which of its gradients are lazily zero on all."""
        if self.failed is not None:
            raise self.failed
        bucket, channel = self.buckets[i], self.group.background
        text = (
            f"all_reduce_callback(bucket {i + 1} of {len(self.buckets)}: {bucket.text}, "
            f"division={self.division}{channel.place_of(bucket.flat)}) "
            f"in group {self.group.name!r}"
        )
        if self.scale != 1.0:  # before agreeing: after that the others may read this memory
            np.multiply(bucket.flat, self.scale, out=bucket.flat, casting="unsafe")
        try:
            answers = channel.agree(text, zero)
        except CommunicatorError as e:
            self.failed = e
            raise
        channel.sum_in_place(bucket.flat, channel.size if self.division else 1)
        return [all(z) for z in zip(*answers, strict=True)]


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def describe(specs: Sequence[Spec]) -> str:
    """Specs in a few words, with a checksum where they do not fit."""
    if len(specs) <= 3:
        return ", ".join([str(s) for s in specs])
    checksum = zlib.crc32(";".join([str(s) for s in specs]).encode())
    return f"{len(specs)} arrays of {sum(s.size for s in specs)} elements, {checksum:08x}"


def record_all_reduce(
    comm: Any, arrays: Sequence[NdArray], division: bool, group: str, scale: float = 1.0
) -> None:
    """Let the plan that nnl.compile is recording reduce gradients at this point of the step.

    Raises:
        NotImplementedError: An array is no gradient of this step, and not lazily zero.
    """
    trace: Any = STATE.interpreter
    given = []
    for i, nd in enumerate(arrays):
        known = trace.grads.get(id(nd))
        if known is None and not nd.zeroing:
            raise NotImplementedError(
                f"all_reduce: nnl.compile is recording, and data[{i}] {nd.spec} is not a gradient "
                "of this step; call all_reduce outside of the compiled function"
            )
        if known is not None and known[1] is not None:
            given.append((i, nd, known[1]))
    if given:
        some = [i for i, *_ in given] if len(given) < len(arrays) else ""
        sums = OPS["all_reduce"](
            *[g for *_, g in given],
            comm=comm, group=group, division=division, scale=scale,
            of=some and f"{some} of {len(arrays)}",
        )  # fmt: skip
        for (_, nd, _), y in zip(given, sums if isinstance(sums, tuple) else (sums,), strict=True):
            trace.grads[id(nd)] = nd, y
