# SPDX-License-Identifier: Apache-2.0
"""Calls for random graphs that are made of the samples of ops: every function can be in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nnl.core.ops.op import OPS, Op, Sample

if TYPE_CHECKING:
    from tests.native.random_graphs import Generator

SAMPLED = [
    op
    for op in OPS.values()
    if op.nnp and op.name != "vat_noise"  # which writes in backward; not all modes run it
]


def a_sample(g: Generator) -> tuple[str, list[Any], dict[str, Any]]:
    """A function with the attributes of one of its samples, of values of the graph where they fit.

    An input with a gradient is a value of the graph that was moved into the neighbourhood of the
    sample's: there the function is defined, and gradients are of moderate size.
    """
    rng = g.rng
    op = SAMPLED[int(rng.integers(len(SAMPLED)))]
    every = list(op.attrs_class.samples(np.random.default_rng(int(rng.integers(1000)))))
    sample = every[int(rng.integers(len(every)))]
    attrs = dict(sample.attrs)
    if "seed" in op.fields:
        attrs["seed"] = int(rng.choice([-1, 5]))
    floats = [k for k, a in enumerate(sample.inputs) if is_float(a)]
    if len(floats) == len(sample.inputs) == 1 and rng.random() < 0.3:
        return f"op.{op.name}", [g.pick()], attrs  # whatever its shape is
    return f"op.{op.name}", [an_input(g, op, sample, k) for k in range(len(sample.inputs))], attrs


def an_input(g: Generator, op: Op, sample: Sample, k: int) -> int | None:
    a = sample.inputs[k]
    if a is None:
        return None
    a = np.asarray(a)
    a = a.astype(np.float32) if a.dtype.kind == "f" else a
    written = op.written(op.attrs(**sample.attrs))
    moves = op.differentiable and k not in written and "count" not in op.fields
    if not moves or a.dtype.kind != "f" or sample.grad is not None and not sample.grad[k]:
        return g.leaf(a.shape, state=True, value=a, exact=True)
    base = g.leaf(a.shape, value=a)
    if g.rng.random() < 0.7 and a.size and g.value(x := g.pick()).size:
        g.call("near", [x, base])
        return len(g.values) - 1
    return base


def is_float(a: Any) -> bool:
    return a is not None and np.asarray(a).dtype.kind == "f"
