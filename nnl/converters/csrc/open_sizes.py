# SPDX-License-Identifier: Apache-2.0
"""C for any sizes in a range, made of what is written for several."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nnl.converters.csrc.loops import Key, number
from nnl.converters.csrc.memory import Plan
from nnl.converters.networks.lowering import Lowered
from nnl.graph.program.sizes import Dim, Expression, Solver, Unexplained, Vector

_TOKEN = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?(?:e[+-]?\d+)?f?|\s+|.", re.S)
_FLOAT = re.compile(r"\d.*[.e].*f")


class OpenSizes:
    """The numbers that follow from open sizes: `s` in the program, the dims first.

    Args:
        dims: Open sizes by name. sizes: Those of each network, the greatest last.
        lowered, plans: The networks.
    Attributes:
        lines: What gives `s` its values, and `room`, the sizes of the arrays in the arena.
        ranks: The arrays in the arena of each network, in the order of the places of the last.
        lives: The first and the last step that has each of them.
    """

    def __init__(
        self,
        dims: Mapping[str, Dim],
        sizes: Sequence[Mapping[str, int]],
        lowered: Sequence[Lowered],
        plans: Sequence[Plan],
    ) -> None:
        names = {n: tuple([s[n] for s in sizes]) for n in dims}
        self.dims, self.solver, self.known = dims, Solver(names), list(dims)
        self.lines: list[str] = []
        _same([[n.op.name for n in low.nodes] for low in lowered], "functions")
        ends = zip(*[low.inputs.values() for low in lowered], strict=True)
        self.axes = {}  # where a caller sees each dim
        for i, vs in enumerate(ends):
            for axis, v in enumerate(zip(*[x.current_spec.shape for x in vs], strict=True)):
                self.axes.update({n: (axis, i) for n in dims if names[n] == v})
        self.shapes: dict[Key, list[Vector]] = {}  # of arrays, by their keys in the first network
        for vs in zip(*[low.inputs.values() for low in lowered], strict=True):
            self.shapes[vs[0].key] = list(zip(*[x.current_spec.shape for x in vs], strict=True))
        for nodes in zip(*[low.nodes for low in lowered], strict=True):
            own = self.sizes_of([v.key for v in nodes[0].inputs if v is not None])
            for k, specs in enumerate(zip(*[n.out_specs for n in nodes], strict=True)):
                found = list(zip(*[s.shape for s in specs], strict=True))
                self.shapes[id(nodes[0]), k] = found
                for v in found:
                    if len(set(v)) > 1 and v not in self.solver.known:
                        text = self.number(v, own)
                        self.solver.add(v, (len(self.known), 0))
                        self.lines.append(f"s[{len(self.known)}] = {text};")
                        self.known.append(text)
        for arrays in zip(*[p.constants.values() for p in plans], strict=True):
            if any(not np.array_equal(a, arrays[0], equal_nan=True) for a in arrays):
                raise Unexplained("CSRC cannot leave sizes open: a constant depends on them")
        _same([[life[:2] for life in p.used.values()] for p in plans], "arrays")
        last = plans[-1]
        places = [last.places[key] for key in last.used]
        order = sorted(range(len(places)), key=places.__getitem__)
        used = [list(p.used.items()) for p in plans]
        self.ranks: list[dict[Key, int]] = [
            {u[i][0]: rank for rank, i in enumerate(order)} for u in used
        ]
        self.lives = [used[0][i][1][:2] for i in order]
        for rank, i in enumerate(order):
            self.lines.append(f"room[{rank}] = {self.number(tuple([u[i][1][2] for u in used]))};")

    def sizes_of(self, keys: Iterable[Key]) -> list[tuple[Vector, Expression]]:
        """Sizes of arrays of the first network, which explain best what is done with them."""
        known = self.solver.known
        return [(v, known[v]) for key in keys for v in self.shapes.get(key, ()) if v in known]

    def number(self, v: Vector, own: Any = ()) -> str:
        """A number at all networks, in C.

        Raises:
            Unexplained: No expression gives it.
        """
        try:
            return self._c(self.solver.size(v, own))
        except Unexplained:
            raise Unexplained(
                f"CSRC: no expression of sizes gives {v[0]}, {v[1]}, {v[2]}"
            ) from None

    def _c(self, e: Expression) -> str:
        if isinstance(e, (int, float)):
            return str(e) if isinstance(e, int) and e >= 0 else f"({e})"
        if isinstance(e, str) or len(e) == 2:
            return f"s[{self.known.index(e) if isinstance(e, str) else e[0]}]"
        a, b = self._c(e[1]), self._c(e[2])
        if e[0] in ("min", "max"):
            return f"({a} {'<' if e[0] == 'min' else '>'} {b} ? {a} : {b})"
        return f"({a} {e[0][0]} {b})"

    def text(self, texts: Sequence[str], own: Any) -> str:
        """What stands for texts that are alike but for numbers; see sizes_of.

        Raises:
            Unexplained: They are not, or no expression gives a number.
        """
        found = []
        tokens = [_TOKEN.findall(t) for t in texts]
        _same([[t for t in ts if not t[0].isdigit()] for ts in tokens], "steps")
        for same in zip(*tokens, strict=True):
            if len(set(same)) == 1:
                found.append(same[0])
            elif all(t.isdigit() for t in same):
                found.append(self.number(tuple(map(int, same)), own))
            elif all(map(_FLOAT.fullmatch, same)):
                values = [float(np.float32(t[:-1])) for t in same]
                how, top, size = self.solver.factor(values, own, np.float32)
                text = f"{number(top)} {how} (float){self._c(size)}"
                found.append(f"({text})")
            else:
                _same(same, "steps")
        return "".join(found)

    def resize(self, prefix: str, ends: Mapping[str, Sequence[Any]]) -> str:
        """The function that a caller says sizes with.

        Args:
            ends: Of "input" and "output", the shapes of each at all networks.
        """
        checks, lines = [], [f"s[{i}] = sizes[{i}];" for i in range(len(self.dims))]
        for i, dim in enumerate(self.dims.values()):
            checks.append(f"sizes[{i}] < {dim.least} || sizes[{i}] > {dim.greatest}")
            checks += [f"sizes[{i}] % {dim.multiple}"] if dim.multiple > 1 else []
        lines += self.lines
        for kind, shapes in ends.items():
            for k, each in enumerate(shapes):
                own = f"{prefix}_{kind}[{k}]"
                sizes = [self.number(v) for v in zip(*each, strict=True)]
                lines += [f"{own}.shape[{a}] = {n};" for a, n in enumerate(sizes)]
                lines.append(f"{own}.size = {' * '.join(sizes) or '1'};")
        n, body = len(self.lives), "\n    ".join(lines)
        lives = ", ".join(f"{{{a}, {b}}}" for a, b in self.lives)
        memory = f"""    for (int i = 0; i < {n}; i++)
        for (int j = at[i] = 0; j < i; j++)
            if (lives[j][0] <= lives[i][1] && lives[j][1] >= lives[i][0])
                at[i] = at[j] + room[j] > at[i] ? at[j] + room[j] : at[i];
"""
        return f"""int {prefix}_resize(const int *sizes)
{{
{f"    static const int lives[{n}][2] = {{{lives}}};{chr(10)}" if n else ""}\
    if ({" || ".join(checks)})
        return -1;
    {body}
{memory if n else ""}    return 0;
}}
"""

    def comment(self) -> str:
        """What the sizes are, for people and for `compiled`."""
        return "\n".join(
            f"   {n}: axis {self.axes[n][0]} of input {self.axes[n][1]}, {d.wanted}"
            for n, d in self.dims.items()
        )


def _same(each: Sequence[Any], what: str) -> None:
    """
    Raises:
        Unexplained: They differ, perhaps where an axis has one element: larger sizes are tried.
    """
    if any(e != each[0] for e in each):
        raise Unexplained(f"CSRC needs other {what} at other sizes")
