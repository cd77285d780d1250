# SPDX-License-Identifier: Apache-2.0
"""What sizes each operation of a cuDNN graph may have. The front end checks only some of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["PRODUCTS", "RULES", "SpecError"]

ACTIVATIONS = ("relu", "leaky_relu", "elu", "sigmoid", "tanh", "swish", "gelu_approx_tanh")
UNARY = ("identity", "rsqrt", "reciprocal", *ACTIVATIONS)
BINARY = ("add", "sub", "mul", "relu_backward")
CONVOLUTIONS = ("conv_fprop", "conv_dgrad", "conv_wgrad")
PRODUCTS = (*CONVOLUTIONS, "matmul")
BATCH_NORMS = ("batchnorm", "batchnorm_inference", "batchnorm_backward")


class SpecError(ValueError):
    """A description of a cuDNN graph does not fit together."""


Rule = Callable[[str, dict[str, Any], dict[str, Any]], None]


def same(op: str, given: dict[str, Any], port: str, dim: tuple[int, ...], why: str) -> None:
    """Raise unless the operand at a port, if there is one, has these sizes."""
    a = given.get(port)
    if a is not None and a.dim != tuple(dim):
        raise SpecError(f"{op}: {port} {a} must have the sizes {list(dim)}, {why}")


def pointwise(op: str, given: dict[str, Any], attrs: dict[str, Any]) -> None:
    wanted = 1 if op in UNARY else 2
    ins = [a for port, a in given.items() if port != "out"]
    if len(ins) != wanted:
        raise SpecError(f"{op}: {len(ins)} operands, wanted {wanted}")
    try:
        dim = np.broadcast_shapes(*[a.dim for a in ins])
    except ValueError:
        raise SpecError(f"{op}: {' and '.join(map(str, ins))} do not broadcast") from None
    same(op, given, "out", dim, "as the operands broadcast")


def convolution(op: str, given: dict[str, Any], attrs: dict[str, Any]) -> None:
    names = {
        "conv_fprop": ("image", "weight", "Y"),
        "conv_dgrad": ("DX", "filter", "loss"),
        "conv_wgrad": ("image", "DW", "loss"),
    }[op]
    x, w, y = (given[name] for name in names)
    x_name, w_name, y_name = names
    n = len(x.dim) - 2
    if n < 2 or len(w.dim) != n + 2 or len(y.dim) != n + 2:
        raise SpecError(
            f"{op}: {x_name} {x}, {w_name} {w} and {y_name} {y} must have one rank, 4 or 5"
        )
    for field in ("pre_padding", "post_padding", "stride", "dilation"):
        if len(attrs[field]) != n:
            raise SpecError(f"{op}: {field} {list(attrs[field])} must have {n} entries")
    groups, rest = divmod(x.dim[1], w.dim[1])
    if rest:
        raise SpecError(
            f"{op}: {x_name} {x} has {x.dim[1]} channels, "
            f"not a multiple of the {w.dim[1]} of {w_name} {w}"
        )
    if w.dim[0] % groups:
        raise SpecError(
            f"{op}: {w_name} {w} has {w.dim[0]} maps, not a multiple of {groups} groups"
        )
    size = tuple(
        (x.dim[i + 2] + b + e - d * (w.dim[i + 2] - 1) - 1) // s + 1
        for i, (b, e, s, d) in enumerate(
            zip(
                attrs["pre_padding"], attrs["post_padding"], attrs["stride"], attrs["dilation"],
                strict=True,
            )
        )
    )  # fmt: skip
    same(op, given, y_name, (x.dim[0], w.dim[0], *size), f"for {x_name} {x} and {w_name} {w}")


def matmul(op: str, given: dict[str, Any], attrs: dict[str, Any]) -> None:
    a, b = given["A"], given["B"]
    if len(a.dim) != len(b.dim) or len(a.dim) < 3:
        raise SpecError(f"matmul: A {a} and B {b} must have one rank, at least 3")
    if a.dim[-1] != b.dim[-2]:
        raise SpecError(f"matmul: A {a} has {a.dim[-1]} columns, B {b} has {b.dim[-2]} rows")
    try:
        batch = np.broadcast_shapes(a.dim[:-2], b.dim[:-2])
    except ValueError:
        raise SpecError(f"matmul: batch axes of A {a} and B {b} do not broadcast") from None
    same(op, given, "C", (*batch, a.dim[-2], b.dim[-1]), f"for A {a} and B {b}")


def reduction(op: str, given: dict[str, Any], attrs: dict[str, Any]) -> None:
    x, y = given["input"], given["out"]
    if attrs.get("mode") != "ADD":
        raise SpecError(f"reduction: mode is {attrs.get('mode')!r}, wanted 'ADD'")
    if len(x.dim) != len(y.dim) or any(m not in (1, n) for n, m in zip(x.dim, y.dim, strict=True)):
        raise SpecError(f"reduction: out {y} must have the sizes of input {x}, or 1")


def genstats(op: str, given: dict[str, Any], attrs: dict[str, Any]) -> None:
    per_channel(op, given, given["input"], ("SUM", "SQ_SUM"))


def per_channel(op: str, given: dict[str, Any], x: Any, ports: Sequence[str]) -> None:
    dim = (1, x.dim[1], *(1,) * (len(x.dim) - 2))
    for port in ports:
        same(op, given, port, dim, f"one value for each channel of {x}")


def batch_norm(op: str, given: dict[str, Any], attrs: dict[str, Any]) -> None:
    x = given["input"]
    running = [f"{time}_running_{what}" for time in ("in", "next") for what in ("mean", "var")]
    ports = ("scale", "bias", "mean", "inv_var", "inv_variance", "DScale", "DBias", *running)
    per_channel(op, given, x, ports)
    for port in ("Y", "DX", "grad"):
        same(op, given, port, x.dim, f"those of input {x}")
    if op == "batchnorm":
        constant(op, given, "epsilon")
        constant(op, given, "momentum")


def constant(op: str, given: dict[str, Any], port: str) -> None:
    if port not in given or given[port].value is None:
        raise SpecError(f"{op}: {port} must be a constant")


def layer_norm(op: str, given: dict[str, Any], attrs: dict[str, Any]) -> None:
    x = given["input"]
    for port in ("scale", "bias", "DScale", "DBias"):
        same(op, given, port, (1, *x.dim[1:]), f"one value for each element of a row of {x}")
    rank = len(x.dim) - 1
    for port in ("mean", "inv_var", "inv_variance"):
        same(op, given, port, (x.dim[0], *(1,) * rank), f"one value for each row of {x}")
    for port in ("Y", "DX", "grad"):
        same(op, given, port, x.dim, f"those of input {x}")
    if op == "layernorm":
        constant(op, given, "epsilon")


def attention(op: str, given: dict[str, Any], attrs: dict[str, Any]) -> None:
    q, k, v = given["q"], given["k"], given["v"]
    if not len(q.dim) == len(k.dim) == len(v.dim) == 4:
        raise SpecError(f"{op}: q {q}, k {k} and v {v} must have 4 axes")
    batch, heads, queries, depth = q.dim
    same(op, given, "k", (batch, k.dim[1], k.dim[2], depth), f"for q {q}")
    same(op, given, "v", (batch, k.dim[1], k.dim[2], v.dim[3]), f"for q {q} and k {k}")
    if heads % k.dim[1]:
        raise SpecError(f"{op}: q {q} has {heads} heads, not a multiple of the {k.dim[1]} of k {k}")
    result = (batch, heads, queries, v.dim[3])
    for port in ("O", "o", "dO"):
        same(op, given, port, result, f"for q {q} and v {v}")
    for port in ("Stats", "stats"):
        same(op, given, port, (batch, heads, queries, 1), f"one value for each row of q {q}")
    for port, a in (("dQ", q), ("dK", k), ("dV", v)):
        same(op, given, port, a.dim, f"those of {a}")
    bias = given.get("bias")
    full = (batch, heads, queries, k.dim[2])
    if bias is not None and (
        len(bias.dim) != 4 or any(m not in (1, n) for n, m in zip(full, bias.dim, strict=True))
    ):
        raise SpecError(f"{op}: bias {bias} must have the sizes {list(full)}, or 1")
    if not math.isfinite(attrs["attn_scale"]):
        raise SpecError(f"{op}: attn_scale is {attrs['attn_scale']}, wanted a finite number")


RULES: dict[str, Rule] = {
    **dict.fromkeys((*UNARY, *BINARY), pointwise),
    **dict.fromkeys(CONVOLUTIONS, convolution),
    "matmul": matmul,
    "reduction": reduction,
    "genstats": genstats,
    **dict.fromkeys(BATCH_NORMS, batch_norm),
    **dict.fromkeys(("layernorm", "layernorm_backward"), layer_norm),
    **dict.fromkeys(("sdpa", "sdpa_backward"), attention),
}
