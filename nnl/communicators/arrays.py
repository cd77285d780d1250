# SPDX-License-Identifier: Apache-2.0
"""What functions of a graph call on a communicator: collectives of arrays of the back end."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.communicators.callback import describe
from nnl.communicators.channel import CommunicatorError, wide
from nnl.core.arrays.spec import Spec
from nnl.core.settings.context import SPACES

SMALL_BYTES = 16 << 10  # that go with the record by which ranks agree, which saves a second message


class ArrayCollectives:
    """Collectives of contiguous arrays; `parts` and `rows` have one for each rank of the group."""

    rank: int
    space: str

    def _group(self, call: str, group: str) -> Any:
        raise NotImplementedError

    def _agree(self, call: str, g: Any, arguments: str, extra: bytes = b"") -> list[bytes]:
        raise NotImplementedError

    def sum(self, arrays: Sequence[Any], group: str = "world", of: str = "") -> None:
        """Sum contiguous arrays of the back end over the ranks, in place; what functions call.

        Args:
            of: Which arrays of a list they are; the ranks agree on it.
        """
        g = self._group("sum", group)
        text = describe([Spec.of(a.shape, a.dtype) for a in arrays]) + (of and f", {of}")
        if self.space == "host" and sum([a.nbytes for a in arrays]) <= SMALL_BYTES:
            said = self._agree("sum", g, text, b"".join([a.tobytes() for a in arrays]))
            at = 0
            for a in arrays if len(said) > 1 else ():
                parts = [np.frombuffer(b, a.dtype, a.size, at).reshape(a.shape) for b in said]
                a[...] = _total(parts)
                at += a.nbytes
            return
        self._agree("sum", g, text)
        by_type: dict[Any, list[Any]] = {}
        for a in arrays:
            by_type.setdefault(a.dtype, []).append(a.reshape(-1))
        for bufs in by_type.values():
            g.main.sum(bufs)

    def gather(self, xp: Any, x: Any, group: str, rows: Any = None) -> Any:
        """The arrays of all ranks, in `rows` if given: (ranks, *shape)."""
        g = self._group("all_gather", group)
        if rows is None:
            rows = xp.empty((len(g.ranks), *x.shape), x.dtype)
        if self._small(x):
            said = self._agree("all_gather", g, _text(x), x.tobytes())
            for row, b in zip(rows, said, strict=True):
                row[...] = np.frombuffer(b, x.dtype).reshape(x.shape)
            return rows
        self._agree("all_gather", g, _text(x))
        g.main.all_gather(x.reshape(-1), [row.reshape(-1) for row in rows])
        return rows

    def allocate(self, nbytes: int, call: str, group: str) -> Any:
        """Bytes for arrays that gather_parts() then need not copy; all ranks make this call."""
        return self._group(call, group).main.allocate(nbytes, call)

    def gather_parts(self, wholes: Sequence[Any], group: str) -> None:
        """Give all ranks what each has at its place of arrays of (ranks, elements)."""
        g = self._group("all_gather", group)
        text = describe([Spec.of(a.shape, a.dtype) for a in wholes])
        places = zlib.crc32("".join([g.main.place_of(a) for a in wholes]).encode())
        self._agree("all_gather", g, f"{text}, at {places:08x}")
        g.main.gather_parts(wholes)

    def scatter_sum(self, xp: Any, parts: Any, group: str) -> Any:
        """The sum over the ranks of their parts for this one."""
        g = self._group("reduce_scatter", group)
        place = g.ranks.index(self.rank)
        y = xp.empty(parts.shape[1:], parts.dtype)
        if self._small(parts):
            said = self._agree("reduce_scatter", g, _text(parts), parts.tobytes())
            every = [np.frombuffer(b, parts.dtype).reshape(parts.shape) for b in said]
            y[...] = _total([p[place] for p in every])
            return y
        self._agree("reduce_scatter", g, _text(parts))
        g.main.reduce_scatter([p.reshape(-1) for p in parts], y.reshape(-1))
        return y

    def swap(self, xp: Any, parts: Any, group: str) -> Any:
        """The parts that the ranks have for this one, in their order."""
        g = self._group("all_to_all", group)
        y = xp.empty_like(parts)
        self._agree("all_to_all", g, _text(parts))
        g.main.all_to_all([p.reshape(-1) for p in parts], [p.reshape(-1) for p in y])
        return y

    def permute(self, xp: Any, x: Any, pairs: Sequence[int], group: str) -> Any:
        """The array that one of (from, to) pairs of places brings to this rank; zeros for none."""
        g = self._group("permute", group)
        place = g.ranks.index(self.rank)
        self._agree("permute", g, f"{_text(x)}, pairs={tuple(pairs)}")
        to_of = dict(zip(pairs[::2], pairs[1::2], strict=True))
        from_of = {to: source for source, to in to_of.items()}
        to, source = to_of.get(place, place), from_of.get(place)
        if to != place:
            self.send(x, to, group)
        if source is None:
            return xp.zeros_like(x)
        spec = Spec.of(x.shape, x.dtype)
        return x.copy() if source == place else self.receive(spec, source, group)

    def send(self, x: Any, to: int, group: str, name: str = "") -> None:
        """Send an array to a place of a group, without waiting until it is there."""
        g = self._group("send", group)
        if to == g.main.rank:
            raise ValueError(f"send: to is {to}, this rank itself, in group {group!r}")
        host = np.ascontiguousarray(SPACES[self.space].to_host(x))
        g.main.send_to(to, f"send({_text(x)}) {name} in group {group!r}", host)

    def receive(self, spec: Spec, source: int, group: str, name: str = "") -> Any:
        """The array of this shape and dtype that a place of a group sends.

        Args:
            name: That it was sent with. Arrays of other names that come before it are kept for
                the calls that want them.
        Raises:
            CommunicatorError: It sends another one, has died or does not come.
        """
        g = self._group("receive", group)
        wanted = f"send({spec}) {name} in group {group!r}"
        early = g.early.setdefault(source, {})
        while wanted not in early:
            text, data = g.main.receive_from(source, f"receive({spec}) {name} in group {group!r}")
            early[text] = data
            if text != wanted and text.partition(") ")[2] == wanted.partition(") ")[2]:
                raise CommunicatorError(
                    f"rank {self.rank} waits for {wanted}, but rank {g.ranks[source]} has come to "
                    f"{text} (documentation: distributed#when-something-goes-wrong)"
                )
        data = early.pop(wanted)
        return SPACES[self.space].from_host(data.view(spec.dtype).reshape(spec.shape))

    def _small(self, x: Any) -> bool:
        return self.space == "host" and x.nbytes <= SMALL_BYTES


def _text(x: Any) -> str:
    return str(Spec.of(x.shape, x.dtype))


def _total(parts: Sequence[Any]) -> Any:
    """The sum in one order everywhere, in the type that sums are taken in."""
    return sum(parts[1:], parts[0].astype(wide(parts[0].dtype)))
