# SPDX-License-Identifier: Apache-2.0
"""A program as text: one line a value that is given, one line a step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from nnl.core.arguments.origin import line_of
from nnl.core.arrays.spec import Spec
from nnl.core.ops.op import OPS
from nnl.ext.library import HOST, is_plain
from nnl.graph.program.sizes import Size, shown

if TYPE_CHECKING:
    from nnl.graph.program.program import Program, Step

Shapes = dict[int, tuple[Any, ...]]  # of values; an open size as an expression
SHORT = {"float": "f", "bfloat": "bf", "uint": "u", "int": "i"}
MOST = 12  # numbers of a sequence that are shown


def text(program: Program) -> str:
    """The program for people.

    A line `%7:f32[4, 64] = affine_fused(%3, W, b) activation=relu  # forward, fc (train.py:12)` has
    the values that a step makes, its op, the values it reads ("-" where one is left out), and those
    of its attributes that are not at their defaults; a step of several element-wise ops has their
    formula. Given values are called by their names. "!"
    marks what a step writes, "@" an order of elements that is not the plain one. Programs inside a
    step follow it, further to the right. Open sizes come first; shapes and attributes are said in
    their names.
    """
    used = {i for s in program.steps for i in (*s.ins, *s.outs)} | program.kept
    used |= {program.root(i) for i in used}
    made = {o for s in program.steps for o in s.outs}
    shapes = {i: slot.spec.shape for i, slot in enumerate(program.slots)}
    lines = []
    if program.dims:
        from nnl.graph.program.open_program import open_shapes

        shapes |= open_shapes(program)
        lines = [f"{n}: any size, {d.wanted}" for n, d in program.dims.items()]
    names = [name(program, i, made, shapes) for i in range(len(program.slots))]
    for i, slot in enumerate(program.slots):
        if slot.given and i in used and not slot.copies:
            what = slot.role if not slot.zero else f"{slot.role} zero"
            lines.append(f"{names[i]}:{typed(program, i, shapes)} {what}")
    for step in program.steps:
        lines.append(line(program, step, names, shapes))
        for field, value in step.attrs.items():
            for k, inner in enumerate(value if isinstance(value, tuple) else [value]):
                if inner in step.programs:
                    number = f" {k}" if isinstance(value, tuple) else ""
                    lines.append(f"  {field}{number}")
                    lines += ["    " + one for one in text(inner).splitlines()]
    outputs = []
    for key, i in program.outputs.items():
        rows = ""
        if key in program.counts:
            count, along = program.counts[key]
            rows = f" of {names[program.outputs[count]]} along {along}"
        outputs.append(f"{key}={names[i]}{rows}")
    outputs += [names[i] for i in sorted(program.kept - set(program.outputs.values()))]
    lines.append(f"return {', '.join(outputs)}")
    lines += [f"next {names[i]} = {names[j] if j else 0}" for i, j in program.carries.items()]
    return "\n".join(lines)


def line(program: Program, step: Step, names: Sequence[str], shapes: Shapes) -> str:
    """One step, as in `text`, with what its values are called."""
    ins = [
        "-" if not i else names[i] + ("!" if p in step.writes else "")
        for p, i in enumerate(step.ins)
    ]
    outs = ", ".join(f"{names[o]}:{typed(program, o, shapes)}" for o in step.outs)
    inside = step.programs
    given = {k: v for k, v in changed(program, step).items() if not inside or is_plain(v)}
    attrs, told = _formula(step, names)
    given = {k: step.open.get(k, v) for k, v in given.items() if k not in told}
    attrs += "".join(f" {k}={_shown(v, shapes)}" for k, v in given.items())
    where = line_of(program.origin(step))
    note = f"  # {step.phase}{', ' if where else ''}{where}"
    return f"{outs} = {step.op}({', '.join(ins)}){attrs}{note}"


def _formula(step: Step, names: Sequence[str]) -> tuple[str, Sequence[str]]:
    """What a step computes, if its op says it, and the names of the attributes that this is."""
    op = OPS.get(step.op)
    if op is None or not hasattr(op.attrs_class, "formula"):
        return "", ()
    try:
        text = op.attrs(**step.attrs).formula([names[i] for i in step.ins])
    except (TypeError, ValueError):  # of a damaged file: the numbers say where
        return "", ()
    return f' "{text}"', op.attrs_class.in_formula


def changed(program: Program, step: Step) -> dict[str, Any]:
    """Attributes that differ from their defaults, by name."""
    defaults = defaults_of(program, step.op)
    found = [k for k, v in step.attrs.items() if k not in defaults or not same(v, defaults[k])]
    return {k: step.attrs[k] for k in sorted(found)}


def defaults_of(program: Program, op: str) -> dict[str, Any]:
    """The defaults of an op's attributes: by its definition, or by the file the program is from."""
    if op in OPS:
        return OPS[op].given_defaults
    return program.defaults.get(op, {})


def same(a: Any, b: Any) -> bool:
    """Whether two attribute values are the same in type and value; -0.0 is not 0.0."""
    if a is b:
        return True
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)


def name(program: Program, i: int, made: Collection[int], shapes: Shapes) -> str:
    """What a value is called; "W as [1, 4]" if it is another shape of one, and no step makes it."""
    slot = program.slots[i]
    if slot.root != i and i not in made:
        return f"{name(program, slot.root, made, shapes)} as {_sizes(shapes[i])}"
    source = program.slots[slot.copies] if slot.copies else slot
    return source.name if slot.given and source.name else f"%{i}"


def typed(program: Program, i: int, shapes: Shapes) -> str:
    """ "f32[4, 64]", with the order of elements where that is not the plain one."""
    slot = program.slots[i]
    return short(slot.spec, shapes[i]) + (f"@{slot.order}" if slot.order != HOST else "")


def short(spec: Spec, shape: Sequence[Any]) -> str:
    """ "f32[4, 64]" """
    kind = spec.type_name
    for long, brief in SHORT.items():
        if kind.startswith(long):
            kind = kind.replace(long, brief)
            break
    return f"{kind}{_sizes(shape)}"


def _sizes(shape: Sequence[Any]) -> str:
    return f"[{', '.join(map(shown, shape))}]"


def _shown(value: Any, shapes: Shapes) -> str:
    if isinstance(value, Size):
        return shown(_in_names(value.expression, shapes))
    if isinstance(value, tuple):
        inside = ",".join(_shown(v, shapes) for v in value[:MOST])
        return f"({inside}{',...' if len(value) > MOST else ''})"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _in_names(e: Any, shapes: Shapes) -> Any:
    """An expression with the names of dims in the place of sizes of values."""
    if not isinstance(e, tuple):
        return e
    if len(e) == 2:
        return e if shapes[e[0]][e[1]] == "?" else shapes[e[0]][e[1]]
    return e[0], *[_in_names(x, shapes) for x in e[1:]]
