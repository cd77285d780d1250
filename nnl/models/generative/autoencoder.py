# SPDX-License-Identifier: Apache-2.0
"""Autoencoders of images: the variational one of latent diffusion, and those with a code book."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnl import functions as F
from nnl.core.arrays.spec import ShapeError
from nnl.core.parameters.parameter import parameter_scope
from nnl.models.adapters import parameter
from nnl.models.generative.blocks import downsampled, residual, self_attention, upsampled
from nnl.models.generative.layers import convolution, group_norm, silu
from nnl.parametric_functions.initializer import UniformInitializer

__all__ = ["Autoencoder", "decode", "encode", "quantize_vectors"]

EPS = 1e-6  # of group normalisation


@dataclass(frozen=True)
class Autoencoder:
    """Sizes of an autoencoder.

    Attributes:
        channels: Of each level; each further level has half the height and width.
        blocks: Residual blocks of a level.
        latent: Channels of what images become.
        colors: Channels of images.
        codes: Entries of the code book; 0: there is none, and the encoder gives a mean and a
            logarithm of a variance.
        groups: Of group normalisation.
        attention: Whether all places attend to each other in the middle.
    Example:
        >>> Autoencoder((32, 64), latent=3).codes
        0
    """

    channels: tuple[int, ...] = (128, 256, 512, 512)
    blocks: int = 2
    latent: int = 4
    colors: int = 3
    codes: int = 0
    groups: int = 32
    attention: bool = True


def encode(x: Any, config: Autoencoder) -> Any:
    """Images as smaller maps.

    Parameters are called as those of diffusers' AutoencoderKL and VQModel.

    Args:
        x: (B, colors, H, W), in [-1, 1]; sizes are multiples of 2 to the power of the levels less
            one.
    Returns:
        (mean, log_variance), each (B, latent, h, w), the latter in [-30, 20]; with a code book one
        map, for `quantize_vectors`.
    Raises:
        ShapeError: x has another number of channels, or another size.
    Source: Rombach et al., arXiv:2112.10752, appendix G.
    Example:
        >>> config = Autoencoder((8, 8), latent=2, groups=4)
        >>> with nn.parameter_scope("autoencoder"):
        ...     [v.shape for v in encode(nn.Variable((1, 3, 16, 16)), config)]
        [(1, 2, 8, 8), (1, 2, 8, 8)]
    """
    c = config
    multiple = 2 ** (len(c.channels) - 1)
    if x.ndim != 4 or x.shape[1] != c.colors or x.shape[2] % multiple or x.shape[3] % multiple:
        raise ShapeError(
            f"encode: x has the shape {x.shape}, wanted {c.colors} channels, and height and width "
            f"in multiples of {multiple}"
        )
    width = c.latent if c.codes else 2 * c.latent
    with parameter_scope("encoder"):
        h = convolution(x, c.channels[0], 3, "conv_in")
        for i, channels in enumerate(c.channels):
            for j in range(c.blocks):
                h = residual(h, channels, f"down_blocks/{i}/resnets/{j}", c.groups, EPS)
            if i < len(c.channels) - 1:
                h = downsampled(h, f"down_blocks/{i}/downsamplers/0", asymmetric=True)
        h = _middle(h, c)
        h = silu(group_norm(h, c.groups, "conv_norm_out", EPS))
        h = convolution(h, width, 3, "conv_out")
    h = convolution(h, width, 1, "quant_conv")
    if c.codes:
        return h
    return h[:, : c.latent], F.clip_by_value(h[:, c.latent :], -30.0, 20.0)


def decode(z: Any, config: Autoencoder) -> Any:
    """Images of what `encode` makes.

    Args:
        z: (B, latent, h, w).
    Returns:
        (B, colors, H, W), not limited.
    Raises:
        ShapeError: z has another number of channels.
    Source: As of `encode`.
    Example:
        >>> config = Autoencoder((8, 8), latent=2, groups=4)
        >>> with nn.parameter_scope("autoencoder"):
        ...     decode(nn.Variable((1, 2, 8, 8)), config).shape
        (1, 3, 16, 16)
    """
    c = config
    if z.ndim != 4 or z.shape[1] != c.latent:
        raise ShapeError(f"decode: z has the shape {z.shape}, wanted {c.latent} channels")
    h = convolution(z, c.latent, 1, "post_quant_conv")
    with parameter_scope("decoder"):
        h = convolution(h, c.channels[-1], 3, "conv_in")
        h = _middle(h, c)
        for i, channels in enumerate(reversed(c.channels)):
            for j in range(c.blocks + 1):
                h = residual(h, channels, f"up_blocks/{i}/resnets/{j}", c.groups, EPS)
            if i < len(c.channels) - 1:
                h = upsampled(h, f"up_blocks/{i}/upsamplers/0")
        h = silu(group_norm(h, c.groups, "conv_norm_out", EPS))
        return convolution(h, c.colors, 3, "conv_out")


def quantize_vectors(z: Any, config: Autoencoder, beta: float = 0.25) -> tuple[Any, Any, Any]:
    r"""Replace the vector of each place by the nearest one of the code book.

    The loss is $|sg(z) - e|^2 + \beta |z - sg(e)|^2$, where sg has no gradient; the gradient of the
    result goes on to z.

    Args:
        z: (B, latent, h, w).
        beta: $\beta$, how fast the encoder follows.
    Returns:
        The vectors (B, latent, h, w), their numbers (B, h, w), and the loss.
    Source: van den Oord et al., Neural Discrete Representation Learning, arXiv:1711.00937,
        equation 3.
    Example:
        >>> config = Autoencoder(latent=2, codes=5)
        >>> with nn.parameter_scope("quantized"):
        ...     [v.shape for v in quantize_vectors(nn.Variable((1, 2, 4, 4)), config)]
        [(1, 2, 4, 4), (1, 4, 4), ()]
    """
    b, width, h, w = z.shape
    n = config.codes
    with parameter_scope("quantize/embedding"):
        book = parameter("weight", (n, width), UniformInitializer((-1 / n, 1 / n)))
    rows = F.reshape(F.transpose(z, (0, 2, 3, 1)), (b * h * w, width))
    # |row - code|^2 without what is the same for all codes
    near = F.reshape(F.sum(book**2, axis=1), (1, n)) - 2 * F.batch_matmul(
        rows, book, transpose_b=True
    )
    numbers = F.reshape(F.min(near, axis=1, only_index=True), (b, h, w))
    found = F.transpose(F.embed(numbers, book), (0, 3, 1, 2))
    loss = F.mean((found - F.unlink(z)) ** 2) + beta * F.mean((z - F.unlink(found)) ** 2)
    return z + F.unlink(found - z), numbers, loss


def _middle(h: Any, c: Autoencoder) -> Any:
    h = residual(h, c.channels[-1], "mid_block/resnets/0", c.groups, EPS)
    if c.attention:
        h = self_attention(h, 1, "mid_block/attentions/0", c.groups, EPS)
    return residual(h, c.channels[-1], "mid_block/resnets/1", c.groups, EPS)
