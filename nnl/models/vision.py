# SPDX-License-Identifier: Apache-2.0
"""Pictures as sequences of patches: ViT; and beside texts: CLIP, SigLIP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import parameter_scope
from nnl.models.adapters import parameter
from nnl.models.stack import (
    SIGMA,
    Stack,
    Where,
    dropped,
    embedding,
    feed_forward,
    heads_of,
    linear,
    norm,
    stack,
)
from nnl.parametric_functions.initializer import ConstantInitializer, NormalInitializer

__all__ = ["Pair", "Vision", "pair_scores", "pair_vectors", "vision"]


@dataclass(frozen=True)
class Vision:
    """Sizes and kinds of a `vision`.

    Attributes:
        size, patch, channels: Of pictures, which are squares of patches.
        stack: The layers.
        first: Whether there is a position before the patches, for the whole picture.
        bias: Whether patches have a bias.
        normed: Whether a norm stands before the layers.
        pool: What stands for the picture: the "first" position, or what "attention" makes of all.
        flat: Whether the parameters of positions have no axis of samples.
        heads: What there is besides the sequence, of "summary" and "classes"; classes: how many.
    Example:
        >>> models.Vision(32, 8, 3, models.Stack(16, 2, 32, (models.Layer(),))).positions
        17
    """

    size: int
    patch: int
    channels: int
    stack: Stack
    first: bool = True
    bias: bool = True
    normed: bool = False
    pool: str = "first"
    flat: bool = False
    heads: tuple[str, ...] = ()
    classes: int = 2

    @property
    def positions(self) -> int:
        """How many there are."""
        return (self.size // self.patch) ** 2 + self.first


@dataclass(frozen=True)
class Pair:
    """Sizes and kinds of two networks, whose vectors are close where a text fits a picture.

    Attributes:
        image: What sees.
        text: Layers that read; vocabulary, longest: numbers of tokens and positions.
        width: Of the vectors.
        end: The token whose first position stands for a text; None: the last position does, and -1:
            that of the largest token.
        projected: Whether pictures are projected to `width`; text_bias: whether the projection of
            texts has a bias.
        shifted: Whether scores have a bias.
    Example:
        >>> layers = models.Stack(16, 2, 32, (models.Layer(),))
        >>> models.Pair(models.Vision(32, 8, 3, layers), layers, 50, 12, 24, end=49).width
        24
    """

    image: Vision
    text: Stack
    vocabulary: int
    longest: int
    width: int
    end: int | None = None
    projected: bool = True
    text_bias: bool = False
    shifted: bool = False


def vision(images: Any, config: Vision, head: str = "") -> Any:
    """A sequence that says what is in each patch of a picture, or what a head makes of it.

    Args:
        images: (B, channels, size, size).
        head: "" for the sequence, (B, positions, width); "summary", (B, width); "classes",
            (B, classes).
    Raises:
        ValueError: images has another shape, or there is no such head.
    Source: Dosovitskiy et al., arXiv:2010.11929.
    Example:
        >>> config = models.Vision(32, 8, 3, models.Stack(16, 2, 32, (models.Layer(),)))
        >>> with nn.parameter_scope("vision"):
        ...     models.vision(nn.Variable((2, 3, 32, 32)), config).shape
        (2, 17, 16)
    """
    c = config
    if head and head not in c.heads:
        names = ", ".join(c.heads) or "none"
        raise ValueError(f"vision: head is {head!r}, this network has {names}")
    h = norm(_layers(images, c), c.stack, "out")
    if not head:
        return h
    first = _position(h, 0)
    if head == "summary":
        return F.tanh(linear(first, c.stack.width, "summary"))
    return linear(first, c.classes, "classes")


def _layers(images: Any, c: Vision) -> Any:
    width, shape = c.stack.width, (c.channels, c.size, c.size)
    if images.shape[1:] != shape:
        raise ValueError(f"vision: images has the shape {images.shape}, wanted (B, {shape})")
    drawn = NormalInitializer(SIGMA)
    w = parameter("patches/W", (width, c.channels, c.patch, c.patch), drawn)
    b = parameter("patches/b", (width,), ConstantInitializer(0)) if c.bias else None
    h = F.convolution(images, w, b, stride=(c.patch, c.patch))
    batch = images.shape[0]
    h = F.transpose(F.reshape(h, (batch, width, -1)), (0, 2, 1))
    if c.first:
        first = parameter("first", (width,) if c.flat else (1, 1, width), drawn)
        first = F.broadcast(F.reshape(first, (1, 1, width)), (batch, 1, width))
        h = F.concatenate(first, h, axis=1)
    shape = (c.positions, width) if c.flat else (1, c.positions, width)
    h = h + F.reshape(parameter("positions/W", shape, drawn), (1, *shape[-2:]))
    h = norm(h, c.stack, "before") if c.normed else h
    return stack(dropped(h, c.stack.dropout), c.stack, Where())


def _position(h: Any, i: int) -> Any:
    return F.reshape(
        F.slice(h, (0, i, 0), (h.shape[0], i + 1, h.shape[2])), (h.shape[0], h.shape[2])
    )


def _attended(h: Any, c: Stack) -> Any:
    """What a learned query sees of a sequence: (B, width)."""
    batch, n = h.shape[0], c.width
    probe = parameter("probe", (1, 1, n), NormalInitializer(SIGMA))
    q = F.slice(linear(probe, 3 * n, "pool/qkv"), (0, 0, 0), (1, 1, n))
    kv = linear(h, 3 * n, "pool/qkv")
    k, v = (F.slice(kv, (0, 0, a), (batch, h.shape[1], a + n)) for a in (n, 2 * n))
    q, k, v = (heads_of(y, c.heads, c.head_width) for y in (F.broadcast(q, (batch, 1, n)), k, v))
    y = F.reshape(F.transpose(F.attention(q, k, v), (0, 2, 1, 3)), (batch, 1, n))
    y = linear(y, n, "pool/out")
    y = y + feed_forward(norm(y, c, "pool/norm"), c, "pool")
    return F.reshape(y, (batch, n))


def pair_vectors(config: Pair, images: Any = None, tokens: Any = None) -> tuple[Any, Any]:
    """Vectors of pictures and of texts, of length 1; None for what is not given.

    Args:
        images: (B, channels, size, size).
        tokens: (N, T), integers in [0, vocabulary).
    Returns:
        (B, width) and (N, width).
    Raises:
        ValueError: images has another shape, or tokens another rank or more positions.
    Source: Radford et al., CLIP, arXiv:2103.00020; Zhai et al., SigLIP, arXiv:2303.15343.
    Example:
        >>> layers = models.Stack(16, 2, 32, (models.Layer(),))
        >>> config = models.Pair(models.Vision(32, 8, 3, layers), layers, 50, 12, 24)
        >>> with nn.parameter_scope("pair"):
        ...     x, y = models.pair_vectors(config, nn.Variable((2, 3, 32, 32)), nn.Variable((3, 5)))
        >>> x.shape, y.shape
        ((2, 24), (3, 24))
    """
    found = [
        None if x is None else F.norm_normalization(f(x, config), p=2, axes=1)
        for f, x in ((_image, images), (_text, tokens))
    ]
    return found[0], found[1]


def pair_scores(config: Pair, images: Any, tokens: Any) -> Any:
    """How well each text fits each picture: (B, N), of B pictures and N texts.

    The arguments and errors are those of `pair_vectors`.

    Example:
        >>> layers = models.Stack(16, 2, 32, (models.Layer(),))
        >>> config = models.Pair(models.Vision(32, 8, 3, layers), layers, 50, 12, 24)
        >>> with nn.parameter_scope("pair_scores"):
        ...     y = models.pair_scores(config, nn.Variable((2, 3, 32, 32)), nn.Variable((3, 5)))
        >>> y.shape
        (2, 3)
    """
    x, y = pair_vectors(config, images, tokens)
    shape = (1,) if config.shifted else ()
    scale = F.exp(parameter("scale", shape, ConstantInitializer(np.log(10))))
    scores = F.batch_matmul(x, y, transpose_b=True) * F.reshape(scale, (1, 1))
    if config.shifted:
        shift = parameter("shift", shape, ConstantInitializer(-10))
        scores = scores + F.reshape(shift, (1, 1))
    return scores


def _image(images: Any, config: Pair) -> Any:
    c = config.image
    with parameter_scope("image"):
        h = _layers(images, c)
        if c.pool == "attention":
            y = _attended(norm(h, c.stack, "out"), c.stack)
        else:
            y = norm(_position(h, 0), c.stack, "out")
        return linear(y, config.width, "vector", False) if config.projected else y


def _text(tokens: Any, config: Pair) -> Any:
    c = config.text
    batch, length = tokens.shape[0], tokens.shape[-1]
    if tokens.ndim != 2 or length > config.longest:
        raise ValueError(
            f"pair_vectors: tokens has the shape {tokens.shape}, wanted (N, T) with T at most "
            f"{config.longest}"
        )
    with parameter_scope("text"):
        h = embedding(tokens, config.vocabulary, c.width, "tokens")
        places = Variable.from_numpy_array(np.arange(length)[None])
        h = h + embedding(places, config.longest, c.width, "positions")
        h = norm(stack(h, c, Where()), c, "out")
        if config.end is None:
            y = _position(h, length - 1)
        else:
            which = tokens if config.end < 0 else F.equal_scalar(tokens, config.end)
            row = F.max(which, axis=1, only_index=True)
            row = row + Variable.from_numpy_array(np.arange(batch) * length)
            y = F.embed(row, F.reshape(h, (batch * length, c.width)))
        return linear(y, config.width, "vector", config.text_bias)
