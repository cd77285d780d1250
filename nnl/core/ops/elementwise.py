# SPDX-License-Identifier: Apache-2.0
"""Element-wise ops as small programs, so that a chain of them becomes one loop over memory.

A program is a list of integers, four for each instruction: a code and three operands. Operands from
0 on are values, the inputs first and then the results of the instructions; -1 is the first
constant, -2 the second. What a code computes stands in nnl/functions/fused/elementwise.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nnl.core.ops.op import OPS

Shape = tuple[int, ...]

# Names of the codes by their number of operands. Their order numbers them; libraries follow it.
_ONE = """copy negative absolute square cube root inverse inverse_root exp expm1 log log1p sin cos
    tan sinc sinh cosh tanh asin acos atan asinh acosh atanh erf sigmoid log_sigmoid swish gelu mish
    softsign tanh_shrink relu round ceil floor is_nan is_inf logical_not"""
_TWO = """add subtract multiply divide power larger smaller maximum minimum atan2 fmod equal
    not_equal greater greater_equal less less_equal logical_and logical_or logical_xor leaky_relu
    elu softplus sign signs squared_difference absolute_backward tanh_backward sigmoid_backward
    sinc_backward"""
_THREE = """where multiply_add clip leaky_relu_backward gate_greater gate_greater_equal gate_less
    gate_less_equal"""
ARITY = {name: n for n, names in enumerate((_ONE, _TWO, _THREE), 1) for name in names.split()}
NAMES = tuple(ARITY)
NUMBER = {name: i for i, name in enumerate(ARITY)}


class Writer:
    """Writes a program; operands and results are plain numbers, as in the program itself.

    Attributes:
        shapes: In which the inputs are seen: of the rank of the result, or aligned to its last
            axes, with sizes of 1 where they stretch. The elements lie as in the input itself.
    """

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        self.shapes: list[Shape] = [tuple(s) for s in shapes]
        self.code: list[int] = []
        self.constants: list[float] = []

    def number(self, value: float) -> int:
        """The operand that is this number."""
        self.constants.append(float(value))
        return -len(self.constants)

    def __call__(self, code: str, a: int = 0, b: int = 0, c: int = 0) -> int:
        """Write an instruction; returns the operand that is its result."""
        self.code += (NUMBER[code], a, b, c)
        return len(self.shapes) + len(self.code) // 4 - 1

    def over_all(self, code: str) -> None:
        """Combine all inputs from the left."""
        y = 0
        for i in range(1, len(self.shapes)):
            y = self(code, y, i)
        if not self.code:
            self("copy")


class Program(NamedTuple):
    """The program of one op: see Writer."""

    code: tuple[int, ...]
    constants: tuple[float, ...]
    shapes: tuple[Shape, ...]


def is_elementwise(op: str) -> bool:
    """Whether the op of that name has a program."""
    found = OPS.get(op)
    return found is not None and hasattr(found.attrs_class, "elementwise")


def program_of(op: str, attrs: Mapping[str, Any], shapes: Sequence[Shape]) -> Program | None:
    """The program of an op for inputs of these shapes; None for an op that has none.

    A definition says it with `elementwise`: the name of a code, whose operands are then the inputs;
    or the name and those of attributes, which follow them; or a method that gets a Writer.
    """
    if not is_elementwise(op):
        return None
    own = OPS[op].attrs(**attrs)
    w, how = Writer(shapes), own.elementwise
    if callable(how):
        how(w)
    else:
        name, *fields = (how,) if isinstance(how, str) else how
        inputs = range(ARITY[name] - len(fields))
        w(name, *inputs, *[w.number(getattr(own, f)) for f in fields])
    return Program(tuple(w.code), tuple(w.constants), tuple(w.shapes))


# How a formula writes a code: how tightly it holds together (1 a sum, 2 a product, 3 a power, 4 a
# name or call), the text, and how tightly each operand must. The others are calls of their names.
WRITTEN: dict[str, tuple[int, str, tuple[int, ...]]] = {
    "copy": (4, "{}", (0,)),  # as its operand holds
    "negative": (1, "-{}", (2,)),
    "square": (3, "{}**2", (4,)),
    "cube": (3, "{}**3", (4,)),
    "root": (4, "sqrt({})", (0,)),
    "inverse": (2, "1 / {}", (3,)),
    "inverse_root": (2, "1 / sqrt({})", (0,)),
    "absolute": (4, "abs({})", (0,)),
    "add": (1, "{} + {}", (1, 1)),
    "subtract": (1, "{} - {}", (1, 2)),
    "multiply": (2, "{} * {}", (2, 2)),
    "divide": (2, "{} / {}", (2, 3)),
    "power": (3, "{}**{}", (4, 4)),
    "multiply_add": (1, "{} * {} + {}", (2, 2, 1)),
    "squared_difference": (3, "({} - {})**2", (1, 2)),
    "equal": (0, "{} == {}", (1, 1)),
    "not_equal": (0, "{} != {}", (1, 1)),
    "greater": (0, "{} > {}", (1, 1)),
    "greater_equal": (0, "{} >= {}", (1, 1)),
    "less": (0, "{} < {}", (1, 1)),
    "less_equal": (0, "{} <= {}", (1, 1)),
}


def formula(
    code: Sequence[int], constants: Sequence[float], inputs: Sequence[str], outputs: Sequence[int]
) -> tuple[list[str], list[str]]:
    """A program for people: what each output is, and "t = ..." for what is used more than once.

    Args:
        inputs: What the inputs are called.
        outputs: The numbers of the values to write.
    """
    steps = [(NAMES[code[k]], code[k + 1 : k + 4]) for k in range(0, len(code), 4)]
    read = Counter([v for name, operands in steps for v in operands[: ARITY[name]]])
    read.update(outputs)
    texts = [(text, 1 if " " in text else 4) for text in inputs]
    shared: list[str] = []
    for name, operands in steps:
        level, form, wanted = WRITTEN.get(name, (4, "", (0,) * ARITY[name]))
        parts = []
        for v, least in zip(operands, wanted, strict=False):
            text, holds = texts[v] if v >= 0 else _constant(constants[-1 - v])
            parts.append(text if holds >= least else f"({text})")
            level = holds if name == "copy" else level
        text = form.format(*parts) if form else f"{name}({', '.join(parts)})"
        text = text.replace(" + -", " - ")
        if read[len(texts)] > 1 and (name != "copy" or " " in text or "(" in text):
            shared.append(f"t{len(shared) + 1} = {text}")
            text, level = f"t{len(shared)}", 4
        texts.append((text, level))
    return [texts[v][0] for v in outputs], shared


def _constant(value: float) -> tuple[str, int]:
    return f"{value:g}", 4 if value >= 0 else 1
