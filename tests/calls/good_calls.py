# SPDX-License-Identifier: Apache-2.0
"""Calls of the public interface that work: bad ones are made from them."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

import nnl as nn
import nnl.communicators as C
import nnl.functions as F
import nnl.initializer as I
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.core.ops.op import OPS, Op
from nnl.utils.data_iterator import data_iterator_simple
from tests.parametric_functions import layers
from tests.solvers.cases import CASES as SOLVERS


class Call:
    """function(*args, **kw).

    Attributes:
        label: How a user writes the function. An error has to name its last part, or one of
            `others`: what the function is made of.
        syntax: Whether it is an assignment or an operator: its number of arguments is fixed.
        arguments: Names of the arguments.
    """

    def __init__(self, label: str, function: Any, args: Any, kw: Any = None, others: Any = ()):
        self.label, self.function, self.others = label, function, tuple(others)
        self.args, self.kw = list(args), dict(kw or {})
        self.syntax = False
        self.arguments = list(inspect.signature(function).parameters)


Maker = Callable[[np.random.Generator], Call]


def variable(*shape: int, dtype: str = "float32", grad: bool = True) -> nn.Variable:
    """Small numbers of this shape."""
    value = (np.arange(np.prod(shape, dtype=int)) % 3).reshape(shape).astype(dtype)
    return nn.Variable.from_numpy_array(value, need_grad=grad and value.dtype.kind == "f")


def array(*shape: int, dtype: str = "float32") -> nn.NdArray:
    return variable(*shape, dtype=dtype).data


# ---- functions: the samples of ops ----

WRAPPED = {"sum", "mean", "max", "min", "prod"}  # F names what the op calls axes and keep_dims


def of_op(op: Op, rng: np.random.Generator) -> Call:
    every = list(op.attrs_class.samples(np.random.default_rng(0)))
    sample = every[int(rng.integers(len(every)))]
    xs: list[Any] = []
    as_array = rng.random() < 0.2
    for a in sample.inputs:
        if a is None:
            xs.append(None)
            continue
        a = np.asarray(a)
        a = a.astype(np.float32) if a.dtype.kind == "f" else a
        v = nn.Variable.from_numpy_array(a, need_grad=a.dtype.kind == "f")
        xs.append(v.data if as_array else v)
    attrs = dict(sample.attrs)
    attrs.pop("comm", None)
    if op.name == "norm" or op.name in WRAPPED:
        attrs = {{"axes": "axis", "keep_dims": "keepdims"}.get(k, k): v for k, v in attrs.items()}
    if op.name in ("tensor_normalization", "scatter_nd"):
        op_inputs = dict(zip(op.inputs, xs, strict=False))
        attrs.update({k: v for k, v in op_inputs.items() if k in ("beta", "gamma", "out")})
        xs = [v for k, v in op_inputs.items() if k not in ("beta", "gamma", "out")]
    attrs.pop("count", None)
    others = [f"{op.name}_with_statistics"]  # what output_stat=True calls
    if op.name in ("batch_det", "batch_logdet"):
        others.append("batch_inv")  # their gradient
    call = Call(f"F.{op.name}", getattr(F, op.name), xs, attrs, others)
    call.arguments += ["axes", "keep_dims"]  # what reductions call their axis
    return call


def functions() -> dict[str, Maker]:
    names = [n for n, op in OPS.items() if op.nnp and hasattr(op.attrs_class, "samples")]
    out: dict[str, Maker] = {f"F.{n}": partial(of_op, OPS[n]) for n in names}
    v = variable
    more = {
        "clip_by_norm": lambda: ([v(2, 3)], {"clip_norm": 1.0}),
        "clip_by_value": lambda: ([v(2, 3)], {"min": -1.0, "max": 1.0}),
        "dot": lambda: ([v(2, 3), v(3, 4)], {}),
        **{
            name: lambda: ([v(2, 3)], {"axis": 1, "keepdims": True})
            for name in ("logsumexp", "std", "var")
        },
        "sync_batch_normalization": lambda: (
            [v(2, 3, 4), *(v(1, 3, 1) for _ in range(4))],
            {"axes": [1], "batch_stat": True},
        ),
        "interpolate": lambda: ([v(2, 3, 4, 5)], {"scale": (2, 2), "mode": "nearest"}),
        "multi_head_attention": lambda: (
            [*(v(4, 2, 6) for _ in range(3)), 3, *(v(6, 6) for _ in range(4))],
            {"q_bias": v(6)},
        ),
    }
    others = {
        "sync_batch_normalization": ["batch_normalization"],
        "clip_by_norm": ["sum"],
        "clip_by_value": ["maximum2", "minimum2", "maximum_scalar", "minimum_scalar"],
        "dot": ["batch_matmul", "affine"],
        "logsumexp": ["max"],
        "std": ["mean"],
        "var": ["mean"],
        "multi_head_attention": ["affine", "add2", "dropout"],
    }
    for name, make in more.items():
        out[f"F.{name}, by hand"] = partial(_by_hand, f"F.{name}", name, make, others)
    return out


def _by_hand(label: str, name: str, make: Any, others: Any, rng: np.random.Generator) -> Call:
    args, kw = make()
    call = Call(label, getattr(F, name), args, kw, others.get(name, ()))
    call.arguments += [
        "weight",
        "bias",
        "x0",
        "x1",
        "axes",
    ]  # of the functions that they are made of
    return call


# ---- parametric functions: the calls of the tests of their parameters ----

COMPOSED = {
    "fused_batch_normalization": ["batch_normalization"],
    "multi_head_attention": ["dropout", "affine", "add2"],
    "transformer": ["transformer_encode", "transformer_decode", "multi_head_attention",
                    "layer_normalization", "affine", "dropout"],
    "transformer_encode": ["multi_head_attention", "layer_normalization", "affine", "dropout",
                           "add2"],
    "transformer_decode": ["multi_head_attention", "layer_normalization", "affine", "dropout",
                           "add2"],
    "lstm_cell": ["affine", "LSTMCell"],
    "LSTMCell": ["affine", "lstm_cell"],
}  # fmt: skip


def parametric() -> dict[str, Maker]:
    recorded: dict[str, Any] = {}

    class Recorder:
        """Stands in for nnl.parametric_functions and notes down how it is called."""

        def __getattr__(self, name: str) -> Any:
            def note(*args: Any, **kw: Any) -> Any:
                recorded["call"] = name, args, kw
                return lambda *args, **kw: None

            return note

    cases = layers.cases(SimpleNamespace(Variable=variable_of), Recorder(), I)

    def make(case: Any, rng: np.random.Generator) -> Call:
        case()
        name, args, kw = recorded["call"]
        others = [*COMPOSED.get(name, ()), "get_parameter_or_create", "calc_uniform_lim_glorot"]
        call = Call(f"PF.{name}", getattr(PF, name), args, kw, others)
        call.arguments += ["x", "x0", "kernel", "weight"]  # of the functions that they call
        return call

    del cases["spectral_norm_of_conv"]  # its apply_w would call the recorder
    return {f"PF {k}": partial(make, case) for k, case in cases.items()}


def variable_of(shape: tuple[int, ...]) -> nn.Variable:
    return variable(*shape)


# ---- objects and their methods ----


def solver(name: str, kw: dict[str, Any], rng: np.random.Generator) -> Call:
    return Call(f"S.{name}", getattr(S, name), [], kw)


def solver_method(method: str, args: list[Any], rng: np.random.Generator) -> Call:
    name, kw = SOLVERS[int(rng.integers(len(SOLVERS)))]
    s = getattr(S, name)(**kw)
    w = variable(2, 3)
    w.g = 1
    s.set_parameters({"w": w})
    given = [{"w": w} if a == "parameters" else a for a in args]
    return Call(f"S.{name}.{method}", getattr(s, method), given)


def initializer(name: str, args: list[Any], rng: np.random.Generator) -> Call:
    def run(*given: Any, shape: Any = (4, 3), **kw: Any) -> Any:
        made = getattr(I, name)(*given, **kw)
        return made(shape)

    call = Call(f"I.{name}", run, args, {"shape": (4, 3)})
    call.arguments = [*inspect.signature(getattr(I, name)).parameters, "shape"]
    return call


def method(owner: str, make: Any, name: str, args: Any, kw: Any, rng: Any) -> Call:
    others = ["cast"] if name == "get_data" else []
    return Call(f"{owner}.{name}", getattr(make(), name), args(), kw, others)


def assigned(owner: str, make: Any, name: str, value: Any, rng: Any) -> Call:
    target = make()
    call = Call(f"{owner}.{name} =", lambda v: setattr(target, name, v), [value()], None, ["data"])
    call.syntax = True
    call.arguments = ["data", "grad", name]
    return call


def operation(text: str, function: Any, value: Any, rng: Any) -> Call:
    x = variable(2, 3)
    call = Call(f"Variable {text}", partial(function, x), [value()], None, OPERATOR_NAMES)
    call.syntax = True
    call.arguments = ["index", "slice", "axis", "x0", "x1"]
    return call


OPERATOR_NAMES = [
    *"Variable indexing add2 sub2 mul2 div2 pow2 batch_matmul matmul slice gather".split(),
    *(f"{r}{n}_scalar" for n in ("add", "sub", "mul", "div", "pow") for r in ("", "r_")),
]


def communicator() -> Any:
    comm = C.MultiProcessDataParallelCommunicator(nn.get_current_context())
    comm.init()
    return comm


def iterator(load_func: Any, num_examples: Any, *args: Any, **kw: Any) -> Any:
    it = data_iterator_simple(load_func, num_examples, *args, **kw)
    try:
        return it.next()
    finally:
        it.close()


def data_iterator(rng: Any) -> Call:
    kw = {"shuffle": True, "use_thread": False}
    call = Call(
        "data_iterator_simple",
        iterator,
        [lambda i: (np.zeros(3), i), 10, 3],
        kw,
        ["DataIterator", "SimpleDataSource", "DataSource"],
    )
    call.arguments = list(inspect.signature(data_iterator_simple).parameters)
    return call


def objects() -> dict[str, Maker]:
    v, a = variable, array
    out: dict[str, Maker] = {}
    for name, kw in SOLVERS:
        out[f"S.{name} {kw}"] = partial(solver, name, kw)
    for name, args in [
        ("set_parameters", ["parameters"]), ("set_learning_rate", [0.1]), ("weight_decay", [0.1]),
        ("clip_grad_by_norm", [1.0]), ("scale_grad", [0.5]), ("remove_parameters", [["w"]]),
        ("update", []),
    ]:  # fmt: skip
        out[f"solver.{name}"] = partial(solver_method, name, args)
    for name, args in [
        ("NormalInitializer", [0.1]), ("UniformInitializer", [(-1, 1)]),
        ("UniformIntInitializer", [(0, 10)]), ("RangeInitializer", [0, 1]),
        ("ConstantInitializer", [2.0]), ("OrthogonalInitializer", [1.0]),
    ]:  # fmt: skip
        out[f"I.{name}"] = partial(initializer, name, args)
    for name, args in [
        ("calc_normal_std_he_forward", [3, 4]), ("calc_normal_std_glorot", [3, 4]),
        ("calc_uniform_lim_glorot", [3, 4]),
    ]:  # fmt: skip
        out[f"I.{name}"] = partial(_plain, f"I.{name}", getattr(I, name), args, {"kernel": (3, 3)})
    makers = {"NdArray": lambda: a(2, 3), "Variable": lambda: v(2, 3)}
    for owner, name, args, kw in [
        ("NdArray", "view", lambda: [(3, 2)], {}),
        ("NdArray", "narrow", lambda: [0, 0, 1], {}),
        ("NdArray", "copy_from", lambda: [a(2, 3)], {}),
        ("NdArray", "cast", lambda: ["float64"], {}),
        ("NdArray", "fill", lambda: [1.5], {}),
        ("NdArray", "get_data", lambda: ["r"], {}),
        ("NdArray", "size_from_axis", lambda: [1], {}),
        ("Variable", "reset_shape", lambda: [(3, 2)], {"force": True}),
        ("Variable", "rewire_on", lambda: [v(2, 3)], {}),
        ("Variable", "unlinked", lambda: [True], {}),
        ("Variable", "visit", lambda: [lambda f: None], {}),
        ("Variable", "size_from_axis", lambda: [1], {}),
    ]:
        out[f"{owner}.{name}"] = partial(method, owner, makers[owner], name, args, kw)
    for owner, name, value in [
        ("Variable", "d", lambda: np.ones((2, 3))), ("Variable", "g", lambda: np.ones((2, 3))),
        ("Variable", "data", lambda: a(2, 3)), ("Variable", "grad", lambda: a(2, 3)),
        ("Variable", "parent", lambda: None), ("Variable", "need_grad", lambda: True),
        ("NdArray", "data", lambda: np.ones((2, 3))),
    ]:  # fmt: skip
        out[f"{owner}.{name} ="] = partial(assigned, owner, makers[owner], name, value)
    for name, args in [
        ("Variable", lambda: [(2, 3)]), ("NdArray", lambda: [(2, 3)]),
        ("Context", lambda: [["cpu:float"]]), ("forward_all", lambda: [[v(2, 3)]]),
        ("seed", lambda: [1]), ("grad", lambda: [[F.sum((x := v(2, 3)) ** 2)], [x]]),
        ("set_auto_forward", lambda: [False]), ("parameter_scope", lambda: ["a"]),
    ]:  # fmt: skip
        out[f"nn.{name}"] = partial(_fresh, f"nn.{name}", getattr(nn, name), args)
    for name in ("Variable", "NdArray"):
        made = getattr(nn, name).from_numpy_array
        out[f"{name}.from_numpy_array"] = partial(
            _fresh, f"{name}.from_numpy_array", made, lambda: [np.ones(3)], others=["data"]
        )
    for text, function, value in [
        ("+", lambda x, y: x + y, lambda: v(2, 3)), ("-", lambda x, y: y - x, lambda: v(2, 3)),
        ("*", lambda x, y: x * y, lambda: 2.0), ("/", lambda x, y: y / x, lambda: 2.0),
        ("**", lambda x, y: x**y, lambda: 2), ("@", lambda x, y: x @ y, lambda: v(3, 2)),
        ("+=", lambda x, y: operator.iadd(x, y), lambda: 1.0), ("[]", lambda x, y: x[y], lambda: 0),
    ]:  # fmt: skip
        out[f"operator {text}"] = partial(operation, text, function, value)
    for name, args in [
        ("all_reduce", lambda: [[a(2, 3)]]), ("bcast", lambda: [[a(2, 3)], 0]),
        ("reduce", lambda: [[a(2, 3)], 0]), ("all_gather", lambda: [a(2), [a(2)]]),
        ("reduce_scatter", lambda: [[a(2)], a(2)]), ("new_group", lambda: [("g", [0])]),
    ]:  # fmt: skip
        out[f"comm.{name}"] = partial(method, "comm", communicator, name, args, {})
    out["data_iterator_simple"] = data_iterator
    return out


def _plain(label: str, function: Any, args: list[Any], kw: Any, rng: Any) -> Call:
    return Call(label, function, args, kw)


def _fresh(label: str, function: Any, args: Any, rng: Any, others: Any = ()) -> Call:
    return Call(label, function, args(), None, others)


def makers() -> dict[str, Maker]:
    """Every call, by name."""
    return {**functions(), **parametric(), **objects()}
