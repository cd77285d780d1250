# SPDX-License-Identifier: Apache-2.0
"""The layers that transformers are made of: what GPT-2, Llama, BERT, T5 and ViT have in common.

A `Stack` says what the layers of a network are, `stack` builds them. Parameters lie as they do in
checkpoints of PyTorch, so that those of a file are used where they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, wraps
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from nnl import functions as F
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.switches import get_global_recompute, recompute
from nnl.core.parameters.parameter import parameter_scope
from nnl.models import adapters, quantization
from nnl.models.adapters import parameter, setting
from nnl.parametric_functions.initializer import ConstantInitializer, NormalInitializer

HIDDEN = -1e9  # added to the score of a position that is not attended to
CHECKPOINTING: ContextVar[bool] = ContextVar("CHECKPOINTING", default=False)
SIGMA = 0.02  # standard deviation of the first weights, BERT and GPT-2


def exact_gelu(x: Any) -> Any:
    r"""$x \Phi(x)$; `F.gelu` is the approximation by tanh.

    Backward computes what it needs of it again from x: reading that would take longer.
    """
    with recompute():
        twice = F.erf(x * sqrt(0.5)) + 1.0
    return x * twice * 0.5


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": exact_gelu,
    "gelu_tanh": F.gelu,
    "quick_gelu": lambda x: x * F.sigmoid(x * 1.702),
    "relu": F.relu,
    "silu": F.swish,
    "tanh": F.tanh,
}
NORMS = ("layer", "rms", "bare")
ORDERS = ("before", "after", "both", "inside")


class Rotary(NamedTuple):
    """Rotary positions: arguments of `rotary_frequencies`, and where long texts have others."""

    width: int
    base: float = 10000.0
    scaling: str = "default"
    options: tuple[tuple[str, Any], ...] = ()  # further arguments
    long_factors: tuple[float, ...] = ()  # instead of `factors` above original_length

    def is_long(self, length: int) -> bool:
        """Whether texts of this length, which caches may have room for, have `long_factors`."""
        return bool(self.long_factors) and length > dict(self.options)["original_length"]

    def frequencies(self, length: int) -> Any:
        """(frequencies, factor) of `rotary_embedding` for texts of this length."""
        options = dict(self.options)
        if self.is_long(length):
            options["factors"] = self.long_factors
        if self.scaling == "dynamic":
            options["length"] = length
        return F.rotary_frequencies(self.width, self.base, self.scaling, **options)


class Experts(NamedTuple):
    """A mixture of experts: how many there are, how many a token has, how wide they are."""

    count: int
    chosen: int
    between: int
    normalized: bool = True  # whether the weights of those chosen sum to 1
    shared: int = 0  # width of an expert that every token has


class Layer(NamedTuple):
    """What can differ from layer to layer of a `Stack`.

    Attributes:
        window: Positions that a token sees; 0: all.
        rotary: Rotary positions.
        experts: What takes the place of the feed-forward layer.
    Example:
        >>> models.Layer(window=128).rotary is None
        True
    """

    window: int = 0
    rotary: Rotary | None = None
    experts: Experts | None = None


@dataclass(frozen=True)
class Stack:
    """What the layers of a transformer are.

    Attributes:
        width: Of the sequence (B, T, width).
        heads, kv_heads: Of queries; of keys and values, which divides it; 0 is as many.
        head_width: Of a query; 0 is width / heads.
        between: Width of the feed-forward layer.
        norm: "layer", "rms" (without mean and bias) or "bare" (without parameters).
        offset: Added to the factors of "rms".
        order: Where norms stand: "before" each part, "after" its addition (as in BERT), "both"
            before and behind each part, or "inside": behind it, before the addition.
        bias: Which products have a bias, of "q", "k", "v", "out", "up" and "down".
        gated: Whether feed-forward layers are activation(gate(x)) up(x).
        qk_norm: "" for none, "head" for one of each head, "whole" for one of all heads together.
        joined: One product for queries, keys and values, and one for gate and up.
        scale: Of scores; None is head_width ** -0.5.
        cap: Soft cap of scores; 0 for none.
        clip: Bound of queries, keys and values; 0 for none.
        factor: Of what each part adds.
        cross: Whether a part between attends to another sequence.
        dropout: Probability of 0 after every part, and for the weights of attention, where all
            heads have keys of their own and see them all.
    Raises:
        ValueError: heads does not divide width, kv_heads does not divide heads, or there can be no
            dropout.
    Example:
        >>> models.Stack(16, 4, 32, (models.Layer(),) * 2, kv_heads=2).head_width
        4
    """

    width: int
    heads: int
    between: int
    layers: tuple[Layer, ...]
    kv_heads: int = 0
    head_width: int = 0
    norm: str = "layer"
    eps: float = 1e-5
    offset: float = 0.0
    order: str = "before"
    activation: str = "gelu"
    gated: bool = False
    bias: tuple[str, ...] = ("q", "k", "v", "out", "up", "down")
    qk_norm: str = ""
    joined: bool = False
    causal: bool = False
    scale: float | None = None
    cap: float = 0.0
    clip: float = 0.0
    factor: float = 1.0
    cross: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not self.head_width and self.width % self.heads:
            raise ValueError(f"Stack: width {self.width} is not a multiple of heads {self.heads}")
        own = {
            "kv_heads": self.kv_heads or self.heads,
            "head_width": self.head_width or self.width // self.heads,
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)
        if self.heads % self.kv_heads:
            raise ValueError(f"Stack: kv_heads {self.kv_heads} does not divide heads {self.heads}")
        plain = self.kv_heads == self.heads and not (self.cap or any(x.window for x in self.layers))
        if self.dropout and not plain:
            raise ValueError("Stack: dropout wants heads with keys of their own, no window and cap")


def checkpointing(on: bool = True) -> AbstractContextManager[None]:
    """Let networks that are made in the with block keep little for backward.

    Of each layer only its input is kept; backward computes the layer again from that, to the same
    bits. What dropout gives is kept too: it is drawn once. It takes effect where forward and
    backward are one plan: in static graphs with `forward(clear_no_need_grad=True)` and
    `backward(clear_buffer=True)`, and in training steps of `nnl.compile`.

    Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174.
    Example:
        >>> with models.checkpointing(), nn.parameter_scope("ex_checkpointed"):
        ...     y = models.gpt2(nn.Variable((2, 5)), vocabulary=50, width=16, layers=2, heads=2)
    """
    return setting(CHECKPOINTING, on)


class Cache(NamedTuple):
    """Keys and values of a layer that were computed before, (B, kv_heads, capacity, head_width)."""

    keys: Any
    values: Any


class Where(NamedTuple):
    """Where a sequence stands, and what its positions see.

    Attributes:
        positions: (T,) or (B, T), integers; None where nothing asks for them.
        caches: Of each layer; before, (B,): how many positions each text has in them; counts, (B,):
            how many of the T are new ones, all if left out; slots, (B,): which text of the caches
            each one is.
        mask: Added to the scores, (B or 1, H or 1, T or 1, S).
        segments: (B, T), numbers of the texts that follow each other in a row.
        length: The longest that the text can get, which some rotary positions depend on.
        crossed: Of each layer, what `crossed` gives of another sequence, which is attended to
            between; crossed_mask: added to these scores.
    """

    positions: Any = None
    caches: Sequence[Cache] | None = None
    before: Any = None
    counts: Any = None
    slots: Any = None
    mask: Any = None
    segments: Any = None
    length: int = 0
    crossed: Sequence[Cache] = ()
    crossed_mask: Any = None


def dropped(x: Any, p: float) -> Any:
    """x with dropout, or x itself where p is 0."""
    return F.dropout(x, p) if p > 0 else x


def causal_mask(length: int) -> Any:
    """(1, 1, length, length): 0 where the source is not after the target, else HIDDEN.

    Made by functions, not given as numbers, so that plans see what it is.
    """
    return F.trilu(F.constant(HIDDEN, (1, 1, length, length)), k=1)


def padding_mask(keep: Any) -> Any:
    """(B, T), 1 for tokens and 0 for padding, as (B, 1, 1, T): 0 and HIDDEN."""
    batch, length = keep.shape
    return F.reshape((1.0 - keep) * HIDDEN, (batch, 1, 1, length))


def scores_by(x: Any, table: Any) -> Any:
    """Products with the rows of an embedding: (B, T, n) and (V, n) to (B, T, V)."""
    batch, length, width = x.shape
    x = F.reshape(x, (1, batch * length, width))
    y = F.batch_matmul(x, F.reshape(table, (1, *table.shape)), transpose_b=True)
    return F.reshape(y, (batch, length, table.shape[0]))


def as_layer(f: Callable[..., Any]) -> Callable[..., Any]:
    """Run a function in the parameter scope of its argument `name`: a layer, for profiles too."""
    place = [*inspect.signature(f).parameters].index("name")

    @wraps(f)
    def inside(*args: Any, **kw: Any) -> Any:
        with parameter_scope(kw["name"] if "name" in kw else args[place]):
            return f(*args, **kw)

    return inside


def product(rows: Any, width: int) -> Any:
    """$x W^T$ for x (m, n) and the weights of the current scope, with what adapters add."""
    w = partial(table, width, rows.shape[-1], "")
    return adapters.added(partial(quantization.product, w=w), rows)


@as_layer
def linear(x: Any, width: int, name: str, bias: bool = True) -> Any:
    """$x W^T + b$ over the last axis; W is (width, n), or what `quantization` has made of it."""
    n = x.shape[-1]
    rows = F.reshape(x, (x.size // n, n))
    y = product(rows, width)
    if bias:
        b = parameter("b", (width,), ConstantInitializer(0))
        y = y + F.reshape(b, (1, width))
    return F.reshape(y, (*x.shape[:-1], width))


@as_layer
def losses(x: Any, width: int, labels: Any, cap: float, name: str) -> Any:
    """Cross entropy of the scores that `linear` makes of x, (B, T, n), for each label, (B, T).

    The scores are never held whole, unless their weights are of few bits or have adapters.
    """
    n = x.shape[-1]
    rows = F.reshape(x, (x.size // n, n))
    if not (quantization.present() or adapters.present()):
        return F.linear_cross_entropy(x, table(width, n, ""), labels, soft_cap=cap)
    y = product(rows, width)
    if cap:
        y = F.tanh(y * (1 / cap)) * cap
    each = F.softmax_cross_entropy(y, F.reshape(labels, (x.size // n, 1)))
    return F.reshape(each, labels.shape)


def table(rows: int, width: int, name: str) -> Any:
    """A matrix of parameters, of which `embedding` takes rows."""
    return parameter(f"{name}/W", (rows, width), NormalInitializer(SIGMA))


@as_layer
def embedding(x: Any, rows: int, width: int, name: str) -> Any:
    """A row of a table of (rows, width) for each integer of x."""
    return F.embed(x, table(rows, width, ""))


@as_layer
def norm(x: Any, c: Stack, name: str) -> Any:
    """Normalisation over the last axis of x, with the parameters that `c` says."""
    if c.norm == "rms":
        first = ConstantInitializer(1.0 - c.offset)
        gamma = parameter("gamma", x.shape[-1:], first)
        return F.rms_normalization(x, gamma, eps=c.eps, gamma_offset=c.offset)
    gamma = beta = None
    if c.norm == "layer":
        shape = (*(1 for _ in x.shape[1:]), x.shape[-1])
        gamma = parameter("gamma", shape, ConstantInitializer(1))
        beta = parameter("beta", shape, ConstantInitializer(0))
    return F.layer_normalization(x, beta, gamma, batch_axis=range(x.ndim - 1), eps=c.eps)


def heads_of(x: Any, heads: int, width: int) -> Any:
    """(B, T, heads width) -> (B, heads, T, width)."""
    return F.transpose(F.reshape(x, (*x.shape[:2], heads, width)), (0, 2, 1, 3))


def apart(y: Any, heads: int, kv_heads: int, width: int) -> Any:
    """Queries, keys and values by heads, from the sequence that has them side by side."""
    batch, length = y.shape[:2]
    if heads == kv_heads:  # one transposition makes all of them
        y = F.transpose(F.reshape(y, (batch, length, 3, heads, width)), (2, 0, 3, 1, 4))
        return F.split(y, axis=0)
    y = heads_of(y, heads + 2 * kv_heads, width)
    ends = (0, heads, heads + kv_heads, heads + 2 * kv_heads)
    return [
        F.slice(y, (0, a, 0, 0), (batch, b, length, width))
        for a, b in zip(ends, ends[1:], strict=False)
    ]


@as_layer
def attention(x: Any, c: Stack, layer: Layer, at: Where, i: int, name: str) -> Any:
    """Attention of a sequence to itself, with the products before and after it: (B, T, width)."""
    d, h, g = c.head_width, c.heads, c.kv_heads
    if c.joined:
        q, k, v = apart(linear(x, (h + 2 * g) * d, "qkv", "q" in c.bias), h, g, d)
    else:
        q = linear(x, h * d, "q", "q" in c.bias)
        k = linear(x, g * d, "k", "k" in c.bias)
        v = linear(x, g * d, "v", "v" in c.bias)
        if c.clip:
            q, k, v = (F.clip_by_value(y, -c.clip, c.clip) for y in (q, k, v))
        if c.qk_norm == "whole":
            q, k = norm(q, c, "q_norm"), norm(k, c, "k_norm")
        q, k, v = heads_of(q, h, d), heads_of(k, g, d), heads_of(v, g, d)
    if c.qk_norm == "head":
        q, k = norm(q, c, "q_norm"), norm(k, c, "k_norm")
    if layer.rotary is not None:
        found, factor = layer.rotary.frequencies(at.length)
        frequencies = Variable.from_numpy_array(found)
        q, k = (F.rotary_embedding(y, at.positions, frequencies, factor=factor) for y in (q, k))
    return attended(q, k, v, c, layer, at, i)


def attended(q: Any, k: Any, v: Any, c: Stack, layer: Layer, at: Where, i: int) -> Any:
    """What queries see of keys and values, by heads, and the product after it."""
    if at.caches is not None:
        y = F.cached_attention(
            q, k, v, *at.caches[i], at.before, at.counts, at.slots, at.mask,
            window=layer.window, soft_cap=c.cap, scale=c.scale or 0.0,
        )  # fmt: skip
    elif c.dropout:
        y = dropped_attention(q, k, v, c, at)
    else:
        y = F.attention(
            q, k, v, at.mask, segments=at.segments, causal=c.causal,
            window=layer.window or None, soft_cap=c.cap or None, scale=c.scale,
        )  # fmt: skip
    y = F.reshape(F.transpose(y, (0, 2, 1, 3)), (q.shape[0], q.shape[2], c.heads * c.head_width))
    return linear(y, c.width, "out", "out" in c.bias)


def dropped_attention(q: Any, k: Any, v: Any, c: Stack, at: Where) -> Any:
    """Attention whose weights have dropout, for training: all heads have keys of their own."""
    scores = F.batch_matmul(q, k, transpose_b=True)
    scores = scores * (c.head_width**-0.5 if c.scale is None else c.scale)
    masks = [at.mask, causal_mask(q.shape[2]) if c.causal else None]
    if at.segments is not None:
        batch, length = at.segments.shape
        own, other = (F.reshape(at.segments, (batch, 1, *s)) for s in ((length, 1), (1, length)))
        masks.append(F.not_equal(own, other) * HIDDEN)
    for hidden in masks:
        scores = scores if hidden is None else scores + hidden
    return F.batch_matmul(dropped(F.softmax(scores, axis=3), c.dropout), v)


def crossed(other: Any, c: Stack) -> list[Cache]:
    """Keys and values of another sequence (B, S, n), for the layers that attend to it between."""
    found = []
    for i in range(1, len(c.layers) + 1):
        k, v = (
            heads_of(
                linear(other, c.heads * c.head_width, f"layer{i}/cross/{n}", n in c.bias),
                c.heads,
                c.head_width,
            )
            for n in "kv"
        )
        found.append(Cache(k, v))
    return found


@as_layer
def cross_attention(x: Any, c: Stack, at: Where, i: int, name: str) -> Any:
    """Attention to another sequence, with the products before and after it."""
    width = c.heads * c.head_width
    q = heads_of(linear(x, width, "q", "q" in c.bias), c.heads, c.head_width)
    y = F.attention(q, *at.crossed[i], at.crossed_mask, scale=c.scale)
    y = F.reshape(F.transpose(y, (0, 2, 1, 3)), (*x.shape[:2], width))
    return linear(y, c.width, "out", "out" in c.bias)


@as_layer
def feed_forward(x: Any, c: Stack, name: str, between: int = 0) -> Any:
    """Two products with an activation between them, or three where that has a gate."""
    between, bend = between or c.between, ACTIVATIONS[c.activation]
    if not c.gated:
        h = bend(linear(x, between, "up", "up" in c.bias))
    elif c.joined:
        both = linear(x, 2 * between, "gate_up", "up" in c.bias)
        gate, up = F.split(F.reshape(both, (*x.shape[:-1], 2, between)), axis=x.ndim - 1)
        h = bend(gate) * up
    else:
        gate = linear(x, between, "gate", "up" in c.bias)
        h = bend(gate) * linear(x, between, "up", "up" in c.bias)
    return linear(h, c.width, "down", "down" in c.bias)


@as_layer
def mixture(x: Any, c: Stack, experts: Experts, name: str) -> Any:
    """The experts that each token has chosen, and one that all have."""
    n, f = experts.count, experts.between
    shapes = {"gate": (n, f, c.width), "up": (n, f, c.width), "down": (n, c.width, f)}
    w = {
        k: parameter(f"experts/{k}", shape, NormalInitializer(SIGMA)) for k, shape in shapes.items()
    }
    y = F.mixture_of_experts(
        x, linear(x, n, "router", False), **w, top_k=experts.chosen,
        normalized=experts.normalized, activation={"silu": "swish"}.get(c.activation, c.activation),
        transposed=True,
    )  # fmt: skip
    if experts.shared:
        share = F.sigmoid(linear(x, 1, "shared_gate", False))
        y = y + share * feed_forward(x, c, "shared", experts.shared)
    return y


def stack(h: Any, c: Stack, at: Where) -> Any:
    """All layers, without the norm after the last: (B, T, width) to the same shape."""
    again = CHECKPOINTING.get()
    for i, layer in enumerate(c.layers):
        with parameter_scope(f"layer{i + 1}"), recompute(again or get_global_recompute()):
            f = partial(attention, c=c, layer=layer, at=at, i=i, name="attention")
            h = added(h, c, "attention", f)
            if c.cross:
                f = partial(cross_attention, c=c, at=at, i=i, name="cross")
                h = added(h, c, "cross", f)
            f = partial(feed_forward, c=c, name="")
            if layer.experts is not None:
                f = partial(mixture, c=c, experts=layer.experts, name="")
            h = added(h, c, "feed_forward", f)
        if again:
            h.recompute = False  # from which backward computes the next layer again
    return h


def added(h: Any, c: Stack, name: str, part: Callable[[Any], Any]) -> Any:
    """h with what a part makes of it, and norms where they stand."""
    y = part(norm(h, c, f"{name}/norm") if c.order in ("before", "both") else h)
    if c.order in ("both", "inside"):
        y = norm(y, c, f"{name}/norm_after")
    y = dropped(y, c.dropout)
    h = h + (y if c.factor == 1 else y * c.factor)
    return norm(h, c, f"{name}/norm") if c.order == "after" else h


def last_rows(h: Any, counts: Any = None) -> Any:
    """The last of the first `counts` positions of each text, of all if left out: (B, 1, width)."""
    batch, length, width = h.shape
    row = F.constant(length - 1, (batch,))
    if counts is not None:
        row = F.maximum_scalar(counts - 1, 0)
    row = row + Variable.from_numpy_array(np.arange(batch) * length)
    return F.reshape(F.embed(row, F.reshape(h, (-1, width))), (batch, 1, width))
