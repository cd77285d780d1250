# SPDX-License-Identifier: Apache-2.0
"""What every rank of a job checks; the oracles are sums over what all ranks are known to hold."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import nnl.deep500 as d5
from nnl.deep500 import optimizers as O
from nnl.deep500.distributed import (
    Communication,
    ConsistentDecentralized,
    ConsistentNeighbors,
    ConsistentParameterServer,
    DistributedOptimizer,
    InconsistentParameterServer,
    NativeConsistentDecentralized,
    NativeConsistentNeighbors,
    NativeConsistentParameterServer,
)
from nnl.deep500.distributed import operators as graph
from tests.deep500 import models


def held(rank: int) -> Any:
    """What a rank holds."""
    return np.random.default_rng(rank).normal(size=(3, 2)).astype(np.float32)


def neighbors(rank: int, size: int) -> list[int]:
    """A rank and its neighbours on the ring, each once."""
    return sorted({(rank + d) % size for d in (-1, 0, 1)})


def same(x: Any, y: Any) -> None:
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def messages(c: Communication) -> None:
    all_of = np.stack([held(r) for r in range(c.size)])
    x = held(c.rank)
    same(c.sync_all(x), all_of.sum(0))
    same(c.sync_all(x, mean=True), all_of.mean(0))
    same(c.sync_all_with_root(x), held(0))
    same(c.all_gather(x), all_of)
    rows = np.arange(c.size, dtype=np.float32)[:, None] + c.rank
    same(c.reduce_scatter(rows), [c.size * c.rank + sum(range(c.size))])
    gathered = c.gather_at_ps(x)
    assert (gathered is None) == (c.rank != 0)
    if gathered is not None:
        same(np.stack(gathered), all_of)  # the root's own among them
    same(c.reduce_at_root(x, mean=True), all_of.mean(0) if c.is_root else 0 * x)
    around = neighbors(c.rank, c.size)
    same(c.reduce_from_neighbors(x), all_of[around].mean(0))
    same(c.reduce_from_neighbors(x, mean=False), all_of[around].sum(0))
    assert x.tobytes() == held(c.rank).tobytes()  # nothing was written to
    if c.size == 1:
        return
    if c.is_root:
        for _ in range(c.size - 1):
            value, tag, rank = c.wait_for_any_slave()
            assert tag == 10 + rank
            same(value, held(rank))
            c.send_to_specific_slave(value * 2, rank, tag)
    else:
        c.send_to_root(x, 10 + c.rank)
        value, tag = c.wait_for_root()
        assert tag == 10 + c.rank
        same(value, 2 * x)


def built(backend: str = "nnl", seed: int = 0) -> Any:
    net = d5.network(models.lenet(seed), backend)
    net.add_loss("scores")
    return net


def parts(c: Communication, steps: int = 3) -> tuple[list[Any], list[Any]]:
    """Batches of this rank, and the large batches of all ranks together."""
    mine, whole = [], []
    for step in range(steps):
        each = [models.digits(4, 100 * step + r) for r in range(c.size)]
        mine.append(each[c.rank])
        whole.append({k: np.concatenate([e[k] for e in each]) for k in each[0]})
    return mine, whole


def equals_a_large_batch(c: Communication, make: Any, alone: Any, backend: str) -> None:
    """Ranks begin with other parameters, and train to those of one process with all the data."""
    mine, whole = parts(c)
    one = alone(built(backend))
    many = make(alone(built(backend, seed=c.rank)))
    for a, b in zip(whole, mine, strict=True):
        one.train(a)
        many.train(b)
    names = one.network.parameters()
    for x, y in zip(one.network.fetch(names), many.network.fetch(names), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5)
        same(c.sync_all_with_root(y), y)


def equals_the_reference(c: Communication, native: Any, reference: Any, backend: str) -> None:
    """A native scheme trains every rank as the readable one does, from the root's parameters."""
    mine, _ = parts(c)
    inside = native(O.NativeMomentum(built(backend, seed=c.rank), lr=0.1), c)
    outside = reference(O.Momentum(built(backend, seed=c.rank), lr=0.1), c)
    names = outside.network.parameters()
    start = outside.network.fetch(names)
    for batch in mine:
        same(inside.train(batch)["loss"], outside.train(batch)["loss"])
    ends = zip(inside.network.fetch(names), outside.network.fetch(names), start, strict=True)
    for x, y, before in ends:
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5)
        assert np.abs(y - before).max() > 1e-3  # they have trained


def neighbors_average(c: Communication, make: Any, alone: Any) -> None:
    """One step by hand: the gradients of this rank and its neighbours at the root's parameters."""
    batches = [models.digits(4, r) for r in range(c.size)]
    net = built()
    names = net.parameters()
    start, grads = net.fetch(names), []
    for batch in batches:
        net.inference_and_backprop(batch)
        grads.append(net.fetch([g for _, g in net.gradient()]))
    many = make(alone(built(seed=c.rank)))
    many.train(batches[c.rank])
    around = neighbors(c.rank, c.size)
    for i, got in enumerate(many.network.fetch(names)):
        mean = sum(grads[r][i] for r in around) / len(around)
        np.testing.assert_allclose(got, start[i] - 0.1 * mean, rtol=1e-3, atol=1e-5)


class Slow(DistributedOptimizer):
    """A scheme of one's own: train() over the Communication. Only rank 0's gradients count."""

    def train(self, inputs):
        outs = self.network.inference_and_backprop(inputs)
        for name, gradient in self.network.gradient():
            grad = self.communication.sync_all_with_root(self.network.fetch([gradient])[0])
            self.base.update(name, grad)
        return outs


def a_scheme_of_ones_own(c: Communication) -> None:
    mine, _ = parts(c)
    one, many = O.Momentum(built()), Slow(O.Momentum(built(seed=c.rank)), c)
    for step, batch in enumerate(mine):
        one.train(models.digits(4, 100 * step))
        many.train(batch)
    names = one.network.parameters()
    for x, y in zip(one.network.fetch(names), many.network.fetch(names), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def nobody_waits_for_another(c: Communication) -> None:
    """Rank 1 pauses in every step; the others are done with theirs before it is."""
    many = InconsistentParameterServer(O.GradientDescent(built(), 0.05), c)
    losses, steps = [], 12

    def training() -> float:
        for _ in range(steps):
            if c.rank == 1 and c.size > 2:
                time.sleep(0.06)
            losses.append(float(many.train(models.digits(8, 5))["loss"]))
        return time.perf_counter()

    done = many.run(training)
    if c.size > 1 and c.is_root:
        assert sorted(done) == sorted([*range(1, c.size)] * steps)
        if c.size > 2:
            assert done[-3:] == [1, 1, 1]  # all others had finished
    else:
        assert losses[-1] < losses[0] - 0.1


def operators_in_the_graph(c: Communication, backends: tuple[str, ...]) -> None:
    """They are linear: over all ranks, <y, g> of outputs equals <x, gx> of inputs."""
    rng = np.random.default_rng(c.rank)
    made = [
        (cls("x", outputs="y"), (3, 2))
        for cls in (
            *(graph.AllReduce, graph.AllReduceMean, graph.Broadcast, graph.Reduce),
            *(graph.ReduceToMean, graph.AllGather, graph.Gather),
        )
    ]
    made.append((graph.ReduceScatter("x", outputs="y"), (c.size, 2)))
    if c.size > 1 and c.rank < 2:
        cls, other = (graph.Send, {"dest": 1}) if c.rank == 0 else (graph.Recv, {"source": 0})
        made.append((cls("x", outputs="y", **other), (2,)))
    for op, shape in made:
        x = rng.normal(size=shape).astype(np.float32)
        y = op.computed([x])
        assert y[0].shape == op.output_shapes(shape)[0]
        g = rng.normal(size=y[0].shape).astype(np.float32)
        (gx,) = op.gradients([x], y, [g])
        alone = isinstance(op, (graph.Send, graph.Recv))
        total = [np.sum(y[0] * g), np.sum(x * gx)]
        if alone:
            other = 1 - c.rank
            c.send(np.array(total), other, 77)
            total = total + c.receive(other, 77)
        else:
            total = c.sync_all(np.array(total, np.float64))
        np.testing.assert_allclose(total[0], total[1], rtol=1e-3, err_msg=type(op).__name__)
    for backend in backends:
        net = d5.network(models.linear(), backend)
        net.add_node(graph.AllReduceMean("y", outputs="m"))
        net.add_loss("m", "t", "squared_error")
        x = held(c.rank).T.copy()
        t = np.zeros((2, 2), np.float32)
        outs = net.inference_and_backprop({"x": x, "t": t})
        mean = np.mean([held(r).T for r in range(c.size)], 0)
        w = net.fetch(["w"])[0]
        same(outs["loss"], ((mean @ w) ** 2).mean())
        # d loss / d w of this rank, where every rank has the same loss
        same(net.fetch(["w@gradient"])[0], x.T @ (2 * mean @ w / 4))


RULES = {"momentum": {"lr": 0.1}, "nesterov": {"lr": 0.1}, "adam": {}}
PAIRS = (
    (NativeConsistentDecentralized, ConsistentDecentralized),
    (NativeConsistentParameterServer, ConsistentParameterServer),
    (NativeConsistentNeighbors, ConsistentNeighbors),
)


def check_native(*backends: str) -> None:
    """The native schemes alone, for a Python that has one more back end."""
    c = Communication()
    for backend in backends:
        for native, reference in PAIRS:
            equals_the_reference(c, native, reference, backend)
    print(f"rank {c.rank} of {c.size} is content")


def check(quick: bool = False) -> None:
    """Everything; or in few seconds what says most."""
    c = Communication()
    torch = [] if quick or d5.backends()["torch"] else ["torch"]
    messages(c)
    for rule, settings in list(RULES.items())[1 if quick else 0 : 2 if quick else None]:

        def alone(net: Any, rule: str = rule, settings: Any = settings) -> Any:
            return O.optimizer(rule, net, **settings)

        for scheme in (ConsistentDecentralized, ConsistentParameterServer):
            equals_a_large_batch(c, lambda b, s=scheme: s(b, c), alone, "nnl")
    for backend in ("nnl", *torch):
        for native in (NativeConsistentDecentralized, NativeConsistentParameterServer):

            def inside(net: Any) -> Any:
                return O.NativeMomentum(net, lr=0.1)

            equals_a_large_batch(c, lambda b, s=native: s(b, c), inside, backend)
        for pair in PAIRS:
            equals_the_reference(c, *pair, backend)
    neighbors_average(c, lambda b: ConsistentNeighbors(b, c), lambda n: O.GradientDescent(n, 0.1))
    neighbors_average(
        c,
        lambda b: NativeConsistentNeighbors(b, c),
        lambda n: O.NativeGradientDescent(n, lr=0.1),
    )
    a_scheme_of_ones_own(c)
    nobody_waits_for_another(c)
    operators_in_the_graph(c, ("reference", "nnl", *torch))
    print(f"rank {c.rank} of {c.size} is content")
