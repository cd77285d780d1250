# SPDX-License-Identifier: Apache-2.0
"""Loops over the arrays of a step in C++ do what those of nnl/core/lists.py do."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core import lists
from nnl.core.array import NdArray
from nnl.core.graph import capture
from nnl.core.record import PLAIN
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


def both(f: Callable[[Any, list[NdArray]], Any]) -> None:
    """What a function of loops and arrays gives is the same with both loops."""
    require_library()
    assert f(lists, made()) == f(lists.LISTS, made())


def at(x: Any, among: list[Any]) -> int:
    """Where an object is in a list."""
    return [id(y) for y in among].index(id(x))


def said(nd: NdArray) -> tuple[Any, ...]:
    r = nd.record
    seen = r.fill, r.cleared, r.early, r.own, r.views, r.work, r.place
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


def test_arrays_get_their_buffers_back() -> None:
    def f(loops: Any, arrays: list[NdArray]) -> Any:
        for work in (f, None):
            loops.give_back(arrays, {-3: {"there": 1}, -2: {}}, work)
        loops.give_back([], {}, None)
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


def test_the_engine_uses_them() -> None:
    lib = require_library()
    assert nn.core.lists.LISTS.living is lib.living


def test_backward_passes_have_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    require_library()
    backward = importlib.import_module("nnl.coexec.backward")
    at = spec_from_file_location("as_written", backward.__file__)
    assert at is not None and at.loader is not None
    as_written = module_from_spec(at)
    monkeypatch.setitem(sys.modules, "as_written", as_written)
    at.loader.exec_module(as_written)
    with nn.auto_forward():  # the engine's own key comes with the first call that is put off
        step = nn.coexecute(lambda x: F.sum(x * 2))
        for _ in range(2):
            step(nn.Variable((2,)))
    a, b = nn.Variable((2, 3), need_grad=True), nn.Variable((2, 3))
    with nn.auto_forward():
        y = F.sum(F.concatenate(F.tanh(a) * b, F.tanh(a), a, axis=1) ** 2)
    nodes = capture([y.edge])
    skeleton = nodes[0].saved[0].lasting_record().work = object()  # it knows what one node keeps
    found = []
    for key in (as_written.Graph.key, backward.Graph.key):
        graph = backward.Graph(nodes, [])
        found.append(
            (key(graph, skeleton), list(map(id, graph.leaves)), list(map(id, graph.arrays)))
        )
    nodes[0].saved[0].record.work = None
    assert found[0] == found[1] and hash(found[1][0])
    assert not inspect.isfunction(backward.Graph.key)
