# SPDX-License-Identifier: Apache-2.0
"""Layers of experts, of which every rank has some: samples go to them and come back."""

from __future__ import annotations

import math
from typing import Any

from nnl import functions as F
from nnl.communicators.parallel.layers import check_axis_of_mesh, divide, parameter
from nnl.communicators.parallel.layout import Split
from nnl.core.arguments.annotations import Input, shown
from nnl.core.arrays.spec import ShapeError
from nnl.core.parameters.parameter import get_parameter_or_create
from nnl.parametric_functions import parametric_function_api
from nnl.parametric_functions.initializer import ZERO, glorot


@parametric_function_api(
    "experts",
    [
        ("router", "Weight of the scores of experts", "(features, n_experts)", True),
        ("W1", "First weights", "(n_experts, features, hidden), this rank's experts", True),
        ("b1", "First biases", "(n_experts, 1, hidden)", True),
        ("W2", "Second weights", "(n_experts, hidden, features)", True),
        ("b2", "Second biases", "(n_experts, 1, features)", True),
    ],
)
def mixture_of_experts(
    inp: Input, n_experts: int, hidden: int, over: Any, k: int = 2, capacity: float | None = 1.25
) -> Any:
    r"""Each sample goes through the k of some networks that a router scores highest.

    $$y = \sum_{j \in \mathrm{top}_k(p)} \frac{p_j}{\sum_{i \in \mathrm{top}_k} p_i}
    \left(\mathrm{gelu}(x W_{1,j} + b_{1,j})\, W_{2,j} + b_{2,j}\right), \quad
    p = \mathrm{softmax}(x W_r)$$

    Each rank routes its share of the samples; an all-to-all brings them to their experts and
    another one back.

    Args:
        inp: (samples, features), the same on all ranks.
        n_experts, hidden: Networks of all ranks together, and the size within one.
        over: The ranks, `mesh.model`.
        k: Experts for each sample.
        capacity: An expert takes at most capacity k samples / n_experts of a rank; the others have
            one expert less. None: it takes all.
    Returns:
        (samples, features) on all ranks; and a loss that is 1 where experts are used evenly, to be
        added to the loss with a small weight.
    Raises:
        ShapeError: The number of ranks does not divide the samples or the experts.
        ValueError: k or capacity is out of range.
    Source: Lepikhin et al., GShard, arXiv:2006.16668, algorithm 1; Fedus et al., Switch
        Transformers, arXiv:2101.03961, eq. 4.
    Example:
        >>> x = array(np.ones((4, 6)))
        >>> y, evenness = C.mixture_of_experts(x, 4, 8, C.Mesh().model, name="ex_moe")
        >>> y.shape, evenness.shape
        ((4, 6), ())
    """
    name = "mixture_of_experts"
    check_axis_of_mesh(name, over)
    if not 1 <= k <= n_experts:
        raise ValueError(f"{name}: k is {k}, wanted 1 to the {n_experts} experts")
    if capacity is not None and not capacity > 0:
        raise ValueError(f"{name}: capacity is {shown(capacity)}, wanted a number > 0 or None")
    if len(inp.shape) != 2:
        raise ShapeError(f"{name}: inp has the shape {inp.shape}, wanted (samples, features)")
    samples, features = inp.shape
    divide(name, "experts", n_experts, over.size)
    own = divide(name, "samples", samples, over.size)
    room = own if capacity is None else min(own, math.ceil(capacity * k * own / n_experts))

    router = get_parameter_or_create("router", (features, n_experts), glorot(features, n_experts))
    x = over.local_part(inp, 0)
    p = F.softmax(F.affine(x, over.replicate(router)), axis=1)
    send, gates, evenness = _routes(p, k, room, over)

    split = Split(0, over)
    shapes = {
        "W1": (n_experts, features, hidden),
        "b1": (n_experts, 1, hidden),
        "W2": (n_experts, hidden, features),
        "b2": (n_experts, 1, features),
    }
    init = {"W1": glorot(features, hidden), "W2": glorot(hidden, features)}
    w = {key: parameter(key, s, init.get(key, ZERO), split) for key, s in shapes.items()}
    h = F.batch_matmul(send, x, transpose_a=True)  # (experts * room, features)
    h = over.all_to_all(F.reshape(h, (n_experts, room, features)), split=0, join=1)
    h = F.gelu(F.batch_matmul(h, w["W1"]) + w["b1"])
    h = over.all_to_all(F.batch_matmul(h, w["W2"]) + w["b2"], split=1, join=0)
    y = F.batch_matmul(gates, F.reshape(h, (n_experts * room, features)))
    return over.all_gather(y, 0, replicated=True), evenness


def _routes(p: Any, k: int, room: int, over: Any) -> tuple[Any, Any, Any]:
    """Which place of which expert each sample has, by the scores of experts.

    Returns:
        (samples, experts * room) twice: 1 for a sample's places, and its gates there; and the
        evenness loss.
    """
    n, experts = p.shape
    left, taken, first = p, None, None
    chosen: list[tuple[Any, Any]] = []
    for _ in range(k):
        best = F.one_hot(F.max(left, axis=1, keepdims=True, only_index=True), (experts,))
        before = F.cumsum(best, axis=0, exclusive=True)  # samples that came earlier
        before = before if taken is None else before + taken
        place = F.sum(before * best, axis=1, keepdims=True)
        there = best * F.less_scalar(place, room)
        slot = F.one_hot(F.minimum_scalar(place, room - 1), (room,))
        places = F.reshape(there, (n, experts, 1)) * F.reshape(slot, (n, 1, room))
        places = F.reshape(places, (n, experts * room))
        places.need_grad = best.need_grad = False
        chosen.append((F.sum(p * best, axis=1, keepdims=True), places))
        count = F.sum(best, axis=0, keepdims=True)
        taken = count if taken is None else taken + count
        left = left - best * 2.0  # a score is at most 1
        first = best if first is None else first
    total = sum([g for g, _ in chosen[1:]], chosen[0][0])
    send = sum([s for _, s in chosen[1:]], chosen[0][1])
    gates = [g / total * s for g, s in chosen]
    share = over.all_reduce(F.mean(first, axis=0), replicated=True) / over.size
    score = over.all_reduce(F.mean(p, axis=0), replicated=True) / over.size
    share.need_grad = False
    return send, sum(gates[1:], gates[0]), F.sum(share * score) * float(experts)
