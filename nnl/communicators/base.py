# SPDX-License-Identifier: Apache-2.0
"""Communicator: NNabla's collectives, their checks, and the groups of ranks they run in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from nnl.communicators.arrays import ArrayCollectives
from nnl.communicators.callback import CommunicatorBackwardCallback, describe, record_all_reduce
from nnl.communicators.channel import Channel, CommunicatorError
from nnl.core.arguments.annotations import checked
from nnl.core.arguments.convert import as_ints
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import ShapeError
from nnl.core.graph.variable import Variable
from nnl.core.settings.context import REORDERED, STATE, Context

KINDS = "iuf"  # of the dtypes that can be summed; bfloat16 is of numpy's kind V
_TEXTS_LIMIT = 1024  # texts of calls that are remembered


class Group:
    """Some ranks, and the two channels between them.

    Attributes:
        main: For calls of the user's thread. background: for reductions while backward goes on;
            of its own, so that the order of either does not depend on the other's.
        early: Arrays by the place that has sent them and their names; see receive().
    """

    def __init__(self, name: str, ranks: Sequence[int], main: Any, background: Any) -> None:
        self.name, self.ranks = name, tuple(ranks)
        self.main: Channel = main
        self.background: Channel = background
        background.foreground = False
        self.early: dict[int, dict[str, Any]] = {}


class Communicator(ArrayCollectives):
    """Collectives between processes that each train on a part of the data.

    Args:
        ctx: Context whose arrays are exchanged.

    `init` comes before any collective. Every rank makes the same calls with arrays of the same
    shapes and dtypes in the same order; where they do not, all ranks raise.

    Raises:
        TypeError: ctx is not a Context.
    Example:
        >>> comm = C.MultiProcessDataParallelCommunicator(nn.get_current_context())
        >>> comm.init()
        >>> x = nn.NdArray.from_numpy_array(np.array([1.0, 2.0]))
        >>> comm.all_reduce(x)  # the sum over all ranks, of which there is one
        >>> x.data
        array([1., 2.])
    """

    def __init__(self, ctx: Context | None = None) -> None:
        self.ctx = STATE.context if ctx is None else ctx
        if not isinstance(self.ctx, Context):
            raise TypeError(f"{self.name}: ctx is {type(ctx).__name__}, wanted nnl.Context")
        self.rank, self.size, self.local_rank = 0, 1, 0
        self._registered: list[tuple[Context, dict[str, Variable]]] = []
        self._groups: dict[str, Group] = {}
        self._open: Callable[[Sequence[int]], tuple[Channel, Channel]] | None = None
        self._callbacks: dict[Any, CommunicatorBackwardCallback] = {}
        self._texts: dict[Any, str] = {}
        self._copies: list[tuple[Any, Any]] = []  # buffers that are not contiguous, and copies
        self.worker: Any = None  # a thread, once there is something to do while backward goes on

    @property
    def name(self) -> str:
        """Name of the class, with which errors begin."""
        return type(self).__name__

    @property
    def backend(self) -> str:
        """What carries the data: "local", "shared", "mpi" or "nccl"."""
        return self._group("backend", "world").main.name

    def __repr__(self) -> str:
        kind = self.backend if self._groups else "not connected"
        return f"{self.size} ranks ({kind})"  # the same on all of them: programs print it

    @property
    def space(self) -> str:  # type: ignore[override]
        """The memory space of the arrays that are exchanged."""
        return self.ctx.target.backends[0].space if self.backend == "nccl" else "host"

    # ---- set-up ----

    def init(self) -> None:
        """Connect the processes; a second call does nothing.

        The back end is chosen by what is there: nothing for one process, NCCL for a context on
        CUDA, shared memory for processes on one node, else MPI. The environment variable
        NNL_COMMUNICATOR (local, shared, mpi, nccl) overrides it.

        Raises:
            ModuleNotFoundError: Several processes were started and mpi4py is missing.
            ValueError: NNL_COMMUNICATOR names no back end, or one that cannot serve here.
        """
        raise NotImplementedError(f"{self.name}: init() is for its subclasses")

    def abort(self) -> None:
        """End all processes at once."""
        raise SystemExit(1)

    def new_group(self, name_ranks: Any, ranks: Sequence[int] | None = None) -> str:
        """Make a group of some of the ranks. All ranks of the world call this.

        Args:
            name_ranks: (name, ranks), or the name with the ranks as second argument.
        Returns:
            The name, to be given as `group` to collectives.
        Raises:
            ValueError: The name is taken, or a rank is out of range or given twice.
        """
        if ranks is None and not (isinstance(name_ranks, (tuple, list)) and len(name_ranks) == 2):
            raise TypeError(f"new_group: name_ranks is {name_ranks!r}, wanted (name, ranks)")
        name, members = name_ranks if ranks is None else (name_ranks, ranks)
        self._group("new_group", "world")
        if not isinstance(name, str):
            raise TypeError(f"new_group: name is {type(name).__name__}, wanted a str")
        try:
            members = list(as_ints(members))
        except (TypeError, OverflowError):
            raise TypeError(f"new_group: ranks are {members!r}, wanted ints") from None
        if name in self._groups:
            raise ValueError(f"new_group: name {name!r} is taken by {self.find_group(name)}")
        if (
            not members
            or len(set(members)) < len(members)
            or not set(members) <= {*range(self.size)}
        ):
            raise ValueError(
                f"new_group: ranks of {name!r} are {members}, wanted different ones of "
                f"0..{self.size - 1}"
            )
        self._agree("new_group", self._groups["world"], f"{name!r}, {members}")
        assert self._open is not None
        self._groups[name] = Group(name, members, *self._open(members))
        return name

    def list_groups(self) -> dict[str, list[int]]:
        """{name: ranks} of every group, "world" among them."""
        return {name: list(group.ranks) for name, group in self._groups.items()}

    def find_group(self, group: str) -> list[int]:
        """The ranks of a group; empty if there is none of that name."""
        return list(self._groups[group].ranks) if group in self._groups else []

    # ---- parameters whose gradients allreduce() exchanges ----

    def add_context_and_parameters(self, ctx_param_dict: tuple[Context, Mapping[str, Any]]) -> None:
        """Register the parameters, {name: Variable}, that `allreduce` works on.

        Raises:
            TypeError: ctx_param_dict is not (Context, {name: Variable}).
        """
        where = "add_context_and_parameters: ctx_param_dict"
        pair = ctx_param_dict if isinstance(ctx_param_dict, (tuple, list)) else ()
        if len(pair) != 2 or not isinstance(pair[0], Context) or not hasattr(pair[1], "items"):
            raise TypeError(
                f"{where} is {type(ctx_param_dict).__name__}, wanted (Context, dict of Variables)"
            )
        for key, v in pair[1].items():
            if not isinstance(v, Variable):
                raise TypeError(f"{where}: {key!r} is {type(v).__name__}, wanted nnl.Variable")
        self._registered.append((pair[0], dict(pair[1])))

    def remove_context_parameters(self, ctx_keys: tuple[Context, Sequence[str]]) -> None:
        """Forget registered parameters by name.

        Raises:
            ValueError: A name is not registered.
        """
        for key in ctx_keys[1]:
            holders = [p for _, p in self._registered if key in p]
            if not holders:
                raise ValueError(f"remove_context_parameters: {key!r} is not registered")
            for p in holders:
                del p[key]

    def clear_context_parameters(self) -> None:
        """Forget all registered parameters."""
        self._registered.clear()

    @checked
    def allreduce(self, division: bool = False, inplace: bool = False) -> None:
        """Sum the gradients of the registered parameters over the ranks."""
        grads = [v.grad for _, params in self._registered for v in params.values()]
        if not grads:
            raise ValueError("allreduce: no parameters, call add_context_and_parameters first")
        self.all_reduce(grads, division, inplace)

    # ---- collectives ----

    @checked
    def all_reduce(
        self, data: Any, division: bool = False, inplace: bool = False, group: str = "world"
    ) -> None:
        """Replace each array by its sum over the ranks of a group.

        An array that is lazily zero on every rank stays so: solvers skip it.

        Args:
            data: NdArray or list of them.
            division: Divide by the number of ranks.
            inplace: True exchanges the arrays one by one instead of packing them: less memory,
                slower.
            group: Name of a group.
        Raises:
            TypeError: data is not an NdArray, or of a dtype that cannot be summed or divided.
            ValueError: There is no such group, or this rank is not in it.
            CommunicatorError: The ranks do not agree.
        """
        arrays, g = self._checked("all_reduce", "data", data, group, division)
        if not STATE.interpreter.has_values:
            record_all_reduce(self, arrays, division, group)
            return
        for some in [[nd] for nd in arrays] if inplace else [arrays]:
            self._sum("all_reduce", g, some, division, None)

    @checked
    def reduce(
        self,
        data: Any,
        dst: int,
        division: bool = False,
        inplace: bool = False,
        group: str = "world",
    ) -> None:
        """As all_reduce, but only rank `dst` gets the sum; the others keep what they have."""
        arrays, g = self._checked("reduce", "data", data, group, division)
        self._now("reduce")
        place = self._place("reduce", "dst", dst, g)
        for some in [[nd] for nd in arrays] if inplace else [arrays]:
            self._sum("reduce", g, some, division, place)

    @checked
    def bcast(self, data: Any, src: int, inplace: bool = False, group: str = "world") -> None:
        """Copy the arrays of rank `src`, a rank of the world, to all ranks of the group."""
        arrays, g = self._checked("bcast", "data", data, group)
        self._now("bcast")
        place = self._place("bcast", "src", src, g)
        for some in [[nd] for nd in arrays] if inplace else [arrays]:
            self._agree("bcast", g, f"{self._describe(some)}, src={src}")
            for bufs in self._buffers(some):
                g.main.bcast(bufs, place)
            self._write_back()

    @checked
    def reduce_scatter(
        self, ndarray_list: Any, ndarray: NdArray, division: bool = False, group: str = "world"
    ) -> None:
        """Give the k-th rank the sum over the ranks of the k-th array.

        Args:
            ndarray_list: One array per rank of the group.
            ndarray: Where this rank's sum is written, of the same shape and dtype.
        Raises:
            ShapeError: The arrays differ. ValueError: their number is not that of the ranks.
        """
        call = "reduce_scatter"
        arrays, g = self._checked(call, "ndarray_list", ndarray_list, group, division)
        (out,), _ = self._checked(call, "ndarray", ndarray, group)
        self._alike(call, "ndarray_list", arrays, "ndarray", out, g)
        self._agree(call, g, f"{self._describe(arrays)}, division={division}")
        bufs = [self._buffer(nd) for nd in arrays]
        g.main.reduce_scatter(bufs, self._buffer(out), len(g.ranks) if division else 1)
        self._write_back()

    def all_gather(self, ndarray: NdArray, ndarray_list: Any, group: str = "world") -> None:
        """Give every rank the arrays of all ranks.

        Args:
            ndarray: This rank's array.
            ndarray_list: One array per rank of the group, of the same shape and dtype.
        Raises:
            ShapeError: The arrays differ. ValueError: their number is not that of the ranks.
        """
        call = "all_gather"
        outs, g = self._checked(call, "ndarray_list", ndarray_list, group)
        (own,), _ = self._checked(call, "ndarray", ndarray, group)
        self._alike(call, "ndarray_list", outs, "ndarray", own, g)
        self._agree(call, g, self._describe([own]))
        g.main.all_gather(self._buffer(own), [self._buffer(nd) for nd in outs])
        self._write_back()

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self._now("barrier")
        self.meet("barrier()")

    def meet(self, call: str, extra: bytes = b"", group: str = "world") -> list[bytes]:
        """Wait until all ranks of a group are at the same call; what each has given, by rank.

        Raises:
            CommunicatorError: A rank is at another call, which is named, has died or does not come.
        """
        return self._group(call, group).main.agree(f"{call} in group {group!r}", extra)

    def all_reduce_callback(
        self,
        data: Any,
        pack_size: int,
        division: bool = False,
        group: str = "world",
        scale_grad: float = 1.0,
        keep_dtype: bool = False,
    ) -> CommunicatorBackwardCallback:
        """What backward(communicator_callbacks=...) calls to all_reduce gradients as they come.

        Args:
            data: NdArray or list of them: the gradients.
            pack_size: Elements that are collected before they are reduced together.
            division: Divide by the number of ranks.
            group: Name of a group.
            scale_grad: Multiply by this before, to take back a loss scale for example.
            keep_dtype: Ignored: dtypes are always kept.
        Raises:
            ValueError: pack_size is less than 1. Else as all_reduce.
        """
        call = "all_reduce_callback"
        arrays, g = self._checked(call, "data", data, group, division)
        if pack_size < 1:
            raise ValueError(f"{call}: pack_size is {pack_size}, wanted a number of elements >= 1")
        key = (*map(id, arrays), pack_size, division, group, scale_grad)
        found = self._callbacks.pop(key, None)
        if found is None:  # the callback keeps its arrays, so that their ids stay theirs
            found = CommunicatorBackwardCallback(
                self, g, arrays, int(pack_size), bool(division), float(scale_grad)
            )
            while len(self._callbacks) >= 8:  # each owns memory for all its gradients
                self._callbacks.pop(next(iter(self._callbacks)))
        self._callbacks[key] = found
        return found

    # ---- what they share ----

    def _group(self, call: str, group: str) -> Group:
        if not self._groups:
            raise ValueError(f"{call}: the communicator is not connected, call init() first")
        found = self._groups.get(group) if isinstance(group, str) else None
        if found is None:
            raise ValueError(f"{call}: group is {group!r}, known are {sorted(self._groups)}")
        if self.rank not in found.ranks:
            raise ValueError(
                f"{call}: rank {self.rank} is not in group {group!r}, which has the ranks "
                f"{list(found.ranks)}"
            )
        return found

    def _checked(
        self, call: str, argument: str, data: Any, group: str, division: bool = False
    ) -> tuple[list[NdArray], Group]:
        """The arrays as a list, and the group."""
        self._copies.clear()  # of a call that has failed
        arrays = list(data) if isinstance(data, (list, tuple)) else [data]
        for i, nd in enumerate(arrays):
            where = f"{call}: {argument}[{i}]" if nd is not data else f"{call}: {argument}"
            if not isinstance(nd, NdArray):
                hint = ": use its .data or .grad" if isinstance(nd, Variable) else ""
                raise TypeError(f"{where} is {type(nd).__name__}, wanted nnl.NdArray{hint}")
            dtype = nd.spec.dtype
            if dtype.kind not in KINDS and not nd.spec.is_float:
                raise TypeError(f"{where} is {nd.spec}, wanted integers or floating point")
            if division and not nd.spec.is_float:
                raise TypeError(f"{where} is {nd.spec}, wanted floating point for division=True")
        return arrays, self._group(call, group)

    def _now(self, call: str) -> None:
        if not STATE.interpreter.has_values:
            raise NotImplementedError(
                f"{call}: nnl.compile is recording and only all_reduce can be part of a plan; "
                f"call {call} outside of the compiled function"
            )

    def _place(self, call: str, argument: str, rank: int, g: Group) -> int:
        if rank not in g.ranks:
            raise ValueError(
                f"{call}: {argument} is {rank!r}, wanted one of the ranks {list(g.ranks)} of "
                f"group {g.name!r}"
            )
        return g.ranks.index(rank)

    def _alike(
        self, call: str, many: str, arrays: list[NdArray], one: str, single: NdArray, g: Group
    ) -> None:
        self._now(call)
        if len(arrays) != len(g.ranks):
            raise ValueError(
                f"{call}: {many} has {len(arrays)} arrays, wanted one for each of the "
                f"{len(g.ranks)} ranks of group {g.name!r}"
            )
        for i, nd in enumerate(arrays):
            if nd.spec is not single.spec:
                raise ShapeError(f"{call}: {many}[{i}] is {nd.spec}, but {one} is {single.spec}")

    def _describe(self, arrays: Sequence[NdArray]) -> str:
        """The specs in a few words; two lists have the same words only if they are the same."""
        specs = tuple([nd.spec for nd in arrays])
        text = self._texts.get(specs)
        if text is None:
            text = describe(specs)
            if len(self._texts) >= _TEXTS_LIMIT:
                self._texts.clear()
            self._texts[specs] = text
        return text

    def _agree(self, call: str, g: Group, arguments: str, extra: bytes = b"") -> list[bytes]:
        return g.main.agree(f"{call}({arguments}) in group {g.name!r}", extra)

    def _sum(
        self, call: str, g: Group, arrays: list[NdArray], division: bool, dst: int | None
    ) -> None:
        divisor = len(g.ranks) if division else 1
        # An array may lie in an order that the host's kernels like. Where it does on all ranks, it
        # stays so.
        orders = ("fill", self.space, *(sorted(REORDERED) if self.space == "host" else ()))
        lies = bytes([self._lies(nd, orders) for nd in arrays])
        text = f"{self._describe(arrays)}, division={bool(division)}"
        text += "" if dst is None else f", dst={g.ranks[dst]}"
        answers = self._agree(call, g, text, lies)
        common = [k[0] if len({*k}) == 1 else 1 for k in zip(*answers, strict=True)]
        written = [(nd, orders[k]) for nd, k in zip(arrays, common, strict=True) if k]
        for bufs in self._buffers(*zip(*written, strict=True)) if written else ():
            g.main.sum(bufs, divisor, dst)
        self._write_back()

    def _lies(self, nd: NdArray, orders: Sequence[str]) -> int:
        """In which order an array lies, by number; 0 is lazily zero, 1 plain."""
        if nd.zeroing:
            return 0
        return next((k for k, space in enumerate(orders) if k and space in nd.bufs), 1)

    def _buffer(self, nd: NdArray, space: str = "") -> Any:
        """The buffer of an array, about to be read and written, in one dimension."""
        space = space or self.space
        buf = nd.touch(space)
        if not buf.flags.c_contiguous:  # a column of another library's array, say, which shares it
            copy = buf.copy(order="C")
            self._copies.append((buf, copy))
            buf = copy
        return buf.reshape(-1)

    def _write_back(self) -> None:
        """Give arrays that are not contiguous what their copies have got."""
        for buf, copy in self._copies:
            buf[...] = copy
        self._copies.clear()

    def _buffers(self, arrays: Sequence[NdArray], spaces: Sequence[str] = ()) -> list[list[Any]]:
        """The buffers of arrays, those of one dtype together."""
        found: dict[Any, list[Any]] = {}
        for nd, space in zip_longest(arrays, spaces, fillvalue=""):
            found.setdefault(nd.spec.dtype, []).append(self._buffer(nd, space))
        return list(found.values())


__all__ = ["Communicator", "CommunicatorError", "Group"]
