# SPDX-License-Identifier: Apache-2.0
"""Whisper: speech that is heard as a whole, and a text that is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnl import functions as F
from nnl.core.parameters.parameter import parameter_scope
from nnl.models.adapters import parameter
from nnl.models.decoder import Decoder, decoder
from nnl.models.stack import (
    SIGMA,
    Cache,
    Stack,
    Where,
    crossed,
    exact_gelu,
    norm,
    stack,
    table,
)
from nnl.parametric_functions.initializer import ConstantInitializer, NormalInitializer

__all__ = ["Whisper", "whisper"]


@dataclass(frozen=True)
class Whisper:
    """Sizes of a `whisper`.

    Attributes:
        bands: Of the spectrogram.
        frames: Positions that are heard; the spectrogram has twice as many.
        reader: Layers that hear.
        writer: What writes.
    Example:
        >>> part = models.Stack(16, 2, 32, (models.Layer(),))
        >>> models.Whisper(80, 1500, part, models.Decoder(50, 12, part)).longest
        12
    """

    bands: int
    frames: int
    reader: Stack
    writer: Decoder

    @property
    def stack(self) -> Stack:
        """The layers that write."""
        return self.writer.stack

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.writer.vocabulary

    @property
    def longest(self) -> int:
        """The most that is written."""
        return self.writer.longest

    @property
    def tied(self) -> bool:
        """Whether the scores' weights are the embedding of the tokens."""
        return self.writer.tied


def whisper(sound: Any, tokens: Any, config: Whisper) -> Any:
    """Scores of the token that follows each position of what is written.

    Args:
        sound: (B, bands, 2 frames), logarithms of a mel spectrogram.
        tokens: (B, T), integers in [0, vocabulary).
    Returns:
        (B, T, vocabulary).
    Raises:
        ValueError: sound has another shape.
    Source: Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision,
        arXiv:2212.04356.
    Example:
        >>> from dataclasses import replace
        >>> part = models.Stack(16, 2, 32, (models.Layer(),))
        >>> writer = replace(part, causal=True, cross=True)
        >>> config = models.Whisper(8, 10, part, models.Decoder(50, 12, writer, learned=True))
        >>> with nn.parameter_scope("whisper"):
        ...     models.whisper(nn.Variable((2, 8, 20)), nn.Variable((2, 5)), config).shape
        (2, 5, 50)
    """
    heard = hear(sound, config)
    with parameter_scope("writer"):
        return decoder(tokens, config.writer, crossed=heard)


def hear(sound: Any, c: Whisper) -> list[Cache]:
    """What the writing part attends to: keys and values of each of its layers."""
    if sound.shape[1:] != (c.bands, 2 * c.frames):
        raise ValueError(
            f"whisper: sound has the shape {sound.shape}, wanted (B, {c.bands}, {2 * c.frames})"
        )
    width = c.reader.width
    with parameter_scope("reader"):
        h = exact_gelu(_convolution(sound, width, 1, "conv1"))
        h = F.transpose(exact_gelu(_convolution(h, width, 2, "conv2")), (0, 2, 1))
        h = h + F.reshape(table(c.frames, width, "positions"), (1, c.frames, width))
        h = norm(stack(h, c.reader, Where()), c.reader, "out")
    with parameter_scope("writer"):
        return crossed(h, c.writer.stack)


def _convolution(x: Any, maps: int, stride: int, name: str) -> Any:
    """Over three positions of x (B, n, T)."""
    w = parameter(f"{name}/W", (maps, x.shape[1], 3), NormalInitializer(SIGMA))
    b = parameter(f"{name}/b", (maps,), ConstantInitializer(0))
    return F.convolution(x, w, b, pad=(1,), stride=(stride,))
