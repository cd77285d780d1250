# SPDX-License-Identifier: Apache-2.0
"""switch: one of several functions, chosen by a value that is known when the graph runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS, Cost, op
from nnl.core.settings.context import STATE
from nnl.graph.control_flow.programs import (
    Recorded,
    as_it_was,
    as_recorded,
    check_function,
    check_variables,
    compute,
    gradient,
    input_specs,
    joined,
    leaf,
    listed,
    output_specs,
    written,
)
from nnl.graph.program.costs import cost
from nnl.graph.program.program import Program

CATEGORY = "Control flow"


def _written(attrs: Any) -> Any:
    return tuple([1 + p for p in sorted(written(attrs.branches))])


@op("switch", outputs=("*y",), keep=("index", "x"), writes=_written)
class _Switch:
    """One of several programs, all over the same inputs, chosen by an integer.

    Args:
        branches: A tuple of programs.
        remembers: Whether the last inputs, which the programs do not read, are what those that they
            write held before.
    """

    branches: object
    remembers: bool = False

    @property
    def programs(self) -> Sequence[Program]:
        return self.branches  # type: ignore[return-value]

    def inside(self, shapes: Sequence[tuple[int, ...]]) -> list[Sequence[tuple[int, ...]]]:
        """Shapes of the inputs of `programs`, for those of the step's inputs."""
        return [shapes[1:]] * len(self.programs)

    def takes(self, index: Spec, *x: Spec) -> tuple[Spec, ...]:
        return index, *as_recorded(x, input_specs(self.programs[0]) if self.programs else ())

    def infer(self, index: Spec, *x: Spec) -> tuple[Spec, ...]:
        branches = self.programs
        if index.shape or index.dtype != np.int64:
            raise ShapeError(f"switch: index is {index}, wanted one number of int64")
        if not branches:
            raise ShapeError("switch: there are no branches")
        for k, program in enumerate(branches):
            if input_specs(program) != x:
                raise ShapeError(
                    f"switch: the inputs are {listed(x)}, branch {k} was recorded for "
                    f"{listed(input_specs(program))}"
                )
        first, *others = map(output_specs, branches)
        for k, specs in enumerate(others, 1):
            if specs != first:
                raise ShapeError(
                    f"switch: branch {k} gives {listed(specs)}, branch 0 {listed(first)}"
                )
        return first

    def control(self, runs: Sequence[Callable[..., Any]], index: Any, *x: Any) -> tuple[Any, ...]:
        """Run one of the programs on arrays."""
        return tuple(runs[checked(int(index), len(runs))](*x))

    def forward(self, xp: Any, index: Any, *x: Any) -> tuple[Any, ...]:
        return self.control([partial(compute, p) for p in self.programs], index, *x)

    def vjp(self, *gys: Any, index: Any, x: Any, need: Any) -> Any:
        x = as_it_was("switch", self, x, written(self.programs))
        wanted = tuple([k for k, v in enumerate(x) if need[1 + k] and v.spec.is_float])
        starts = {k: g for k, g in enumerate(gys) if g is not None}
        key = wanted, tuple([(k, g.spec) for k, g in starts.items()])
        made = self.__dict__.setdefault("gradients", {})
        if key not in made:
            made[key] = tuple([gradient(p, wanted, dict(key[1])) for p in self.programs])
        gxs = iter(OPS["switch"](index, *x, *starts.values(), branches=made[key]))
        return (None, *[next(gxs) if k in wanted else None for k in range(len(x))])

    def cost(self, index: Spec, *x: Spec) -> Cost:
        flops = [sum(cost(p, s).flops for s in p.steps) for p in self.programs]
        return Cost(max(flops, default=0), sum(s.nbytes for s in (*x, *self.infer(index, *x))))


def checked(index: int, count: int) -> int:
    """The number of a branch.

    Raises:
        ValueError: There is no such branch.
    """
    if not 0 <= index < count:
        raise ValueError(f"switch: index holds {index}, and there are {count} branches")
    return index


def as_index(index: Variable) -> Variable:
    """One number of any type as one of int64."""
    if index.spec.dtype != np.int64:
        index = OPS["cast"](index, dtype="int64", whole="switch: index")
    return index if index.shape == () else OPS["reshape"](index, shape=())


def switch(index: Any, branches: Sequence[Callable[..., Any]], *inputs: Any) -> Any:
    """Call one of several functions: the one whose number `index` holds when the graph runs.

    In static mode all of them are recorded, each as a program inside one step, and a run executes
    one. In dynamic mode (`nnl.auto_forward`) it is the call of one of them.

    Args:
        index: A Variable with one number: an integer from 0 on, or a boolean, for which the first
            function is the one for False. A number in Python chooses now.
        branches: Functions of Variables that return a Variable or a tuple of them, all of the same
            shapes and types. They may use Variables around them, such as parameters.
        inputs: Variables for the functions.
    Returns:
        What the functions return.
    Raises:
        ShapeError: Two functions return other shapes or types. TypeError: Something is no Variable.
        ValueError: There is no function of that number; in static mode when the graph runs.

    Example:
        >>> import nnl as nn
        >>> import nnl.functions as F
        >>> x, i = nn.Variable((2,)), nn.Variable(())
        >>> y = nn.switch(i, [F.relu, lambda x: -x], x)
        >>> x.d, i.d = [-1.0, 2.0], 1
        >>> y.forward()
        >>> y.d
        array([ 1., -2.], dtype=float32)
    """
    if callable(branches):
        raise TypeError(f"switch: branches is {type(branches).__name__}, wanted several functions")
    branches = list(branches)
    if not branches:
        raise ValueError("switch: there are no branches")
    for k, f in enumerate(branches):
        check_function(f"switch: branch {k}", f)
    if isinstance(index, Variable) and index.size != 1:
        raise ShapeError(f"switch: index is {index.spec}, wanted one number")
    if not isinstance(index, (Variable, int, float, np.generic)):
        raise TypeError(f"switch: index is {type(index).__name__}, wanted a Variable or a number")
    if not isinstance(index, Variable) or STATE.auto_forward:
        now = index.d.item() if isinstance(index, Variable) else index
        if now != int(now):
            raise ValueError(f"switch: index holds {now}, wanted a whole number")
        return branches[checked(int(now), len(branches))](*inputs)
    check_variables("switch", inputs)
    recorded = []
    for k, f in enumerate(branches):
        holes = [leaf(x.spec, x.need_grad) for x in inputs]
        recorded.append(Recorded(partial(f, *holes), holes, f"switch: branch {k}"))
    programs, xs, remembers = joined(recorded, inputs)
    ys = OPS["switch"](as_index(index), *xs, branches=tuple(programs), remembers=remembers)
    return ys[0] if all(r.single for r in recorded) else ys
