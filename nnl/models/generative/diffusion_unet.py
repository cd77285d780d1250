# SPDX-License-Identifier: Apache-2.0
"""The U-Net of diffusion models, with attention to itself or to a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnl import functions as F
from nnl.core.arrays.spec import ShapeError
from nnl.models.generative.blocks import as_map, as_rows, downsampled, residual, upsampled
from nnl.models.generative.blocks import self_attention as attend
from nnl.models.generative.layers import (
    attention,
    convolution,
    embedding,
    group_norm,
    layer_norm,
    linear,
    silu,
    sinusoids,
)
from nnl.models.stack import as_layer, exact_gelu

__all__ = ["DiffusionUNet", "diffusion_unet"]


@dataclass(frozen=True)
class DiffusionUNet:
    """Sizes and kinds of a `diffusion_unet`.

    Attributes:
        channels: Of each level; each further level has half the height and width.
        attention: Of each level: "" for none, "self", or "cross" to a context as well.
        middle: The same, of what stands between the halves.
        blocks: Residual blocks of a level.
        heads: Of attention, one number for each level.
        inputs, outputs: Channels of images and of the result.
        classes: Number of classes, one of them perhaps for none; 0: there are none.
        context: Width of a context; 0: there is none.
        groups, eps: Of group normalisation.
        cosine_first, shift: Of the vectors of times, see Ho et al., and diffusers.
        asymmetric: Halving pads below and at the right alone.
        projected: Rows are projected as matrices, and not as maps; that changes shapes alone.
        dropout: Share of what a residual block drops.
    Example:
        >>> DiffusionUNet((32, 64), ("", "self"), heads=(1, 2)).channels
        (32, 64)
    """

    channels: tuple[int, ...] = (128, 256, 256, 256)
    attention: tuple[str, ...] = ("", "self", "", "")
    middle: str = "self"
    blocks: int = 2
    heads: tuple[int, ...] = (1, 1, 1, 1)
    inputs: int = 3
    outputs: int = 3
    classes: int = 0
    context: int = 0
    groups: int = 32
    eps: float = 1e-6
    cosine_first: bool = False
    shift: float = 1.0
    asymmetric: bool = True
    projected: bool = False
    dropout: float = 0.0


def diffusion_unet(
    x: Any, t: Any, config: DiffusionUNet, labels: Any = None, context: Any = None
) -> Any:
    """What a diffusion model predicts of a noisy image: its noise, a velocity, or the image.

    Parameters are called as those of diffusers' UNet2DModel and UNet2DConditionModel.

    Args:
        x: (B, inputs, H, W); H and W are multiples of 2 to the power of the levels less one.
        t: (B,), times.
        labels: (B,) integers below `config.classes`, where there are classes.
        context: (B, S, context), where there is attention to one.
    Returns:
        (B, outputs, H, W).
    Raises:
        ShapeError: x, labels or context do not fit the config.
    Source: Ho et al., arXiv:2006.11239, appendix B; Rombach et al., arXiv:2112.10752, section 3.3.
    Example:
        >>> config = DiffusionUNet((8, 16), ("", "self"), heads=(1, 2), groups=4)
        >>> x, t = nn.Variable((2, 3, 16, 16)), nn.Variable((2,))
        >>> with nn.parameter_scope("diffusion_unet"):
        ...     diffusion_unet(x, t, config).shape
        (2, 3, 16, 16)
    """
    c = config
    multiple = 2 ** (len(c.channels) - 1)
    if x.ndim != 4 or x.shape[1] != c.inputs or x.shape[2] % multiple or x.shape[3] % multiple:
        raise ShapeError(
            f"diffusion_unet: x has the shape {x.shape}, wanted {c.inputs} channels, and height "
            f"and width in multiples of {multiple}"
        )
    if (labels is None) != (not c.classes) or (context is None) != (not c.context):
        raise ShapeError(
            f"diffusion_unet: the config has {c.classes} classes and a context of {c.context}; "
            f"labels: {labels is not None}, context: {context is not None}"
        )
    time = linear(
        sinusoids(t, c.channels[0], c.cosine_first, c.shift),
        4 * c.channels[0],
        "time_embedding/linear_1",
    )
    time = linear(silu(time), 4 * c.channels[0], "time_embedding/linear_2")
    if c.classes:
        time = time + embedding(labels, c.classes, 4 * c.channels[0], "class_embedding")

    def block(h: Any, level: int, at: str, j: int, kind: str) -> Any:
        h = residual(h, c.channels[level], f"{at}/resnets/{j}", c.groups, c.eps, time, c.dropout)
        return attended(h, level, f"{at}/attentions/{j}", kind)

    def attended(h: Any, level: int, name: str, kind: str) -> Any:
        if kind == "self":
            return attend(h, c.heads[level], name, c.groups, c.eps)
        return h if not kind else _transformer(h, context, c.heads[level], name, c)

    h = convolution(x, c.channels[0], 3, "conv_in")
    skipped, last = [h], len(c.channels) - 1
    for i, kind in enumerate(c.attention):
        for j in range(c.blocks):
            h = block(h, i, f"down_blocks/{i}", j, kind)
            skipped.append(h)
        if i < last:
            h = downsampled(h, f"down_blocks/{i}/downsamplers/0", c.asymmetric)
            skipped.append(h)
    h = residual(h, c.channels[-1], "mid_block/resnets/0", c.groups, c.eps, time, c.dropout)
    h = attended(h, last, "mid_block/attentions/0", c.middle)
    h = residual(h, c.channels[-1], "mid_block/resnets/1", c.groups, c.eps, time, c.dropout)
    for i, kind in enumerate(reversed(c.attention)):
        for j in range(c.blocks + 1):
            h = block(F.concatenate(h, skipped.pop(), axis=1), last - i, f"up_blocks/{i}", j, kind)
        if i < last:
            h = upsampled(h, f"up_blocks/{i}/upsamplers/0")
    h = silu(group_norm(h, c.groups, "conv_norm_out", c.eps))
    return convolution(h, c.outputs, 3, "conv_out")


@as_layer
def _transformer(x: Any, context: Any, heads: int, name: str, c: DiffusionUNet) -> Any:
    """Attention to itself and to the context, and a layer of each row, beside a shortcut."""
    width = x.shape[1]
    h = group_norm(x, c.groups, "norm", 1e-6)
    if c.projected:
        h = linear(as_rows(h), width, "proj_in")
    else:
        h = as_rows(convolution(h, width, 1, "proj_in"))
    at = "transformer_blocks/0"
    h = h + attention(layer_norm(h, f"{at}/norm1"), heads, f"{at}/attn1", bias=False)
    h = h + attention(layer_norm(h, f"{at}/norm2"), heads, f"{at}/attn2", context, bias=False)
    up = linear(layer_norm(h, f"{at}/norm3"), 8 * width, f"{at}/ff/net/0/proj")
    value, gate = up[..., : 4 * width], up[..., 4 * width :]
    h = h + linear(value * exact_gelu(gate), width, f"{at}/ff/net/2")
    if c.projected:
        return x + as_map(linear(h, width, "proj_out"), x.shape)
    return x + convolution(as_map(h, x.shape), width, 1, "proj_out")
