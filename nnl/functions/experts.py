# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts: each row goes through a few of many networks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import Input, checked
from nnl.core.arrays.spec import ShapeError, check_rank
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.arithmetic import div2, mul2
from nnl.functions.on_device import on_host
from nnl.functions.reduction import reshape, sum_op
from nnl.functions.scatter import take_along
from nnl.functions.slicing import slice
from nnl.functions.softmax import softmax
from nnl.functions.sorting import sort_op

CATEGORY = "Layer"

__all__ = ["expert_product", "mixture_of_experts"]


class OfExperts:
    def check_rows(self, argument, x, index):
        name = self.op.name
        check_rank(name, "index", index, 2)
        if x.shape[:-1] not in (index.shape, index.shape[:1]):
            raise ShapeError(
                f"{name}: {argument} {x}, wanted {(*index.shape[:1], 'D')} or "
                f"{(*index.shape, 'D')} for index {index}"
            )

    def parts(self, xp, index, experts):
        """(expert, its rows, their columns of index) for those that are chosen."""
        if on_host(index) and index.size and (index.min() < 0 or index.max() >= experts):
            bad = index[(index < 0) | (index >= experts)].ravel()[0]
            raise ValueError(f"expert_product: index holds {bad}, wanted 0 to {experts - 1}")
        for e in np.unique(index).tolist() if on_host(index) else range(experts):
            yield e, *xp.nonzero(index == e)


def rows_of(x, rows, columns):
    """The rows of x that are paired with entries of index."""
    return x[rows] if x.ndim == 2 else x[rows, columns]


@op("expert_product", narrow=True, integer=("index",))
class expert_product(OfExperts):
    r"""Products of rows with the matrix that each chooses: $y_{nk} = x_{nk} w_{i_{nk}}$.

    Args:
        x: (N, D), or (N, K, D).
        weight: (E, D, F), or (E, F, D) if transposed.
        index: (N, K), integers below E.
        transposed: Of weight, as linear layers of PyTorch keep it.
    Returns:
        (N, K, F).
    Raises:
        ShapeError: Sizes do not fit.
        ValueError: An index is no expert.
    Example:
        >>> x, w = array([[1, 2]]), array([[[1], [1]], [[1], [-1]]])
        >>> F.expert_product(x, w, array([[1, 0]], int)).d
        array([[[-1.],
                [ 3.]]], dtype=float32)
    """

    transposed: bool = False

    def infer(self, x, weight, index):
        self.check_rows("x", x, index)
        check_rank("expert_product", "weight", weight, 3)
        rows, columns = weight.shape[1:][:: -1 if self.transposed else 1]
        if rows != x.shape[-1]:
            raise ShapeError(
                f"expert_product: weight {weight} takes {rows} features, x {x} has {x.shape[-1]}"
            )
        return x.with_shape((*index.shape, columns))

    def forward(self, xp, x, weight, index):
        if self.transposed:
            weight = weight.swapaxes(1, 2)
        y = xp.zeros((*index.shape, weight.shape[2]), x.dtype)
        for e, rows, columns in self.parts(xp, index, len(weight)):
            y[rows, columns] = rows_of(x, rows, columns) @ weight[e]
        return y

    def vjp(self, gy, *, x, weight, index, need):
        gx = gw = None
        if need[0]:
            gx = expert_product(gy, weight, index, transposed=not self.transposed)
            if len(x.shape) == 2:
                gx = sum_op(gx, axes=(1,))
        if need[1]:
            gw = expert_weight(x, gy, index, experts=weight.shape[0], transposed=self.transposed)
        return gx, gw, None

    def cost(self, x, weight, index):
        used = min(index.size, weight.shape[0])
        moved = weight.nbytes // (weight.shape[0] or 1) * used
        return Cost(2 * index.size * math.prod(weight.shape[1:]), x.nbytes + moved)

    def samples(rng):
        w, index = rng.normal(size=(4, 3, 5)), np.array([[0, 3], [3, 1], [3, 0]])
        for x in (rng.normal(size=(3, 3)), rng.normal(size=(3, 2, 3))):
            yield Sample(x, w, index)
            yield Sample(x, w.swapaxes(1, 2).copy(), index, transposed=True)


@op("expert_weight", wide=True, outputs=("gw",), integer=("index",))
class expert_weight(OfExperts):
    """Gradient of `expert_product` by weight.

    Args:
        x, index: Its inputs. gy: (N, K, F), the gradient of its result.
    """

    experts: int
    transposed: bool = False

    def infer(self, x, gy, index):
        self.check_rows("x", x, index)
        if gy.shape[:-1] != index.shape:
            raise ShapeError(f"expert_weight: gy {gy} does not fit index {index}")
        d, f = x.shape[-1], gy.shape[-1]
        return x.with_shape((self.experts, f, d) if self.transposed else (self.experts, d, f))

    def forward(self, xp, x, gy, index):
        gw = xp.zeros((self.experts, x.shape[-1], gy.shape[-1]), x.dtype)
        for e, rows, columns in self.parts(xp, index, self.experts):
            gw[e] = rows_of(x, rows, columns).T @ gy[rows, columns]
        return gw.swapaxes(1, 2).copy() if self.transposed else gw

    def vjp(self, gg, *, x, gy, index):
        gx = expert_product(gy, gg, index, transposed=not self.transposed)
        if len(x.shape) == 2:
            gx = sum_op(gx, axes=(1,))
        return gx, expert_product(x, gg, index, transposed=self.transposed), None

    def cost(self, x, gy, index):
        written = self.infer(x, gy, index).nbytes
        return Cost(2 * gy.size * x.shape[-1], x.nbytes + gy.nbytes + written)

    def samples(rng):
        gy, index = rng.normal(size=(3, 2, 5)), np.array([[0, 3], [3, 1], [3, 0]])
        for x in (rng.normal(size=(3, 3)), rng.normal(size=(3, 2, 3))):
            for transposed in (False, True):
                yield Sample(x, gy, index, experts=4, transposed=transposed)


@checked
def mixture_of_experts(
    x: Input,
    scores: Input,
    gate: Input,
    down: Input,
    up: Input | None = None,
    top_k: int = 2,
    normalized: bool = True,
    activation: str = "swish",
    transposed: bool = False,
) -> Any:
    r"""The sum of the networks of the top k experts of each row, weighted by a softmax of scores.

    $$y_n = \sum_{e \in T_n} p_{ne}\, (a(x_n G_e) \odot x_n U_e)\, D_e$$ with
    $p = \mathrm{softmax}(s)$ and the k largest of them, T. Only the chosen experts are computed.

    Args:
        x: (..., D).
        scores: (..., E): s, of the router.
        gate, up: (E, D, F): G and U. Without `up` that factor is 1.
        down: (E, F, D).
        top_k: k.
        normalized: Divide the p of a row by their sum, as Mixtral does.
        activation: a, the name of a function: "swish", "gelu" or "relu".
        transposed: Weights are (E, F, D), (E, F, D) and (E, D, F), as linear layers of PyTorch.
    Returns:
        Of the shape of x.
    Raises:
        ShapeError: Sizes do not fit.
        ValueError: top_k is not in 1 to E, or activation is unknown.
    Source: Shazeer et al., Outrageously Large Neural Networks, arXiv:1701.06538.
    Example:
        >>> x, scores = array([[1, 2]]), array([[9, 0, 0]])
        >>> gate, down = array(np.ones((3, 2, 4))), array(np.ones((3, 4, 2)))
        >>> F.mixture_of_experts(x, scores, gate, down, top_k=1, activation="relu").d
        array([[12., 12.]], dtype=float32)
    """
    name = "mixture_of_experts"
    if x.shape[:-1] != scores.shape[:-1] or not x.shape:
        raise ShapeError(f"{name}: x {x.spec} and scores {scores.spec} must have the same rows")
    experts = scores.shape[-1]
    if gate.shape[:1] != (experts,):
        raise ShapeError(f"{name}: gate {gate.spec}, wanted {experts} experts, as scores has")
    if not 1 <= top_k <= experts:
        raise ValueError(f"{name}: top_k is {top_k}, wanted 1 to {experts}")
    if activation not in ("swish", "gelu", "relu"):
        raise ValueError(f"{name}: activation is {activation!r}, wanted swish, gelu or relu")
    rows = x.size // (x.shape[-1] or 1)
    p = softmax(reshape(scores, (rows, experts), inplace=False), axis=1)
    (order,) = sort_op(p, axis=1, reverse=True, only_index=True)
    index = slice(order, (0, 0), (rows, top_k))
    p = take_along(p, index, axis=1)
    if normalized:
        p = div2(p, sum_op(p, axes=(1,), keep_dims=True))
    flat = reshape(x, (rows, x.shape[-1]), inplace=False)
    h = OPS[activation](expert_product(flat, gate, index, transposed=transposed))
    if up is not None:
        h = mul2(h, expert_product(flat, up, index, transposed=transposed))
    y = expert_product(h, down, index, transposed=transposed)
    y = sum_op(mul2(y, reshape(p, (rows, top_k, 1))), axes=(1,))
    return reshape(y, x.shape)
