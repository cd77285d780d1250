# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of a plan on a device: one after the other at first, then as recorded graphs.

Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnl.core.arrays.array import NdArray
from nnl.ext.device.device import Device
from nnl.ext.device.registry import Kernel
from nnl.ext.library import Array, LibraryKernel

WARM_RUNS = 1  # before steps are recorded: they compile, and copy tables
LATE = "captureinvalidated"  # in errors that tell of a recording which had failed before
MOST_RECORDINGS = 8  # of one range of steps; buffers that move all the time are not worth more


class PythonStep(Kernel):
    """A step that a definition computes, on arrays that it knows."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: int
    ) -> None:
        self.call()


class _Call:
    """A step: its kernel and the slots of what it works on."""

    __slots__ = ("name", "kernel", "ins", "outs", "workspace", "alone", "args")

    def __init__(
        self, name: str, kernel: Kernel, ins: Sequence[int], outs: Sequence[int], workspace: int
    ) -> None:
        self.name, self.kernel, self.ins, self.outs = name, kernel, tuple(ins), tuple(outs)
        self.workspace = workspace
        self.alone: str = ""  # why it cannot be recorded
        self.args: tuple[list[int | None], list[Any], int, int] | None = None

    def run(self) -> None:
        """Launch, once the addresses are known."""
        assert self.args is not None
        self.kernel.run(*self.args)


class DevicePlan:
    """Steps over slots in device memory; the counterpart of the native library's Plan.

    The first run launches step after step. The second records runs of neighbouring steps as
    graphs, and from then on each of those is one launch. A step that cannot be recorded runs by
    itself between two graphs; `reasons` says which and why. When a slot is bound to another buffer,
    what was recorded is recorded again.

    Args:
        offsets: Place of each slot in the arena in bytes; negative for one that lies elsewhere.
        arena_bytes: Size of the arena.
    """

    def __init__(self, device: Device, offsets: Sequence[int], arena_bytes: int) -> None:
        self.device = device
        self.arena, self.pool = device.allocate(arena_bytes), device.pool()
        start = self.arena.address
        self.addresses: list[int | None] = [start + o if o >= 0 else None for o in offsets]
        self.arrays: dict[int, Array] = {}  # bound from outside, kept alive
        self.written: set[int] = set()  # slots that steps change
        self._copies: dict[int, tuple[Array, dict[str, Array]]] = {}  # see `follow`
        self.calls: list[_Call] = []
        self.times: list[int] = []
        self.starts: list[int] = []
        self._runs: dict[tuple[int, int], int] = {}
        self._recorded: dict[tuple[int, int], list[Callable[[], None]]] = {}
        self._recordings: dict[tuple[int, int], int] = {}
        self._held: list[Array] = []  # what recorded graphs read besides slots

    def follow(self, slot: int, nd: NdArray, space: str) -> Array:
        """The buffer in which this plan finds the value of a leaf.

        At first it is the array's own. Once an array has got another buffer, because a script wrote
        to it on the host or put another array in its place, the plan keeps a buffer for that leaf
        and copies into it: recorded graphs contain addresses. Where the plan writes, it follows.
        """
        self.device.activate()
        if slot not in self.arrays or slot in self.written:
            return nd.read(space)
        mine, of = self._copies.get(slot, (None, nd.bufs))
        if mine is None:
            mine = self.device.xp.empty(nd.spec.shape, nd.spec.dtype)
        elif of is not nd.bufs and of.get(space) is mine:  # other arrays still read from it
            of[space] = mine.copy()
        self._copies[slot] = mine, nd.bufs
        buf = nd.bufs.get(space)
        if buf is not None or "host" not in nd.bufs:
            mine[...] = nd.read(space)
        else:
            mine[...] = self.device.xp.array(nd.bufs["host"])
            nd.bufs[space] = mine  # until somebody writes on the host again
        return mine

    def add(
        self,
        name: str,
        kernel: LibraryKernel,
        ins: Sequence[int],
        outs: Sequence[int],
        workspace: int,
    ) -> None:
        """Append a step; workspace is an offset in the arena."""
        assert isinstance(kernel, Kernel)
        self.calls.append(_Call(name, kernel, ins, outs, max(workspace, 0)))
        self.times.append(0)
        self.starts.append(0)

    def bind_array(self, slot: int, array: Array) -> None:
        """Let a slot be this array from now on."""
        address = self.device.address_of(array)
        self.arrays[slot] = array
        if self.addresses[slot] != address:
            self.addresses[slot] = address
            self._recorded.clear()
            self._held.clear()
            for call in self.calls:
                if slot in call.ins or slot in call.outs:
                    call.args = None

    def __len__(self) -> int:
        return len(self.calls)

    # ---- running ----

    def run(self, begin: int, end: int) -> None:
        """Run the steps from begin up to end."""
        device, key = self.device, (begin, end)
        device.activate()
        pieces = self._recorded.get(key)
        if pieces is not None:
            for piece in pieces:
                piece()
            return
        runs = self._runs[key] = self._runs.get(key, 0) + 1
        if runs <= WARM_RUNS or self._recordings.get(key, 0) >= MOST_RECORDINGS:
            self._launch(begin, end)
        else:
            self._recordings[key] = self._recordings.get(key, 0) + 1
            self._record(begin, end)

    def _launch(self, begin: int, end: int) -> None:
        for call in self.calls[begin:end]:
            self._step(call)

    def _step(self, call: _Call) -> None:
        if call.args is None:
            self._resolve(call)
        call.run()

    def _resolve(self, call: _Call) -> None:
        """Write down the addresses that a step works on."""
        ins = [self.addresses[i] for i in call.ins]
        outs = [self.addresses[o] for o in call.outs]
        call.args = ins, outs, self.arena.address + call.workspace, self.device.stream

    def _record(self, begin: int, end: int) -> None:
        """Record what can be recorded, and run each piece as soon as it is there."""
        for call in self.calls[begin:end]:
            self._resolve(call)
        pieces: list[Callable[[], None]] = []
        todo = [(begin, end)]  # the first one last
        while todo:
            at, until = todo.pop()
            stop = next((t for t in range(at, until) if self.calls[t].alone), until)
            calls = self.calls[at:stop]
            piece = self._graph(calls) if calls else None
            if piece is not None:
                todo.append((stop, until))
            elif len(calls) > 1 and not any(c.alone for c in calls):
                middle = (at + stop) // 2
                todo += (stop, until), (middle, stop), (at, middle)
                continue
            elif calls:
                todo.append((at, until))  # one of these steps is marked now
                continue
            elif at < until:
                piece = self.calls[at].run
                todo.append((at + 1, until))
            else:
                continue
            piece()
            pieces.append(piece)
        self._recorded[begin, end] = pieces

    def _graph(self, calls: list[_Call]) -> Callable[[], None] | None:
        """The steps as a graph; None if one of them refused, which is marked with its reason.

        Where nothing tells which of several it was, none is marked.
        """
        reached = calls[:1]

        def work() -> None:  # must not hold this plan: a device may keep it
            for call in calls:
                reached[:] = [call]
                call.run()
            reached[:] = []

        try:
            with self.device.xp.recording() as held:
                launch = self.device.capture(work, self.pool)
        except (RuntimeError, NotImplementedError, ValueError, TypeError) as e:
            # what CuPy, CUDA and cuDNN raise for what cannot be captured; run alone, a real error
            # comes again
            known = reached and LATE not in str(e).replace("_", "").lower()
            for call in calls if len(calls) == 1 else reached if known else []:
                call.alone = str(e).split("\n")[0] or type(e).__name__
            return None
        self._held += held
        return launch

    def run_timed(self, begin: int, end: int) -> None:
        """Run the steps one by one and note when each started and what it took, in ns."""
        device = self.device
        device.activate()
        marks = [device.mark()]
        for call in self.calls[begin:end]:
            self._step(call)
            marks.append(device.mark())
        device.synchronize()
        for k, (a, b) in enumerate(zip(marks, marks[1:], strict=False), begin):
            self.starts[k], self.times[k] = (
                device.nanoseconds(marks[0], a),
                device.nanoseconds(a, b),
            )

    # ---- what summary() tells ----

    @property
    def reasons(self) -> list[tuple[str, str]]:
        """(name of a step that runs outside of a graph, why)."""
        return [(c.name, c.alone) for c in self.calls if c.alone]

    @property
    def notes(self) -> list[str]:
        """How the steps run, in lines of text."""
        lines = [f"{name} runs outside of the graphs: {why}" for name, why in self.reasons]
        for (begin, end), pieces in sorted(self._recorded.items()):
            graphs = len(pieces) - sum(bool(c.alone) for c in self.calls[begin:end])
            lines.append(f"steps {begin} to {end - 1} are {graphs} recorded graphs")
        for (begin, end), n in sorted(self._recordings.items()):
            if n >= MOST_RECORDINGS and (begin, end) not in self._recorded:
                lines.append(
                    f"steps {begin} to {end - 1} are launched one by one: the arrays that they "
                    f"write were replaced {n} times"
                )
        return lines
