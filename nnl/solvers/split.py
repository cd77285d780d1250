# SPDX-License-Identifier: Apache-2.0
"""Updates of parameters by several ranks, each of which has the states of one piece of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import Spec
from nnl.core.graph.variable import Variable
from nnl.core.ops.describe import Alone
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.core.settings.context import STATE

ALIGN = 64  # bytes: parameters begin at cache lines


def cut_piece(xp: Any, x: Any, n: int, place: int) -> Any:
    """One of n equal pieces of the elements of an array, the last ones filled with zeros."""
    flat = xp.ascontiguousarray(x).reshape(-1)
    each = -(-flat.size // n)
    own = flat[place * each : (place + 1) * each]
    y = xp.zeros(each, flat.dtype)
    y[: own.size] = own
    return y


def piece(size: int, comm: Any, group: str) -> tuple[int, slice]:
    """The size of the pieces of an array, and which elements are this rank's."""
    ranks = comm.find_group(group)
    each, place = -(-size // len(ranks)), ranks.index(comm.rank)
    return each, slice(min(place * each, size), min((place + 1) * each, size))


@op("take_piece")
class take_piece:
    """This rank's piece of the elements of an array, one after the other; zeros at its end.

    Args:
        comm, group: The communicator, and the name of a group of it.
    """

    comm: object
    group: str = "world"

    def infer(self, x):
        return x.with_shape((piece(x.size, self.comm, self.group)[0],))

    def forward(self, xp, x):
        ranks = self.comm.find_group(self.group)
        return cut_piece(xp, x, len(ranks), ranks.index(self.comm.rank))

    def cost(self, x):
        return Cost(0, 2 * piece(x.size, self.comm, self.group)[0] * x.dtype.itemsize)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3)), comm=Alone(), grad=(False,))


def _wholes(attrs: Any) -> tuple[int, ...]:
    return tuple(range(attrs.count))


@op("gather_pieces", outputs=("*y",), keep=("arrays",), writes=_wholes)
class gather_pieces:
    """Put arrays together from the pieces that the ranks of a group have, all at once.

    Args:
        arrays: The arrays, which are written, then their pieces as of take_piece.
        count: Their number. comm, group: The communicator, and the name of a group of it.
    """

    count: int
    comm: object
    group: str = "world"

    def infer(self, *arrays):
        return tuple([a.with_shape((0,)) for a in arrays[: self.count]])

    def forward(self, xp, *arrays):
        wholes, pieces = arrays[: self.count], arrays[self.count :]
        ranks = self.comm.find_group(self.group)
        n, place = len(ranks), ranks.index(self.comm.rank)
        together: list[Any] = []
        uneven: dict[Any, list[Any]] = {}
        for p, a in zip(pieces, wholes, strict=True):
            if n * p.size != a.size or not a.flags.c_contiguous:
                uneven.setdefault(p.dtype, []).append((p, a))
                continue
            together.append(a.reshape(n, p.size))
            if not xp.may_share_memory(a, p):  # else it is its part already
                together[-1][place] = p
        for some in uneven.values():
            mine = xp.concatenate([p for p, _ in some])
            together.append(xp.empty((n, mine.size), mine.dtype))
            together[-1][place] = mine
        self.comm.gather_parts(together, self.group)
        for some, rows in zip(
            uneven.values(), together[len(together) - len(uneven) :], strict=True
        ):
            at = 0
            for p, a in some:
                a[...] = rows[:, at : at + p.size].reshape(-1)[: a.size].reshape(a.shape)
                at += p.size
        return tuple([xp.empty(0, p.dtype) for p in pieces])

    def cost(self, *arrays):
        return Cost(0, sum(3 * a.nbytes for a in arrays))

    def samples(rng):
        wholes = [rng.normal(size=s) for s in ((2, 3), (4,))]
        pieces = [rng.normal(size=a.size) for a in wholes]
        yield Sample(*wholes, *pieces, count=2, comm=Alone(), grad=(False,) * 4)


class Pieces:
    """Lets a solver update this rank's pieces of parameters, and puts the whole ones together.

    Args:
        comm, group: The communicator, and the name of a group of it.

    Source: Rajbhandari et al., ZeRO, arXiv:1910.02054, section 5.1.
    """

    def __init__(self, comm: Any, group: str) -> None:
        self.comm, self.group, self.n = comm, group, len(comm.find_group(group))
        self.how = {"comm": comm, "group": group}
        self.specs: list[tuple[int, Spec]] = []
        self.homes: dict[int, tuple[NdArray, Any]] = {}  # by id: parameters and where they lie
        self.parts: dict[int, tuple[Any, Any]] = {}  # by id: a buffer, and a view of it

    def shape(self, size: int) -> tuple[int, ...]:
        """Of a piece of an array of this size."""
        return (piece(size, self.comm, self.group)[0],)

    def of(self, variable: Variable) -> Variable:
        """A Variable for the piece of a parameter, with its element type."""
        spec = Spec.of(self.shape(variable.size), variable.spec.dtype)
        found = Variable(spec.shape, need_grad=True)
        found.data.set_spec(spec)
        return found

    def take(self, entries: Iterable[Any]) -> list[tuple[Variable, Variable]]:
        """Give pieces the values of the parameters and of their gradients.

        Args:
            entries: What a solver knows of a parameter: its `variable`, and that of its `piece`.
        Returns:
            (parameter, its piece) of those that have a gradient; the same ones on all ranks.

        Where the number of ranks divides an array, the piece is a part of its memory.
        """
        now: Any = STATE.interpreter.now
        there = []
        entries = list(entries)
        if STATE.interpreter.has_values:
            self._bring_home([e.variable.data for e in entries])
        for e in entries:
            w, p, g = e.variable, e.piece.variable, now.gradient(e.variable)
            if g is None:
                now.zero_gradients([e.piece])  # of an earlier step
                continue
            there.append((w, p))
            if STATE.interpreter.has_values:
                space = self.comm.space
                self._part(space, w.data, p.data)
                self._part(space, g, p.grad)
            else:
                OPS["store"](p, take_piece(w, **self.how))
                now.grads[id(p.grad)] = p.grad, take_piece(g, **self.how)
        return there

    def _bring_home(self, arrays: Sequence[NdArray]) -> None:
        """Let parameters lie in one buffer, where the other ranks can read them."""
        space, specs = self.comm.space, [(id(nd), nd.spec) for nd in arrays]
        if specs != self.specs:
            sizes = [-(-nd.spec.nbytes // ALIGN) * ALIGN for nd in arrays]
            memory, at = self.comm.allocate(sum(sizes), "update", self.group), 0
            self.homes, self.parts, self.specs = {}, {}, specs
            for nd, size in zip(arrays, sizes, strict=True):
                flat = memory[at : at + nd.spec.nbytes].view(nd.spec.dtype)
                self.homes[id(nd)] = nd, flat.reshape(nd.spec.shape)
                at += size
        for nd, home in self.homes.values():
            buf = nd.touch(space)
            if buf is not home:  # somebody has written it elsewhere
                home[...] = buf
                nd.write(space, home)

    def _part(self, space: str, source: NdArray, into: NdArray) -> None:
        each, own = piece(source.spec.size, self.comm, self.group)
        buf, n = source.read(space), own.stop - own.start
        into.set_spec(Spec.of((each,), source.spec.dtype))
        if each * self.n == source.spec.size and buf.flags.c_contiguous:
            of, part = self.parts.get(id(source), (None, None))
            if of is not buf:
                part = buf.reshape(-1)[own]
                self.parts[id(source)] = buf, part
            if into.bufs.get(space) is not part:
                into.write(space, part)
            return
        mine = into.touch(space)
        mine[:n] = buf.reshape(-1)[own]
        mine[n:] = 0

    def give(self, pairs: Sequence[tuple[Variable, Variable]]) -> None:
        """Put parameters together from all ranks' pieces."""
        both = [w for w, _ in pairs] + [p for _, p in pairs]
        if not both:
            return
        arrays = [v.data for v in both] if STATE.interpreter.has_values else both
        gather_pieces(*arrays, count=len(pairs), **self.how)
