# SPDX-License-Identifier: Apache-2.0
"""Random graphs as data: leaves, and calls of functions on earlier values. They can be replayed in
any context and mode, and made smaller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import nnl as nn
import nnl.functions as F
from nnl.core.ops.op import OPS

NUMPY = nn.Context(["numpy:float"])


class Leaf:
    """An input of a graph.

    Attributes:
        array: Its value. state: Whether the graph writes it (running statistics).
        strided: Whether it is handed over as a view that is not contiguous.
        exact: Whether it stays as it is where rounding is imitated (a mask, a list of zeros).
        drift: Whether it gets another value before the second run.
    """

    def __init__(
        self,
        array: Any,
        need_grad: bool,
        state: bool = False,
        strided: bool = False,
        exact: bool = False,
    ):
        self.array, self.need_grad, self.state, self.strided = array, need_grad, state, strided
        self.exact = exact
        self.drift = array.dtype.kind == "f" and not state

    def __repr__(self) -> str:
        what = "state" if self.state else "grad" if self.need_grad else ""
        strided = "strided" if self.strided else ""
        return f"leaf {self.array.dtype}{list(self.array.shape)} {what} {strided}".rstrip()


class Call:
    """function(*ins, **attrs); what it returns is appended to the values, inputs by number."""

    def __init__(self, name: str, ins: list[Any], attrs: dict[str, Any], marks: frozenset[str]):
        self.name, self.ins, self.attrs, self.marks = name, ins, attrs, marks
        self.count, self.tuple = 1, False  # of results; whether they come in a tuple

    def reading(self, ins: list[Any]) -> Call:
        """The same call of other values."""
        call = Call(self.name, ins, self.attrs, self.marks)
        call.count, call.tuple = self.count, self.tuple
        return call

    def text(self, names: list[str], results: list[str]) -> str:
        """As a line of Python, with the names of its inputs and of what it makes."""
        kind, _, name = self.name.rpartition(".")
        attrs = dict(self.attrs)
        if kind == "op":
            function = f"OPS[{name!r}]"
        elif name in ("operator", "near"):
            function = f"OPERATORS[{attrs.pop('which', name)!r}]"
        else:
            function = f"F.{name}"
        args = names + [f"{k}={v!r}" for k, v in attrs.items()]
        marks = {"persistent": "persistent = True", "recompute": "recompute = True",
                 "stop": "need_grad = False"}  # fmt: skip
        made = ", ".join(results) + "," * (self.tuple and self.count == 1)
        lines = [f"{made} = {function}({', '.join(args)})"]
        lines += [f"{r}.{marks[m]}" for m in sorted(self.marks) for r in results]
        return "\n".join(lines)


class Graph:
    """Leaves and calls; `ends` are the values that the loss is made of."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.leaves: list[Leaf] = []
        self.calls: list[Call] = []
        self.ends: list[int] = []
        # Python numbers stand for values: leaves have -1, -2, ..., results 0, 1, ...

    def __repr__(self) -> str:
        """A program that records it."""
        leaves = dict.fromkeys(i for c in self.calls for i in c.ins if i is not None and i < 0)
        lines = [
            "import nnl as nn",
            "import nnl.functions as F",
            "from nnl.core.ops.op import OPS",
            "from tests.native.graphs import OPERATORS",
            "from tests.native.random_graphs import random_graph",
            "",
            f"x = random_graph({self.seed}).variables()",
            *(f"# x[{-1 - i}] is {self.leaves[-1 - i]}" for i in sorted(leaves, reverse=True)),
        ]
        n = 0
        for c in self.calls:
            names = ["None" if i is None else f"y{i}" if i >= 0 else f"x[{-1 - i}]" for i in c.ins]
            lines.append(c.text(names, [f"y{n + k}" for k in range(c.count)]))
            n += c.count
        return "\n".join([*lines, f"ends = [{', '.join(f'y{i}' for i in self.ends)}]"])

    def without_idle_calls(self) -> Graph:
        """The same graph without calls that no end depends on: only some modes run those."""
        starts, first = [], 0
        for call in self.calls:
            starts.append(first)
            first += call.count
        owner = {s + k: n for n, s in enumerate(starts) for k in range(self.calls[n].count)}
        todo, wanted = [owner[e] for e in self.ends], set()
        while todo:
            n = todo.pop()
            if n not in wanted:
                wanted.add(n)
                todo += [owner[i] for i in self.calls[n].ins if i is not None and i >= 0]
        number: dict[int, int] = {}
        g = Graph(self.seed)
        g.leaves = self.leaves
        for n in sorted(wanted):
            old = self.calls[n]
            for k in range(old.count):
                number[starts[n] + k] = len(number)
            g.calls.append(old.reading([number.get(i, i) for i in old.ins]))
        g.ends = [number[e] for e in self.ends]
        return g

    def variables(self, noise: float = 0.0, salt: int = 0) -> list[nn.Variable]:
        """Fresh leaves, with relative noise on the floating-point ones."""
        rng = np.random.default_rng([self.seed, salt])
        out = []
        for leaf in self.leaves:
            a = leaf.array
            if noise and a.dtype.kind == "f" and not leaf.exact:
                a = (a * (1 + noise * rng.uniform(-1, 1, a.shape))).astype(a.dtype)
            v = nn.Variable.from_numpy_array(a, need_grad=leaf.need_grad)
            if leaf.strided and a.ndim:
                wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)
                wide[..., ::2] = a
                v.data.write("host", wide[..., ::2])
            out.append(v)
        return out

    def drift(self, leaves: list[nn.Variable]) -> None:
        """Give the leaves other values, in the ways in which users do it."""
        for k, (leaf, v) in enumerate(zip(self.leaves, leaves, strict=True)):
            if not leaf.drift:
                continue
            new = (v.d * 0.9 + 0.05).astype(leaf.array.dtype)
            if k % 3 == 0:
                v.d = new
            elif k % 3 == 1:
                v.d[...] = new
            else:
                v.data = nn.NdArray.from_numpy_array(new)

    def build(self, leaves: list[nn.Variable], noise: float = 0.0) -> list[nn.Variable]:
        """All results; recorded, or computed where auto_forward is on.

        Args:
            noise: Relative noise on every result, as other rounding would make it.
        """
        values: list[nn.Variable] = []
        rng = np.random.default_rng(self.seed)
        for call in self.calls:
            ins = [None if i is None else values[i] if i >= 0 else leaves[-1 - i] for i in call.ins]
            y = run_call(call, ins)
            if noise:
                y = [with_noise(v, noise, rng) if is_float(v) else v for v in y]
            for v in y:
                if "persistent" in call.marks:
                    v.persistent = True
                if "recompute" in call.marks:
                    v.recompute = True
                if "stop" in call.marks:
                    v.need_grad = False
            values += y
        return values

    def loss(self, values: list[nn.Variable]) -> nn.Variable:
        """A scalar that depends on every end, with weights that differ between elements."""
        total = None
        for k, i in enumerate(self.ends):
            y = values[i]
            u = np.cos(np.arange(y.size) * 1.7 + k).reshape(y.shape).astype(np.float32)
            part = F.sum(y * nn.Variable.from_numpy_array(u / max(1, y.size) ** 0.5))
            total = part if total is None else total + part
        return total


def with_noise(v: nn.Variable, noise: float, rng: np.random.Generator) -> nn.Variable:
    factors = 1 + noise * rng.uniform(-1, 1, v.shape)
    shifts = 1e-2 * noise * rng.uniform(-1, 1, v.shape)  # so that ties with an exact 0 show
    a, b = (nn.Variable.from_numpy_array(x.astype(np.float32)) for x in (factors, shifts))
    return v * a + b


def run_call(call: Call, ins: list[Any]) -> list[nn.Variable]:
    kind, _, name = call.name.rpartition(".")
    if name in ("operator", "near"):
        y = OPERATORS[call.attrs.get("which", name)](*ins)
    else:
        y = (OPS[name] if kind else getattr(F, name))(*ins, **call.attrs)
    call.tuple = isinstance(y, (tuple, list))
    return list(y) if call.tuple else [y]


def near(x: nn.Variable, base: nn.Variable) -> nn.Variable:
    """`base` moved a little by the first elements of x."""
    n = base.size
    flat = F.reshape(x, (x.size,))
    if x.size < n:
        flat = F.tile(flat, -(-n // x.size))
    return base + 0.1 * F.tanh(F.reshape(F.slice(flat, stop=(n,)), base.shape))


OPERATORS: dict[str, Callable[..., nn.Variable]] = {
    "1/": lambda x: 1.0 / (x * x + 0.5),
    "1-": lambda x: 1.0 - x,
    "neg": lambda x: -x,
    "div": lambda x, y: x / (y * y + 1.0),
    "sub": lambda x, y: x - y,
    "twice": lambda x: x + x,
    "square": lambda x: x * x,
    "log": lambda x: F.log(x * x + 0.3),
    "sqrt": lambda x: (x * x + 0.2) ** 0.5,
    "exp": lambda x: F.exp(F.tanh(x)),
    "mask": lambda x, y: x * F.greater(y, x * 0.5),
    "mask0": lambda x: x * F.greater_scalar(x, 0.1),
    "last": lambda x: x[..., -1:],
    "every": lambda x: x[::2],
    "new": lambda x: x[:, None],
    "item": lambda x: x[0],
    "near": near,
}


def is_float(v: nn.Variable) -> bool:
    return v.spec.dtype.kind == "f"
