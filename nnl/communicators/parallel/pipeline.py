# SPDX-License-Identifier: Apache-2.0
"""Pipeline parallelism: ranks that do some layers each, on one part of a batch after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nnl.communicators.parallel.layout import LaidOut, layout_of
from nnl.communicators.parallel.mesh import Mesh
from nnl.core.arguments.annotations import shown
from nnl.core.arrays.array import NdArray
from nnl.core.graph.variable import Variable
from nnl.core.ops import random as nnl_random
from nnl.core.parameters.parameter import (
    Scope,
    get_parameters,
    parameter_scope,
    pop_parameter,
    set_parameter,
)
from nnl.core.settings.context import using

Stage = Callable[[Variable], Variable]
FORWARD, BACKWARD = "forward", "backward"


def schedule(ranks: int, place: int, batches: int, chunks: int) -> list[tuple[str, int, int]]:
    """What one rank does, in order: (forward or backward, chunk, micro batch).

    One forward, one backward: a rank begins with as many forwards as keep those after it busy, then
    forwards and backwards take turns. Chunk c of rank p is stage c ranks + p.

    Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
        Megatron-LM, arXiv:2104.04473, section 2.2.
    """
    total, turn = batches * chunks, ranks * chunks

    def step(kind: str, k: int) -> tuple[str, int, int]:
        chunk = k % turn // ranks
        chunk = chunk if kind == FORWARD else chunks - 1 - chunk
        return kind, chunk, k // turn * ranks + k % ranks

    first = ranks - place - 1
    first = min(total, first if chunks == 1 else 2 * first + (chunks - 1) * ranks)
    steps = [step(FORWARD, k) for k in range(first)]
    for k in range(total - first):
        steps += [step(FORWARD, first + k), step(BACKWARD, k)]
    return steps + [step(BACKWARD, k) for k in range(total - first, total)]


class _Graph:
    """One copy of a chunk's graph: of one micro batch on its way."""

    def __init__(self, x: Variable, y: Variable, target: Variable | None) -> None:
        self.x, self.y, self.target = x, y, target


class Pipeline:
    """A network cut into stages, of which the ranks of `mesh.pipe` do some each.

    The batch is cut into micro batches. With as many stages as ranks each has one; with a multiple,
    rank p has the stages p, p + ranks and so on (interleaved), which shortens the time at the
    beginning and the end in which ranks wait: a share of
    (ranks - 1) / (chunks * micro_batches + ranks - 1) of a step.

    Args:
        mesh: Its `pipe` says which ranks; data, shard and model go on within each stage.
        stages: Functions of one Variable, with parameters of nnl.parametric_functions by names that
            no other stage uses. See `balanced`.
        loss: (output of the last stage, target) -> the mean over a micro batch, a scalar.
        x: Shape of the whole batch of this rank's data. target: shape of its targets.
        micro_batches: Their number.
        tied: Names of parameters that several stages use; their gradients are summed.

    After this nnl.get_parameters() has the parameters of this rank's stages, with the values that
    one process would have drawn. Give them to a solver, and C.shard the graphs in `outputs`.

    Raises:
        ValueError: The ranks do not divide the stages, micro_batches the batch, or with several
            stages on a rank the ranks the micro batches; a stage uses a parameter of another one.
    Example:
        >>> stages = [lambda h: F.tanh(PF.affine(h, 4, name="ex_p1")),
        ...           lambda h: PF.affine(h, 2, name="ex_p2")]
        >>> pipeline = C.Pipeline(C.Mesh(), stages, lambda y, t: F.mean((y - t) ** 2),
        ...                       x=(4, 3), target=(4, 2), micro_batches=2)
        >>> x, t = np.ones((4, 3)), np.zeros((4, 2))
        >>> loss = pipeline.step(x, t)  # forward and backward
        >>> bool(loss > 0)
        True
    """

    def __init__(
        self,
        mesh: Mesh,
        stages: Sequence[Stage],
        loss: Callable[[Variable, Variable], Variable],
        x: Sequence[int],
        target: Sequence[int],
        micro_batches: int,
        tied: Sequence[str] = (),
    ) -> None:
        self.mesh, self.over, self.loss = mesh, mesh.pipe, loss
        ranks, place = self.over.size, self.over.place
        if not stages or len(stages) % ranks:
            raise ValueError(
                f"Pipeline: {len(stages)} stages, wanted a multiple of the {ranks} ranks of pipe"
            )
        n = micro_batches
        if type(n) is not int or n < 1 or x[0] % n or target[0] != x[0]:
            raise ValueError(
                f"Pipeline: micro_batches is {shown(n)}, wanted a number that divides the batches "
                f"of x {tuple(x)} and target {tuple(target)}"
            )
        self.chunks = len(stages) // ranks
        if self.chunks > 1 and n % ranks:
            raise ValueError(
                f"Pipeline: micro_batches is {n}, wanted a multiple of the {ranks} ranks of pipe "
                f"where each has {self.chunks} stages"
            )
        self.batches, self.stages = n, list(stages)
        self.last = len(stages) - 1
        self.schedule = schedule(ranks, place, n, self.chunks)
        self.targets = (target[0] // n, *target[1:])
        self.specs = [Variable((x[0] // n, *x[1:])).spec]  # of each stage's input
        self.free: list[list[_Graph]] = [[] for _ in range(self.chunks)]
        self.outputs: list[Variable] = []  # of the graphs that there are
        self._own: dict[Any, Any] = {}  # what one chunk gives to another one of this rank
        self._build(set(tied))

    def _build(self, tied: set[str]) -> None:
        """Make a graph of every stage, as one process would, and keep what is this rank's."""
        ranks, place = self.over.size, self.over.place
        before = set(get_parameters(grad_only=False))
        gone: dict[str, int] = {}  # parameters of other ranks, with their stages
        users: dict[str, list[int]] = {name: [] for name in tied}
        for s in range(len(self.stages)):
            known = set(get_parameters(grad_only=False))
            graph = self._graph(s)
            self.specs.append(graph.y.spec)
            now = get_parameters(grad_only=False)
            for name in set(now) - known:
                if name in gone:
                    raise ValueError(
                        f"Pipeline: stage {s} uses the parameter {name!r} of stage {gone[name]}: "
                        "give it another name, or name it in tied="
                    )
            used = {v.data for v in _leaves(graph.y)}
            for name in tied & set(now):
                if now[name].data in used:
                    users[name].append(s)
            if s % ranks == place:
                self._keep(s // ranks, graph)
            else:
                for name in set(now) - known - tied:
                    pop_parameter(name)
                    gone[name] = s
        holders = {name: [s % ranks for s in at] for name, at in users.items()}
        self.tied: dict[str, str] = {}  # with the groups of the ranks that have them, "" elsewhere
        for name in sorted(holders):
            if not holders[name]:
                raise ValueError(f"Pipeline: tied names {name!r}, which no stage uses")
            if len({*holders[name]}) > 1:
                self.tied[name] = self.mesh.some_of_pipe(sorted({*holders[name]}))
            if place not in holders[name]:
                pop_parameter(name)
        for name, v in get_parameters(grad_only=False).items():
            if name not in before:
                again = holders.get(name, [place])[0] != place
                layout = replace(layout_of(v), pipe=self.over, counted=not again)
                set_parameter(name, LaidOut.over(v, layout, v.name))

    def _graph(self, s: int) -> _Graph:
        """A graph of a stage."""
        with using(auto_forward=False):
            x = Variable(self.specs[s].shape, need_grad=s > 0)
            x.data.set_spec(self.specs[s])  # of 16 or 64 bits, by the context
            y, target = self.stages[s](x), None
            if s == self.last:
                target = Variable(self.targets)
                y = self.loss(y, target)
        y.persistent = True
        return _Graph(x, y, target)

    def _keep(self, chunk: int, graph: _Graph) -> None:
        self.free[chunk].append(graph)
        self.outputs.append(graph.y)

    def step(self, x: Any = None, target: Any = None) -> float:
        """Run forward and backward over a batch; gradients are added to those of the parameters.

        Args:
            x: The batch, an array; only read where the first stage is. target: where the last is.
        Returns:
            The mean loss, on all ranks of pipe.
        Raises:
            CommunicatorError: Another rank has other stages, has died or does not come.
        """
        at: dict[tuple[int, int], _Graph] = {}  # of micro batches between forward and backward
        total = 0.0
        for kind, chunk, k in self.schedule:
            s = chunk * self.over.size + self.over.place
            if kind == FORWARD:
                if not self.free[chunk]:
                    self._keep(chunk, self._graph(s))
                at[chunk, k] = graph = self.free[chunk].pop()
                total += self._forward(graph, s, k, x, target)
            else:
                graph = at.pop((chunk, k))
                self._backward(graph, s, k)
                self.free[chunk].append(graph)
        comm = self.over.comm
        for name, group in self.tied.items():
            if group:
                comm.all_reduce(get_parameters()[name].grad, group=group)
        if self.over.size == 1:
            return total / self.batches
        said = comm.meet("Pipeline.step", np.float64(total).tobytes(), group=self.over.group)
        return float(sum(np.frombuffer(b)[0] for b in said)) / self.batches

    def _forward(self, graph: _Graph, s: int, k: int, x: Any, target: Any) -> float:
        if s:
            graph.x.data.write(*self._receive(FORWARD, s, k, graph.x))
        else:
            graph.x.d = _micro(x, k, self.specs[0].shape[0], "x")
        if graph.target is not None:
            graph.target.d = _micro(target, k, self.targets[0], "target")
        graph.y.forward(clear_no_need_grad=True)
        if s == self.last:
            return float(graph.y.data.read("host"))
        self._send(FORWARD, s + 1, k, graph.y.data, graph.y)
        return 0.0

    def _backward(self, graph: _Graph, s: int, k: int) -> None:
        gy: Any = 1 / self.batches
        if s < self.last:
            space, buf = self._receive(BACKWARD, s, k, graph.y)
            gy = NdArray.holding(graph.y.spec, space, buf)
        if s:
            graph.x.grad.fill(0)
        graph.y.backward(gy, clear_buffer=True)
        if s:
            self._send(BACKWARD, s - 1, k, graph.x.grad, graph.x)

    def _send(self, kind: str, to: int, k: int, array: NdArray, like: Variable) -> None:
        comm, rank = self.over.comm, to % self.over.size
        buf = array.read(comm.space).astype(like.spec.dtype, copy=False)  # a leaf's is float32
        if rank == self.over.place:
            self._own[kind, to, k] = buf.copy()
            return
        comm.send(buf, rank, self.over.group, f"{kind} of batch {k} to stage {to}")

    def _receive(self, kind: str, s: int, k: int, like: Variable) -> tuple[str, Any]:
        comm = self.over.comm
        source = (s - 1 if kind == FORWARD else s + 1) % self.over.size
        if source == self.over.place:
            return comm.space, self._own.pop((kind, s, k))
        name = f"{kind} of batch {k} to stage {s}"
        return comm.space, comm.receive(like.spec, source, self.over.group, name)


def _leaves(y: Variable) -> list[Any]:
    from nnl.core.graph.node import capture

    return [v for n in capture([y.edge]) for v in n.inputs if v is not None and v.node is None]


def _micro(array: Any, k: int, size: int, what: str) -> Any:
    if array is None or len(array) <= k * size:
        raise ValueError(
            f"Pipeline.step: {what} has no micro batch {k}, and this rank's stage reads it"
        )
    return array[k * size : (k + 1) * size]


def balanced(layers: Sequence[Stage], stages: int, x: Sequence[int], mesh: Mesh) -> list[Stage]:
    """Stages of neighbouring layers that take about the same time.

    Each layer is run forward and backward on zeros, with parameters that are forgotten. All ranks
    do so, and what rank 0 measures counts.

    Args:
        layers: Functions of one Variable. stages: How many to make of them.
        x: Shape of a micro batch.
    Raises:
        ValueError: There are fewer layers than stages.
    Example:
        >>> layers = [F.tanh, F.relu, F.tanh]
        >>> len(C.balanced(layers, 2, (4, 3), C.Mesh()))
        2
    """
    if len(layers) < stages or stages < 1:
        raise ValueError(f"balanced: {len(layers)} layers, wanted at least the {stages} stages")
    told = NdArray.from_numpy_array(np.array(_times(layers, x)))  # on all: layers may exchange
    if mesh.comm.size > 1:
        mesh.comm.bcast(told, src=0)
    ends = cut(told.data.tolist(), stages)
    return [_in_turn(layers[a:b]) for a, b in zip([0, *ends], [*ends, len(layers)], strict=True)]


def _in_turn(layers: Sequence[Stage]) -> Stage:
    def stage(h: Variable) -> Variable:
        for layer in layers:
            h = layer(h)
        return h

    return stage


def _times(layers: Sequence[Stage], shape: Sequence[int]) -> list[float]:
    """Seconds of forward and backward of each layer: the least of some runs."""
    state, found = nnl_random.get_state(), []
    spare: Scope = type(get_parameters())()  # forgotten at the end
    with parameter_scope("times", spare), using(auto_forward=False):
        for layer in layers:
            x = Variable(shape, need_grad=True)
            y = layer(x)
            x.d = 0
            runs = []
            for _ in range(4):
                start = time.perf_counter()
                y.forward(clear_no_need_grad=True)
                x.grad.fill(0)
                y.backward(clear_buffer=True)
                runs.append(time.perf_counter() - start)
            found.append(min(runs[1:]))
            shape = y.shape
    nnl_random.set_state(state)
    return found


def cut(costs: Sequence[float], parts: int) -> list[int]:
    """Where to cut a list into parts so that the largest sum is as small as possible."""
    sums = np.concatenate([[0.0], np.cumsum(costs)])
    n = len(costs)
    best = [[float("inf")] * (n + 1) for _ in range(parts + 1)]
    came = [[0] * (n + 1) for _ in range(parts + 1)]
    best[0][0] = 0.0
    for k in range(1, parts + 1):
        for end in range(k, n + 1):
            for start in range(k - 1, end):
                most = max(best[k - 1][start], float(sums[end] - sums[start]))
                if most < best[k][end]:
                    best[k][end], came[k][end] = most, start
    ends, at = [], n
    for k in range(parts, 1, -1):
        at = came[k][at]
        ends.append(at)
    return ends[::-1]
