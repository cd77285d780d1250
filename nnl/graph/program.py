# SPDX-License-Identifier: Apache-2.0
"""Program: a graph as a list of steps over numbered slots; what passes rewrite and plans run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nnl.core.array import NdArray
from nnl.core.casts import widened
from nnl.core.context import SPACES
from nnl.core.dispatch import Bound, bind
from nnl.core.graph import Node, Value
from nnl.core.op import OPS
from nnl.core.origin import Origin, at
from nnl.core.spec import Spec
from nnl.ext.library import CHANNELS_LAST, HOST, is_plain

Key = tuple[int, int]
NO_GRADIENTS: Mapping[Key, Any] = {}
SPACE = HOST


def space_of(memory: str, order: str) -> str:
    """The memory space of what lies in an order of elements in some memory, the host's or not."""
    if memory == SPACE:
        return order
    return memory if order == HOST else f"{memory} {order}"


class Slot:
    """A value of a program.

    Attributes:
        spec: Shape and dtype.
        leaf: The array it is read from at every run; None if a step makes it.
        root: The slot whose memory it is: itself, except for the result of a view.
        order: Its order of elements, one of LAYOUTS: plain, channels-last or tiled.
    """

    __slots__ = ("spec", "leaf", "root", "order")

    def __init__(self, spec: Spec, leaf: NdArray | None, root: int) -> None:
        self.spec, self.leaf, self.root, self.order = spec, leaf, root, HOST


class Step:
    """One call: a kernel by the name of its op, and the slots it reads and makes.

    Attributes:
        op, attrs: Name and attributes by name, as the native library takes them.
        ins, outs: Slots; 0 is an input left out.
        writes: Positions of the inputs that it changes.
        second: Whether it belongs to the second part of a plan that is cut in two.
        once: Whether it runs again only when one of the leaves behind it has changed.
        bound: The call on arrays, where the definition of an op stands behind the step.
        parts: Of a fused step, the steps it replaces, in order.
        node: What it was recorded as, or for whom it checks an input; None for another step made
            by a pass.
        native: Whether kernels of the library may run it.
        kernel: The kernel of the library, once one has been chosen.
    """

    __slots__ = (
        "op", "attrs", "ins", "outs", "writes", "second", "once", "bound", "parts", "node",
        "native", "kernel",
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
        self.bound: Bound | None = None
        self.node: Node | None = None
        self.native = True
        self.kernel: Any = None

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

    @property
    def origin(self) -> Origin | None:
        """Where the function was called that it was recorded as; of a fused step, the first one."""
        if self.node is not None:
            return self.node.origin
        return next((o for p in self.parts if (o := p.origin) is not None), None)

    @property
    def function(self) -> str:
        """The function that its errors are about."""
        return self.op if self.node is None else self.node.op.name

    @property
    def label(self) -> str:
        """What messages call it: "embed in tok (train.py:12)"."""
        return self.node.label if self.node is not None else at(self.op, self.origin)

    @property
    def view(self) -> bool:
        """Whether the output is the memory of the first input."""
        return self.bound is not None and self.bound.view

    def __repr__(self) -> str:
        return f"{self.outs} = {self.op}{self.ins}"


class Program:
    """Steps in an order in which they can run.

    Args:
        nodes: In such an order. Edges that none of them computes are leaves.
        kept: Keys of edges whose value must survive the run.
        cut: Number of nodes in the first part.
        plain: Keys of those that must lie in the plain order in the end.
        gradients: {key of a gradient that is kept and may be tiled: the array it is of, if known}.

    Attributes:
        slots: By number; number 0 stands for an input that is left out.
        slot_of: {key of an edge: slot}.
        forms: {slot: slots with the same values in another order in memory}.
        kept, plain: Slots that must survive the run, and those of them that must be plain.
        gradients: Slots of gradients among them, with the arrays these are of.
        copies: {slot of a leaf: memory space}, for leaves that are read in another element type.
        results: {slot: (array, memory space)} of copies that the run makes of arrays it writes.
        folded: {slot of a constant: the step that has made it}.
        cut: Number of steps in the first part.
        space: The memory space of all values: a device's, if anything runs there.
    Raises:
        NotImplementedError: Nodes run on two devices.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        kept: Iterable[Key],
        cut: int | None = None,
        plain: Iterable[Key] = (),
        gradients: Mapping[Key, NdArray | None] = NO_GRADIENTS,
    ) -> None:
        self.slots: list[Slot] = [Slot(Spec.of(()), None, 0)]
        self.slot_of: dict[Key, int] = {}
        self.made_here: dict[int, int] = {}  # id of the array of an edge made so far: its slot
        self.forms: dict[int, list[int]] = {}
        self.steps: list[Step] = []
        self.folded: dict[int, Step] = {}
        self.copies: dict[int, str] = {}
        self.results: dict[int, tuple[NdArray, str]] = {}
        self.space = _memory_of(nodes)
        cut = len(nodes) if cut is None else cut
        for i, node in enumerate(nodes):
            self._lower(node, i >= cut)
        self.kept = {self.slot_of[k] for k in kept if k in self.slot_of}
        self.plain = {self.slot_of[k] for k in plain if k in self.slot_of}
        self.gradients = {self.slot_of[k]: a for k, a in gradients.items() if k in self.slot_of}

    def _lower(self, node: Node, second: bool) -> None:
        ins = [0 if v is None else self._input_slot(v) for v in node.inputs]
        specs = tuple([None if v is None else v.current_spec for v in node.inputs])
        bound = bind(node.op, node.attrs, node.target, specs)
        if bound.space != self.space:
            bound = SPACES[self.space].adopt(bound)  # type: ignore[attr-defined]
        outs = []
        for i, spec in enumerate(bound.out_specs):
            root = self.slots[ins[0]].root if bound.view else None
            outs.append(self.new_slot(spec, root=root))
            self.slot_of[(id(node), i)] = outs[-1]
            if node.outs is not None:
                self.made_here[id(node.outs[i])] = outs[-1]
        step = Step(node.op.name, node.attrs.as_dict(), ins, outs, second)
        step.bound, step.node, step.writes = bound, node, bound.writes
        step.native = any(b.fused and b.space == self.space for b in node.target.backends)
        self.steps.append(step)

    def _input_slot(self, value: Value) -> int:
        slot = self.slot_of.get(value.key)
        if slot is None:
            # an unlinked copy of what an earlier node of this graph makes is that edge's value
            slot = self.made_here.get(id(value.array))
            if slot is None:
                slot = self.new_slot(value.current_spec, value.array)
            self.slot_of[value.key] = slot
        return slot

    def new_slot(self, spec: Spec, leaf: NdArray | None = None, root: int | None = None) -> int:
        """Add a slot and return its number."""
        n = len(self.slots)
        self.slots.append(Slot(spec, leaf, n if root is None else root))
        return n

    def alias(self, slot: int, shape: Sequence[int]) -> int:
        """A slot that is the memory of another under a shape of the same size; no step makes it."""
        seen = self.slots[slot]
        return self.new_slot(seen.spec.with_shape(shape), root=seen.root)

    def take_orders(self) -> None:
        """Let leaves that lie channels-last, and that no step writes, be slots of that order."""
        written = {self.root(s.ins[p]) for s in self.steps for p in s.writes}
        for i, slot in enumerate(self.slots):
            last = space_of(self.space, CHANNELS_LAST)
            if slot.leaf is not None and last in slot.leaf.bufs and i not in written:
                slot.order = CHANNELS_LAST

    # ---- what passes ask ----

    @property
    def cut(self) -> int:
        """Number of steps in the first part."""
        return sum(not s.second for s in self.steps)

    @property
    def prepared(self) -> int:
        """Number of steps, at the front, that run only when a leaf behind them has changed."""
        return sum(s.once for s in self.steps)

    def root(self, slot: int) -> int:
        return self.slots[slot].root

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


def _memory_of(nodes: Sequence[Node]) -> str:
    """Where a program of these nodes computes: on the device that some of them name."""
    spaces = {n.target.backends[0].space for n in nodes} - {SPACE}
    if len(spaces) > 1:
        raise NotImplementedError(
            f"plan: functions of one graph run in {sorted(spaces)}, wanted one device and the host"
        )
    return spaces.pop() if spaces else SPACE


class VerifyError(AssertionError):
    """A pass has left a program that cannot run."""


def verify(program: Program) -> None:
    """Check that a program can run: every pass must leave it so; tests call this after each.

    Raises:
        VerifyError: With the step and the slot.
    """
    made: set[int] = {0} | {i for i, s in enumerate(program.slots) if s.leaf is not None}
    second = False
    for n, step in enumerate(program.steps):
        where = f"step {n} {step}"
        _verify_against_definition(program, step, where)
        if second and not step.second:
            raise VerifyError(f"{where}: first part after the second")
        second = step.second
        for i in step.ins:
            if i not in made and (i == program.root(i) or program.root(i) not in made):
                raise VerifyError(f"{where}: reads slot {i} before anything makes it")
        for o in step.outs:
            if o in made:
                raise VerifyError(f"{where}: makes slot {o} again")
            made.add(o)
            slot = program.slots[o]
            if step.view and slot.root != program.root(step.ins[0]):
                raise VerifyError(f"{where}: a view of {step.ins[0]} has the root {slot.root}")
            if slot.root != o and slot.spec.nbytes != program.slots[slot.root].spec.nbytes:
                raise VerifyError(f"{where}: slot {o} is not as large as its root {slot.root}")
        for p in step.writes:
            if not 0 <= p < len(step.ins):
                raise VerifyError(f"{where}: writes input {p}, which it does not have")
    for kept in program.kept:
        if kept not in made:
            raise VerifyError(f"slot {kept} is kept and nothing makes it")


# The sizes of what they make are the library's affair.
LIBRARY_OPS = frozenset(["pack_convolution"])


def _verify_against_definition(program: Program, step: Step, where: str) -> None:
    """Check attributes and shapes of a step by the definition of its op."""
    op = OPS.get(step.op)
    if op is None:
        raise VerifyError(f"{where}: there is no op of that name")
    if set(step.attrs) != set(op.fields):
        extra, missing = set(step.attrs) - set(op.fields), set(op.fields) - set(step.attrs)
        raise VerifyError(f"{where}: has the attributes {extra} too many, and lacks {missing}")
    attrs = op.attrs(**step.attrs)
    specs = [program.slots[i].spec if i else None for i in step.ins]
    if not op.variadic:
        specs += [None] * (len(op.inputs) - len(specs))
    if step.op in LIBRARY_OPS or any(not is_plain(v) for v in step.attrs.values()):
        return
    found = attrs.infer(*widened(op, specs))
    shapes = [s.shape for s in (found if isinstance(found, tuple) else (found,))]
    own = [program.slots[o].spec.shape for o in step.outs]
    if own != shapes[: len(own)] or len(own) < len(shapes) - op.hidden:
        raise VerifyError(f"{where}: makes arrays of the shapes {own}, its definition {shapes}")
