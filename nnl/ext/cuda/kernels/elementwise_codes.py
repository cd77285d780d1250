# SPDX-License-Identifier: Apache-2.0
"""The instructions of element-wise programs, and the program of every element-wise op.

A program is a list of words, four for each instruction: a code and three operands. Operands from 0
on are values, the inputs first and then the results; -1 is the first constant, -2 the second. These
are the programs of the native library with the same numbers, so that passes serve both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# The value of each instruction in CUDA C, in terms of a, b and c; functions are in elementwise.cuh.
ONE = {
    "copy": "a",
    "negative": "-a",
    "absolute": "fabsf(a)",
    "square": "a * a",
    "cube": "a * a * a",
    "root": "sqrtf(a)",
    "inverse": "1.0f / a",
    "inverse_root": "1.0f / sqrtf(a)",
    "exp": "expf(a)",
    "expm1": "expm1f(a)",
    "log": "logf(a)",
    "log1p": "log1pf(a)",
    "sin": "sinf(a)",
    "cos": "cosf(a)",
    "tan": "tanf(a)",
    "sinc": "a == 0.0f ? 1.0f : sinf(a) / a",
    "sinh": "sinhf(a)",
    "cosh": "coshf(a)",
    "tanh": "tanhf(a)",
    "asin": "asinf(a)",
    "acos": "acosf(a)",
    "atan": "atanf(a)",
    "asinh": "asinhf(a)",
    "acosh": "acoshf(a)",
    "atanh": "atanhf(a)",
    "erf": "erff(a)",
    "sigmoid": "sigmoid_of(a)",
    "log_sigmoid": "-softplus_of(-a)",
    "swish": "a * sigmoid_of(a > -87.0f ? a : (a != a ? a : -87.0f))",
    "gelu": "a * sigmoid_of(a * (1.5957691216057308f + 0.07135481627159945f * a * a))",
    "mish": "mish_of(a)",
    "softsign": "a / (fabsf(a) + 1.0f)",
    "tanh_shrink": "a - tanhf(a)",
    "relu": "a > 0.0f ? a : 0.0f",
    "round": "roundf(a)",
    "ceil": "ceilf(a)",
    "floor": "floorf(a)",
    "is_nan": "a != a ? 1.0f : 0.0f",
    "is_inf": "fabsf(a) == infinity() ? 1.0f : 0.0f",
    "logical_not": "a == 0.0f ? 1.0f : 0.0f",
}
TWO = {
    "add": "a + b",
    "subtract": "a - b",
    "multiply": "a * b",
    "divide": "a / b",
    "power": "powf(a, b)",
    "larger": "a > b || b != b ? a : b",  # of a number and NaN, the number
    "smaller": "a < b || b != b ? a : b",
    "maximum": "a > b || a != a ? a : b",  # NaN if one of them is
    "minimum": "a < b || a != a ? a : b",
    "atan2": "atan2f(a, b)",
    "fmod": "fmodf(a, b)",
    "equal": "a == b ? 1.0f : 0.0f",
    "not_equal": "a != b ? 1.0f : 0.0f",
    "greater": "a > b ? 1.0f : 0.0f",
    "greater_equal": "a >= b ? 1.0f : 0.0f",
    "less": "a < b ? 1.0f : 0.0f",
    "less_equal": "a <= b ? 1.0f : 0.0f",
    "logical_and": "a != 0.0f && b != 0.0f ? 1.0f : 0.0f",
    "logical_or": "a != 0.0f || b != 0.0f ? 1.0f : 0.0f",
    "logical_xor": "(a != 0.0f) != (b != 0.0f) ? 1.0f : 0.0f",
    "leaky_relu": "a > 0.0f ? a : a * b",
    "elu": "a > 0.0f ? a : b * expm1f(a)",
    "softplus": "softplus_of(a * b) / b",
    "sign": "a > 0.0f ? 1.0f : (a < 0.0f ? -1.0f : b)",
    "signs": "a > 0.0f ? 1.0f : (a < 0.0f ? -1.0f : (a == 0.0f ? b : a))",
    "squared_difference": "(a - b) * (a - b)",
    "absolute_backward": "b < 0.0f ? -a : a",
    "tanh_backward": "a * (1.0f - b * b)",
    "sigmoid_backward": "a * ((1.0f - b) * b)",
    "sinc_backward": "a * sinc_slope(b)",
}
THREE = {
    "where": "a != 0.0f ? b : c",
    "multiply_add": "a * b + c",
    "clip": "a < b ? b : (a > c ? c : a)",
    "leaky_relu_backward": "(b > 0.0f ? 1.0f : c) * a",
    # a times 0 or 1, so that an infinite a becomes NaN as in numpy
    "gate_greater": "a * (b > c ? 1.0f : 0.0f)",
    "gate_greater_equal": "a * (b >= c ? 1.0f : 0.0f)",
    "gate_less": "a * (b < c ? 1.0f : 0.0f)",
    "gate_less_equal": "a * (b <= c ? 1.0f : 0.0f)",
}
NAMES = (*ONE, *TWO, *THREE)
NUMBER = {name: i for i, name in enumerate(NAMES)}
TEXTS = (*ONE.values(), *TWO.values(), *THREE.values())
ARITY = (1,) * len(ONE) + (2,) * len(TWO) + (3,) * len(THREE)

# Ops of one instruction whose operands are the inputs; those of the same name are left out.
_RENAMED = {
    "abs": "absolute", "abs_backward": "absolute_backward", "add2": "add", "bc_add2": "add",
    "clip_grad_by_norm": "copy", "clip_grad_by_value": "copy", "div2": "divide",
    "identity": "copy", "isinf": "is_inf", "isnan": "is_nan", "maximum2": "larger",
    "minimum2": "smaller", "mod2": "fmod", "mul2": "multiply", "pow2": "power",
    "squared_error": "squared_difference", "sub2": "subtract", "unlink": "copy",
}  # fmt: skip
_SAME = """acos acosh asin asinh atan atan2 atanh ceil cos cosh equal erf exp floor gelu greater
    greater_equal less less_equal log log_sigmoid logical_and logical_not logical_or logical_xor
    mish not_equal relu round sigmoid sigmoid_backward sin sinc sinc_backward sinh softsign swish
    tan tanh tanh_backward tanh_shrink""".split()
PLAIN = {**_RENAMED, **{name: name for name in _SAME}}

# Ops of one instruction: the input, then the attribute of the given name.
WITH_NUMBER = {
    "add_scalar": ("add", "val"),
    "binarize": ("signs", "quantize_zero_to"),
    "elu": ("elu", "alpha"),
    "equal_scalar": ("equal", "val"),
    "greater_equal_scalar": ("greater_equal", "val"),
    "greater_scalar": ("greater", "val"),
    "leaky_relu": ("leaky_relu", "alpha"),
    "less_equal_scalar": ("less_equal", "val"),
    "less_scalar": ("less", "val"),
    "maximum_scalar": ("larger", "val"),
    "minimum_scalar": ("smaller", "val"),
    "mul_scalar": ("multiply", "val"),
    "not_equal_scalar": ("not_equal", "val"),
    "sign": ("sign", "alpha"),
    "softplus": ("softplus", "beta"),
}


class Writer:
    """Writes a program; operands and results are plain numbers, as in the program itself.

    Attributes:
        shapes: In which the inputs are seen: aligned to the result from the last axis on.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], attrs: Mapping[str, Any]) -> None:
        self.shapes = [tuple(s) for s in shapes]
        self.attrs = attrs
        self.code: list[int] = []
        self.constants: list[float] = []

    def number(self, value: float) -> int:
        self.constants.append(float(value))
        return -len(self.constants)

    def attribute(self, name: str) -> int:
        return self.number(self.attrs[name])

    def __call__(self, code: str, a: int = 0, b: int = 0, c: int = 0) -> int:
        self.code += (NUMBER[code], a, b, c)
        return len(self.shapes) + len(self.code) // 4 - 1


_POWERS = {
    2.0: "square",
    1.0: "copy",
    0.5: "root",
    -1.0: "inverse",
    -0.5: "inverse_root",
    3.0: "cube",
}


def _pow_scalar(w: Writer) -> None:
    name = _POWERS.get(float(w.attrs["val"]))
    if name is None:
        w("power", 0, w.attribute("val"))
    else:
        w(name)


def _gate(w: Writer) -> None:
    suffix = "_equal" if w.attrs["closed"] else ""
    g = 0
    if w.attrs.get("low") is not None:
        g = w("gate_greater" + suffix, g, 1, w.attribute("low"))
    if w.attrs.get("high") is not None:
        g = w("gate_less" + suffix, g, 1, w.attribute("high"))
    if g == 0:
        w("copy")


def _over_all(code: str) -> Callable[[Writer], None]:
    def write(w: Writer) -> None:
        y = 0
        for i in range(1, len(w.shapes)):
            y = w(code, y, i)
        if len(w.shapes) == 1:
            w("copy")

    return write


def _prelu(w: Writer) -> None:
    x, own = w.shapes
    axis = int(w.attrs["base_axis"])
    slope = [1] * len(x)
    if own == (x[axis],):
        slope[axis] = x[axis]
    w.shapes[1] = tuple(slope)
    w("leaky_relu", 0, 1)


def _where(w: Writer) -> None:
    # one element of the condition for all that lie after it
    w.shapes[0] += (1,) * (len(w.shapes[1]) - len(w.shapes[0]))
    w("where", 0, 1, 2)


def _broadcast(w: Writer) -> None:
    w.shapes[0] = (1,) * (len(w.attrs["shape"]) - len(w.shapes[0])) + w.shapes[0]
    w("copy")


def _broadcast_to(w: Writer) -> None:
    x, y = w.shapes
    axis = w.attrs.get("axis")
    start = len(x) - len(y) if axis in (None, -1) else int(axis)
    y = (1,) * start + y
    w.shapes[1] = y + (1,) * (len(x) - len(y))
    w("copy", 1)


def _fixed_point_quantize(w: Writer) -> None:
    signed = bool(w.attrs["sign"])
    delta = float(w.attrs["delta"])
    high = (2.0 ** (int(w.attrs["n"]) - signed) - 1.0) * delta
    y = w("multiply", w("round", w("divide", 0, w.number(delta))), w.number(delta))
    w("clip", y, w.number(-high if signed else 0.0), w.number(high))


def _sigmoid_cross_entropy(w: Writer) -> None:
    # ln(1 + e^-|x|) + max(x, 0) - x t
    w("subtract", w("softplus", 0, w.number(1.0)), w("multiply", 0, 1))


def _binary_cross_entropy(w: Writer) -> None:
    one, tiny = w.number(1.0), w.number(math.ldexp(1.0, -126))
    near = w("log", w("maximum", 0, tiny))
    far = w("log", w("maximum", w("subtract", one, 0), tiny))
    rest = w("multiply", w("subtract", one, 1), far)
    w("negative", w("multiply_add", 1, near, rest))


def _huber_loss(w: Writer) -> None:
    d = w("absolute", w("subtract", 0, 1))
    near = w("minimum", d, w.attribute("delta"))
    w("multiply", w("subtract", w("multiply", d, w.number(2.0)), near), near)


def _epsilon_insensitive_loss(w: Writer) -> None:
    d = w("absolute", w("subtract", 0, 1))
    w("maximum", w("subtract", d, w.attribute("epsilon")), w.number(0.0))


def _binary_tanh(w: Writer) -> None:
    w("where", w("greater", 0, w.number(0.0)), w.number(1.0), w.number(-1.0))


def _hard_sigmoid(w: Writer) -> None:
    y = w("multiply_add", 0, w.number(0.2), w.number(0.5))
    w("clip", y, w.number(0.0), w.number(1.0))


def _with_flag(code: str) -> Callable[[Writer], None]:
    return lambda w: (w(code, 0, w.number(float(bool(w.attrs["val"])))), None)[1]


def _reversed(code: str) -> Callable[[Writer], None]:
    return lambda w: (w(code, w.attribute("val"), 0), None)[1]


def _replaced(code: str) -> Callable[[Writer], None]:
    return lambda w: (w("where", w(code), w.attribute("val"), 0), None)[1]


def _clipped(low: float, high: float) -> Callable[[Writer], None]:
    return lambda w: (w("clip", 0, w.number(low), w.number(high)), None)[1]


def _absolute_error(w: Writer) -> None:
    w("absolute", w("subtract", 0, 1))


def _leaky_relu_backward(w: Writer) -> None:
    w("leaky_relu_backward", 0, 1, w.attribute("alpha"))


def _masked_scale(w: Writer) -> None:
    w("multiply", w("multiply", 0, 1), w.attribute("scale"))


def _selu(w: Writer) -> None:
    w("multiply", w("elu", 0, w.attribute("alpha")), w.attribute("scale"))


def _sigmoid_cross_entropy_backward(w: Writer) -> None:
    w("multiply", w("subtract", w("sigmoid", 1), 2), 0)


def _binary_sigmoid(w: Writer) -> None:
    w("greater", 0, w.number(0.0))


COMPOSED: dict[str, Callable[[Writer], None]] = {
    "absolute_error": _absolute_error,
    "add_n": _over_all("add"),
    "binary_cross_entropy": _binary_cross_entropy,
    "binary_sigmoid": _binary_sigmoid,
    "binary_tanh": _binary_tanh,
    "broadcast": _broadcast,
    "broadcast_to": _broadcast_to,
    "epsilon_insensitive_loss": _epsilon_insensitive_loss,
    "fixed_point_quantize": _fixed_point_quantize,
    "gate": _gate,
    "hard_sigmoid": _hard_sigmoid,
    "hard_tanh": _clipped(-1.0, 1.0),
    "huber_loss": _huber_loss,
    "leaky_relu_backward": _leaky_relu_backward,
    "logical_and_scalar": _with_flag("logical_and"),
    "logical_or_scalar": _with_flag("logical_or"),
    "logical_xor_scalar": _with_flag("logical_xor"),
    "masked_scale": _masked_scale,
    "mul_n": _over_all("multiply"),
    "pow_scalar": _pow_scalar,
    "prelu": _prelu,
    "r_div_scalar": _reversed("divide"),
    "r_pow_scalar": _reversed("power"),
    "r_sub_scalar": _reversed("subtract"),
    "relu6": _clipped(0.0, 6.0),
    "reset_inf": _replaced("is_inf"),
    "reset_nan": _replaced("is_nan"),
    "selu": _selu,
    "sigmoid_cross_entropy": _sigmoid_cross_entropy,
    "sigmoid_cross_entropy_backward": _sigmoid_cross_entropy_backward,
    "where": _where,
}


def elementwise_names() -> list[str]:
    """Ops that have a program."""
    return [*PLAIN, *WITH_NUMBER, *COMPOSED]


def elementwise_code(
    op: str, attrs: Mapping[str, Any], shapes: Sequence[Sequence[int]]
) -> tuple[list[int], list[float], list[tuple[int, ...]]] | None:
    """(code, constants, the shapes in which inputs are seen) of an op; None for other ops."""
    w = Writer(shapes, attrs)
    if op in PLAIN:
        arity = ARITY[NUMBER[PLAIN[op]]]
        w(PLAIN[op], 0, 1 if arity > 1 else 0, 2 if arity > 2 else 0)
    elif op in WITH_NUMBER:
        code, name = WITH_NUMBER[op]
        w(code, 0, w.attribute(name))
    elif op in COMPOSED:
        COMPOSED[op](w)
    else:
        return None
    return w.code, w.constants, w.shapes
