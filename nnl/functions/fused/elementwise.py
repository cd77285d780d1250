# SPDX-License-Identifier: Apache-2.0
"""A chain of element-wise ops, with sums over its results, as one step."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.elementwise import ARITY, NAMES, Writer, formula
from nnl.core.ops.op import OPS, Cost, Sample, op


def same(name):
    """The code is what an op of one input computes."""
    return lambda xp, a: OPS[name].default_attrs.forward(xp, a)


def ufunc(name):
    return lambda xp, *x: getattr(xp, name)(*x)


def logical(name):
    return lambda xp, a, b: getattr(xp, name)(a != 0, b != 0)


# What each code computes of its operands a, b and c.
CODES = {
    "copy": lambda xp, a: a,
    "negative": ufunc("negative"),
    "absolute": ufunc("absolute"),
    "square": ufunc("square"),
    "cube": lambda xp, a: a * a * a,
    "root": ufunc("sqrt"),
    "inverse": lambda xp, a: 1 / a,
    "inverse_root": lambda xp, a: 1 / xp.sqrt(a),
    "exp": ufunc("exp"),
    "expm1": ufunc("expm1"),
    "log": ufunc("log"),
    "log1p": ufunc("log1p"),
    "sin": ufunc("sin"),
    "cos": ufunc("cos"),
    "tan": ufunc("tan"),
    "sinc": lambda xp, a: xp.sinc(a / np.pi),
    "sinh": ufunc("sinh"),
    "cosh": ufunc("cosh"),
    "tanh": ufunc("tanh"),
    "asin": ufunc("arcsin"),
    "acos": ufunc("arccos"),
    "atan": ufunc("arctan"),
    "asinh": ufunc("arcsinh"),
    "acosh": ufunc("arccosh"),
    "atanh": ufunc("arctanh"),
    "erf": same("erf"),
    "sigmoid": same("sigmoid"),
    "log_sigmoid": same("log_sigmoid"),
    "swish": same("swish"),
    "gelu": same("gelu"),
    "mish": same("mish"),
    "softsign": lambda xp, a: a / (1 + xp.absolute(a)),
    "tanh_shrink": lambda xp, a: a - xp.tanh(a),
    "relu": lambda xp, a: xp.fmax(a, 0),
    "round": same("round"),
    "ceil": ufunc("ceil"),
    "floor": ufunc("floor"),
    "is_nan": ufunc("isnan"),
    "is_inf": ufunc("isinf"),
    "logical_not": lambda xp, a: a == 0,
    "add": ufunc("add"),
    "subtract": ufunc("subtract"),
    "multiply": ufunc("multiply"),
    "divide": ufunc("divide"),
    "power": ufunc("power"),
    "larger": ufunc("fmax"),  # of a number and NaN, the number
    "smaller": ufunc("fmin"),
    "maximum": ufunc("maximum"),  # NaN if one of them is
    "minimum": ufunc("minimum"),
    "atan2": ufunc("arctan2"),
    "fmod": ufunc("fmod"),
    "equal": ufunc("equal"),
    "not_equal": ufunc("not_equal"),
    "greater": ufunc("greater"),
    "greater_equal": ufunc("greater_equal"),
    "less": ufunc("less"),
    "less_equal": ufunc("less_equal"),
    "logical_and": logical("logical_and"),
    "logical_or": logical("logical_or"),
    "logical_xor": logical("logical_xor"),
    "leaky_relu": lambda xp, a, b: xp.where(a > 0, a, a * b),
    "elu": lambda xp, a, b: xp.where(a > 0, a, b * xp.expm1(a)),
    "softplus": lambda xp, a, b: xp.logaddexp(a * b, 0) / b,
    "sign": lambda xp, a, b: xp.where(a > 0, 1, xp.where(a < 0, -1, b)),  # b for 0 and NaN
    "signs": lambda xp, a, b: xp.where(a == 0, b, xp.sign(a)),  # b for 0
    "squared_difference": lambda xp, a, b: xp.square(a - b),
    "absolute_backward": lambda xp, a, b: xp.where(b < 0, -a, a),
    "tanh_backward": lambda xp, a, b: a * (1 - b * b),
    "sigmoid_backward": lambda xp, a, b: a * (b * (1 - b)),
    "sinc_backward": lambda xp, a, b: OPS["sinc_backward"].default_attrs.forward(xp, a, b),
    "where": lambda xp, a, b, c: xp.where(a != 0, b, c),
    "multiply_add": lambda xp, a, b, c: a * b + c,
    "clip": lambda xp, a, b, c: xp.where(a < b, b, xp.where(a > c, c, a)),
    "leaky_relu_backward": lambda xp, a, b, c: xp.where(b > 0, 1, c) * a,
    # a times 0 or 1, so that an infinite a becomes NaN
    "gate_greater": lambda xp, a, b, c: a * (b > c),
    "gate_greater_equal": lambda xp, a, b, c: a * (b >= c),
    "gate_less": lambda xp, a, b, c: a * (b < c),
    "gate_less_equal": lambda xp, a, b, c: a * (b <= c),
}
assert tuple(CODES) == NAMES


@op("fused_elementwise", outputs=("*y",))
class fused_elementwise:
    """An element-wise program, see nnl/core/ops/elementwise.py, over arrays of any widths.

    Args:
        x: The inputs; missing leading axes count as 1, and sizes of 1 stretch.
        code, constants: The program.
        outputs: For each result the number of the value that it is.
        shape: What the program runs over; if left empty, what the inputs stretch to.
        shapes: In which the inputs are seen, one after the other, each of the rank of the results;
            their own if left empty.
        reductions: For each result 0 (not reduced), 1 (its sum), 2 (the largest) or 3 (the
            smallest, a NaN before all); nothing is reduced if left empty.
        axes: What these are reduced over.
        keep_dims: For each result whether reduced axes stay, with size 1; not if left empty.
        scales: For each result a factor, such as 1 / n for a mean; 1 if left empty.
        channels_last: Whether a kernel runs in that order.
        least: Elements of one sum; of fewer, kernels leave it to the parts of the step.
    """

    code: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    shapes: tuple[int, ...] = ()
    reductions: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    keep_dims: tuple[int, ...] = ()
    scales: tuple[float, ...] = ()
    channels_last: bool = False
    least: int = 0
    follows_order = True

    def seen(self, x):
        """The shapes in which the inputs are seen."""
        if not self.shapes:
            return [a.shape for a in x]
        rank = len(self.shapes) // len(x)
        return [self.shapes[i * rank : (i + 1) * rank] for i in range(len(x))]

    def check(self, inputs):
        """
        Raises:
            ValueError: The attributes are no program of so many inputs.
        """
        code, values = self.code, inputs
        for k in range(0, len(code), 4):
            number, *operands = code[k : k + 4]
            if not 0 <= number < len(NAMES) or len(operands) < 3:
                raise ValueError(f"fused_elementwise: {code[k : k + 4]} is no instruction")
            for v in operands[: ARITY[NAMES[number]]]:
                if not -len(self.constants) <= v < values:
                    raise ValueError(
                        f"fused_elementwise: {NAMES[number]} reads the value {v} of {values}"
                    )
            values += 1
        if not self.outputs or any(not 0 <= v < values for v in self.outputs):
            raise ValueError(f"fused_elementwise: outputs are {self.outputs} of {values} values")
        if any(not 0 <= r <= 3 for r in self.reductions):
            raise ValueError(f"fused_elementwise: reductions is {self.reductions}")
        for name in ("reductions", "keep_dims", "scales"):
            if len(getattr(self, name)) not in (0, len(self.outputs)):
                raise ValueError(
                    f"fused_elementwise: {name} is {getattr(self, name)}, wanted one for each of "
                    f"{len(self.outputs)} outputs"
                )

    def infer(self, *x):
        self.check(len(x))
        try:
            space = np.broadcast_shapes(*self.seen(x), self.shape)
        except ValueError:
            shapes = ", ".join(map(str, x))
            raise ShapeError(f"fused_elementwise: {shapes} do not stretch to one shape") from None
        kept = tuple(n for i, n in enumerate(space) if i not in self.axes)
        ones = tuple(1 if i in self.axes else n for i, n in enumerate(space))
        reductions = self.reductions or (0,) * len(self.outputs)
        stays = self.keep_dims or (0,) * len(self.outputs)
        return tuple(
            x[0].with_shape(space if not r else ones if stay else kept)
            for r, stay in zip(reductions, stays, strict=True)
        )

    def forward(self, xp, *x):
        values = [a.reshape(s) for a, s in zip(x, self.seen(x), strict=True)]
        dtype = values[0].dtype

        def operand(v):
            return values[v] if v >= 0 else dtype.type(self.constants[-1 - v])

        for k in range(0, len(self.code), 4):
            name = NAMES[self.code[k]]
            operands = [operand(v) for v in self.code[k + 1 : k + 1 + ARITY[name]]]
            values.append(xp.asarray(CODES[name](xp, *operands)).astype(dtype, copy=False))
        space = np.broadcast_shapes(*self.seen(x), self.shape)
        n = len(self.outputs)
        how = zip(
            self.outputs,
            self.reductions or (0,) * n,
            self.keep_dims or (0,) * n,
            self.scales or (1.0,) * n,
            strict=True,
        )
        return tuple(
            xp.ascontiguousarray(self.reduced(xp, xp.broadcast_to(values[v], space), r, stay) * c)
            for v, r, stay, c in how
        )

    def reduced(self, xp, y, how, stay):
        if not how:
            return y
        return (xp.sum, xp.max, xp.min)[how - 1](y, axis=self.axes, keepdims=bool(stay))

    in_formula = ("code", "constants", "outputs", "reductions", "scales")

    def formula(self, names):
        """What the step computes of inputs with these names, for people."""
        self.check(len(names))  # it may be from a file
        results, shared = formula(self.code, self.constants, names, self.outputs)
        n = len(results)
        how = zip(results, self.reductions or (0,) * n, self.scales or (1.0,) * n, strict=True)
        written = [
            (f"{('', 'sum', 'max', 'min')[r]}({y})" if r else y) + f" * {c:g}" * (c != 1)
            for y, r, c in how
        ]
        return ", ".join(written) + (f" where {', '.join(shared)}" if shared else "")

    def cost(self, *x):
        ys = self.infer(*x)
        space = np.broadcast_shapes(*self.seen(x), self.shape)
        size = x[0].with_shape(space).size
        flops = size * (len(self.code) // 4)
        return Cost(flops, sum(a.nbytes for a in (*x, *ys)))

    def samples(rng):
        for name, n in ARITY.items():
            w = Writer([()] * n)
            w(name, *range(n))
            x = [rng.uniform(0.1, 0.9, (2, 3)) for _ in range(n)]
            if name == "acosh":
                x[0] += 1
            yield program_sample(x, w, outputs=(n,))
        w = Writer([()] * 3)  # tanh(2 a + b) and its product with c
        y = w("tanh", w("multiply_add", 0, w.number(2.0), 1))
        product = w("multiply", y, 2)
        x = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(3, 1, 1)), rng.normal(size=(1, 1, 1, 5))
        yield program_sample(x, w, outputs=(y, product))
        for keep in (0, 1):
            yield program_sample(
                x, w, outputs=(y, product), reductions=(0, 1), axes=(0, 2, 3), keep_dims=(0, keep),
                shape=(2, 3, 4, 5),
            )  # fmt: skip
        for how in (1, 2, 3):
            yield program_sample(
                x, w, outputs=(product,), reductions=(how,), axes=(3,), scales=(0.2,),
                shape=(2, 3, 4, 5),
            )  # fmt: skip


def program_sample(x, w, **attrs):
    grad = (False,) * len(x)  # it is made where nothing is differentiated any more
    return Sample(*x, code=tuple(w.code), constants=tuple(w.constants), grad=grad, **attrs)
