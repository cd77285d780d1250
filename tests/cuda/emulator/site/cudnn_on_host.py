# SPDX-License-Identifier: Apache-2.0
"""Stands in for the front end of cuDNN: numpy computes its graphs, when it is the stream's turn."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from on_stream import bytes_at, enqueue

from nnl.ext.cuda.cudnn.spec import Array, Graph
from tests.cuda.evaluate import evaluate, numpy_type
from tests.cuda.fake_cudnn import FakeFrontEnd, Pygraph


class QueuedGraph(Pygraph):
    """A graph that is computed later, on memory of the device."""

    def execute(self, pack: dict[int, int], workspace: int, handle: Any) -> None:
        assert self.graph is not None
        arrays, places = [], {}
        for a in self.graph.arrays:
            if a.value is not None:  # read now: it becomes a parameter of a launch
                value = ctypes.c_float.from_address(pack[a.uid]).value
                a = Array(a.uid, a.dim, a.stride, a.dtype, value)
            elif not a.virtual:
                places[a.uid] = pack[a.uid], numpy_type(a.dtype), a.extent
            arrays.append(a)
        graph, size = Graph(tuple(arrays), self.graph.nodes), self.get_workspace_size()

        def work() -> None:
            memory = {
                uid: bytes_at(address, dtype.itemsize * extent).view(dtype)
                for uid, (address, dtype, extent) in places.items()
            }
            bytes_at(workspace, size)[:] = 0x5A
            with np.errstate(all="ignore"):
                evaluate(graph, memory)

        enqueue(handle.stream, work)


class FrontEnd(FakeFrontEnd):
    def pygraph(self, **settings: Any) -> Pygraph:
        return QueuedGraph(self, **settings)


_front_end = FrontEnd()


def __getattr__(name: str) -> Any:
    return getattr(_front_end, name)
