# SPDX-License-Identifier: Apache-2.0
"""Weights of torchvision and timm for the networks for ImageNet."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnl.converters.weights import read_weights
from nnl.core.arrays.spec import ShapeError
from nnl.core.parameters.parameter import get_parameters

__all__ = ["load_torch_weights"]

BATCH_NORM = {"gamma": "weight", "beta": "bias", "mean": "running_mean", "var": "running_var"}
# What the batch normalisations of MobileNetV3 add to the variance: the paper's, and timm's.
EPS, EPS_OF_TIMM = 1e-3, 1e-5

# Layers of the networks that `build` makes; what else is in the scope stays as it is.
LAYER = re.compile(r"(stem|stage\d|block\d+|last|affine|classifier)/")

Names = dict[str, str]  # layer here, "stem/conv" -> module there, "features.0.0"
Array = np.ndarray[Any, Any]


def load_torch_weights(
    weights: str | os.PathLike[str] | Mapping[str, Any], classifier: bool = True
) -> None:
    """Give a network that `build` has made the weights of the same one in torchvision or timm.

    The network is that of the current parameter scope. Nothing in a file is executed.

    Args:
        weights: A state_dict, or a file that holds one: .pth, .pt, .safetensors or .npz.
        classifier: Load the last layer, too; without it the network can have other classes.
    Raises:
        ValueError: There is no network, or the names are not those of this one.
        ShapeError: An array has another shape. Nothing is changed then.

    The networks that timm calls tf_... pad otherwise: they have the same names, not the same
    scores.

    Example:
        >>> x = nn.Variable((1, 3, 64, 64))
        >>> with nn.parameter_scope("given"):
        ...     y = models.build("resnet18", x)
        ...     weights = {"fc.bias": np.ones(1000, np.float32)}
        ...     try:
        ...         models.load_torch_weights(weights)
        ...     except ValueError as error:
        ...         print("refused: weights are missing")
        refused: weights are missing
    """
    where = "load_torch_weights"
    ours: dict[str, dict[str, Any]] = {}  # layer -> its parameters
    for path, v in get_parameters(grad_only=False).items():
        layer, _, leaf = path.rpartition("/")
        if LAYER.match(layer):
            ours.setdefault(layer, {})[leaf] = v
    if "stem/conv" not in ours:
        raise ValueError(f"{where}: there is no network of nnl.models.build in this scope")
    theirs = dict(weights) if isinstance(weights, Mapping) else read_weights(weights)
    naming, prefix = _naming(theirs, where)
    theirs = {k.removeprefix(prefix): v for k, v in theirs.items() if k.startswith(prefix)}
    names = naming(list(ours), list(theirs))
    values, used = [], set()
    for layer, parameters in ours.items():
        for leaf, v in parameters.items():
            last = BATCH_NORM.get(leaf) or {"W": "weight", "b": "bias"}[leaf]
            name = f"{names.get(layer, layer)}.{last}"
            used.add(name)
            if layer.startswith("classifier") and not classifier:
                continue
            if name not in theirs:
                raise ValueError(f"{where}: there is no {name!r}, for {layer}/{leaf}")
            values.append((v, _value(theirs[name], layer, leaf, v.shape, f"{where}: {name!r}")))
    rest = [k for k in theirs if k not in used and not k.endswith("num_batches_tracked")]
    if rest:
        raise ValueError(f"{where}: there is no place for {rest[0]!r} in this network")
    for v, value in values:
        v.d = value
    if naming is _timm and "affine/affine" in ours:
        _as_if_added(EPS_OF_TIMM, EPS, ours)


def _naming(theirs: Mapping[str, Any], where: str) -> tuple[Callable[..., Names], str]:
    """Who has named the layers, and what all names begin with ("module.", "state_dict.")."""
    firsts = {"conv1": _resnet, "features.0.0": _torchvision, "conv_stem": _timm}
    found = [
        (len(k), k.removesuffix(f"{first}.weight"), naming)
        for k in theirs
        for first, naming in firsts.items()
        if re.fullmatch(rf"([a-z_]+\.)*{re.escape(first)}\.weight", k)
    ]
    if not found:
        raise ValueError(
            f"{where}: neither torchvision nor timm names the first layer as it is here: none of "
            f"{', '.join(f + '.weight' for f in firsts)} is among the {len(theirs)} names"
        )
    _, prefix, naming = min(found, key=lambda entry: entry[0])
    return naming, prefix


def _value(given: Any, layer: str, leaf: str, shape: tuple[int, ...], where: str) -> Array:
    if hasattr(given, "detach"):  # a tensor, bfloat16 perhaps
        given = given.detach().cpu().float().numpy()
    value: Array = np.asarray(given)
    if layer.endswith("/affine") and leaf == "W":
        if value.shape[2:] == (1, 1):  # a convolution of one pixel
            value = value[:, :, 0, 0]
        value = value.T
    wanted = (shape[1],) if leaf in BATCH_NORM else shape
    if value.shape != wanted:
        raise ShapeError(f"{where} has the shape {value.shape}, wanted {wanted} for {layer}/{leaf}")
    return value.reshape(shape)


def _resnet(layers: list[str], theirs: list[str]) -> Names:
    """torchvision and timm agree."""
    names = {"stem/conv": "conv1", "stem/bn": "bn1", "classifier/affine": "fc"}
    inside = {
        "se/squeeze/conv": "se.fc1",
        "se/excite/conv": "se.fc2",
        "shortcut/conv": "downsample.0",
        "shortcut/bn": "downsample.1",
        **{f"conv{i}/conv": f"conv{i}" for i in (1, 2, 3)},
        **{f"conv{i}/bn": f"bn{i}" for i in (1, 2, 3)},
    }
    for layer in layers:
        if found := re.fullmatch(r"stage(\d)/block(\d+)/(.+)", layer):
            stage, block, part = found.groups()
            names[layer] = f"layer{stage}.{int(block) - 1}.{inside[part]}"
    return names


def _blocks(layers: list[str]) -> dict[str, list[str]]:
    """The parts of every block, in the order in which they were made: block -> [expand, ...]."""
    blocks: dict[str, list[str]] = {}
    for layer in layers:
        if found := re.fullmatch(r"((?:stage\d/)?block\d+)/(\w+)/.+", layer):
            parts = blocks.setdefault(found[1], [])
            if found[2] not in parts:
                parts.append(found[2])
    return blocks


def _torchvision(layers: list[str], theirs: list[str]) -> Names:
    """Numbers everything: features.4.block.1.0 is a convolution and 1.1 what normalises it."""
    blocks = _blocks(layers)
    last = max(int(found[1]) for k in theirs if (found := re.match(r"features\.(\d+)\.", k)))
    heads = sorted({k.rpartition(".")[0] for k in theirs if k.startswith("classifier.")})
    ours = [layer for layer in ("affine/affine", "classifier/affine") if layer in layers]
    names = dict(zip(ours, heads, strict=False))
    for layer, i in (("stem", 0), ("last", last)):
        names |= {f"{layer}/conv": f"features.{i}.0", f"{layer}/bn": f"features.{i}.1"}
    for block, parts in blocks.items():
        at = ".".join(str(int(n) - j) for j, n in enumerate(re.findall(r"\d+", block)))
        for i, part in enumerate(parts):
            there, here = f"features.{at}.block.{i}", f"{block}/{part}"
            names |= {f"{here}/conv": f"{there}.0", f"{here}/bn": f"{there}.1"}
            names |= {f"{here}/squeeze/conv": f"{there}.fc1", f"{here}/excite/conv": f"{there}.fc2"}
    return names


def _timm(layers: list[str], theirs: list[str]) -> Names:
    """Names parts by what they do, numbers the normalisations, and stages by their strides."""
    names = {"stem/conv": "conv_stem", "stem/bn": "bn1", "classifier/affine": "classifier"}
    places = {found[0] for k in theirs if (found := re.match(r"blocks\.\d+\.\d+", k))}
    order = sorted(places, key=lambda place: [int(i) for i in place.split(".")[1:]])
    if "affine/affine" in layers:  # MobileNetV3, whose last convolution is a stage of its own
        last = order.pop() if order else "blocks"
        names |= {"last/conv": f"{last}.conv", "last/bn": f"{last}.bn1"}
        names["affine/affine"] = "conv_head"
    else:
        names |= {"last/conv": "conv_head", "last/bn": "bn2"}
    for (block, parts), there in zip(_blocks(layers).items(), order, strict=False):
        number = 0
        for part in parts:
            here = f"{block}/{part}"
            if part == "se":
                names[f"{here}/squeeze/conv"] = f"{there}.se.conv_reduce"
                names[f"{here}/excite/conv"] = f"{there}.se.conv_expand"
                continue
            number += 1
            pointwise = "conv_pwl" if "expand" in parts else "conv_pw"
            what = {"expand": "conv_pw", "depthwise": "conv_dw", "project": pointwise}[part]
            names |= {f"{here}/conv": f"{there}.{what}", f"{here}/bn": f"{there}.bn{number}"}
    return names


def _as_if_added(theirs: float, ours: float, layers: Mapping[str, Mapping[str, Any]]) -> None:
    """Let normalisations that add `ours` to the variance give what those with `theirs` give."""
    for parameters in layers.values():
        if "var" in parameters:
            var = parameters["var"].d.astype(np.float64)
            gamma = parameters["gamma"]
            gamma.d = gamma.d * np.sqrt((var + ours) / (var + theirs))
