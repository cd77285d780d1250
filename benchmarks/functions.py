# SPDX-License-Identifier: Apache-2.0
"""Every function that PyTorch has too, at middle sizes, beside it on one thread.

    OMP_NUM_THREADS=1 python benchmarks/functions.py [--functions WORDS] [--json FILE]

Each function runs over arrays of three kinds, which are rows, images and sequences where it takes
any. `forward` is a static graph without gradient beside `torch.no_grad`, `gradient` forward and
backward from a given gradient beside the same. The engines run by turns; a number is the median of
the ratios of neighbouring runs' processor time, ours by PyTorch's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as T

import nnl as nn
import nnl.functions as F

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
ROWS, IMAGES, TOKENS = (256, 1024), (8, 32, 48, 48), (16, 128, 192)
ANY = (ROWS, IMAGES, TOKENS)


class Case(NamedTuple):
    """A function here and there, of arrays that `inputs` makes of a shape; `last` of them are given
    as they are, such as indices."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    inputs: Callable[[tuple[int, ...]], list[Array]] = lambda shape: [normal(shape)]
    shapes: tuple[tuple[int, ...], ...] = ANY
    gradient: bool = True


def normal(shape: tuple[int, ...]) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def positive(shape: tuple[int, ...]) -> list[Array]:
    return [RNG.uniform(0.5, 2, shape).astype(np.float32)]


def inside(shape: tuple[int, ...]) -> list[Array]:
    return [RNG.uniform(-0.9, 0.9, shape).astype(np.float32)]


def two(shape: tuple[int, ...]) -> list[Array]:
    return [normal(shape), normal(shape)]


def two_positive(shape: tuple[int, ...]) -> list[Array]:
    return positive(shape) + positive(shape)


def stretched(shape: tuple[int, ...]) -> list[Array]:
    """The second one is a row, or one number for each map."""
    small = (1, shape[1], *[1] * (len(shape) - 2)) if len(shape) == 4 else shape[-1:]
    return [normal(shape), normal((1,) * (len(shape) - len(small)) + small)]


def ids(count: int) -> Callable[[tuple[int, ...]], list[Array]]:
    """Indices of that shape, then a table of `count` rows of 64."""
    return lambda shape: [RNG.integers(0, count, shape), normal((count, 64))]


def _unary() -> dict[str, Case]:
    own = {
        "relu": T.relu, "relu6": T.relu6, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
        "elu": T.elu, "selu": T.selu, "swish": T.silu, "mish": T.mish, "softplus": T.softplus,
        "softsign": T.softsign, "log_sigmoid": T.logsigmoid, "tanh_shrink": T.tanhshrink,
        "hard_tanh": T.hardtanh, "exp": torch.exp, "sin": torch.sin, "cos": torch.cos,
        "tan": torch.tan, "sinh": torch.sinh, "cosh": torch.cosh, "atan": torch.atan,
        "asinh": torch.asinh, "abs": torch.abs, "erf": torch.erf, "identity": torch.clone,
    }  # fmt: skip
    found = {k: Case(getattr(F, k), f) for k, f in own.items()}
    flat = {"floor": torch.floor, "ceil": torch.ceil, "isnan": torch.isnan, "sign": torch.sign}
    found |= {k: Case(getattr(F, k), f, gradient=False) for k, f in flat.items()}
    found |= {k: Case(getattr(F, k), getattr(torch, k), inside) for k in ("asin", "acos", "atanh")}
    found["log"] = Case(F.log, torch.log, positive)
    found["gelu"] = Case(F.gelu, lambda x: T.gelu(x, approximate="tanh"))
    found["leaky_relu"] = Case(lambda x: F.leaky_relu(x, 0.1), lambda x: T.leaky_relu(x, 0.1))
    found["pow_scalar"] = Case(lambda x: x**1.5, lambda x: x**1.5, positive)
    found["add_scalar"] = Case(lambda x: x + 2.0, lambda x: x + 2.0)
    found["mul_scalar"] = Case(lambda x: x * 2.0, lambda x: x * 2.0)
    found["minimum_scalar"] = Case(
        lambda x: F.minimum_scalar(x, 0.5), lambda x: torch.clamp(x, max=0.5)
    )
    found["clip"] = Case(
        lambda x: F.clip_by_value(x, -0.5, 0.5), lambda x: torch.clamp(x, -0.5, 0.5)
    )
    return found


def _binary() -> dict[str, Case]:
    pairs = {"add2": torch.add, "sub2": torch.sub, "mul2": torch.mul, "maximum2": torch.maximum,
             "minimum2": torch.minimum, "atan2": torch.atan2,
             "squared_error": lambda x, y: (x - y) ** 2}  # fmt: skip
    found = {k: Case(getattr(F, k), f, two) for k, f in pairs.items()}
    for name, f in (("add2", torch.add), ("mul2", torch.mul)):
        found[f"{name}, stretched"] = Case(getattr(F, name), f, stretched)
    found |= {k: Case(getattr(F, k), f, two_positive) for k, f in
              {"div2": torch.div, "pow2": torch.pow}.items()}  # fmt: skip
    flat = {"greater": torch.gt, "equal": torch.eq, "logical_and": torch.logical_and}
    found |= {k: Case(getattr(F, k), f, two, gradient=False) for k, f in flat.items()}
    found["where"] = Case(
        lambda c, x, y: F.where(c, x, y), lambda c, x, y: torch.where(c > 0, x, y),
        lambda s: [(normal(s) > 0).astype(np.int64), normal(s), normal(s)],
    )  # fmt: skip
    found["huber_loss"] = Case(
        lambda x, y: F.huber_loss(x, y), lambda x, y: 2 * T.huber_loss(x, y, "none"), two
    )
    return found


def _reductions() -> dict[str, Case]:
    found = {}
    for name, f in (("sum", torch.sum), ("mean", torch.mean)):
        own = getattr(F, name)
        found[f"{name}, last"] = Case(lambda x, f=own: f(x, -1), lambda x, f=f: f(x, -1))
        found[f"{name}, second"] = Case(lambda x, f=own: f(x, 1), lambda x, f=f: f(x, 1))
        found[f"{name}, all"] = Case(own, f)
    for name, f in (("max", torch.amax), ("min", torch.amin)):
        own = getattr(F, name)
        found[f"{name}, last"] = Case(
            lambda x, f=own: f(x, -1), lambda x, k=name: getattr(torch, k)(x, -1).values
        )
        found[f"{name}, second"] = Case(
            lambda x, f=own: f(x, 1), lambda x, k=name: getattr(torch, k)(x, 1).values
        )
        found[f"{name}, all"] = Case(own, getattr(torch, name))
    found["prod"] = Case(lambda x: F.prod(x, -1), lambda x: torch.prod(x, -1), positive)
    found["norm"] = Case(lambda x: F.norm(x, 2, -1), lambda x: torch.linalg.vector_norm(x, 2, -1))
    found["cumsum"] = Case(lambda x: F.cumsum(x, -1), lambda x: torch.cumsum(x, -1))
    found["cumprod"] = Case(lambda x: F.cumprod(x, -1), lambda x: torch.cumprod(x, -1), positive)
    found["softmax"] = Case(lambda x: F.softmax(x, -1), lambda x: T.softmax(x, -1))
    found["log_softmax"] = Case(lambda x: F.log_softmax(x, -1), lambda x: T.log_softmax(x, -1))
    found["sort"] = Case(lambda x: F.sort(x, -1), lambda x: torch.sort(x, -1).values)
    found["top_k_data"] = Case(
        lambda x: F.top_k_data(x, 4, base_axis=x.ndim - 1),
        lambda x: torch.topk(x, 4, -1).values,
    )
    found["argmax"] = Case(
        lambda x: F.max(x, -1, only_index=True), lambda x: x.argmax(-1), gradient=False
    )
    return found


def _layout() -> dict[str, Case]:
    def halves(x: Any, n: Any) -> Any:
        return x[:, :n]

    return {
        "transpose": Case(
            lambda x: F.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)),
            lambda x: x.transpose(-1, -2).contiguous(),
        ),
        "transpose, images": Case(
            lambda x: F.transpose(x, (0, 2, 3, 1)), lambda x: x.permute(0, 2, 3, 1).contiguous(),
            shapes=(IMAGES, (2, 3, 224, 224), (16, 256, 14, 14)),
        ),
        "concatenate": Case(
            lambda x, y: F.concatenate(x, y, axis=1), lambda x, y: torch.cat([x, y], 1), two
        ),
        "stack": Case(
            lambda x, y: F.stack(x, y, axis=1), lambda x, y: torch.stack([x, y], 1), two
        ),
        "slice": Case(
            lambda x: F.slice(x, [0] * x.ndim, [x.shape[0], x.shape[1] // 2, *x.shape[2:]]),
            lambda x: halves(x, x.shape[1] // 2).contiguous(),
        ),
        "pad": Case(
            lambda x: F.pad(x, (1, 2), "constant", 0.0), lambda x: T.pad(x, (1, 2)),
        ),
        "pad, reflect": Case(
            lambda x: F.pad(x, (2, 2, 2, 2), "reflect"), lambda x: T.pad(x, (2,) * 4, "reflect"),
            shapes=(IMAGES, (2, 3, 224, 224), (16, 256, 14, 14)),
        ),
        "flip": Case(lambda x: F.flip(x, [-1]), lambda x: torch.flip(x, [-1])),
        "flip, second": Case(lambda x: F.flip(x, [1]), lambda x: torch.flip(x, [1])),
        "tile": Case(
            lambda x: F.tile(x, (1, 2, *[1] * (x.ndim - 2))),
            lambda x: x.tile(1, 2, *[1] * (x.ndim - 2)),
        ),
        "broadcast": Case(
            lambda x: F.broadcast(x, (4, *x.shape[1:])),
            lambda x: x.expand(4, *x.shape[1:]).clone(),
            shapes=tuple([(1, *s[1:]) for s in ((1, 65536), (1, 32, 48, 48), (1, 512, 192))]),
        ),
        "shift": Case(
            lambda x: F.shift(x, (1,), "nearest"),
            lambda x: torch.cat([x[..., :1], x[..., :-1]], -1),
        ),
        "embed": Case(
            F.embed, lambda i, w: T.embedding(i, w), ids(5000),
            ((4096,), (32, 128), (8, 16, 32)),
        ),
        "gather": Case(
            lambda i, x: F.gather(x, i, 0), lambda i, x: x[i], ids(5000),
            ((4096,), (32, 128), (8, 16, 32)),
        ),
        "one_hot": Case(
            lambda x: F.one_hot(x, (100,)), lambda x: T.one_hot(x[..., 0], 100).float(),
            lambda s: [RNG.integers(0, 100, (*s, 1))], ((4096,), (32, 128), (8, 16, 32)), False,
        ),
        "fft": Case(
            lambda x: F.fft(x, 1),
            lambda x: torch.view_as_real(torch.fft.fft(torch.view_as_complex(x))),
            shapes=((64, 1024, 2), (1, 65536, 2), (511, 1000, 2)),
        ),
        "randn": Case(
            lambda x: F.randn(shape=x.shape), lambda x: torch.randn(x.shape), gradient=False
        ),
        "rand": Case(
            lambda x: F.rand(shape=x.shape), lambda x: torch.rand(x.shape), gradient=False
        ),
        "dropout": Case(lambda x: F.dropout(x, 0.3), lambda x: T.dropout(x, 0.3, True)),
    }  # fmt: skip


def _layers() -> dict[str, Case]:
    images = (IMAGES, (2, 64, 56, 56), (16, 256, 14, 14))
    bn = lambda x: nn.parametric_functions.batch_normalization(x, name="bn")  # noqa: E731

    def grids(shape: tuple[int, ...]) -> list[Array]:
        n, _, h, w = shape
        return [normal(shape), RNG.uniform(-1, 1, (n, h, w, 2)).astype(np.float32)]

    def weighted(*w: int) -> Callable[[tuple[int, ...]], list[Array]]:
        return lambda s: [normal(s), 0.1 * normal((w[0], s[1], *w[1:])), normal(w[:1])]

    def labels(shape: tuple[int, ...]) -> list[Array]:
        return [normal(shape), RNG.integers(0, shape[1], (shape[0], 1))]

    return {
        "convolution": Case(
            lambda x, w, b: F.convolution(x, w, b, pad=(1, 1)),
            lambda x, w, b: T.conv2d(x, w, b, padding=1), weighted(32, 3, 3), images,
        ),
        "affine": Case(
            lambda x, w, b: F.affine(x, w, b, base_axis=x.ndim - 1),
            lambda x, w, b: x @ w + b,
            lambda s: [normal(s), 0.1 * normal((s[-1], 256)), normal((256,))],
            (ROWS, TOKENS, (8, 512)),
        ),
        "batch_matmul": Case(
            F.batch_matmul, torch.matmul, lambda s: [normal(s), normal((*s[:-2], s[-1], s[-2]))],
            ((16, 128, 64), (8, 4, 64, 32), (1, 256, 256)),
        ),
        "max_pooling": Case(
            lambda x: F.max_pooling(x, (2, 2)), lambda x: T.max_pool2d(x, 2), shapes=images
        ),
        "average_pooling": Case(
            lambda x: F.average_pooling(x, (2, 2)), lambda x: T.avg_pool2d(x, 2), shapes=images
        ),
        "global_average_pooling": Case(
            F.global_average_pooling, lambda x: T.adaptive_avg_pool2d(x, 1), shapes=images
        ),
        "interpolate, linear": Case(
            lambda x: F.interpolate(x, (2.0, 2.0), None, "linear", False, True),
            lambda x: T.interpolate(x, scale_factor=2, mode="bilinear"), shapes=images,
        ),
        "interpolate, nearest": Case(
            lambda x: F.interpolate(x, (2.0, 2.0), None, "nearest", False),
            lambda x: T.interpolate(x, scale_factor=2, mode="nearest"), shapes=images,
        ),
        "warp_by_grid": Case(
            lambda x, g: F.warp_by_grid(x, g, align_corners=True),
            lambda x, g: T.grid_sample(x, g, align_corners=True), grids, images,
        ),
        "layer_normalization": Case(
            lambda x: F.layer_normalization(x, None, None, batch_axis=tuple(range(x.ndim - 1))),
            lambda x: T.layer_norm(x, x.shape[-1:]),
        ),
        "batch_normalization": Case(
            bn, lambda x: T.batch_norm(x, None, None, None, None, True), shapes=images
        ),
        "group_normalization": Case(
            lambda x: F.group_normalization(x, None, None, 4), lambda x: T.group_norm(x, 4),
            shapes=images,
        ),
        "softmax_cross_entropy": Case(
            lambda x, t: F.softmax_cross_entropy(x, t, 1),
            lambda x, t: T.cross_entropy(x, t[:, 0], reduction="none"), labels,
            ((256, 1000), (4096, 10), (64, 30000)),
        ),
        "sigmoid_cross_entropy": Case(
            lambda t, x: F.sigmoid_cross_entropy(x, t),
            lambda t, x: T.binary_cross_entropy_with_logits(x, t.float(), reduction="none"),
            lambda s: [RNG.integers(0, 2, s), normal(s)],
        ),
        "prelu": Case(
            lambda x, w: F.prelu(x, w, 1), T.prelu, lambda s: [normal(s), normal((s[1],))], images
        ),
    }  # fmt: skip


FUNCTIONS = {**_unary(), **_binary(), **_reductions(), **_layout(), **_layers()}


def is_real(a: Array) -> bool:
    return a.dtype.kind == "f"


def runs(case: Case, shape: tuple[int, ...], gradient: bool) -> tuple[Any, Any]:
    """What runs the case here and there once."""
    arrays = case.inputs(shape)
    nn.clear_parameters()
    xs = [nn.Variable.from_numpy_array(a, need_grad=gradient and is_real(a)) for a in arrays]
    with nn.auto_forward(False):
        y = case.ours(*xs)
    y = y[0] if isinstance(y, (list, tuple)) else y
    ts = [torch.tensor(a, requires_grad=gradient and is_real(a)) for a in arrays]
    if not gradient:

        def theirs() -> None:
            with torch.no_grad():
                case.theirs(*ts)

        return lambda: y.forward(clear_buffer=True), theirs
    g = normal(y.shape)
    given, tensor = nn.NdArray.from_numpy_array(g), torch.tensor(g)

    def ours() -> None:
        for x in xs:
            x.grad.zero()
        y.forward(clear_no_need_grad=True)
        y.backward(given, clear_buffer=True)

    def theirs_too() -> None:
        for t in ts:
            t.grad = None
        z = case.theirs(*ts)
        # of a view PyTorch would hand on the memory that it was given, which it else copies
        (z if z.shape == tensor.shape else z.reshape(tensor.shape)).backward(tensor)

    return ours, theirs_too


def measure(case: Case, shape: tuple[int, ...], gradient: bool, seconds: float) -> dict[str, Any]:
    pair = runs(case, shape, gradient)
    for f in (*pair, *pair, *pair):
        f()
    start = time.process_time()
    pair[1]()
    times = max(1, round(3e-4 / max(time.process_time() - start, 1e-7)))
    found: list[list[float]] = []
    end = time.process_time() + seconds
    while len(found) < 9 or time.process_time() < end:
        row = []
        for f in pair:
            start = time.process_time()
            for _ in range(times):
                f()
            row.append(1e6 * (time.process_time() - start) / times)
        found.append(row)
    ours, theirs = (statistics.median(t) for t in zip(*found, strict=True))
    return {"ratio": statistics.median(a / b for a, b in found), "us": ours, "torch_us": theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", default="", help="only those with one of these words")
    parser.add_argument("--seconds", type=float, default=0.1, help="of each measurement")
    parser.add_argument("--json", type=Path, help="write the rows there")
    args = parser.parse_args()
    torch.set_num_threads(1)
    words = [w for w in args.functions.split(",") if w]
    rows: list[dict[str, Any]] = []
    columns = {"forward": False, "gradient": True}
    for name, case in FUNCTIONS.items():
        if words and not any(w in name for w in words):
            continue
        line, row = f"{name:24}", {"function": name, "shapes": case.shapes}
        rows.append(row)
        for column, gradient in columns.items():
            if gradient and not case.gradient:
                continue
            found = [measure(case, shape, gradient, args.seconds) for shape in case.shapes]
            row[column] = [round(r["ratio"], 2) for r in found]
            row[f"{column}_us"] = [round(r["us"], 1) for r in found]
            line += "".join(f" {ratio:6.2f}" for ratio in row[column]) + "  |"
        print(line, flush=True)
    for column in columns:
        ratios = [ratio for row in rows for ratio in row.get(column, [])]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            slow = sum(ratio > 1.2 for ratio in ratios)
            print(f"{column}: geometric mean {mean:.2f} of {len(ratios)}, {slow} over 1.2")
    if args.json:
        lines = ",\n".join(json.dumps(row) for row in rows)
        args.json.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
