# SPDX-License-Identifier: Apache-2.0
"""Programs inside steps: recorded from Python functions, computed, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nnl.core.arrays.array import NdArray, Zeros
from nnl.core.arrays.spec import Spec
from nnl.core.graph.autodiff import backprop
from nnl.core.graph.dispatch import apply, execute
from nnl.core.graph.node import Node, Value
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.interpreter import STATIC
from nnl.core.ops.op import OPS
from nnl.core.settings.context import STATE, resolve, using
from nnl.graph.lowering.binding import Key
from nnl.graph.lowering.lowering import definition, lower
from nnl.graph.program.program import INPUT, Program, Step


def leaf(spec: Spec, need_grad: bool = False) -> Variable:
    """An input of a function that is recorded."""
    nd = NdArray.unwritten(spec)
    return Variable.of_edge(Value.leaf(nd, need_grad), nd)


class Recorded:
    """What a function has recorded.

    Args:
        record: The function, without arguments.
        holes: The leaves that stand for its inputs.
        what: What messages call it.
    Attributes:
        single: Whether it returns one Variable, and not several.
        ends: What it returns.
        nodes: What computes that, in order.
        around: {key: edge} of what it reads besides the holes.
    Raises:
        TypeError: It returns something else than Variables.
    """

    def __init__(self, record: Callable[[], Any], holes: Sequence[Variable], what: str) -> None:
        self.holes, start = [x.edge for x in holes], Node.number()
        with using(interpreter=STATIC, make_nodes=True, recompute=False):
            ys = record()
            self.single = isinstance(ys, Variable)
            ys = returned(what, ys)
            # what is an input, or stands around the function, becomes a result of its own
            made = [y.edge.node is not None and y.edge.node.seq > start for y in ys]
            both = zip(ys, made, strict=True)
            self.ends = [(y if m else OPS["identity"](y)).edge for y, m in both]
        self.around: dict[Key, Value] = {}
        own, seen = {x.key for x in self.holes}, {v.node for v in self.ends if v.node is not None}
        todo = sorted(seen, key=lambda n: n.seq)  # inputs are in one order in every process
        while todo:
            for v in todo.pop().inputs:
                if v is None or v.key in own:
                    continue
                if v.node is None or v.node.seq <= start:
                    if not isinstance(v.array, Zeros):
                        self.around[v.key] = v
                elif v.node not in seen:
                    seen.add(v.node)
                    todo.append(v.node)
        self.nodes = sorted(seen, key=lambda n: n.seq)

    @property
    def specs(self) -> list[Spec]:
        """Shapes and types of what it returns."""
        return [v.spec for v in self.ends]

    def program(self, around: Sequence[Value] = ()) -> Program:
        """The program of it, with inputs for the holes and then for these edges."""
        inputs, keys = [*self.holes, *around], [v.key for v in self.ends]
        program, binding = lower(self.nodes, keys, plain=keys, inputs=inputs)
        for k, value in enumerate(inputs):
            slot = program.slots[binding.slot_of[value.key]]
            slot.role, slot.name = INPUT, f"x{k}"
        program.found.clear()  # of arrays that will be others
        program.parts_of_others.clear()
        program.shared.clear()
        program.outputs = {f"y{k}": binding.slot_of[key] for k, key in enumerate(keys)}
        return program


def joined(
    recorded: Sequence[Recorded], inputs: Sequence[Variable]
) -> tuple[list[Program], list[Variable], bool]:
    """Programs of functions with the same inputs: those given, what any of them reads around it,
    and what those that are written held before.

    Returns:
        The programs, their inputs, and whether there are such copies among these, the last ones.
    """
    edges = list({key: v for r in recorded for key, v in r.around.items()}.values())
    xs = [*inputs, *[Variable.of_edge(v, v.array) for v in edges]]
    programs = [r.program(edges) for r in recorded]
    old = before(xs, sorted(written(programs)))
    if old:
        edges += [v.edge for v in old]
        programs = [r.program(edges) for r in recorded]
    return programs, [*xs, *old], bool(old)


def output_specs(program: Program) -> tuple[Spec, ...]:
    """Shapes and types of the outputs of a program."""
    return tuple([program.slots[i].spec for i in program.outputs.values()])


def input_specs(program: Program) -> tuple[Spec, ...]:
    """Shapes and types of its inputs."""
    return tuple([program.slots[i].spec for i in program.inputs])


def listed(specs: Sequence[Spec]) -> str:
    """Specs for messages."""
    return ", ".join(map(str, specs)) or "nothing"


def check_variables(what: str, xs: Sequence[Any]) -> None:
    """
    Raises:
        TypeError: One of them is no Variable.
    """
    for k, x in enumerate(xs):
        if not isinstance(x, Variable):
            raise TypeError(f"{what}: input {k} is {type(x).__name__}, wanted nnl.Variable")


def check_function(what: str, f: Any) -> None:
    """
    Raises:
        TypeError: It is no function.
    """
    if not callable(f):
        raise TypeError(f"{what} is {type(f).__name__}, wanted a function")


def returned(what: str, ys: Any) -> list[Variable]:
    """What a function has returned.

    Raises:
        TypeError: It is something else than Variables.
    """
    found = [ys] if isinstance(ys, Variable) else ys
    if not isinstance(found, (tuple, list)) or not all(isinstance(y, Variable) for y in found):
        raise TypeError(
            f"{what} returned {type(ys).__name__}, wanted a Variable or a tuple of them"
        )
    return list(found)


def as_recorded(given: Sequence[Spec], wanted: Sequence[Spec]) -> tuple[Spec, ...]:
    """What inputs are converted to: the types that programs were recorded for, of the same kind."""
    kinds = [("f", "V"), ("i", "u")]
    found = list(given)
    for k, (s, w) in enumerate(zip(given, wanted, strict=False)):
        if any(s.dtype.kind in kind and w.dtype.kind in kind for kind in kinds):
            found[k] = s.with_dtype(w.dtype)
    return tuple(found)


def written(programs: Sequence[Program]) -> set[int]:
    """Positions of the inputs that some of these programs write."""
    found = set()
    for program in programs:
        roots = program.written()
        found |= {k for k, i in enumerate(program.inputs) if i in roots}
    return found


def before(xs: Sequence[Variable], places: Sequence[int]) -> list[Variable]:
    """Copies of what programs inside a step will write, from before it; none if no gradient will
    ask for them.

    Args:
        places: Positions in xs of the inputs that are written.
    """
    wanted = not STATE.no_grad and any(x.need_grad for x in xs)
    return [copied(xs[k]) for k in places] if wanted else []


def as_it_was(what: str, attrs: Any, xs: Sequence[Any], places: Iterable[int]) -> list[Any]:
    """The inputs of a step, with what those held that it has written, at these positions.

    Raises:
        NotImplementedError: It does not remember that.
    """
    found, places = list(xs), sorted(places)
    if places and not attrs.remembers:
        raise NotImplementedError(
            f"{what}: it was recorded where nothing needed a gradient, and writes state, such as "
            "that of random numbers or running statistics: what that was before is gone"
        )
    for k, x in zip(places, found[len(found) - len(places) :], strict=True):
        found[k] = x
    return found


def copied(x: Any) -> Any:
    """A copy of a value of any type."""
    return OPS["cast"](x, dtype=x.spec.type_name)


# ---- running ----


def compute(program: Program, *bufs: Any) -> list[Any]:
    """What a program gives for buffers, step by step as its ops define it."""
    space = program.space

    def call(step: Step, xs: Any) -> Sequence[NdArray]:
        return execute(definition(program, step), xs)

    specs = input_specs(program)
    arrays = [NdArray.holding(s, space, b) for s, b in zip(specs, bufs, strict=True)]
    return [nd.read(space) for nd in _run(program, arrays, lambda nd: nd, call)]


def record(program: Program, xs: Sequence[Variable]) -> list[Variable]:
    """Record the functions again that a program was recorded from."""

    def call(step: Step, xs: Any) -> Sequence[Variable]:
        source = program.sources[step.source]
        assert source is not None
        if step.op == "cast" != source.function:  # whoever reads it converts
            return xs  # type: ignore[no-any-return]
        op = OPS[step.op]
        with using(target=resolve(*source.context), origin=source.origin):
            y = apply(op, op.attrs(**step.attrs), xs)
        first = (y[0] if isinstance(y, tuple) else y).edge
        every = enumerate(first.node.outs)  # hidden ones too
        edges = [Value.of(first.node, i, nd.spec, first.need_grad, nd) for i, nd in every]
        return [Variable.of_edge(e, e.array) for e in edges]

    return _run(program, xs, lambda nd: Variable.of_edge(Value.leaf(nd), nd), call)


def _run(
    program: Program,
    xs: Sequence[Any],
    hold: Callable[[NdArray], Any],
    call: Callable[[Step, Any], Sequence[Any]],
) -> list[Any]:
    values: dict[int, Any] = {0: None, **dict(zip(program.inputs, xs, strict=True))}
    values |= {i: hold(zeros(s.spec)) for i, s in enumerate(program.slots) if s.zero}
    for step in program.steps:
        ys = call(step, tuple([values[i] for i in step.ins]))
        values.update(zip(step.outs, ys, strict=True))
    return [values[i] for i in program.outputs.values()]


def zeros(spec: Spec) -> NdArray:
    """Zeros that take no memory."""
    nd = Zeros(spec.shape)
    nd.spec = spec
    return nd


# ---- gradients ----


def gradient(program: Program, wanted: Sequence[int], starts: Mapping[int, Spec]) -> Program:
    """The program that computes gradients of a program's inputs from the inputs and from those of
    its outputs. It computes again what it needs of the program's own values, and leaves state as
    it is.

    Args:
        wanted: Positions of the inputs whose gradients it gives.
        starts: {position of an output: spec of its gradient}, its inputs after the program's.
    """
    specs = input_specs(program)
    xs = [leaf(s, k in wanted) for k, s in enumerate(specs)]
    gs = [leaf(s) for s in starts.values()]

    def gradients() -> list[Variable]:
        with using(no_grad=False):
            state = written([program])
            ys = record(program, [copied(x) if k in state else x for k, x in enumerate(xs)])
            pairs = [(ys[k].edge, g) for k, g in zip(starts, gs, strict=True)]
            pairs = [(y, g) for y, g in pairs if y.need_grad]
            found = {}
            if pairs:
                found = backprop([y for y, _ in pairs], [g for _, g in pairs]).leaves
            return [_gradient_of(xs[k], found) for k in wanted]

    return Recorded(gradients, [*xs, *gs], "a gradient").program()


def _gradient_of(x: Variable, found: Mapping[Any, tuple[Value, Any]]) -> Variable:
    _, g = found.get(id(x.edge), (None, None))
    if g is None:
        nd = zeros(x.spec)
        return Variable.of_edge(Value.leaf(nd), nd)
    if g.spec.dtype != x.spec.dtype:
        g = OPS["cast"](g, dtype=x.spec.type_name)
    result: Variable = g
    return result
