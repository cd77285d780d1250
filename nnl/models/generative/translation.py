# SPDX-License-Identifier: Apache-2.0
"""Networks that make an image of another one, and those that judge patches of it."""

from __future__ import annotations

from typing import Any

from nnl import functions as F
from nnl import parametric_functions as PF
from nnl.core.arrays.spec import ShapeError
from nnl.core.parameters.parameter import parameter_scope
from nnl.models.generative.layers import convolution, deconvolution
from nnl.models.stack import as_layer
from nnl.parametric_functions.initializer import NormalInitializer

__all__ = [
    "pix2pix_generator",
    "patch_discriminator",
    "resnet_generator",
    "stargan_discriminator",
    "stargan_generator",
]

SIGMA = 0.02  # standard deviation of the first weights, in the code of the papers


def pix2pix_generator(
    x: Any,
    outputs: int = 3,
    channels: int = 64,
    depth: int = 8,
    dropout: float = 0.5,
    test: bool = False,
) -> Any:
    """A U-Net down to few pixels, normalised by the batch; its dropout stays on when it is used.

    Args:
        x: (B, C, H, W); sizes are multiples of 2 to the power of the depth.
        channels: Of the first level; each further one has twice as many, up to eight times.
        depth: How often the size is halved.
        dropout: Share that the three levels with the fewest pixels drop, after the lowest.
        test: Normalise with the running statistics, as exported files do; the paper's own images
            are normalised by those of the batch.
    Returns:
        (B, outputs, H, W), in [-1, 1].
    Raises:
        ShapeError: H or W is no such multiple.
    Source: Isola et al., Image-to-Image Translation, arXiv:1611.07004, appendix 6.1.
    Example:
        >>> with nn.parameter_scope("pix2pix"):
        ...     pix2pix_generator(nn.Variable((1, 1, 16, 16)), channels=4, depth=3).shape
        (1, 3, 16, 16)
    """
    if x.shape[2] % 2**depth or x.shape[3] % 2**depth:
        raise ShapeError(
            f"pix2pix_generator: x has the shape {x.shape}, wanted sizes in multiples of {2**depth}"
        )
    widths = [channels * min(2**i, 8) for i in range(depth)]
    skipped, h = [], x
    for i, width in enumerate(widths):
        h = h if i == 0 else F.leaky_relu(h, 0.2)
        h = convolution(h, width, 4, f"down{i}", 2, 1, bias=i == 0, init=NormalInitializer(SIGMA))
        if 0 < i < depth - 1:
            h = _batch_norm(h, f"down{i}", test)
        skipped.append(h)
    h = skipped.pop()
    for i in reversed(range(depth)):
        width = widths[i - 1] if i else outputs
        h = deconvolution(F.relu(h), width, 4, f"up{i}", bias=i == 0, init=NormalInitializer(SIGMA))
        if i == 0:
            return F.tanh(h)
        h = _batch_norm(h, f"up{i}", test)
        if dropout and depth - 5 < i < depth - 1:
            h = F.dropout(h, dropout)
        h = F.concatenate(h, skipped.pop(), axis=1)
    return h


def resnet_generator(x: Any, outputs: int = 3, channels: int = 64, blocks: int = 9) -> Any:
    """Two halvings, residual blocks, two doublings, normalised by the image: that of CycleGAN.

    Args:
        x: (B, C, H, W); sizes are multiples of 4.
        channels: At full size.
        blocks: Residual ones; 9 for 256 x 256, 6 for 128 x 128.
    Returns:
        (B, outputs, H, W), in [-1, 1].
    Raises:
        ShapeError: A size is no multiple of 4.
    Source: Zhu et al., Unpaired Image-to-Image Translation, arXiv:1703.10593, appendix 7.2.
    Example:
        >>> with nn.parameter_scope("cyclegan"):
        ...     resnet_generator(nn.Variable((1, 3, 16, 16)), channels=4, blocks=1).shape
        (1, 3, 16, 16)
    """
    if x.shape[2] % 4 or x.shape[3] % 4:
        raise ShapeError(
            f"resnet_generator: x has the shape {x.shape}, wanted sizes in multiples of 4"
        )
    h = F.relu(_normed(_reflected(x, channels, 7, "stem")))
    for i in (1, 2):
        h = F.relu(
            _normed(
                convolution(h, channels * 2**i, 3, f"down{i}", 2, 1, init=NormalInitializer(SIGMA))
            )
        )
    for i in range(blocks):
        y = F.relu(_normed(_reflected(h, h.shape[1], 3, f"block{i}/first")))
        h = h + _normed(_reflected(y, h.shape[1], 3, f"block{i}/second"))
    for i in (1, 0):
        h = deconvolution(
            h, channels * 2**i, 3, f"up{i}", init=NormalInitializer(SIGMA), output_padding=1
        )
        h = F.relu(_normed(h))
    return F.tanh(_reflected(h, outputs, 7, "last"))


def patch_discriminator(
    x: Any, channels: int = 64, layers: int = 3, norm: str = "batch", apply: Any = None
) -> Any:
    """Scores of overlapping patches: 70 x 70 pixels with three layers.

    Args:
        x: (B, C, H, W).
        norm: "batch", or "instance" for CycleGAN.
        apply: Changes the weights before their use, as PF.spectral_norm does.
    Returns:
        (B, 1, h, w).
    Source: As of `pix2pix_generator`, appendix 6.1.2.
    Example:
        >>> with nn.parameter_scope("patches"):
        ...     patch_discriminator(nn.Variable((1, 3, 32, 32)), channels=4, layers=2).shape
        (1, 1, 6, 6)
    """
    h = convolution(x, channels, 4, "first", 2, 1, init=NormalInitializer(SIGMA), apply=apply)
    h = F.leaky_relu(h, 0.2)
    for i in range(1, layers + 1):
        stride = 2 if i < layers else 1
        width, bias = channels * min(2**i, 8), norm == "instance"
        h = convolution(h, width, 4, f"layer{i}", stride, 1, bias, NormalInitializer(SIGMA), apply)
        h = F.leaky_relu(_normed(h) if bias else _batch_norm(h, f"layer{i}"), 0.2)
    return convolution(h, 1, 4, "last", 1, 1, init=NormalInitializer(SIGMA), apply=apply)


def stargan_generator(x: Any, labels: Any, channels: int = 64, blocks: int = 6) -> Any:
    """An image changed to have other attributes.

    Args:
        x: (B, C, H, W) in [-1, 1]; sizes are multiples of 4.
        labels: (B, n), 0 or 1: the attributes that are wanted.
    Returns:
        (B, C, H, W), in [-1, 1].
    Source: Choi et al., StarGAN, arXiv:1711.09020, table 4.
    Example:
        >>> x, labels = nn.Variable((1, 3, 16, 16)), nn.Variable((1, 5))
        >>> with nn.parameter_scope("stargan"):
        ...     stargan_generator(x, labels, channels=4, blocks=1).shape
        (1, 3, 16, 16)
    """
    b, colors, height, width = x.shape
    wanted = F.reshape(labels, (b, labels.shape[1], 1, 1))
    wanted = F.broadcast(wanted, (b, labels.shape[1], height, width))

    def layer(h: Any, kind: Any, width: int, name: str, *settings: int) -> Any:
        return _instance_norm(kind(h, width, *settings[:1], name, *settings[1:], bias=False), name)

    h = F.concatenate(x, wanted, axis=1)
    h = F.relu(layer(h, convolution, channels, "stem", 7))
    for i in (1, 2):
        h = F.relu(layer(h, convolution, channels * 2**i, f"down{i}", 4, 2, 1))
    for i in range(blocks):
        y = F.relu(layer(h, convolution, h.shape[1], f"block{i}/first", 3))
        h = h + layer(y, convolution, h.shape[1], f"block{i}/second", 3)
    for i in (1, 0):
        h = F.relu(layer(h, deconvolution, channels * 2**i, f"up{i}", 4, 2, 1))
    return F.tanh(convolution(h, colors, 7, "last", bias=False))


def stargan_discriminator(
    x: Any, attributes: int, channels: int = 64, layers: int = 6
) -> tuple[Any, Any]:
    """Scores of patches, and of attributes.

    Args:
        x: (B, C, H, H); H is a multiple of 2 to the power of the layers.
    Returns:
        (B, 1, h, h) and (B, attributes), before the sigmoid.
    Raises:
        ShapeError: H is no such multiple, or W another size.
    Source: As of `stargan_generator`, table 5.
    Example:
        >>> with nn.parameter_scope("stargan_discriminator"):
        ...     made = stargan_discriminator(nn.Variable((1, 3, 16, 16)), 5, channels=4, layers=3)
        >>> [v.shape for v in made]
        [(1, 1, 2, 2), (1, 5)]
    """
    if x.shape[2] != x.shape[3] or x.shape[2] % 2**layers:
        raise ShapeError(
            f"stargan_discriminator: x has the shape {x.shape}, wanted squares of a multiple of "
            f"{2**layers}"
        )
    h = x
    for i in range(layers):
        h = F.leaky_relu(convolution(h, channels * 2**i, 4, f"layer{i}", 2, 1), 0.01)
    scores = convolution(h, 1, 3, "patches", bias=False)
    found = convolution(h, attributes, h.shape[2], "attributes", pad=0, bias=False)
    return scores, F.reshape(found, (x.shape[0], attributes))


def _reflected(x: Any, channels: int, kernel: int, name: str) -> Any:
    n = kernel // 2
    return convolution(F.pad(x, (0, 0, 0, 0, n, n, n, n), mode="reflect"), channels, kernel, name,
                       pad=0, init=NormalInitializer(SIGMA))  # fmt: skip


def _normed(x: Any) -> Any:
    return F.instance_normalization(x, None, None)


def _batch_norm(x: Any, name: str, test: bool = False) -> Any:
    with parameter_scope(name):
        return PF.batch_normalization(x, eps=1e-5, batch_stat=not test)


@as_layer
def _instance_norm(x: Any, name: str) -> Any:
    return PF.instance_normalization(x)
