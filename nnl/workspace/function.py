# SPDX-License-Identifier: Apache-2.0
"""Function: some tensors computed and others changed, as one program a combination of sizes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.core.arrays.array import NdArray
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.switches import auto_forward
from nnl.core.ops.caches import Plans
from nnl.core.settings.context import SPACES, STATE
from nnl.graph.passes import only
from nnl.graph.plan.plan import Plan
from nnl.graph.program.program import Program
from nnl.graph.recording.recording import Compiled
from nnl.workspace.body import differentiable
from nnl.workspace.tensor import Known, Operator, Tensor, _NeedsValue, fed, needed
from nnl.workspace.updater import Updater
from nnl.workspace.workspace import current


class Function:
    """What computes some tensors, and changes others: only what they need is run.

    Args:
        inputs: Tensors whose values each call gives. One that an operator makes is given instead.
        outputs: Tensors whose values each call returns.
        updates: {kept tensor: tensor of its next value}, all computed before any is written.
        updater: Gets the gradients that it asks for at every call.
        update: Whether it updates parameters too, in the same program.
        givens: {tensor: tensor or array that takes its place}.
        name: Of the function in its workspace, made unique.
    Raises:
        ValueError: An update is of a tensor that is not kept; an input is there twice.
    """

    _numbers = itertools.count(1)

    def __init__(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        updates: Mapping[Tensor, Any] | None = None,
        updater: Updater | None = None,
        update: bool = True,
        givens: Mapping[Tensor, Any] | None = None,
        name: str = "function",
    ) -> None:
        of = [*outputs, *inputs, *(updates or ())]
        self.workspace = of[0].workspace if of else current()
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.updates, self.givens = dict(updates or {}), dict(givens or {})
        self.updater, self.update = updater, update
        twice = [t.key for i, t in enumerate(self.inputs) if t in self.inputs[:i]]
        if twice:
            raise ValueError(f"Function: inputs has {twice[0]!r} twice")
        for t in self.updates:
            if not t.kept:
                raise ValueError(
                    f"Function: updates has {t.name!r}, which the workspace does not keep"
                )
        targets = [*self.outputs, *(v for v in self.updates.values() if isinstance(v, Tensor))]
        if updater is not None:
            targets += [g for _, g in updater.pairs]
        self.operators, self.leaves = needed(targets, self.inputs, self.givens)
        self.known: set[Tensor] = set()  # whose values programs depend on
        self.open = [t for t in self.leaves if t.kept and None in (t.sizes or (None,))]
        self.wrt = {x for op in self.operators for x in op.wrt}
        self.plans = Plans()
        taken = self.workspace.functions
        self.name = name if name not in taken else f"{name}_{next(self._numbers)}"
        taken[self.name] = self

    def __call__(self, *values: Any) -> list[np.ndarray[Any, Any]]:
        """Run it.

        Args:
            values: One array for each input.
        Returns:
            One array for each output.
        Raises:
            ValueError: Their number or a shape is wrong; a tensor that is needed has no value.
        """
        if len(values) != len(self.inputs):
            raise ValueError(f"Function: got {len(values)} values, wanted {len(self.inputs)}")
        return self._computed(values, self.workspace.lost(self.leaves))

    def _computed(
        self, values: Sequence[Any], lost: Sequence[Tensor]
    ) -> list[np.ndarray[Any, Any]]:
        """The outputs, where nothing is kept for some of the leaves: they are fed, or were."""
        given = dict(zip(self.inputs, values, strict=True))
        for t in lost:
            if t.key not in self.workspace.values:
                raise ValueError(f"Function: {t.name!r} is needed and has no value: feed it")
            given[t] = self.workspace.values[t.key].data
        arrays = {t: fed(t, value, "Function") for t, value in given.items()}
        while True:
            try:
                made = self._run(arrays)
                break
            except _Unknown as more:
                self.known |= more.tensors
                self.first = needed(self.known, self.inputs, self.givens)
        results = []
        for t, v in zip(self.outputs, made, strict=True):
            if isinstance(v, np.ndarray):  # texts
                results.append(v)
                continue
            own = isinstance(v, Variable)  # else the program's, of all its runs
            self.workspace.values[t.key] = data = v.data if own else v
            results.append(np.asarray(data.data) if own else np.array(data.data))
        return results

    @property
    def program(self) -> Program:
        """The program of the latest call, as it runs."""
        return self._latest().plan.program

    def text(self, passes: bool | Sequence[str] = True, memory: bool = False) -> str:
        """The program of the latest call, a line a step.

        Args:
            passes: Whether as it runs, or as it was written down; or the names of the passes that
                it is shown after, as they are in nnl.graph.passes: ("prune", "fuse_elementwise").
            memory: Whether to say too where results lie: `%7 at 64`, in bytes of the memory that
                steps share one after the other. What is returned has memory of its own.
        Raises:
            ValueError: The function has not run, or there is no such pass.
        """
        compiled = self._latest()
        plan: Plan | None = compiled.plan
        assert plan is not None
        program = plan.program
        if passes is not True:
            program, binding = compiled.recorded.lower()
            only(program, SPACES[program.space].library(), passes or ())
            plan = Plan.rest(program, binding, None) if memory else None
        said = [program.text()]
        if plan is not None and memory:
            said += [f"%{s} at {at}" for s, at in plan.offsets.items()]
            said.append(f"shared: {plan.arena_bytes} bytes")
        return "\n".join(said)

    def _latest(self) -> Compiled:
        if not self.plans:
            raise ValueError("Function: it has no program before it is called")
        return list(self.plans.values())[-1]

    def _run(self, arrays: Mapping[Tensor, np.ndarray[Any, Any]]) -> Any:
        known = self._before(arrays) if self.known else {}
        given: list[Any] = []
        key: list[Any] = [STATE.target]
        for t, array in {**known, **arrays}.items():
            if t in known:
                given.append(Known(array))
                key.append(given[-1])
            else:
                given.append(Variable.from_numpy_array(array, need_grad=array.dtype.kind == "f"))
                key.append(given[-1].spec)
        key += [id(self._kept(t).data) for t in self.open]  # which plans hold
        compiled = self.plans.find(tuple(key))
        if compiled is None or not compiled.valid():
            write = partial(self._write, (*known, *[t for t in arrays if t not in known]))
            compiled = self.plans.put(tuple(key), lambda: Compiled.of(write, tuple(given), {}))
        return compiled.run([v for v in given if isinstance(v, Variable)])

    def _write(self, names: Sequence[Tensor], *given: Any) -> list[Any]:
        """Write the program down: what is recorded."""
        values: dict[Tensor, Any] = {}
        for t, v in zip(names, given, strict=True):
            values[t] = v.array if isinstance(v, Known) else v
        for t in self.leaves:
            if t not in values:
                values[t] = self._kept(t).unlinked(need_grad=t in self.wrt)
        self._replace(values)
        before = {t: values[t] for t in self.leaves}
        written: dict[Tensor, Any] = {}
        for op in self.operators:
            if all(t in values for t in op.outputs):
                continue  # given, or known before
            try:
                made = op.results({**values, **before} if op.wrt else values)
            except _NeedsValue as error:
                raise self._unknown(op, error, values) from None
            except (ValueError, TypeError, IndexError) as error:
                raise type(error)(f"{op.type} ({op.anchor}): {error}") from error
            for t, v in zip(op.outputs, made, strict=True):
                if t in values:
                    continue  # given instead
                values[t] = differentiable(v) if t in self.wrt else v
            for t, new in zip(op.writes, op.outputs, strict=False):
                values[t] = written[t] = values[new]
            self._replace(values)
        results = [_result(before[t] if t in before else values[t]) for t in self.outputs]
        changed = [
            (t, _copied(values[v]) if isinstance(v, Tensor) else v) for t, v in self.updates.items()
        ]
        changed += [(t, _copied(v)) for t, v in written.items()]
        if self.updater is not None:
            self.updater.write([values[g] for _, g in self.updater.pairs], self.update)
        for t, v in changed:
            if not isinstance(v, Variable):
                v = Variable.from_numpy_array(np.asarray(v, t.dtype))
            kept = self._kept(t)
            if v.shape != kept.shape:
                raise ValueError(
                    f"Function: the update of {t.key!r} has shape {v.shape}, wanted {kept.shape}"
                )
            kept.data.copy_from(v.data)
        return results

    def _replace(self, values: dict[Tensor, Any]) -> None:
        for t, v in self.givens.items():
            if t not in values and (not isinstance(v, Tensor) or v in values):
                given = values[v] if isinstance(v, Tensor) else np.asarray(v, t.dtype)
                values[t] = differentiable(given) if t in self.wrt else given

    def _kept(self, t: Tensor) -> Variable:
        parameter = self.workspace.parameter(t.key)
        assert parameter is not None
        return parameter

    def _unknown(self, op: Operator, error: _NeedsValue, values: Mapping[Tensor, Any]) -> Exception:
        """Whose values must be known, so that it is written down again for them."""
        unknown = [t for t in op.tensors if isinstance(values.get(t), Variable)]
        found = [t for t in unknown if values[t] is error.value]
        found = found or [t for t in unknown if np.dtype(t.dtype).kind != "f"] or unknown
        found = [t for t in found if t not in self.known]
        makers = needed(found, self.inputs, self.givens)[0]
        if not found or any(not o.constant for o in makers):
            return ValueError(
                f"Function: {op.type} ({op.anchor}) must know {error.what} before it "
                "runs, and that is drawn at random"
            )
        return _Unknown(set(found))

    def _before(self, arrays: Mapping[Tensor, np.ndarray[Any, Any]]) -> dict[Tensor, Any]:
        """The values that programs depend on, of which some are computed before each run."""
        operators, leaves = self.first
        values: dict[Tensor, Any] = dict(arrays)
        values |= {x: self._kept(x) for x in leaves if x not in arrays}
        self._replace(values)
        with auto_forward(True):
            for op in operators:
                values.update(zip(op.outputs, op.results(values), strict=True))
                self._replace(values)
        found = [(t, values[t]) for t in self.known]
        return {t: np.array(v.d if isinstance(v, Variable) else v, t.dtype) for t, v in found}


def _copied(v: Any) -> Any:
    """A value as it is now: of a tensor that is kept, which may be written before it is read."""
    return F.identity(v) if isinstance(v, Variable) and v.parent is None else v


def _result(v: Any) -> Any:
    """What a program gives: what depends on nothing is an array, made once."""
    if isinstance(v, Variable):
        return _copied(v)
    array = np.asarray(v)
    return array if array.dtype.kind == "O" else NdArray.from_numpy_array(array)


class _Unknown(Exception):
    def __init__(self, tensors: set[Tensor]) -> None:
        super().__init__(tensors)
        self.tensors = tensors
