# SPDX-License-Identifier: Apache-2.0
"""Grows random graphs of functions with attributes that fit, from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import nnl as nn
from tests.native.graphs import NUMPY, OPERATORS, Call, Graph, Leaf, is_float, run_call
from tests.native.sample_calls import a_sample


class Generator:
    """Grows a graph call by call, computing it in numpy on the way to know shapes and ranges."""

    def __init__(self, seed: int, calls: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.graph = Graph(seed)
        self.values: list[nn.Variable] = []
        self.floats: list[int] = []  # numbers of floating-point values
        self.leaf_values: list[nn.Variable] = []
        self.wanted = calls

    def run(self) -> Graph:
        g, rng = self.graph, self.rng
        with nn.context_scope(NUMPY), nn.auto_forward(), np.errstate(all="ignore"):
            for _ in range(int(rng.integers(1, 4))):
                self.leaf(self.shape())
            tries = 0
            while len(g.calls) < self.wanted and tries < 20 * self.wanted:
                tries += 1
                lists = g.leaves, g.calls, self.leaf_values, self.values, self.floats
                kept = [list(x) for x in lists]
                try:
                    made = KINDS[int(rng.integers(len(KINDS)))](self)
                    if made is not None and self.call(*made):
                        continue
                except (ValueError, TypeError, NotImplementedError, IndexError, ZeroDivisionError):
                    pass
                for now, before in zip(lists, kept, strict=True):
                    now[:] = before
        used = {i for c in g.calls for i in c.ins if i is not None}
        ends = range(len(self.values))
        g.ends = [i for i in ends if i not in used or rng.random() < 0.2] or list(ends[-1:])
        if len(g.ends) > 1 and rng.random() < 0.3:
            g.ends = sorted(rng.choice(g.ends, len(g.ends) - 1, replace=False).tolist())
        return g.without_idle_calls()

    def shape(self) -> tuple[int, ...]:
        rng = self.rng
        kind = rng.random()
        if kind < 0.5:
            return tuple(int(x) for x in (rng.integers(1, 4), rng.integers(1, 9),
                                          rng.integers(1, 9), rng.integers(1, 9)))  # fmt: skip
        if kind < 0.53:
            return (0, 3)
        rank = int(rng.integers(0, 6))
        return tuple(int(x) for x in rng.integers(1, 6, rank))

    def leaf(
        self, shape: tuple[int, ...], state: bool = False, value: Any = None, exact: bool = False
    ) -> int:
        rng = self.rng
        if value is None:
            value = rng.normal(size=shape).astype(np.float32)
            if rng.random() < 0.1 and not state:
                value = value.astype(np.float64)
            elif rng.random() < 0.07 and not state:
                value = rng.integers(-3, 4, shape).astype(rng.choice(["int32", "int64", "uint8"]))
        need = bool(value.dtype.kind == "f" and not state and rng.random() < 0.75)
        strided = bool(rng.random() < 0.08 and not state)
        self.graph.leaves.append(Leaf(value, need, state, strided, exact))
        v = nn.Variable.from_numpy_array(value, need_grad=need)
        self.leaf_values.append(v)
        i = -len(self.graph.leaves)
        if not state and value.dtype.kind in "fiu":
            self.floats.insert(0, i)  # so that results are picked rather than parameters
        return i

    def value(self, i: int) -> nn.Variable:
        return self.values[i] if i >= 0 else self.leaf_values[-1 - i]

    def pick(self, rank: int | None = None) -> int:
        """A value, recent ones more often; a new leaf if none has the rank."""
        found = [i for i in self.floats if rank is None or self.value(i).ndim == rank]
        if not found or self.rng.random() < 0.05:
            shape = self.shape()
            if rank is not None:
                shape = tuple(int(x) for x in self.rng.integers(1, 7, rank))
            return self.leaf(shape)
        k = min(int(self.rng.exponential(3)), len(found) - 1)
        return found[-1 - k]

    def call(self, name: str, ins: list[Any], attrs: dict[str, Any] | None = None) -> bool:
        rng = self.rng
        marks = {m for m in ("persistent", "recompute", "stop") if rng.random() < 0.04}
        call = Call(name, ins, attrs or {}, frozenset(marks))
        y = run_call(call, [None if i is None else self.value(i) for i in ins])
        for v in y:
            big = np.abs(v.d.astype(np.float64)).max(initial=0)
            if not np.isfinite(big) or big > 200 or v.size > 20000:
                return False
        call.count = len(y)
        self.graph.calls.append(call)
        for v in y:
            self.values.append(v)
            if is_float(v):
                self.floats.append(len(self.values) - 1)
        return True


Made = tuple[str, list[Any], dict[str, Any]] | tuple[str, list[Any]] | None


def maybe(g: Generator, p: float = 0.5) -> bool:
    return bool(g.rng.random() < p)


def a_unary(g: Generator) -> Made:
    name = g.rng.choice(
        "relu relu6 tanh sigmoid swish gelu abs leaky_relu elu selu softplus sin cos hard_sigmoid "
        "hard_tanh mish softsign identity erf log_sigmoid celu crelu round sign".split()
    )
    inplace = name in ("relu", "leaky_relu") and maybe(g, 0.2)
    return str(name), [g.pick()], {"inplace": True} if inplace else {}


def a_number(g: Generator) -> Made:
    name = str(g.rng.choice(["add_scalar", "mul_scalar", "maximum_scalar", "minimum_scalar"]))
    val = float(g.rng.choice([0.0, -0.0, 1.0, -1.5, 0.3, 2]))
    attrs: dict[str, Any] = {"val": val}
    if name in ("add_scalar", "mul_scalar") and maybe(g, 0.2):
        attrs["inplace"] = True
    return name, [g.pick()], attrs


def an_operator(g: Generator) -> Made:
    which = str(g.rng.choice([k for k in OPERATORS if k != "near"]))
    ins = [g.pick()]
    if which in ("div", "sub", "mask"):
        ins.append(g.pick())
    return "operator", ins, {"which": which}


def a_binary(g: Generator) -> Made:
    name = str(g.rng.choice("add2 sub2 mul2 add2 mul2 maximum2 minimum2".split()))
    x = g.pick()
    shape = g.value(x).shape
    same = [i for i in g.floats if g.value(i).shape == shape]
    if maybe(g, 0.6):
        y = same[int(g.rng.integers(len(same)))]
    elif maybe(g, 0.5):
        y = g.leaf(tuple(1 if maybe(g) else s for s in shape))
    else:
        y = g.pick()
    return name, [x, y] if maybe(g) else [y, x]


def a_sum_of_many(g: Generator) -> Made:
    x = g.pick()
    same = [i for i in g.floats if g.value(i).shape == g.value(x).shape]
    ins = [same[int(g.rng.integers(len(same)))] for _ in range(int(g.rng.integers(2, 5)))]
    return str(g.rng.choice(["add_n", "mul_n"])), ins


def a_reduction(g: Generator) -> Made:
    x = g.pick()
    n = g.value(x).ndim
    name = str(g.rng.choice(["sum", "mean", "max", "min", "sum", "mean"]))
    axes = tuple(int(a) for a in np.flatnonzero(g.rng.random(n) < 0.5))
    axis = None if maybe(g, 0.2) else axes
    return name, [x], {"axis": axis, "keepdims": maybe(g)}


def a_convolution(g: Generator) -> Made:
    rng = g.rng
    rank = int(rng.choice([1, 2, 2, 2, 3]))
    x = g.pick(rank + 2)
    c = g.value(x).shape[1]
    group = int(rng.choice([k for k in (1, 1, 2, 3, c) if c % k == 0]))
    out = group * int(rng.integers(1, 5))
    kernel = tuple(int(k) for k in rng.integers(1, 4, rank))
    attrs: dict[str, Any] = {"group": group}
    for key, low, high in (("pad", 0, 3), ("stride", 1, 3), ("dilation", 1, 3)):
        if maybe(g):
            attrs[key] = tuple(int(k) for k in rng.integers(low, high, rank))
    shape = out, c // group, *kernel
    same = [i for i in g.floats if g.value(i).shape == shape and i < 0]
    w = same[0] if same and maybe(g) else g.leaf(shape)
    b = g.leaf((out,)) if maybe(g) else None
    return "convolution", [x, w, b], attrs


def a_deconvolution(g: Generator) -> Made:
    rng = g.rng
    x = g.pick(4)
    c = g.value(x).shape[1]
    group = int(rng.choice([k for k in (1, 1, 2, c) if c % k == 0]))
    per = int(rng.integers(1, 4))
    w = g.leaf((c, per, *(int(k) for k in rng.integers(1, 4, 2))))
    attrs: dict[str, Any] = {"group": group}
    for key, low, high in (("pad", 0, 2), ("stride", 1, 3), ("dilation", 1, 3)):
        if maybe(g):
            attrs[key] = tuple(int(k) for k in rng.integers(low, high, 2))
    return "deconvolution", [x, w, g.leaf((per * group,)) if maybe(g) else None], attrs


def a_depthwise(g: Generator) -> Made:
    x = g.pick(4)
    c = g.value(x).shape[1]
    m = int(g.rng.integers(1, 3))
    w = g.leaf((c * m, *(int(k) for k in g.rng.integers(1, 4, 2))))
    attrs: dict[str, Any] = {"multiplier": m, "pad": (1, 1)}
    return "depthwise_convolution", [x, w, g.leaf((c * m,)) if maybe(g) else None], attrs


def a_pooling(g: Generator) -> Made:
    rng = g.rng
    name = str(rng.choice(["max_pooling", "max_pooling", "average_pooling", "sum_pooling"]))
    kernel = tuple(int(k) for k in rng.integers(1, 4, 2))
    attrs: dict[str, Any] = {"kernel": kernel, "ignore_border": maybe(g)}
    if maybe(g):
        attrs["stride"] = tuple(int(k) for k in rng.integers(1, 3, 2))
    if maybe(g):
        attrs["pad"] = tuple(int(rng.integers(0, k)) for k in kernel)
    if name == "average_pooling":
        attrs["including_pad"] = maybe(g)
    return name, [g.pick(4)], attrs


def a_global_pooling(g: Generator) -> Made:
    return "global_average_pooling", [g.pick(4)]


def a_normalization(g: Generator) -> Made:
    x = g.pick(4 if maybe(g, 0.7) else None)
    shape = g.value(x).shape
    if len(shape) < 2:
        return None
    kind = g.rng.random()
    if kind < 0.7:
        c = (1, shape[1], *[1] * (len(shape) - 2))
        batch = maybe(g, 0.7)
        if batch and g.value(x).size // shape[1] < 4:
            return None  # a variance of next to nothing amplifies rounding
        beta = g.leaf(c) if maybe(g, 0.8) else None
        gamma = g.leaf(c) if maybe(g, 0.8) else None
        mean = g.leaf(c, state=True, value=g.rng.normal(size=c).astype(np.float32))
        var = g.leaf(c, state=True, value=g.rng.uniform(0.5, 2, c).astype(np.float32))
        attrs = {"batch_stat": batch, "eps": 1e-3, "decay_rate": 0.7}
        if maybe(g, 0.15) and batch:
            attrs["output_stat"] = True
        return "batch_normalization", [x, beta, gamma, mean, var], attrs
    if kind < 0.85:
        c = (1, *shape[1:])
        return "layer_normalization", [x, g.leaf(c), g.leaf(c)], {"eps": 1e-2}
    c = (1, shape[1], *[1] * (len(shape) - 2))
    group = int(g.rng.choice([k for k in (1, 2, 4) if shape[1] % k == 0]))
    return "group_normalization", [x, g.leaf(c), g.leaf(c)], {"num_groups": group, "eps": 1e-2}


def an_affine(g: Generator) -> Made:
    x = g.pick()
    shape = g.value(x).shape
    if len(shape) < 2:
        return None
    axis = int(g.rng.integers(1, len(shape)))
    n = int(np.prod(shape[axis:]))
    out = tuple(int(k) for k in g.rng.integers(1, 6, int(g.rng.integers(1, 3))))
    b = g.leaf(out) if maybe(g) else None
    return "affine", [x, g.leaf((n, *out)), b], {"base_axis": axis}


def a_product(g: Generator) -> Made:
    x = g.pick(3)
    n, a, b = g.value(x).shape
    ta, tb = maybe(g), maybe(g)
    inner, k = (a if ta else b), int(g.rng.integers(1, 6))
    y = g.leaf((n, k, inner) if tb else (n, inner, k))
    return "batch_matmul", [x, y], {"transpose_a": ta, "transpose_b": tb}


def a_movement(g: Generator) -> Made:
    rng = g.rng
    x = g.pick()
    shape = g.value(x).shape
    n = len(shape)
    kind = int(rng.integers(9))
    if kind < 2:
        flat = g.value(x).size
        first = int(rng.choice([k for k in range(1, 7) if flat % k == 0]))
        new = [(first, flat // first), (flat,), (1, flat // first, first), (*shape, 1)]
        attrs = {"shape": new[int(rng.integers(4))], "inplace": maybe(g, 0.8)}
        return "reshape", [x], attrs
    if kind == 2:
        return "transpose", [x], {"axes": tuple(int(a) for a in rng.permutation(n))}
    if kind == 3:
        start = tuple(int(rng.integers(0, max(1, s // 2))) for s in shape)
        step = tuple(int(rng.choice([1, 1, 2])) for _ in shape)
        stop = tuple(
            max(a + 1, s - int(rng.integers(0, 2))) for s, a in zip(shape, start, strict=True)
        )
        return "slice", [x], {"start": start, "stop": stop, "step": step}
    if kind == 4:
        axis = int(rng.integers(n))
        ends = shape[:axis], shape[axis + 1 :]
        shapes = {i: g.value(i).shape for i in g.floats if g.value(i).ndim == n}
        fits = [i for i, t in shapes.items() if (t[:axis], t[axis + 1 :]) == ends]
        ins = [x] + [fits[int(rng.integers(len(fits)))] for _ in range(int(rng.integers(1, 3)))]
        return "concatenate", ins, {"axis": axis}
    if kind == 5:
        width = tuple(int(k) for k in rng.integers(0, 2, 2 * n))
        mode = str(rng.choice(["constant", "reflect"]))
        return "pad", [x], {"pad_width": width, "mode": mode}
    if kind == 6:
        return "flip", [x], {"axes": (int(rng.integers(n)),)}
    if kind == 7:
        return "broadcast", [x], {"shape": tuple(3 if s == 1 else s for s in shape)}
    return str(rng.choice(["split"])), [x], {"axis": int(rng.integers(n))}


def a_softmax(g: Generator) -> Made:
    x = g.pick()
    n = g.value(x).ndim
    name = str(g.rng.choice(["softmax", "log_softmax"]))
    return name, [x], {"axis": int(g.rng.integers(n))}


def a_loss(g: Generator) -> Made:
    x = g.pick(int(g.rng.integers(2, 5)))
    shape = g.value(x).shape
    if maybe(g, 0.7):
        axis = int(g.rng.integers(1, len(shape)))
        label = (*shape[:axis], 1, *shape[axis + 1 :])
        kind = str(g.rng.choice(["int32", "int64", "float32"]))
        t = g.leaf(label, state=True, value=g.rng.integers(0, shape[axis], label).astype(kind))
        return "softmax_cross_entropy", [x, t], {"axis": axis}
    name = str(g.rng.choice(["squared_error", "huber_loss", "absolute_error"]))
    return name, [x, g.leaf(shape)]


def a_lookup(g: Generator) -> Made:
    w = g.pick(2)
    n = g.value(w).shape[0]
    i = g.leaf((3,), state=True, value=g.rng.integers(0, n, (2, 3)))
    return "embed", [i, w]


def a_resize(g: Generator) -> Made:
    x = g.pick(4)
    mode = str(g.rng.choice(["linear", "nearest"]))
    size = tuple(int(k) for k in g.rng.integers(1, 9, 2))
    return "interpolate", [x], {"output_size": size, "mode": mode, "align_corners": maybe(g)}


def a_mask(g: Generator) -> Made:
    if maybe(g):
        return "dropout", [g.pick()], {"p": 0.4, "seed": 5}
    x = g.pick()
    same = [i for i in g.floats if g.value(i).shape == g.value(x).shape]
    y = same[int(g.rng.integers(len(same)))]
    z = same[int(g.rng.integers(len(same)))]
    return "where", [x, y, z]


def an_activation_of_channels(g: Generator) -> Made:
    x = g.pick(4)
    return "prelu", [x, g.leaf((g.value(x).shape[1],))], {"base_axis": 1}


def a_cumulative(g: Generator) -> Made:
    x = g.pick()
    return "cumsum", [x], {"axis": int(g.rng.integers(g.value(x).ndim))}


KINDS: list[Callable[[Generator], Made]] = [
    a_unary, a_unary, a_unary, a_unary, a_number, an_operator, an_operator, a_binary, a_binary,
    a_binary, a_binary, a_sum_of_many, a_reduction, a_reduction, a_convolution, a_convolution,
    a_convolution, a_deconvolution, a_depthwise, a_pooling, a_pooling, a_global_pooling,
    a_normalization, a_normalization, an_affine, a_product, a_movement, a_movement, a_movement,
    a_softmax, a_loss, a_lookup, a_resize, a_mask, an_activation_of_channels, a_cumulative,
    *[a_sample] * 30,
]  # fmt: skip


def random_graph(seed: int) -> Graph:
    calls = int(np.random.default_rng([seed, 1]).integers(2, 25))
    return Generator(seed, calls).run()
