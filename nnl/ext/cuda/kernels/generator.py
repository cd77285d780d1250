# SPDX-License-Identifier: Apache-2.0
"""Writes the CUDA C of element-wise programs, with or without reductions.

Shapes, strides and constants are parameters; the text depends on the instructions, the element
types and the kinds of patterns only, so that one compiled kernel serves many layers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from nnl.core.ops.elementwise import ARITY, NAMES
from nnl.ext.cuda.kernels.elementwise_codes import TEXTS
from nnl.ext.cuda.kernels.module import Code, type_of
from nnl.ext.cuda.kernels.patterns import Pattern
from nnl.ext.device.registry import Operand

REDUCERS = {"sum": "Sum", "largest": "Max", "smallest": "Min", "product": "Product"}


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

    def codes(self, *kernels: str) -> dict[str, Code]:
        """The kernels of these names: "run", or with reductions "rows", "columns" and "finish"."""
        parts = {
            "run": self._run,
            "rows": self._rows,
            "columns": self._columns,
            "finish": self._finish,
        }
        text = self._body() + "".join(parts[k]() for k in kernels)
        name = "e" + hashlib.sha1(text.encode()).hexdigest()[:16]
        text = text.replace("NAME", name)
        return {k: Code(f"{name}_{k}", ("elementwise.cuh",), text) for k in kernels}

    def _name(self, value: int, lane: str = "[l]") -> str:
        if value < 0:
            return f"c{-value - 1}"
        if value < len(self.ins):
            return f"x{value}" + ("" if self.kinds[value] == "number" else lane)
        return f"v{value}"

    def _expression(self, step: Sequence[int]) -> str:
        names = dict(zip("abc", (self._name(v) for v in step[1:4]), strict=True))
        return re.sub(r"\b[abc]\b", lambda m: names[m[0]], TEXTS[NAMES[step[0]]])

    def _body(self) -> str:
        fields, loads = [], []
        for i in self.used:
            kind, t = self.kinds[i], type_of(self.ins[i])
            fields.append(f"const {t}* x{i};")
            rank = "".join(c for c in kind if c.isdigit())
            place = f"place_of<{rank}>(%s, p.a{i}, p.o{i})"
            if kind == "number":
                loads.append(f"const float x{i} = to_float(p.x{i}[p.o{i}]);")
                continue
            loads.append(f"float x{i}[V];")
            if kind == "full":
                loads.append(f"load<V>(x{i}, p.x{i} + i);")
            elif kind.startswith("run"):
                loads.append(f"load<V>(x{i}, p.x{i} + {place % 'i'});")
            elif kind.startswith("same"):
                loads.append(f"fill<V>(x{i}, p.x{i} + {place % 'i'});")
            else:
                loads.append("#pragma unroll\n  for (int l = 0; l < V; ++l)")
                loads.append(f"  x{i}[l] = to_float(p.x{i}[{place % '(i + l)'}]);")
        fields += [f"{type_of(self.outputs[o].operand)}* y{o};" for o in range(len(self.outputs))]
        if self.reduced:
            fields.append("float* part;")
            fields.append("Groups g;")
        else:
            fields.append("int64 n, vectors;")
        for i in self.used:
            rank = "".join(c for c in self.kinds[i] if c.isdigit())
            if rank:
                fields.append(f"Axis a{i}[{rank}];")
            if self.kinds[i] != "full":
                fields.append(f"int64 o{i};")
        fields += [f"double c{k};" for k in range(self.constants)]
        fields += [f"double s{o};" for o in self.reduced]
        loads += [f"const float c{k} = (float)p.c{k};" for k in range(self.constants)]
        loads += [f"float y{o}[V];" for o in self.stored]
        lines = [
            f"const float v{len(self.ins) + k} = {self._expression(step)};"
            for k, step in enumerate(self.steps)
            if len(self.ins) + k in self.needed
        ]
        lines += [f"y{o}[l] = {self._name(self.outputs[o].value)};" for o in self.stored]
        lines += [
            f"r[{q} * V + l] = {self._name(value)};" for q, (value, _) in enumerate(self.sums)
        ]
        stores = [f"store<V>(p.y{o} + i, y{o});" for o in self.stored]
        more = ", float* r" if self.reduced else ""
        return "\n".join(
            [
                "struct NAME_P {", *(f"  {f}" for f in fields), "};",
                "template <int V>",
                f"INLINE void NAME_body(const NAME_P& p, unsigned i{more}) {{",
                *(f"  {s}" for s in loads),
                "#pragma unroll", "  for (int l = 0; l < V; ++l) {",
                *(f"    {s}" for s in lines), "  }",
                *(f"  {s}" for s in stores), "}", "",
            ]
        )  # fmt: skip

    def _run(self) -> str:
        return f"""KERNEL(NAME_run, NAME_P) {{
  const unsigned first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  for (unsigned k = first; k < p.vectors; k += step) NAME_body<{self.width}>(p, k * {self.width});
  for (unsigned i = p.vectors * {self.width} + first; i < p.n; i += step) NAME_body<1>(p, i);
}}
"""

    def _joined(self, kind: str, a: str, b: str) -> str:
        return f"{REDUCERS[kind]}::join({a}, {b})"

    def _starts(self, lanes: int) -> str:
        return "\n".join(
            f"  for (int l = 0; l < {lanes}; ++l) sum[{q} * {lanes} + l] = "
            f"{REDUCERS[kind]}::start();"
            for q, (_, kind) in enumerate(self.sums)
        )

    def _written(self, group: str, value: str, indent: str) -> str:
        """Statements that write the values of a group; `value` has {q} for the sum's number."""
        whole = "".join(
            f"{indent}  p.y{o}[{group}] = from_float<{type_of(self.outputs[o].operand)}>"
            f"({value.format(q=q)} * (float)p.s{o});\n"
            for o, q in self.sum_of.items()
        )
        parts = "".join(
            f"{indent}  p.part[({q} * (unsigned)p.g.groups + {group}) * (unsigned)p.g.splits"
            f" + blockIdx.y] = {value.format(q=q)};\n"
            for q in range(len(self.sums))
        )
        return f"{indent}if (p.g.splits == 1) {{\n{whole}{indent}}} else {{\n{parts}{indent}}}\n"

    def _unrolled(self) -> str:
        """Two steps at a time where one array alone has too few loads under way.

        Not with results to store: the next load has to wait for what may be its own memory.
        """
        alone = sum(self.kinds[i] == "full" for i in self.used) == 1 and not self.stored
        return "\n#pragma unroll 2" if alone else ""

    def _rows(self) -> str:
        n, w = len(self.sums), self.width
        joins, totals = "", ""
        for q, (_, kind) in enumerate(self.sums):
            joins += f"      sum[{q}] = {self._joined(kind, f'sum[{q}]', f'r[{q} * {w} + l]')};\n"
            totals += f"""  if (blockDim.x == 256) {{
    __shared__ float shared{q}[8];
    sum[{q}] = reduce_in_block<{REDUCERS[kind]}>(sum[{q}], shared{q});
  }} else {{
    sum[{q}] = reduce_in_warp<{REDUCERS[kind]}>(sum[{q}], blockDim.x);
  }}
"""
        return f"""KERNEL(NAME_rows, NAME_P) {{
  const unsigned group = blockIdx.x * blockDim.y + threadIdx.y;
  float sum[{n}], r[{n * w}];
{self._starts(1)}
  if (group < p.g.groups) {{
    const unsigned step = (unsigned)p.g.splits * blockDim.x * {w};{self._unrolled()}
    for (unsigned e = (blockIdx.y * blockDim.x + threadIdx.x) * {w}; e < p.g.reduced; e += step) {{
      NAME_body<{w}>(p, p.g.element(group, e), r);
#pragma unroll
      for (int l = 0; l < {w}; ++l) {{
{joins}      }}
    }}
  }}
{totals}  if (group < p.g.groups && threadIdx.x == 0) {{
{self._written("group", "sum[{q}]", "    ")}  }}
}}
"""

    def _columns(self) -> str:
        n, w = len(self.sums), self.width
        joins, totals = "", ""
        for q, (_, kind) in enumerate(self.sums):
            value = self._joined(kind, f"sum[{q} * {w} + l]", f"r[{q} * {w} + l]")
            joins += f"        sum[{q} * {w} + l] = {value};\n"
            joined = self._joined(kind, "shared[l][at]", "shared[l][at + h * blockDim.x]")
            totals += f"""  __syncthreads();
  for (int l = 0; l < {w}; ++l) shared[l][at] = sum[{q} * {w} + l];
  for (unsigned h = blockDim.y / 2; h > 0; h /= 2) {{
    __syncthreads();
    if (threadIdx.y < h)
      for (int l = 0; l < {w}; ++l) shared[l][at] = {joined};
  }}
  if (threadIdx.y == 0)
    for (int l = 0; l < {w}; ++l) sum[{q} * {w} + l] = shared[l][at];
"""
        return f"""KERNEL(NAME_columns, NAME_P) {{
  __shared__ float shared[{w}][256];
  const unsigned tiles = ((unsigned)p.g.k2 + blockDim.x * {w} - 1) / (blockDim.x * {w});
  const unsigned group = blockIdx.x / tiles;
  const unsigned column = ((blockIdx.x - group * tiles) * blockDim.x + threadIdx.x) * {w};
  const unsigned at = thread_in_block();
  float sum[{n * w}], r[{n * w}];
{self._starts(w)}
  if (column < p.g.k2) {{
    const unsigned step = (unsigned)p.g.splits * blockDim.y;{self._unrolled()}
    for (unsigned e = blockIdx.y * blockDim.y + threadIdx.y; e < p.g.reduced; e += step) {{
      NAME_body<{w}>(p, p.g.element(group, e) + column, r);
#pragma unroll
      for (int l = 0; l < {w}; ++l) {{
{joins}      }}
    }}
  }}
{totals}  if (threadIdx.y == 0 && column < p.g.k2) {{
    for (int l = 0; l < {w}; ++l) {{
      const unsigned k = group * (unsigned)p.g.k2 + column + l;
{self._written("k", f"sum[{{q}} * {w} + l]", "      ")}    }}
  }}
}}
"""

    def _finish(self) -> str:
        """Joins the parts of each group by one warp, in an order that only the shapes fix."""
        bodies = ""
        for q, (_, kind) in enumerate(self.sums):
            reducer = REDUCERS[kind]
            writes = "".join(
                f"      p.y{o}[group] = from_float<{type_of(self.outputs[o].operand)}>"
                f"(sum * (float)p.s{o});\n"
                for o, own in self.sum_of.items()
                if own == q
            )
            bodies += f"""  {{
    float sum = {reducer}::start();
    const unsigned first = ({q} * (unsigned)p.g.groups + group) * (unsigned)p.g.splits;
    for (unsigned s = threadIdx.x; inside && s < p.g.splits; s += 32)
      sum = {reducer}::join(sum, p.part[first + s]);
    sum = reduce_in_warp<{reducer}>(sum, 32);
    if (inside && threadIdx.x == 0) {{
{writes}    }}
  }}
"""
        return f"""KERNEL(NAME_finish, NAME_P) {{
  const unsigned group = blockIdx.x * blockDim.y + threadIdx.y;
  const bool inside = group < p.g.groups;
{bodies}}}
"""
