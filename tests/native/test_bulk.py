# SPDX-License-Identifier: Apache-2.0
"""Loops over the arrays of a step in C++ do what those of nnl/core/arrays/bulk.py do."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from mmap import mmap
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays import bulk
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.memory_record import PLAIN
from nnl.core.graph.node import capture
from tests.native.kernels import require_library


def array(*spaces: str, version: bool = True, **said: Any) -> NdArray:
    """An array that has a buffer in each of these spaces; its record says something."""
    nd = NdArray.unwritten(NdArray(2).spec)
    nd.bufs = {space: np.ones(2, np.float32) for space in spaces}
    record = nd.lasting_record()
    record.version *= version
    for name, value in said.items():
        setattr(record, name, value)
    return nd


def made() -> list[NdArray]:
    return [
        array("host", fill=0, early=True),
        array("host", version=False),
        array("host", work=made),
        array("host", own=made),
        array("host", views=made),
        array("host", "other"),
        array("other"),
        array(),
    ]


class Entry:
    """What a solver knows of a parameter."""

    def __init__(self, grad: NdArray | None, *inputs: Any) -> None:
        self.variable, self.inputs = nn.Variable((2,)), inputs
        if grad is not None:
            self.variable.edge.own_grad = grad


def both(f: Callable[[Any, list[NdArray]], Any]) -> None:
    """What a function of loops and arrays gives is the same with both loops."""
    require_library()
    assert f(bulk, made()) == f(bulk.BULK, made())


def at(x: Any, among: list[Any]) -> int:
    """Where an object is in a list."""
    return [id(y) for y in among].index(id(x))


def said(nd: NdArray) -> tuple[Any, ...]:
    r = nd.record
    seen = r.fill, r.cleared, r.early, r.own, r.views, r.work, r.number
    return (*seen, sorted(nd.bufs))


def test_arrays_that_are_written_are_renewed() -> None:
    def f(loops: Any, arrays: list[NdArray]) -> Any:
        versions = [nd.record.version for nd in arrays]
        pairs = [*[(nd, "host") for nd in arrays], (array("other"), "other")]
        others = loops.renewed(pairs, "host")
        changed = [nd.record.version != v for nd, v in zip(arrays, versions, strict=True)]
        assert changed == [True, *[False] * 7] and PLAIN.version == 0
        return [at(pair, pairs) for pair in others], [said(nd) for nd in arrays]

    both(f)


def test_buffers_that_are_not_those_of_slots_are_found() -> None:
    def f(loops: Any, arrays: list[NdArray]) -> Any:
        slots = [None, *[nd.bufs.get("host") for nd in arrays]]
        slots[2] = np.ones(2, np.float32)
        found = loops.moved(list(enumerate(arrays, 1)), slots, "host")
        return [(slot, nd is arrays[slot - 1]) for slot, nd in found]

    both(f)


def test_arrays_of_other_memory_are_found() -> None:
    def f(loops: Any, arrays: list[NdArray]) -> Any:
        others = made()
        others[1].become(arrays[1])
        found = loops.unlike(arrays, others[:6])
        return [(at(a, arrays), at(b, others)) for a, b in found]

    both(f)


def test_arrays_become_the_memory_of_others() -> None:
    def f(loops: Any, arrays: list[NdArray]) -> Any:
        others = [array("there"), array("there", version=False), *made()]
        mine = [arrays[0], arrays[1], *arrays[3:]]  # not the one that has work
        loops.become(mine, others)
        assert [nd.bufs for nd in mine] == [nd.bufs for nd in others[: len(mine)]]
        assert [nd.record for nd in mine] == [nd.record for nd in others[: len(mine)]]
        return [said(nd) for nd in mine]

    both(f)


def test_references_are_counted_alike_before_and_after() -> None:
    def f(loops: Any, arrays: list[NdArray]) -> Any:
        alone = loops.references(arrays, [0, 3, 2])
        kept = arrays[3], arrays[1], [arrays[3]]
        more = loops.references(arrays, [0, 3, 2])
        return [n - m for n, m in zip(more, alone, strict=True)], len(kept)

    both(f)


def test_arrays_stay_as_they_were_seen_until_somebody_holds_or_writes_them() -> None:
    def f(loops: Any, arrays: list[NdArray]) -> Any:
        a, b = arrays[0], arrays[3]
        given, found = {5: a, 2: b}, []

        def ask(holders: Any) -> None:
            found.append(loops.unchanged(given, seen, "host", Counter(holders)))
            found.extend(loops.is_held(nd, "host", Counter(holders)) for nd in given.values())

        seen = {5: a.record.version}
        ask({})
        seen[2] = b.record.version
        ask({})
        buf = b.bufs["host"]
        ask({})
        ask({id(buf): 1})
        del buf
        ask({})
        a.bufs["host"] = np.ones(4, np.float32)[1:3]
        ask({})
        a.bufs["host"] = np.ndarray(2, np.float32, buffer=mmap(-1, 8))
        ask({})
        a.record.renew(PLAIN)
        ask({})
        ask_nothing = loops.unchanged({}, {}, "host", {})
        return found, ask_nothing

    both(f)
    found, nothing = f(bulk, made())
    assert found[::3] == [False, True, False, True, True, False, True, False]
    assert [x or y for x, y in zip(found[1::3], found[2::3], strict=True)] == [
        False, False, True, False, False, True, False, False,
    ]  # fmt: skip
    assert nothing


def test_counts_of_none_are_not_there() -> None:
    def f(loops: Any, arrays: list[NdArray]) -> Any:
        counts = Counter({2: 1, 3: 1})
        for keys, more in (([1, 2, 2], 1), ([3, 1], -1), ([], 5)):
            loops.count(counts, keys, more)
        return dict(counts)

    both(f)


def test_arrays_get_their_buffers_back() -> None:
    def f(loops: Any, arrays: list[NdArray]) -> Any:
        for work in (f, None):
            loops.give_back(arrays, {-3: {"there": 1}, -2: {}}, work)
        loops.give_back([], {}, None)
        return [said(nd) for nd in arrays]

    both(f)


def test_arrays_are_handed_over_to_what_runs() -> None:
    def f(loops: Any, arrays: list[NdArray]) -> Any:
        overwritten, bufs = arrays[:2], [dict(nd.bufs) for nd in arrays]
        arrays[3].record.work = made
        live, taken = {0: arrays[0], 1: arrays[2]}, {7: (3, arrays[3]), 8: (4, arrays[1])}
        before = loops.hand_over(arrays[4:], live, taken, {-3: 0, -4: 0}, both)
        assert before == {-3: bufs[5], -4: bufs[6]}
        assert [nd for nd in arrays if nd.record.work is not both] == overwritten
        handed = [said(nd) for nd in arrays]
        loops.put_back(arrays[4:], before)
        assert [dict(nd.bufs) for nd in arrays] == bufs
        return handed

    both(f)


def test_work_goes_on() -> None:
    def f(loops: Any, arrays: list[NdArray]) -> Any:
        then = {id(arrays[2].record): "next", id(arrays[0].record): "other"}
        arrays[5].record.work = made
        loops.go_on(arrays, made, then)
        return [said(nd) for nd in arrays]

    both(f)


def test_arrays_that_somebody_has_are_living() -> None:
    def f(loops: Any, arrays: list[NdArray]) -> Any:
        arrays.insert(1, None)  # type: ignore[arg-type]
        kept, shared = arrays[3], NdArray(2)
        shared.become(arrays[5])
        found = loops.living(arrays)
        assert found[3] is kept
        return sorted(found)

    both(f)


def test_values_that_were_put_off_arrive() -> None:
    def f(loops: Any, arrays: list[NdArray]) -> Any:
        live = {0: arrays[2], 3: arrays[7], 5: arrays[1]}
        live[3].record.work = live[0].record.work
        numbers = {3: arrays[0], 1: arrays[3], 2: arrays[4], 4: arrays[5]}
        taken = {id(nd): (n, nd) for n, nd in numbers.items()}
        again = array("host", work=made)
        taken[id(again)] = 1, again
        whole = [np.full(2, i, np.float32) for i in range(4)]
        whole[2] = np.arange(4, dtype=np.float32)[:2]
        values = {i: ("host", buf) for i, buf in enumerate(whole)}
        own = arrays[3].record.own = np.zeros(2, np.float32)
        loops.publish(values, live, taken, {id(live[0].record): "next"})
        every = [*arrays, again]
        bufs = [nd.bufs.get("host") for nd in every]
        same = [next((i for i, w in enumerate(whole) if w is buf), None) for buf in bufs]
        assert bufs[3] is own and own[0] == 1
        arrays[3].record.own = None
        return same, [None if b is None else b.tolist() for b in bufs], [said(nd) for nd in every]

    both(f)


def test_gradients_become_zero_lazily() -> None:
    def f(loops: Any, arrays: list[NdArray]) -> Any:
        own = arrays[3].record.own = arrays[3].bufs["host"]

        class Work:
            let_go_of: list[NdArray] = []

            def let_go(self, nd: NdArray) -> None:
                self.let_go_of.append(nd)

        arrays[2].record.work = work = Work()
        constant = NdArray.unwritten(arrays[0].spec)
        every = [*arrays, constant]
        versions = [nd.record.version for nd in every]
        loops.zero_gradients([Entry(nd) for nd in every])
        assert (
            work.let_go_of == [arrays[2]] and constant.record is nn.core.arrays.memory_record.ZERO
        )
        assert not own.any()
        changed = [nd.record.version != v for nd, v in zip(every, versions, strict=True)]
        arrays[2].record.work = arrays[3].record.own = None
        return changed, [said(nd) for nd in every]

    both(f)


def test_gradients_that_are_not_zero_are_to_update() -> None:
    def f(loops: Any, arrays: list[NdArray]) -> Any:
        zero, x = NdArray(2), nn.Variable((2,))
        entries = [Entry(nd, x, None) for nd in arrays]
        entries += [Entry(zero, x), Entry(None), Entry(arrays[0])]
        entries[-1].variable = x * 2  # of which one may hand in a result
        entries[-1].variable.grad.data = 1
        found = []
        for w, g, *rest in loops.to_update(entries):
            at = [e.variable.data for e in entries].index(w)
            assert g is entries[at].variable.grad
            found.append((at, [None if d is None else d is x.data for d in rest]))
        return found

    both(f)


def test_graphs_are_captured() -> None:
    a = nn.Variable((2, 3), need_grad=True)
    with nn.auto_forward():
        h = F.tanh(a)
        y = F.concatenate(h * a, h, a, axis=1)
        z = F.sink(h, a)
        kept = F.relu(h)
        kept.persistent = True
        w = F.exp(kept)
    still = F.exp(a)
    graphs = {"y": y, "z": z, "w": w, "still": still, "a": a}

    def f(loops: Any, _: Any) -> Any:
        seen = {}
        for name, v in graphs.items():
            nodes = loops.captured([v.edge, None, h.edge])
            seen[name] = [n.op.name for n in nodes], nodes, loops.plain(nodes)
        return seen

    both(f)
    nodes = {name: (ops, plain) for name, (ops, _, plain) in f(bulk, None).items()}
    assert nodes["y"] == (["tanh", "mul2", "concatenate"], True)
    assert not nodes["z"][1] and not nodes["w"][1] and not nodes["still"][1] and nodes["a"][1]


def test_the_engine_uses_them() -> None:
    lib = require_library()
    assert nn.core.arrays.bulk.BULK.living is lib.living


def test_backward_passes_have_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    require_library()
    backward = importlib.import_module("nnl.coexec.deferring.backward")
    at = spec_from_file_location("as_written", backward.__file__)
    assert at is not None and at.loader is not None
    as_written = module_from_spec(at)
    monkeypatch.setitem(sys.modules, "as_written", as_written)
    at.loader.exec_module(as_written)
    with nn.auto_forward():  # the engine's own key comes with the first call that is put off
        step = nn.coexecute(lambda x: F.sum(F.batch_matmul(x, x)))
        for _ in range(20):  # large enough to be worth learning
            step(nn.Variable((256, 256)))
    a, b = nn.Variable((2, 3), need_grad=True), nn.Variable((2, 3))
    with nn.auto_forward():
        y = F.sum(F.concatenate(F.tanh(a) * b, F.tanh(a), a, axis=1) ** 2)
    nodes = capture([y.edge])
    deferred = nodes[0].saved[0].lasting_record().work = object()  # it knows what one node keeps
    found = []
    for key in (as_written.Graph.key, backward.Graph.key):
        graph = backward.Graph(nodes, [])
        found.append(
            (key(graph, deferred), list(map(id, graph.leaves)), list(map(id, graph.arrays)))
        )
    nodes[0].saved[0].record.work = None
    assert found[0] == found[1] and hash(found[1][0])
    assert not inspect.isfunction(backward.Graph.key)
