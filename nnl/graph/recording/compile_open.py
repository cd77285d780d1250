# SPDX-License-Identifier: Apache-2.0
"""nnl.compile with open sizes: one recording of a call, and from it a plan for each size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any

from nnl.core.arguments.annotations import shown
from nnl.core.arrays.array import NdArray
from nnl.core.graph.variable import Variable
from nnl.core.ops.caches import Plans
from nnl.core.settings.context import SPACES
from nnl.graph.lowering.binding import Binding
from nnl.graph.open_sizes.recording import ROOM, Axes, OpenGraphs, record_open
from nnl.graph.passes import PASSES
from nnl.graph.passes.layout.kernels import choose_kernels
from nnl.graph.plan.plan import Plan
from nnl.graph.program.open_program import Differ, at, sizes_of, unified
from nnl.graph.program.program import INPUT, STATE, Program
from nnl.graph.program.sizes import Unexplained
from nnl.graph.recording.recording import Compiled, Recording, argument_names
from nnl.graph.saving.saving import Saver, dims_of

# These see sizes through the rules of the ops alone, and come before anything of the machine does.
EARLY = PASSES[: PASSES.index(choose_kernels)]


class Opening:
    """Which sizes of a function's arguments are open, as nnl.compile was told."""

    def __init__(
        self, f: Callable[..., Any], axes: Axes, ranges: Mapping[str, Sequence[int]]
    ) -> None:
        if not isinstance(axes, Mapping):
            raise TypeError(f'compile: open is {shown(axes)}, wanted a dict, as {{"x": ("n", 3)}}')
        self.f, self.axes, self.ranges, self.lock = f, axes, ranges, RLock()

    def family(
        self, known: Plans, key: Sequence[Any], args: tuple[Any, ...], kw: dict[str, Any]
    ) -> Family:
        """The family of the plans of a call, made if there is none.

        Args:
            key: What calls of the same shapes have in common: the context, then for each argument
                its value, or the spec of an array and whether it needs a gradient; then names.
        """
        names = [*argument_names(self.f, len(args)), *kw]
        alike = list(key)
        for i, (name, a) in enumerate(zip(names, (*args, *kw.values()), strict=True), 1):
            if name in self.axes and isinstance(a, (Variable, NdArray)):
                spec, need = key[i]
                open_axes = [isinstance(n, str) for n in self.axes[name]]
                sizes = zip(spec.shape, [*open_axes, *[False] * len(spec.shape)], strict=False)
                alike[i] = spec.dtype, tuple([-1 if free else n for n, free in sizes]), need
        with self.lock:
            found: Family | None = known.find(tuple(alike))
            if found is None or not found.valid():
                found = known.put(tuple(alike), lambda: Family(self, args, kw))
        return found


class Family:
    """A call recorded for all sizes that are open.

    Attributes:
        recorded: The recording at some sizes.
        lowered: The open program, which no pass has changed.
        program: The same after as many passes, `begin`, as do the same at all sizes.
        binding: Arrays and edges of both.
    """

    def __init__(self, opening: Opening, args: tuple[Any, ...], kw: dict[str, Any]) -> None:
        f, names = opening.f, [*argument_names(opening.f, len(args)), *kw]
        arrays = {
            n: a
            for n, a in zip(names, (*args, *kw.values()), strict=True)
            if isinstance(a, (Variable, NdArray))
        }
        shapes = {n: a.shape for n, a in arrays.items()}
        made: list[Recording] = []
        axes: Axes = {**shapes, **opening.axes}
        where = f"compile: {getattr(f, '__name__', 'f')}"

        def build(sizes: Mapping[str, int]) -> Any:
            at = {
                n: [sizes[k] if isinstance(k, str) else shapes[n][i] for i, k in enumerate(ks)]
                for n, ks in axes.items()
            }
            made.append(r := Recording(f, args, kw, at))
            inputs = dict(zip(r.names, r.holes, strict=True))
            for name, x in list(inputs.items()):
                g = x.edge.own_grad
                if g is not None:  # what the recording adds to stays from run to run
                    inputs[f"{name}/grad"] = Variable.of_edge(type(x.edge).leaf(g), g)
            ends = [Variable.of_edge(e, e.array) for e in r.ends]
            return dict(zip(map(str, range(len(ends))), ends, strict=True)), inputs

        def use(opened: OpenGraphs) -> OpenGraphs:
            self._unify(opened, made[-len(opened.graphs) :])
            return opened

        try:
            dims = dims_of(opening.axes, shapes, opening.ranges)
            opened = record_open(build, dims, axes, opening.ranges, use)
            self.opened = opened._replace(graphs=[])
        except (Differ, Unexplained) as e:
            raise ValueError(f"{where}: {e}") from None
        except ValueError as e:
            raise type(e)(f"{where}: {e}") from e
        self.where = where

    def valid(self) -> bool:
        """Whether no flag, shape or dtype of the recorded graph has changed since."""
        return self.recorded.valid()

    # ---- making ----

    def _unify(self, opened: OpenGraphs, recordings: Sequence[Recording]) -> None:
        self.recorded = recordings[0]
        lowered: list[tuple[Program, Binding]] = []
        for r in recordings:
            r.boundary *= ROOM  # as the numbers of its nodes
            r.take()
            lowered.append(r.lower())
            _give_roles(*lowered[-1], r)
        programs = [p for p, _ in lowered]
        self.binding = lowered[0][1]
        self.lowered = unified(programs, opened.dims, opened.sizes, opened.axes)
        _same_results(recordings)
        early = EARLY if SPACES[programs[0].space].library() is not None else []
        while True:  # what comes after a pass that decides by the sizes runs for each size
            tried = [p.copy() for p in programs]
            for k, rewrite in enumerate(early):
                for p in tried:
                    rewrite(p, SPACES[p.space].library())
                if any(len(p.steps) != len(tried[0].steps) for p in tried):
                    early = early[:k]
                    break
            else:
                try:
                    self.program = unified(tried, opened.dims, opened.sizes, opened.axes)
                    break
                except (Differ, Unexplained):
                    early = early[:-1]
        self.begin = len(early)

    # ---- a plan ----

    def at(self, given: Sequence[Variable | NdArray]) -> Compiled:
        """The plan for the shapes of these arguments.

        Raises:
            ValueError: A size is out of range, or a function does not take it.
        """
        shapes = {n: a.spec.shape for n, a in zip(self.recorded.names, given, strict=True)}
        try:
            program = at(self.program, sizes_of(self.program, shapes))
        except ValueError as e:
            raise ValueError(f"{self.where}: {e}") from None
        binding, other = Binding(), {}
        binding.slot_of, binding.nodes = self.binding.slot_of, self.binding.nodes
        for i, nd in self.binding.arrays.items():
            slot = program.slots[i]
            if slot.data is not None:  # zeros: the binding makes them
                continue
            if slot.role == INPUT or nd.spec is not slot.spec:
                other[id(nd)] = new = NdArray.unwritten(slot.spec)
                if slot.role != INPUT:
                    new.zero()  # a gradient of an argument
                nd = new
            binding.arrays[i] = nd
            program.found[i] = frozenset(nd.bufs)
        return Compiled(self.recorded, Plan.rest(program, binding, self.begin), other)

    def network(self, name: str) -> Any:
        """
        Raises:
            ValueError: Always: it would have one size of many.
        """
        raise ValueError(
            f"save: {name} has open sizes, which .nnlp holds alone: save that, or compile the "
            "function without open="
        )

    def add_to(self, saver: Saver, name: str) -> None:
        """Add the open program to a file.

        Raises:
            ValueError: It hands on something whose size is open.
        """
        program, inputs = self.lowered, self.recorded.inputs
        for i, nd in self.binding.arrays.items():
            if program.slots[i].sizes and id(nd) not in inputs and not program.slots[i].zero:
                raise ValueError(
                    f"save: {name} adds to the gradient of an argument, whose size is open: set it "
                    "to zero in the function, or call it with arguments that need none"
                )
        closed = [at(program, sizes) for sizes in self.opened.sizes]
        for p in closed:
            self.recorded.finish(name, p, self.binding)
        saver.add_recorded(name, self.opened, [(p, self.binding, inputs) for p in closed])


def _give_roles(program: Program, binding: Binding, recorded: Recording) -> None:
    inputs = recorded.inputs
    for i, nd in binding.arrays.items():
        slot = program.slots[i]
        if id(nd) in inputs:
            slot.name, slot.role = inputs[id(nd)], INPUT
        elif slot.role == INPUT:
            slot.role = STATE


def _same_results(recordings: Sequence[Recording]) -> None:
    """
    Raises:
        Differ: What is returned besides Variables depends on the sizes.
    """

    def plain(result: Any) -> Any:
        if isinstance(result, Variable):
            return Variable
        if isinstance(result, dict):
            return {k: plain(v) for k, v in result.items()}
        if isinstance(result, (tuple, list)):
            return [plain(v) for v in result]
        return result

    found = [plain(r.result) for r in recordings]
    for other in found:
        if other != found[0]:
            raise Differ(
                f"it returns {found[0]!r:.60} at one size and {other!r:.60} at another: return "
                "Variables, or what no size changes"
            )
