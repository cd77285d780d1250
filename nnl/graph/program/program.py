# SPDX-License-Identifier: Apache-2.0
"""Program: steps over numbered values, as plain data; what passes rewrite and plans run.

Nothing here knows a graph, an array or a process: see `lowering` and `binding` for these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from nnl.core.arguments.origin import Origin, at
from nnl.core.arrays.spec import Spec
from nnl.core.graph.casts import widened
from nnl.core.ops.op import OPS
from nnl.core.ops.schema import category
from nnl.core.settings.context import Target
from nnl.ext.library import HOST, is_plain
from nnl.graph.program.program_text import text
from nnl.graph.program.sizes import Dim
from nnl.graph.program.strings import Words

SPACE = HOST
# What a value is for: given at every run, trained, kept from run to run, fixed, or made by a step.
INPUT, PARAMETER, STATE, CONSTANT, INTERMEDIATE = ROLES = (
    "input", "parameter", "state", "constant", "intermediate",
)  # fmt: skip
PREPARE, FORWARD, BACKWARD, UPDATE = PHASES = ("prepare", "forward", "backward", "update")


def space_of(memory: str, order: str) -> str:
    """The memory space of what lies in an order of elements in some memory, the host's or not."""
    if memory == SPACE:
        return order
    return memory if order == HOST else f"{memory} {order}"


class Slot:
    """A value of a program.

    Attributes:
        spec: Shape and dtype.
        role: One of ROLES. Steps make the intermediate ones; all others are given.
        root: The slot whose memory it is: itself, except for the result of a view.
        order: Its order of elements: plain, channels-last or tiled.
        name: Of what is given; "" where it has none.
        memory: Given values with the same number, which is not 0, are the same memory.
        copies: The given value that this one is in another element type; 0 for all others.
        data: What a constant holds.
        sizes: Its shape with expressions of open sizes, if no step makes it; () if none is open.
    """

    __slots__ = ("spec", "role", "root", "order", "name", "memory", "copies", "data", "sizes")

    def __init__(self, spec: Spec, root: int, role: str = INTERMEDIATE) -> None:
        self.spec, self.role, self.root, self.order = spec, role, root, HOST
        self.name, self.memory, self.copies = "", 0, 0
        self.data: np.ndarray[Any, Any] | None = None
        self.sizes: tuple[Any, ...] = ()

    @property
    def given(self) -> bool:
        """Whether it is there before any step has run."""
        return self.role != INTERMEDIATE

    @property
    def stored(self) -> bool:
        """Whether a file has an array for it."""
        return self.given and self.role != INPUT and not self.copies and self.data is None

    @property
    def zero(self) -> bool:
        """Whether it is a constant without memory, every element of which is 0."""
        return self.data is not None and not any(self.data.strides) and not self.data.any()


def repeated(spec: Spec, value: Any = 0) -> np.ndarray[Any, Any]:
    """An array of one value, for constants; it takes no memory."""
    return np.broadcast_to(np.array(value, spec.dtype), spec.shape)


def _with_same_fields(x: Any) -> Any:
    """What copy() gives, six times as fast."""
    new = x.__new__(type(x))
    for name in x.__slots__:
        setattr(new, name, getattr(x, name))
    return new


class Source:
    """What a step was recorded as.

    Attributes:
        function: The op that its errors are about.
        name: What messages call that.
        origin: Where it was called; the text of that in a program from a file.
        context: Names of the backends that it was recorded for, and of the device.
    """

    __slots__ = ("function", "name", "origin", "context")

    def __init__(
        self,
        function: str,
        name: str,
        origin: Origin | str | None,
        context: tuple[tuple[str, ...], str],
    ) -> None:
        self.function, self.name, self.origin, self.context = function, name, origin, context

    @property
    def label(self) -> str:
        """What messages call it: "embed in tok (train.py:12)"."""
        return at(self.name, self.origin)


class Step:
    """One call: a kernel by the name of its op, and the slots it reads and makes.

    Attributes:
        op, attrs: Name and attributes by name, as the native library takes them.
        ins, outs: Slots; 0 is an input left out.
        writes: Positions of the inputs that it changes.
        view: Whether the output is the memory of the first input.
        second: Whether it belongs to the second part of a plan that is cut in two.
        once: Whether it runs again only when one of the given values behind it has changed.
        converts: Whether it reads inputs of other types than it computes with.
        parts: Of a fused step, the steps it replaces, in order.
        whole: Whether its definition runs where no kernel does, though it has parts: these say the
            same in other functions, up to rounding, for libraries that have only kernels.
        source: Number of what it was recorded as, or for whom it checks an input; 0 for another
            step made by a pass.
        native: Whether kernels of the library may run it.
        kernel: The kernel of the library, once one has been chosen.
        open: {attribute: its value with expressions of open sizes}, of those that move.
    """

    __slots__ = (
        "op", "attrs", "ins", "outs", "writes", "view", "second", "once", "converts", "parts",
        "whole", "source", "native", "kernel", "open",
    )  # fmt: skip

    def __init__(
        self,
        op: str,
        attrs: dict[str, Any],
        ins: Sequence[int],
        outs: Sequence[int],
        second: bool = False,
        parts: Sequence[Step] = (),
    ) -> None:
        self.op, self.attrs, self.ins, self.outs = op, attrs, tuple(ins), tuple(outs)
        self.writes: tuple[int, ...] = ()
        self.second, self.once, self.parts = second, False, tuple(parts)
        self.view = self.converts = self.whole = False
        self.source = 0
        self.native = True
        self.kernel: Any = None
        self.open: dict[str, Any] = {}

    @classmethod
    def of(
        cls,
        op: str,
        attrs: Mapping[str, Any],
        ins: Sequence[int],
        outs: Sequence[int],
        second: bool = False,
        parts: Sequence[Step] = (),
    ) -> Step:
        """A step that a pass makes; attributes left out have their defaults."""
        return cls(op, OPS[op].attrs(**attrs).as_dict(), ins, outs, second, parts)

    def copy(self) -> Step:
        """A step that passes may change while this one stays."""
        new: Step = _with_same_fields(self)
        new.parts = tuple([p.copy() for p in self.parts])
        return new

    @property
    def phase(self) -> str:
        """One of PHASES."""
        if self.once:
            return PREPARE
        op = OPS.get(self.op)
        if op is not None and category(op) == "Update":
            return UPDATE
        return BACKWARD if self.second else FORWARD

    @property
    def programs(self) -> list[Program]:
        """The programs that stand inside it, as attributes."""
        values = [v if isinstance(v, tuple) else (v,) for v in self.attrs.values()]
        return [v for several in values for v in several if isinstance(v, Program)]

    @property
    def replaced(self) -> Sequence[Step]:
        """The steps that run in its place where no kernel does; none if it runs itself."""
        return () if self.whole else self.parts

    def __repr__(self) -> str:
        return f"{self.outs} = {self.op}{self.ins}"


class Program:
    """Steps in an order in which they can run.

    Attributes:
        slots: By number; number 0 stands for an input that is left out.
        steps: In order.
        sources: What steps were recorded as, by number; number 0 stands for nothing.
        forms: {slot: slots with the same values in another order in memory}.
        kept, plain: Slots that must survive the run, and those of them that must be plain.
        gradients: Slots of gradients among them, with the number of the memory that these are of;
            0 where it is not known.
        found: {given slot: orders and types in which its array was current when it was lowered};
            a hint, for passes.
        parts_of_others: Given slots whose memory is a part of something else; another hint.
        shared: {root: others that may have memory of it}, of arrays that share it.
        results: {slot: given slot} of copies that the run makes of values it writes.
        folded: {slot of a constant: the step that has made it}.
        outputs: {name: slot} of the results of a program that is saved.
        counts: {name: (name of another output, axis)} of outputs of which only as many entries
            along an axis are a result as the other one holds.
        carries: {given slot: slot whose value it has after the run; 0 for zeros}.
        defaults: {op: its attributes' defaults}, in a program from a file.
        dims: {name: open size}, of a program that runs at any; slots have those of an example.
        words: The strings at its boundary.
        fused: Whether the passes before `choose_kernels` have run.
        steady: Whether given values that are no inputs stay as they are from run to run.
        space: The memory space of all values: a device's, if anything runs there.
    """

    def __init__(self, space: str = SPACE) -> None:
        self.slots: list[Slot] = [Slot(Spec.of(()), 0)]
        self.steps: list[Step] = []
        self.sources: list[Source | None] = [None]
        self.forms: dict[int, list[int]] = {}
        self.kept: set[int] = set()
        self.plain: set[int] = set()
        self.gradients: dict[int, int] = {}
        self.found: dict[int, frozenset[str]] = {}
        self.parts_of_others: set[int] = set()
        self.shared: dict[int, set[int]] = {}
        self.results: dict[int, int] = {}
        self.folded: dict[int, Step] = {}
        self.outputs: dict[str, int] = {}
        self.counts: dict[str, tuple[str, int]] = {}
        self.carries: dict[int, int] = {}
        self.defaults: dict[str, dict[str, Any]] = {}
        self.dims: dict[str, Dim] = {}
        self.words = Words()
        self.fused = self.steady = False
        self.space = space

    def new_slot(self, spec: Spec, root: int | None = None, role: str = INTERMEDIATE) -> int:
        """Add a slot and return its number."""
        n = len(self.slots)
        self.slots.append(Slot(spec, n if root is None else root, role))
        return n

    def copy(self) -> Program:
        """A program that passes may change while this one stays."""
        new = Program(self.space)
        new.__dict__.update({name: copy(value) for name, value in self.__dict__.items()})
        new.slots = [_with_same_fields(s) for s in self.slots]
        new.steps = [s.copy() for s in self.steps]
        return new

    @property
    def inputs(self) -> list[int]:
        """The slots that are given at every run."""
        return [i for i, s in enumerate(self.slots) if s.role == INPUT]

    def alias(self, slot: int, shape: Sequence[int]) -> int:
        """A slot that is the memory of another under a shape of the same size; no step makes it."""
        seen = self.slots[slot]
        return self.new_slot(seen.spec.with_shape(shape), root=seen.root)

    def take_orders(self, order: str) -> None:
        """Let given values that lie in an order, and that no step writes, be slots of it."""
        written = self.written()
        for i, found in self.found.items():
            if space_of(self.space, order) in found and i not in written:
                self.slots[i].order = order

    def at(self, sizes: Mapping[str, int]) -> Program:
        """The closed program for sizes of all `dims`; see open_program."""
        from nnl.graph.program.open_program import at

        return at(self, sizes)

    def text(self) -> str:
        """The program for people: a line a given value, a line a step; see program_text."""
        return text(self)

    def to_dict(self) -> dict[str, Any]:
        """The program as data that JSON can hold; see program_data."""
        from nnl.graph.program.program_data import to_dict

        return to_dict(self)

    @staticmethod
    def from_dict(data: Any) -> Program:
        """What `to_dict` has been given for; Damaged if that is no program."""
        from nnl.graph.program.program_data import from_dict

        return from_dict(data)

    def run_on(self, target: Target) -> None:
        """Let all steps run on the backends of a target, in the types they were recorded for."""
        self.space = target.backends[0].space
        native = any(b.fused and b.space == self.space for b in target.backends)
        todo = list(self.steps)
        while todo:
            step = todo.pop()
            step.native = native
            todo += step.parts
            for inner in step.programs:
                inner.run_on(target)
        for source in self.sources:
            if source is not None:
                kind = source.context[0][0].partition(":")[2]
                names = tuple([f"{n.partition(':')[0]}:{kind}" for n in target.names])
                source.context = names, target.device_id

    # ---- where steps come from ----

    def origin(self, step: Step) -> Origin | str | None:
        """Where the function was called that it was recorded as; of a fused step, the first one."""
        source = self.sources[step.source]
        if source is not None:
            return source.origin
        return next((o for p in step.parts if (o := self.origin(p)) is not None), None)

    def function(self, step: Step) -> str:
        """The function that its errors are about."""
        source = self.sources[step.source]
        return step.op if source is None else source.function

    def label(self, step: Step) -> str:
        """What messages call a step: "embed in tok (train.py:12)"."""
        source = self.sources[step.source]
        return at(step.op, self.origin(step)) if source is None else source.label

    # ---- what passes ask ----

    @property
    def cut(self) -> int:
        """Number of steps in the first part."""
        return sum(not s.second for s in self.steps)

    def root(self, slot: int) -> int:
        return self.slots[slot].root

    def written(self) -> set[int]:
        """The roots that steps write besides what they make."""
        return {self.root(s.ins[i]) for s in self.steps for i in s.writes}

    @property
    def changes(self) -> bool:
        """Whether a run changes given values."""
        return bool(self.carries) or any(self.slots[i].given for i in self.written())

    def makers(self) -> dict[int, Step]:
        """{slot: the step that makes it}."""
        return {o: s for s in self.steps for o in s.outs}

    def readers(self) -> dict[int, list[Step]]:
        """{slot: the steps that read it, once for every input}."""
        readers: dict[int, list[Step]] = {}
        for s in self.steps:
            for i in s.ins:
                readers.setdefault(i, []).append(s)
        return readers

    def views(self) -> dict[int, set[int]]:
        """{root: the slots that are views of it}, of those that have any."""
        views: dict[int, set[int]] = {}
        for i, s in enumerate(self.slots):
            if s.root != i:
                views.setdefault(s.root, set()).add(i)
        return views

    def kept_roots(self) -> set[int]:
        """Roots of the kept slots: their memory must stay."""
        return {self.root(s) for s in self.kept}


class VerifyError(AssertionError):
    """A pass has left a program that cannot run."""


def verify(program: Program, known: dict[Step, tuple[Any, bool]] | None = None) -> None:
    """Check that a program can run: every pass must leave it so; tests call this after each.

    Args:
        known: What has been checked of steps, for the next call: most passes leave most steps.
    Raises:
        VerifyError: With the step and the slot.
    """
    made = {0, *[i for i, s in enumerate(program.slots) if s.role != INTERMEDIATE]}
    second, known = False, {} if known is None else known
    for n, step in enumerate(program.steps):
        try:
            _verify_step(program, step, made, known)
            if second and not step.second:
                raise VerifyError("first part after the second")
        except VerifyError as e:
            raise VerifyError(f"step {n} {step}: {e}") from e.__cause__
        second = step.second
    for kept in program.kept:
        if kept not in made:
            raise VerifyError(f"slot {kept} is kept and nothing makes it")


def _verify_step(
    program: Program, step: Step, made: set[int], known: dict[Step, tuple[Any, bool]]
) -> None:
    """Check a step, and add what it makes to what is made before; quick, as it runs very often."""
    slots = program.slots
    specs = [slots[i].spec for i in (*step.ins, *step.outs)]
    seen, inside = known.get(step, (None, False))
    if inside or seen != (step.op, step.attrs, step.ins, specs):
        _verify_against_definition(program, step)
        known[step] = (step.op, dict(step.attrs), step.ins, specs), bool(step.programs)
    for i in step.ins:
        if i not in made and ((root := slots[i].root) == i or root not in made):
            raise VerifyError(f"reads slot {i} before anything makes it")
    for p in step.writes:
        if not 0 <= p < len(step.ins):
            raise VerifyError(f"writes input {p}, which it does not have")
    for o in step.outs:
        if o in made:
            raise VerifyError(f"makes slot {o} again")
        made.add(o)
        root = slots[o].root
        if step.view:
            if root != slots[step.ins[0]].root:
                raise VerifyError(f"a view of {step.ins[0]} has the root {root}")
        elif root != o and root not in [slots[step.ins[p]].root for p in step.writes]:
            raise VerifyError(f"is no view, and makes slot {o} of {root}")
        if root != o and slots[o].spec.nbytes != slots[root].spec.nbytes:
            raise VerifyError(f"slot {o} is not as large as its root {root}")


# The sizes of what they make are the library's affair.
LIBRARY_OPS = frozenset(["pack_convolution", "pack_weights"])


def _verify_against_definition(program: Program, step: Step) -> None:
    """Check attributes and shapes of a step by the definition of its op."""
    op = OPS.get(step.op)
    if op is None:
        raise VerifyError("there is no op of that name")
    if set(step.attrs) != set(op.fields):
        extra, missing = set(step.attrs) - set(op.fields), set(op.fields) - set(step.attrs)
        raise VerifyError(f"has the attributes {extra} too many, and lacks {missing}")
    attrs = op.attrs(**step.attrs)
    specs = [program.slots[i].spec if i else None for i in step.ins]
    if not op.variadic:
        if len(specs) > len(op.inputs) or any(
            i >= len(specs) or specs[i] is None
            for i in range(len(op.inputs))
            if i not in op.optional
        ):
            raise VerifyError(f"has the inputs {step.ins}, its op {op.inputs}")
        specs += [None] * (len(op.inputs) - len(specs))
    for inner in step.programs:
        _verify_inside(inner)
    some_code = not step.programs and any(not is_plain(v) for v in step.attrs.values())
    if step.op in LIBRARY_OPS or some_code:
        return
    try:
        found = attrs.infer(*widened(op, specs))
    except (ValueError, TypeError, AttributeError, LookupError) as e:
        raise VerifyError(f"its definition does not take that: {e}") from e
    shapes = [s.shape for s in (found if isinstance(found, tuple) else (found,))]
    own = [program.slots[o].spec.shape for o in step.outs]
    if own != shapes[: len(own)] or len(own) < len(shapes) - op.hidden:
        raise VerifyError(f"makes arrays of the shapes {own}, its definition {shapes}")


def _verify_inside(program: Program) -> None:
    """Check a program that stands inside a step: all that it has is given at every run."""
    for i, slot in enumerate(program.slots[1:], 1):
        if slot.given and slot.role != INPUT and slot.data is None:
            raise VerifyError(f"a program inside keeps value {i}, a {slot.role}")
    if program.carries or program.results:
        raise VerifyError("a program inside hands values on to its next run")
    try:
        verify(program)
    except VerifyError as e:
        raise VerifyError(f"in a program inside: {e}") from None
