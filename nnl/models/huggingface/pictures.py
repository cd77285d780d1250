# SPDX-License-Identifier: Apache-2.0
"""Families that see pictures, alone or beside texts."""

from __future__ import annotations

from typing import Any

from nnl.core.graph.variable import Variable
from nnl.models.huggingface.decoders import CURVES
from nnl.models.huggingface.family import Config, Family
from nnl.models.stack import Layer, Stack
from nnl.models.vision import Pair, Vision, pair_scores, pair_vectors, vision

VIT = {
    "first": "vit.embeddings.cls_token",
    "positions/W": "vit.embeddings.position_embeddings",
    "patches": "vit.embeddings.patch_embeddings.projection",
    "layer{i}/attention/norm": "vit.encoder.layer.{i}.layernorm_before",
    "layer{i}/attention/q": "vit.encoder.layer.{i}.attention.attention.query",
    "layer{i}/attention/k": "vit.encoder.layer.{i}.attention.attention.key",
    "layer{i}/attention/v": "vit.encoder.layer.{i}.attention.attention.value",
    "layer{i}/attention/out": "vit.encoder.layer.{i}.attention.output.dense",
    "layer{i}/feed_forward/norm": "vit.encoder.layer.{i}.layernorm_after",
    "layer{i}/up": "vit.encoder.layer.{i}.intermediate.dense",
    "layer{i}/down": "vit.encoder.layer.{i}.output.dense",
    "out": "vit.layernorm",
    "summary": "vit.pooler.dense",
    "classes": "classifier",
}
LAYERS = {
    "layer{i}/attention/norm": "encoder.layers.{i}.layer_norm1",
    "layer{i}/attention/q": "encoder.layers.{i}.self_attn.q_proj",
    "layer{i}/attention/k": "encoder.layers.{i}.self_attn.k_proj",
    "layer{i}/attention/v": "encoder.layers.{i}.self_attn.v_proj",
    "layer{i}/attention/out": "encoder.layers.{i}.self_attn.out_proj",
    "layer{i}/feed_forward/norm": "encoder.layers.{i}.layer_norm2",
    "layer{i}/up": "encoder.layers.{i}.mlp.fc1",
    "layer{i}/down": "encoder.layers.{i}.mlp.fc2",
}
IMAGE = LAYERS | {
    "first": "embeddings.class_embedding",
    "positions": "embeddings.position_embedding",
    "patches": "embeddings.patch_embedding",
    "before": "pre_layrnorm",
    "out": "post_layernorm",
    "probe": "head.probe",
    "pool/qkv/W": "head.attention.in_proj_weight",
    "pool/qkv/b": "head.attention.in_proj_bias",
    "pool/out": "head.attention.out_proj",
    "pool/norm": "head.layernorm",
    "pool/up": "head.mlp.fc1",
    "pool/down": "head.mlp.fc2",
}
TEXT = LAYERS | {
    "tokens": "embeddings.token_embedding",
    "positions": "embeddings.position_embedding",
    "out": "final_layer_norm",
}
PAIR = {
    **{f"image/{k}": f"vision_model.{v}" for k, v in IMAGE.items()},
    **{f"text/{k}": f"text_model.{v}" for k, v in TEXT.items()},
    "scale": "logit_scale",
    "shift": "logit_bias",
}
CLIP = PAIR | {"image/vector": "visual_projection", "text/vector": "text_projection"}
SIGLIP = PAIR | {"text/vector": "text_model.head"}


def _stack(c: Config, eps: float, activation: str, **more: Any) -> Stack:
    return Stack(
        c.whole("hidden_size", 768),
        c.whole("num_attention_heads", 12),
        c.whole("intermediate_size", 3072),
        (Layer(),) * c.whole("num_hidden_layers", 12),
        eps=c.number("layer_norm_eps", eps),
        activation=c.one_of("hidden_act", CURVES, activation),
        **more,
    )


def _vision(c: Config, layers: Stack, size: int, patch: int, **more: Any) -> Vision:
    found = c.whole("image_size", size), c.whole("patch_size", patch), c.whole("num_channels", 3)
    return Vision(*found, layers, **more)


def vit(c: Config) -> Vision:
    layers = _stack(c, 1e-12, "gelu")
    if not c.flag("qkv_bias", True):
        raise ValueError(f"{c.where}: qkv_bias is False, only True is supported")
    heads = "classes" if "Classification" in str(c.get("architectures", [])) else "summary"
    classes = len(c.get("id2label", {})) or c.whole("num_labels", 2)
    return _vision(c, layers, 224, 16, heads=(heads,), classes=classes)


def clip(c: Config) -> Pair:
    image, text = c.part("vision_config"), c.part("text_config")
    seen = _stack(image, 1e-5, "quick_gelu")
    end = text.whole("eos_token_id", 49407, 0)
    return Pair(
        _vision(image, seen, 224, 32, bias=False, normed=True, flat=True),
        _stack(Config({"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048,
                       **text.data}, text.where), 1e-5, "quick_gelu", causal=True),
        text.whole("vocab_size", 49408),
        text.whole("max_position_embeddings", 77),
        c.whole("projection_dim", 512),
        end=-1 if end == 2 else end,  # in older files 2 means the largest token
    )  # fmt: skip


def siglip(c: Config) -> Pair:
    image, text = c.part("vision_config"), c.part("text_config")
    seen, read = (_stack(part, 1e-6, "gelu_pytorch_tanh") for part in (image, text))
    return Pair(
        _vision(image, seen, 224, 16, first=False, pool="attention", flat=True),
        read,
        text.whole("vocab_size", 32000),
        text.whole("max_position_embeddings", 64),
        text.whole("projection_size", read.width),
        projected=False,
        text_bias=True,
        shifted=True,
    )


def see(config: Vision, images: Any, head: str = "") -> Any:
    return vision(images, config, head)


def compare(config: Pair, images: Any = None, tokens: Any = None) -> Any:
    """Scores of pictures and texts, or the vectors of what is given alone."""
    if images is not None and tokens is not None:
        return pair_scores(config, images, tokens)
    x, y = pair_vectors(config, images, tokens)
    return y if x is None else x


def _one(c: Vision) -> Any:
    return Variable((1, c.channels, c.size, c.size))


def build_vit(config: Vision) -> Any:
    return [vision(_one(config), config, head) for head in ("", *config.heads)]


def build_pair(config: Pair) -> Any:
    return pair_scores(config, _one(config.image), Variable((1, 1)))


NUMBERS = r"position_ids$"
FAMILIES = {
    "vit": Family(
        "images",
        vit,
        see,
        build_vit,
        VIT,
        prefix="vit.",
        heads={"summary": r"pooler\.", "classes": "^classifier"},
    ),
    "clip": Family("pairs", clip, compare, build_pair, CLIP, ignored=NUMBERS),
    "siglip": Family("pairs", siglip, compare, build_pair, SIGLIP, ignored=NUMBERS),
}
