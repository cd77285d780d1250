# SPDX-License-Identifier: Apache-2.0
"""Residual networks: ResNet, ResNeXt, SE-ResNet and SE-ResNeXt."""

from __future__ import annotations

from typing import Any

from nnl import functions as F
from nnl import parametric_functions as PF
from nnl.models.convolution import conv_bn, pooled, squeeze_excite

__all__ = ["resnet", "resnext", "se_resnet", "se_resnext"]

# depth -> blocks in each of the four stages, whether a block is a bottleneck
LAYERS = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}
EXPANSION = 4  # outputs of a bottleneck per channel of its stage


def resnet(x: Any, depth: int = 50, num_classes: int = 1000, test: bool = False) -> Any:
    """ResNet, with the stride of a bottleneck in its 3 x 3 convolution ("v1.5").

    Args:
        x: (B, 3, H, W).
        depth: 18, 34, 50, 101 or 152.
        num_classes: Number of scores.
        test: Normalise with the running statistics.
    Returns:
        Scores, (B, num_classes).
    Raises:
        ValueError: There is no such depth.
    Source: He et al., Deep Residual Learning for Image Recognition, arXiv:1512.03385, table 1.
    Example:
        >>> x = nn.Variable((1, 3, 64, 64))
        >>> with nn.parameter_scope("resnet"):
        ...     models.resnet(x, depth=18, num_classes=10).shape
        (1, 10)
    """
    return _network("resnet", x, depth, num_classes, test)


def resnext(
    x: Any,
    depth: int = 50,
    group: int = 32,
    width: int = 4,
    num_classes: int = 1000,
    test: bool = False,
) -> Any:
    """ResNet whose 3 x 3 convolutions work on groups of channels; the default is 50, 32 x 4d.

    Args:
        depth: 50, 101 or 152.
        group: Number of groups.
        width: Channels of each group in the first stage.

    The other arguments, results and errors are those of `resnet`.

    Source: Xie et al., Aggregated Residual Transformations for Deep Neural Networks,
        arXiv:1611.05431, table 1.
    Example:
        >>> x = nn.Variable((1, 3, 64, 64))
        >>> with nn.parameter_scope("resnext"):
        ...     models.resnext(x, num_classes=10).shape
        (1, 10)
    """
    return _grouped("resnext", x, depth, group, width, num_classes, test)


def se_resnet(x: Any, depth: int = 50, num_classes: int = 1000, test: bool = False) -> Any:
    """ResNet with a squeeze-and-excitation layer, of reduction 16, in every block.

    The arguments, results and errors are those of `resnet`.

    Source: Hu et al., Squeeze-and-Excitation Networks, arXiv:1709.01507, table 1.
    Example:
        >>> x = nn.Variable((1, 3, 64, 64))
        >>> with nn.parameter_scope("se_resnet"):
        ...     models.se_resnet(x, depth=18, num_classes=10).shape
        (1, 10)
    """
    return _network("se_resnet", x, depth, num_classes, test, excite=True)


def se_resnext(
    x: Any,
    depth: int = 50,
    group: int = 32,
    width: int = 4,
    num_classes: int = 1000,
    test: bool = False,
) -> Any:
    """ResNeXt with a squeeze-and-excitation layer, of reduction 16, in every block.

    The arguments, results and errors are those of `resnext`.

    Source: Hu et al., Squeeze-and-Excitation Networks, arXiv:1709.01507, table 1.
    Example:
        >>> x = nn.Variable((1, 3, 64, 64))
        >>> with nn.parameter_scope("se_resnext"):
        ...     models.se_resnext(x, num_classes=10).shape
        (1, 10)
    """
    return _grouped("se_resnext", x, depth, group, width, num_classes, test, excite=True)


def _grouped(
    function: str,
    x: Any,
    depth: int,
    group: int,
    width: int,
    num_classes: int,
    test: bool,
    excite: bool = False,
) -> Any:
    if depth in LAYERS and not LAYERS[depth][1]:
        raise ValueError(f"{function}: depth is {depth}, wanted one of 50, 101, 152")
    return _network(function, x, depth, num_classes, test, group, width, excite)


def _network(
    function: str,
    x: Any,
    depth: int,
    num_classes: int,
    test: bool,
    group: int = 1,
    width: int = 64,
    excite: bool = False,
) -> Any:
    if depth not in LAYERS:
        raise ValueError(f"{function}: depth is {depth}, wanted one of {sorted(LAYERS)}")
    blocks, bottleneck = LAYERS[depth]
    h = conv_bn(x, 64, 7, "stem", test, stride=2)
    h = F.max_pooling(h, (3, 3), stride=(2, 2), pad=(1, 1))
    for stage, n in enumerate(blocks, 1):
        for i in range(n):
            stride = 2 if i == 0 and stage > 1 else 1
            name = f"stage{stage}/block{i + 1}"
            inner = group * width * 2 ** (stage - 1)
            outer = 64 * 2 ** (stage - 1) * (EXPANSION if bottleneck else 1)
            h = _block(h, inner, outer, name, test, stride, group, bottleneck, excite)
    return PF.affine(pooled(h), num_classes, name="classifier")


def _block(
    x: Any,
    inner: int,
    outer: int,
    name: str,
    test: bool,
    stride: int,
    group: int,
    bottleneck: bool,
    excite: bool,
) -> Any:
    """relu(shortcut(x) + convolutions(x))."""
    if bottleneck:
        h = conv_bn(x, inner, 1, f"{name}/conv1", test)
        h = conv_bn(h, inner, 3, f"{name}/conv2", test, stride, group)
        h = conv_bn(h, outer, 1, f"{name}/conv3", test, activation=None)
    else:
        h = conv_bn(x, inner, 3, f"{name}/conv1", test, stride)
        h = conv_bn(h, outer, 3, f"{name}/conv2", test, activation=None)
    if excite:
        h = squeeze_excite(h, outer // 16, f"{name}/se", F.relu, F.sigmoid)
    if stride != 1 or x.shape[1] != outer:
        x = conv_bn(x, outer, 1, f"{name}/shortcut", test, stride, activation=None)
    return F.relu(h + x)
