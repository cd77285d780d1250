# SPDX-License-Identifier: Apache-2.0
"""ESRGAN: images of four times the size."""

from __future__ import annotations

from typing import Any

from nnl import functions as F
from nnl.models.generative.layers import convolution, doubled
from nnl.models.stack import as_layer

__all__ = ["rrdb_net"]

SHARE = 0.2  # of what a block adds


def rrdb_net(
    x: Any, channels: int = 64, blocks: int = 23, growth: int = 32, outputs: int = 3
) -> Any:
    """Dense blocks in residual ones, then two doublings of the size.

    Parameters are called as those of RRDBNet in BasicSR and Real-ESRGAN, "conv_first",
    "body/0/rdb1/conv1": `load_weights` reads their files, whose arrays stand below "params_ema" or
    "params".

    Args:
        x: (B, C, H, W), in [0, 1].
        channels, growth: Of the trunk, and of what each layer of a dense block adds.
        blocks: Of three dense blocks each.
    Returns:
        (B, outputs, 4 H, 4 W), not limited.
    Source: Wang et al., ESRGAN, arXiv:1809.00219, section 3.1.
    Example:
        >>> with nn.parameter_scope("rrdb"):
        ...     rrdb_net(nn.Variable((1, 3, 8, 8)), channels=8, blocks=1, growth=4).shape
        (1, 3, 32, 32)
    """
    first = convolution(x, channels, 3, "conv_first")
    h = first
    for i in range(blocks):
        y = h
        for j in (1, 2, 3):
            y = _dense(y, growth, f"body/{i}/rdb{j}")
        h = h + SHARE * y
    h = first + convolution(h, channels, 3, "conv_body")
    for i in (1, 2):
        h = F.leaky_relu(convolution(doubled(h), channels, 3, f"conv_up{i}"), 0.2)
    h = F.leaky_relu(convolution(h, channels, 3, "conv_hr"), 0.2)
    return convolution(h, outputs, 3, "conv_last")


@as_layer
def _dense(x: Any, growth: int, name: str) -> Any:
    parts = [x]
    for i in range(1, 5):
        together = F.concatenate(*parts, axis=1) if i > 1 else x
        parts.append(F.leaky_relu(convolution(together, growth, 3, f"conv{i}"), 0.2))
    return x + SHARE * convolution(F.concatenate(*parts, axis=1), x.shape[1], 3, "conv5")
