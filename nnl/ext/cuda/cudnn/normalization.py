# SPDX-License-Identifier: Apache-2.0
"""Graphs for batch and layer normalization, forward and backward, with relu and an addition.

cuDNN gives 1 / sqrt(variance + eps) where our functions give the variance, so a second graph, over
one value for each channel or row, converts; it also updates the running statistics.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from nnl.ext.cuda.cudnn.assemble import (
    Assembly,
    Declined,
    check_types,
    half_of,
    image,
    memory_strides,
    vector,
)
from nnl.ext.cuda.cudnn.spec import FIRST, Array, Draft, Work, dtype_name
from nnl.ext.device.registry import Operand

__all__ = ["backward", "batch_backward", "batch_forward", "layer_forward"]

IN, OUT, STATE = FIRST["in"], FIRST["out"], FIRST["state"]
Attrs = dict[str, Any]
Operands = list[Operand | None]


def channels_of(uid: int, x: Operand, axis: int) -> Array:
    """Data as (N, C, H, W) with the channels of `axis`."""
    rank = len(x.shape)
    if rank in (4, 5) and axis in (1, rank - 1):
        return image(uid, x, 1, axis != 1)
    stride = memory_strides(x)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    n, c, s = math.prod(before), x.shape[axis], math.prod(after)
    if x.channels_last and len(x.shape) > 2:
        if axis != 1:
            raise Declined(f"axis {axis} channels-last")
        dim, strides = (n, c, s, 1), (s * c, 1, c, c)
    elif s == 1:
        dim, strides = (n, c, 1, 1), (c, 1, c, c)
    else:
        dim, strides = (n, c, s, 1), (c * s, stride[axis], 1, 1)
    return Array(uid, dim, strides, dtype_name(x.dtype))


def axis_of(attrs: Attrs) -> int:
    if len(attrs["axes"]) != 1:
        raise Declined(f"channels in {len(attrs['axes'])} axes")
    return int(attrs["axes"][0])


def relu_of(attrs: Attrs) -> bool:
    """Whether relu is part of the op, by the names that functions and plans have for it."""
    name = attrs.get("activation", attrs.get("nonlinearity", "identity"))
    if name not in ("identity", "relu"):
        raise Declined(f"the activation {name}")
    return bool(name == "relu")


def only_float32(*operands: Operand | None) -> None:
    for x in operands:
        if x is not None and dtype_name(x.dtype) != "float32":
            raise Declined("parameters or statistics are not float32")


def batch_forward(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """(x, beta, gamma, mean, variance, z?) -> y, mean, variance; z and relu as fused ops have."""
    x, beta, gamma, mean, variance, z = (*ins, *[None] * 6)[:6]
    if x is None:
        raise Declined("x is left out")
    check_types(*ins, *outs)
    half_of(x, z, outs[0])
    only_float32(beta, gamma, mean, variance, *outs[1:])
    axis = axis_of(attrs)
    arrays = [channels_of(IN, x, axis), channels_of(OUT, outs[0], axis)]
    if z is not None:
        arrays.append(channels_of(IN + 5, z, axis))
    if len({a.stride for a in arrays}) > 1 or len({a.dim for a in arrays}) > 1:
        raise Declined("x, y and z differ in their order")
    if not attrs["batch_stat"]:
        return [_with_running_statistics(attrs, ins, outs, arrays)]
    return [_with_batch_statistics(attrs, ins, outs, arrays, fused) for fused in (True, False)]


def finish(draft: Draft, attrs: Attrs, t: int, arrays: list[Array]) -> None:
    """y = relu(t + z), as far as the op has these."""
    y = draft.add(arrays[1])
    relu = relu_of(attrs)
    if len(arrays) > 2:
        t = draft.pointwise("add", t, draft.add(arrays[2]), out=None if relu else y)
    if relu:
        draft.pointwise("relu", t, out=y)


def _with_batch_statistics(
    attrs: Attrs, ins: Operands, outs: list[Operand], arrays: list[Array], fused: bool
) -> Work:
    x, beta, gamma, mean, variance = ins[:5]
    if beta is None or gamma is None:
        raise Declined("beta or gamma is left out")
    x_, y_ = arrays[:2]
    rank, channels = len(x_.dim), x_.dim[1]
    n = math.prod(x_.dim) // channels
    if n == 1:
        raise Declined("the variance of one element does not exist")
    steps, draft = Assembly(), Draft()
    plain = not relu_of(attrs) and len(arrays) == 2
    inverse = steps.scratch(*described(channels, rank))
    out: Any = x_.dim
    if plain or not fused:
        out = draft.add(y_ if plain else steps.scratch(y_.dim, y_.stride, y_.dtype))
    scale, bias = draft.add(vector(IN + 2, gamma, rank)), draft.add(vector(IN + 1, beta, rank))
    # The front end insists on running statistics. Ours are updated below, in a defined way, so it
    # gets others to read, and what it makes of them is dropped.
    unused = [draft.add(steps.scratch(*described(channels, rank))) for _ in range(2)]
    t = draft.node(
        "batchnorm",
        {
            "input": draft.add(x_),
            "scale": scale,
            "bias": bias,
            "in_running_mean": scale,
            "in_running_var": bias,
            "epsilon": draft.constant(attrs["eps"], rank),
            "momentum": draft.constant(0.5, rank),
        },
        {
            "Y": out,
            "mean": draft.add(vector(OUT + 1, outs[1], rank)),
            "inv_var": draft.add(inverse),
            "next_running_mean": unused[0],
            "next_running_var": unused[1],
        },
    )
    if not plain:
        draft = draft if fused else steps.cut(draft, t)
        finish(draft, attrs, t, arrays)
    steps.graph(draft)
    statistics(steps, attrs, ins, outs, inverse, n)
    return steps.work()


def described(channels: int, rank: int) -> tuple[Any, Any, str]:
    """Sizes, strides and type of one float32 for each channel."""
    rest = rank - 2
    return (1, channels, *(1,) * rest), (channels, 1, *(channels,) * rest), "float32"


def statistics(
    steps: Assembly, attrs: Attrs, ins: Operands, outs: list[Operand], inverse: Array, n: int
) -> None:
    """The variance from its inverse root, and the running statistics."""
    rank = len(inverse.dim)
    draft = Draft()
    batch = draft.add(vector(OUT + 2, outs[2], rank))
    variance_of(draft, attrs, inverse, batch)
    decay = attrs["decay_rate"]
    rest = 1.0 - decay
    mean, variance = ins[3:5]
    if mean is not None:
        now = draft.add(vector(OUT + 1, outs[1], rank))
        _running(draft, 3, mean, decay, now, rest)
    if variance is not None:
        _running(draft, 4, variance, decay, batch, rest * n / (n - 1))
    steps.graph(draft)


def variance_of(draft: Draft, attrs: Attrs, inverse: Array, out: int) -> None:
    """out = 1 / inverse^2 - eps."""
    root = draft.pointwise("reciprocal", draft.add(inverse))
    square = draft.pointwise("mul", root, root)
    draft.pointwise("add", square, draft.constant(-attrs["eps"], len(inverse.dim)), out=out)


def _running(draft: Draft, i: int, x: Operand, decay: float, now: int, part: float) -> None:
    """Input i becomes decay times itself plus part times what it is now."""
    old = vector(IN + i, x, len(draft.arrays[now].dim))
    rank = len(old.dim)
    kept = draft.pointwise("mul", draft.add(old), draft.constant(decay, rank))
    new = draft.pointwise("mul", now, draft.constant(part, rank))
    draft.pointwise("add", kept, new, out=draft.add(replace(old, uid=STATE + i)))


def _with_running_statistics(
    attrs: Attrs, ins: Operands, outs: list[Operand], arrays: list[Array]
) -> Work:
    """y = x scale + shift with scale and shift from a graph over channels."""
    _, beta, gamma, mean, variance = ins[:5]
    if mean is None or variance is None:
        raise Declined("mean or variance is left out")
    rank, channels = len(arrays[0].dim), arrays[0].dim[1]
    steps, draft = Assembly(), Draft()
    scale, shift = (steps.scratch(*described(channels, rank)) for _ in range(2))
    mean_ = draft.add(vector(IN + 3, mean, rank))
    variance_ = draft.add(vector(IN + 4, variance, rank))
    t = draft.pointwise("add", variance_, draft.constant(attrs["eps"], rank))
    t = draft.pointwise("rsqrt", t, out=draft.add(scale) if gamma is None else None)
    if gamma is not None:
        factor = draft.add(vector(IN + 2, gamma, rank))
        t = draft.pointwise("mul", t, factor, out=draft.add(scale))
    moved = draft.pointwise("mul", mean_, t)
    if beta is None:
        draft.pointwise("mul", moved, draft.constant(-1.0, rank), out=draft.add(shift))
    else:
        start = draft.add(vector(IN + 1, beta, rank))
        draft.pointwise("sub", start, moved, out=draft.add(shift))
    for i, v in ((1, mean_), (2, variance_)):
        draft.pointwise("identity", v, out=draft.add(vector(OUT + i, outs[i], rank)))
    steps.graph(draft)
    draft = Draft()
    relu, z = relu_of(attrs), len(arrays) > 2
    t = draft.pointwise("mul", draft.add(arrays[0]), draft.add(scale))
    out = None if relu or z else draft.add(arrays[1])
    t = draft.pointwise("add", t, draft.add(shift), out=out)
    if out is None:
        finish(draft, attrs, t, arrays)
    steps.graph(draft)
    return steps.work()


def inverse_root(steps: Assembly, attrs: Attrs, variance: Array) -> Array:
    """1 / sqrt(variance + eps), in the workspace."""
    draft = Draft()
    inverse = steps.scratch(variance.dim, variance.stride, "float32")
    rank = len(variance.dim)
    t = draft.pointwise("add", draft.add(variance), draft.constant(attrs["eps"], rank))
    draft.pointwise("rsqrt", t, out=draft.add(inverse))
    steps.graph(draft)
    return inverse


def batch_backward(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """batch_normalization_backward_fused: (gy, gy2?, x, y?, mean, variance, gamma, beta?) -> gx,
    gbeta, ggamma, and gz, the gradient that reaches the normalization, if it is asked for."""
    gy, gy2, x, y, mean, variance, gamma, beta = (*ins, None)[:8]
    if not attrs["batch_stat"]:
        raise Declined("running statistics")
    if gy is None or x is None or mean is None or variance is None or gamma is None:
        raise Declined("an input is left out")
    check_types(*ins, *outs)
    half_of(gy, gy2, x, y, outs[0], *outs[3:])
    only_float32(mean, variance, gamma, beta, *outs[1:3])
    axis, relu = axis_of(attrs), relu_of(attrs)
    given = [(0, gy), (1, gy2), (2, x), (3, y)]
    found = {i: channels_of(IN + i, a, axis) for i, a in given if a is not None}
    gx_ = channels_of(OUT, outs[0], axis)
    gz_ = channels_of(OUT + 3, outs[3], axis) if len(outs) > 3 else None
    order = {a.stride for a in (*found.values(), gx_, *([gz_] if gz_ else []))}
    if len(order) > 1:
        raise Declined("the arrays differ in their order")
    if relu and y is None and beta is None:
        raise Declined("neither y nor beta is given")
    x_ = found[2]
    rank = len(x_.dim)

    def assemble(fused: bool) -> Work:
        steps = Assembly()
        inverse = inverse_root(steps, attrs, vector(IN + 5, variance, rank))
        draft = Draft()

        def param(i: int, v: Operand) -> int:
            return draft.add(vector(IN + i, v, rank))

        def again(draft: Draft, fused: bool) -> int:
            """What the normalization gave."""
            data = draft.add(x_)
            stats = {"mean": param(4, mean), "inv_variance": draft.add(inverse)}
            scale = {"scale": param(6, gamma), "bias": param(7, gamma)}  # beta is like gamma
            if fused:
                ports = {"input": data, **stats, **scale}
                return draft.node("batchnorm_inference", ports, {"Y": x_.dim})
            t = draft.pointwise("sub", data, stats["mean"])
            t = draft.pointwise("mul", t, stats["inv_variance"])
            t = draft.pointwise("mul", t, scale["scale"])
            return draft.pointwise("add", t, scale["bias"])

        more = relu or gy2 is not None
        masked = None
        if gz_ is not None:
            masked = gz_
        elif more and not fused:
            masked = steps.scratch(x_.dim, x_.stride, found[0].dtype)
        g = draft.add(found[0])
        if gy2 is not None:
            out = draft.add(masked) if masked is not None and not relu else None
            g = draft.pointwise("add", g, draft.add(found[1]), out=out)
        if relu:
            if y is not None:
                sign = draft.add(found[3])
            else:
                sign = again(draft, fused)
            out = draft.add(masked) if masked is not None else None
            # engines want what goes into the gradient in the type of the data
            dtype = found[0].dtype
            g = draft.pointwise("relu_backward", g, sign, out=out, dtype=dtype)
        elif gy2 is None and masked is not None:
            g = draft.pointwise("identity", g, out=draft.add(masked))
        if not fused and g != IN:
            draft = steps.cut(draft, g)
        draft.node(
            "batchnorm_backward",
            {
                "grad": g,
                "input": draft.add(x_),
                "scale": param(6, gamma),
                "mean": param(4, mean),
                "inv_variance": draft.add(inverse),
            },
            {
                "DX": draft.add(gx_),
                "DScale": draft.add(vector(OUT + 2, outs[2], rank)),
                "DBias": draft.add(vector(OUT + 1, outs[1], rank)),
            },
        )
        steps.graph(draft)
        return steps.work()

    # there are engines for the normalization computed again, but none that read y
    alone = relu and y is None and gy2 is None and gz_ is None
    return [assemble(True), assemble(False)] if alone else [assemble(False)]


def rows_of(uid: int, x: Operand, batch: int) -> Array:
    """Data as (rows, elements of a row, 1, 1)."""
    n = math.prod(x.shape[:batch])
    size = x.size // n
    return Array(uid, (n, size, 1, 1), (size, 1, size, size), dtype_name(x.dtype))


def by_row(a: Array) -> Array:
    """A vector as one value for each row. Graphs of vectors alone want it along the channels."""
    n = a.dim[1]
    return replace(a, dim=(n, 1, 1, 1), stride=(1, 1, 1, 1))


def leading(batch_axes: tuple[int, ...], rank: int) -> int:
    """The number of batch axes, which must be the first ones, and not all."""
    n = len(batch_axes)
    if tuple(sorted(batch_axes)) != tuple(range(n)) or n == rank:
        raise Declined(f"batch axes {batch_axes} of {rank} are not the leading ones")
    return n


def layer_forward(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """layer_normalization: (x, beta, gamma) -> y, mean, variance."""
    x, beta, gamma = ins[:3]
    if x is None or beta is None or gamma is None:
        raise Declined("beta or gamma is left out")
    check_types(*ins, *outs)
    half_of(x, outs[0])
    only_float32(beta, gamma, *outs[1:])
    if any(a.channels_last for a in (x, outs[0])):
        raise Declined("channels-last")
    batch = leading(attrs["batch_axis"], len(x.shape))
    steps, draft = Assembly(), Draft()
    n = math.prod(x.shape[:batch])
    inverse = steps.scratch(*described(n, 4))
    draft.node(
        "layernorm",
        {
            "input": draft.add(rows_of(IN, x, batch)),
            "scale": draft.add(vector(IN + 2, gamma, 4)),
            "bias": draft.add(vector(IN + 1, beta, 4)),
            "epsilon": draft.constant(attrs["eps"], 4),
        },
        {
            "Y": draft.add(rows_of(OUT, outs[0], batch)),
            "mean": draft.add(by_row(vector(OUT + 1, outs[1], 4))),
            "inv_var": draft.add(by_row(inverse)),
        },
    )
    steps.graph(draft)
    draft = Draft()
    variance_of(draft, attrs, inverse, draft.add(vector(OUT + 2, outs[2], 4)))
    steps.graph(draft)
    return [steps.work()]


def backward(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """normalization_backward: (gy, gmean?, gvariance?, x, mean, variance, gamma) -> gx, gbeta,
    ggamma, of a batch or a layer normalization. Gradients that reach mean and variance are added
    by one more graph; left out, they are zero."""
    gy, gmean, gvariance, x, mean, variance, gamma = ins[:7]
    if attrs.get("groups"):
        raise Declined("a group normalization")
    if gy is None or x is None or mean is None or variance is None or gamma is None:
        raise Declined("an input is left out")
    if (gmean is None) != (gvariance is None):
        raise Declined("only one of gmean and gvariance is left out")
    check_types(*ins, *outs)
    half_of(gy, x, outs[0])
    only_float32(gmean, gvariance, mean, variance, gamma, *outs[1:])
    rank = len(x.shape)
    others = tuple(i for i in range(rank) if i not in attrs["axes"])
    given = ((IN, gy), (IN + 3, x), (OUT, outs[0]))
    if len(others) == 1 and mean.size == gamma.size:
        op = "batchnorm_backward"
        gy_, x_, gx_ = (channels_of(uid, a, others[0]) for uid, a in given)
    else:
        op = "layernorm_backward"
        batch = leading(others, rank)
        if any(a.channels_last for _, a in given) or gamma.size * mean.size != x.size:
            raise Declined("neither a batch nor a layer normalization")
        gy_, x_, gx_ = (rows_of(uid, a, batch) for uid, a in given)
    if len({gy_.stride, x_.stride, gx_.stride}) > 1:
        raise Declined("gy, x and gx differ in their order")
    size = len(x_.dim)
    shaped = (lambda a: a) if op == "batchnorm_backward" else by_row
    steps = Assembly()
    inverse = inverse_root(steps, attrs, vector(IN + 5, variance, size))
    target = gx_ if gmean is None else steps.scratch(gx_.dim, gx_.stride, gx_.dtype)
    draft = Draft()
    draft.node(
        op,
        {
            "grad": draft.add(gy_),
            "input": draft.add(x_),
            "scale": draft.add(vector(IN + 6, gamma, size)),
            "mean": draft.add(shaped(vector(IN + 4, mean, size))),
            "inv_variance": draft.add(shaped(inverse)),
        },
        {
            "DX": draft.add(target),
            "DScale": draft.add(vector(OUT + 2, outs[2], size)),
            "DBias": draft.add(vector(OUT + 1, outs[1], size)),
        },
    )
    steps.graph(draft)
    if gmean is not None and gvariance is not None:
        n = x.size // mean.size
        # gx += (gmean - 2 gvariance mean) / n + 2 gvariance / n x
        draft = Draft()
        slope, shift = (steps.scratch(*described(mean.size, size)) for _ in range(2))
        by_variance = draft.add(vector(IN + 2, gvariance, size))
        two = draft.constant(2.0 / n, size)
        s = draft.pointwise("mul", by_variance, two, out=draft.add(slope))
        t = draft.pointwise("mul", s, draft.add(vector(IN + 4, mean, size)))
        one = draft.constant(1.0 / n, size)
        m = draft.pointwise("mul", draft.add(vector(IN + 1, gmean, size)), one)
        draft.pointwise("sub", m, t, out=draft.add(shift))
        steps.graph(draft)
        draft = Draft()
        t = draft.pointwise("mul", draft.add(x_), draft.add(shaped(slope)))
        t = draft.pointwise("add", t, draft.add(shaped(shift)))
        draft.pointwise("add", draft.add(target), t, out=draft.add(gx_))
        steps.graph(draft)
    return [steps.work()]
