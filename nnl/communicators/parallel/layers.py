# SPDX-License-Identifier: Apache-2.0
"""Layers of which every rank of an axis does a part: tensor parallelism.

A layer that is split along its outputs leaves each rank a part of them, and one that is split along
its inputs takes such a part; between the two nothing is exchanged. Names of parameters, their
initial values and what all ranks compute together are those of nnl.parametric_functions.

Source: Shoeybi et al., Megatron-LM, arXiv:1909.08053; Korthikanti et al., Reducing Activation
    Recomputation in Large Transformer Models, arXiv:2205.05198 (sequence parallelism).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.communicators.parallel.layout import LaidOut, Layout, Split
from nnl.communicators.parallel.mesh import Axis
from nnl.core.arguments.annotations import Input, shown
from nnl.core.arrays.spec import ShapeError
from nnl.core.graph.variable import Variable
from nnl.core.ops import random as nnl_random
from nnl.core.parameters.parameter import (
    SCOPE,
    get_parameter,
    get_parameter_or_create,
    set_parameter,
)
from nnl.parametric_functions import parametric_function_api
from nnl.parametric_functions.initializer import ONE, ZERO, UniformInitializer, glorot

OUT, IN = "out", "in"


def parameter(name: str, shape: Sequence[int], init: Any, *splits: Split) -> Any:
    """A parameter of this whole shape, of which a rank stores its part; made if missing.

    The whole is drawn on every rank, so initial values are those of one process.
    """
    layout = Layout(tuple(shape), tuple(s for s in splits if s.over.size > 1))
    if get_parameter(name) is None and layout.split and not SCOPE.drawn:
        set_parameter(name, LaidOut.over(Variable(layout.block, need_grad=True), layout, name))
    elif get_parameter(name) is None and layout.split:
        value = np.asarray(init(layout.shape) if callable(init) else init)
        if value.shape != layout.shape:
            raise ShapeError(
                f"{name}: the initial value has the shape {value.shape}, wanted {layout.shape}"
            )
        part = layout.cut(value.astype(np.float32, copy=False))
        set_parameter(name, LaidOut.of(part, layout, name, True))
    return get_parameter_or_create(name, layout.block, init, True)


def check_axis_of_mesh(name: str, over: Any) -> None:
    """
    Raises:
        TypeError: over is something else.
    """
    if not isinstance(over, Axis):
        raise TypeError(f"{name}: over is {shown(over)}, wanted an axis of a mesh, mesh.model")


def _check(name: str, over: Any, split: Any) -> None:
    check_axis_of_mesh(name, over)
    if split not in (OUT, IN):
        raise ValueError(f"{name}: split is {shown(split)}, wanted {OUT!r} or {IN!r}")


def divide(name: str, what: str, size: int, n: int) -> int:
    """Size of the part of each of n ranks.

    Raises:
        ShapeError: They do not divide the size.
    """
    if size % n:
        raise ShapeError(f"{name}: {size} {what}, wanted a multiple of the {n} ranks of over")
    return size // n


def _begin(x: Any, over: Axis, sequence: int | None) -> Any:
    """What the part of a layer takes, where x is replicated or split along the sequence."""
    return over.replicate(x) if sequence is None else over.all_gather(x, sequence)


def _end(y: Any, over: Axis, sequence: int | None) -> Any:
    """The sum of the ranks' parts, replicated or split along the sequence."""
    if sequence is None:
        return over.all_reduce(y, replicated=True)
    return over.reduce_scatter(y, sequence)


@parametric_function_api(
    "affine",
    [
        ("W", "Weight", "(inputs, n_outmaps), of which this rank has a part", True),
        ("b", "Bias", "(n_outmaps,)", True),
    ],
)
def affine(
    inp: Input,
    n_outmaps: int,
    over: Any,
    split: str = OUT,
    base_axis: int = -1,
    groups: int = 1,
    gather: bool = False,
    sequence: int | None = None,
    w_init: Any = None,
    b_init: Any = None,
    with_bias: bool = True,
) -> Any:
    r"""Fully connected layer $y = x W + b$ of which each rank does a part.

    | split | W | x | y |
    |---|---|---|---|
    | "out" | columns | whole | this rank's columns, or the whole with `gather` |
    | "in" | rows | this rank's columns | whole: the sum over the ranks |

    The heads of attention are such a part: split query, key and value along "out", and the
    projection after them along "in".

    Args:
        inp: (samples..., elements).
        n_outmaps: Size of the whole output.
        over: The ranks, `mesh.model`.
        split: Along what W is split.
        base_axis: Axes from here on belong to one sample; the last one.
        groups: The outputs are so many runs of equal length, of each of which a rank has a part: 3
            for query, key and value in one.
        gather: With split="out": give the whole output.
        sequence: The axis along which a whole x ("out") or y ("in") is split instead: sequence
            parallelism.
        w_init, b_init: As for PF.affine, of the whole.
    Raises:
        ShapeError: The number of ranks does not divide what is split.
        ValueError: split is neither "out" nor "in".
    Example:
        >>> over = C.Mesh().model
        >>> h = F.relu(C.affine(array(np.ones((2, 4))), 8, over, name="ex_up"))
        >>> C.affine(h, 4, over, split="in", name="ex_down").shape
        (2, 4)
    """
    _check("affine", over, split)
    base_axis %= len(inp.shape)
    own = prod(inp.shape[base_axis:])
    inmaps = own if split == OUT else own * over.size
    init = glorot(inmaps, n_outmaps) if w_init is None else w_init
    b_init = ZERO if b_init is None else b_init
    if split == OUT:
        divide("affine", "n_outmaps", n_outmaps, over.size * groups)
        w = parameter("W", (inmaps, n_outmaps), init, Split(1, over, groups))
        b = parameter("b", (n_outmaps,), b_init, Split(0, over, groups)) if with_bias else None
        y = F.affine(_begin(inp, over, sequence), w, b, base_axis=base_axis)
        if not gather:
            return y
        runs = F.reshape(y, (*y.shape[:-1], groups, n_outmaps // groups // over.size))
        return F.reshape(over.all_gather(runs, -1, replicated=True), (*y.shape[:-1], n_outmaps))
    w = parameter("W", (inmaps, n_outmaps), init, Split(0, over))
    y = _end(F.affine(inp, w, base_axis=base_axis), over, sequence)
    if not with_bias:
        return y
    b = get_parameter_or_create("b", (n_outmaps,), b_init)
    b = b if sequence is None else over.replicate(b)
    return y + F.reshape(b, (1,) * (len(y.shape) - 1) + (n_outmaps,))


@parametric_function_api(
    "embed", [("W", "Rows to choose from", "(n_inputs, n_features), this rank's rows", True)]
)
def embed(inp: Input, n_inputs: int, n_features: int, over: Any, initializer: Any = None) -> Any:
    r"""Replace every integer by the row of a table, of which each rank has some: $y_i = W_{x_i}$.

    Args:
        inp: Integers in [0, n_inputs), any shape, the same on all ranks.
        n_inputs: Rows of the whole table. n_features: Length of a row.
        over: The ranks, `mesh.model`.
        initializer: As for PF.embed, of the whole.
    Returns:
        (*inp.shape, n_features), on all ranks.
    Raises:
        ShapeError: The number of ranks does not divide n_inputs.
    Example:
        >>> C.embed(array([[7, 1]], int), 10, 4, C.Mesh().model, name="ex_tok").shape
        (1, 2, 4)
    """
    check_axis_of_mesh("embed", over)
    rows = divide("embed", "rows", n_inputs, over.size)
    if initializer is None:
        initializer = UniformInitializer((-np.sqrt(3.0), np.sqrt(3.0)))
    w = parameter("W", (n_inputs, n_features), initializer, Split(0, over))
    if over.size == 1:
        return F.embed(inp, w)
    local, inside = _local(inp, rows, over)
    y = F.embed(local, w) * F.reshape(inside, (*inp.shape, 1))
    return over.all_reduce(y, replicated=True)


def _local(ids: Any, rows: int, over: Axis) -> tuple[Any, Any]:
    """Numbers of rows here, of any row for those of other ranks; and 1 where they are here."""
    local = ids - float(over.place * rows)
    inside = F.logical_and(F.greater_equal_scalar(local, 0), F.less_scalar(local, rows))
    return F.minimum_scalar(F.maximum_scalar(local, 0), rows - 1), inside


@parametric_function_api(
    "conv",
    [
        ("W", "Weight", "(outmaps, channels, *kernel), of which this rank has a part", True),
        ("b", "Bias", "(outmaps,)", True),
    ],
)
def convolution(
    inp: Input,
    outmaps: int,
    kernel: Sequence[int],
    over: Any,
    split: str = OUT,
    pad: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    gather: bool = False,
    w_init: Any = None,
    b_init: Any = None,
    with_bias: bool = True,
) -> Any:
    r"""Convolution of which each rank does some channels.

    $$y_{n,o,p} = b_o + \sum_{c,k} x_{n,\,c,\,s p + d k - \mathrm{pad}}\; W_{o,c,k}$$ with the
    channels o ("out") or c ("in") split over the ranks, as for C.affine.

    Args:
        inp: (samples, channels, spatial...), the whole or this rank's channels.
        outmaps: Channels of the whole output.
        kernel, pad, stride, dilation, w_init, b_init: As for PF.convolution.
        over, split, gather: As for C.affine.
    Raises:
        ShapeError: The number of ranks does not divide the channels.
    Example:
        >>> over, x = C.Mesh().model, array(np.ones((1, 2, 6, 6)))
        >>> h = F.relu(C.convolution(x, 4, (3, 3), over, name="ex_c1"))
        >>> C.convolution(h, 3, (3, 3), over, split="in", name="ex_c2").shape
        (1, 3, 2, 2)
    """
    _check("convolution", over, split)
    inmaps = inp.shape[1] * (1 if split == OUT else over.size)
    init = glorot(inmaps, outmaps, kernel) if w_init is None else w_init
    b_init = ZERO if b_init is None else b_init
    how = {"pad": pad, "stride": stride, "dilation": dilation}
    shape = (outmaps, inmaps, *kernel)
    if split == OUT:
        divide("convolution", "outmaps", outmaps, over.size)
        w = parameter("W", shape, init, Split(0, over))
        b = parameter("b", (outmaps,), b_init, Split(0, over)) if with_bias else None
        y = F.convolution(over.replicate(inp), w, b, **how)
        return over.all_gather(y, 1, replicated=True) if gather else y
    w = parameter("W", shape, init, Split(1, over))
    y = over.all_reduce(F.convolution(inp, w, **how), replicated=True)
    if not with_bias:
        return y
    b = get_parameter_or_create("b", (outmaps,), b_init)
    return y + F.reshape(b, (1, outmaps) + (1,) * len(kernel))


def softmax_cross_entropy(x: Any, target: Any, over: Axis) -> Any:
    r"""Cross entropy of scores of which each rank has some classes.

    $$y_i = \log \sum_c e^{x_{i,c}} - x_{i,t_i}$$ over the classes of all ranks. Three numbers of
    each sample are exchanged, not its scores.

    Args:
        x: (samples..., classes of this rank): what C.affine(split="out") gives.
        target: (samples..., 1), numbers of classes among those of all ranks.
        over: The ranks, `mesh.model`.
    Returns:
        (samples..., 1), on all ranks.
    Raises:
        ShapeError: target has another shape.
    Example:
        >>> y = C.softmax_cross_entropy(array([[0, 0]]), array([[1]], int), C.Mesh().model)
        >>> y.forward()
        >>> round(float(y.d[0, 0]), 4)  # ln 2
        0.6931
    """
    check_axis_of_mesh("softmax_cross_entropy", over)
    if target.shape != (*x.shape[:-1], 1):
        raise ShapeError(
            f"softmax_cross_entropy: target has the shape {target.shape}, wanted "
            f"{(*x.shape[:-1], 1)}"
        )
    samples, classes = prod(x.shape[:-1]), x.shape[-1]
    rows, ids = F.reshape(x, (samples, classes)), F.reshape(target, (samples, 1))
    if over.size == 1:
        return F.reshape(F.softmax_cross_entropy(rows, ids), target.shape)
    most = F.max(over.all_gather(F.max(rows, axis=1, keepdims=True), 1), axis=1, keepdims=True)
    most.need_grad = False  # it cancels out
    total = over.all_reduce(F.sum(F.exp(rows - most), axis=1, keepdims=True), replicated=True)
    local, inside = _local(ids, classes, over)
    here = F.gather(rows, local, axis=1, batch_dims=1) * inside
    y = F.log(total) + most - over.all_reduce(here, replicated=True)
    return F.reshape(y, target.shape)


@parametric_function_api(
    "layer_normalization",
    [
        ("beta", "Bias", "inp.shape with 1 at batch_axis", True),
        ("gamma", "Scale", "inp.shape with 1 at batch_axis", True),
    ],
)
def layer_normalization(
    inp: Input, over: Any, batch_axis: Sequence[int] = (0, 1), eps: float = 1e-5
) -> Any:
    r"""Layer normalization of a sequence of which each rank has some positions.

    $$y = \gamma\,(x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta$$ as PF.layer_normalization; the
    gradients of $\gamma$ and $\beta$ are summed over the ranks.

    Args:
        inp: This rank's positions: what C.affine(split="in", sequence=1) gives.
        over: The ranks, `mesh.model`.
        batch_axis: Axes of samples and positions.
        eps: Added to the variance.
    Example:
        >>> C.layer_normalization(array(np.ones((2, 3, 4))), C.Mesh().model, name="ex_ln").shape
        (2, 3, 4)
    """
    check_axis_of_mesh("layer_normalization", over)
    shape = [1 if k in batch_axis else n for k, n in enumerate(inp.shape)]
    beta = get_parameter_or_create("beta", shape, ZERO)
    gamma = get_parameter_or_create("gamma", shape, ONE)
    beta, gamma = over.replicate(beta), over.replicate(gamma)
    return F.layer_normalization(inp, beta, gamma, batch_axis=tuple(batch_axis), eps=eps)


def dropout(x: Any, over: Axis, p: float = 0.5) -> Any:
    r"""Dropout of an array of which each rank has a part, with other draws on each of them.

    $y = x m / (1 - p)$ with m 0 or 1. Where all ranks have the whole, F.dropout after `nn.seed`
    with one number draws alike on all of them.

    Args:
        x: This rank's part. over: The ranks. p: The probability of 0.
    Example:
        >>> C.dropout(array(np.ones((2, 3))), C.Mesh().model, p=0.2).shape
        (2, 3)
    """
    check_axis_of_mesh("dropout", over)
    first = int(nnl_random.prng.randint(0, 2**30))  # alike on all ranks
    return F.dropout(x, p=p, seed=first + over.place)
