# SPDX-License-Identifier: Apache-2.0
"""Writes the text of element-wise programs, with or without reductions.

Shapes, strides and constants are parameters; the text depends on the instructions, the element
types and the kinds of patterns only, so that one compiled kernel serves many layers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from nnl.core.ops.elementwise import ARITY, NAMES
from nnl.ext.device.kernels.elementwise_codes import TEXTS
from nnl.ext.device.kernels.module import Code, name_of, pointer, type_of
from nnl.ext.device.kernels.patterns import Pattern
from nnl.ext.device.registry import Operand

REDUCERS = {
    "sum": "SUMS",
    "largest": "LARGEST",
    "smallest": "SMALLEST",
    "product": "PRODUCTS",
}  # in common.cl


@dataclass(frozen=True)
class Output:
    """An output of a program.

    Attributes:
        value: Number of the value it holds.
        operand: Its array.
        reduction: None, or how elements of a group become one, a name of REDUCERS.
        scale: What a reduced value is multiplied by.
    """

    value: int
    operand: Operand
    reduction: str | None = None
    scale: float = 1.0


def kind_of(pattern: Pattern, width: int) -> str:
    """How the generated code reads an input."""
    if pattern.is_number:
        return "number"
    if pattern.is_full:
        return "full"
    if not pattern.takes(width):
        return f"each{len(pattern.sizes)}"
    return f"{'run' if pattern.strides[-1] else 'same'}{len(pattern.sizes)}"


class Generator:
    """The text for inputs of given types and kinds.

    Attributes:
        used: Numbers of the inputs that the program reads; others are no parameters.
        sums: (value, reduction) of all that is reduced; outputs may share one, with other scales.
    """

    def __init__(
        self,
        ins: Sequence[Operand],
        kinds: Sequence[str],
        code: Sequence[int],
        constants: int,
        outputs: Sequence[Output],
        width: int,
    ) -> None:
        self.ins, self.kinds, self.code, self.width = ins, kinds, code, width
        self.constants, self.outputs = constants, outputs
        self.steps = [tuple(code[k : k + 4]) for k in range(0, len(code), 4)]
        self.reduced = [o for o, out in enumerate(outputs) if out.reduction]
        self.stored = [o for o, out in enumerate(outputs) if not out.reduction]
        joined = [(outputs[o].value, str(outputs[o].reduction)) for o in self.reduced]
        self.sums = list(dict.fromkeys(joined))
        self.sum_of = {o: self.sums.index(j) for o, j in zip(self.reduced, joined, strict=True)}
        self._find_uses()

    def _find_uses(self) -> None:
        needed = {o.value for o in self.outputs}
        for k in reversed(range(len(self.steps))):
            if len(self.ins) + k in needed:
                op, *operands = self.steps[k]
                needed |= {v for v in operands[: ARITY[NAMES[op]]] if v >= 0}
        self.needed = needed
        self.used = [i for i in range(len(self.ins)) if i in needed]

    def code_of(self, kernel: str) -> Code:
        """The kernel of this name: "run", or with reductions "rows", "columns" or "finish"."""
        text = {
            "run": self._run,
            "rows": self._rows,
            "columns": self._columns,
            "finish": self._finish,
        }[kernel]()
        arrays = self._arrays()
        given = [name_of(a) for a in arrays]
        local: tuple[str, ...] = ()
        if kernel != "run":
            local = (f"f32 shared[{self.width if kernel == 'columns' else 1} * THREADS]",)
            given.append("shared")
        body = self._structure() + text
        name = f"{kernel}_{hashlib.sha1((body + str(arrays)).encode()).hexdigest()[:8]}"
        call = f"program({', '.join(given)}, p)"
        return Code(name, call, arrays, "ProgramP", ("elementwise",), (), local, body)

    def _name(self, value: int, lane: str = "[l]") -> str:
        if value < 0:
            return f"c{-value - 1}"
        if value < len(self.ins):
            return f"x{value}v" + ("" if self.kinds[value] == "number" else lane)
        return f"v{value}"

    def _expression(self, step: Sequence[int]) -> str:
        names = dict(zip("abc", (self._name(v) for v in step[1:4]), strict=True))
        return re.sub(r"\b[abc]\b", lambda m: names[m[0]], TEXTS[NAMES[step[0]]])

    def _arrays(self) -> tuple[str, ...]:
        arrays = [f"const {type_of(self.ins[i])} x{i}" for i in self.used]
        arrays += [f"{type_of(o.operand)} y{k}" for k, o in enumerate(self.outputs)]
        return (*arrays, "f32 part") if self.reduced else tuple(arrays)

    def _parameters(self) -> str:
        return ", ".join(pointer("GLOBAL ", a) for a in self._arrays())

    def _structure(self) -> str:
        fields = ["Groups g;"] if self.reduced else ["i64 n, vectors;"]
        for i in self.used:
            rank = "".join(c for c in self.kinds[i] if c.isdigit())
            if rank:
                fields.append(f"Axis a{i}[{rank}];")
            if self.kinds[i] != "full":
                fields.append(f"i64 o{i};")
        fields += [f"u64 c{k};" for k in range(self.constants)]
        fields += [f"u64 s{o};" for o in self.reduced]
        return "\n".join(["typedef struct {", *(f"  {f}" for f in fields), "} ProgramP;", ""])

    def _body(self, width: int) -> str:
        """The function that computes `width` neighbours from element i on."""
        lane = f"LANE_TYPE({width})"
        loads = []
        for i in self.used:
            kind, t = self.kinds[i], type_of(self.ins[i])
            rank = "".join(c for c in kind if c.isdigit())
            place = f"place_of({rank}, %s, p->a{i}, p->o{i})"
            if kind == "number":
                loads.append(f"const lane x{i}v = FLOAT({t}, x{i}[p->o{i}]);")
                continue
            loads.append(f"LANES({width}, x{i}v);")
            each = f"UNROLL for (int m = 0; m < {width}; ++m) LANE(x{i}v, m) ="
            if kind == "full":
                loads.append(f"LOAD_LANES({width}, {t}, x{i}v, x{i} + i);")
            elif kind.startswith("run"):
                loads.append(f"LOAD_LANES({width}, {t}, x{i}v, x{i} + {place % 'i'});")
            elif kind.startswith("same"):
                loads.append(f"const float x{i}s = FLOAT({t}, x{i}[{place % 'i'}]);")
                loads.append(f"EACH_LANE({width}, l) x{i}v[l] = x{i}s;")
            else:
                loads.append(f"{each} FLOAT({t}, x{i}[{place % '(i + m)'}]);")
        loads += [f"const lane c{k} = NUMBER(p->c{k});" for k in range(self.constants)]
        loads += [f"LANES({width}, y{o}v);" for o in self.stored]
        lines = [
            f"const lane v{len(self.ins) + k} = {self._expression(step)};"
            for k, step in enumerate(self.steps)
            if len(self.ins) + k in self.needed
        ]
        lines += [f"y{o}v[l] = {self._name(self.outputs[o].value)};" for o in self.stored]
        lines += [f"r{q}[l] = {self._name(value)};" for q, (value, _) in enumerate(self.sums)]
        stores = [
            f"STORE_LANES({width}, {type_of(self.outputs[o].operand)}, y{o} + i, y{o}v);"
            for o in self.stored
        ]
        more = "".join(f", {lane}* r{q}" for q in range(len(self.sums)))
        return "\n".join(
            [
                f"#undef lane\n#define lane {lane}",
                f"INLINE void body_{width}({self._parameters()}, unsigned i{more}, "
                "const ProgramP* p) {",
                *(f"  {s}" for s in loads),
                f"  EACH_LANE({width}, l) {{",
                *(f"    {s}" for s in lines), "  }",
                *(f"  {s}" for s in stores), "}", "",
            ]
        )  # fmt: skip

    def _compute(self, width: int, i: str) -> str:
        names = ", ".join(name_of(a) for a in self._arrays())
        return f"body_{width}({names}, {i}{''.join(f', r{q}' for q in range(len(self.sums)))}, p)"

    def _head(self) -> str:
        local = ", LOCAL f32* shared" if self.reduced else ""
        return f"INLINE void program({self._parameters()}{local}, const ProgramP* p) {{"

    def _run(self) -> str:
        w = self.width
        rest = f"  EACH(i, p->n - p->vectors * {w}) {self._compute(1, f'p->vectors * {w} + i')};"
        return f"""{self._body(w)}{self._body(1) if w > 1 else ""}{self._head()}
  EACH(k, p->vectors) {self._compute(w, f"k * {w}")};
{rest if w > 1 else ""}
}}
"""

    def _joined(self, kind: str, a: str, b: str) -> str:
        return f"join({REDUCERS[kind]}, {a}, {b})"

    def _start(self) -> str:
        """Declares sums by lane, and where a step leaves what they take in."""
        w = self.width
        return "\n".join(
            f"  LANES({w}, r{q});\n  LANES({w}, sum{q});\n"
            f"  EACH_LANE({w}, l) sum{q}[l] = start_of({REDUCERS[kind]});"
            for q, (_, kind) in enumerate(self.sums)
        )

    def _take_in(self) -> str:
        """Adds what a step has left to the sums."""
        joins = "".join(
            f" sum{q}[l] = JOIN_{REDUCERS[kind]}(sum{q}[l], r{q}[l]);"
            for q, (_, kind) in enumerate(self.sums)
        )
        return f"      EACH_LANE({self.width}, l) {{{joins} }}\n"

    def _result(self, o: int, group: str, value: str) -> str:
        t = type_of(self.outputs[o].operand)
        return f"y{o}[{group}] = CAST({t}, {value} * NUMBER(p->s{o}));"

    def _written(self, group: str, value: str, indent: str) -> str:
        """Statements that write the values of a group; `value` has {q} for the sum's number."""
        whole = "".join(
            f"{indent}  {self._result(o, group, value.format(q=q))}\n"
            for o, q in self.sum_of.items()
        )
        parts = "".join(
            f"{indent}  part[({q} * (unsigned)p->g.groups + {group}) * (unsigned)p->g.splits"
            f" + BLOCK_Y] = {value.format(q=q)};\n"
            for q in range(len(self.sums))
        )
        return f"{indent}if (p->g.splits == 1) {{\n{whole}{indent}}} else {{\n{parts}{indent}}}\n"

    def _unrolled(self) -> str:
        """Two steps at a time where one array alone has too few loads under way.

        Not with results to store: the next load has to wait for what may be its own memory.
        """
        alone = sum(self.kinds[i] == "full" for i in self.used) == 1 and not self.stored
        return "\n#pragma unroll 2" if alone else ""

    def _rows(self) -> str:
        w, totals = self.width, ""
        for q, (_, kind) in enumerate(self.sums):
            totals += f"""  float sum{q}s = LANE(sum{q}, 0);
  for (int m = 1; m < {w}; ++m) sum{q}s = {self._joined(kind, f"sum{q}s", f"LANE(sum{q}, m)")};
  sum{q}s = reduce_in_team({REDUCERS[kind]}, sum{q}s, shared);
"""
        return f"""{self._body(w)}{self._head()}
  const unsigned group = BLOCK_X * SIDE_Y + THREAD_Y;
{self._start()}
  if (group < p->g.groups) {{
    const unsigned step = (unsigned)p->g.splits * SIDE_X * {w};{self._unrolled()}
    for (unsigned e = (BLOCK_Y * SIDE_X + THREAD_X) * {w}; e < p->g.reduced; e += step) {{
      {self._compute(w, "element_of(&p->g, group, e)")};
{self._take_in()}    }}
  }}
{totals}  if (group < p->g.groups && THREAD_X == 0) {{
{self._written("group", "sum{q}s", "    ")}  }}
}}
"""

    def _columns(self) -> str:
        w, totals = self.width, ""
        for q, (_, kind) in enumerate(self.sums):
            mine, other = "shared[m * THREADS + at]", "shared[m * THREADS + at + h * SIDE_X]"
            totals += f"""  BARRIER();
  for (int m = 0; m < {w}; ++m) {mine} = LANE(sum{q}, m);
  for (unsigned h = SIDE_Y / 2; h > 0; h /= 2) {{
    BARRIER();
    if (THREAD_Y < h)
      for (int m = 0; m < {w}; ++m) {mine} = {self._joined(kind, mine, other)};
  }}
  if (THREAD_Y == 0)
    for (int m = 0; m < {w}; ++m) LANE(sum{q}, m) = {mine};
"""
        return f"""{self._body(w)}{self._head()}
  const unsigned tiles = ((unsigned)p->g.k2 + SIDE_X * {w} - 1) / (SIDE_X * {w});
  const unsigned group = BLOCK_X / tiles;
  const unsigned column = ((BLOCK_X - group * tiles) * SIDE_X + THREAD_X) * {w};
  const unsigned at = THREAD_X + SIDE_X * THREAD_Y;
{self._start()}
  if (column < p->g.k2) {{
    const unsigned step = (unsigned)p->g.splits * SIDE_Y;{self._unrolled()}
    for (unsigned e = BLOCK_Y * SIDE_Y + THREAD_Y; e < p->g.reduced; e += step) {{
      {self._compute(w, "element_of(&p->g, group, e) + column")};
{self._take_in()}    }}
  }}
{totals}  if (THREAD_Y == 0 && column < p->g.k2) {{
    for (int m = 0; m < {w}; ++m) {{
      const unsigned k = group * (unsigned)p->g.k2 + column + m;
{self._written("k", "LANE(sum{q}, m)", "      ")}    }}
  }}
}}
"""

    def _finish(self) -> str:
        """Joins the parts of each group by one team, in an order that only the shapes fix."""
        bodies = ""
        for q, (_, kind) in enumerate(self.sums):
            reducer = REDUCERS[kind]
            writes = "".join(
                f"      {self._result(o, 'group', 'sum')}\n"
                for o, own in self.sum_of.items()
                if own == q
            )
            bodies += f"""  {{
    float sum = start_of({reducer});
    const unsigned first = ({q} * (unsigned)p->g.groups + group) * (unsigned)p->g.splits;
    for (unsigned s = THREAD_X; inside && s < p->g.splits; s += SIDE_X)
      sum = join({reducer}, sum, part[first + s]);
    sum = reduce_in_team({reducer}, sum, shared);
    if (inside && THREAD_X == 0) {{
{writes}    }}
  }}
"""
        return f"""{self._head()}
  const unsigned group = BLOCK_X * SIDE_Y + THREAD_Y;
  const bool inside = group < p->g.groups;
{bodies}}}
"""
