# SPDX-License-Identifier: Apache-2.0
"""What update rules have in common: their shape rule, cost, samples, and how they walk memory.

An update rule is an op. Its inputs are the weight w, the gradient g, the states by name, the step
number t (int64, rank 0) and the learning rate lr (float64, rank 0), and it writes w, the states
and t in place, so that the same definition runs at once, in a recorded plan and on other backends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.ops.op import Cost, Sample, op

BLOCK = 1 << 15  # elements; the five or so float32 arrays of a rule then stay in a 1 MiB cache


def update_op(name: str, *states: str) -> Any:
    """Register an update rule with these states; all of them, w and t are written in place."""
    return op(name, writes=("w", *states, "t"), keep=("t", "lr"), view=True)


def blocks(xp: Any, *arrays: Any, scratch: int = 0) -> Iterator[Sequence[Any]]:
    """Corresponding pieces of the arrays, followed by `scratch` uninitialised ones like the first.

    On the host the pieces are small enough that several passes over one find it in cache; other
    backends get the arrays whole.
    """
    first = arrays[0]
    size = first.size
    if xp is not np or size <= BLOCK or not all([a.flags.c_contiguous for a in arrays]):
        yield (*arrays, *(xp.empty_like(first) for _ in range(scratch)))
        return
    flat = [a.reshape(-1) for a in arrays]
    spare = [np.empty(BLOCK, first.dtype) for _ in range(scratch)]
    for i in range(0, size, BLOCK):
        n = min(BLOCK, size - i)
        yield [a[i : i + n] for a in flat] + [s[:n] for s in spare]


def norm(xp: Any, x: Any) -> float:
    """Euclidean norm over all elements, accumulated in at least float32 by a dot product."""
    flat = x.reshape(-1)
    return float(xp.sqrt(xp.vdot(flat, flat)))


def blend(average: Any, value: Any, rate: float, scratch: Any, xp: Any) -> None:
    """average = rate average + (1 - rate) value, in place; scratch may be value itself."""
    average *= rate
    xp.multiply(value, 1.0 - rate, out=scratch)
    average += scratch


class Rule:
    """Base of update rules. `infer(self, w, g, <states>, t, lr)` returns same_shape(w, g, ...)."""

    passes = 4  # multiplications and additions per element, about
    by_element = True  # an element of w follows from those of the others at its place

    def same_shape(self, w: Spec, **others: Spec | None) -> Spec:
        """The spec of w, if the others have its shape.

        Raises:
            ShapeError: One does not, with its name.
        """
        for name, spec in others.items():
            if spec is not None and spec.shape != w.shape:
                raise ShapeError(f"{self.op.name}: {name} is {spec}, wanted the shape of w {w}")
        return w

    def cost(self, w: Spec, *others: Spec | None) -> Cost:
        arrays = [w, *(s for s in others if s is not None and s.shape == w.shape)]
        return Cost(flops=self.passes * w.size, bytes=(2 * len(arrays) - 1) * w.nbytes)


def samples(states: int, **attrs: Any) -> Any:
    """The samples of a rule with this many states: a matrix, a scalar, an empty array."""

    def generate(rng: np.random.Generator) -> Iterator[Sample]:
        for shape in ((2, 3), (), (0, 2)):
            moments = [rng.uniform(0.1, 1.0, shape) for _ in range(states)]
            arrays = [rng.normal(size=shape), rng.normal(size=shape), *moments]
            t, lr = np.array(3), np.array(0.1)
            yield Sample(*arrays, t, lr, grad=(False,) * (states + 4), **attrs)

    return staticmethod(generate)
