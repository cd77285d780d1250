# SPDX-License-Identifier: Apache-2.0
"""Runs the graphs that a builder makes for cuDNN on host memory, by their meaning in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.ext.cuda.cudnn.assemble import Declined
from nnl.ext.cuda.cudnn.builders import BUILDERS
from nnl.ext.cuda.cudnn.spec import Work
from nnl.ext.device.registry import Operand
from tests.cuda.evaluate import evaluate_work
from tests.native.kernels import from_channels_last, to_channels_last

WORKSPACE_NOISE = 0x7B  # what the workspace holds before: large numbers in every type


def operand(x: Any, last: bool = False) -> Operand:
    """How an array is announced; channels-last makes a difference from three axes on."""
    return Operand(tuple(x.shape), np.dtype(x.dtype), last and len(x.shape) > 2)


def works(
    name: str, attrs: dict[str, Any], ins: list[Any], outs: list[Any], last: Any = (set(), set())
) -> list[Work]:
    """The ways that a builder has; every one of them valid."""
    found = BUILDERS[name](
        attrs,
        [None if x is None else operand(x, i in last[0]) for i, x in enumerate(ins)],
        [operand(y, o in last[1]) for o, y in enumerate(outs)],
    )
    for work in found:
        work.validate()
        assert hash(work) == hash(work)
    return found


def run(
    work: Work, ins: list[Any], outs: list[Any], last: Any = (set(), set())
) -> list[np.ndarray]:
    """Outputs, in the plain order. Inputs that the work writes to change in place."""
    given = [None if x is None else np.array(x) for x in ins]
    given = [
        to_channels_last(x) if x is not None and i in last[0] and x.ndim > 2 else x
        for i, x in enumerate(given)
    ]
    memory = [np.full(y.size, np.nan, y.dtype) for y in outs]
    _, size = work.scratch()
    workspace = np.full(size, WORKSPACE_NOISE, np.uint8)
    evaluate_work(work, [None if x is None else x.reshape(-1) for x in given], memory, workspace)
    for i, x in enumerate(ins):
        if x is not None:
            turned = i in last[0] and x.ndim > 2
            x[...] = from_channels_last(given[i]) if turned else given[i]
    return [
        from_channels_last(m.reshape(y.shape))
        if o in last[1] and y.ndim > 2
        else m.reshape(y.shape)
        for o, (m, y) in enumerate(zip(memory, outs, strict=True))
    ]


__all__ = ["Declined", "operand", "run", "works"]
