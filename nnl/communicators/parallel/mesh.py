# SPDX-License-Identifier: Apache-2.0
"""Mesh: the ranks of a job in several directions, each with its collectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nnl.communicators.base import Communicator
from nnl.communicators.multi_process import MultiProcessDataParallelCommunicator
from nnl.core.arguments.annotations import shown
from nnl.core.arrays.spec import check_axis
from nnl.core.graph.variable import Variable
from nnl.core.ops.describe import Alone
from nnl.core.ops.op import OPS
from nnl.core.settings.context import STATE

# From the slowest direction to the fastest: ranks that follow each other, which are the closest,
# share the work of one layer.
DIRECTIONS = ("pipe", "data", "shard", "model")


class Axis:
    """The ranks of a mesh along one direction through this rank, and functions over them.

    The functions take and give Variables, in every mode, and have gradients. A value is
    *replicated* if it is the same on all ranks. `replicated=True` says that this is so for all that
    is made of the result, the loss included, which then counts once; without it the gradient is
    that of the sum of the ranks' losses. Over one rank they give their argument.

    Attributes:
        comm, group: The communicator, and the name of its group of these ranks.
        ranks: Their numbers in the job. place: which of them this one is. size: how many there are.

    Example:
        >>> x = array([[1, 2], [3, 4]])
        >>> C.Mesh().model.all_gather(x, axis=1).shape
        (2, 2)
    """

    def __init__(self, comm: Communicator, name: str, ranks: Sequence[int], group: str) -> None:
        self.comm, self.name, self.ranks, self.group = comm, name, tuple(ranks), group
        self.size, self.place = len(ranks), ranks.index(comm.rank)

    def __repr__(self) -> str:
        return f"{self.name}[{self.place} of {self.size}]"

    def all_reduce(self, x: Variable, replicated: bool = False) -> Variable:
        """The sum over the ranks."""
        return self._apply("all_reduce", x, replicated=replicated)

    def total(self, norm: Any) -> Any:
        """The norm of what has this norm on each rank, of an array or a Variable."""
        if self.size == 1:
            return norm
        squares = OPS["all_reduce"](OPS["pow_scalar"](norm, 2.0), comm=self.comm, group=self.group)
        return OPS["pow_scalar"](squares[0] if isinstance(squares, tuple) else squares, 0.5)

    def all_gather(self, x: Variable, axis: int = 0, replicated: bool = False) -> Variable:
        """The arrays of all ranks, one after the other along an axis."""
        return self._apply("all_gather", x, axis=axis, replicated=replicated)

    def reduce_scatter(self, x: Variable, axis: int = 0) -> Variable:
        """This rank's part, along an axis, of the sum over the ranks.

        Raises:
            ShapeError: The number of ranks does not divide the size of the axis.
        """
        return self._apply("reduce_scatter", x, axis=axis)

    def local_part(self, x: Variable, axis: int = 0) -> Variable:
        """This rank's part, along an axis, of a replicated value; as reduce_scatter."""
        return self._apply("local_part", x, axis=axis)

    def replicate(self, x: Variable) -> Variable:
        """A replicated value, for functions that every rank does a part of: its gradient is the
        sum of theirs."""
        return self._apply("replicate", x)

    def all_to_all(self, x: Variable, split: int = 0, join: int = 0) -> Variable:
        """Give the k-th part along axis `split` to rank k; what comes is joined along `join`.

        Raises:
            ShapeError: As reduce_scatter.
        """
        return self._apply("all_to_all", x, split=split, join=join)

    def permute(self, x: Variable, pairs: Sequence[tuple[int, int]]) -> Variable:
        """Send x from rank to rank: each of the (from, to) places gets the array of the other.

        Ranks that get none have zeros. The gradient goes the other way.

        Raises:
            ShapeError: A place is none of the ranks, or sends or gets twice.
        """
        flat = tuple(int(k) for pair in pairs for k in pair)
        return self._apply("permute", x, pairs=flat)

    def _apply(self, name: str, x: Variable, **attributes: Any) -> Variable:
        if not isinstance(x, Variable):
            raise TypeError(f"{name}: x is {shown(x)}, wanted nnl.Variable")
        for key in {"axis", "split", "join"} & attributes.keys():
            attributes[key] = check_axis(name, attributes[key], x.spec)
        if self.size == 1 and name != "permute":
            return x
        comm = self.comm if self.size > 1 else Alone()
        y = OPS[name](x, comm=comm, group=self.group, **attributes)
        return y[0] if isinstance(y, tuple) else y


class Mesh:
    """The ranks of a job as a box: every rank has a place along each direction.

    Args:
        data: Copies of the network, each with other data.
        shard: Ranks with other data that store the parameters, gradients or states of one copy
            together; see C.shard.
        model: Ranks that do parts of each layer, with the same data; see C.affine.
        pipe: Ranks that do some layers each; see C.Pipeline.
        comm: The communicator; a new one of the whole job if left out.

    Attributes:
        data, shard, model, pipe: An Axis each.
        batch: The axis of all ranks with other data: data and shard.
        comm: The communicator. shape: the sizes by name.

    Every rank makes the same meshes in the same order.

    Raises:
        ValueError: The product of the sizes is not the number of ranks.
        CommunicatorError: Another rank makes another mesh.
    Example:
        >>> mesh = C.Mesh(data=1, model=1)  # one process; nnl launch -n 8 for Mesh(data=2, model=4)
        >>> mesh.shape, mesh.model.size, mesh.model.place
        ({'pipe': 1, 'data': 1, 'shard': 1, 'model': 1}, 1, 0)
    """

    def __init__(
        self,
        data: int = 1,
        shard: int = 1,
        model: int = 1,
        pipe: int = 1,
        comm: Communicator | None = None,
    ) -> None:
        given = {"pipe": pipe, "data": data, "shard": shard, "model": model}
        for name, n in given.items():
            if type(n) is not int or n < 1:
                raise ValueError(f"Mesh: {name} is {shown(n)}, wanted a number of ranks >= 1")
        if comm is None:
            comm = MultiProcessDataParallelCommunicator(STATE.context)
            comm.init()
        self.comm, self.shape = comm, given
        sizes = [given[d] for d in DIRECTIONS]
        if math.prod(sizes) != comm.size:
            text = ", ".join(f"{d}={n}" for d, n in given.items() if n > 1) or "one rank"
            raise ValueError(
                f"Mesh: {text} takes {math.prod(sizes)} ranks, but the job has {comm.size}: "
                f"nnl launch -n {math.prod(sizes)}"
            )
        if comm.size > 1:
            comm.meet(f"Mesh({given})")
        self.pipe, self.data, self.shard, self.model = (self._axis(d, (d,)) for d in DIRECTIONS)
        self.batch = self._axis("batch", ("data", "shard"))

    def _axis(self, name: str, along: Sequence[str]) -> Axis:
        """The axis through this rank; all ranks make the groups of all ranks, in one order."""
        groups = {ranks: self._group(name, ranks) for ranks in self._lines(along)}
        ((ranks, group),) = ((r, g) for r, g in groups.items() if self.comm.rank in r)
        return Axis(self.comm, name, ranks, group)

    def some_of_pipe(self, places: Sequence[int]) -> str:
        """The group of the ranks at some places of pipe, "" on other ranks; all ranks call this."""
        lines = [tuple(line[k] for k in places) for line in self._lines(("pipe",))]
        groups = {ranks: self._group("some of pipe", ranks) for ranks in lines}
        return next((g for ranks, g in groups.items() if self.comm.rank in ranks), "")

    def _lines(self, along: Sequence[str]) -> list[tuple[int, ...]]:
        """The ranks that differ in their places along some directions only, of all others."""
        lines: dict[Any, list[int]] = {}
        for rank in range(self.comm.size):
            place = self.place_of(rank)
            lines.setdefault(tuple(place[d] for d in DIRECTIONS if d not in along), []).append(rank)
        return [tuple(ranks) for ranks in lines.values()]

    def _group(self, name: str, ranks: Sequence[int]) -> str:
        """The group of these ranks, made where there is none; there is none of one rank."""
        if len(ranks) == self.comm.size:
            return "world"
        group = f"{name} {list(ranks)}"
        if len(ranks) > 1 and group not in self.comm.list_groups():
            self.comm.new_group(group, ranks)
        return group

    def place_of(self, rank: int) -> dict[str, int]:
        """The place of a rank of the job along each direction."""
        found = {}
        for d in reversed(DIRECTIONS):
            rank, found[d] = divmod(rank, self.shape[d])
        return found

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{d}={n}' for d, n in self.shape.items())})"
