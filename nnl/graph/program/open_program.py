# SPDX-License-Identifier: Apache-2.0
"""Programs with open sizes: made of programs recorded at several sizes, closed again by numbers.

An open program is the program of its example sizes, and beside it what moves: `Slot.sizes` of
values that no step makes, `Step.open` of attributes. The shapes of all else follow from the rules
of the ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nnl.core.arguments.origin import line_of
from nnl.core.graph.casts import widened
from nnl.core.ops.elementwise import is_elementwise, program_of
from nnl.core.ops.op import OPS
from nnl.graph.program.program import INPUT, Program, Slot, Step, repeated
from nnl.graph.program.program_text import same
from nnl.graph.program.sizes import Dim, Size, Solver, Unexplained, Vector, evaluate, witnesses

Shape = tuple[int, ...]
# In Step.open: of the program of an element-wise step, which follows from its attributes in Python.
SHAPES, CONSTANTS = "elementwise.shapes", "elementwise.constants"


class Differ(ValueError):
    """Programs at two sizes that are not the same program."""


# ---- closing ----


def at(program: Program, sizes: Mapping[str, int]) -> Program:
    """The closed program for sizes of all dims.

    Raises:
        ValueError: One is out of range, or a step does not take these sizes.
    """
    found = moved(program, sizes)
    found.dims = {}
    for slot in found.slots:
        slot.sizes = ()
    for step in found.steps:
        _close(step)
    return found


def _close(step: Step) -> None:
    step.open = {}
    for part in step.parts:
        _close(part)


def moved(program: Program, sizes: Mapping[str, int]) -> Program:
    """The same open program with other example sizes; see `at`."""
    if set(sizes) != set(program.dims):
        raise ValueError(f"sizes of {sorted(sizes)} are given, wanted {sorted(program.dims)}")
    for name, dim in program.dims.items():
        dim.check(name, sizes[name])
    found = program.copy()
    found.dims = {n: d._replace(example=sizes[n]) for n, d in program.dims.items()}
    _Mover(found, sizes).run()
    return found


def check_open(program: Program) -> None:
    """Compare what moves, in a program from a file, with what it says of its example.

    Raises:
        ValueError: An expression names a size that there is not, or gives another number.
    """
    for i in program.inputs:
        for size in program.slots[i].sizes:
            if isinstance(size, Size) and size.expression not in program.dims:
                raise ValueError(f"there is no open size {size.expression!r:.40}")
    try:
        found = moved(program, {n: d.example for n, d in program.dims.items()})
        for step in program.steps:
            _check_elementwise(program, step)
    except LookupError as e:
        raise ValueError(f"an expression of open sizes names what is not there: {e}") from None
    for i, (slot, want) in enumerate(zip(found.slots, program.slots, strict=True)):
        if slot.spec is not want.spec:
            raise ValueError(f"value {i} is {want.spec}, its open sizes give {slot.spec}")
    for step, own in zip(found.steps, program.steps, strict=True):
        _check_step(program, step, own)


def _check_elementwise(program: Program, step: Step) -> None:
    """Compare what C++ is told of an element-wise step's program with what follows from it here."""
    if SHAPES not in step.open and CONSTANTS not in step.open:
        return
    specs = [program.slots[i].spec for i in step.ins]
    want = program_of(step.op, step.attrs, [s.shape for s in specs])
    shapes, constants = want and (want.shapes, tuple(map(float, want.constants))) or ((), ())
    mover = _Mover(program, {n: d.example for n, d in program.dims.items()})
    mover.todo.clear()
    for name, own in ((SHAPES, shapes), (CONSTANTS, constants)):
        if name in step.open and not same(found := mover.closed(step.open[name]), own):
            raise ValueError(
                f"{program.label(step)}: {name} is {own!r:.60}, its expressions give {found!r:.60}"
            )


def _check_step(program: Program, step: Step, own: Step) -> None:
    for name in own.open:
        if name in own.attrs and not own.programs and not same(step.attrs[name], own.attrs[name]):
            raise ValueError(
                f"{program.label(own)}: {name} is {own.attrs[name]!r:.60}, its expressions give "
                f"{step.attrs[name]!r:.60}"
            )
    for part, mine in zip(step.parts, own.parts, strict=True):
        _check_step(program, part, mine)


def sizes_of(program: Program, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Sizes of the dims from the shapes of the inputs.

    Raises:
        ValueError: A shape is none that the input may have; the text names input and axis.
    """
    found: dict[str, int] = {}
    for i in program.inputs:
        slot = program.slots[i]
        wanted, shape = slot.sizes or slot.spec.shape, shapes[slot.name]
        for axis, (want, n) in enumerate(zip(wanted, shape, strict=False)):
            if isinstance(want, Size):
                name = want.expression
                try:
                    program.dims[name].check(name, n)
                except ValueError as e:
                    raise ValueError(
                        f"{slot.name} has the shape {shape}: axis {axis}: {e}"
                    ) from None
                if found.setdefault(name, n) != n:
                    raise ValueError(
                        f"{slot.name} has the shape {shape}: {name} is {n}, and {found[name]} in "
                        "another input"
                    )
            elif n != want:
                break
        else:
            if len(shape) == len(wanted):
                continue
        raise ValueError(f"{slot.name} has the shape {shape}, wanted {shown_shape(slot)}")
    return found


def shown_shape(slot: Slot) -> str:
    """The shape of a given value, with the names of open sizes."""
    sizes = [s.expression if isinstance(s, Size) else s for s in slot.sizes or slot.spec.shape]
    return f"({', '.join(map(str, sizes))}{',' * (len(sizes) == 1)})"


class _Mover:
    """Brings a program to other sizes, in place.

    Args:
        names: Sizes of the dims.
        given: Shapes of the inputs, of a program inside a step.
    """

    def __init__(
        self, program: Program, names: Mapping[str, int], given: Sequence[Shape] = ()
    ) -> None:
        self.program, self.names = program, names
        self.todo = {i for i, s in enumerate(program.slots) if s.sizes}
        self.changed: set[int] = set()
        for i, shape in zip(program.inputs, given, strict=False):
            self.set(i, shape)

    def run(self) -> None:
        for step in self.program.steps:
            self.step(step)
        for i in sorted(self.todo):
            self.shape(i)

    def set(self, i: int, shape: Sequence[int]) -> None:
        slot = self.program.slots[i]
        if tuple(shape) == slot.spec.shape:
            return
        if any(n < 0 for n in shape):
            raise ValueError(f"value {i} would have the shape {tuple(shape)}")
        self.changed.add(i)
        slot.spec = slot.spec.with_shape(shape).checked()
        if slot.data is not None:
            slot.data = repeated(
                slot.spec, slot.data[(0,) * slot.data.ndim] if slot.data.size else 0
            )

    def shape(self, i: int) -> Shape:
        if i in self.todo:
            self.todo.remove(i)
            self.set(i, self.closed(self.program.slots[i].sizes))
        return self.program.slots[i].spec.shape

    def closed(self, template: Any) -> Any:
        """A template with numbers in the place of expressions."""
        if isinstance(template, Size):
            return evaluate(template.expression, self.names, self.shape)
        return tuple([self.closed(t) for t in template]) if type(template) is tuple else template

    def step(self, step: Step) -> None:
        for part in step.parts:
            self.step(part)
        moves = {i for i in step.ins if i in self.todo or i in self.changed}
        for i in step.ins:
            self.shape(i)
        if not moves and not step.open:
            return
        program, op = self.program, OPS.get(step.op)
        try:
            if step.open:
                new = {k: self.closed(t) for k, t in step.open.items() if k in step.attrs}
                step.attrs, step.kernel = {**step.attrs, **new}, None
            if op is None:
                raise ValueError(f"there is no op {step.op!r}")
            if step.programs:
                self.inside(step)
            specs = [program.slots[i].spec if i else None for i in step.ins]
            if not op.variadic:
                specs += [None] * (len(op.inputs) - len(specs))
            made = op.attrs(**step.attrs).infer(*widened(op, specs))
        except (ValueError, TypeError, LookupError, AttributeError) as e:  # of an input left out
            sizes = ", ".join(f"{k}={v}" for k, v in self.names.items())
            raise ValueError(f"{program.label(step)} does not take the sizes {sizes}: {e}") from e
        for o, spec in zip(step.outs, made if isinstance(made, tuple) else (made,), strict=False):
            self.set(o, spec.shape)

    def inside(self, step: Step) -> None:
        """Bring programs inside a step to the shapes of what it reads."""
        shapes = [self.program.slots[i].spec.shape for i in step.ins]
        given = OPS[step.op].attrs(**step.attrs).inside(shapes)
        copies: dict[Program, Program] = {}
        for inner, inputs in zip(step.programs, given, strict=True):
            copies[inner] = inner.copy()
            _Mover(copies[inner], {}, inputs).run()

        def changed(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple([changed(v) for v in value])
            return copies[value] if isinstance(value, Program) else value

        step.attrs = {name: changed(value) for name, value in step.attrs.items()}


# ---- making ----


def unified(
    programs: Sequence[Program],
    dims: Mapping[str, Dim],
    sizes: Sequence[Mapping[str, int]],
    axes: Mapping[str, Sequence[str | int | None]],
) -> Program:
    """One open program of those that were recorded at several sizes: the first one, changed.

    Args:
        sizes: Of the dims, for each program.
        axes: {input: the dim of each axis, where it is open}.
    Raises:
        Differ: They have other steps. Unexplained: No expression gives a number of theirs.
    """
    first = programs[0]
    first.dims = {n: d._replace(example=sizes[0][n]) for n, d in dims.items()}
    _Unifier(programs, {n: tuple([s[n] for s in sizes]) for n in dims}, axes).run()
    return first


class _Unifier:
    def __init__(
        self, programs: Sequence[Program], names: Mapping[str, Vector], axes: Mapping[str, Any]
    ) -> None:
        self.programs, self.first, self.names, self.axes = programs, programs[0], names, axes
        self.solver = Solver(names, programs[0].dims)

    def run(self) -> None:
        if len({len(p.steps) for p in self.programs}) > 1:
            self._first_that_differs()
        if len({len(p.slots) for p in self.programs}) > 1:
            raise Differ("programs at other sizes have other values")
        for name in ("kept", "plain", "outputs", "counts", "carries", "results", "fused", "inputs"):
            if any(getattr(p, name) != getattr(self.first, name) for p in self.programs):
                raise Differ(f"programs at other sizes have other {name}")
        made = {o for s in self.first.steps for o in _all_outs(s)}
        for i in range(1, len(self.first.slots)):
            self._alike(i)
        todo = [i for i in range(1, len(self.first.slots)) if i not in made]
        given = [i for i in todo if self.first.slots[i].given]
        for i in given:
            self._given(i)
        self.aliases = {i for i in todo if not self.first.slots[i].given}
        for steps in zip(*[p.steps for p in self.programs], strict=True):
            self._step(steps)
        for i in self.aliases:  # views that passes have left without a reader
            for p in self.programs:
                p.slots[i].root = i

    def _alike(self, i: int) -> None:
        slots = [p.slots[i] for p in self.programs]
        kinds = {
            (s.role, s.root, s.order, s.copies, s.spec.dtype, s.spec.ndim, s.data is None, s.zero)
            for s in slots
        }
        if len(kinds) > 1:
            raise Differ(f"value {i} is another one at other sizes")
        data = slots[0].data
        if data is None:
            return
        if any(data.strides):
            if not all(_holds(data, s.data) for s in slots[1:]):
                raise Differ(f"the constant {i} holds other values at other sizes")
        elif any(_fill(s.data) != _fill(data) for s in slots):
            raise Differ(f"the constant {i} holds other values at other sizes")

    def _vectors(self, i: int) -> list[Vector]:
        return list(zip(*[p.slots[i].spec.shape for p in self.programs], strict=True))

    def _given(self, i: int) -> None:
        slot = self.first.slots[i]
        vectors = self._vectors(i)
        if slot.role == INPUT and not self.names:  # of a program inside a step, which says it
            slot.sizes = ()
        elif slot.role == INPUT:
            named = zip(self.axes[slot.name], slot.spec.shape, strict=True)
            sizes = [Size(n) if isinstance(n, str) else size for n, size in named]
            slot.sizes = tuple(sizes) if slot.spec.shape != tuple(sizes) else ()
        elif any(len(set(v)) > 1 for v in vectors):
            try:
                slot.sizes = tuple(
                    [n if type(n) is int else Size(n) for n in map(self.solver.size, vectors)]
                )
            except Unexplained as e:
                raise Unexplained(
                    f"{slot.name or f'value {i}'} has the shapes "
                    f"{', '.join(str(p.slots[i].spec.shape) for p in self.programs)}"
                    f"{self._where()}, and no expression gives these",
                    e.ask,
                ) from None
        else:
            slot.sizes = ()
        self._know(i)

    def _know(self, i: int) -> None:
        for axis, v in enumerate(self._vectors(i)):
            self.solver.add(v, (i, axis))

    def _where(self) -> str:
        """ " at batch=2, 3, 5" """
        each = [f"{n}={', '.join(map(str, v))}" for n, v in self.names.items()]
        return f" at {'; '.join(each)}" if each else ""

    def _first_that_differs(self) -> None:
        for steps in zip(*[p.steps for p in self.programs], strict=False):
            if len({s.op for s in steps}) > 1:
                raise self._differs(steps)
        some = max(self.programs, key=lambda p: len(p.steps))
        extra = some.steps[min(len(p.steps) for p in self.programs)]
        raise Differ(
            f"{some.label(extra)} is only there at some sizes{self._where()}: close what its "
            "number depends on, or write it with nn.while_loop"
        )

    def _differs(self, steps: Sequence[Step]) -> Differ:
        pairs = zip(self.programs, steps, strict=True)
        labels = list(dict.fromkeys([p.label(s) for p, s in pairs]))
        return Differ(
            f"steps differ between sizes{self._where()}: {' and '.join(labels[:2])}: close the "
            "size that chooses, or let values choose with nn.switch"
        )

    def _step(self, steps: Sequence[Step]) -> None:
        step = steps[0]
        shape = {
            (s.op, s.ins, s.outs, s.writes, s.view, s.second, s.once, s.converts, s.whole,
             len(s.parts), tuple(s.attrs))
            for s in steps
        }  # fmt: skip
        if len(shape) > 1:
            raise self._differs(steps)
        for parts in zip(*[s.parts for s in steps], strict=True):
            self._step(parts)
        for i in step.ins:
            if i in self.aliases:
                self.aliases.remove(i)
                self._given(i)
        own = [(v, (i, a)) for i in step.ins if i for a, v in enumerate(self._vectors(i))]
        own = [(v, e) for v, e in own if len(set(v)) > 1]
        step.open = {}
        for name in step.attrs:
            values = [s.attrs[name] for s in steps]
            if all(same(v, values[0]) for v in values[1:]):
                continue
            try:
                found = self._template(values, own)
            except Unexplained as e:
                raise Unexplained(self._unexplained(step, name, values), e.ask) from None
            if found is not None:
                step.open[name] = found
        self._shapes(steps, own)
        for o in step.outs:
            self._know(o)

    def _shapes(self, steps: Sequence[Step], own: Any) -> None:
        """Of an element-wise step: the constants of its program, and how that sees the inputs."""
        step = steps[0]
        if not is_elementwise(step.op) or 0 in step.ins:
            return
        found = []
        for p, s in zip(self.programs, steps, strict=True):
            found.append(program_of(s.op, s.attrs, [p.slots[i].spec.shape for i in s.ins]))
        if found[0] is None:
            return
        if any(f is None or f.code != found[0].code for f in found):
            raise self._differs(steps)
        for name, values in (
            (SHAPES, [f.shapes for f in found if f is not None]),
            (CONSTANTS, [tuple(map(float, f.constants)) for f in found if f is not None]),
        ):
            if any(v != values[0] for v in values):
                step.open[name] = self._template(values, own)

    def _template(self, values: Sequence[Any], own: Any) -> Any:
        """A value with expressions in the place of numbers that move; None: a program inside, which
        has its own."""
        one = values[0]
        if all(same(v, one) for v in values[1:]):
            return one
        kinds = {type(v) for v in values}
        if kinds == {tuple} and len({len(v) for v in values}) == 1:
            if any(isinstance(v, Program) for v in one):
                for inner in zip(*values, strict=True):
                    self._template(inner, own)
                return None
            return tuple([self._template(v, own) for v in zip(*values, strict=True)])
        if kinds == {Program}:
            _Unifier(values, {}, {}).run()
            return None
        if kinds == {int}:
            return Size(self.solver.size(tuple(values), own))
        if kinds == {float}:
            return Size(self.solver.factor(values, own))
        raise Unexplained

    def _unexplained(self, step: Step, name: str, values: Sequence[Any]) -> str:
        where = line_of(self.first.origin(step))
        text = ", ".join(f"{v!r:.60}" for v in values)
        return (
            f"{self.first.function(step)}{f' in {where}' if where else ''}: {name} is {text}"
            f"{self._where()}: no expression of the sizes gives this; close a size, or compute it "
            "from shapes alone"
        )


def _holds(data: Any, other: Any) -> bool:
    return np.array_equal(data, other, equal_nan=data.dtype.kind == "f")


def _fill(data: Any) -> Any:
    return data[(0,) * data.ndim].item() if data.size else None


def _all_outs(step: Step) -> Iterator[int]:
    yield from step.outs
    for part in step.parts:
        yield from _all_outs(part)


# ---- looking ----


def open_shapes(program: Program) -> dict[int, tuple[Any, ...]]:
    """The shapes of all values in the names of dims, for people; "?" where that is not simple."""
    sizes = witnesses(program.dims)
    names = {n: tuple([s[n] for s in sizes]) for n in program.dims}
    solver, closed = Solver(names), [moved(program, s) for s in sizes]
    given = [i for i, s in enumerate(program.slots) if s.given]
    order = [*given, *[o for s in program.steps for o in _all_outs(s)]]
    found = {}
    for i in [*order, *({*range(len(program.slots))} - {*order})]:
        shape = []
        for v in zip(*[p.slots[i].spec.shape for p in closed], strict=True):
            try:
                shape.append(solver.size(v))
                solver.add(v, shape[-1])
            except Unexplained:
                shape.append("?")
        found[i] = tuple(shape)
    return found
