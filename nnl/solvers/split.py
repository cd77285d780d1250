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

LARGE = 1 << 16  # bytes: a piece that is not worth copying beside others


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
        n = len(self.comm.find_group(self.group))
        small: dict[Any, list[Any]] = {}
        for p, a in zip(pieces, wholes, strict=True):
            if p.nbytes >= LARGE and n * p.size == a.size and a.flags.c_contiguous:
                self.comm.gather(xp, p, self.group, a.reshape(n, p.size))
            else:
                small.setdefault(p.dtype, []).append((p, a))
        for some in small.values():
            mine = xp.concatenate([p for p, _ in some])
            rows, at = self.comm.gather(xp, mine, self.group), 0
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
        """
        now: Any = STATE.interpreter.now
        there = []
        for e in entries:
            w, p, g = e.variable, e.piece.variable, now.gradient(e.variable)
            if g is None:
                now.zero_gradients([e.piece])  # of an earlier step
                continue
            there.append((w, p))
            if STATE.interpreter.has_values:
                space = self.comm.space
                self._copy(space, w.data, p.data)
                p.grad.set_spec(Spec.of(p.shape, g.spec.dtype))
                self._copy(space, g, p.grad)
            else:
                OPS["store"](p, take_piece(w, **self.how))
                now.grads[id(p.grad)] = p.grad, take_piece(g, **self.how)
        return there

    def _copy(self, space: str, source: NdArray, into: NdArray) -> None:
        _, own = piece(source.spec.size, self.comm, self.group)
        buf, n = into.touch(space), own.stop - own.start
        buf[:n] = source.read(space).reshape(-1)[own]
        buf[n:] = 0

    def give(self, pairs: Sequence[tuple[Variable, Variable]]) -> None:
        """Put parameters together from all ranks' pieces."""
        both = [w for w, _ in pairs] + [p for _, p in pairs]
        if not both:
            return
        arrays = [v.data for v in both] if STATE.interpreter.has_values else both
        gather_pieces(*arrays, count=len(pairs), **self.how)
