# SPDX-License-Identifier: Apache-2.0
"""The networks for ImageNet by the names of the literature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from nnl.models.efficientnet import efficientnet
from nnl.models.mobilenet_v3 import mobilenet_v3
from nnl.models.resnet import resnet, resnext, se_resnet, se_resnext

__all__ = ["NETWORKS", "build"]


@dataclass(frozen=True)
class Network:
    """A network that `build` knows.

    Attributes:
        make: Function of images, taking num_classes, test and its own options.
        size: Height and width of the images that it was published with.
    """

    make: Callable[..., Any]
    size: int = 224


NETWORKS = {
    "resnet18": Network(partial(resnet, depth=18)),
    "resnet34": Network(partial(resnet, depth=34)),
    "resnet50": Network(partial(resnet, depth=50)),
    "resnet101": Network(partial(resnet, depth=101)),
    "resnet152": Network(partial(resnet, depth=152)),
    "resnext50": Network(partial(resnext, depth=50)),
    "se_resnet50": Network(partial(se_resnet, depth=50)),
    "se_resnext50": Network(partial(se_resnext, depth=50)),
    "mobilenet_v3_small": Network(partial(mobilenet_v3, size="small")),
    "mobilenet_v3_large": Network(partial(mobilenet_v3, size="large")),
    "efficientnet_b0": Network(partial(efficientnet, variant=0)),
    "efficientnet_b1": Network(partial(efficientnet, variant=1), 240),
    "efficientnet_b2": Network(partial(efficientnet, variant=2), 260),
    "efficientnet_b3": Network(partial(efficientnet, variant=3), 300),
}


def build(name: str, x: Any, num_classes: int = 1000, test: bool = False, **options: Any) -> Any:
    """A network by its name; `nnl models` lists them.

    Args:
        name: "resnet50", "mobilenet_v3_small", ...: a key of NETWORKS.
        x: (B, 3, H, W).
        num_classes: Number of scores.
        test: Normalise with the running statistics, without dropout.
        options: What else its function takes, `dropout` for example.
    Returns:
        Scores, (B, num_classes).
    Raises:
        ValueError: There is no such network.
    Example:
        >>> x = nn.Variable((1, 3, 64, 64))
        >>> with nn.parameter_scope("build"):
        ...     models.build("mobilenet_v3_small", x, num_classes=10).shape
        (1, 10)
    """
    if name not in NETWORKS:
        raise ValueError(f"build: name is {name!r}, wanted one of {', '.join(NETWORKS)}")
    return NETWORKS[name].make(x, num_classes=num_classes, test=test, **options)
