# SPDX-License-Identifier: Apache-2.0
"""Updates of solvers, for one parameter or many at a time; checks of gradients; the loss scale.

Kernels that exist for plans only:

multi_update: as in cpp/src/kernels/update.cpp, and an output may be of another type than its w: a
copy in 16 bits. With the attribute `guarded` two more inputs come last: bool[2], the answer of
finite_check, and float32, the loss scale. Gradients are divided by the scale; if one of the two is
true, neither weights nor states nor step numbers change.

finite_check: arrays -> bool[2]: whether an element is infinite, whether one is NaN.

follow_loss_scale: (bool[2], scale float32, counts int64[2]) -> nothing; writes scale and counts.
Divides the scale by `factor` if one is true, multiplies it after `steps` steps without that; the
counts are of these steps, and of all with one true. The scale stays within [low, high].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nnl.ext.device.kernels.copies import Fill
from nnl.ext.device.kernels.module import (
    FLOATS,
    MOST_ELEMENTS,
    TYPES,
    Code,
    Ins,
    Launch,
    Outs,
    geometry,
    line,
    register,
    type_of,
    words,
)
from nnl.ext.device.registry import Kernel, Operand

FILES = ("update_rules", "update")
CHUNK = 1 << 13  # elements that one block updates
CHECKED = 1 << 14  # elements that one block checks
CAPACITIES = (1, 8, 64, 256)  # parameters that a launch has room for
MOST_BYTES = 32000  # of the 32764 bytes that kernels take from CUDA 12.1 on


class Rule(NamedTuple):
    """Attributes in the order of update_rules.cl, states, and whether it looks at norms first."""

    attributes: tuple[str, ...]
    states: int
    norms: bool = False
    optional: bool = False  # one more state may come after t and lr


MOMENTS = ("beta1", "beta2", "eps")
RULES = {
    "sgd_update": Rule((), 0),
    "momentum_update": Rule(("momentum", "wd", "lr0"), 1),
    "nesterov_update": Rule(("momentum",), 1),
    "lars_update": Rule(("momentum", "coefficient", "eps", "wd"), 1, norms=True),
    "adagrad_update": Rule(("eps",), 1),
    "adadelta_update": Rule(("decay", "eps"), 2),
    "rmsprop_update": Rule(("decay", "eps"), 1),
    "rmsprop_graves_update": Rule(("decay", "eps", "momentum"), 3),
    "lion_update": Rule(("beta1", "beta2", "wd"), 1),
    "adam_update": Rule((*MOMENTS, "wd", "lr0"), 2),
    "adamax_update": Rule(MOMENTS, 2),
    "adabelief_update": Rule((*MOMENTS, "wd", "fixed_decay", "rectify"), 2, optional=True),
    "amsgrad_update": Rule((*MOMENTS, "bias_correction"), 3),
    "adabound_update": Rule((*MOMENTS, "final_lr", "gamma", "lr0"), 2),
    "amsbound_update": Rule((*MOMENTS, "final_lr", "gamma", "lr0", "bias_correction"), 3),
    "lamb_update": Rule((*MOMENTS, "gamma_l", "gamma_u", "wd", "bias_correction"), 2, norms=True),
}


class Parameter(NamedTuple):
    """Positions of one parameter's arrays among inputs and outputs; y is None without output."""

    w: int
    g: int
    states: tuple[int, ...]
    t: int
    lr: int
    y: int | None
    size: int
    types: tuple[str, ...]  # of w, g, the states, y


class Group:
    """The launches for parameters of the same element types."""

    def __init__(
        self,
        rule: Rule,
        name: str,
        numbers: Sequence[float],
        parameters: Sequence[Parameter],
        capacity: int,
    ) -> None:
        self.parameters, self.capacity = parameters, capacity
        self.states = len(parameters[0].states)
        chunks = [-(-p.size // CHUNK) for p in parameters]
        first = np.concatenate([[0], np.cumsum(chunks)])
        self.blocks = int(first[-1])
        room = [0] * (capacity - len(parameters))
        attributes = [*numbers[2:], *[0.0] * (8 - len(numbers[2:]))]
        rest = words(
            *attributes, *numbers[:2], len(parameters), CHUNK,
            *[p.size for p in parameters], *room,
            *[int(v) for v in first], *room,
        )  # fmt: skip
        w, g, *kinds, y = parameters[0].types
        macros = (
            ("MOST", capacity), ("STATES", self.states), ("RULE", name), ("W", w), ("G", g),
            ("S", kinds[0]), ("Y", y), ("WIDE", max(1, geometry().pack // 4)),
            ("NORMS_MOVE", str(name == "lamb_update").lower()),
            *([("NORMS", "")] if rule.norms else []),
        )  # fmt: skip
        states = [f"s{k}" for k in range(self.states)]
        row = ("W w", "const G g", *(f"S {s}" for s in states), "i64 t", "const u64 lr", "Y y")
        given = ", ".join(["i, w, g", *states, *["0"] * (3 - self.states), "y, bad, scale"])
        kernels = {
            "prepare": "prepare_update(i, t, lr, bad, constants, p)",
            "sum": f"sum_update({given}, constants, parts, shared, p)",
            "join": "join_update(i, bad, constants, parts, p)",
            "apply": f"apply_update({given}, constants, p)",
        }
        if not rule.norms:
            del kernels["sum"], kernels["join"]
        arrays = ("const b8 bad", "const f32 scale", "f32 constants", "real parts")
        few = (-(-len(parameters) // geometry().threads), 1, 1)
        self.launches = []
        for k, call in kernels.items():
            alone = k in ("prepare", "join")
            code = Code(
                f"{k}_{name}", call, arrays, "UpdateP", FILES, macros,
                ("f32 shared[THREADS]",) if k == "sum" else (), "", row, capacity,
                "OF_THREAD" if alone else "OF_BLOCK",
            )  # fmt: skip
            grid = few if alone else (self.blocks, 1, 1)
            self.launches.append(Launch(code, grid, line(), rest))
        self.constants_bytes = len(parameters) * 40 + len(parameters) % 2 * 8
        self.workspace = self.constants_bytes + (16 * self.blocks if rule.norms else 0)

    def run(
        self,
        ins: Sequence[int | None],
        outs: Sequence[int],
        guard: list[int],
        workspace: int,
        stream: Any,
    ) -> None:
        addresses: list[int] = []
        for p in self.parameters:
            every = (p.w, p.g, *p.states, p.t, p.lr)
            addresses += [ins[i] or 0 for i in every]
            addresses.append(0 if p.y is None else outs[p.y])
        addresses += [0] * ((self.states + 5) * (self.capacity - len(self.parameters)))
        addresses += [*guard, workspace, workspace + self.constants_bytes]
        for launch in self.launches:
            launch.run(addresses, stream)


class Update(Kernel):
    """One step of one rule for any number of parameters."""

    def __init__(self, groups: list[Group], inputs: int, guarded: bool) -> None:
        self.groups, self.inputs, self.guarded = groups, inputs, guarded
        self.same = {p.y for g in groups for p in g.parameters if p.types[0] == p.types[-1]}
        self.workspace = sum(g.workspace for g in groups)

    def may_overwrite(self, out: int, input: int) -> bool:
        return input == out * self.inputs and out in self.same

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: Any
    ) -> None:
        guard = [ins[-2] or 0, ins[-1] or 0] if self.guarded else [0, 0]
        for group in self.groups:
            group.run(ins, outs, guard, workspace, stream)
            workspace += group.workspace


def capacity_of(states: int, count: int) -> int:
    """Parameters in one launch: the smallest capacity that suffices, or the largest there is."""
    most = geometry().parameters
    fitting = [c for c in CAPACITIES if c <= most and c * 8 * (states + 7) + 256 <= MOST_BYTES]
    return next((c for c in fitting if c >= count), fitting[-1])


def make(
    name: str, count: int | None, attrs: dict[str, Any], ins: list[Any], outs: list[Operand]
) -> Kernel | None:
    """The update of `count` parameters, or of as many as there are."""
    rule, guarded = RULES[name], bool(attrs.get("guarded"))
    arrays = ins[:-2] if guarded else ins
    least = 4 + rule.states
    if count is None:
        count = next(
            (len(arrays) // n for n in ((least + 1, least) if rule.optional else (least,))
             if len(arrays) % n == 0), 0,
        )  # fmt: skip
    if not count or len(arrays) % count:
        return None
    inputs = len(arrays) // count
    found = [_parameter(rule, k, inputs, arrays, outs) for k in range(count)]
    if None in found:
        return None
    scale, decay = attrs.get("gradient_scale", 1.0), attrs.get("gradient_decay", 0.0)
    numbers = [float(scale), float(decay), *(float(attrs[a]) for a in rule.attributes)]
    groups: list[Group] = []
    parameters = [p for p in found if p is not None and p.size]
    for kind in dict.fromkeys((len(p.states), p.types) for p in parameters):
        alike = [p for p in parameters if (len(p.states), p.types) == kind]
        symbol = name + ("_largest" if kind[0] > rule.states else "")
        for part in _parts(alike, capacity_of(kind[0], len(alike))):
            capacity = capacity_of(kind[0], len(part))
            groups.append(Group(rule, symbol, numbers, part, capacity))
    if len(parameters) < count:
        return None  # the step number of an empty parameter advances too
    return Update(groups, inputs, guarded)


def _parts(items: Sequence[Parameter], n: int) -> Iterator[Sequence[Parameter]]:
    for i in range(0, len(items), n):
        yield items[i : i + n]


def _parameter(
    rule: Rule, k: int, inputs: int, arrays: list[Operand | None], outs: list[Operand]
) -> Parameter | None:
    base, at = k * inputs, k * inputs + 2 + rule.states
    states = list(range(base + 2, at))
    if rule.optional and inputs > 4 + rule.states and arrays[at + 2] is not None:
        states.append(at + 2)
    w, t, lr = arrays[base], arrays[at], arrays[at + 1]
    if w is None or t is None or lr is None or w.size >= MOST_ELEMENTS:
        return None
    if t.dtype != np.int64 or lr.dtype != np.float64:
        return None
    y = outs[k] if outs else None
    own = [arrays[i] for i in (base, base + 1, *states)] + ([y] if y else [])
    if any(
        x is None or x.dtype.name not in FLOATS or x.channels_last != w.channels_last for x in own
    ):
        return None
    kinds = {type_of(arrays[i]) for i in states} or {TYPES["float32"]}  # type: ignore[arg-type]
    if len(kinds) > 1:
        return None
    g = arrays[base + 1]
    assert g is not None
    types = (type_of(w), type_of(g), *kinds, type_of(y) if y else type_of(w))
    return Parameter(base, base + 1, tuple(states), at, at + 1, k if outs else None, w.size, types)


for _name in RULES:
    register(_name)(partial(make, _name, 1))


@register("multi_update")
def multi_update(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """See the module."""
    return make(attrs["rule"], None, attrs, ins, outs) if attrs["rule"] in RULES else None


class FiniteCheck(Kernel):
    """Flags that start as false, and then a launch for up to as many arrays as fit."""

    types = {"float32": 0, "float16": 1, "bfloat16": 2}

    def __init__(self, ins: Sequence[Operand], flags: Operand) -> None:
        self.clear = Fill(flags, 0.0)
        self.parts: list[tuple[list[int], int, Launch]] = []
        given = [i for i, x in enumerate(ins) if x.size]
        most = geometry().parameters
        for start in range(0, len(given), most):
            part = given[start : start + most]
            capacity = next(c for c in CAPACITIES if c >= len(part))
            sizes = [ins[i].size for i in part]
            first = [0, *np.cumsum([-(-n // CHECKED) for n in sizes])]
            room = [0] * (capacity - len(part))
            kinds = [self.types[ins[i].dtype.name] for i in part]
            rest = words(
                len(part), CHECKED, *sizes, *room, *[int(v) for v in first], *room, *kinds, *room
            )
            code = Code(
                "finite", "check_finite(i, x, y, p)", ("b8 y",), "FiniteP", FILES,
                (("CHECK_FINITE", ""), ("MOST", capacity)), (), "", ("const u8 x",), capacity,
                "OF_BLOCK",
            )  # fmt: skip
            launch = Launch(code, (int(first[-1]), 1, 1), line(), rest)
            self.parts.append((part, len(room), launch))

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: Any
    ) -> None:
        self.clear.run([], outs, workspace, stream)
        for part, room, launch in self.parts:
            launch.run([*(ins[i] for i in part), *[0] * room, outs[0]], stream)


@register("finite_check")
def finite_check(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """See the module."""
    given = [x for x in ins if x is not None and x.dtype.name in FLOATS]
    large = any(x.size >= MOST_ELEMENTS for x in given)
    if len(given) < len(ins) or large or outs[0].dtype.itemsize != 1 or outs[0].size != 2:
        return None
    return FiniteCheck(given, outs[0])


class FollowLossScale(Kernel):
    """One thread. Its result, if it is asked for, is its first input as it was."""

    def may_overwrite(self, out: int, input: int) -> bool:
        return input == 0

    def __init__(self, attrs: dict[str, Any]) -> None:
        arrays = ("const b8 bad", "f32 scale", "i64 counts")
        code = Code(
            "follow", "follow_scale(bad, scale, counts, p)", arrays, "ScaleP", FILES,
            (("FOLLOW_SCALE", ""),),
        )  # fmt: skip
        numbers = [float(attrs[k]) for k in ("factor", "low", "high")]
        self.launch = Launch(code, (1, 1, 1), (32, 1, 1), words(*numbers, int(attrs["steps"])))

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: Any
    ) -> None:
        self.launch.run(ins, stream)


@register("follow_loss_scale")
def follow_loss_scale(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """See the module."""
    names = [x.dtype.name if x else "" for x in ins]
    known = names == ["bool", "float32", "int64"] and ins[2] is not None and ins[2].size == 2
    return FollowLossScale(attrs) if known else None
