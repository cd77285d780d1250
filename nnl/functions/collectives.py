# SPDX-License-Identifier: Apache-2.0
"""Functions that exchange arrays between the processes of a group, with gradients.

A value over a group is *replicated* (the same on every rank), *split* (every rank has its part) or
simply another one on every rank. What the gradient of an exchange is follows from which loss is
meant: the sum of the ranks' losses, or, where the result is replicated and so is all that is made
of it, one loss that all ranks compute alike. The second is what `replicated=True` says.

    function                       its gradient
    all_reduce                     all_reduce
    all_reduce(replicated=True)    nothing to do (replicate, backwards)
    replicate                      all_reduce(replicated=True)
    all_gather                     reduce_scatter
    all_gather(replicated=True)    local_part
    local_part                     all_gather(replicated=True)
    reduce_scatter                 all_gather
    all_to_all                     all_to_all, the other way
    permute                        permute, the other way

A communicator comes as an attribute. What is asked of it: `rank`, `find_group(name)` and the
methods of nnl.communicators.arrays.
"""

from __future__ import annotations

import math

from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.describe import Alone
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.arithmetic import mul_scalar
from nnl.functions.sync_batch_normalization import all_reduce

CATEGORY = "Collectives"

__all__: list[str] = []


class Exchange:
    """What these functions have in common.

    Attributes:
        comm, group: The communicator, and the name of a group of it.
    """

    comm: object
    group: str = "world"

    @property
    def ranks(self):
        return self.comm.find_group(self.group)

    @property
    def place(self):
        """The number of this rank among those of the group."""
        return self.ranks.index(self.comm.rank)

    def whole(self, x, axis):
        """The spec of all parts along an axis."""
        n = len(self.ranks)
        return x.with_shape((*x.shape[:axis], n * x.shape[axis], *x.shape[axis + 1 :]))

    def part(self, x, axis):
        """The spec of one of the parts along an axis.

        Raises:
            ShapeError: The size of the axis is not a multiple of the number of ranks.
        """
        n, size = len(self.ranks), x.shape[axis] if axis < len(x.shape) else 0
        if axis >= len(x.shape) or size % n:
            raise ShapeError(
                f"{self.op.name}: x is {x}, wanted a size of axis {axis} that the {n} ranks of "
                f"group {self.group!r} divide"
            )
        return x.with_shape((*x.shape[:axis], size // n, *x.shape[axis + 1 :]))

    def cost(self, x):
        return Cost(flops=x.size, bytes=2 * len(self.ranks) * x.nbytes)

    def parts(self, xp, x, axis):
        """The parts of an array, one after the other in memory."""
        n = len(self.ranks)
        if axis == 0:
            return xp.ascontiguousarray(x).reshape(n, x.shape[0] // n, *x.shape[1:])
        return xp.stack(xp.split(x, n, axis=axis))

    @staticmethod
    def joined(xp, parts, axis):
        if axis == 0:
            return parts.reshape(-1, *parts.shape[2:])
        return xp.concatenate(list(parts), axis=axis)


@op("all_gather")
class all_gather(Exchange):
    """The parts of all ranks of a group one after the other along an axis; see C.Axis.all_gather.

    Attributes:
        axis: Of the parts.
        replicated: What is made of the result is the same on all ranks, and so is the loss.
    """

    comm: object
    group: str = "world"
    axis: int = 0
    replicated: bool = False

    def infer(self, x):
        return self.whole(x, self.axis)

    def forward(self, xp, x):
        parts = self.comm.gather(xp, xp.ascontiguousarray(x), self.group)
        return self.joined(xp, parts, self.axis)

    def vjp(self, gy):
        back = local_part if self.replicated else reduce_scatter
        return back(gy, comm=self.comm, group=self.group, axis=self.axis)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3)), comm=Alone())
        yield Sample(rng.normal(size=(2, 3)), comm=Alone(), axis=1, replicated=True)


@op("reduce_scatter")
class reduce_scatter(Exchange):
    """This rank's part along an axis of the sum over a group; see C.Axis.reduce_scatter."""

    comm: object
    group: str = "world"
    axis: int = 0

    def infer(self, x):
        return self.part(x, self.axis)

    def forward(self, xp, x):
        return self.comm.scatter_sum(xp, self.parts(xp, x, self.axis), self.group)

    def vjp(self, gy):
        return all_gather(gy, comm=self.comm, group=self.group, axis=self.axis)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3)), comm=Alone(), axis=1)


@op("local_part")
class local_part(Exchange):
    """This rank's part along an axis of a replicated value; see C.Axis.local_part."""

    comm: object
    group: str = "world"
    axis: int = 0

    def infer(self, x):
        return self.part(x, self.axis)

    def forward(self, xp, x):
        n = x.shape[self.axis] // len(self.ranks)
        at = (slice(None),) * self.axis + (slice(self.place * n, (self.place + 1) * n),)
        return xp.array(x[at], order="C")

    def vjp(self, gy):
        kw = {"comm": self.comm, "group": self.group, "axis": self.axis}
        return all_gather(gy, **kw, replicated=True)

    def cost(self, x):
        return Cost(flops=0, bytes=2 * x.nbytes // len(self.ranks))

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3)), comm=Alone(), axis=1)


@op("replicate", view=True)
class replicate(Exchange):
    """A replicated value whose gradient every rank has a part of; see C.Axis.replicate."""

    comm: object
    group: str = "world"

    def infer(self, x):
        return x

    def forward(self, xp, x):
        return x

    def vjp(self, gy):
        return all_reduce(gy, comm=self.comm, group=self.group, replicated=True)

    def cost(self, x):
        return Cost(flops=0, bytes=0)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3)), comm=Alone())


@op("all_to_all")
class all_to_all(Exchange):
    """Give rank k of a group the k-th part along an axis; see C.Axis.all_to_all.

    Attributes:
        split: The axis whose k-th part goes to rank k.
        join: The axis along which what comes is put together, in the order of the ranks.
    """

    comm: object
    group: str = "world"
    split: int = 0
    join: int = 0

    def infer(self, x):
        return self.whole(self.part(x, self.split), self.join)

    def forward(self, xp, x):
        parts = self.comm.swap(xp, self.parts(xp, x, self.split), self.group)
        return self.joined(xp, parts, self.join)

    def vjp(self, gy):
        return all_to_all(gy, comm=self.comm, group=self.group, split=self.join, join=self.split)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3)), comm=Alone(), split=1)


@op("permute")
class permute(Exchange):
    """Send an array from rank to rank; see C.Axis.permute.

    Attributes:
        pairs: (from, to) places in the group, one after the other.
    """

    comm: object
    group: str = "world"
    pairs: tuple[int, ...] = ()

    def infer(self, x):
        n, pairs = len(self.ranks), self.pairs
        if (
            len(pairs) % 2
            or any(not 0 <= k < n for k in pairs)
            or any(len({*some}) < len(some) for some in (pairs[::2], pairs[1::2]))
        ):
            raise ShapeError(
                f"permute: pairs are {pairs}, wanted (from, to) among the {n} ranks of group "
                f"{self.group!r}, each of them once"
            )
        return x

    def forward(self, xp, x):
        return self.comm.permute(xp, xp.ascontiguousarray(x), self.pairs, self.group)

    def vjp(self, gy):
        return permute(gy, comm=self.comm, group=self.group, pairs=self.pairs[::-1])

    def cost(self, x):
        return Cost(flops=0, bytes=2 * x.nbytes)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3)), comm=Alone(), pairs=(0, 0))
        yield Sample(rng.normal(size=(2, 3)), comm=Alone())


def per_rank(size: int, n: int) -> int:
    """Elements of each of n equal pieces that hold `size` of them."""
    return -(-size // n)


@op("unshard")
class unshard(Exchange):
    """A parameter of which every rank of a group stores one of equal pieces; see C.shard.

    Its gradient is the mean over the ranks that have other data, of which each gets its piece.

    Attributes:
        shape: Of the parameter. Its elements, one after the other, are cut into the pieces; the
            last ones are filled with zeros.
        data: Name of a group of ranks that hold the same piece, and have other data; "" for none.
    """

    comm: object
    group: str = "world"
    shape: tuple[int, ...] = ()
    data: str = ""

    def infer(self, x):
        n, size = len(self.ranks), math.prod(self.shape)
        if x.shape != (per_rank(size, n),):
            raise ShapeError(
                f"unshard: x is {x}, wanted ({per_rank(size, n)},), one of {n} pieces of "
                f"{self.shape}"
            )
        return x.with_shape(self.shape)

    def forward(self, xp, x, out=None):
        size, n = math.prod(self.shape), len(self.ranks)
        direct = out is not None and size == n * x.size and out.flags.c_contiguous
        rows = out.reshape(n, x.size) if direct else xp.empty((n, x.size), x.dtype)
        self.comm.gather(xp, xp.ascontiguousarray(x), self.group, rows)
        if direct:
            return out
        whole = rows.reshape(-1)[:size].reshape(self.shape)
        if out is None:
            return whole
        out[...] = whole
        return out

    def vjp(self, gy):
        return shard_gradient(gy, comm=self.comm, group=self.group, data=self.data)

    def samples(rng):
        yield Sample(rng.normal(size=6), comm=Alone(), shape=(2, 3))


@op("shard_gradient")
class shard_gradient(Exchange):
    """This rank's piece of the mean of gradients; the gradient of unshard."""

    comm: object
    group: str = "world"
    data: str = ""

    def infer(self, x):
        return x.with_shape((per_rank(x.size, len(self.ranks)),))

    def forward(self, xp, x):
        n = len(self.ranks)
        piece, flat = per_rank(x.size, n), xp.ascontiguousarray(x).reshape(-1)
        if n * piece != x.size:
            flat = xp.concatenate([flat, xp.zeros(n * piece - x.size, x.dtype)])
        y = self.comm.scatter_sum(xp, flat.reshape(n, piece), self.group)
        if self.data:
            self.comm.sum([y], self.data)
            n *= len(self.comm.find_group(self.data))
        y /= y.dtype.type(n)
        return y

    def vjp(self, gy, *, x_spec):
        n, kw = len(self.ranks), {"comm": self.comm}
        if self.data:
            gy = all_reduce(gy, **kw, group=self.data)
            gy, n = gy[0], n * len(self.comm.find_group(self.data))
        return mul_scalar(unshard(gy, **kw, group=self.group, shape=x_spec.shape), 1 / n)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3)), comm=Alone())
