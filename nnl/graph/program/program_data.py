# SPDX-License-Identifier: Apache-2.0
"""A program as data that JSON can hold, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from nnl.core.arguments.origin import line_of
from nnl.core.arrays.spec import Spec
from nnl.core.ops.elementwise import is_elementwise, program_of
from nnl.core.ops.op import OPS, Attributes
from nnl.core.settings.context import FLOAT_TYPES, half_type
from nnl.ext.library import HOST, LAYOUTS, is_plain
from nnl.graph.program.costs import cost
from nnl.graph.program.program import INTERMEDIATE, ROLES, Program, Slot, Source, Step, repeated
from nnl.graph.program.program_text import changed, defaults_of
from nnl.graph.program.sizes import LARGEST, OPERATORS, Dim, Expression, Size
from nnl.graph.program.strings import Words

VERSION = 3  # 1: no open sizes; 2: no strings
DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32",
    "uint32", "int64", "uint64", "bool",
)  # fmt: skip
_INT, _NESTED = frozenset([int]), frozenset([list, dict])
# Fields of steps that are left out where they are false.
FLAGS = ("view", "second", "once", "converts", "whole")


@cache
def dtype_of(name: str) -> np.dtype[Any]:
    """The numpy type of one of DTYPES."""
    found = half_type(name) if name == "bfloat16" else np.dtype(name)
    assert found is not None
    return found


@cache
def name_of(dtype: np.dtype[Any]) -> str:
    """What DTYPES calls a numpy type, which itself takes its time to say it."""
    return str(dtype.name)


# ---- writing ----


def to_dict(program: Program) -> dict[str, Any]:
    """The program as data: dictionaries, lists, texts and numbers.

    Returns:
        - dims: {name: [example, least, greatest or None, multiple]} of open sizes; shapes,
          attributes and costs are those of the examples.
        - values: [dtype, shape, {role, name, root, order, copies, fill, sizes}] from number 1 on,
          fields at their defaults left out. What constants hold is not in it, except where it is
          one number ("fill"). "sizes" is the shape of an open value that no step makes.
        - ops: {op: its attributes' defaults}, of the ops that occur.
        - sources: [function, name, place, type configuration] from number 1 on.
        - steps: {op, ins, outs, attrs, open, elementwise, writes, source, parts, flops, bytes, and
          those flags of a step that are set}. Attributes at their defaults are left out. "open" are
          those that move, with {"size": expression} in the place of numbers; see sizes.
          "elementwise" is the program of an element-wise op: {code, constants, shapes of the
          inputs}.
        - words: [strings in order of their numbers, names of inputs and outputs that are strings].
        - outputs, counts, kept, plain, results, carries: see Program.
    Raises:
        NotImplementedError: A step runs Python code, which is not data.
    """
    ops = {s.op for top in program.steps for s in _with_parts(top)}
    data = {
        "values": [_value(slot, i) for i, slot in enumerate(program.slots) if i],
        "ops": {
            op: {k: _plain(v) for k, v in defaults_of(program, op).items()} for op in sorted(ops)
        },
        "sources": [
            [s.function, s.name, line_of(s.origin), s.context[0][0].partition(":")[2] or "float"]
            for s in program.sources
            if s is not None
        ],
        "steps": [_step(program, s, True) for s in program.steps],
        "outputs": program.outputs,
        "kept": sorted(program.kept),
        "plain": sorted(program.plain),
        "results": sorted(program.results.items()),
        "carries": sorted(program.carries.items()),
        "fused": program.fused,
    }
    if program.counts:
        data["counts"] = {name: list(count) for name, count in program.counts.items()}
    if program.dims:
        data["dims"] = {name: list(dim) for name, dim in program.dims.items()}
    if program.words.names:
        data["words"] = [list(program.words.strings), sorted(program.words.names)]
    return data


def version_of(program: Program) -> int:
    """The oldest version of the format that has what it needs."""
    return 3 if program.words.names else 2 if program.dims or program.counts else 1


def _with_parts(step: Step) -> list[Step]:
    return [step, *[s for part in step.parts for s in _with_parts(part)]]


def _value(slot: Slot, i: int) -> list[Any]:
    more: dict[str, Any] = {}
    if slot.role != INTERMEDIATE:
        more["role"] = slot.role
    if slot.name:
        more["name"] = slot.name
    if slot.root != i:
        more["root"] = slot.root
    if slot.order != HOST:
        more["order"] = slot.order
    if slot.copies:
        more["copies"] = slot.copies
    if slot.sizes:
        more["sizes"] = [_listed(n.expression if isinstance(n, Size) else n) for n in slot.sizes]
    if slot.data is not None and not any(slot.data.strides):
        more["fill"] = _plain(slot.data[(0,) * slot.data.ndim].item() if slot.data.size else 0)
    return [name_of(slot.spec.dtype), list(slot.spec.shape), *([more] if more else [])]


def _step(program: Program, step: Step, costs: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"op": step.op, "ins": list(step.ins), "outs": list(step.outs)}
    try:
        attrs = {k: _plain(v) for k, v in changed(program, step).items()}
    except TypeError:
        raise NotImplementedError(
            f"save: {program.label(step)} runs Python code, which a program cannot hold"
        ) from None
    data |= {"attrs": attrs} if attrs else {}
    data |= {"open": {k: _plain(v) for k, v in step.open.items()}} if step.open else {}
    shapes = [program.slots[i].spec.shape for i in step.ins if i]
    found = program_of(step.op, step.attrs, shapes) if is_elementwise(step.op) else None
    if found is not None and len(shapes) == len(step.ins):
        data["elementwise"] = {
            "code": list(found.code),
            "constants": [_plain(float(c)) for c in found.constants],
            "shapes": [list(s) for s in found.shapes],
        }
    data |= {"writes": list(step.writes)} if step.writes else {}
    data |= {"source": step.source} if step.source else {}
    data |= {flag: True for flag in FLAGS if getattr(step, flag)}
    if step.parts:
        data["parts"] = [_step(program, p, False) for p in step.parts]
    if costs:
        total = cost(program, step)
        data |= {"flops": total.flops, "bytes": total.bytes}
    return data


def _plain(value: Any) -> Any:
    """An attribute's value as JSON has it."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}  # JSON has no infinities
    if isinstance(value, Size):
        return {"size": _listed(value.expression)}
    if isinstance(value, tuple):
        return list(value) if {*map(type, value)} <= _INT else [_plain(v) for v in value]
    if isinstance(value, Program):
        return {"program": to_dict(value)}
    if isinstance(value, Attributes):
        return {"rule": value.op.name, "attrs": {k: _plain(v) for k, v in value.as_dict().items()}}
    if not is_plain(value):
        raise TypeError
    return value


def _listed(e: Expression) -> Any:
    return [_listed(x) for x in e] if isinstance(e, tuple) else e


# ---- reading ----


class Damaged(ValueError):
    """Data that is no program."""


def from_dict(data: Any) -> Program:
    """The program that `to_dict` has written; steps may run on any backend.

    Raises:
        Damaged: Something is missing, or not what it should be. The shapes of steps are not
            looked at: see `verify`.
    """
    try:
        return _Reader(data).program
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as e:
        raise Damaged("its fields are not those of a program") from e


class _Reader:
    def __init__(self, data: dict[str, Any]) -> None:
        self.program = program = Program()
        self.defaults = program.defaults = {
            str(op): {str(k): _value_of(v) for k, v in attrs.items()}
            for op, attrs in data["ops"].items()
        }
        program.dims = {str(n): _dim(n, *d) for n, d in data.get("dims", {}).items()}
        for n, value in enumerate(data["values"], 1):
            self._add_value(n, *value)
        count = len(program.slots)
        for n, slot in enumerate(program.slots):
            if not 0 <= slot.root < count or program.slots[slot.root].root != slot.root:
                raise Damaged(f"value {n} is a view of value {slot.root}")
            if not 0 <= slot.copies < count or (slot.copies and not slot.given):
                raise Damaged(f"value {n} is a copy of value {slot.copies}")
            source = program.slots[slot.copies]
            alike = source.given and not source.copies and source.spec.shape == slot.spec.shape
            if slot.copies and not alike:
                raise Damaged(f"value {n} is no copy of value {slot.copies}")
        for function, name, where, kind in data["sources"]:
            if kind not in FLOAT_TYPES:
                raise Damaged(f"a function has the type configuration {kind!r:.40}")
            context = ((f"cpu:{kind}",), "")
            program.sources.append(Source(str(function), str(name), str(where), context))
        program.steps = [self._step(s, 0) for s in data["steps"]]
        program.outputs = {str(k): self._number(i) for k, i in data["outputs"].items()}
        for name, (count, axis) in data.get("counts", {}).items():
            self._add_count(name, count, axis)
        program.kept = set(self._numbers(data["kept"])) | set(program.outputs.values())
        program.plain = set(self._numbers(data["plain"]))
        program.results = {self._number(o): self._given(w) for o, w in data["results"]}
        program.carries = {self._given(i): self._number(o) if o else 0 for i, o in data["carries"]}
        for to, o in program.carries.items():
            if o and program.slots[o].spec is not program.slots[to].spec:
                raise Damaged(f"value {to} gets another shape or type, that of value {o}")
        program.fused, program.steady = bool(data["fused"]), True
        if "words" in data:
            program.words = self._words(*data["words"])

    def _words(self, strings: Any, names: Any) -> Words:
        if not all(type(s) is str for s in (*strings, *names)):
            raise Damaged("its strings are none")
        inputs = {self.program.slots[i].name for i in self.program.inputs}
        unknown = {*names} - inputs - {*self.program.outputs}
        if unknown:
            raise Damaged(f"strings are its {min(unknown)!r:.40}, which it does not have")
        return Words(strings, names)

    def _add_value(self, n: int, dtype: str, shape: Any, more: Any = None) -> None:
        if dtype not in DTYPES:
            raise Damaged(f"value {n} has the unknown type {dtype!r}")
        shape = _ints(shape)
        if shape and min(shape) < 0:
            raise Damaged(f"value {n} has the shape {shape}")
        spec = Spec.of(shape, dtype_of(dtype)).checked()
        if more is None:
            self.program.new_slot(spec)
            return
        role, order = more.get("role", INTERMEDIATE), more.get("order", HOST)
        if role not in ROLES or order not in LAYOUTS:
            raise Damaged(f"value {n} has the role {role!r} and the order {order!r}")
        program = self.program
        root, copies = _ints([more.get("root", n), more.get("copies", 0)])
        slot = program.slots[program.new_slot(spec, root, role)]
        slot.name, slot.order, slot.copies = str(more.get("name", "")), order, copies
        if "sizes" in more:
            sizes = [_expression(e) for e in more["sizes"]]
            slot.sizes = tuple([e if type(e) is int else Size(e) for e in sizes])
            if len(sizes) != spec.ndim:
                raise Damaged(f"value {n} has {len(sizes)} open sizes and {spec.ndim} axes")
        if "fill" in more:
            slot.data = repeated(spec, _value_of(more["fill"]))

    def _step(self, data: dict[str, Any], depth: int) -> Step:
        op = data["op"]
        if op not in self.defaults or depth > 8:
            raise Damaged(f"there is no op {op!r}")
        attrs = dict(self.defaults[op])
        for k, v in data.get("attrs", {}).items():
            attrs[str(k)] = _value_of(v)
        step = Step(op, attrs, self._numbers(data["ins"], 0), self._numbers(data["outs"]))
        step.open = {str(k): _value_of(v) for k, v in data.get("open", {}).items()}
        step.writes = _ints(data.get("writes", ()))
        if any(not 0 <= p < len(step.ins) for p in step.writes):
            raise Damaged(f"{op} writes inputs {step.writes} of {len(step.ins)}")
        step.parts = tuple([self._step(p, depth + 1) for p in data.get("parts", ())])
        (step.source,) = _ints([data.get("source", 0)])
        if not 0 <= step.source < len(self.program.sources):
            raise Damaged(f"{op} has the source {step.source}")
        for flag in FLAGS:
            if flag in data:
                setattr(step, flag, bool(data[flag]))
        return step

    def _add_count(self, name: str, count: str, axis: int) -> None:
        program = self.program
        y, n = (program.slots[program.outputs[k]].spec for k in (name, count))
        if n != Spec.of((), np.int64) or type(axis) is not int or not 0 <= axis < y.ndim:
            raise Damaged(f"{name!r} is {y}, with {n} entries along axis {axis!r}")
        program.counts[name] = count, axis

    def _number(self, i: Any) -> int:
        if type(i) is not int or not 0 < i < len(self.program.slots):
            raise Damaged(f"there is no value {i!r}")
        return i

    def _given(self, i: Any) -> int:
        if not self.program.slots[self._number(i)].given:
            raise Damaged(f"value {i} is not a given one")
        return int(i)

    def _numbers(self, values: Any, least: int = 1) -> tuple[int, ...]:
        """Numbers of values; from 0 on where one may be left out."""
        found = _ints(values)
        if found and not least <= min(found) <= max(found) < len(self.program.slots):
            bad = next(i for i in found if not least <= i < len(self.program.slots))
            raise Damaged(f"there is no value {bad!r}")
        return found


def _ints(values: Sequence[Any]) -> tuple[int, ...]:
    if not {*map(type, values)} <= _INT:
        raise Damaged(f"{values!r} are not whole numbers")
    return tuple(values)


def _dim(name: str, *numbers: Any) -> Dim:
    dim = Dim(*numbers)
    known = [n for n in dim if n is not None]
    good = {*map(type, known)} <= _INT and all(0 <= n <= LARGEST for n in known) and dim.multiple
    if not good or None in (dim.example, dim.least, dim.multiple):
        raise Damaged(f"the open size {name!r:.40} has the range {numbers!r:.60}")
    return dim


def _expression(data: Any, depth: int = 0) -> Expression:
    """An expression, from lists; its names and values are looked up when it is evaluated."""
    if type(data) in (int, str) or (type(data) is float and depth):
        return data
    if type(data) is list and depth < 64:
        if len(data) == 2 and {*map(type, data)} <= _INT:
            return tuple(data)
        if len(data) == 3 and data[0] in OPERATORS:
            return data[0], _expression(data[1], depth + 1), _expression(data[2], depth + 1)
    raise Damaged(f"{data!r:.60} is no expression of sizes")


def _value_of(value: Any) -> Any:
    """The value of an attribute that `_plain` has written."""
    if isinstance(value, list):
        if _NESTED.isdisjoint(map(type, value)):
            return tuple(value)
        return tuple([_value_of(v) for v in value])
    if isinstance(value, dict):
        if "float" in value:
            return float(value["float"])
        if "size" in value:
            return Size(_expression(value["size"]))
        if "program" in value:
            return _Reader(value["program"]).program
        op = OPS.get(value["rule"])
        if op is None:
            raise Damaged(f"there is no op {value['rule']!r}")
        return op.attrs(**{k: _value_of(v) for k, v in value["attrs"].items()})
    return value
