# SPDX-License-Identifier: Apache-2.0
"""Folders of diffusers: a network's config.json beside its weights."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nnl.converters.weights.folder import read_file, read_json
from nnl.core.arrays.spec import ShapeError
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.switches import auto_forward
from nnl.core.parameters.parameter import (
    get_parameters,
    parameter_scope,
    set_parameter,
    without_values,
)
from nnl.models.generative.autoencoder import Autoencoder, decode, encode, quantize_vectors
from nnl.models.generative.diffusion_unet import DiffusionUNet, diffusion_unet

__all__ = ["from_diffusers"]

CONFIG = "config.json"
WEIGHTS = ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.bin")
# Names of attention in older files; diffusers 0.13 renamed them.
OLDER = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
KINDS = {"DownBlock2D": "", "AttnDownBlock2D": "self", "CrossAttnDownBlock2D": "cross"}
# What a setting must be, where it is there: other values mean another network.
WANTED = {
    "act_fn": ("silu", "swish"),
    "add_attention": (True,),
    "addition_embed_type": (None,),
    "center_input_sample": (False,),
    "class_embed_type": (None,),
    "conv_in_kernel": (3,),
    "conv_out_kernel": (3,),
    "dual_cross_attention": (False,),
    "downsample_type": ("conv",),
    "encoder_hid_dim": (None,),
    "mid_block_scale_factor": (1,),
    "only_cross_attention": (False,),
    "resnet_time_scale_shift": ("default",),
    "time_embedding_type": ("positional",),
    "transformer_layers_per_block": (1,),
    "upsample_type": ("conv",),
    "use_post_quant_conv": (True,),
    "use_quant_conv": (True,),
}


def from_diffusers(folder: str | os.PathLike[str]) -> DiffusionUNet | Autoencoder:
    """Read a network that diffusers has written into the parameters of the current scope.

    Args:
        folder: With config.json and diffusion_pytorch_model.safetensors (or .bin, of which nothing
            is executed): of a UNet2DModel, UNet2DConditionModel, AutoencoderKL or VQModel.
    Returns:
        What `diffusion_unet`, or `encode` and `decode`, take as their config.
    Raises:
        ValueError: A file is missing or damaged, the class or a setting is another one, or weights
            are missing or too many. Nothing is changed then.
        ShapeError: A weight has another shape than the config says.
    Example:
        >>> try:
        ...     from_diffusers("nowhere")
        ... except ValueError as error:
        ...     print(error)
        from_diffusers: there is no nowhere/config.json
    """
    root, where = Path(folder), "from_diffusers"
    given = read_json(root / CONFIG, where)
    kind = given.get("_class_name")
    readers = {
        "UNet2DModel": _unet,
        "UNet2DConditionModel": _unet,
        "AutoencoderKL": _autoencoder,
        "VQModel": _autoencoder,
    }
    if kind not in readers:
        raise ValueError(
            f"{where}: {root / CONFIG} is of a {kind!r}, wanted one of {', '.join(readers)}"
        )
    for name, values in WANTED.items():
        value = given.get(name, values[0])
        if value not in values and value != [1] * len(given.get("block_out_channels", [])):
            raise ValueError(f"{where}: {root / CONFIG} has {name} {value!r}, wanted {values[0]!r}")
    try:
        config = readers[kind](given, kind)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{where}: {root / CONFIG} has no usable {error}") from error
    files = [root / name for name in WEIGHTS if (root / name).is_file()]
    if not files:
        raise ValueError(f"{where}: there is no {root / WEIGHTS[0]}")
    _load(config, read_file(files[0], where), f"{where}: {files[0]}")
    return config


def _load(config: DiffusionUNet | Autoencoder, arrays: Mapping[str, Any], where: str) -> None:
    """Set the parameters of the current scope, all or none."""
    # a network of its own, to know names and shapes
    with parameter_scope("", OrderedDict()), without_values(), auto_forward(False):
        try:
            _build(config)
        except (TypeError, ShapeError) as error:
            raise ValueError(f"{where}: its config.json is of no network: {error}") from error
        wanted = {k: v.shape for k, v in get_parameters(grad_only=False).items()}
    found = {}
    for name, array in arrays.items():
        parts = name.split(".")
        last = OLDER.get(parts[-2], parts[-2]) if len(parts) > 1 else ""
        path = "/".join([*parts[:-2], *last.split("."), parts[-1]])
        value = np.asarray(array, np.float32)
        if path in wanted and re.search("/to_[qkvo]", path) and value.ndim == 4:
            value = value[:, :, 0, 0]  # older files have convolutions of one pixel
        if path not in wanted:
            raise ValueError(f"{where} has {name!r}, for which the network has no place")
        if value.shape != wanted[path]:
            raise ShapeError(
                f"{where} has {name!r} of the shape {value.shape}, wanted {wanted[path]}"
            )
        found[path] = value
    missing = [path for path in wanted if path not in found]
    if missing:
        raise ValueError(f"{where} has no {missing[0].replace('/', '.')!r}")
    for path, value in found.items():
        set_parameter(path, Variable.from_numpy_array(value, need_grad=True))


def _build(c: DiffusionUNet | Autoencoder) -> None:
    size = 2 ** (len(c.channels) - 1)
    if isinstance(c, Autoencoder):
        made = encode(Variable((1, c.colors, size, size)), c)
        if c.codes:
            quantize_vectors(made, c)
        decode(Variable((1, c.latent, 1, 1)), c)
        return
    labels = Variable((1,)) if c.classes else None
    context = Variable((1, 1, c.context)) if c.context else None
    diffusion_unet(Variable((1, c.inputs, size, size)), Variable((1,)), c, labels, context)


def _kinds(given: Mapping[str, Any]) -> tuple[str, ...]:
    kinds = tuple(KINDS[k] for k in given["down_block_types"])
    mirrored = [k.replace("Down", "Up") for k in reversed(given["down_block_types"])]
    if list(given["up_block_types"]) != mirrored or len(kinds) != len(given["block_out_channels"]):
        raise KeyError(f"up_block_types {given['up_block_types']}, or block_out_channels")
    return kinds


def _unet(given: Mapping[str, Any], kind: str) -> DiffusionUNet:
    channels = tuple(given["block_out_channels"])
    text = kind == "UNet2DConditionModel"
    width = given.get("num_attention_heads") or given.get("attention_head_dim", 8)
    each = list(width) if isinstance(width, list | tuple) else [width] * len(channels)
    # UNet2DConditionModel's "attention_head_dim" is a number of heads
    heads = [n if text else 1 if n is None else c // n for n, c in zip(each, channels, strict=True)]
    return DiffusionUNet(
        channels,
        _kinds(given),
        "cross" if text else "self",
        given.get("layers_per_block", 2),
        tuple(heads),
        given["in_channels"],
        given["out_channels"],
        given.get("num_class_embeds") or 0,
        given["cross_attention_dim"] if text else 0,
        given.get("norm_num_groups", 32),
        given.get("norm_eps", 1e-5),
        given.get("flip_sin_to_cos", True),
        given.get("freq_shift", 0),
        given.get("downsample_padding", 1) == 0,
        given.get("use_linear_projection", False),
        given.get("dropout", 0.0),
    )


def _autoencoder(given: Mapping[str, Any], kind: str) -> Autoencoder:
    if {*given["down_block_types"], *given["up_block_types"]} != {
        "DownEncoderBlock2D",
        "UpDecoderBlock2D",
    }:
        raise KeyError(f"down_block_types {given['down_block_types']}")
    if given.get("vq_embed_dim") not in (None, given["latent_channels"]):
        raise KeyError(f"vq_embed_dim {given['vq_embed_dim']}")
    return Autoencoder(
        tuple(given["block_out_channels"]),
        given.get("layers_per_block", 1),
        given["latent_channels"],
        given["in_channels"],
        given.get("num_vq_embeddings", 256) if kind == "VQModel" else 0,
        given.get("norm_num_groups", 32),
        given.get("mid_block_add_attention", True),
    )
