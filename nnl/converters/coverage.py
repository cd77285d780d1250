# SPDX-License-Identifier: Apache-2.0
"""Which functions a target can say: found by lowering the samples that definitions give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nnl.converters.networks.lowering import CannotLower, Target, lower
from nnl.converters.networks.model import Network
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS, Op
from nnl.core.settings.context import using
from nnl.ext import numpy as reference


def coverage(target: Target) -> dict[str, tuple[int, int]]:
    """How many samples of each of NNabla's functions a target can say, and of how many."""
    found = {}
    for op in OPS.values():
        if op.nnp is not None:
            said = [any(_is_said(network, target) for network in ways) for ways in _samples(op)]
            found[op.name] = sum(said), len(said)
    return found


def types_said(target: Target) -> set[str]:
    """Types of the functions that a target can say, if not with all arguments."""
    types = {name: op.nnp for name, op in OPS.items()}
    return {t for name, (n, _) in coverage(target).items() if n and (t := types[name]) is not None}


def _samples(op: Op) -> Iterator[list[Network]]:
    """Each sample as a network of all its inputs, and as one with weights, which are constants."""
    for sample in op.attrs_class.samples(np.random.default_rng(0)):
        with using(auto_forward=False, target=reference.context().target):
            xs = [None if a is None else _variable(a) for a in sample.inputs]
            y = op(*xs, **sample.attrs)
        outputs = {f"y{i}": v for i, v in enumerate(y if isinstance(y, tuple) else (y,))}
        inputs = {f"x{i}": v for i, v in enumerate(xs) if v is not None}
        if all(v.size for v in (*inputs.values(), *outputs.values())):
            first = dict(list(inputs.items())[:1])
            yield [Network(op.name, some, outputs) for some in (inputs, first)]


def _variable(a: Any) -> Variable:
    array = np.asarray(a)
    return Variable.from_numpy_array(array.astype("f") if array.dtype.kind == "f" else array)


def _is_said(network: Network, target: Target) -> bool:
    try:
        lower(network, target)
    except CannotLower:
        return False
    return True
