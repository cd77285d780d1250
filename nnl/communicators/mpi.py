# SPDX-License-Identifier: Apache-2.0
"""The world of ranks that mpiexec started, and channels over MPI.

No call waits forever. Before any data is exchanged the ranks send each other a record of what they
are about to do; whoever misses one for too long, or receives another one than its own, raises. The
transfer itself is a blocking call of MPI, which a thread watches.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from nnl.communicators.channel import Buffer, Channel, CommunicatorError, rounds, wide

END = "the end of the script"
# MPI sums at most this much at a time: buffers of its own that are larger come from fresh memory in
# every call outside of the main thread, which takes three times as long.
PIECE_BYTES = 32 << 20
RECORD_BYTES = 1 << 16  # room for the answer of 65,000 arrays
HEAD_BYTES = 12  # of a record: three numbers
MAIL = 32000  # the tag of messages from one rank to another; MPI grants tags up to 32767
SPINS = 200  # looks for a message before the thread goes to sleep between them, about 0.1 ms
NAP_S = 50e-6
STACK_S = 0.5  # that a rank gets to write its stack
LOOK_S = 0.25  # between two looks whether the others are alive

STARTED_BY = ("PMI_SIZE", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE")  # variables of mpiexec


def started_by_mpi() -> bool:
    """Whether a launcher of MPI programs has started this process."""
    return any(name in os.environ for name in STARTED_BY)


def import_mpi() -> Any:
    """mpi4py's MPI module.

    Raises:
        ModuleNotFoundError: mpi4py or the MPI library is missing.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:  # RuntimeError: mpi4py is there, the library is not
        raise ModuleNotFoundError(
            f"init: several processes need mpi4py and an MPI library ({e}): pip install 'nnl[mpi]' "
            "(documentation: distributed#back-ends)"
        ) from e
    return MPI


def timeout_s() -> float:
    """Seconds to wait for another rank: NNL_COMMUNICATOR_TIMEOUT, or 50.

    Raises:
        ValueError: It is not a positive number.
    """
    text = os.environ.get("NNL_COMMUNICATOR_TIMEOUT", "50")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(f"NNL_COMMUNICATOR_TIMEOUT is {text!r}, wanted a number of seconds > 0")
    return seconds


class World:
    """All ranks: which there are, where they run, and whether they live.

    An exception that nobody catches ends the whole job, and so does a rank that waits too long for
    the end of a transfer. The job ends with the process that has started this one, too.

    Attributes:
        channel: Of all ranks, for what they do before they have a communicator.
    """

    def __init__(self) -> None:
        self.timeout = timeout_s()
        self.parent = os.getppid()
        # Nobody can be asked yet, and MPI's start does not let other Python threads run.
        faulthandler.dump_traceback_later(self.timeout, exit=True)
        self.MPI = import_mpi()
        self.comm = self.MPI.COMM_WORLD
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.threads = self.MPI.Query_thread() >= self.MPI.THREAD_MULTIPLE
        node = self.comm.Split_type(self.MPI.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = node.Get_rank(), node.Get_size()
        self.one_node = self.local_size == self.size
        host = self.MPI.Get_processor_name()
        places = self.comm.allgather((host, os.getpid()))
        self.pids = {r: pid for r, (h, pid) in enumerate(places) if h == host}
        self.shows_stack = hasattr(faulthandler, "register") and (
            signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL  # else the script's own
        )
        if self.shows_stack:
            faulthandler.register(signal.SIGUSR1)
        _remove_names_of_shared_files()
        self.busy: dict[int, tuple[float, str]] = {}  # {thread: (deadline, what it transfers)}
        self.channels: list[MpiChannel] = []
        self.made = 0  # channels, also of others: the same number on all ranks
        self.channel = MpiChannel(self, range(self.size))
        faulthandler.cancel_dump_traceback_later()
        if self.size > 1:
            self._hook = sys.excepthook
            sys.excepthook = self._failed
            atexit.register(self._say_end)
            threading.Thread(target=self._watch, name="nnl-watchdog", daemon=True).start()

    def dead(self, ranks: Sequence[int]) -> list[int]:
        """Those of the ranks whose processes have ended, as far as this node can tell."""
        return [r for r in ranks if r in self.pids and not _lives(self.pids[r])]

    def stopped(self, ranks: Sequence[int]) -> list[int]:
        """Those of the ranks whose processes were stopped, as by SIGSTOP, on this machine."""
        return [r for r in ranks if r in self.pids and _state(self.pids[r]) in "Tt"]

    def show_stacks(self, ranks: Sequence[int]) -> None:
        """Let ranks of this machine write where they are, to stderr; stopped ones go on for it."""
        for r in ranks if self.shows_stack else ():
            if r in self.pids and r != self.rank:
                _say(f"rank {r} is here:")
                os.kill(self.pids[r], signal.SIGUSR1)
                os.kill(self.pids[r], signal.SIGCONT)
                time.sleep(STACK_S)

    @contextmanager
    def watched(self, call: str) -> Iterator[None]:
        """End the job if what is inside takes too long, or a rank dies meanwhile."""
        me = threading.get_ident()
        self.busy[me] = time.monotonic() + self.timeout, call
        try:
            yield
        finally:
            del self.busy[me]

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_S)
            if os.getppid() != self.parent:
                _say(f"rank {self.rank} ends, because what has launched it has died")
                os._exit(1)
            for deadline, call in list(self.busy.values()):
                dead = self.dead(range(self.size))
                if dead or time.monotonic() > deadline:
                    still = self.stopped(range(self.size))
                    why = f"rank {dead[0]} has died" if dead else f"no end in {self.timeout:g} s"
                    why += f": rank {still[0]} was stopped" if still and not dead else ""
                    _say(f"rank {self.rank}: {call}: {why}")
                    if still and self.rank == min({*range(self.size)} - {*still}):
                        self.show_stacks(still)
                    self.abort()

    def _failed(self, kind: Any, error: Any, traceback: Any) -> None:
        self._hook(kind, error, traceback)
        _say(f"rank {self.rank} of {self.size} has failed, which ends the job")
        self.channels.clear()  # no word of a regular end
        self.abort()

    def _say_end(self) -> None:
        """Tell whoever waits for this rank that it will not come."""
        for channel in self.channels:
            channel.send(END)

    def abort(self) -> None:
        """End all processes at once."""
        # mpiexec drops what it has not read by then, of this rank and of others who print the same
        time.sleep(1.0)
        self.comm.Abort(1)


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"nnl: {text}\n")
        sys.stderr.flush()
    except OSError:
        pass  # nobody reads it any more: no reason to go on


def _remove_names_of_shared_files() -> None:
    """Remove the name of the file through which MPICH's ranks share memory.

    All have opened it by then, and MPICH would leave it behind when the ranks are killed.
    """
    try:
        with open("/proc/self/maps") as f:
            paths = {line.split()[-1] for line in f if "/dev/shm/mpich_shm_" in line}
        for path in paths:
            os.unlink(path)
    except OSError:
        return  # another rank was faster, or there is no /proc


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _state(pid) not in "ZX"


def _state(pid: int) -> str:
    """The state of a process as /proc has it: R, S, D, T, Z, X; R where there is no /proc, or the
    process has ended just now: the next look will tell."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0]
    except OSError:
        return "R"


class MpiChannel(Channel):
    """A group of ranks that exchange arrays through MPI's collectives.

    Args:
        world: All ranks.
        ranks: The members, in the order of their places. This process may be none of them: making
            a channel is a call of the whole world.
    """

    name = "mpi"

    def __init__(self, world: World, ranks: Sequence[int]) -> None:
        super().__init__(ranks, ranks.index(world.rank) if world.rank in ranks else -1)
        self.world, self.MPI = world, world.MPI
        self.number, world.made = world.made, world.made + 1
        self.tag = 0  # of the records; another one when those on their way have become void
        self.awaited_by = threading.get_ident()
        group = world.comm.Get_group().Incl(list(ranks))
        with world.watched("the set-up of a group"):
            self.comm = world.comm.Create(group)
        self.calls = 0
        self.call = ""  # that the ranks have agreed on last
        self.others = [k for k in range(self.size) if k != self.rank]
        self.inbox = np.zeros((self.size, RECORD_BYTES), np.uint8)
        self.sent: list[Any] = []
        self.mail: list[tuple[Any, Any]] = []  # messages on their way, with their requests
        self.scratch = np.empty(0, np.uint8)
        if not world.threads:
            self.threaded = False
        if self.rank >= 0:
            world.channels.append(self)

    # ---- agreeing ----

    def send(self, call: str, extra: bytes = b"", left: int = -1) -> None:
        """Tell the others what this rank is about to do; `left` as for exchange()."""
        text = call.encode()
        head = np.array([len(text), len(extra), left], np.int32).tobytes()
        record = np.frombuffer(head + text + extra, np.uint8)
        if len(record) > RECORD_BYTES:
            raise ValueError(
                f"{call}: {len(extra)} arrays in one call, wanted at most {RECORD_BYTES - 1024}"
            )
        self.sent = [self.comm.Isend(record, k, self.tag) for k in self.others]
        self.record = record  # MPI may read it until it is sent

    def agree(self, call: str, extra: bytes = b"") -> list[bytes]:
        self.calls += 1
        self.call = call
        if self.size == 1:
            return [extra]
        if self.foreground:
            self.awaited_by = threading.get_ident()
        return self._agree(f"call {self.calls}, {call}", extra)

    def _agree(self, numbered: str, extra: bytes = b"", left: int = -1) -> list[bytes]:
        answers = self.exchange(numbered, extra, left)
        for k in self.others:
            if answers[k][0] != numbered or max(answers[k][2], left) >= 0:
                raise CommunicatorError(
                    f"rank {self.world.rank} has come to {numbered}, but rank {self.ranks[k]} to "
                    f"{answers[k][0]} (documentation: distributed#when-something-goes-wrong)"
                )
        return [e for _, e, _ in answers]

    def exchange(
        self, call: str, extra: bytes = b"", left: int = -1
    ) -> list[tuple[str, bytes, int]]:
        """What every rank sends in this round, which is over when all have sent.

        Args:
            left: Number of another channel, on which this rank has waited in vain in `call`. What
                it has sent there is void, which is why all of this channel begin anew there.
        """
        waiting = {k: self.comm.Irecv(self.inbox[k], k, self.tag) for k in self.others}
        self.send(call, extra, left)
        self._wait(waiting, call)
        self.MPI.Request.Waitall(self.sent)
        answers = [(call, extra, left)] * self.size
        for k in self.others:
            row = self.inbox[k]
            n, m, number = row[:HEAD_BYTES].view(np.int32).tolist()
            text, end = row[HEAD_BYTES : HEAD_BYTES + n], HEAD_BYTES + n + m
            answers[k] = text.tobytes().decode(), row[HEAD_BYTES + n : end].tobytes(), number
        void = {number for *_, number in answers}
        for channel in self.world.channels if void != {-1} else ():
            if channel.number in void:
                channel.calls, channel.tag = 0, channel.tag + 1
        return answers

    def _where_they_wait(self, waiting: Sequence[int]) -> MpiChannel | None:
        """The channel on which a rank that is missed here waits for this one; neither can come.

        One of the two has to look: who is on the background channel of a group, or on that of the
        later group. It does where the thread that would make the other call waits for this one.
        """
        missing = {self.ranks[k] for k in waiting}
        for c in self.world.channels:
            later = not self.foreground or c.number < self.number
            if c.foreground and later and c.awaited_by == self.awaited_by:
                if any(c.ranks[k] in missing and c.comm.Iprobe(k, c.tag) for k in c.others):
                    return c
        return None

    def _wait(self, waiting: dict[int, Any], call: str) -> None:
        """Wait for messages, with an eye on those who should send them."""
        spins = SPINS if self.size <= (os.cpu_count() or 1) else 1
        looks, start, next_look, seen = 0, 0.0, 0.0, None
        while waiting := {k: r for k, r in waiting.items() if not r.Test()}:
            looks += 1
            if looks <= spins:
                continue
            time.sleep(NAP_S)
            now = time.monotonic()
            if not start:
                start, next_look = now, now + LOOK_S
            if now < next_look:
                continue
            next_look = now + LOOK_S
            missing = [self.ranks[k] for k in waiting]
            dead = self.world.dead(missing)
            if dead and not all(r.Test() for k, r in waiting.items() if self.ranks[k] in dead):
                raise CommunicatorError(
                    f"rank {self.world.rank} waits in {call}: rank {dead[0]} has died "
                    "(documentation: distributed#when-something-goes-wrong)"
                )
            there = self._where_they_wait([*waiting])
            if there is not None and there is seen:  # seen twice: it was not on the way here
                for r in waiting.values():
                    r.Cancel()
                    r.Wait()
                there.calls += 1
                there._agree(call, left=self.number)  # they have come to something else: raises
            seen = there
            if now - start > self.world.timeout:
                names = " and ".join([f"rank {r}" for r in missing])
                still = self.world.stopped(missing)
                more = f"; rank {still[0]} was stopped" if still else ""
                if self.world.rank == min({*self.ranks} - {*missing}):
                    self.world.show_stacks(missing)
                raise CommunicatorError(
                    f"rank {self.world.rank} waits in {call}: {names} did not come within "
                    f"{self.world.timeout:g} s{more} (NNL_COMMUNICATOR_TIMEOUT; "
                    "documentation: distributed#when-something-goes-wrong)"
                )

    # ---- data ----

    def sum(self, arrays: Sequence[Buffer], divisor: int = 1, dst: int | None = None) -> None:
        if self.size == 1 or not arrays:
            return
        dtype = arrays[0].dtype
        direct = wide(dtype) == dtype
        room = PIECE_BYTES // wide(dtype).itemsize
        with self.world.watched(self.call):
            for pieces in rounds(arrays, room):
                if direct and len(pieces) == 1:
                    self._sum_piece(pieces[0], divisor, dst)
                    continue
                flat = self._pack(pieces, wide(dtype))
                self._sum_piece(flat, divisor, dst)
                at = 0
                for p in pieces if dst is None or dst == self.rank else ():
                    p[...] = flat[at : at + len(p)]
                    at += len(p)

    def _sum_piece(self, flat: Buffer, divisor: int, dst: int | None) -> None:
        if dst is None:
            self.comm.Allreduce(self.MPI.IN_PLACE, flat)
        elif self.rank == dst:
            self.comm.Reduce(self.MPI.IN_PLACE, flat, root=dst)
        else:
            self.comm.Reduce(flat, None, root=dst)
        if divisor != 1 and (dst is None or self.rank == dst):
            flat /= divisor

    def _pack(self, arrays: Sequence[Buffer], dtype: np.dtype[Any]) -> Buffer:
        """The arrays one after the other in memory that is used again at the next call."""
        size = sum([a.size for a in arrays])
        if self.scratch.size < size * dtype.itemsize:
            self.scratch = np.empty(size * dtype.itemsize, np.uint8)
        flat = self.scratch[: size * dtype.itemsize].view(dtype)
        at = 0
        for a in arrays:
            flat[at : at + a.size] = a
            at += a.size
        return flat

    def bcast(self, arrays: Sequence[Buffer], src: int) -> None:
        with self.world.watched(self.call):
            for a in arrays:
                self.comm.Bcast(a.view(np.uint8), root=src)

    def reduce_scatter(self, arrays: Sequence[Buffer], out: Buffer, divisor: int = 1) -> None:
        flat = self._pack(arrays, wide(out.dtype))
        mine = np.empty(out.size, flat.dtype)
        with self.world.watched(self.call):
            self.comm.Reduce_scatter_block(flat, mine)
        if divisor != 1:
            mine /= divisor
        out[...] = mine

    def all_gather(self, array: Buffer, outs: Sequence[Buffer]) -> None:
        whole = np.empty((self.size, array.nbytes), np.uint8)
        with self.world.watched(self.call):
            self.comm.Allgather(array.view(np.uint8), whole)
        for out, row in zip(outs, whole, strict=True):
            out.view(np.uint8)[...] = row

    def gather_parts(self, wholes: Sequence[Any]) -> None:
        with self.world.watched(self.call):
            for rows in wholes:
                self.comm.Allgather(self.MPI.IN_PLACE, rows.reshape(-1).view(np.uint8))

    def all_to_all(self, arrays: Sequence[Buffer], outs: Sequence[Buffer]) -> None:
        mine = np.stack([a.view(np.uint8) for a in arrays])
        theirs = np.empty_like(mine)
        with self.world.watched(self.call):
            self.comm.Alltoall(mine, theirs)
        for out, row in zip(outs, theirs, strict=True):
            out.view(np.uint8)[...] = row

    # ---- from one rank to another ----

    def send_to(self, to: int, call: str, array: Buffer) -> None:
        """Begin to send a text and the bytes of a host array."""
        text = call.encode()
        head = np.array([len(text)], np.int32).tobytes() + text
        message = np.empty(len(head) + array.nbytes, np.uint8)
        message[: len(head)] = np.frombuffer(head, np.uint8)
        message[len(head) :] = array.reshape(-1).view(np.uint8)
        self.mail = [m for m in self.mail if not m[0].Test()]
        self.mail.append((self.comm.Isend(message, to, MAIL), message))  # MPI reads it until then

    def receive_from(self, source: int, call: str) -> tuple[str, Buffer]:
        """The text and the bytes that come next from a rank.

        Raises:
            CommunicatorError: It has died, or nothing comes for too long.
        """
        self.awaited_by = threading.get_ident()
        found = _Coming(self, source)
        self._wait({source: found}, call)
        message = np.empty(found.status.Get_count(self.MPI.BYTE), np.uint8)
        with self.world.watched(call):
            self.comm.Recv(message, source, MAIL)
        n = int(message[:4].view(np.int32)[0])
        return message[4 : 4 + n].tobytes().decode(), message[4 + n :].copy()


class _Coming:
    """A message that may have come, with the interface of a request of MPI."""

    def __init__(self, channel: MpiChannel, source: int) -> None:
        self.channel, self.source, self.status = channel, source, channel.MPI.Status()

    def Test(self) -> bool:
        return bool(self.channel.comm.Iprobe(self.source, MAIL, self.status))

    def Cancel(self) -> None:
        """Nothing was begun."""

    Wait = Cancel
