# SPDX-License-Identifier: Apache-2.0
"""DiT: a transformer of patches that denoises images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.arrays.spec import ShapeError
from nnl.core.graph.variable import Variable
from nnl.models.generative.layers import (
    ZERO,
    attended,
    convolution,
    embedding,
    linear,
    silu,
    sinusoids,
)
from nnl.models.stack import as_layer
from nnl.parametric_functions.initializer import NormalInitializer

__all__ = ["DiT", "dit"]

TIMES = 256  # width of the vectors of times
SIGMA = 0.02
EPS = 1e-6


@dataclass(frozen=True)
class DiT:
    """Sizes of a `dit`; the default ones are those of DiT-S/2 for ImageNet of 256 x 256.

    Attributes:
        width, depth, heads: Of the transformer.
        patch: Height and width of a patch.
        inputs, outputs: Channels of images, and of the result: twice as many where the model
            predicts a variance as well.
        classes: Number of classes, with the one for none.
    Example:
        >>> DiT().depth
        12
    """

    width: int = 384
    depth: int = 12
    heads: int = 6
    patch: int = 2
    inputs: int = 4
    outputs: int = 8
    classes: int = 1001


def dit(x: Any, t: Any, labels: Any, config: DiT) -> Any:
    """What a diffusion model predicts of a noisy image.

    Parameters are called as in the published code (facebookresearch/DiT).

    Args:
        x: (B, inputs, H, H); H is a multiple of the patch.
        t: (B,), times.
        labels: (B,) integers below `config.classes`.
    Returns:
        (B, outputs, H, H).
    Raises:
        ShapeError: x does not fit the config.
    Source: Peebles and Xie, Scalable Diffusion Models with Transformers, arXiv:2212.09748,
        section 3.2, adaLN-Zero.
    Example:
        >>> config = DiT(width=16, depth=1, heads=2, outputs=4, classes=11)
        >>> x, t, c = nn.Variable((1, 4, 8, 8)), nn.Variable((1,)), nn.Variable((1,))
        >>> with nn.parameter_scope("dit"):
        ...     dit(x, t, c, config).shape
        (1, 4, 8, 8)
    """
    c = config
    b, channels, height, width = x.shape
    if channels != c.inputs or height != width or height % c.patch:
        raise ShapeError(
            f"dit: x has the shape {x.shape}, wanted {c.inputs} channels and squares of a multiple "
            f"of {c.patch} pixels"
        )
    side = height // c.patch
    h = convolution(x, c.width, c.patch, "x_embedder/proj", stride=c.patch, pad=0)
    h = F.transpose(F.reshape(h, (b, c.width, side * side)), (0, 2, 1))
    h = h + Variable.from_numpy_array(_positions(side, c.width)[None])
    normal = NormalInitializer(SIGMA)
    time = silu(linear(sinusoids(t, TIMES), c.width, "t_embedder/mlp/0", init=normal))
    time = linear(time, c.width, "t_embedder/mlp/2", init=normal)
    label = embedding(labels, c.classes, c.width, "y_embedder/embedding_table", normal)
    condition = silu(time + label)
    for i in range(c.depth):
        h = _block(h, condition, c, f"blocks/{i}")
    shift, scale = _parts(condition, 2, c.width, "final_layer/adaLN_modulation/1")
    h = _normed(h, shift, scale)
    h = linear(h, c.patch**2 * c.outputs, "final_layer/linear", init=ZERO)
    h = F.reshape(h, (b, side, side, c.patch, c.patch, c.outputs))
    return F.reshape(F.transpose(h, (0, 5, 1, 3, 2, 4)), (b, c.outputs, height, width))


@as_layer
def _block(x: Any, condition: Any, c: DiT, name: str) -> Any:
    b, t, width = x.shape
    parts = _parts(condition, 6, width, "adaLN_modulation/1")
    qkv = linear(_normed(x, *parts[:2]), 3 * width, "attn/qkv")
    qkv = F.transpose(F.reshape(qkv, (b, t, 3, c.heads, width // c.heads)), (2, 0, 3, 1, 4))
    h = F.transpose(attended(qkv[0], qkv[1], qkv[2]), (0, 2, 1, 3))
    x = x + parts[2] * linear(F.reshape(h, (b, t, width)), width, "attn/proj")
    h = F.gelu(linear(_normed(x, *parts[3:5]), 4 * width, "mlp/fc1"))
    return x + parts[5] * linear(h, width, "mlp/fc2")


def _parts(condition: Any, n: int, width: int, name: str) -> list[Any]:
    made = linear(condition, n * width, name, init=ZERO)
    return list(F.split(F.reshape(made, (made.shape[0], n, 1, width)), axis=1))


def _normed(x: Any, shift: Any, scale: Any) -> Any:
    x = F.layer_normalization(x, None, None, batch_axis=(0, 1), eps=EPS)
    return x * (scale + 1.0) + shift


def _positions(side: int, width: int) -> np.ndarray[Any, Any]:
    """Sines and cosines of column, then of row: (side * side, width)."""
    rates = 10000 ** -(np.arange(width // 4) / (width // 4))
    row, column = np.mgrid[:side, :side].reshape(2, -1, 1)
    parts = [f(p * rates) for p in (column, row) for f in (np.sin, np.cos)]
    return np.concatenate(parts, axis=1).astype(np.float32)
