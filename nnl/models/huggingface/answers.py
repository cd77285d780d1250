# SPDX-License-Identifier: Apache-2.0
"""Families that read a text, or hear one, and write another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nnl.core.variable import Variable
from nnl.models.huggingface.family import Config, Family
from nnl.models.stack import Layer, Stack
from nnl.models.t5 import T5, t5

READ = {
    "layer{i}/attention/norm": "block.{i}.layer.0.layer_norm",
    "layer{i}/attention/q": "block.{i}.layer.0.SelfAttention.q",
    "layer{i}/attention/k": "block.{i}.layer.0.SelfAttention.k",
    "layer{i}/attention/v": "block.{i}.layer.0.SelfAttention.v",
    "layer{i}/attention/out": "block.{i}.layer.0.SelfAttention.o",
    "distances": "block.0.layer.0.SelfAttention.relative_attention_bias",
    "out": "final_layer_norm",
}
CROSS = {
    "layer{i}/cross/norm": "block.{i}.layer.1.layer_norm",
    "layer{i}/cross/q": "block.{i}.layer.1.EncDecAttention.q",
    "layer{i}/cross/k": "block.{i}.layer.1.EncDecAttention.k",
    "layer{i}/cross/v": "block.{i}.layer.1.EncDecAttention.v",
    "layer{i}/cross/out": "block.{i}.layer.1.EncDecAttention.o",
}


def _feed(part: int, gated: bool) -> dict[str, str]:
    dense = f"block.{{i}}.layer.{part}.DenseReluDense."
    return {
        "layer{i}/feed_forward/norm": f"block.{{i}}.layer.{part}.layer_norm",
        "layer{i}/gate": f"{dense}wi_0",
        "layer{i}/up": f"{dense}wi_1" if gated else f"{dense}wi",
        "layer{i}/down": f"{dense}wo",
    }


def t5_tensors(gated: bool) -> dict[str, str]:
    """The table of T5, whose feed-forward layers have other names with a gate."""
    found = {"tokens": "shared", "head": "lm_head"}
    found |= {f"reader/{k}": f"encoder.{v}" for k, v in (READ | _feed(1, gated)).items()}
    return found | {
        f"writer/{k}": f"decoder.{v}" for k, v in (READ | CROSS | _feed(2, gated)).items()
    }


def t5_sizes(c: Config) -> T5:
    kinds = {"relu": "relu", "gelu": "gelu", "gated-gelu": "gelu_tanh", "gated-silu": "silu"}
    activation = c.one_of("feed_forward_proj", kinds, "relu")
    heads = c.whole("num_heads")
    reader = Stack(
        c.whole("d_model"),
        heads,
        c.whole("d_ff"),
        (Layer(),) * c.whole("num_layers"),
        heads,
        c.whole("d_kv"),
        norm="rms",
        eps=c.number("layer_norm_epsilon", 1e-6),
        activation=activation,
        gated=c.get("feed_forward_proj", "relu").startswith("gated"),
        bias=(),
        scale=1.0,
    )
    count = c.whole("num_decoder_layers", len(reader.layers))
    tied = c.flag("tie_word_embeddings", True)
    return T5(
        c.whole("vocab_size"),
        reader,
        replace(reader, layers=(Layer(),) * count, causal=True, cross=True),
        c.whole("relative_attention_num_buckets", 32),
        c.whole("relative_attention_max_distance", 128),
        tied,
        c.flag("scale_decoder_outputs", tied),
    )


def build(config: T5) -> Any:
    return t5(Variable((1, 1)), Variable((1, 1)), config)


def call(config: T5, source: Any, tokens: Any, **kw: Any) -> Any:
    return t5(source, tokens, config, **kw)


AGAIN = r"^(en|de)coder\.embed_tokens\.weight$|EncDecAttention\.relative_attention_bias"
_t5 = Family(
    "answers",
    t5_sizes,
    call,
    build,
    lambda config: t5_tensors(config.reader.gated),
    ignored=AGAIN,
)
FAMILIES = {"t5": _t5, "mt5": _t5}
